# SPDX-License-Identifier: Apache-2.0
"""AsyncPool: Pool for asyncio. A few threads of the pool make the calls of a Pool."""
from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from functools import partial
from typing import Any, AsyncIterator, Callable, Dict, List, Optional, Sequence, Set, Tuple, TypeVar, Union

from . import _kvpool
from ._pool import Pool, Reservation, View, _ms
from ._typing import Group, Key, Lineage, Memory, Parts, Pin
from ._workers import Call, Workers
from .errors import Error, error

T = TypeVar("T")
_DEADLINE_S = 5.0  # kvpool.h: for a call without its own deadline
_FORKED = _kvpool.errors["FORKED"][0]
_CLOSED = _kvpool.errors["CLOSED"][0]
_TIME_OVER = _kvpool.errors["DEADLINE"][0]


_living: Set[Tuple[Workers, Pool]] = set()  # open pools


def _close_dropped(workers: Workers, pool: Pool) -> None:
    try:
        pool.close()  # ends the calls under way
    except BufferError:  # of a view, which keeps the pool as long
        pass
    _living.discard((workers, pool))


def _drop(workers: Workers, pool: Pool) -> None:
    """The object is garbage, and close() was not awaited. The garbage collector may run in a thread that holds a lock, or that
    is in a call of this pool. close() waits for calls, so a thread of the pool calls it after its own call."""
    if os.getpid() == workers.pid:  # in a child the threads are the parent's
        workers.stop(partial(_close_dropped, workers, pool))


@atexit.register
def _close_all() -> None:
    """At the end of the interpreter: threads must not be in calls."""
    for workers, pool in list(_living):
        if os.getpid() != workers.pid:
            continue
        workers.stop()
        try:
            pool.close()
        except BufferError:
            continue
        workers.join()


class AsyncPool:
    """A Pool for asyncio: the same calls with the same arguments, results and errors, as coroutines.

        async with kvpool.AsyncPool() as pool:
            await pool.put("a", b"block")
            blocks = await asyncio.gather(*(pool.get(key) for key in keys))

    The arguments are those of Pool, and
    threads: the number of calls that run at the same time (4). The pool starts no other threads.
    queue: the most calls that run or wait for a thread (1024). Further calls wait in their await.

    deadline counts from the call. A call that waits longer for a thread raises DeadlineError and never runs.

    Cancellation. A call that has not started is withdrawn. A call that has started runs to its end. If it has the caller's
    memory (put, get_into, put_many, get_many, register, unregister), the await raises CancelledError only after the call has
    ended, at the latest at its deadline; any other await raises it at once. The effect of a cancelled put is unknown.

    The pool belongs to the event loop and the process that opened it: RuntimeError in another loop, ClosedError (FORKED) in
    a child. Use `async with`, or open() and close(). If close() is not awaited, a thread of the pool closes it after the
    object is collected.
    """

    def __init__(self, master: Optional[str] = None, *, threads: int = 4, queue: int = 1024, name: Optional[str] = None,
                 host_id: Optional[str] = None, transports: Optional[str] = None, deadline: Optional[float] = None,
                 verify: bool = False, memory: Union[int, str] = 0, listen: Optional[str] = None, chunk: Union[int, str] = 0,
                 tenant: Optional[str] = None, locations: int = 0, ssd: Union[str, Sequence[str]] = (),
                 ssd_writes: Union[int, str] = 0, cluster: Optional[str] = None, master_wait: Optional[float] = None) -> None:
        if threads < 1 or queue < 1:
            raise ValueError(f"threads and queue are at least 1, not {threads} and {queue}")
        self._make = partial(Pool, master, name=name, host_id=host_id, transports=transports, deadline=deadline, verify=verify,
                             memory=memory, listen=listen, chunk=chunk, tenant=tenant, locations=locations, ssd=ssd,
                             ssd_writes=ssd_writes, cluster=cluster, master_wait=master_wait)
        self._sizes = (threads, queue)
        self._deadline = _DEADLINE_S if deadline is None else deadline
        self._workers: Optional[Workers] = None  # from open() on
        self._pool: Optional[Pool] = None  # once it is open
        self._finalizer: Optional[weakref.finalize[..., AsyncPool]] = None
        self._closing: Optional[asyncio.Future[None]] = None  # from close() on
        self._closer: Optional[threading.Thread] = None

    # ---- life
    async def open(self) -> AsyncPool:
        """Connects, with the errors of Pool(), and returns the pool. `async with` calls it. It can be called once."""
        if self._workers is not None:
            raise RuntimeError("the pool was opened before")
        self._workers = workers = Workers(asyncio.get_running_loop(), *self._sizes, "kvpool-async")
        try:
            self._pool = pool = await workers.submit(self._make).future
        except BaseException:
            self._workers = None
            workers.stop()
            raise
        _living.add((workers, pool))
        self._finalizer = weakref.finalize(self, _drop, workers, pool)
        self._finalizer.atexit = False  # that is _close_all's
        return self

    async def close(self) -> None:
        """Ends the session and the threads. Awaited calls raise ClosedError, and have ended when this returns. After the first
        call it has no effect. BufferError, and no change, while a buffer of a view is still in use."""
        if self._pool is None:
            return
        workers, pool = self._here()
        closing = self._closing
        if closing is None:
            closing = self._closing = workers.loop.create_future()
            # A new thread: all others may be in calls that only the close ends.
            self._closer = threading.Thread(target=self._close, args=(workers, pool, closing), name="kvpool-async-close",
                                            daemon=True)
            self._closer.start()
        await asyncio.shield(closing)

    def _close(self, workers: Workers, pool: Pool, closing: asyncio.Future[None]) -> None:
        failure = None
        try:
            pool.close()
        except BufferError as e:
            failure = e
        else:
            workers.stop()
            workers.join()
            _living.discard((workers, pool))
        try:
            workers.loop.call_soon_threadsafe(self._closed, workers, closing, failure)
        except RuntimeError:  # the loop was closed meanwhile
            pass

    def _closed(self, workers: Workers, closing: asyncio.Future[None], failure: Optional[BufferError]) -> None:
        if self._closer is not None:
            self._closer.join()  # it has nothing more to do
        if failure is not None:
            self._closing = None
            closing.set_exception(failure)
            return
        if self._finalizer is not None:
            self._finalizer.detach()
        for call in workers.withdraw_all():
            if not call.future.done():
                call.future.set_exception(error(_CLOSED))
        closing.set_result(None)

    async def __aenter__(self) -> AsyncPool:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # ---- calls
    def _here(self) -> Tuple[Workers, Pool]:
        """The workers and the pool, if the pool is open and may be used here."""
        workers, pool = self._workers, self._pool
        if workers is None or pool is None:
            raise RuntimeError("the pool was not opened: `async with`, or await open()")
        if os.getpid() != workers.pid:
            raise error(_FORKED)
        if asyncio.get_running_loop() is not workers.loop:
            raise RuntimeError("the pool belongs to another event loop")
        return workers, pool

    def _open(self) -> Tuple[Workers, Pool]:
        if self._closing is not None:
            raise error(_CLOSED)
        return self._here()

    async def _call(self, call: Callable[..., T], *args: Any, deadline: Optional[float] = None, has_memory: bool = False,
                    **kw: Any) -> T:
        """Awaits call, a method of Pool, in a thread. has_memory: it uses the caller's memory."""
        workers, pool = self._open()
        _ms(deadline)  # ValueError below 0
        end = workers.loop.time() + (self._deadline if deadline is None else deadline)

        def run() -> T:
            return call(pool, *args, deadline=max(0.0, end - workers.loop.time()), **kw)

        result: T = await self._await(workers, workers.submit(run), end, has_memory)
        return result

    async def _await(self, workers: Workers, call: Call, end: Optional[float], has_memory: bool) -> Any:
        timer = workers.loop.call_at(end, self._expire, workers, call) if end is not None else None
        try:
            return await call.future
        except asyncio.CancelledError:
            if not workers.withdraw(call) and has_memory:
                await workers.wait_ended(call)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    @staticmethod
    def _expire(workers: Workers, call: Call) -> None:
        # A call that has started has the same deadline, and ends by itself.
        if not call.future.done() and workers.withdraw(call):
            call.future.set_exception(error(_TIME_OVER, None, "no thread was free in time"))

    # ---- memory
    async def register(self, memory: Memory) -> None:
        """As Pool.register. No deadline."""
        workers, pool = self._open()
        await self._await(workers, workers.submit(partial(pool.register, memory)), None, True)

    async def unregister(self, memory: Memory) -> None:
        """As Pool.unregister. No deadline."""
        workers, pool = self._open()
        await self._await(workers, workers.submit(partial(pool.unregister, memory)), None, True)

    # ---- one key
    async def put(self, key: Key, value: Memory, *, replicas: int = 1, pin: Pin = None, upsert: bool = False, wait: bool = False,
                  lineage: Optional[Lineage] = None, epoch: Optional[int] = None, deadline: Optional[float] = None) -> None:
        """As Pool.put."""
        await self._call(Pool.put, key, value, replicas=replicas, pin=pin, upsert=upsert, wait=wait, lineage=lineage,
                         epoch=epoch, deadline=deadline, has_memory=True)

    async def get(self, key: Key, *, fresh: bool = False, epoch: Optional[int] = None, keep_here: bool = False,
                  deadline: Optional[float] = None) -> bytes:
        """As Pool.get."""
        return await self._call(Pool.get, key, fresh=fresh, epoch=epoch, keep_here=keep_here, deadline=deadline)

    async def get_into(self, key: Key, target: Memory, *, fresh: bool = False, epoch: Optional[int] = None,
                       keep_here: bool = False, deadline: Optional[float] = None) -> int:
        """As Pool.get_into."""
        return await self._call(Pool.get_into, key, target, fresh=fresh, epoch=epoch, keep_here=keep_here, deadline=deadline, has_memory=True)

    async def view(self, key: Key, *, deadline: Optional[float] = None) -> View:
        """As Pool.view: `with await pool.view("a") as memory`. Its release() does not block."""
        return await self._call(Pool.view, key, deadline=deadline)

    async def exists(self, key: Key, *, deadline: Optional[float] = None) -> bool:
        """As Pool.exists."""
        return await self._call(Pool.exists, key, deadline=deadline)

    async def size(self, key: Key, *, deadline: Optional[float] = None) -> int:
        """As Pool.size."""
        return await self._call(Pool.size, key, deadline=deadline)

    async def lineage(self, key: Key, *, deadline: Optional[float] = None) -> Optional[Lineage]:
        """As Pool.lineage."""
        return await self._call(Pool.lineage, key, deadline=deadline)

    async def remove(self, key: Key, *, force: bool = False, wait: bool = False, deadline: Optional[float] = None) -> None:
        """As Pool.remove."""
        await self._call(Pool.remove, key, force=force, wait=wait, deadline=deadline)

    # ---- many keys
    async def put_many(self, keys: Sequence[Key], values: Sequence[Parts], *, replicas: int = 1, pin: Pin = None,
                       upsert: bool = False, wait: bool = False, groups: Optional[Sequence[Optional[Group]]] = None,
                       lineages: Optional[Sequence[Optional[Lineage]]] = None, epoch: Optional[int] = None,
                       deadline: Optional[float] = None) -> List[Optional[Error]]:
        """As Pool.put_many."""
        return await self._call(Pool.put_many, keys, values, replicas=replicas, pin=pin, upsert=upsert, wait=wait,
                                groups=groups, lineages=lineages, epoch=epoch, deadline=deadline, has_memory=True)

    async def get_many(self, keys: Sequence[Key], targets: Sequence[Parts], *, fresh: bool = False,
                       epoch: Optional[int] = None, keep_here: bool = False, deadline: Optional[float] = None) -> List[Union[int, Error]]:
        """As Pool.get_many."""
        return await self._call(Pool.get_many, keys, targets, fresh=fresh, epoch=epoch, keep_here=keep_here, deadline=deadline, has_memory=True)

    async def exists_many(self, keys: Sequence[Key], *, deadline: Optional[float] = None) -> List[bool]:
        """As Pool.exists_many."""
        return await self._call(Pool.exists_many, keys, deadline=deadline)

    async def remove_many(self, keys: Sequence[Key], *, force: bool = False, wait: bool = False,
                          deadline: Optional[float] = None) -> List[Optional[Error]]:
        """As Pool.remove_many."""
        return await self._call(Pool.remove_many, keys, force=force, wait=wait, deadline=deadline)

    async def longest_prefix(self, keys: Sequence[Key], *, ttl: Optional[float] = None, prefetch: bool = False,
                             groups: bool = False, epoch: Optional[int] = None, places: bool = False,
                             deadline: Optional[float] = None) -> Reservation:
        """As Pool.longest_prefix: `with await pool.longest_prefix(keys) as reservation`. Its release() does not block."""
        return await self._call(Pool.longest_prefix, keys, ttl=ttl, prefetch=prefetch, groups=groups, epoch=epoch, places=places,
                                deadline=deadline)

    async def lookup(self, keys: Sequence[Key], *, ttl: Optional[float] = None, prefetch: bool = False, groups: bool = False,
                     epoch: Optional[int] = None, places: bool = False, deadline: Optional[float] = None) -> Reservation:
        """As Pool.lookup; the Reservation as of longest_prefix."""
        return await self._call(Pool.lookup, keys, ttl=ttl, prefetch=prefetch, groups=groups, epoch=epoch, places=places,
                                deadline=deadline)

    # ---- the whole
    async def remove_matching(self, pattern: str, *, force: bool = False, deadline: Optional[float] = None) -> Tuple[int, int]:
        """As Pool.remove_matching."""
        return await self._call(Pool.remove_matching, pattern, force=force, deadline=deadline)

    async def remove_all(self, *, force: bool = False, deadline: Optional[float] = None) -> Tuple[int, int]:
        """As Pool.remove_all."""
        return await self._call(Pool.remove_all, force=force, deadline=deadline)

    async def unmount_ssd(self, *, deadline: Optional[float] = None) -> None:
        """As Pool.unmount_ssd."""
        await self._call(Pool.unmount_ssd, deadline=deadline)

    async def bump(self, *, epoch: Optional[int] = None, deadline: Optional[float] = None) -> int:
        """As Pool.bump."""
        return await self._call(Pool.bump, epoch=epoch, deadline=deadline)

    async def list(self, prefix: Key = b"", *, page: int = 1000,
                   deadline: Optional[float] = None) -> AsyncIterator[Tuple[bytes, int]]:
        """As Pool.list: `async for key, length in pool.list(prefix)`. deadline: seconds for each page."""
        cursor = 0
        while True:
            cursor, entries = await self._call(Pool._list_page, prefix, cursor, page=page, deadline=deadline)
            for entry in entries:
                yield entry
            if cursor == 0:
                return

    async def stat(self, *, deadline: Optional[float] = None) -> Dict[str, Any]:
        """As Pool.stat."""
        return await self._call(Pool.stat, deadline=deadline)

    async def where(self, key: Key, *, deadline: Optional[float] = None) -> Optional[Dict[str, Any]]:
        """As Pool.where."""
        return await self._call(Pool.where, key, deadline=deadline)

    async def why(self, key: Key, *, all_tenants: bool = False, deadline: Optional[float] = None) -> Dict[str, Any]:
        """As Pool.why."""
        return await self._call(Pool.why, key, all_tenants=all_tenants, deadline=deadline)
