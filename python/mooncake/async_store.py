# SPDX-License-Identifier: Apache-2.0
"""mooncake.async_store: the calls of a MooncakeDistributedStore for asyncio, on a few threads of its own."""
import asyncio
import functools
import os
import weakref

from kvpool._workers import Workers

from .store import MooncakeDistributedStore

THREADS = 8  # calls that are made at a time
QUEUE = 1024  # that have begun or wait for a thread; beyond it a call waits where it is awaited


def _stop(workers):
    if os.getpid() == workers.pid:  # else of a fork: the threads are the parent's
        workers.stop()


class MooncakeDistributedStoreAsync(MooncakeDistributedStore):
    """A MooncakeDistributedStore with `await store.async_NAME(...)` for each of its calls NAME.

    No thread is made for a call. The first one awaited binds the store to its event loop: RuntimeError in another one. A call that is
    cancelled and was not begun is taken back; one that was is awaited to its end, since it may use the caller's memory. close() ends
    the calls under way; the threads end with the object.
    """

    def __init__(self):
        super().__init__()
        self._workers = None

    def __getattr__(self, name):
        call = getattr(super(), name[len("async_"):], None) if name.startswith("async_") else None
        if call is None or name.startswith("async__") or not callable(call):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

        @functools.wraps(call)
        async def run(*args, **kw):
            return await self._await(functools.partial(call, *args, **kw))

        return run

    async def _await(self, run):
        loop = asyncio.get_running_loop()
        if self._workers is None or self._workers.pid != os.getpid():  # a child of fork has no threads, and no pool either
            self._workers = Workers(loop, THREADS, QUEUE, "mooncake-async")
            weakref.finalize(self, _stop, self._workers)
        workers = self._workers
        if workers.loop is not loop:
            raise RuntimeError("the store belongs to another event loop")
        call = workers.submit(run)
        try:
            return await call.future
        except asyncio.CancelledError:
            if not workers.withdraw(call):
                await workers.wait_ended(call)
            raise
