# SPDX-License-Identifier: Apache-2.0
"""Many threads and many processes at the Python API: no wrong byte, no deadlock, a clean end; close and fork in the middle.
Seconds in the quick tier, a minute each in the long one."""
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

import pytest

import kvpool
from clients import settled
from conftest import SLOW, TIER, _die_with_parent
from mooncake.store import MooncakeDistributedStore
from python_load import Load

LOAD_S = {"quick": 2, "normal": 8, "long": 60}[TIER]
ROUNDS = {"quick": 3, "normal": 15, "long": 100}[TIER]  # of close and of fork
THREADS = 16
PROCESSES = 8
STUCK_S = 30 * SLOW  # nobody's call may take longer than its deadline, which is 5 s

VIEWED = {"shm": True, "tcp": False}  # whether there are views by that transport

pytestmark = pytest.mark.limit(LOAD_S + 120)


def judge(counts, wrong, transport="shm"):
    assert not wrong, wrong[:20]
    kinds = {"put", "upsert", "get", "get_into", "put_many", "get_many", "look", "prefix", "remove"}
    assert kinds | ({"view"} if VIEWED[transport] else set()) <= set(counts), counts


@pytest.mark.parametrize("transport", VIEWED)
@pytest.mark.pool(nodes=2, memory="4MiB")
def test_sixteen_threads_on_one_client(pool, transport, monkeypatch):
    """The pool is smaller than all the keys, so there is eviction, too."""
    if not VIEWED[transport]:
        monkeypatch.setattr("python_load.EXPECTED", sys.modules["python_load"].EXPECTED | {"NOTSUP"})
    with kvpool.Pool(pool.addr, name="threads", transports=transport) as handle:
        load = Load(handle, THREADS, seed=1)
        time.sleep(LOAD_S)
        assert load.stop(STUCK_S) == []
        assert min(load.done) > 0
        judge(load.counts, load.wrong, transport)
        handle.put("after", b"x")
        assert handle.get("after") == b"x"
    found = settled(pool.master)
    assert found["objects"] > 0 and found["evictions"] > 0, found


@pytest.mark.pool(nodes=2, memory="4MiB")
def test_eight_processes_on_one_pool(pool, bench):
    script = pathlib.Path(__file__).with_name("python_load.py")
    began = time.monotonic()
    processes = [subprocess.Popen([sys.executable, script, pool.addr, str(LOAD_S), "2", str(i)], env=bench.env(), text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=_die_with_parent)
                 for i in range(PROCESSES)]
    counts = {}
    for process in processes:
        out, err = process.communicate(timeout=LOAD_S + 60 * SLOW)
        assert process.returncode == 0, (process.returncode, out, err[-2000:])
        did = json.loads(out)
        assert did["stuck"] == [] and did["least"] > 0, did
        assert not did["wrong"], did["wrong"]
        for kind, n in did["counts"].items():
            counts[kind] = counts.get(kind, 0) + n
    judge(counts, [])
    assert time.monotonic() - began >= LOAD_S
    assert settled(pool.master)["evictions"] > 0


@pytest.mark.pool(nodes=1, memory="32MiB")
def test_close_under_load(pool):
    """From several threads at once, while all others are in calls, batches with registered memory among them."""
    for turn in range(ROUNDS):
        handle = kvpool.Pool(pool.addr, name=f"close{turn}")
        load = Load(handle, THREADS, seed=turn)
        load.may_close = True
        time.sleep(0.1)
        closers = [threading.Thread(target=close, args=(handle, load)) for _ in range(3)]
        for thread in closers:
            thread.start()
        for thread in closers:
            thread.join(STUCK_S)
            assert not thread.is_alive()
        assert load.join(STUCK_S) == []
        assert not load.wrong, load.wrong[:20]
        for call in (lambda: handle.get("k1"), lambda: handle.put("k1", b"x"), lambda: handle.put_many(["k1"], [b"x"]),
                     lambda: handle.view("k1"), lambda: handle.lookup(["k1"]), lambda: handle.register(bytearray(8)),
                     lambda: list(handle.list()), lambda: handle.bump()):
            try:
                answer = call()
            except kvpool.ClosedError as e:
                assert e.name == "CLOSED"
            else:  # a batch tells it of each key
                assert [e.name for e in answer] == ["CLOSED"]


def close(handle, load):
    """BufferError while a thread looks at a view, as documented: try again."""
    end = time.monotonic() + STUCK_S
    while True:
        try:
            handle.close()
            return
        except BufferError:
            if time.monotonic() > end:
                load.wrong.append("close: a buffer of a view is still in use all the time")
                return
            time.sleep(0.001)


@pytest.mark.pool(nodes=1, memory="32MiB")
def test_fork_under_load(pool):
    """A child is told at once, whatever its parent's threads were in, and can open a pool of its own; the parent goes on."""
    with kvpool.Pool(pool.addr, name="parent") as handle:
        load = Load(handle, 8, seed=7)
        for turn in range(ROUNDS):
            child = os.fork()
            if child == 0:
                os._exit(in_child(handle, pool.addr, turn))
            end = time.monotonic() + STUCK_S
            while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
                if time.monotonic() > end:
                    os.kill(child, 9)
                    os.waitpid(child, 0)
                    pytest.fail("a child hangs")
                time.sleep(0.01)
            assert os.waitstatus_to_exitcode(ended[1]) == 0
        assert load.stop(STUCK_S) == []
        judge_parent(load)
    settled(pool.master)


def judge_parent(load):
    assert not load.wrong and min(load.done) > 0, load.wrong[:20]


def in_child(handle, addr, turn):
    for call in (lambda: handle.get("k1"), lambda: handle.put("k1", b"x"), lambda: handle.stat(), lambda: handle.view("k1"),
                 lambda: handle.register(bytearray(8))):
        try:
            call()
            return 2
        except kvpool.ClosedError as e:
            if e.name != "FORKED":
                return 3
    handle.close()
    with kvpool.Pool(addr, name=f"child{turn}") as own:
        own.put(f"child{turn}", b"mine")
        return 0 if own.get(f"child{turn}") == b"mine" else 4


@pytest.mark.pool(nodes=1)
def test_fork_after_setup(pool):
    """The drop-in, with a node of its own in the process: a child gets the code of a store that is not there, and sets up one."""
    store = make_store(pool.addr, 16 << 20)
    assert store.put("k", b"x") == 0
    child = os.fork()
    if child == 0:
        told = (store.get("k"), store.put("k2", b"x"), store.is_exist("k"), store.batch_is_exist(["k"]), store.get_size("k"),
                store.remove("k"), store.remove_all(), store.health_check(), store.close())
        own = make_store(pool.addr, 0)
        os._exit(0 if told == (b"", -600, -600, [-600], -600, -600, -600, 1, 0) and own.get("k") == b"x" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.get("k") == b"x" and store.health_check() == 0
    assert store.close() == 0


def make_store(addr, memory):
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", memory, 0, "tcp", "", addr) == 0
    return store
