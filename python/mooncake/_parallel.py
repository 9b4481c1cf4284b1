# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
"""Tensors that the ranks of a model share: each rank puts its own part, and reads its own part, the whole, or the part of another
division.

Keys, as in the reference: KEY_tp_R with tensor parallelism alone; else KEY and, in the order of AXES, __dp_RofN, __tp_RofN_sdD,
__ep_RofN_eidE, __pp_RofN_sidS; for a writer's partition KEY__writer_RofN_sdD. KEY__parallelism_manifest and KEY__writer_manifest
describe the division of a tensor (_tensor_format.py)."""
from __future__ import annotations

from collections import namedtuple
from typing import Any, List, Optional, Sequence

from kvpool import _kvpool
from kvpool._typing import Key

from . import _staging, _tensor_format
from ._arguments import are_alike, groups_of, list_of
from ._buffers import BufferHandle
from ._telling import shown_key, shown_why
from ._tensors import is_tensor, serialize, tensor_or_none, torch
from ._types import ReadTarget, ReplicateConfig, TensorParallelism

_Parallelisms = Optional[Sequence[Optional[TensorParallelism]]]
_Targets = Optional[Sequence[Optional[ReadTarget]]]
AXES = ("dp", "tp", "ep", "pp")  # data, tensor, expert and pipeline parallelism, by their numbers in a header
_RANKS_MAX = 4096
_INVALID = -600
_Axis = namedtuple("_Axis", "kind rank size dimension id place")  # dimension of "tp", id of "ep" and "pp"; place: in the caller's list


class _Unsound(Exception):
    """An invalid request; the text has the reason."""


def _whole_number(value, below, what):
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < below:
        raise _Unsound(f"{what} is 0 to {below - 1}, not {value!r}")
    return value


def _axis(given, kind, place=0):
    size = _whole_number(getattr(given, "size", None), _RANKS_MAX + 1, "an axis' size")
    rank = _whole_number(getattr(given, "rank", None), size, "an axis' rank")
    dimension, name = getattr(given, "split_dim", None), {"ep": "expert_id", "pp": "stage_id"}.get(kind)
    if kind == "tp":
        _whole_number(dimension, _tensor_format.DIMS_MAX, "split_dim")
    elif dimension is not None:
        raise _Unsound("only tensor parallelism splits a dimension")
    number = _whole_number(getattr(given, name, None), 1 << 31, name) if name is not None else 0
    return _Axis(kind, rank, size, dimension, number, place)


def _axes_of(parallelism):
    """The axes in the order of AXES."""
    given = getattr(parallelism, "axes", None)
    if not isinstance(given, (list, tuple)) or not 0 < len(given) <= len(AXES):
        raise _Unsound("a parallelism has 1 to 4 axes")
    kinds = [str(getattr(axis, "kind", "")).lower() for axis in given]
    if not set(kinds) <= set(AXES) or len(set(kinds)) < len(kinds):
        raise _Unsound(f"the axes are {', '.join(AXES)}, each once at most, not {kinds}")
    axes = [_axis(axis, kind, place) for place, (axis, kind) in enumerate(zip(given, kinds))]
    return sorted(axes, key=lambda axis: AXES.index(axis.kind))


def _split_of(axes):
    return next((axis for axis in axes if axis.kind == "tp"), None)


def _joined(key, suffix):
    return key + suffix.encode() if isinstance(key, bytes) else key + suffix


def _name(key, axes):
    if len(axes) == 1 and axes[0].kind == "tp":
        return _joined(key, f"_tp_{axes[0].rank}")
    ends = {"dp": "", "tp": "_sd{0.dimension}", "ep": "_eid{0.id}", "pp": "_sid{0.id}"}
    return _joined(key, "".join(("__{0.kind}_{0.rank}of{0.size}" + ends[axis.kind]).format(axis) for axis in axes))


def _writer_name(key, rank, size, dimension):
    return _joined(key, f"__writer_{rank}of{size}_sd{dimension}")


def _rows(axes, shape):
    """Axes in the form of the header, in the caller's order."""
    return [(AXES.index(axis.kind), axis.rank, axis.size, -1 if axis.dimension is None else axis.dimension, axis.id,
             0 if axis.dimension is None else shape[axis.dimension]) for axis in sorted(axes, key=lambda axis: axis.place)]


def _part(tensor, split):
    """The part of a whole tensor that split's rank has."""
    if not is_tensor(tensor) or split.dimension >= tensor.dim() or tensor.shape[split.dimension] == 0 or \
            tensor.shape[split.dimension] % split.size:
        raise _Unsound(f"no tensor whose dimension {split.dimension} is a multiple of {split.size}")
    length = tensor.shape[split.dimension] // split.size
    return tensor.narrow(split.dimension, split.rank * length, length)


class Parallel:
    """A part of MooncakeDistributedStore. Each rank puts its own shard where tensor parallelism is all there is, else the whole tensor, of
    which its part is stored; with a writer_partition (rank, size, split_dim of any object) the whole, too. Gets give a tensor or None;
    puts 0 or a code, -600 for what cannot be."""

    # ---- puts
    def put_tensor_with_parallelism(self, key: Key, tensor: Any, parallelism: Optional[TensorParallelism] = None,
                                    config: Optional[ReplicateConfig] = None, writer_partition: Any = None) -> int:
        return self._put_parallel([key], [tensor], [parallelism], config, [writer_partition], 0)[0]

    def batch_put_tensor_with_parallelism(self, keys: Sequence[Key], tensors_list: Sequence[Any], parallelisms: _Parallelisms = None,
                                          config: Optional[ReplicateConfig] = None,
                                          writer_partitions: Optional[Sequence[Any]] = None) -> List[int]:
        return self._put_parallel(keys, tensors_list, parallelisms, config, writer_partitions, 0)

    def upsert_tensor_with_parallelism(self, key: Key, tensor: Any, parallelism: Optional[TensorParallelism] = None,
                                       config: Optional[ReplicateConfig] = None, writer_partition: Any = None) -> int:
        return self._put_parallel([key], [tensor], [parallelism], config, [writer_partition], _kvpool.UPSERT)[0]

    def batch_upsert_tensor_with_parallelism(self, keys: Sequence[Key], tensors_list: Sequence[Any], parallelisms: _Parallelisms = None,
                                             config: Optional[ReplicateConfig] = None,
                                             writer_partitions: Optional[Sequence[Any]] = None) -> List[int]:
        return self._put_parallel(keys, tensors_list, parallelisms, config, writer_partitions, _kvpool.UPSERT)

    def put_tensor_with_parallelism_from(self, key: Key, buffer_ptr: int, size: int, parallelism: Optional[TensorParallelism] = None,
                                         config: Optional[ReplicateConfig] = None, writer_partition: Any = None) -> int:
        """Puts the parts of all ranks of tensor parallelism, or a writer's part, of a whole tensor in registered memory."""
        return self.batch_put_tensor_with_parallelism_from([key], [buffer_ptr], [size], [parallelism], config, [writer_partition])[0]

    def batch_put_tensor_with_parallelism_from(self, keys: Sequence[Key], buffer_ptrs: Sequence[int], sizes: Sequence[int],
                                               parallelisms: _Parallelisms = None, config: Optional[ReplicateConfig] = None,
                                               writer_partitions: Optional[Sequence[Any]] = None) -> List[int]:
        return self._put_parallel_from(keys, buffer_ptrs, sizes, parallelisms, config, writer_partitions, 0)

    def upsert_tensor_with_parallelism_from(self, key: Key, buffer_ptr: int, size: int, parallelism: Optional[TensorParallelism] = None,
                                            config: Optional[ReplicateConfig] = None, writer_partition: Any = None) -> int:
        return self.batch_upsert_tensor_with_parallelism_from([key], [buffer_ptr], [size], [parallelism], config, [writer_partition])[0]

    def batch_upsert_tensor_with_parallelism_from(self, keys: Sequence[Key], buffer_ptrs: Sequence[int], sizes: Sequence[int],
                                                  parallelisms: _Parallelisms = None, config: Optional[ReplicateConfig] = None,
                                                  writer_partitions: Optional[Sequence[Any]] = None) -> List[int]:
        return self._put_parallel_from(keys, buffer_ptrs, sizes, parallelisms, config, writer_partitions, _kvpool.UPSERT)

    def _put_parallel_from(self, keys, ptrs, sizes, parallelisms, config, writers, flags):
        if not are_alike(keys, ptrs, sizes):
            return [self._invalid()] * len(keys)
        if config is None and parallelisms in (None, [None]) and writers in (None, [None]):
            return self._put_tensors_from(keys, ptrs, sizes, flags)  # as it lies there, which needs no torch
        tensors = (tensor_or_none(self._copy_of(ptr, size)) for ptr, size in zip(ptrs, sizes))  # one at a time in memory
        return self._put_parallel(keys, tensors, parallelisms, config, writers, flags, True)

    def _put_parallel(self, keys, tensors, parallelisms, config, writers, flags, is_all=False):
        n = len(list_of(keys))
        terms = self._put_terms(config, n, flags)
        parallelisms, writers = ([None] * n if rows is None else rows for rows in (parallelisms, writers))
        lists = [parallelisms, writers] + ([] if is_all else [tensors])
        if self._raw is None or terms is None or not all(isinstance(rows, (list, tuple)) and len(rows) == n for rows in lists):
            return [self._invalid()] * n
        return [self._put_divided(row, terms[0], group, is_all) for row, group in zip(zip(keys, tensors, parallelisms, writers),
                                                                                     groups_of(terms, n))]

    def _put_divided(self, row, options, group, is_all):
        """Returns 0 or the first code."""
        key, tensor, parallelism, writer = row
        try:
            if not is_tensor(tensor):
                raise _Unsound("that is no tensor")
            if parallelism is not None and writer is not None:
                raise _Unsound("a writer_partition and a parallelism exclude one another")
            places, manifest, whole = self._places_of(key, tensor, parallelism, writer, is_all)
        except _Unsound as e:
            self._teller.error("put_tensor_with_parallelism", "%s: %s", shown_key(key), shown_why(e))
            return _INVALID
        codes = [self._put_tensor(name, part, options, group, (whole, _rows(axes, part.shape)) if axes else None)
                 for name, part, axes in places]
        if manifest is not None and not any(codes):
            name, split = manifest
            head = _tensor_format.pack_manifest(_tensor_format.number_of(tensor.dtype), whole, split.dimension, split.size)
            codes.append(self._raw.put(name, head, 0, *options))
        return next((code for code in codes if code != 0), 0)

    @staticmethod
    def _places_of(key, tensor, parallelism, writer, is_all):
        """([(name, part, axes)], (name, axis) of the manifest or None, shape of the whole)."""
        whole = list(tensor.shape)
        if writer is not None:
            split = _axis(writer, "tp")
            name = _writer_name(key, split.rank, split.size, split.dimension)
            return [(name, _part(tensor, split), [split])], (_joined(key, "__writer_manifest"), split), whole
        if parallelism is None:
            return [(key, tensor, [])], None, whole
        axes = _axes_of(parallelism)
        split = _split_of(axes)
        if split is None:
            return [(_name(key, axes), tensor, axes)], None, whole
        manifest = _joined(key, "__parallelism_manifest"), split
        if len(axes) == 1 and not is_all:
            if split.dimension >= len(whole):
                raise _Unsound(f"it has no dimension {split.dimension}")
            whole[split.dimension] *= split.size
            return [(_name(key, axes), tensor, axes)], manifest, whole
        places = []
        for rank in range(split.size) if is_all else [split.rank]:
            turned = [axis._replace(rank=rank) if axis.kind == "tp" else axis for axis in axes]
            places.append((_name(key, turned), _part(tensor, _split_of(turned)), turned))
        return places, manifest, whole

    # ---- gets
    def get_tensor_with_parallelism(self, key: Key, target: Optional[ReadTarget] = None) -> Any:
        """Returns what a ReadTarget asks for: "as_stored" the part that one rank has put; "full" the whole; "shard" a rank's part,
        also of another division. None if a part is missing."""
        if target is None:
            return self.get_tensor(key)
        try:
            return self._read_divided(key, target) if self._raw is not None else None
        except _Unsound as e:
            self._teller.error("get_tensor_with_parallelism", "%s: %s", shown_key(key), shown_why(e))
            return None

    def batch_get_tensor_with_parallelism(self, keys: Sequence[Key], targets: _Targets = None) -> List[Any]:
        if targets is None:
            return self.batch_get_tensor(keys)
        if not isinstance(targets, (list, tuple)) or not are_alike(keys, targets):
            return [None] * len(list_of(keys))
        return [self.get_tensor_with_parallelism(key, target) for key, target in zip(keys, targets)]

    def get_tensor_with_parallelism_into(self, key: Key, buffer_ptr: int, size: int, target: Optional[ReadTarget] = None) -> Any:
        """As get_tensor_with_parallelism, but a tensor over the caller's registered memory, with a header before it. None also if the
        memory is too small."""
        if target is None:
            return self.get_tensor_into(key, buffer_ptr, size)
        found = self.get_tensor_with_parallelism(key, target)
        return self._lay(found, buffer_ptr, size) if found is not None else None

    def batch_get_tensor_with_parallelism_into(self, keys: Sequence[Key], buffer_ptrs: Sequence[int], sizes: Sequence[int],
                                               targets: _Targets = None) -> List[Any]:
        if targets is None:
            return self.batch_get_tensor_into(keys, buffer_ptrs, sizes)
        if not isinstance(targets, (list, tuple)) or not are_alike(keys, buffer_ptrs, sizes, targets):
            return [None] * len(list_of(keys))
        return [self.get_tensor_with_parallelism_into(*row) for row in zip(keys, buffer_ptrs, sizes, targets)]

    def _read_divided(self, key, target):
        if not isinstance(target, ReadTarget):
            raise _Unsound(f"a target is a ReadTarget, not {type(target).__name__}")
        axes = _axes_of(target.parallelism) if target.parallelism is not None else []
        split = _split_of(axes)
        if target.mode == "as_stored" or (axes and split is None):
            return self.get_tensor(_name(key, axes) if axes else key)
        if not axes:
            whole = self.get_tensor(key) if target.mode == "full" else None
            return self._read_written(key, None) if whole is None and target.mode == "full" else whole
        wanted = split if target.mode == "shard" else None
        division = self._manifest(_joined(key, "__parallelism_manifest")) or self._division_of(_joined(key, "_tp_0"), axes)
        found = None
        if division is not None:
            found = self._gather(division, wanted, lambda rank: _name(key, [
                axis._replace(rank=rank, size=division[3], dimension=division[2]) if axis is split else axis for axis in axes]))
        return found if found is not None else self._read_written(key, wanted)

    def _read_written(self, key, wanted):
        division = self._manifest(_joined(key, "__writer_manifest"))
        if division is None:
            return None
        return self._gather(division, wanted, lambda rank: _writer_name(key, rank, division[3], division[2]))

    def _manifest(self, name):
        """(dtype, shape, dimension, ranks), or None."""
        return _tensor_format.unpack_manifest(self.get(name), _RANKS_MAX)

    def _division_of(self, name, axes):
        """(dtype, shape, dimension, ranks) of a shard's own header, with tensor parallelism alone; or None."""
        value = self.get(name) if len(axes) == 1 else b""
        return _tensor_format.division_of(value[:_tensor_format.SIZE], len(value), _RANKS_MAX)

    def _gather(self, division, wanted, name_of):
        """The whole, or the part that axis wanted asks for, made of the stored parts that it needs."""
        dtype, whole, dimension, ranks = division
        length = whole[dimension] // ranks
        low, high = 0, whole[dimension]
        if wanted is not None:
            if wanted.dimension >= len(whole) or whole[wanted.dimension] % wanted.size:
                return None
            size = whole[wanted.dimension] // wanted.size
            if wanted.dimension == dimension:
                low, high = wanted.rank * size, (wanted.rank + 1) * size
        first = low // length
        parts = self.batch_get_tensor([name_of(rank) for rank in range(first, -(-high // length))])
        shape = [length if i == dimension else n for i, n in enumerate(whole)]
        if not all(part is not None and list(part.shape) == shape and _tensor_format.number_of(part.dtype) == dtype for part in parts):
            return None
        found = parts[0] if len(parts) == 1 else torch().cat(parts, dimension)
        if wanted is not None and wanted.dimension != dimension:
            found = found.narrow(wanted.dimension, wanted.rank * size, size)
        elif high - low != found.shape[dimension]:
            found = found.narrow(dimension, low - first * length, high - low)
        return found.contiguous()

    def _lay(self, tensor, ptr, size):
        """The tensor in registered memory, which the library checks before it is written."""
        head, address, length, owner = serialize(tensor)
        total = len(head) + length
        if size < total:
            return None
        try:
            slab = _staging.Slab(self._raw, [total], self._staged)
        except _staging.Refused:
            return None
        at = slab.at[0]
        _kvpool.write_bytes(at, head, len(head))
        if length > 0:
            _kvpool.write_bytes(at + len(head), _kvpool.Span(address, length, owner), length)
        [n] = self._raw.copy_ranges([(at, total)], [[ptr]], [[total]], [[0]], False, True)
        return tensor_or_none(BufferHandle(ptr, total, None)) if n == total else None
