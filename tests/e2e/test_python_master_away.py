# SPDX-License-Identifier: Apache-2.0
"""A mooncake.store whose master is killed, or stopped: the store waits for it once, then answers at once, and goes on when there is one
again, or it goes on."""
import json
import threading
import time

import pytest

from clients import figures
from conftest import SLOW
from stores import MIB, Memory, make

WAIT_S = 1.0  # of the drop-in
OWN_S = 5.0  # of a call that gives no deadline
SIZE = 4096
CALL_S = 0.005
IN_VAIN = -900


@pytest.fixture(autouse=True)
def plain_wait(bench, monkeypatch):
    """Stores wait as they do where nobody says otherwise."""
    monkeypatch.delenv("KVPOOL_MASTER_WAIT")



def timed(call):
    began = time.monotonic()
    result = call()
    return time.monotonic() - began, result


def calls_of(store, memory):
    """What connectors call while they serve, each with what it is when no master is reached."""
    new, at, sizes = [f"new/{i}" for i in range(4)], [memory.at + i * SIZE for i in range(4)], [SIZE] * 4
    return {
        "is_exist": (lambda: store.is_exist("old/0"), IN_VAIN),
        "batch_is_exist": (lambda: store.batch_is_exist(new), [IN_VAIN] * 4),
        "put": (lambda: store.put("new/0", b"x"), IN_VAIN),
        "batch_put_from": (lambda: store.batch_put_from(new, at, sizes), [IN_VAIN] * 4),
        "batch_put_from_multi_buffers": (lambda: store.batch_put_from_multi_buffers(new, [[a] for a in at], [[SIZE]] * 4), [IN_VAIN] * 4),
        "get": (lambda: store.get("new/0"), b""),
        "batch_get_into": (lambda: store.batch_get_into(new, at, sizes), [IN_VAIN] * 4),
        "get_size": (lambda: store.get_size("new/0"), IN_VAIN),
        "batch_get_buffer": (lambda: store.batch_get_buffer(new), [None] * 4),
        "health_check": (store.health_check, 2),
    }


def check_at_once(calls):
    for name, (call, expected) in calls.items():
        tries = [timed(call) for _ in range(10)]
        assert all(got == expected for _, got in tries), name
        assert sorted(took for took, _ in tries)[5] < CALL_S * SLOW, name


def works(store, memory, name):
    return store.batch_put_from([name], [memory.at], [SIZE]) == [0] and store.batch_get_into([name], [memory.at], [SIZE]) == [SIZE]


@pytest.mark.limit(120)
@pytest.mark.parametrize("kind", ["embedded", "joined"])
def test_a_master_that_is_away_costs_one_wait(make_pool, bench, kind):
    """Fails if a store's calls wait longer than --master-wait in all once the master was killed, or do not go on soon after it is back."""
    pool = make_pool(nodes=0 if kind == "embedded" else 1)
    store = make(pool.addr, 64 * MIB if kind == "embedded" else 0)
    memory = Memory(store, 4 * SIZE, seed=1)
    try:
        assert works(store, memory, "old/0")
        calls = calls_of(store, memory)
        pool.master.kill9()
        waited = 0
        for name, (call, expected) in calls.items():  # the first pays
            took, got = timed(call)
            waited += took
            assert got == expected, name
        assert WAIT_S * 0.8 < waited < WAIT_S + 3 * SLOW
        check_at_once(calls)
        if kind == "joined":  # a removal waits as ever
            took, got = timed(lambda: store.remove("old/0"))
            assert OWN_S - 0.1 < took < OWN_S + 3 * SLOW and got == IN_VAIN
        pool.master = bench.master(listen=pool.addr, name="master2")
        back = time.monotonic()
        while not works(store, memory, f"back/{time.monotonic()}"):
            assert time.monotonic() - back < 30
        assert store.health_check() == 0
        print(f"{kind}: waited {waited:.3f} s, works {time.monotonic() - back:.3f} s behind the master's return")
        assert time.monotonic() - back < 4 * SLOW
    finally:
        store.close()


def sessions(pool, store):
    """How many the store has had, and the master has ended for silence."""
    return json.loads(store._raw.stat(0))["client"]["connects"], figures(pool.master)["sessions_expired"]


@pytest.mark.limit(120)
@pytest.mark.parametrize("kind, first", [("embedded", "batch_put_from"), ("joined", "is_exist"), ("joined", "batch_get_into"),
                                         ("joined", "health_check")])
def test_a_master_that_is_stopped_costs_one_wait(make_pool, kind, first):
    """Fails if a store's calls wait longer than --master-wait in all while the master is stopped, if they do not go on soon after it is, or
    if a session is lost to a stop that is shorter than its life."""
    pool = make_pool(nodes=0 if kind == "embedded" else 1)
    store = make(pool.addr, 64 * MIB if kind == "embedded" else 0)
    memory = Memory(store, 4 * SIZE, seed=1)
    try:
        assert works(store, memory, "old/0")
        calls, before = calls_of(store, memory), sessions(pool, store)
        pool.master.freeze()
        stopped = time.monotonic()
        took, got = timed(calls[first][0])
        assert got == calls[first][1] and WAIT_S * 0.8 < took < WAIT_S + 3 * SLOW
        check_at_once(calls)
        while time.monotonic() < stopped + 5:
            assert store.is_exist("old/0") == IN_VAIN
            time.sleep(0.05)
        pool.master.thaw()
        back = time.monotonic()
        while not works(store, memory, f"back/{time.monotonic()}"):
            assert time.monotonic() - back < 30
        print(f"{kind}: waited {took:.3f} s, works {time.monotonic() - back:.3f} s behind the master's return")
        assert time.monotonic() - back < 4 * SLOW
        assert store.health_check() == 0 and sessions(pool, store) == before
    finally:
        store.close()


def test_known_locations_are_read_on(pool):
    """Fails if a get of what was read a moment ago waits for the master that was killed, or fails within the grace."""
    store = make(pool.addr)
    memory = Memory(store, SIZE, seed=1)
    try:
        assert works(store, memory, "k")
        for _ in range(20):  # so that the location is known, under a lease
            assert store.batch_get_into(["k"], [memory.at], [SIZE]) == [SIZE]
            time.sleep(0.02)
        pool.master.kill9()
        assert store.is_exist("k") == IN_VAIN  # the one wait
        tries = [timed(lambda: store.batch_get_into(["k"], [memory.at], [SIZE])[0]) for _ in range(10)]
        assert [got for _, got in tries] == [SIZE] * 10 and sorted(took for took, _ in tries)[5] < CALL_S * SLOW
    finally:
        store.close()


def test_threads_share_the_wait(pool):
    """Fails if each thread of an engine waits on its own: the second begins when the first has waited for half of the time."""
    store = make(pool.addr)
    try:
        assert store.put("k", b"x") == 0
        pool.master.kill9()
        began, took = time.monotonic(), []

        def ask(after):
            time.sleep(after)
            assert store.is_exist("k") == IN_VAIN
            took.append(time.monotonic() - began)

        threads = [threading.Thread(target=ask, args=(after,)) for after in (0, WAIT_S / 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(took) == 2 and max(took) < WAIT_S + 3 * SLOW
    finally:
        store.close()


def test_the_environment_goes_before(pool, monkeypatch):
    monkeypatch.setenv("KVPOOL_MASTER_WAIT", "100ms")
    store = make(pool.addr)
    try:
        pool.master.kill9()
        took, got = timed(lambda: store.is_exist("k"))
        assert got == IN_VAIN and took < 0.1 + 3 * SLOW
    finally:
        store.close()
