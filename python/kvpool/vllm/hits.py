# SPDX-License-Identifier: Apache-2.0
"""Hits of models with several cache groups, and which of their blocks are worth storing.

A hit of a sliding window or a recurrent state is no prefix of blocks: a window needs its last blocks, a state one. vLLM's
own coordinator decides this for its cache. Here a copy of it decides it over the blocks that the pool has."""
from __future__ import annotations

import copy
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from vllm.v1.core.kv_cache_coordinator import replay_boundaries
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from .names import Group


class _PoolBlocks:
    """What the coordinator asks of a block pool: which blocks are there."""

    def __init__(self, like: Any, present: Set[Tuple[int, bytes]]) -> None:
        self.hash_block_size = like.hash_block_size
        self.null_block = KVCacheBlock(block_id=0)
        self._block, self._present = KVCacheBlock(block_id=1), present

    def get_cached_block(self, block_hash: bytes, group_ids: Sequence[int]) -> Optional[List[Any]]:
        is_there = all((g, bytes(block_hash)) in self._present for g in group_ids)
        return [self._block] * len(group_ids) if is_there else None


class Hits:
    """manager: vLLM's KVCacheManager, bound after the connector was made. windows: the setting of that name."""

    def __init__(self, groups: Sequence[Group], windows: str) -> None:
        self._groups, self._windows = groups, windows
        self._coordinator: Any = None

    def bind(self, manager: Any) -> None:
        self._coordinator = manager.coordinator

    @property
    def unit_tokens(self) -> int:
        """Tokens by which a hit grows."""
        return int(self._coordinator.scheduler_block_size)

    def hit(self, request: Any, keys: Sequence[Tuple[Group, bytes]], places: bytes) -> Tuple[int, bytes]:
        """(tokens of the hit, the farthest place of each unit's blocks). keys: what was asked for. places: for each 1 + its
        place (cost.py), or 0. The last token is never part of a hit: it is computed again, and a state has no way back."""
        there: Dict[Tuple[int, bytes], int] = {(g.number, h): p for (g, h), p in zip(keys, places) if p}
        shadow, blocks = copy.copy(self._coordinator), _PoolBlocks(self._coordinator.block_pool, set(there))
        shadow.single_type_managers = tuple(copy.copy(m) for m in shadow.single_type_managers)
        for part in (shadow, *shadow.single_type_managers):
            part.block_pool = blocks
        unit = self.unit_tokens
        tables, tokens, *_ = shadow.find_longest_cache_hit(request.block_hashes, request.num_tokens - 1)
        tokens -= tokens % unit
        farthest = bytearray(tokens // unit)
        for group in self._groups:
            per = group.block_tokens // blocks.hash_block_size
            for i, block in enumerate(tables[group.number][:tokens // group.block_tokens]):
                if block.block_id:
                    at = i * group.block_tokens // unit
                    farthest[at] = max(farthest[at], there.get((group.number, bytes(request.block_hashes[(i + 1) * per - 1])), 1) - 1)
        return tokens, bytes(farthest)

    def mask(self, g: int, first: int, last: int, prompt_tokens: int) -> Optional[List[bool]]:
        """Which of the blocks [first, last) of a group are worth storing; None: all."""
        group = self._groups[g]
        if group.kind == "state":
            return [False] * (last - first)  # states are stored where the engine hands them over
        if group.kind == "full" or self._windows == "all":
            return None
        c = self._coordinator
        manager = c.single_type_managers[group.number]
        wanted: Optional[List[bool]] = manager.reachable_block_mask(
            start_block=first, end_block=last, alignment_tokens=manager.cache_hit_alignment_tokens, kv_cache_spec=manager.kv_cache_spec,
            use_eagle=manager.use_eagle, retention_interval=c.retention_interval,
            reachable_boundaries=replay_boundaries(prompt_tokens, c.scheduler_block_size, bool(manager.use_eagle)))
        return wanted
