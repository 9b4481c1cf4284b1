# SPDX-License-Identifier: Apache-2.0
"""A ReplicateConfig in the words of a pool."""
from kvpool import _kvpool

from ._types import ReplicateConfig, SoftPinAction

_DEFAULT = ReplicateConfig()


def put_options(config, flags=0):
    """(flags, replicas) of a put."""
    config = config or _DEFAULT
    if config.with_hard_pin:
        flags |= _kvpool.PIN_HARD
    if config.soft_pin_action == SoftPinAction.ENABLE:
        flags |= _kvpool.PIN_SOFT
    return flags, config.replica_num


def groups_of(config, n):
    """The group ids of n keys, or None; False where there are not as many."""
    groups = (config or _DEFAULT).group_ids
    if groups is None:
        return None
    return list(groups) if len(groups) == n else False
