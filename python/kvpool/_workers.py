# SPDX-License-Identifier: Apache-2.0
"""A fixed number of threads that make blocking calls for one event loop; used by AsyncPool.

A call waits for room (beyond the bound), then in the queue, then it starts. It can be withdrawn before it starts. After that
only its deadline and the close of its pool end it.

Nothing here takes a lock that Python code may hold: stop() is called wherever garbage is collected, which may be in any line
of any thread. Each object that threads share is a deque or a SimpleQueue, whose single calls are atomic.
"""
from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from queue import Empty, SimpleQueue
from typing import Any, Callable, Deque, List, Optional, TypeVar

T = TypeVar("T")


class Call:
    """One call. future: its result. ended: set when it does not run any more, if that is awaited."""

    __slots__ = ("run", "future", "ended")

    def __init__(self, run: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        self.run: Optional[Callable[[], Any]] = run  # None: ended, or withdrawn
        self.future = future
        self.ended: Optional[asyncio.Future[None]] = None


def _pop(items: Deque[T]) -> Optional[T]:
    try:
        return items.popleft()
    except IndexError:
        return None


def _take(calls: Deque[Call], call: Call) -> bool:
    try:
        calls.remove(call)
    except ValueError:
        return False
    return True


class Workers:
    """All methods but the threads' own loop are called in the event loop's thread, so its own state needs no lock."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int, bound: int, name: str) -> None:
        self.loop = loop
        self.pid = os.getpid()
        self._bound = bound
        self._held = 0  # handed over and not ended, at most the bound; used by the event loop only
        self._waiting: Deque[Call] = deque()  # for room; used by the event loop only
        self._queue: Deque[Call] = deque()  # handed over and not started
        self._wakes: SimpleQueue[None] = SimpleQueue()  # at least one for each call in the queue, and for each thread that should end
        self._is_stopped = False
        self._ends: Deque[Callable[[], None]] = deque()  # for the next thread that ends
        # Daemons, because they must not delay the end of the interpreter; AsyncPool ends them before.
        self._threads = [threading.Thread(target=self._work, name=f"{name}-{i}", daemon=True) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, run: Callable[[], Any]) -> Call:
        """Queues run, a function without arguments, and returns its Call."""
        call = Call(run, self.loop.create_future())
        if self._held < self._bound:
            self._hand_over(call)
        else:
            self._waiting.append(call)
        return call

    def withdraw(self, call: Call) -> bool:
        """Withdraws a call that has not started. Returns whether it could."""
        if _take(self._waiting, call):
            call.run = None
            return True
        if not _take(self._queue, call):
            return False
        try:
            self._wakes.get_nowait()
        except Empty:  # a thread has taken the wake-up, and will find no call
            pass
        call.run = None
        self._make_room()
        return True

    def withdraw_all(self) -> List[Call]:
        """Withdraws all calls that have not started, and returns them."""
        calls = []
        for queue in (self._queue, self._waiting):
            while (call := _pop(queue)) is not None:
                calls.append(call)
        for call in calls:
            call.run = None
        return calls

    async def wait_ended(self, call: Call) -> None:
        """Returns when a started call has ended. A second cancellation meanwhile is ignored."""
        if call.run is None:
            return
        call.ended = self.loop.create_future()
        while not call.ended.done():
            try:
                await asyncio.shield(call.ended)
            except asyncio.CancelledError:
                pass

    def stop(self, end: Optional[Callable[[], None]] = None) -> None:
        """Lets the threads end after the queued calls; the first of them calls end. It never blocks."""
        if end is not None:
            self._ends.append(end)
        self._is_stopped = True
        for _ in self._threads:
            self._wakes.put(None)

    def join(self) -> None:
        """Waits for the threads, after stop."""
        for thread in self._threads:
            thread.join()

    # ---- the event loop's side
    def _hand_over(self, call: Call) -> None:
        self._held += 1
        self._queue.append(call)
        self._wakes.put(None)

    def _make_room(self) -> None:
        self._held -= 1
        if self._waiting:
            self._hand_over(self._waiting.popleft())

    def _settle(self, call: Call, value: Any, error: Optional[BaseException]) -> None:
        call.run = None
        self._make_room()
        if call.ended is not None:
            call.ended.set_result(None)
        if call.future.done():  # cancelled, or its deadline has passed
            return
        if error is None:
            call.future.set_result(value)
        else:
            call.future.set_exception(error)

    # ---- the threads' side
    def _next(self) -> Optional[Call]:
        """Waits for a call. None: there are no more calls."""
        while True:
            self._wakes.get()
            call = _pop(self._queue)
            if call is not None or self._is_stopped:
                return call

    def _work(self) -> None:
        while True:
            call, value, error = self._next(), None, None
            if call is None:
                end = _pop(self._ends)
                if end is not None:
                    end()
                return
            run = call.run
            assert run is not None  # only calls that have not started are withdrawn
            try:
                value = run()
            except BaseException as e:  # every exception goes to the caller
                error = e
            if call.future.cancelled():
                value = error = None  # its deletion may take long (an opened pool), so not in the event loop
            try:
                self.loop.call_soon_threadsafe(self._settle, call, value, error)
            except RuntimeError:  # the loop was closed: no result is awaited any more
                pass
            # A waiting thread keeps no caller's memory alive, and neither does an error with this frame.
            call = run = value = error = None
