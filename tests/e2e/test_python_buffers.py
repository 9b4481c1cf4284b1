# SPDX-License-Identifier: Apache-2.0
"""mooncake.store.BufferPool, and the store for asyncio (stage `python` of tests/run)."""
import asyncio
import gc
import threading
import time

import numpy as np
import pytest

import mooncake.buffer_pool
from conftest import own_s, wait_until
from mooncake.async_store import THREADS, MooncakeDistributedStoreAsync
from mooncake.store import BufferPool, MooncakeDistributedStore, RegisteredBufferPool
from stores import MIB, Memory, make

KIB = 1 << 10


def pool_of(store, size=MIB, **kw):
    return BufferPool(store, max_bytes=size, alignment=64 * KIB, **kw)


# ---- BufferPool
def test_a_lease(store):
    buffers = pool_of(store)
    lease = buffers.acquire(1000)
    assert lease.ptr % (64 * KIB) == 0 and lease.size == 1000 and lease.buffer.nbytes == 1000 and not lease.buffer.readonly
    lease.buffer[:3] = b"abc"
    assert store.put_from("k", lease.ptr, 1000) == 0 and store.get("k") == b"abc" + bytes(997)  # it is registered
    at = lease.ptr
    lease.release()
    lease.release()
    assert lease.size == 1000
    with pytest.raises(RuntimeError, match="closed"):
        lease.ptr
    with pytest.raises(BufferError):
        lease.buffer
    with buffers.buffer(5) as again:
        assert again.ptr == at and bytes(again.buffer) == b"abc\0\0"
    with pytest.raises(RuntimeError):
        again.ptr
    with buffers.acquire(0) as nothing:
        assert nothing.size == 0 and nothing.buffer.nbytes == 0
    buffers.close()
    assert store.put_from("other", at, 10) == -600  # and it is registered no more
    buffers.close()
    with pytest.raises(RuntimeError, match="closed"):
        buffers.acquire(1)
    with pytest.raises(RuntimeError, match="closed"):
        buffers.prewarm(1, 1)


def test_memory_that_is_seen_is_not_given_to_others(store):
    """Also not where only a slice, or an array over it, is left of the lease."""
    buffers = pool_of(store, 64 * KIB)
    lease = buffers.acquire(10)
    seen = np.frombuffer(lease.buffer, np.uint8)[2:]
    with pytest.raises(RuntimeError, match="views exist"):
        lease.release()
    seen[:] = 7
    del seen
    lease.release()
    seen = buffers.acquire(10).buffer[2:]  # the lease itself is dropped
    gc.collect()
    with pytest.raises(RuntimeError, match="exhausted"):
        buffers.acquire(10, block=False)
    with pytest.raises(RuntimeError, match="active leases"):
        buffers.close()
    seen[:] = b"x" * 8
    del seen
    buffers.acquire(10, block=False).release()
    lease = buffers.acquire(10)
    del lease
    buffers.close()


def test_exhaustion(store):
    buffers = pool_of(store)
    leases = [buffers.acquire(64 * KIB, block=False) for _ in range(16)]
    assert len({lease.ptr for lease in leases}) == 16
    for kw in (dict(block=False), dict(block=False, timeout=5)):
        with pytest.raises(RuntimeError, match="exhausted"):
            buffers.acquire(1, **kw)
    begin, begin_own = time.monotonic(), own_s()
    with pytest.raises(RuntimeError, match="timed out"):
        buffers.acquire(1, timeout=0.2)
    assert time.monotonic() - begin >= 0.2 and own_s() - begin_own < 5
    with pytest.raises(RuntimeError, match="timed out"):
        buffers.acquire(1, timeout=0)
    timer = threading.Timer(0.1, lambda: leases.pop().release())
    timer.start()
    leases.append(buffers.acquire(5))  # waits for it
    timer.join()
    for lease in leases:
        lease.release()
    assert buffers.acquire(512 * KIB, block=False).size == 512 * KIB  # in what blocks of another size had
    assert buffers.acquire(MIB, block=False).size == MIB
    with pytest.raises(RuntimeError, match="exceeds"):
        buffers.acquire(MIB + 1)
    held, got = [buffers.acquire(512 * KIB), buffers.acquire(64 * KIB)], []
    waiters = [threading.Thread(target=lambda size=size: got.append(buffers.acquire(size, timeout=20).size)) for size in (MIB, 512 * KIB)]
    for waiter in waiters:  # the first to wait cannot use what comes back first
        waiter.start()
        time.sleep(0.1)
    held.pop(0).release()
    waiters[1].join(20)
    assert got == [512 * KIB]
    held.pop().release()
    waiters[0].join(20)
    assert got == [512 * KIB, MIB]
    one = BufferPool(store, max_bytes=MIB, block_on_exhaustion=False)
    whole = one.acquire(MIB)
    with pytest.raises(RuntimeError, match="exhausted"):
        one.acquire(1)
    whole.release()


def test_its_options(store):
    assert mooncake.buffer_pool.BufferPool is BufferPool is RegisteredBufferPool
    buffers = BufferPool(store)  # as much as local_buffer_size
    with pytest.raises(RuntimeError, match="exceeds"):
        buffers.acquire(16 * MIB + 1)
    with buffers.acquire(16 * MIB) as lease:
        assert lease.ptr % (8 * MIB) == 0
    few = pool_of(store, max_regions=1, prewarm_size=64 * KIB, prewarm_count=1)
    with few.acquire(1), pytest.raises(RuntimeError, match="exhausted"):
        few.acquire(1, block=False)
    exact = pool_of(store, max_size_class=128 * KIB)
    held = [exact.acquire(n, block=False) for n in (1, 65537, 131073, 200000, 400000)]
    assert [lease.size for lease in held] == [1, 65537, 131073, 200000, 400000]
    exact.prewarm(64 * KIB, 10**9)  # as many as there is room for
    for kw in (dict(max_bytes=-1), dict(max_regions=-1), dict(prewarm_count=-1)):
        with pytest.raises(ValueError):
            BufferPool(store, **kw)
    for kw in (dict(min_size_class=0), dict(alignment=0), dict(alignment=3), dict(default_timeout=-1)):
        with pytest.raises(RuntimeError):
            BufferPool(store, **kw)
    for none in (None, 5, MooncakeDistributedStore()):
        with pytest.raises(RuntimeError, match="not initialized"):
            BufferPool(none)
    for size in ("a", 1.5, True, None):
        with pytest.raises(TypeError):
            exact.acquire(size)
    with pytest.raises(ValueError):
        exact.acquire(-1)
    with pytest.raises(RuntimeError, match="non-negative"):
        exact.acquire(1, timeout=-1)


def test_many_threads_on_one_pool_of_buffers(store, scaled):
    """No two have one block at a time, and in the end all are back."""
    buffers, wrong = pool_of(store, 8 * 64 * KIB), []

    def work(t):
        for i in range(scaled(3000)):
            with buffers.acquire(100) as lease:
                memory = lease.buffer
                memory[:8] = (t << 32 | i).to_bytes(8, "little")
                time.sleep(0)
                if int.from_bytes(memory[:8], "little") != t << 32 | i:
                    wrong.append(t)
                memory.release()

    threads = [threading.Thread(target=work, args=(t,)) for t in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(50)
    assert not any(t.is_alive() for t in threads) and wrong == []
    buffers.close()


def test_leases_outlive_their_store(pool):
    handle = make(pool.addr)
    buffers = pool_of(handle)
    lease = buffers.acquire(10)
    assert handle.close() == 0
    lease.buffer[:] = b"0123456789"
    assert bytes(lease.buffer) == b"0123456789"
    lease.release()
    with pytest.raises(RuntimeError, match="registered"):
        buffers.acquire(MIB)
    buffers.close()


# ---- asyncio
def test_calls_are_awaited(pool):
    async def run():
        store = MooncakeDistributedStoreAsync()
        assert await store.async_setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", pool.addr) == 0
        assert await store.async_put("k", b"value") == 0 and await store.async_get("k") == b"value"
        assert await store.async_get_batch(["k", "absent"]) == [b"value", b""] and store.get("k") == b"value"
        memory = Memory(store, 4096)
        assert await store.async_batch_get_into(["k"], [memory.at], [4096]) == [5] and memory.part(0, 5) == b"value"
        assert await store.async_put_parts("parts", b"a", b"b") == 0
        with pytest.raises(TypeError):
            await store.async_put("k", 5)
        before = threading.active_count()
        results = await asyncio.gather(*(store.async_put(f"k{i}", b"x" * 100) for i in range(3000)))
        assert results == [0] * 3000 and await store.async_batch_is_exist([f"k{i}" for i in range(3000)]) == [1] * 3000
        assert threading.active_count() == before
        for name in ("async_nothing", "async_", "async__raw", "async__places", "nothing"):
            with pytest.raises(AttributeError):
                getattr(store, name)
        assert await store.async_close() == 0 and await store.async_get("k") == b"" and await store.async_put("k", b"x") == -600
        return store

    before = threading.active_count()
    store = asyncio.run(run())
    del store
    gc.collect()
    end = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_event_loops_share_a_store(pool):
    """One after the other, as of asyncio.run() for each call, and at the same time in two threads. Threads of loops that are gone end."""
    store = make(pool.addr, of=MooncakeDistributedStoreAsync)
    before = threading.active_count()
    for i in range(20):
        assert asyncio.run(store.async_put(f"k{i}", b"value")) == 0 and asyncio.run(store.async_get(f"k{i}")) == b"value"
    wait_until(lambda: threading.active_count() <= before + THREADS, 10, "the end of other loops' threads")

    meet = threading.Barrier(2)

    async def many(found):
        await store.async_is_exist("k0")
        meet.wait(20)  # both loops run, and both have threads
        found += await asyncio.gather(*(store.async_get(f"k{i % 20}") for i in range(500)))

    results = [], []
    threads = [threading.Thread(target=lambda found=found: asyncio.run(many(found))) for found in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == ([b"value"] * 500,) * 2
    assert store.close() == 0
    del store
    gc.collect()
    wait_until(lambda: threading.active_count() == before, 10, "the end of the store's threads")


def test_a_cancelled_call_leaves_the_memory_alone(pool):
    """The master does not answer: the await ends with the call, and no earlier."""
    async def run():
        store = make(pool.addr, of=MooncakeDistributedStoreAsync)
        memory = Memory(store, 4096)
        assert await store.async_put("k", b"value") == 0
        pool.master.freeze()
        try:
            tasks = [asyncio.create_task(store.async_get_into(f"absent{i}", memory.at, 4096)) for i in range(2 * THREADS)]
            await asyncio.sleep(0.2)
            for task in tasks:
                task.cancel()
            done, left = await asyncio.wait(tasks, timeout=0.5)
            assert len(done) == THREADS and len(left) == THREADS  # those that had not begun are over
        finally:
            pool.master.thaw()
        for task in left:
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await store.async_get("k") == b"value" and store.close() == 0

    asyncio.run(run())
