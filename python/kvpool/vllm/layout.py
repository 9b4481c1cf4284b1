# SPDX-License-Identifier: Apache-2.0
"""Where the bytes of a block lie. Knows tensors, and nothing of vLLM.

vLLM gives each layer of a cache group a tensor, or a list of tensors of one layer's state. Dimension 0 counts blocks, or
kernel blocks of which a fixed number makes a block. Layers of several groups may share one storage."""
from __future__ import annotations

import struct
from typing import Any, Dict, List, Sequence, Tuple

PIECES_MAX = 1024  # of a block

Piece = Tuple[int, int, int]  # base address, bytes from one block to the next, bytes of a block


def _by_block(tensor: Any, blocks: int) -> Any:
    if tensor.shape[0] == blocks:
        return tensor
    if tensor.shape[0] % blocks:
        raise ValueError(f"a cache of {tensor.shape[0]} kernel blocks has no {blocks} blocks")
    return tensor.unflatten(0, (blocks, -1))


def _is_dense(tensor: Any) -> bool:
    """Whether the elements lie side by side, in any order of the dimensions."""
    wanted = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size > 1):
        if stride != wanted:
            return False
        wanted *= size
    return True


def _pieces_of(tensor: Any) -> List[Piece]:
    size, one = tensor.element_size(), tensor[0]
    if _is_dense(one):
        return [(tensor.data_ptr(), tensor.stride(0) * size, one.numel() * size)]
    if tensor.dim() < 2:
        raise ValueError("the bytes of a block lie apart")
    return [piece for i in range(tensor.shape[1]) for piece in _pieces_of(tensor[:, i])]


def pieces(caches: Dict[str, Any], layers: Sequence[str], blocks: int, shards: int = 1, shard: int = 0) -> List[Piece]:
    """The pieces of a block of a cache group, in the order of its layers. shards: the heads, dimension 1, are cut into so
    many equal parts, of which this is number `shard`. ValueError: a layer is missing, or its heads do not lie apart."""
    found: List[Piece] = []
    for layer in layers:
        if layer not in caches:
            raise ValueError(f"the engine gave no cache for layer {layer}")
        value = caches[layer]
        for tensor in value if isinstance(value, (list, tuple)) else [value]:
            tensor = _by_block(tensor, blocks)
            if shards > 1:
                heads = tensor.shape[1] // shards
                tensor = tensor[:, shard * heads:(shard + 1) * heads]
                if tensor.shape[1] == 0 or not _is_dense(tensor[0]):
                    raise ValueError("store_tp needs a cache in which each head's bytes lie side by side (layout LBHNC)")
            for base, stride, size in _pieces_of(tensor):
                last = found[-1] if found else None
                if last is not None and last[0] + last[2] == base and last[1] == stride:
                    found[-1] = last[0], stride, last[2] + size
                else:
                    found.append((base, stride, size))
    return found


def packed(found: Sequence[Piece]) -> bytes:
    """As _kvpool.Job takes them."""
    return b"".join(struct.pack("=QQQ", *piece) for piece in found)


def storages(caches: Dict[str, Any]) -> Dict[int, int]:
    """address -> bytes of the storages behind the caches, each once."""
    found: Dict[int, int] = {}
    for value in caches.values():
        for tensor in value if isinstance(value, (list, tuple)) else [value]:
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = max(found.get(storage.data_ptr(), 0), storage.nbytes())
    return found
