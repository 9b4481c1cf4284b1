# SPDX-License-Identifier: Apache-2.0
"""A fixed number of threads that make blocking calls for one event loop: what AsyncPool stands on.

A call waits for room (the loop's side, beyond the bound), then in the queue, then it has begun. It can be taken back until then,
and not any more from then on: nobody can stop a call of the library but its deadline and the close of its pool.

Nothing here takes a lock that Python code may hold: stop() is called wherever garbage is collected, which is in the middle of any
line of any thread. What two threads use is a deque or a SimpleQueue, whose single calls are whole.
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
    """One call on its way. future is for who awaits it; ended, where somebody wants it, for when nothing runs any more."""

    __slots__ = ("run", "future", "ended")

    def __init__(self, run: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        self.run: Optional[Callable[[], Any]] = run  # None: over, or taken back
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
    """All but the threads' own loop is called on the event loop's thread, which therefore needs no lock for what it alone uses."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int, bound: int, name: str) -> None:
        self.loop = loop
        self.pid = os.getpid()
        self._bound = bound
        self._held = 0  # handed over and not ended, at most the bound; the event loop's
        self._waiting: Deque[Call] = deque()  # for room; the event loop's
        self._queue: Deque[Call] = deque()  # handed over and not begun
        self._wakes: SimpleQueue[None] = SimpleQueue()  # at least one for each call in the queue, and for each thread that is to end
        self._is_stopped = False
        self._ends: Deque[Callable[[], None]] = deque()  # what the next thread that ends has to do
        # Daemons, because nothing may keep the interpreter from its end; AsyncPool ends them before that.
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
        """Takes back a call that has not begun: it never will. Whether it could."""
        if _take(self._waiting, call):
            call.run = None
            return True
        if not _take(self._queue, call):
            return False
        try:
            self._wakes.get_nowait()
        except Empty:  # a thread is on its way with it, and will find that there is nothing
            pass
        call.run = None
        self._make_room()
        return True

    def withdraw_all(self) -> List[Call]:
        """Takes back all that have not begun, and returns them."""
        calls = []
        for queue in (self._queue, self._waiting):
            while (call := _pop(queue)) is not None:
                calls.append(call)
        for call in calls:
            call.run = None
        return calls

    async def wait_ended(self, call: Call) -> None:
        """Returns when a call that was begun is over. Who is cancelled meanwhile was asked once already, and waits on."""
        if call.run is None:
            return
        call.ended = self.loop.create_future()
        while not call.ended.done():
            try:
                await asyncio.shield(call.ended)
            except asyncio.CancelledError:
                pass

    def stop(self, end: Optional[Callable[[], None]] = None) -> None:
        """Lets the threads end after what is queued; the first to do so calls end. Waits for nothing, wherever it is called."""
        if end is not None:
            self._ends.append(end)
        self._is_stopped = True
        for _ in self._threads:
            self._wakes.put(None)

    def join(self) -> None:
        """Waits for them, after stop."""
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
        if call.future.done():  # cancelled, or its time was over
            return
        if error is None:
            call.future.set_result(value)
        else:
            call.future.set_exception(error)

    # ---- the threads' side
    def _next(self) -> Optional[Call]:
        """Waits for a call. None: there are no more."""
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
            assert run is not None  # only what has not begun is taken back
            try:
                value = run()
            except BaseException as e:  # whatever it is, it is the caller's
                error = e
            if call.future.cancelled():
                value = error = None  # its end may take long (a pool that was opened), and is no work for the event loop
            try:
                self.loop.call_soon_threadsafe(self._settle, call, value, error)
            except RuntimeError:  # the loop was closed: nobody awaits anything any more
                pass
            # A thread that waits keeps no caller's memory alive, nor does an error that remembers this frame.
            call = run = value = error = None
