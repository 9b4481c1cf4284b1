# SPDX-License-Identifier: Apache-2.0
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
    id: Tuple[int, int]
    type: TaskType
    status: TaskStatus
    created_at_ms_epoch: int
    last_updated_at_ms_epoch: int
    assigned_client: Tuple[int, int]
    message: str
    def __init__(self) -> None: ...

class Descriptor:
    size: int
    buffer_address: int
    transport_endpoint: str
    def __init__(self, size: int = 0, endpoint: str = "") -> None: ...

class DiskDescriptor:
    file_path: str
    object_size: int

class MemoryDescriptor:
    buffer_descriptor: Descriptor
    def __init__(self, descriptor: Descriptor) -> None: ...

class ReplicaDescriptor:
    status: ReplicaStatus
    def __init__(self, size: int, endpoint: str) -> None: ...
    def is_memory_replica(self) -> bool: ...
    def is_disk_replica(self) -> bool: ...
    def is_local_disk_replica(self) -> bool: ...
    def get_memory_descriptor(self) -> MemoryDescriptor: ...
    def get_disk_descriptor(self) -> Descriptor: ...

class ReplicateConfig:
    replica_num: int
    nof_replica_num: int
    dfs_replica_num: int
    soft_pin_action: SoftPinAction
    soft_pin_ttl_ms: Optional[int]
    with_hard_pin: bool
    preferred_segments: List[str]
    preferred_segment: str
    preferred_nof_segments: List[str]
    prefer_alloc_in_same_node: bool
    data_type: ObjectDataType
    group_ids: Optional[List[str]]
    def __init__(self) -> None: ...

class ParallelAxis:
    kind: str
    rank: int
    size: int
    split_dim: Optional[int]
    expert_id: Optional[int]
    stage_id: Optional[int]
    def __init__(self) -> None: ...

class TensorParallelism:
    axes: List[ParallelAxis]
    def __init__(self) -> None: ...

class ReadTarget:
    mode: str
    parallelism: Optional[TensorParallelism]
    def __init__(self) -> None: ...
