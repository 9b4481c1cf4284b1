# SPDX-License-Identifier: Apache-2.0
"""mooncake.async_store: the calls of a MooncakeDistributedStore for asyncio, made by a few threads."""
import asyncio
import functools
import os
import weakref

from kvpool._workers import Workers

from .store import MooncakeDistributedStore

THREADS = 8  # calls that are made at a time
QUEUE = 1024  # that have begun or wait for a thread; beyond it a call waits where it is awaited


def _stop(of_loops):
    for loop in list(of_loops):
        workers = of_loops.pop(loop, None)
        if workers is not None and os.getpid() == workers.pid:  # else of a fork: the threads are the parent's
            workers.stop()


class MooncakeDistributedStoreAsync(MooncakeDistributedStore):
    """A MooncakeDistributedStore with a coroutine `store.async_NAME(...)` for each call NAME.

    Each event loop that awaits calls has a fixed number of threads. The threads of a closed loop end when another loop comes.
    A cancelled call that has not started is withdrawn. A started call is awaited to its end, because it may use the caller's
    memory. close() ends the calls under way; the threads end with the object.
    """

    def __init__(self):
        super().__init__()
        self._workers = {}  # event loop: its Workers
        weakref.finalize(self, _stop, self._workers)

    def __getattr__(self, name):
        call = getattr(super(), name[len("async_"):], None) if name.startswith("async_") else None
        if call is None or name.startswith("async__") or not callable(call):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

        @functools.wraps(call)
        async def run(*args, **kw):
            return await self._await(functools.partial(call, *args, **kw))

        return run

    def _workers_here(self):
        loop = asyncio.get_running_loop()
        workers = self._workers.get(loop)
        if workers is None or workers.pid != os.getpid():  # a child of fork has no threads, and no pool either
            closed = {other: self._workers.pop(other, None) for other in list(self._workers) if other.is_closed()}
            _stop({other: gone for other, gone in closed.items() if gone is not None})
            workers = self._workers[loop] = Workers(loop, THREADS, QUEUE, "mooncake-async")
        return workers

    async def _await(self, run):
        workers = self._workers_here()
        call = workers.submit(run)
        try:
            return await call.future
        except asyncio.CancelledError:
            if not workers.withdraw(call):
                await workers.wait_ended(call)
            raise
