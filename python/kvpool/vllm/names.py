# SPDX-License-Identifier: Apache-2.0
"""The names of objects and groups, and the fingerprint of a namespace. Nothing here knows vLLM."""
from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, Sequence

FINGERPRINT_KEY = b"kvpool:fingerprint"


@dataclass(frozen=True)
class Group:
    """A cache group of the engine. number: vLLM's. kind: "full", "window" or "state". block_tokens: tokens of a block.
    shards: the number of ranks of one pipeline stage that hold different bytes of a block. window: tokens, 0 = no window."""

    number: int
    kind: str
    block_tokens: int
    shards: int = 1
    window: int = 0


@dataclass(frozen=True)
class Names:
    """Names of the blocks of one namespace. stages: the number of pipeline stages. is_grouped: the objects of a block are a
    group. Without it each block is one object, and such objects go to SSDs."""

    namespace: str
    stages: int = 1
    is_grouped: bool = False

    def object_prefix(self, group: Group, shard: int, stage: int) -> bytes:
        """The key of a block is this prefix and the block's hash in hexadecimal digits. The conductor reads this form."""
        return f"{self.namespace}@tp_rank:{shard}@pcp0@dcp0@pp_rank:{stage}@group:{group.number}@".encode()

    def group_prefix(self, group: Group) -> bytes:
        """The id of the group of a block's objects is this prefix and the hash in digits."""
        return f"{self.namespace}@group:{group.number}@".encode()

    def members(self, group: Group) -> int:
        """The number of objects of a block."""
        return self.stages * group.shards

    def lookup_prefix(self, group: Group) -> bytes:
        """What a look-up asks for: the group's id, or the only object's key."""
        return self.group_prefix(group) if self.is_grouped else self.object_prefix(group, 0, 0)


def names_of(namespace: str, stages: int, groups: Sequence[Group]) -> Names:
    """One look-up asks for groups or for objects, so all cache groups are of one kind."""
    return Names(namespace, stages, any(stages * g.shards > 1 for g in groups))


def differences(ours: Dict[str, Any], stored: Dict[str, Any]) -> str:
    """Each field of a fingerprint that differs, with our value and the stored one, in one line. stored: {} if it is none."""
    if not stored:
        return "its fingerprint cannot be read"
    plain = json.loads(json.dumps(ours))
    names = sorted(set(plain) | set(stored))
    return "; ".join(f"{n}: here {plain.get(n)!r}, in the pool {stored.get(n)!r}" for n in names if plain.get(n) != stored.get(n))
