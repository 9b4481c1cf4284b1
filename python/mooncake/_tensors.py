# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
"""Tensors of torch, as objects with a header (_tensor_format.py). A shard of rank r of KEY is the object KEY_tp_r. torch is imported by the
first call that has a tensor to make. Addresses are of registered memory of the host."""
from __future__ import annotations

import importlib
import sys
from typing import Any, List, Optional, Sequence, Tuple

from kvpool import _kvpool
from kvpool._typing import Key

from . import _staging, _tensor_format
from ._arguments import are_alike, groups_of, list_of
from ._buffers import BufferHandle
from ._telling import shown_key, shown_why
from ._types import ReplicateConfig

_INVALID = -600
_NOT_FOUND = -704


def torch():
    return importlib.import_module("torch")  # takes seconds, and most programs have no use for it


def is_tensor(value):
    return isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ()))  # whoever has one has imported it


def serialize(tensor: Any) -> Tuple[bytes, int, int, Any]:
    """(header, address, bytes, what holds the memory): of the host, contiguous, so perhaps a copy. TypeError for what no header tells of."""
    if not is_tensor(tensor):
        raise TypeError(f"a tensor of torch is wanted, not {type(tensor).__name__}")
    dtype = _tensor_format.number_of(tensor.dtype)
    if dtype is None or tensor.dim() > _tensor_format.DIMS_MAX or tensor.layout != torch().strided:
        raise TypeError(f"a tensor of {tensor.dtype}, {tensor.dim()} dimensions and layout {tensor.layout} has no form in the pool")
    try:
        owner = tensor.detach().cpu().resolve_neg().contiguous()
        size = owner.numel() * owner.element_size()
        address = owner.data_ptr()
    except (NotImplementedError, RuntimeError) as e:  # of those without bytes of their own: meta tensors, subclasses that wrap others
        raise TypeError(f"a tensor whose memory is not known has no form in the pool: {e}") from e
    if address == 0 and size > 0:
        raise TypeError(f"a {type(tensor).__name__} has no memory of its own")
    return _tensor_format.pack(dtype, list(owner.shape), size), address, size, owner


def deserialize(memory: Any) -> Any:
    """The tensor in an object's bytes, which it is made over and keeps; ValueError."""
    view = memoryview(memory).cast("B")
    form = _tensor_format.unpack(view[:_tensor_format.SIZE], view.nbytes)
    if form is None:
        raise ValueError("invalid serialized Mooncake tensor payload")
    library = torch()
    if view.readonly:
        memory = bytearray(view)  # a tensor may be written to
    dtype, shape = getattr(library, _tensor_format.DTYPES[form[0]]), form[1]
    if view.nbytes == _tensor_format.SIZE:
        return library.empty(shape, dtype=dtype)
    flat = library.frombuffer(memory, dtype=dtype, offset=_tensor_format.SIZE)
    return flat.reshape(shape) if shape else flat  # of none, the reference makes one


def tensor_or_none(memory):
    try:
        return deserialize(memory) if memory is not None else None
    except ValueError:
        return None


class Tensors:
    """A part of MooncakeDistributedStore. Gets give a tensor or None; puts 0 or a code, -600 for what is no tensor."""

    # ---- whole tensors
    def put_tensor(self, key: Key, tensor: Any) -> int:
        return self._put_tensors([key], [tensor], 0, None)[0]

    def upsert_tensor(self, key: Key, tensor: Any) -> int:
        return self._put_tensors([key], [tensor], _kvpool.UPSERT, None)[0]

    def pub_tensor(self, key: Key, tensor: Any, config: Optional[ReplicateConfig] = None) -> int:
        return self._put_tensors([key], [tensor], 0, config)[0]

    def upsert_pub_tensor(self, key: Key, tensor: Any, config: Optional[ReplicateConfig] = None) -> int:
        return self._put_tensors([key], [tensor], _kvpool.UPSERT, config)[0]

    def batch_put_tensor(self, keys: Sequence[Key], tensors_list: Sequence[Any]) -> List[int]:
        return self._put_tensors(keys, tensors_list, 0, None)

    def batch_upsert_tensor(self, keys: Sequence[Key], tensors_list: Sequence[Any]) -> List[int]:
        return self._put_tensors(keys, tensors_list, _kvpool.UPSERT, None)

    def batch_pub_tensor(self, keys: Sequence[Key], tensors_list: Sequence[Any], config: Optional[ReplicateConfig] = None) -> List[int]:
        return self._put_tensors(keys, tensors_list, 0, config)

    def batch_upsert_pub_tensor(self, keys: Sequence[Key], tensors_list: Sequence[Any],
                                config: Optional[ReplicateConfig] = None) -> List[int]:
        return self._put_tensors(keys, tensors_list, _kvpool.UPSERT, config)

    def get_tensor(self, key: Key) -> Any:
        return tensor_or_none(self.get_buffer(key))

    def batch_get_tensor(self, keys: Sequence[Key]) -> List[Any]:
        """Tensors of one call share memory: it is freed when none of them is left."""
        return [tensor_or_none(memory) for memory in self.batch_get_buffer(keys)]

    def _put_tensor(self, key, tensor, options, group=None, shard=None):
        """shard: (shape of the whole, axes as of _tensor_format.pack) where the tensor is a part."""
        try:
            head, address, size, owner = serialize(tensor)
        except TypeError as e:
            self._teller.error("put_tensor", "%s: %s", shown_key(key), shown_why(e))
            return _INVALID
        if self._raw is None:
            return self._invalid()
        if shard is not None:
            dtype, shape = _tensor_format.unpack(head, _tensor_format.SIZE + size)
            head = _tensor_format.pack(dtype, shape, size, *shard)
        return self._put_one(key, (head, _kvpool.Span(address, size, owner)), options, group)

    def _put_tensors(self, keys, tensors, flags, config):
        terms = self._put_terms(config, len(list_of(keys)), flags)
        if terms is None or not are_alike(keys, tensors):
            return [self._invalid()] * len(keys)
        groups = groups_of(terms, len(keys))
        return [self._put_tensor(key, tensor, terms[0], group) for key, tensor, group in zip(keys, tensors, groups)]

    # ---- shards: a put makes those of all ranks, whatever tp_rank is
    def put_tensor_with_tp(self, key: Key, tensor: Any, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0) -> int:
        return self.batch_pub_tensor_with_tp([key], [tensor], None, tp_rank, tp_size, split_dim)[0]

    def pub_tensor_with_tp(self, key: Key, tensor: Any, config: Optional[ReplicateConfig] = None, tp_rank: int = 0, tp_size: int = 1,
                           split_dim: int = 0) -> int:
        return self.batch_pub_tensor_with_tp([key], [tensor], config, tp_rank, tp_size, split_dim)[0]

    def batch_put_tensor_with_tp(self, base_keys: Sequence[Key], tensors_list: Sequence[Any], tp_rank: int = 0, tp_size: int = 1,
                                 split_dim: int = 0) -> List[int]:
        return self.batch_pub_tensor_with_tp(base_keys, tensors_list, None, tp_rank, tp_size, split_dim)

    def batch_pub_tensor_with_tp(self, base_keys: Sequence[Key], tensors_list: Sequence[Any], config: Optional[ReplicateConfig] = None,
                                 tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0) -> List[int]:
        terms = self._put_terms(config, len(list_of(base_keys)))
        if terms is None or not are_alike(base_keys, tensors_list):
            return [self._invalid()] * len(base_keys)
        return [self._put_shards(key, tensor, tp_size, split_dim, terms[0], group)
                for key, tensor, group in zip(base_keys, tensors_list, groups_of(terms, len(base_keys)))]

    def get_tensor_with_tp(self, key: Key, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0) -> Any:
        return self.get_tensor(_shard_key(key, tp_rank, tp_size))

    def batch_get_tensor_with_tp(self, base_keys: Sequence[Key], tp_rank: int = 0, tp_size: int = 1) -> List[Any]:
        return self.batch_get_tensor([_shard_key(key, tp_rank, tp_size) for key in list_of(base_keys)])

    def _put_shards(self, key, tensor, ranks, dimension, options, group=None):
        """0, or the first code. The dimension has to be a multiple of ranks. The shards are of one group."""
        if ranks <= 1:
            return self._put_tensor(key, tensor, options, group)
        if not is_tensor(tensor) or not 0 <= dimension < tensor.dim():
            return self._invalid()
        whole, code = list(tensor.shape), 0
        if whole[dimension] == 0 or whole[dimension] % ranks:
            return self._invalid()
        for rank, part in enumerate(tensor.chunk(ranks, dimension)):
            axis = (_tensor_format.TENSOR_PARALLEL, rank, ranks, dimension, 0, part.shape[dimension])
            one = self._put_tensor(_shard_key(key, rank, ranks), part, options, group, (whole, [axis]))
            code = code or one
        return code

    # ---- in registered memory: the header, and the bytes behind it
    def get_tensor_into(self, key: Key, buffer_ptr: int, size: int) -> Any:
        """A tensor over the caller's memory, which has to outlive it; None also where it does not fit."""
        return self.batch_get_tensor_into([key], [buffer_ptr], [size])[0]

    def batch_get_tensor_into(self, keys: Sequence[Key], buffer_ptrs: Sequence[int], sizes: Sequence[int]) -> List[Any]:
        if not are_alike(keys, buffer_ptrs, sizes):
            return [self._invalid()] * len(keys)
        got = self.batch_get_into(keys, buffer_ptrs, sizes)
        return [tensor_or_none(BufferHandle(ptr, n, None)) if n > 0 else None for ptr, n in zip(buffer_ptrs, got)]

    def get_tensor_with_tp_into(self, key: Key, buffer_ptr: int, size: int, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0) -> Any:
        return self.get_tensor_into(_shard_key(key, tp_rank, tp_size), buffer_ptr, size)

    def batch_get_tensor_with_tp_into(self, base_keys: Sequence[Key], buffer_ptrs: Sequence[int], sizes: Sequence[int], tp_rank: int = 0,
                                      tp_size: int = 1) -> List[Any]:
        return self.batch_get_tensor_into([_shard_key(key, tp_rank, tp_size) for key in base_keys], buffer_ptrs, sizes)

    def put_tensor_from(self, key: Key, buffer_ptr: int, size: int) -> int:
        return self._put_tensors_from([key], [buffer_ptr], [size], 0)[0]

    def upsert_tensor_from(self, key: Key, buffer_ptr: int, size: int) -> int:
        return self._put_tensors_from([key], [buffer_ptr], [size], _kvpool.UPSERT)[0]

    def batch_put_tensor_from(self, keys: Sequence[Key], buffer_ptrs: Sequence[int], sizes: Sequence[int]) -> List[int]:
        return self._put_tensors_from(keys, buffer_ptrs, sizes, 0)

    def batch_upsert_tensor_from(self, keys: Sequence[Key], buffer_ptrs: Sequence[int], sizes: Sequence[int]) -> List[int]:
        return self._put_tensors_from(keys, buffer_ptrs, sizes, _kvpool.UPSERT)

    def put_tensor_with_tp_from(self, key: Key, buffer_ptr: int, size: int, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0) -> int:
        """Splits a whole tensor into the shards of all ranks."""
        return self.batch_put_tensor_with_tp_from([key], [buffer_ptr], [size], tp_rank, tp_size, split_dim)[0]

    def batch_put_tensor_with_tp_from(self, base_keys: Sequence[Key], buffer_ptrs: Sequence[int], sizes: Sequence[int], tp_rank: int = 0,
                                      tp_size: int = 1, split_dim: int = 0) -> List[int]:
        if not are_alike(base_keys, buffer_ptrs, sizes):
            return [self._invalid()] * len(base_keys)
        if tp_size <= 1:
            return self._put_tensors_from(base_keys, buffer_ptrs, sizes, 0)
        tensors = (tensor_or_none(self._copy_of(ptr, size)) for ptr, size in zip(buffer_ptrs, sizes))  # one at a time in memory
        options, _ = self._put_terms(None, len(base_keys))
        return [self._put_shards(key, tensor, tp_size, split_dim, options) for key, tensor in zip(base_keys, tensors)]

    def _put_tensors_from(self, keys, ptrs, sizes, flags):
        if self._raw is None or not are_alike(keys, ptrs, sizes):
            return [self._invalid()] * len(keys)
        heads = [self._copy_of(ptr, _tensor_format.SIZE) for ptr in ptrs]
        are_sound = [head is not None and _tensor_format.unpack(memoryview(head), size) is not None for head, size in zip(heads, sizes)]
        sound = [row for row, is_sound in zip(zip(keys, ptrs, sizes), are_sound) if is_sound]
        put = iter(self._put_memory(*zip(*sound), flags, None) if sound else ())
        return [next(put) if is_sound else self._invalid() for is_sound in are_sound]

    def _copy_of(self, ptr, size):
        """A copy of registered memory, or None: it is read where the library has found that it is some."""
        if self._raw is None or size < _tensor_format.SIZE:
            return None
        try:
            slab = _staging.Slab(self._raw, [size], self._staged)
        except _staging.Refused:
            return None
        [n] = self._raw.copy_ranges([(slab.at[0], size)], [[ptr]], [[size]], [[0]], True, True)
        return BufferHandle(slab.at[0], size, slab) if n == size else None

    # ---- elsewhere
    def get_tensor_into_cuda(self, key: Key, tensor: Any) -> int:
        """Copies the payload into a tensor on a GPU of as many bytes. How many these are, or a code."""
        if not (is_tensor(tensor) and tensor.is_cuda and tensor.is_contiguous()):
            return self._invalid()
        found = self.get_tensor(key)
        if found is None:
            return _NOT_FOUND if self._raw is not None else self._invalid()
        size = found.numel() * found.element_size()
        if found.dtype != tensor.dtype or size != tensor.numel() * tensor.element_size():
            return self._invalid()
        tensor.copy_(found.reshape(tensor.shape))
        return size

    def batch_get_tensor_into_cuda(self, keys: Sequence[Key], tensors_list: Sequence[Any]) -> List[int]:
        if not are_alike(keys, tensors_list):
            return [self._invalid()] * len(keys)
        return [self.get_tensor_into_cuda(key, tensor) for key, tensor in zip(keys, tensors_list)]

    def save_tensor_to_safetensor(self, key: Key, file_name: Optional[str] = None) -> int:
        """Writes a tensor to a file, by default one that is named as its key, which decides where: 0 or a code."""
        tensor = self.get_tensor(key)
        if tensor is None:
            return _NOT_FOUND if self._raw is not None else self._invalid()
        try:
            importlib.import_module("safetensors.torch").save_file({key: tensor.contiguous()}, file_name or key)
        except Exception as e:  # whatever it raises of a file or a dtype that it cannot write
            self._teller.error("save_tensor", "%s: %s", shown_key(file_name or key), shown_why(e))
            return _INVALID
        return 0

    def load_tensor_from_safetensor(self, key: Optional[Key] = None, file_name: Optional[str] = None) -> Any:
        """Reads the tensor of that name, or the first, from a file and puts it under key, by default the file's name. The tensor or None."""
        if file_name is None:
            raise TypeError("file_name is wanted")
        try:
            tensors = importlib.import_module("safetensors.torch").load_file(file_name)
        except Exception as e:  # whatever it raises of a file that it cannot read
            self._teller.error("load_tensor", "%s: %s", shown_key(file_name), shown_why(e))
            return None
        if not tensors:
            return None
        if key is not None and key not in tensors:
            self._teller.warning("another tensor", "%s has no tensor %s; the first one is taken", shown_key(file_name), shown_key(key))
        tensor = tensors.get(key, next(iter(tensors.values())))
        return tensor if self.put_tensor(key or file_name, tensor) == 0 else None


def _shard_key(key, rank, ranks):
    if ranks <= 1:
        return key
    return b"%s_tp_%d" % (key, rank) if isinstance(key, bytes) else f"{key}_tp_{rank}"
