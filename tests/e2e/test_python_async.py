# SPDX-License-Identifier: Apache-2.0
"""kvpool.AsyncPool, in this interpreter, which has the wheel installed (stage `python` of tests/run)."""
import asyncio
import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import numpy as np
import pytest

import kvpool
from conftest import own_s


def ours():
    """The threads of asynchronous pools."""
    return [t for t in threading.enumerate() if t.name.startswith("kvpool-async")]


def all_end():
    """Soon, where nobody waits for them."""
    end = time.monotonic() + 10
    while ours() and time.monotonic() < end:
        time.sleep(0.02)
    assert ours() == []


def value_of(i):
    return i.to_bytes(4, "little") * (1 + i % 512)


def test_the_same_as_pool(pool):
    async def main():
        async with kvpool.AsyncPool(pool.addr, name="async") as p:
            await p.put("a", b"value")
            assert await p.get("a") == b"value" and await p.size("a") == 5
            target = np.zeros(8, np.uint8)
            assert await p.get_into("a", target) == 5 and target[:5].tobytes() == b"value"
            with await p.view("a") as memory:
                assert bytes(memory) == b"value"
                with pytest.raises(BufferError):
                    await p.close()
            assert await p.exists("a") and not await p.exists("b")
            with pytest.raises(kvpool.NotFoundError) as e:
                await p.get("b")
            assert e.value.key == "b"
            with pytest.raises(TypeError):
                await p.put("c", "text")
            with pytest.raises(ValueError):
                await p.put("c", b"x", pin="firm")
            blocks = np.arange(4096, dtype=np.uint8).reshape(4, 1024)
            await p.register(blocks)
            assert await p.put_many([f"m{i}" for i in range(4)], list(blocks)) == [None] * 4
            back = np.zeros_like(blocks)
            await p.register(back)
            assert await p.get_many([f"m{i}" for i in range(4)], list(back)) == [1024] * 4
            assert (back == blocks).all()
            await p.unregister(back)
            assert await p.exists_many(["m0", "m9"]) == [True, False]
            with await p.longest_prefix(["m0", "m1", "m9"]) as r:
                assert r.found == 2
            with await p.lookup(["m9", "m3"]) as r:
                assert r.present == [False, True]
            assert sorted([key async for key, _ in p.list("m", page=1)]) == [b"m0", b"m1", b"m2", b"m3"]
            assert [type(e) for e in await p.remove_many(["m2", "m9"])] == [type(None), kvpool.NotFoundError]
            await p.remove("m0")
            assert await p.remove_matching("^m1") == (1, 0)
            with await p.lookup(["m3"], epoch=0, places=True) as r:
                assert r.epoch == 0 and r.places == bytes([kvpool.PRESENT | kvpool.ON_HOST])
            assert await p.bump(epoch=0) == 1
            for call in (p.get("m3", epoch=0), p.put("m3", b"x", epoch=0), p.longest_prefix(["m3"], epoch=0), p.bump(epoch=0)):
                with pytest.raises(kvpool.Error, match="STALE"):
                    await call
            assert (await p.remove_all())[1] == 0
            assert "pool" in await p.stat()
        await p.close()

    asyncio.run(main())
    assert ours() == []


def test_every_call_of_pool_is_there():
    public = {name for name in vars(kvpool.Pool) if not name.startswith("_")}
    assert public <= set(vars(kvpool.AsyncPool))


def test_a_thousand_awaits_on_four_threads(pool):
    async def main():
        async with kvpool.AsyncPool(pool.addr, threads=4, queue=16) as p:
            await asyncio.gather(*(p.put(f"k{i}", value_of(i)) for i in range(200)))
            kernel = len(os.listdir("/proc/self/task"))
            tasks = [asyncio.ensure_future(p.get(f"k{i % 200}")) for i in range(1000)]
            await asyncio.sleep(0)
            most = 0
            while not all(t.done() for t in tasks):
                most = max(most, len(os.listdir("/proc/self/task")))
                assert len(ours()) == 4 and p._workers._held <= 16
                await asyncio.sleep(0.001)
            assert all(t.result() == value_of(i % 200) for i, t in enumerate(tasks))
            assert most <= kernel

    asyncio.run(main())
    assert ours() == []


@pytest.fixture
def stopped(pool):
    """A pool with "k" on a node that is stopped; start() lets it go on."""
    pool.put("k", b"x" * 4096)
    pool.nodes[0].freeze()
    yield pool
    pool.nodes[0].thaw()


async def served_again(p):
    end = time.monotonic() + 20
    while True:
        try:
            assert await p.get("k", deadline=1) == b"x" * 4096
            return
        except kvpool.Error:
            assert time.monotonic() < end


@pytest.mark.pool(nodes=1)
def test_cancelled(pool):
    """Two threads are in calls that wait for a stopped node; what is cancelled behind them never begins."""
    async def main():
        async with kvpool.AsyncPool(pool.addr, transports="tcp", threads=2, queue=4) as p:
            await p.put("k", b"x" * 4096)
            await p.get("k")
            pool.nodes[0].freeze()
            target = np.zeros(4096, np.uint8)
            into = asyncio.ensure_future(p.get_into("k", target, deadline=5))
            plain = asyncio.ensure_future(p.get("k", deadline=5))
            behind = [asyncio.ensure_future(p.get_into("k", np.zeros(4096, np.uint8))) for _ in range(20)]
            await asyncio.sleep(0.3)
            assert p._workers._held == 4
            began = own_s()
            for task in (*behind, plain):
                task.cancel()
            await asyncio.wait((*behind, plain))
            assert all(t.cancelled() for t in (*behind, plain)) and own_s() - began < 2.5
            assert p._workers._held == 2  # what the two threads are at
            # The one that was given memory ends when nothing can write to it any more, however often it is cancelled.
            into.cancel()
            await asyncio.sleep(0.2)
            into.cancel()
            await asyncio.sleep(0.2)
            assert not into.done()
            await asyncio.wait([into])
            assert into.cancelled()
            target[:] = 7
            pool.nodes[0].thaw()
            await served_again(p)
            assert (target == 7).all()
            assert p._workers._held == 0

    asyncio.run(main())


@pytest.mark.pool(nodes=1)
def test_memory_is_held_while_it_is_used(stopped):
    async def main():
        async with kvpool.AsyncPool(stopped.addr, transports="tcp", threads=1) as p:
            target = np.zeros(4096, np.uint8)
            seen = weakref.ref(target)
            task = asyncio.ensure_future(p.get_into("k", target, deadline=4))
            await asyncio.sleep(0.2)
            del target
            task.cancel()
            await asyncio.sleep(0.1)
            gc.collect()
            assert seen() is not None
            await asyncio.wait([task])
            del task
            gc.collect()
            assert seen() is None

    asyncio.run(main())


@pytest.mark.pool(nodes=1)
def test_a_stopped_node_and_a_deadline(stopped):
    """Deadlines count from the call, also of what never gets a thread; the event loop runs meanwhile."""
    async def main():
        async with kvpool.AsyncPool(stopped.addr, transports="tcp", threads=2, queue=8) as p:
            longest, is_over, began = 0, False, own_s()

            async def tick():
                nonlocal longest
                while not is_over:
                    at = own_s()
                    await asyncio.sleep(0.01)
                    longest = max(longest, own_s() - at)

            ticking = asyncio.ensure_future(tick())
            # Both threads wait for the node for seconds, which is longer than the others may take.
            first = [asyncio.ensure_future(p.get("k", deadline=8)) for _ in range(2)]
            await asyncio.sleep(0)
            results = await asyncio.gather(*(p.get("k", deadline=0.2) for _ in range(50)), return_exceptions=True)
            took = own_s() - began
            first = await asyncio.gather(*first, return_exceptions=True)
            is_over = True
            await ticking
            assert all(isinstance(r, kvpool.Error) for r in first)
            assert [r for r in results if not isinstance(r, kvpool.DeadlineError)] == []
            assert took < 4 and longest < 2
            stopped.nodes[0].thaw()
            await served_again(p)

    asyncio.run(main())


@pytest.mark.pool(nodes=1)
def test_close_under_calls(stopped):
    """Calls that are begun, queued, and wait for room: all end with CLOSED, none after close() has returned."""
    async def main():
        p = kvpool.AsyncPool(stopped.addr, transports="tcp", threads=2, queue=8)
        await p.open()
        tasks = [asyncio.ensure_future(p.get("k", deadline=20)) for _ in range(50)]
        await asyncio.sleep(0.3)
        began = time.monotonic()
        await asyncio.gather(p.close(), p.close())
        assert time.monotonic() - began < 10 and ours() == []
        done, late = await asyncio.wait(tasks, timeout=10)
        assert not late and all(isinstance(t.exception(), kvpool.ClosedError) for t in tasks)
        for call in (lambda: p.get("k"), lambda: p.register(bytearray(8)), lambda: p.put("k", b"x")):
            with pytest.raises(kvpool.ClosedError):
                await call()
        await p.close()
        with pytest.raises(RuntimeError):
            await p.open()

    asyncio.run(main())


@pytest.mark.pool(nodes=1)
def test_open_fails_or_is_cancelled(pool):
    async def main():
        p = kvpool.AsyncPool("127.0.0.1:1", deadline=0.5)
        with pytest.raises(RuntimeError):
            await p.get("k")
        with pytest.raises(kvpool.UnreachableError):
            await p.open()
        for bad in ({"threads": 0}, {"queue": 0}):
            with pytest.raises(ValueError):
                kvpool.AsyncPool(pool.addr, **bad)
        pool.master.freeze()
        task = asyncio.ensure_future(kvpool.AsyncPool(pool.addr, deadline=2).open())
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        pool.master.thaw()

    asyncio.run(main())
    all_end()


@pytest.mark.pool(nodes=1)
def test_its_loop_and_its_process(pool):
    async def opened():
        p = await kvpool.AsyncPool(pool.addr).open()
        await p.put("k", b"x")
        return p

    loop = asyncio.new_event_loop()
    p = loop.run_until_complete(opened())
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(p.get("k"))
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(p.get("k"))
        except kvpool.ClosedError as e:
            os._exit(0 if e.name == "FORKED" else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert loop.run_until_complete(p.get("k")) == b"x"
    loop.run_until_complete(p.close())
    loop.close()


@pytest.mark.pool(nodes=1)
def test_the_loop_is_closed_meanwhile(stopped):
    async def begin():
        p = await kvpool.AsyncPool(stopped.addr, transports="tcp", threads=2).open()
        tasks = [asyncio.ensure_future(p.get("k", deadline=2)) for _ in range(4)]
        await asyncio.sleep(0.2)
        return p, tasks

    loop = asyncio.new_event_loop()
    p, tasks = loop.run_until_complete(begin())
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.wait(tasks))
    loop.close()
    assert len(ours()) == 2
    del p, tasks, task
    gc.collect()
    all_end()


@pytest.mark.pool(nodes=1)
def test_an_interpreter_that_ends_without_close(stopped):
    """Threads are in calls then; it ends at once, quietly."""
    program = textwrap.dedent("""
        import asyncio, sys, kvpool
        async def main():
            p = await kvpool.AsyncPool(sys.argv[1], transports="tcp", threads=2).open()
            global kept
            kept = p, [asyncio.ensure_future(p.get("k", deadline=30)) for _ in range(4)]
            await asyncio.sleep(0.2)
        asyncio.run(main())
    """)
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program, stopped.addr], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "") and time.monotonic() - began < 20
