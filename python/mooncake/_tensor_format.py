# SPDX-License-Identifier: Apache-2.0
"""The header that stands before a tensor's bytes, the reference's, so that either reads what the other wrote. Little-endian, 304 bytes:

0 "NOOM"; 4 u16 version 1; 6 u16 304; 8 i32 dtype (DTYPES); 12 i32 dimensions (at most 8); 16 i32 1 for a shard, else 0; 24 u64 304, where the
bytes begin; 32 u64 how many there are; 40 i64[8] shape of the whole; 104 i64[8] shape of these bytes (-1 where there is no dimension);
168 i32 axes of sharding; 176 of each axis 32 bytes: i32 kind (1 = tensor parallel), i32 place in this list, i32 rank, i32 size,
i32 dimension that is split, i32 0, i64 its length here. The rest is zeros.
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
_MAGIC, _VERSION = b"NOOM", 1
_TENSOR_PARALLEL = 1


def _padded(shape):
    return [*shape, *[-1] * (DIMS_MAX - len(shape))]


def pack(dtype, shape, size, shard=None):
    """The header of size bytes. shard: (rank, size, dimension, shape of the whole) where they are a part."""
    whole = shape if shard is None else shard[3]
    head = _HEAD.pack(_MAGIC, _VERSION, SIZE, dtype, len(shape), shard is not None, SIZE, size, *_padded(whole), *_padded(shape),
                      shard is not None)
    if shard is not None:
        rank, ranks, dimension, _ = shard
        head += _AXIS.pack(_TENSOR_PARALLEL, 0, rank, ranks, dimension, 0, shape[dimension])
    return head.ljust(SIZE, b"\0")


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
