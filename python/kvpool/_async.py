# SPDX-License-Identifier: Apache-2.0
"""AsyncPool: Pool for asyncio. The calls are Pool's, made by a few threads that belong to the pool."""
import asyncio
import os
import threading
import weakref
from functools import partial

from . import _kvpool
from ._pool import Pool
from ._workers import Workers
from .errors import error

_DEADLINE_S = 5.0  # kvpool.h: of a call that gives none
_FORKED = _kvpool.errors["FORKED"][0]
_CLOSED = _kvpool.errors["CLOSED"][0]
_TIME_OVER = _kvpool.errors["DEADLINE"][0]


def _end(workers, pool):
    """What is left where nobody awaited close(): the pool was dropped, its loop is closed, or the interpreter ends."""
    if os.getpid() != workers.pid:
        return  # of a fork: the threads are the parent's
    workers.stop()
    try:
        pool.close()  # ends the calls under way
    except BufferError:  # of a view, which keeps the pool as long
        return
    workers.join()


class AsyncPool:
    """A Pool for asyncio: the same calls with the same arguments, results and errors, to be awaited.

        async with kvpool.AsyncPool() as pool:
            await pool.put("a", b"block")
            blocks = await asyncio.gather(*(pool.get(key) for key in keys))

    Arguments as for Pool, and
    threads: how many calls are made at a time (4); no other thread is ever made, however many calls are awaited.
    queue: how many calls have been begun or wait for a thread, at most (1024). Beyond it a call waits where it is awaited.

    deadline counts from the call on: what waits longer for a thread raises DeadlineError, and was never begun.

    Cancellation. A call that was not begun is taken back. One that was is not stopped: where it was given memory (put, get_into,
    put_many, get_many, register, unregister), the await ends only when nothing touches that memory any more, by its deadline at the
    latest, and raises CancelledError then; any other await ends at once. Whether a put that was cancelled has happened is not known.

    It belongs to the event loop that opened it and to its process: RuntimeError in another loop, ClosedError (FORKED) in a child.
    Use it by `async with`, or open() and close(). If the loop ends without, it is closed when it is collected.
    """

    def __init__(self, master=None, *, threads=4, queue=1024, deadline=None, **options):
        if threads < 1 or queue < 1:
            raise ValueError(f"threads and queue are at least 1, not {threads} and {queue}")
        self._options = dict(options, master=master, deadline=deadline)
        self._sizes = (threads, queue)
        self._deadline = _DEADLINE_S if deadline is None else deadline
        self._workers = self._pool = self._closing = self._closer = self._finalizer = None

    # ---- life
    async def open(self):
        """Connects, as the making of a Pool does, with its errors, and returns itself. `async with` calls it. Once."""
        if self._workers is not None:
            raise RuntimeError("the pool was opened before")
        self._workers = workers = Workers(asyncio.get_running_loop(), *self._sizes, "kvpool-async")
        try:
            self._pool = await workers.submit(partial(Pool, **self._options)).future
        except BaseException:
            self._workers = None
            workers.stop()
            raise
        self._finalizer = weakref.finalize(self, _end, workers, self._pool)
        return self

    async def close(self):
        """Ends the session and the threads. Calls that are awaited raise ClosedError, and are over when this returns. Again does
        nothing. BufferError, and all stays as it was, while somebody has a buffer of a view."""
        if self._pool is None:
            return
        self._check_place()
        if self._closing is None:
            self._closing = self._workers.loop.create_future()
            # A thread of its own, once: all others may be in calls that only this ends.
            self._closer = threading.Thread(target=self._close, name="kvpool-async-close", daemon=True)
            self._closer.start()
        await asyncio.shield(self._closing)

    def _close(self):
        loop, failure = self._workers.loop, None
        try:
            self._pool.close()
        except BufferError as e:
            failure = e
        else:
            self._workers.stop()
            self._workers.join()
            self._finalizer.detach()
        try:
            loop.call_soon_threadsafe(self._closed, failure)
        except RuntimeError:  # the loop was closed meanwhile
            pass

    def _closed(self, failure):
        closing = self._closing
        self._closer.join()  # this was the last that it did
        if failure is None:
            for call in self._workers.withdraw_all():
                if not call.future.done():
                    call.future.set_exception(error(_CLOSED))
            closing.set_result(None)
        else:
            self._closing = None
            closing.set_exception(failure)

    async def __aenter__(self):
        return await self.open()

    async def __aexit__(self, *exc):
        await self.close()

    # ---- calls
    def _check_place(self):
        workers = self._workers
        if workers is None or self._pool is None:
            raise RuntimeError("the pool was not opened: `async with`, or await open()")
        if os.getpid() != workers.pid:
            raise error(_FORKED)
        if asyncio.get_running_loop() is not workers.loop:
            raise RuntimeError("the pool belongs to another event loop")

    def _check(self):
        self._check_place()
        if self._closing is not None:
            raise error(_CLOSED)

    async def _call(self, call, *args, deadline=None, has_memory=False, **kw):
        """Awaits call, a method of Pool, on a thread. has_memory: it works on the caller's memory."""
        self._check()
        loop, workers, pool = self._workers.loop, self._workers, self._pool
        end = loop.time() + (self._deadline if deadline is None else deadline)

        def run():
            return call(pool, *args, deadline=max(0.0, end - loop.time()), **kw)

        return await self._await(workers.submit(run), end, has_memory)

    async def _await(self, call, end, has_memory):
        workers = self._workers
        timer = workers.loop.call_at(end, self._expire, call) if end is not None else None
        try:
            return await call.future
        except asyncio.CancelledError:
            if not workers.withdraw(call) and has_memory:
                await workers.wait_ended(call)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _expire(self, call):
        # What has begun has the same deadline, and ends by itself.
        if not call.future.done() and self._workers.withdraw(call):
            call.future.set_exception(error(_TIME_OVER, None, "no thread was free in time"))

    # ---- memory
    async def register(self, memory):
        """As Pool.register."""
        self._check()
        await self._await(self._workers.submit(partial(self._pool.register, memory)), None, True)

    async def unregister(self, memory):
        """As Pool.unregister."""
        self._check()
        await self._await(self._workers.submit(partial(self._pool.unregister, memory)), None, True)

    # ---- one key
    async def put(self, key, value, *, replicas=1, pin=None, upsert=False, wait=False, deadline=None):
        """As Pool.put."""
        await self._call(Pool.put, key, value, replicas=replicas, pin=pin, upsert=upsert, wait=wait, deadline=deadline,
                         has_memory=True)

    async def get(self, key, *, fresh=False, deadline=None):
        """As Pool.get."""
        return await self._call(Pool.get, key, fresh=fresh, deadline=deadline)

    async def get_into(self, key, target, *, fresh=False, deadline=None):
        """As Pool.get_into."""
        return await self._call(Pool.get_into, key, target, fresh=fresh, deadline=deadline, has_memory=True)

    async def view(self, key, *, deadline=None):
        """As Pool.view: `with await pool.view("a") as memory`. Its release() waits for nobody."""
        return await self._call(Pool.view, key, deadline=deadline)

    async def exists(self, key, *, deadline=None):
        """As Pool.exists."""
        return await self._call(Pool.exists, key, deadline=deadline)

    async def size(self, key, *, deadline=None):
        """As Pool.size."""
        return await self._call(Pool.size, key, deadline=deadline)

    async def remove(self, key, *, force=False, wait=False, deadline=None):
        """As Pool.remove."""
        await self._call(Pool.remove, key, force=force, wait=wait, deadline=deadline)

    # ---- many keys
    async def put_many(self, keys, values, *, replicas=1, pin=None, upsert=False, wait=False, groups=None, deadline=None):
        """As Pool.put_many."""
        return await self._call(Pool.put_many, keys, values, replicas=replicas, pin=pin, upsert=upsert, wait=wait,
                                groups=groups, deadline=deadline, has_memory=True)

    async def get_many(self, keys, targets, *, fresh=False, deadline=None):
        """As Pool.get_many."""
        return await self._call(Pool.get_many, keys, targets, fresh=fresh, deadline=deadline, has_memory=True)

    async def exists_many(self, keys, *, deadline=None):
        """As Pool.exists_many."""
        return await self._call(Pool.exists_many, keys, deadline=deadline)

    async def longest_prefix(self, keys, *, ttl=None, deadline=None):
        """As Pool.longest_prefix: `with await pool.longest_prefix(keys) as reservation`. Its release() waits for nobody."""
        return await self._call(Pool.longest_prefix, keys, ttl=ttl, deadline=deadline)

    async def lookup(self, keys, *, ttl=None, deadline=None):
        """As Pool.lookup; the Reservation as of longest_prefix."""
        return await self._call(Pool.lookup, keys, ttl=ttl, deadline=deadline)

    # ---- the whole
    async def remove_matching(self, pattern, *, force=False, deadline=None):
        """As Pool.remove_matching."""
        return await self._call(Pool.remove_matching, pattern, force=force, deadline=deadline)

    async def remove_all(self, *, force=False, deadline=None):
        """As Pool.remove_all."""
        return await self._call(Pool.remove_all, force=force, deadline=deadline)

    async def bump(self, *, deadline=None):
        """As Pool.bump."""
        return await self._call(Pool.bump, deadline=deadline)

    async def list(self, prefix=b"", *, page=1000, deadline=None):
        """As Pool.list: `async for key, length in pool.list(prefix)`. deadline: seconds for each page."""
        cursor = 0
        while True:
            cursor, entries = await self._call(Pool._list_page, prefix, cursor, page=page, deadline=deadline)
            for entry in entries:
                yield entry
            if cursor == 0:
                return

    async def stat(self, *, deadline=None):
        """As Pool.stat."""
        return await self._call(Pool.stat, deadline=deadline)
