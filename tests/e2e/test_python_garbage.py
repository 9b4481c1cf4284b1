# SPDX-License-Identifier: Apache-2.0
"""What is dropped is collected in the middle of any line of any thread: nothing hangs there, and nothing is missed (stage `python` of
tests/run)."""
import asyncio
import gc
import sys
import threading
import time

import pytest

import kvpool
from mooncake.async_store import MooncakeDistributedStoreAsync
from mooncake.store import BufferPool
from stores import make

KIB = 1 << 10
STUCK_S = 20
WAIT_S = 3

pytestmark = pytest.mark.limit(240)


class Cycle:
    """Garbage that only a collection finds, with what hangs on it; at_end is called then."""

    def __init__(self, held, at_end=lambda: None):
        self.held, self.at_end, self.me = held, at_end, self

    def __del__(self):
        self.at_end()


class CollectsAtLine:
    """A trace function: garbage is collected before the n-th line of these files that the threads run, from arm(n) on."""

    def __init__(self, *names):
        self.names = names
        self.left = 0
        self.collected = None  # when

    def arm(self, n):
        self.left, self.collected = n, None

    def __call__(self, frame, event, arg):
        return self.line if frame.f_code.co_filename.endswith(self.names) else None

    def line(self, frame, event, arg):
        if event == "line" and self.left > 0:
            self.left -= 1
            if self.left == 0:
                gc.collect()
                self.collected = time.monotonic()
        return self.line


@pytest.fixture(autouse=True)
def collects_nothing():
    """But where a test says so."""
    was = gc.get_threshold()
    gc.collect()
    gc.freeze()  # what there is makes no collection of these tests longer
    gc.disable()
    yield
    gc.set_threshold(*was)
    gc.unfreeze()
    gc.enable()


def run(work):
    """What work() returns, in a thread of its own: it may hang."""
    found = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    thread.join(STUCK_S)
    assert not thread.is_alive(), "it hangs"
    return found[0]


def is_soon(condition, timeout):
    end = time.monotonic() + timeout
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)
    return condition()


# ---- BufferPool
@pytest.mark.pool(nodes=1)
def test_a_lease_that_is_collected_in_acquire_is_not_waited_for(pool):
    """At each line before the wait: what came back there unheard would be waited for until the time is over."""
    store, collects = make(pool.addr), CollectsAtLine("_buffers.py", "threading.py")

    def acquire(buffers):
        sys.settrace(collects)
        try:
            return buffers.acquire(10, timeout=WAIT_S).size
        except RuntimeError:
            return None
        finally:
            sys.settrace(None)

    for n in range(1, 1000):
        buffers = BufferPool(store, max_bytes=64 * KIB, alignment=64 * KIB)
        Cycle(buffers.acquire(10))
        collects.arm(n)
        began = time.monotonic()
        size = run(lambda: acquire(buffers))
        took = time.monotonic() - began
        if collects.collected is None or collects.collected - began >= WAIT_S:
            break
        assert size == 10 and took < WAIT_S, n
        gc.collect()
        buffers.close()
    assert n > 20
    assert store.close() == 0


# ---- a listing
@pytest.mark.pool(nodes=1)
def test_a_pool_that_garbage_closes_while_it_is_listed(pool):
    """The list grows by tuples, and these make the collector run: what it finds may close the very pool."""
    with kvpool.Pool(pool.addr) as handle:
        memory = bytearray(8)
        handle.register(memory)
        names = [f"k{i:03}" for i in range(900)]
        assert handle.put_many(names, [memory] * len(names)) == [None] * len(names)
        assert len(list(handle.list(page=1000))) == len(names)

        def list_all():
            gc.collect()  # and it counts from 0
            Cycle(None, handle.close)
            gc.set_threshold(len(names) // 2)
            gc.enable()
            try:
                return [key for key, _ in handle.list(page=1000)]
            except kvpool.ClosedError:  # the collector ran before
                return []
            finally:
                gc.disable()

        assert run(list_all) == [name.encode() for name in names]
        with pytest.raises(kvpool.ClosedError):
            handle.get("k000")


# ---- asyncio
async def open_pool(addr):
    p = await kvpool.AsyncPool(addr).open()
    assert not await p.exists("absent")
    return p, p._workers, p._pool


async def open_store(addr):
    store = make(addr, of=MooncakeDistributedStoreAsync)
    assert await store.async_is_exist("absent") == 0
    return store, store._workers[asyncio.get_running_loop()], None


@pytest.mark.pool(nodes=1)
@pytest.mark.parametrize("open_one", [open_pool, open_store])
def test_what_is_collected_by_one_of_its_own_threads_ends(pool, open_one):
    """At each line that these run from call to call."""
    collects, loop = CollectsAtLine("_workers.py", "threading.py"), asyncio.new_event_loop()
    for n in range(1, 1000):
        threading.settrace(collects)
        try:
            handle, workers, inner = loop.run_until_complete(open_one(pool.addr))
        finally:
            threading.settrace(None)
        Cycle(handle)
        del handle
        collects.arm(n)
        for _ in range(2):
            workers.submit(lambda: None)
        was_reached = is_soon(lambda: collects.left == 0, 1)
        collects.left = 0
        gc.collect()  # where it was not
        assert is_soon(lambda: not any(t.is_alive() for t in workers._threads), STUCK_S), n
        if inner is not None:
            with pytest.raises(kvpool.ClosedError):
                inner.exists("absent")
        if not was_reached:
            break
    assert n > 10
    loop.close()
