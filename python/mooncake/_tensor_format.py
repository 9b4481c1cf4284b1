# SPDX-License-Identifier: Apache-2.0
"""The header that stands before a tensor's bytes, the reference's, so that either reads what the other wrote. Little-endian, 304 bytes:

0 "NOOM"; 4 u16 version 1; 6 u16 304; 8 i32 dtype (DTYPES); 12 i32 dimensions (at most 8); 16 i32 1 for a shard, else 0; 24 u64 304, where the
bytes begin; 32 u64 how many there are; 40 i64[8] shape of the whole; 104 i64[8] shape of these bytes (-1 where there is no dimension);
168 i32 axes of sharding; 176 of each axis 32 bytes: i32 kind (0 data, 1 tensor, 2 expert, 3 pipeline parallel), i32 place in this list,
i32 rank, i32 size, i32 dimension that is split (-1: none), i32 number of the expert or stage, i64 the dimension's length here. The rest is
zeros.

A manifest says how a tensor is divided into as many objects, 96 bytes: 0 "NAMW"; 4 u16 version 1; 6 u16 96; 8 i32 dtype; 12 i32 dimensions;
16 i32 dimension that is split; 20 i32 into how many parts; 24 u64 0; 32 i64[8] shape of the whole.
"""
import struct

SIZE = 304
DIMS_MAX = 8
# By number; names of torch.
DTYPES = ("float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool", "float16", "bfloat16",
          "float8_e4m3fn", "float8_e5m2")
_BYTES = (4, 8, 1, 1, 2, 2, 4, 4, 8, 8, 1, 2, 2, 1, 1)
_HEAD = struct.Struct("<4sHHiii4xQQ8q8qi4x")
_AXIS = struct.Struct("<iiiiiiq")
_MANIFEST = struct.Struct("<4sHHiiiiQ8q")
_MAGIC, _MAGIC_MANIFEST, _VERSION = b"NOOM", b"NAMW", 1
TENSOR_PARALLEL = 1


def _padded(shape):
    return [*shape, *[-1] * (DIMS_MAX - len(shape))]


def pack(dtype, shape, size, whole=None, axes=()):
    """The header of size bytes. Where they are a part, whole is the shape of it all, and of each axis (kind, rank, size, dimension,
    number, length)."""
    head = _HEAD.pack(_MAGIC, _VERSION, SIZE, dtype, len(shape), whole is not None, SIZE, size, *_padded(shape if whole is None else whole),
                      *_padded(shape), len(axes))
    return (head + b"".join(_AXIS.pack(kind, place, *rest) for place, (kind, *rest) in enumerate(axes))).ljust(SIZE, b"\0")


def pack_manifest(dtype, whole, dimension, ranks):
    return _MANIFEST.pack(_MAGIC_MANIFEST, _VERSION, _MANIFEST.size, dtype, len(whole), dimension, ranks, 0, *_padded(whole))


def unpack(head, size):
    """(number of the dtype, shape) of an object of size bytes that begins with head, or None: it is no tensor. What it says is not
    trusted: shape, dtype and length have to fit together."""
    if len(head) < SIZE or size < SIZE:
        return None
    magic, version, length, dtype, dims, _, begin, count, *rest = _HEAD.unpack_from(head)
    if (magic, version, length, begin) != (_MAGIC, _VERSION, SIZE, SIZE) or not 0 <= dims <= DIMS_MAX:
        return None
    shape = rest[DIMS_MAX:DIMS_MAX + dims]
    if not 0 <= dtype < len(DTYPES) or count != size - SIZE or any(n < 0 for n in shape):
        return None
    elements = 1
    for n in shape:
        elements *= n
    return (dtype, shape) if elements * _BYTES[dtype] == count else None


def number_of(dtype):
    """Of a dtype of torch, in a header; None where it has none."""
    name = str(dtype).rpartition(".")[2]
    return DTYPES.index(name) if name in DTYPES else None


def _division(dtype, dims, dimension, ranks, shape, ranks_max):
    if not 0 <= dtype < len(DTYPES) or not 0 < dims <= DIMS_MAX or not 0 <= dimension < dims or not 0 < ranks <= ranks_max:
        return None
    whole = list(shape[:dims])
    if any(n < 0 for n in whole) or whole[dimension] == 0 or whole[dimension] % ranks:
        return None
    return dtype, whole, dimension, ranks


def unpack_manifest(value, ranks_max):
    """(dtype, shape of the whole, dimension, parts) of an object, or None: it is no manifest, or none that can be true."""
    if len(value) != _MANIFEST.size:
        return None
    magic, version, length, dtype, dims, dimension, ranks, _, *shape = _MANIFEST.unpack(value)
    if (magic, version, length) != (_MAGIC_MANIFEST, _VERSION, _MANIFEST.size):
        return None
    return _division(dtype, dims, dimension, ranks, shape, ranks_max)


def division_of(head, size, ranks_max):
    """The same, of the header of an object of size bytes that is a part by tensor parallelism alone; else None."""
    if unpack(head, size) is None:
        return None
    _, _, _, dtype, dims, is_part, _, _, *rest = _HEAD.unpack_from(head)
    kind, _, _, ranks, dimension, _, _ = _AXIS.unpack_from(head, _HEAD.size)
    if not is_part or rest[2 * DIMS_MAX] != 1 or kind != TENSOR_PARALLEL:
        return None
    return _division(dtype, dims, dimension, ranks, rest, ranks_max)
