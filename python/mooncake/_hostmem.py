# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
"""Memory of the host for programs whose memory the store allocates, and the NUMA node of a thread."""
from __future__ import annotations

import mmap
import operator
import os
import threading

from kvpool import _kvpool


class Map:
    """size bytes at `start`, zeroed. A forked child shares them, so it sees what devices write."""

    def __init__(self, size):
        """OSError, ValueError or OverflowError where there is no such memory."""
        self.size = size
        self._map = mmap.mmap(-1, size, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
        self.start = _kvpool.memory_of(self._map, True)[0]

    def close(self):
        self._map.close()


class MooncakeHostMemAllocator:
    """Memory for buffers that are registered later. It belongs to the process, also after the allocator. Any thread may use it."""

    _maps: "dict[int, Map]" = {}  # by start, of all allocators. Guarded by _lock
    _lock = threading.Lock()

    def alloc(self, size: int) -> int:
        """The address of size bytes, of pages of their own. RuntimeError where there is none."""
        size = operator.index(size)
        try:
            made = Map(size)
        except (OSError, ValueError, OverflowError) as e:
            raise RuntimeError(f"no memory of {size} bytes: {e}") from e
        with self._lock:
            self._maps[made.start] = made
        return made.start

    def free(self, address: int) -> int:
        """Gives memory back, which is registered nowhere any more. 0; -1 where alloc() did not give that address."""
        with self._lock:
            made = self._maps.pop(operator.index(address), None)
        if made is None:
            return -1
        made.close()
        return 0


class MemPool:
    """The memory of alloc_from_mem_pool(): size bytes, made and registered at the first use, and freed as a whole."""

    _ALIGN = 4096

    def __init__(self, raw, size):
        self._raw, self._size = raw, size
        self._map = None  # guarded by _lock, as _used
        self._used = 0
        self._lock = threading.Lock()

    def alloc(self, size):
        """An address, or 0."""
        with self._lock:
            if size <= 0 or size > self._size - self._used or (self._map is None and not self._make()):
                return 0
            at = self._map.start + self._used
            self._used = min(self._size, self._used + -(-size // self._ALIGN) * self._ALIGN)
            return at

    def holds(self, address, size):
        """Whether all of that is memory that alloc() gave."""
        with self._lock:
            return self._map is not None and self._map.start <= address and address + size <= self._map.start + self._used

    def _make(self):
        try:
            made = Map(self._size)
        except (OSError, ValueError, OverflowError):
            return False
        if self._raw.register(made.start, made.size) != 0:
            return False
        self._map = made
        return True


def bind_to_numa_node(node: int) -> None:
    """Keeps this thread on the processors of a NUMA node. No effect if the node does not exist, or none of its processors is
    allowed."""
    try:
        with open(f"/sys/devices/system/node/node{operator.index(node)}/cpulist", encoding="ascii") as file:
            ranges = [part.partition("-") for part in file.read().strip().split(",") if part]
        os.sched_setaffinity(0, {cpu for low, _, high in ranges for cpu in range(int(low), int(high or low) + 1)})
    except (OSError, ValueError):
        pass
