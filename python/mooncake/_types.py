# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
"""Types of arguments and results of mooncake.store."""
from __future__ import annotations

import enum
from typing import List, Optional, Tuple


class ObjectDataType(enum.IntEnum):
    UNKNOWN = 0
    KVCACHE = 1
    TENSOR = 2
    WEIGHT = 3
    SAMPLE = 4
    ACTIVATION = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    METADATA = 8
    GENERAL = 9


class SoftPinAction(enum.IntEnum):
    PRESERVE = 0
    ENABLE = 1
    DISABLE = 2


class ReplicaStatus(enum.IntEnum):
    UNDEFINED = 0
    INITIALIZED = 1
    PROCESSING = 2
    COMPLETE = 3
    REMOVED = 4
    FAILED = 5


class TaskType(enum.IntEnum):
    REPLICA_COPY = 0
    REPLICA_MOVE = 1


class TaskStatus(enum.IntEnum):
    PENDING = 0
    PROCESSING = 1
    FAILED = 2
    SUCCESS = 3


class QueryTaskResponse:
    """The state of a task (create_copy_task). assigned_client is always (0, 0): the target's node makes the copy."""

    __slots__ = ("id", "type", "status", "created_at_ms_epoch", "last_updated_at_ms_epoch", "assigned_client", "message")

    def __init__(self) -> None:
        self.id: Tuple[int, int] = (0, 0)
        self.type = TaskType.REPLICA_COPY
        self.status = TaskStatus.PENDING
        self.created_at_ms_epoch = 0
        self.last_updated_at_ms_epoch = 0
        self.assigned_client: Tuple[int, int] = (0, 0)
        self.message = ""


class Descriptor:
    """The place of a copy. buffer_address is 0: only the node knows addresses."""

    __slots__ = ("size", "buffer_address", "transport_endpoint")

    def __init__(self, size: int = 0, endpoint: str = "") -> None:
        self.size = size
        self.buffer_address = 0
        self.transport_endpoint = endpoint

    def __repr__(self) -> str:
        return f"<Descriptor size={self.size} buffer_address={self.buffer_address} transport_endpoint={self.transport_endpoint}>"


class DiskDescriptor:
    """The place of a copy in a file that all may read. A pool has no such copies: only the node reads its SSD."""

    __slots__ = ("file_path", "object_size")
    file_path: str
    object_size: int


class MemoryDescriptor:
    __slots__ = ("buffer_descriptor",)

    def __init__(self, descriptor: Descriptor) -> None:
        self.buffer_descriptor = descriptor


class ReplicaDescriptor:
    """A complete copy of an object, in a node's memory or on its SSD. As in the reference, a copy on an SSD has neither of the
    descriptors."""

    __slots__ = ("status", "_memory")

    def __init__(self, size: int, endpoint: str, is_on_ssd: bool = False) -> None:
        self.status = ReplicaStatus.COMPLETE
        self._memory = None if is_on_ssd else MemoryDescriptor(Descriptor(size, endpoint))

    def is_memory_replica(self) -> bool:
        return self._memory is not None

    def is_disk_replica(self) -> bool:
        return False

    def is_local_disk_replica(self) -> bool:
        return self._memory is None

    def get_memory_descriptor(self) -> MemoryDescriptor:
        if self._memory is None:
            raise RuntimeError("Expected MemoryDescriptor")
        return self._memory

    def get_disk_descriptor(self) -> DiskDescriptor:
        raise RuntimeError("Expected DiskDescriptor")


class ReplicateConfig:
    """Options of a put. Options that a pool does not use are accepted, and have no effect.

    used:
    replica_num: number of copies, at most 8, on different hosts, or on different nodes if there are fewer hosts.
    with_hard_pin. soft_pin_action: ENABLE; no effect beside a hard pin.
    soft_pin_ttl_ms: only with ENABLE, at most a day; 0 = no pin. A pool's soft pin ends only with eviction.
    group_ids: objects with the same id are evicted together. Memory that is not registered is staged.
    preferred_segment, then preferred_segments: nodes by get_hostname() or name. Each copy goes to the first of them that
        takes puts, is not full and has no other copy of the object, else to any node. If the node of a single copy does not
        take the object in half of the call's time, any node is used.
    not used: prefer_alloc_in_same_node (an object is never divided), nof_replica_num, dfs_replica_num,
    preferred_nof_segments, data_type.
    """

    __slots__ = ("replica_num", "nof_replica_num", "dfs_replica_num", "soft_pin_action", "soft_pin_ttl_ms", "with_hard_pin",
                 "preferred_segments", "preferred_segment", "preferred_nof_segments", "prefer_alloc_in_same_node", "data_type",
                 "group_ids")

    def __init__(self) -> None:
        self.replica_num = 1
        self.nof_replica_num = 0
        self.dfs_replica_num = 0
        self.soft_pin_action = SoftPinAction.PRESERVE
        self.soft_pin_ttl_ms: Optional[int] = None
        self.with_hard_pin = False
        self.preferred_segments: List[str] = []
        self.preferred_segment = ""
        self.preferred_nof_segments: List[str] = []
        self.prefer_alloc_in_same_node = False
        self.data_type = ObjectDataType.UNKNOWN
        self.group_ids: Optional[List[str]] = None

    @property
    def with_soft_pin(self) -> bool:
        """soft_pin_action in the form of earlier releases: True is ENABLE, False PRESERVE."""
        return self.soft_pin_action == SoftPinAction.ENABLE

    @with_soft_pin.setter
    def with_soft_pin(self, value: bool) -> None:
        self.soft_pin_action = SoftPinAction.ENABLE if value else SoftPinAction.PRESERVE

    def __setattr__(self, name: str, value: object) -> None:
        kinds = _KINDS.get(name)
        if kinds is not None and not isinstance(value, kinds):
            raise TypeError(f"{name} is {' or '.join(kind.__name__ for kind in kinds)}, not {type(value).__name__}")
        if name in ("preferred_segments", "preferred_nof_segments"):
            if not all(isinstance(segment, str) for segment in value):
                raise TypeError(f"{name} is a list of str")
            value = list(value)
        if name == "soft_pin_ttl_ms" and value is not None:
            if not 0 <= value < 2**64:
                raise TypeError(f"{name} is a number from 0 to 2^64 - 1, not {value}")
            value = int(value)
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return "ReplicateConfig(" + ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__) + ")"


_KINDS = {**dict.fromkeys(("replica_num", "nof_replica_num", "dfs_replica_num"), (int,)), "soft_pin_action": (SoftPinAction,),
          "soft_pin_ttl_ms": (int, type(None)), "with_hard_pin": (bool, int), "with_soft_pin": (bool, int), "prefer_alloc_in_same_node": (bool, int),
          "preferred_segment": (str,), "data_type": (ObjectDataType,),
          **dict.fromkeys(("preferred_segments", "preferred_nof_segments"), (list, tuple)), "group_ids": (list, tuple, type(None))}


class _Checked:
    """Accepts only attributes of the declared types: TypeError."""

    __slots__ = ()
    _kinds = {}

    def __setattr__(self, name: str, value: object) -> None:
        kinds = self._kinds.get(name, ())
        if kinds and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
            raise TypeError(f"{name} is no {type(value).__name__}")
        super().__setattr__(name, value)


class ParallelAxis(_Checked):
    """rank of size ranks. kind: "dp", "tp" (these divide dimension split_dim), "ep" (expert_id) or "pp" (stage_id)."""

    __slots__ = ("kind", "rank", "size", "split_dim", "expert_id", "stage_id")
    _kinds = {"kind": (str,), "rank": (int,), "size": (int,), **dict.fromkeys(("split_dim", "expert_id", "stage_id"), (int, type(None)))}

    def __init__(self) -> None:
        self.kind, self.rank, self.size = "", 0, 1
        self.split_dim: Optional[int] = None
        self.expert_id: Optional[int] = None
        self.stage_id: Optional[int] = None


class TensorParallelism(_Checked):
    """axes: a list of ParallelAxis, each of another kind."""

    __slots__ = ("axes",)
    _kinds = {"axes": (list, tuple)}

    def __init__(self) -> None:
        self.axes: List[ParallelAxis] = []

    def __setattr__(self, name: str, value: object) -> None:
        if name == "axes" and not all(isinstance(axis, ParallelAxis) for axis in value):
            raise TypeError("axes is a list of ParallelAxis")
        super().__setattr__(name, value)


class ReadTarget(_Checked):
    """mode: "as_stored", "full" or "shard". parallelism: of the tensor to read; None if it was put without one. RuntimeError for
    other modes."""

    __slots__ = ("mode", "parallelism")
    _kinds = {"mode": (str,), "parallelism": (TensorParallelism, type(None))}

    def __init__(self) -> None:
        self.mode = "as_stored"
        self.parallelism: Optional[TensorParallelism] = None

    def __setattr__(self, name: str, value: object) -> None:
        if name == "mode" and isinstance(value, str) and value not in ("as_stored", "full", "shard"):
            raise RuntimeError("Unsupported ReadTarget mode")
        super().__setattr__(name, value)
