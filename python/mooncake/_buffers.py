# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
"""Memory for callers: BufferHandle of a read object, and BufferPool, which reuses registered memory."""
from __future__ import annotations

import collections
import mmap
import queue
import threading
import time
from typing import TYPE_CHECKING, Any, Optional

from kvpool import _kvpool

if TYPE_CHECKING:
    from .store import MooncakeDistributedStore

_PAGE = mmap.PAGESIZE


class BufferHandle(_kvpool.Span):
    """The bytes of an object, in their own memory: len(), the buffer protocol, ptr and size."""

    def ptr(self) -> int:
        return self.address()

    def size(self) -> int:
        return len(self)


class BufferLeaseView(_kvpool.Span):
    """The view of a lease's memory. It knows whether a buffer of it is still in use."""


class _Loan:
    """A leased block. It returns when neither its lease nor a view of it exists."""

    __slots__ = ("_pool", "block")

    def __init__(self, pool, block):
        self._pool = pool
        self.block = block

    def __del__(self):
        self._pool._give(self.block)


class BufferLease:
    """A block of a BufferPool, until release() or the end of `with`. ptr, size in bytes, buffer (a memoryview)."""

    def __init__(self, pool: BufferPool, block: Any, size: int) -> None:
        self._loan = _Loan(pool, block)
        self._view = BufferLeaseView(block.start, size, self._loan)
        self.size = size

    @property
    def ptr(self) -> int:
        if self._loan is None:
            raise RuntimeError("buffer lease is closed")
        return self._loan.block.start

    @property
    def buffer(self) -> memoryview:
        if self._loan is None:
            raise BufferError("buffer lease is closed")
        return memoryview(self._view)

    def release(self) -> None:
        """Returns the block to the pool. After the first call it has no effect. RuntimeError while a buffer of the view is in use."""
        if not self._view.end():
            raise RuntimeError("cannot release buffer while exported views exist")
        self._loan = None

    def __enter__(self) -> BufferLease:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


class _Region:
    """Registered memory in blocks of one size. It is unregistered when neither it nor its blocks are referenced."""

    def __init__(self, raw, block_bytes, blocks_n, alignment):
        self._raw = None
        self.block_bytes = block_bytes
        self.size = block_bytes * blocks_n
        self._map = mmap.mmap(-1, self.size + alignment, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        begin = _kvpool.memory_of(self._map, True)[0]
        self._start = -(-begin // alignment) * alignment
        err = raw.register(self._start, self.size)
        if err != 0:
            raise RuntimeError(f"the memory of a buffer pool cannot be registered: code {err}")
        self._raw = raw
        self.idle = [_Block(self, self._start + i * block_bytes) for i in reversed(range(blocks_n))]
        self.blocks_n = blocks_n

    def __del__(self):
        if self._raw is not None:
            self._raw.unregister(self._start)


class _Block:
    __slots__ = ("region", "start")

    def __init__(self, region, start):
        self.region = region
        self.start = start


def _seconds(timeout):
    timeout = float(timeout)
    if not timeout >= 0:
        raise RuntimeError("timeout must be non-negative")
    return timeout


class BufferPool:
    """Registered memory in reusable blocks, because registration takes long. Any thread may use it. Errors are RuntimeErrors.

    store: a MooncakeDistributedStore after setup().
    max_bytes: the most memory of the pool; 0 = the store's local_buffer_size.
    min_size_class, max_size_class: a block has min_size_class bytes times a power of two. A lease above max_size_class, or
        whose block would be above max_bytes, gets a block of its own size.
    alignment: blocks are taken from regions that begin at a multiple of alignment and have as many bytes, unless the block
        is larger.
    max_regions: the most regions. Idle blocks of other sizes are freed if room is needed.
    block_on_exhaustion, default_timeout (seconds, None = for ever): the behaviour of acquire when all memory is leased.
    prewarm_size, prewarm_count: as prewarm().
    """

    def __init__(self, store: MooncakeDistributedStore, max_bytes: int = 0, min_size_class: int = 65536,
                 max_size_class: Optional[int] = None, alignment: int = 8 << 20, block_on_exhaustion: bool = True,
                 default_timeout: Optional[float] = None, max_regions: Optional[int] = None, prewarm_size: Optional[int] = None,
                 prewarm_count: int = 0) -> None:
        raw = getattr(store, "_raw", None)
        if raw is None:
            raise RuntimeError("MooncakeDistributedStore is not initialized")
        if min_size_class <= 0 or alignment <= 0:
            raise RuntimeError("min_size_class and alignment must be positive")
        if alignment & (alignment - 1):
            raise RuntimeError("alignment must be a power of two")
        if max_bytes < 0 or prewarm_count < 0 or (max_regions is not None and max_regions < 0):
            raise ValueError("max_bytes, max_regions and prewarm_count are not below 0")
        self._raw = raw
        self._capacity = max_bytes or store._local_buffer
        self._classes = (min_size_class, max_size_class)
        self._alignment = max(alignment, _PAGE)
        self._defaults = (bool(block_on_exhaustion), None if default_timeout is None else _seconds(default_timeout))
        self._max_regions = max_regions
        self._lock = threading.RLock()  # of what follows; garbage that is collected meanwhile may have calls of its own
        self._regions = []  # and all of theirs
        self._bytes = 0  # of the regions
        self._leases_n = 0
        self._is_closed = False
        self._waiters = ()  # a SimpleQueue of each that waits; replaced, so that _give can look at it without the lock
        self._given = collections.deque()  # blocks that came back, without the lock
        if prewarm_size is not None and prewarm_count:
            self.prewarm(prewarm_size, prewarm_count)

    def acquire(self, size: int, block: Optional[bool] = None, timeout: Optional[float] = None) -> BufferLease:
        """Returns a BufferLease of size bytes. block: wait for room, at most for timeout seconds; else RuntimeError at once."""
        waits = self._defaults[0] if block is None else block
        timeout = self._defaults[1] if timeout is None else _seconds(timeout)
        end = None if timeout is None else time.monotonic() + timeout
        unit = self._unit(size)
        lease = self._try(unit, size)
        if lease is None and not waits:
            raise RuntimeError("buffer pool is exhausted")
        return lease or self._wait(unit, size, end)

    buffer = acquire

    def prewarm(self, size: int, count: int) -> None:
        """Makes blocks for count leases of size bytes, as far as there is room."""
        if count < 0:
            raise ValueError("count is not below 0")
        unit = self._unit(size)
        with self._lock:
            self._take_back()
            if self._is_closed:
                raise RuntimeError("buffer pool is closed")
            while sum(len(r.idle) for r in self._regions if r.block_bytes == unit) < count and self._add_region(unit):
                pass

    def close(self) -> None:
        """Unregisters and frees all memory. RuntimeError while leases exist. After the first call it has no effect."""
        with self._lock:
            self._take_back()
            if self._leases_n:
                raise RuntimeError("cannot close buffer pool with active leases")
            self._is_closed = True
            while self._regions:
                self._drop(self._regions[-1])
        self._tell()

    def _try(self, unit, size):
        with self._lock:
            self._take_back()
            if self._is_closed:
                raise RuntimeError("buffer pool is closed")
            found = self._take(unit)
            if found is None:
                return None
            self._leases_n += 1
            return BufferLease(self, found, size)

    def _wait(self, unit, size, end):
        """_try, until `end` (None = for ever)."""
        waiter = queue.SimpleQueue()
        with self._lock:
            self._waiters += (waiter,)  # before the next look: what comes back is seen there, or heard of afterwards
        try:
            while True:
                lease = self._try(unit, size)
                if lease is not None:
                    return lease
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    raise RuntimeError("timed out waiting for buffer")
                try:
                    waiter.get(timeout=left)
                except queue.Empty:
                    pass
        finally:
            with self._lock:
                self._waiters = tuple(w for w in self._waiters if w is not waiter)

    # ---- with the lock
    def _take_back(self):
        try:
            while True:
                block = self._given.popleft()
                block.region.idle.append(block)
                self._leases_n -= 1
        except IndexError:
            pass

    def _unit(self, size):
        """The bytes of the block for a lease of size bytes."""
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"size is an int, not {type(size).__name__}")
        if size < 0:
            raise ValueError("size is not below 0")
        if size > self._capacity or self._capacity == 0:
            raise RuntimeError("requested buffer size exceeds pool capacity")
        least, most = self._classes
        unit = least
        while unit < size:
            unit *= 2
        if unit > self._capacity or (most is not None and size > most):
            return max(size, 1)
        return unit

    def _take(self, unit):
        for region in self._regions:
            if region.block_bytes == unit and region.idle:
                return region.idle.pop()
        if not self._add_region(unit):
            self._drop_idle(unit)
            if not self._add_region(unit):
                return None
        return self._regions[-1].idle.pop()

    def _add_region(self, unit):
        left = self._capacity - self._bytes
        if unit > left or (self._max_regions is not None and len(self._regions) >= self._max_regions):
            return False
        try:
            region = _Region(self._raw, unit, max(1, min(self._alignment, left) // unit), self._alignment)
        except (OSError, OverflowError) as e:
            raise RuntimeError(f"no memory for a buffer pool: {e}") from e
        self._regions.append(region)
        self._bytes += region.size
        return True

    def _drop_idle(self, unit):
        """Frees regions without leased blocks, until there is room for another block."""
        for region in [r for r in self._regions if len(r.idle) == r.blocks_n]:
            if self._capacity - self._bytes >= unit and (self._max_regions is None or len(self._regions) < self._max_regions):
                return
            self._drop(region)

    def _drop(self, region):
        self._regions.remove(region)
        self._bytes -= region.size
        region.idle.clear()  # blocks refer to it

    # ---- without
    def _give(self, block):
        """May run in any thread, also in one that is in a call of this pool, because a lease may be collected there."""
        self._given.append(block)
        self._tell()

    def _tell(self):
        for waiter in self._waiters:  # the next in turn may want a larger block than this one
            waiter.put(None)
