# SPDX-License-Identifier: Apache-2.0
"""Objects whose memory the library does not take as it is: of more pieces than a call has, or of a group and not registered. They go by
way of registered memory, within a store's budget (-200 beyond)."""
from itertools import accumulate

from kvpool import _kvpool

from . import _staging

PIECES_MAX = 1024  # of an object, in one call of the library
_INVALID = -600


def _long_rows(ptrs):
    return [i for i, row in enumerate(ptrs) if isinstance(row, (list, tuple)) and len(row) > PIECES_MAX]


def _copy(raw, at, length, ptrs, sizes, is_to_slab):
    """Between pieces and the slab at `at`. The bytes, or a code."""
    [n] = raw.copy_ranges([(at, length)], [ptrs], [sizes], [list(accumulate(sizes, initial=0))[:-1]], is_to_slab, True)
    return n


class _Detour:
    """The rows of a batch, where each long one is a slab."""

    def __init__(self, raw, budget, ptrs, sizes, which):
        self.raw, self.ptrs, self.sizes = raw, list(ptrs), list(sizes)
        self.slabs, self.codes = {}, {}  # by row
        for i in which:
            lengths = sizes[i]
            if any(length <= 0 for length in lengths):
                self.codes[i] = _INVALID
                continue
            try:
                slab = _staging.Slab(raw, [sum(lengths)], budget)
            except _staging.Refused as e:
                self.codes[i] = e.code
                continue
            self.slabs[i] = slab
            self.ptrs[i], self.sizes[i] = [slab.at[0]], [sum(lengths)]

    def refuse(self, i, code):
        self.codes[i] = code
        del self.slabs[i]

    def run(self, call, *lists):
        """The results of call(lists, ptrs, sizes) for the rows without a code, among the codes."""
        sound = [i for i in range(len(self.ptrs)) if i not in self.codes]
        rows = [[row[i] for i in sound] if row is not None else None for row in (*lists, self.ptrs, self.sizes)]
        found = iter(call(*rows) if sound else ())
        return [self.codes[i] if i in self.codes else next(found) for i in range(len(self.ptrs))]


def put(raw, budget, keys, ptrs, sizes, options, groups):
    """As batch_put of the library."""

    def call(keys, groups, ptrs, sizes):
        return raw.batch_put(keys, ptrs, sizes, 0, *options, groups)

    which = _long_rows(ptrs)
    if not which:
        return call(keys, groups, ptrs, sizes)
    detour = _Detour(raw, budget, ptrs, sizes, which)
    for i, slab in list(detour.slabs.items()):
        n = _copy(raw, slab.at[0], detour.sizes[i][0], ptrs[i], sizes[i], True)
        if n < 0:
            detour.refuse(i, n)
    return detour.run(call, keys, groups)


def get(raw, budget, keys, ptrs, sizes):
    """As batch_get of the library."""

    def call(keys, ptrs, sizes):
        return raw.batch_get(keys, ptrs, sizes, 0, 0)

    which = _long_rows(ptrs)
    if not which:
        return call(keys, ptrs, sizes)
    detour = _Detour(raw, budget, ptrs, sizes, which)
    results = detour.run(call, keys)
    for i, slab in detour.slabs.items():
        if results[i] > 0:
            lengths, left = [], results[i]  # the object may be shorter than its memory
            for size in sizes[i]:
                lengths.append(min(size, left))
                left -= lengths[-1]
                if left == 0:
                    break
            results[i] = _copy(raw, slab.at[0], results[i], ptrs[i][:len(lengths)], lengths, False)
    return results


def put_grouped(raw, budget, key, parts, options, group):
    """Puts objects with memory, of a byte at least, as one of a group. 0 or a code. A device's memory has to be registered, and alone."""
    if len(parts) == 1:
        code = raw.batch_put([key], parts, None, 0, *options, [group])[0]
        if code != _INVALID:  # of memory that is not registered
            return code
    lengths = [_kvpool.memory_of(part, False)[1] for part in parts]
    try:
        slab = _staging.Slab(raw, [sum(lengths)], budget)
    except _staging.Refused as e:
        return e.code
    at = slab.at[0]
    for part, length in zip(parts, lengths):
        if not _kvpool.write_bytes(at, part, length):  # it became shorter, or is a device's
            return _INVALID
        at += length
    return raw.batch_put([key], slab.at, [sum(lengths)], 0, *options, [group])[0]
