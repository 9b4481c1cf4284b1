# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
"""Ranges of objects: in one call, and in sessions of many calls, for layers that are moved one after the other.

A pool moves whole objects. A get session reads its objects at its start and keeps them until its end. A put session collects
its objects, and puts them at its end. Both use memory of this process: at most 1 GiB, or setup()'s local_buffer_size if that
is more (-200 beyond). Ranges are in registered memory, of the host or a device. Parts of an object that were never written
are zeros.
"""
from __future__ import annotations

import operator
from typing import List, Optional, Sequence

from kvpool._typing import Key

from . import _staging
from ._arguments import are_alike, is_key, list_of
from ._types import ReplicateConfig

_Ints = Sequence[Sequence[int]]
_Ranges = Sequence[_Ints]
_INVALID = -600
_NOT_FOUND = -704
_EXISTS = -705


class Ranges:
    """A part of MooncakeDistributedStore."""

    # ---- in one call
    def get_into_ranges(self, buffer_ptrs: Sequence[int], all_keys: Sequence[Sequence[Key]], all_dst_offsets: _Ranges,
                        all_src_offsets: _Ranges, all_sizes: _Ranges) -> List[List[List[int]]]:
        """For buffer b, its key k and range r: copies all_sizes[b][k][r] bytes from all_src_offsets in the object to
        all_dst_offsets in the buffer. Returns the bytes or a code of each range, in lists of the same form."""
        if not len(buffer_ptrs) == len(all_keys) == len(all_dst_offsets) == len(all_src_offsets) == len(all_sizes):
            return [[[self._invalid()] for _ in all_keys[b]] if b < len(all_keys) else [[self._invalid()]] for b in range(len(buffer_ptrs))]
        results = [[None] * len(keys) for keys in all_keys]
        items = {}  # key -> [(where its result goes, addresses, sizes, offsets)]
        for b, (base, keys, dst, src, sizes) in enumerate(zip(buffer_ptrs, all_keys, all_dst_offsets, all_src_offsets, all_sizes)):
            if not are_alike(keys, dst, src, sizes):
                results[b] = [[self._invalid()] for _ in keys]
                continue
            base = operator.index(base)
            for k, key in enumerate(keys):
                items.setdefault(key, []).append(((b, k), [base + offset if offset >= 0 else 0 for offset in dst[k]], sizes[k], src[k]))
        if self._raw is None:
            return [[[self._invalid()] * len(dst) for dst in of] for of in all_dst_offsets]
        for window in _staging.read(self._raw, items) if items else ():
            self._copy_window(window, items, results)
        return results

    def _copy_window(self, window, items, results):
        places, rows = [], []
        for key, place in window.items():
            for row in items[key]:
                places.append(place if type(place) is int else place[:2])
                rows.append(row)
        where, addresses, sizes, offsets = zip(*rows)
        for (b, k), result in zip(where, self._raw.copy_ranges(places, addresses, sizes, offsets, False, False)):
            results[b][k] = result

    # ---- get sessions
    def batch_get_session_start(self, keys: Sequence[Key]) -> List[int]:
        """Reads the objects of keys. Returns 0 or a code for each. A key that has a session already is read again."""
        if self._raw is None or len(list_of(keys)) == 0:
            return [self._invalid()] * len(keys)
        found = {}
        for window in _staging.read(self._raw, keys, self._staged):
            found.update(window)
        self._gets.update({key: place for key, place in found.items() if type(place) is tuple})
        return [place if type(place) is int else 0 for place in (found[key] for key in keys)]

    def batch_get_into_multi_buffer_ranges(self, keys: Sequence[Key], all_buffer_ptrs: _Ints, all_sizes: _Ints,
                                           all_src_offsets: _Ints) -> List[int]:
        """Copies from offsets in the objects to addresses, for keys with a session. Returns the bytes or a code for each key."""
        return self._copy_session(self._gets, keys, all_buffer_ptrs, all_sizes, all_src_offsets, False)

    def batch_get_session_end(self, keys: Sequence[Key]) -> int:
        """Ends the sessions of keys. Returns 0, also for keys without a session."""
        if self._raw is None:
            return self._invalid()
        for key in list_of(keys):
            self._gets.pop(key, None)
        return 0

    # ---- put sessions
    def batch_put_session_start(self, keys: Sequence[Key], sizes: Sequence[int], config: Optional[ReplicateConfig] = None) -> List[int]:
        """Begins objects of the given sizes. Returns 0 or a code for each: -705 for a present key. Others see them after the end."""
        sizes = [operator.index(size) for size in sizes]
        if any(size < 0 for size in sizes):
            raise ValueError("a size is not below 0")
        terms = self._put_terms(config, len(list_of(keys)))
        if self._raw is None or terms is None or not are_alike(keys, sizes) or len(keys) == 0:
            return [self._invalid()] * len(keys)
        places = self._raw.batch_locate(keys, 0, 0)  # unlike is_exist it protects nothing
        results = [_EXISTS if type(place) is tuple else 0 if place == _NOT_FOUND else place for place in places]
        begun = {}
        for i, (key, size) in enumerate(zip(keys, sizes)):
            if results[i] == 0 and key in begun:
                results[i] = _EXISTS
            elif results[i] == 0 and (key in self._puts or size == 0 or not is_key(key)):
                results[i] = self._invalid()
            elif results[i] == 0:
                begun[key] = i
        self._begin_puts(keys, sizes, begun.values(), terms, results)
        return results

    def _begin_puts(self, keys, sizes, which, terms, results):
        options, groups = terms
        which = list(which)
        try:
            slab = _staging.Slab(self._raw, [sizes[i] for i in which], self._staged) if which else None
        except _staging.Refused as e:
            for i in which:
                results[i] = e.code
            return
        for at, i in enumerate(which):
            entry = (slab.at[at], sizes[i], slab, options, groups[i] if groups else None)
            if self._puts.setdefault(keys[i], entry) is not entry:  # another thread was faster
                results[i] = self._invalid()

    def batch_put_from_multi_buffer_ranges(self, keys: Sequence[Key], all_buffer_ptrs: _Ints, all_sizes: _Ints,
                                           all_dst_offsets: _Ints) -> List[int]:
        """Copies from addresses to offsets in the objects, for keys with a session. The memory may change after the return. Returns
        the bytes or a code for each key."""
        return self._copy_session(self._puts, keys, all_buffer_ptrs, all_sizes, all_dst_offsets, True)

    def batch_put_session_end(self, keys: Sequence[Key]) -> List[int]:
        """Puts the objects. Returns 0 or a code for each; the sessions end in any case."""
        if self._raw is None:
            return [self._invalid()] * len(keys)
        results = [_INVALID] * len(keys)
        entries = {}  # options and whether there are groups -> [(index, entry)]
        for i, key in enumerate(list_of(keys)):
            entry = self._puts.pop(key, None)
            if entry is not None:
                entries.setdefault((entry[3], entry[4] is not None), []).append((i, entry))
        for (options, has_groups), rows in entries.items():
            groups = [entry[4] for _, entry in rows] if has_groups else None
            put = self._raw.batch_put([keys[i] for i, _ in rows], [entry[0] for _, entry in rows], [entry[1] for _, entry in rows], 0,
                                      *options, groups)
            for (i, _), result in zip(rows, put):
                results[i] = result
        return results

    def batch_put_session_revoke(self, keys: Sequence[Key]) -> List[int]:
        """Ends sessions without a put. Returns 0, or -600 for a key without a session."""
        return [0 if self._puts.pop(key, None) is not None else self._invalid() for key in list_of(keys)]

    def _copy_session(self, sessions, keys, ptrs, sizes, offsets, is_put):
        if self._raw is None or not are_alike(keys, ptrs, sizes, offsets):
            return [self._invalid()] * len(keys)
        entries = [sessions.get(key) for key in keys]  # they keep their memory, whoever ends the session meanwhile
        places = [self._invalid() if entry is None else entry[:2] for entry in entries]
        return self._raw.copy_ranges(places, ptrs, sizes, offsets, is_put, True)
