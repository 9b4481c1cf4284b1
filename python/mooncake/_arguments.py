# SPDX-License-Identifier: Apache-2.0
"""What arguments of calls have to be, and a ReplicateConfig in the words of a pool."""
from kvpool import _kvpool

from ._types import ReplicateConfig, SoftPinAction

_DEFAULT = ReplicateConfig()
REPLICAS_MAX = 8  # of a put
_SOFT_PIN_MOST_MS = 24 * 3600 * 1000  # of the reference


def list_of(keys):
    """The keys of a call as they are. TypeError: a str has a length and items, too, and is never meant."""
    if isinstance(keys, (str, bytes, dict)) or not hasattr(type(keys), "__getitem__"):
        raise TypeError(f"a list is wanted, not {type(keys).__name__}")
    return keys


def are_alike(keys, *others):
    """Are keys a list (TypeError), and the others as long?"""
    n = len(list_of(keys))
    return all(len(other) == n for other in others)


def are_buffers(keys, ptrs, sizes):
    """Is there a buffer and a size for each key, or lists of them that are of one length?"""
    if not are_alike(keys, ptrs, sizes):
        return False
    has_pieces = len(keys) > 0 and isinstance(ptrs[0], (list, tuple)) and isinstance(sizes[0], (list, tuple))
    return not has_pieces or all(len(p) == len(s) for p, s in zip(ptrs, sizes))


def are_some(values):
    """Has each of these objects with memory (TypeError) a byte?"""
    return all([_kvpool.memory_of(value, False)[1] > 0 for value in values])


def is_key(key):
    """May an object have this key?"""
    return 0 < len(key.encode() if isinstance(key, str) else key) <= _kvpool.KEY_MAX


def put_terms(config, n, flags=0):
    """((flags, replicas), group ids of the n objects or None, nodes that are preferred) of a put; None where n objects cannot be put so.
    config None is the default one; TypeError for what is no config."""
    if config is None:
        config = _DEFAULT
    if not isinstance(config, ReplicateConfig):
        raise TypeError(f"config is a ReplicateConfig, not {type(config).__name__}")
    if config.replica_num <= 0 or (config.group_ids is not None and len(config.group_ids) != n):
        return None
    is_soft, ttl_ms = config.soft_pin_action == SoftPinAction.ENABLE, config.soft_pin_ttl_ms
    if ttl_ms is not None and (not is_soft or ttl_ms > _SOFT_PIN_MOST_MS):
        return None
    if config.with_hard_pin:
        flags |= _kvpool.PIN_HARD  # what is never evicted needs no softer pin
    elif is_soft and ttl_ms != 0:
        flags |= _kvpool.PIN_SOFT
    names = [name for name in (config.preferred_segment, *config.preferred_segments) if name]
    return (flags, min(config.replica_num, REPLICAS_MAX)), config.group_ids, names


def groups_of(terms, n):
    """The group id, or None, of each of n objects."""
    return terms[1] if terms[1] is not None else [None] * n
