# SPDX-License-Identifier: Apache-2.0
"""Whole objects in registered memory of this process, on their way between a pool and the ranges that callers name: a pool moves
objects, and no parts of them."""
import collections
import mmap
import threading

from kvpool import _kvpool

WINDOW_BYTES = 64 << 20  # of objects that are read in one batch
NO_SPACE = -200
_ALIGN = 64
_BUFFER_SMALL = _kvpool.errors["BUFFER_SMALL"][1]


class Budget:
    """How many bytes may be staged at a time. Any thread."""

    def __init__(self, limit):
        self.limit = limit
        self._used = 0  # guarded by _lock
        self._given = collections.deque()  # sizes that came back, until the next take()
        self._lock = threading.Lock()

    def take(self, size):
        with self._lock:
            while self._given:
                self._used -= self._given.popleft()
            if size > self.limit - self._used:
                return False
            self._used += size
            return True

    def give(self, size):
        """Without the lock: a slab may be collected anywhere, also in a thread that is in take()."""
        self._given.append(size)


class Refused(Exception):
    """There is no such room. code: what a call answers."""

    def __init__(self, code):
        super().__init__(code)
        self.code = code


class Slab:
    """Room for objects of these lengths, which are at `at`; zeros at first. It is given back when nobody refers to it any more."""

    def __init__(self, raw, lengths, budget=None):
        """Refused: beyond the budget, there is no memory (NO_SPACE both), or the pool does not register it and says why."""
        self._raw = self._budget = None
        offsets, size = [], 0
        for length in lengths:
            offsets.append(size)
            size += -(-length // _ALIGN) * _ALIGN
        if budget is not None and not budget.take(size):
            raise Refused(NO_SPACE)
        self._budget, self._size = budget, size
        try:
            self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError, OverflowError) as e:
            raise Refused(NO_SPACE) from e
        start = _kvpool.memory_of(self._map, True)[0]
        self.at = [start + offset for offset in offsets]
        err = raw.register(start, size)
        if err != 0:
            raise Refused(err)
        self._raw, self._start = raw, start

    def __del__(self):
        if self._raw is not None:
            self._raw.unregister(self._start)
        if self._budget is not None:
            self._map = None  # before anybody else may have as much
            self._budget.give(self._size)


def _windows(lengths):
    """(key, length) in lists of WINDOW_BYTES, or of one that is larger."""
    window, size = [], 0
    for key, length in lengths:
        if window and size + length > WINDOW_BYTES:
            yield window
            window, size = [], 0
        window.append((key, length))
        size += length
    if window:
        yield window


def _read(raw, window, budget):
    """key -> (address, length, slab) or code, of one window."""
    keys, lengths = [key for key, _ in window], [length for _, length in window]
    try:
        slab = Slab(raw, lengths, budget)
    except Refused as e:
        return dict.fromkeys(keys, e.code)
    got = raw.batch_get(keys, slab.at, lengths, 0, 0)
    return {key: (at, n, slab) if n >= 0 else n for key, at, n in zip(keys, slab.at, got)}


def read(raw, keys, budget=None):
    """Copies objects into slabs, a window at a time: yields dicts, key -> (address, length, slab) or code. What the caller lets go of,
    before it asks for the next window, does not count any more."""
    left = list(dict.fromkeys(keys))
    for is_again in (False, True):  # one may be replaced by a larger one between the two questions
        found = {key: place if type(place) is int else place[0] for key, place in zip(left, raw.batch_locate(left, 0, 0))}
        gone = {key: code for key, code in found.items() if code < 0}
        if gone:
            yield gone
        left = []
        for window in _windows((key, length) for key, length in found.items() if length >= 0):
            places = _read(raw, window, budget)
            if not is_again:
                left += [key for key, place in places.items() if place == _BUFFER_SMALL]
            for key in left:
                places.pop(key, None)
            if places:
                yield places
            places = None
        if not left:
            return
