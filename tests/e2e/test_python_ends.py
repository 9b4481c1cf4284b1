# SPDX-License-Identifier: Apache-2.0
"""mooncake.store and mooncake.engine at their ends: closed while sixteen threads call, used afterwards, forked; and what other threads of
Python do while a call takes long (stage `python` of tests/run)."""
import ctypes
import mmap
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import kvpool
from clients import free_ports
from conftest import SLOW, TIER, _die_with_parent, wait_until
from mooncake.engine import TransferEngine
from mooncake.store import MooncakeDistributedStore
from stores import MIB, make

THREADS = 16
ROUNDS = {"quick": 2, "normal": 8, "long": 50}[TIER]
STUCK_S = 30 * SLOW
CODES = {0, -1, -200, -600, -703, -704, -706, -900, -901}  # what a call that close() ends may give; 1 and lengths besides

pytestmark = pytest.mark.limit(240)


def value_of(i):
    return bytes([i]) * (1000 + 61 * i)


def call_all(store, i, wrong, is_over, started):
    """A thread: every kind of call, until is_over. wrong: what no call may give."""
    key, value = f"k{i}", value_of(i)
    memory = np.frombuffer(bytearray(value), np.uint8)
    size = len(value)
    store.register_buffer(memory.ctypes.data, size)
    try:
        while not is_over.is_set():
            got = store.get(key)
            many = store.get_batch([key, "absent"])
            if got not in (b"", value) or many[0] not in (b"", value) or many[1] != b"":
                wrong.append((key, "get"))
            numbers = [store.put(key, value), store.put_batch([key], [value]), store.is_exist(key), *store.batch_is_exist([key]),
                       *store.batch_put_from([key], [memory.ctypes.data], [size]), store.upsert_parts(key, value[:7], value[7:]),
                       store.get_size(key), *store.batch_get_into([key], [memory.ctypes.data], [size]), store.remove(key)]
            wrong.extend((key, n) for n in numbers if n not in CODES | {1, size})
            if memory.tobytes() != value:
                wrong.append((key, "get_into"))
            started.add(i)
    except BaseException as e:
        wrong.append((key, repr(e)))


@pytest.mark.pool(nodes=1, memory="64MiB")
@pytest.mark.parametrize("memory", [0, 16 * MIB])
def test_store_closed_while_sixteen_threads_call(pool, memory):
    for _ in range(ROUNDS):
        store, wrong, is_over, started = make(pool.addr, memory), [], threading.Event(), set()
        threads = [threading.Thread(target=call_all, args=(store, i, wrong, is_over, started), daemon=True) for i in range(THREADS)]
        for t in threads:
            t.start()
        end = time.monotonic() + STUCK_S
        while len(started) < THREADS and time.monotonic() < end:
            time.sleep(0.01)
        codes = []
        closers = [threading.Thread(target=lambda: codes.append(store.close()), daemon=True) for _ in range(3)]
        for t in closers:
            t.start()
        for t in closers:
            t.join(STUCK_S)
        assert codes == [0, 0, 0]
        assert store.get("k1") == b"" and store.put("k1", b"x") == -600 == store.is_exist("k1")
        is_over.set()
        for t in threads:
            t.join(STUCK_S)
        assert not any(t.is_alive() for t in threads) and len(started) == THREADS
        assert not wrong, wrong[:10]
        assert store.setup("127.0.0.1", "P2PHANDSHAKE", memory, 0, "tcp", "", pool.addr) == 0  # it may begin again
        assert store.put("again", b"x") == 0 and store.close() == 0


def test_fork_after_initialize():
    """A child is told so by its parent's engine, and has one of its own; the parent goes on."""
    engine, memory = TransferEngine(), np.zeros(4096, np.uint8)
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    assert engine.register_memory(memory.ctypes.data, 4096) == 0
    at = f"127.0.0.1:{engine.get_rpc_port()}"
    child = os.fork()
    if child == 0:
        told = (engine.register_memory(memory.ctypes.data + 8192, 8), engine.unregister_memory(memory.ctypes.data),
                engine.transfer_sync_write(at, memory.ctypes.data, memory.ctypes.data, 8),
                engine.transfer_submit_write(at, memory.ctypes.data, memory.ctypes.data, 8), engine.send_probe(at),
                engine.allocate_managed_buffer(4096))
        own = TransferEngine()
        is_well = all(n < 0 for n in told[:3]) and told[3] == 0 == told[5] and told[4] < 0 and own.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        os._exit(0 if is_well else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    other = TransferEngine()
    assert other.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    source = np.arange(4096, dtype=np.uint8)
    assert other.transfer_sync_write(at, source.ctypes.data, memory.ctypes.data, 4096) == 0
    assert (memory == source).all() and engine.unregister_memory(memory.ctypes.data) == 0


OWNER = """
import os, sys, time
from mooncake.store import MooncakeDistributedStore
def begin():
    store = MooncakeDistributedStore()
    assert store.setup(sys.argv[1], "P2PHANDSHAKE", 16 << 20, 0, "tcp", "", sys.argv[2]) == 0
    return store
store = begin()
assert store.put_batch([f"k{i}" for i in range(20)], [bytes([i]) * 100_000 for i in range(20)]) == 0
worker = os.fork()
if worker == 0:
    os.close(1)
    time.sleep(600)
if sys.argv[3] == "again":
    store.close()
    store = begin()  # at the same port
print(worker, flush=True)
sys.stdin.readline()
"""


@pytest.mark.pool(nodes=0)
def test_a_forked_worker_keeps_nothing_of_its_parent(pool, bench):
    """Of a store whose process was killed nothing is there at once, though a worker that it forked lives on; and its port is free."""
    port = free_ports(1)[0]
    with kvpool.Pool(pool.addr) as reader:
        for what in ("again", "killed", "killed"):
            owner = subprocess.Popen([sys.executable, "-c", OWNER, f"127.0.0.1:{port}", pool.addr, what], env=bench.env(), text=True,
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=_die_with_parent)
            worker = None
            try:
                worker = int(owner.stdout.readline())
                assert what == "again" or reader.get("k3") == bytes([3]) * 100_000
                owner.kill()
                owner.wait()
                wait_until(lambda: not any(reader.exists_many([f"k{i}" for i in range(20)])), 4, "the keys to be gone")
                assert pathlib.Path(f"/proc/{worker}").exists()
            finally:
                owner.kill()
                if worker is not None:
                    os.kill(worker, signal.SIGKILL)
                owner.stdin.close()
                owner.stdout.close()


def test_transfer_to_nobody_ends_in_time(monkeypatch):
    """At once where nobody listens; by $MC_TRANSFER_TIMEOUT where somebody does, and says nothing."""
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", "5")
    engine, memory = TransferEngine(), np.zeros(64, np.uint8)
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for peer in ("127.0.0.1:1", f"127.0.0.1:{silent.getsockname()[1]}", "no.such.host.invalid:7", "nonsense", ""):
            begin = time.monotonic()
            assert engine.transfer_sync_write(peer, memory.ctypes.data, 4096, 64) == -1
            assert time.monotonic() - begin < 12 * SLOW, peer


class Counter:
    """A thread that counts, in `with`."""

    def __init__(self, pause_s):
        self.turns = 0
        self._pause_s = pause_s
        self._is_over = False
        self._thread = threading.Thread(target=self._count)

    def _count(self):
        while not self._is_over:
            self.turns += 1
            time.sleep(self._pause_s)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._is_over = True
        self._thread.join()


def test_python_goes_on_during_setup():
    """It waits for a master that says nothing: another thread counts meanwhile."""
    with Counter(0.001) as counter, socket.create_server(("127.0.0.1", 0)) as silent:
        handle, before, begin = MooncakeDistributedStore(), counter.turns, time.monotonic()
        assert handle.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", f"127.0.0.1:{silent.getsockname()[1]}") < 0
        took, turns = time.monotonic() - begin, counter.turns - before
    assert took > 1 and turns > 20 * took  # of a thousand in a second


# ---- memory that takes long to register
MAPPINGS = 5000
STRIDE = 64 * mmap.PAGESIZE


def mapped_in_pieces():
    """2.4 GiB that nobody touches, in so many mappings that it takes a while to look at them: (what holds them, address, bytes)."""
    libc = ctypes.CDLL(None, use_errno=True)
    size = 2 * MAPPINGS * STRIDE
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
    address = np.frombuffer(memory, np.uint8).ctypes.data
    for at in range(address, address + size, 2 * STRIDE):
        assert libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(STRIDE), 0) == 0, os.strerror(ctypes.get_errno())
    return memory, address, size


def of_store(addr, memory, address, size):
    store = make(addr)
    return lambda: store.register_buffer(address, size), lambda: store.unregister_buffer(address), store.close


def of_engine(addr, memory, address, size):
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    return lambda: engine.register_memory(address, size), lambda: engine.unregister_memory(address), lambda: None


def of_kvpool(addr, memory, address, size):
    handle = kvpool.Pool(addr)
    return lambda: handle.register(memory), lambda: handle.unregister(memory), handle.close


@pytest.mark.pool(nodes=1)
@pytest.mark.parametrize("calls_of", [of_store, of_engine, of_kvpool])
def test_python_goes_on_while_memory_is_registered(pool, calls_of):
    """Nothing but the call itself can let the other thread run: nobody is made to give the interpreter's lock away meanwhile. It may
    not get a processor in time, so there is more than one turn."""
    memory, address, size = mapped_in_pieces()
    register, unregister, close = calls_of(pool.addr, memory, address, size)
    interval, went_on = sys.getswitchinterval(), 0
    with Counter(0.0001) as counter:
        sys.setswitchinterval(1000)
        try:
            time.sleep(0.05)  # who waited for the lock by the old interval has had it
            for _ in range(100):
                before = counter.turns
                answer = register()
                went_on = counter.turns - before
                assert answer in (0, None) and unregister() in (0, None)
                if went_on > 0:
                    break
        finally:
            sys.setswitchinterval(interval)
    assert went_on > 0
    close()


def test_a_store_with_a_segment_drains_when_it_is_closed(pool, monkeypatch):
    """Fails if KVPOOL_DRAIN_ON_CLOSE leaves an object of a store's own segment behind, or a time that is none is accepted."""
    reader = make(pool.addr)
    monkeypatch.setenv("KVPOOL_DRAIN_ON_CLOSE", "20s")
    store = make(pool.addr, 64 << 20)
    for i in range(60):
        assert store.put(f"k{i}", bytes([i]) * 100000) == 0
    assert store.close() == 0
    assert [bytes(reader.get(f"k{i}")) == bytes([i]) * 100000 for i in range(60)] == [True] * 60
    assert reader.close() == 0
    monkeypatch.setenv("KVPOOL_DRAIN_ON_CLOSE", "soon")
    with pytest.raises(AssertionError):
        make(pool.addr)
