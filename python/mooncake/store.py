# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
"""mooncake.store over a kvpool: the names, signatures and return codes that connectors call.

A call that succeeds returns 0 or more. Codes of errors: -200 no space; -600 invalid (not set up, closed, unregistered
memory, or a buffer that is too small); -704 the key is not present; -705 the key is present already (sessions); -706 held;
-900 the pool was not reached in time; -1012 a pool cannot do this (the log has the reason). Calls that return bytes return
b"" for a missing key. Arguments of a wrong type raise TypeError.
"""
from __future__ import annotations

import functools
import logging
import os
import sys
import threading
from typing import Any, Dict, List, Optional, Sequence, Union

from kvpool import _kvpool
from kvpool._typing import Key, Memory

from . import _offload, _pieces, _setup, _staging, _tensor_format
from ._arguments import are_alike, are_buffers, are_some, groups_of, is_key, list_of, put_terms
from ._buffers import BufferHandle, BufferLease, BufferLeaseView, BufferPool
from ._dummy import Dummy
from ._hostmem import MooncakeHostMemAllocator, bind_to_numa_node
from ._parallel import Parallel
from ._segments import Segments
from ._sessions import Ranges
from ._telling import Teller
from ._tensors import Tensors, deserialize, serialize
from ._types import (Descriptor, DiskDescriptor, MemoryDescriptor, ObjectDataType, ParallelAxis, QueryTaskResponse, ReadTarget,
                     ReplicaDescriptor, ReplicaStatus, ReplicateConfig, SoftPinAction, TaskStatus, TaskType, TensorParallelism)

RegisteredBufferPool, RegisteredBufferLease, RegisteredBufferLeaseView = BufferPool, BufferLease, BufferLeaseView

__all__ = ["BufferHandle", "BufferLease", "BufferLeaseView", "BufferPool", "Descriptor", "DiskDescriptor", "MemoryDescriptor",
           "MooncakeDistributedStore", "MooncakeHostMemAllocator", "ObjectDataType", "ParallelAxis", "QueryTaskResponse", "ReadTarget",
           "RegisteredBufferLease", "RegisteredBufferLeaseView", "RegisteredBufferPool", "ReplicaDescriptor", "ReplicaStatus",
           "ReplicateConfig", "SoftPinAction", "TaskStatus", "TaskType", "TensorParallelism", "bind_to_numa_node",
           "UNKNOWN", "KVCACHE", "TENSOR", "WEIGHT", "SAMPLE", "ACTIVATION", "GRADIENT", "OPTIMIZER_STATE", "METADATA", "GENERAL",
           "UNDEFINED", "INITIALIZED", "PROCESSING", "COMPLETE", "REMOVED", "FAILED", "REPLICA_COPY", "REPLICA_MOVE", "PENDING",
           "SUCCESS"]

# The members of these are names of the reference's module, too: FAILED and PROCESSING are the last one's.
UNKNOWN, KVCACHE, TENSOR, WEIGHT, SAMPLE, ACTIVATION, GRADIENT, OPTIMIZER_STATE, METADATA, GENERAL = ObjectDataType
UNDEFINED, INITIALIZED, _, COMPLETE, REMOVED, _ = ReplicaStatus
REPLICA_COPY, REPLICA_MOVE = TaskType
PENDING, PROCESSING, FAILED, SUCCESS = TaskStatus

log = logging.getLogger("mooncake.store")

_FAILED = -1
_INVALID = -600
_UNREACHABLE = -900
_SETUP_TRIES = 20  # another process may take the free port first
_STAGED_LEAST = 1 << 30


class MooncakeDistributedStore(Dummy, Parallel, Ranges, Segments, Tensors):
    """A client of a pool. With setup(global_segment_size > 0) it is a node, too, whose work never waits for the interpreter."""

    def __init__(self) -> None:
        self._raw = None
        self._hostname = ""
        self._local_buffer = 0
        self._lock = threading.Lock()  # of the fields below; never held during a wait
        self._opening = None  # the setup() under way
        self._session = None  # the completed setup(); None = closed, or not set up yet
        self._folder = None  # of the embedded node's SSD tier
        self._joined = {}  # segment id: the handle with this embedded node
        self._gets = {}  # sessions: key -> (address, length, the owner of the memory)
        self._puts = {}
        self._mem_pool = None  # of setup_dummy()
        self._staged = _staging.Budget(_STAGED_LEAST)
        self._teller = Teller(log)
        self._known_nodes = 0.0, []  # when the list expires, and the list

    # ---- life
    def setup(self, local_hostname: Union[str, Dict[str, Any]], metadata_server: Optional[str] = None,
              global_segment_size: Union[int, str, None] = None, local_buffer_size: Union[int, str, None] = None,
              protocol: Optional[str] = None, rdma_devices: Optional[str] = None, master_server_addr: Optional[str] = None,
              engine: Any = None, enable_ssd_offload: bool = False, ssd_offload_path: str = "", tenant_id: str = "default",
              enable_client_http_server: bool = False, client_http_port: int = 9300) -> int:
        """Joins a pool, and gives it global_segment_size bytes of memory. Also takes one dict with the same names.

        master_server_addr: "host:port", several separated by commas, or "etcd://host:port;host:port", where the masters of
            the cluster $MC_STORE_CLUSTER_ID (mooncake_cluster) are registered.
        metadata_server: not used. Settings that a pool does not use are named in the log.
        engine: it listens at local_hostname's port, so the node takes another port.
        local_buffer_size: the limit of a BufferPool without its own limit, and of the memory that sessions stage.
        protocol: "tcp" or "rdma". Without an RDMA device "rdma" means TCP, and the log says so, unless rdma_devices or
            $KVPOOL_TRANSPORTS name devices or transports.
        rdma_devices: for the whole process; -600 if another store has named others. $KVPOOL_RDMA_DEVICE overrides them.
        enable_ssd_offload: objects that leave the given memory are kept in a folder of this process below
            ssd_offload_path, else $MOONCAKE_OFFLOAD_FILE_STORAGE_PATH, and are found again there. -600 if that is not
            possible.

        Returns 0 or a code: -1 for an unknown protocol, or a host at which the node cannot listen.
        """
        if isinstance(local_hostname, dict):
            try:
                return self.setup(**_setup.from_dict(local_hostname))
            except (OverflowError, ValueError) as e:
                log.error("setup: %s", e)
                return _INVALID
        if None in (local_hostname, metadata_server, global_segment_size, local_buffer_size, protocol, rdma_devices, master_server_addr):
            raise TypeError("setup() takes local_hostname, metadata_server, global_segment_size, local_buffer_size, protocol, "
                            "rdma_devices, master_server_addr, or one dict")
        if not isinstance(local_hostname, str):
            raise TypeError(f"local_hostname is a str, not {type(local_hostname).__name__}")
        _setup.tell_unused({"metadata_server": metadata_server, "enable_client_http_server": enable_client_http_server,
                            "client_http_port": client_http_port})
        opening = object()
        with self._lock:
            if self._opening is not None or self._session is not None:
                log.error("setup: done before, or under way")
                return _INVALID
            self._opening = opening
        raw, name, how, has_devices, folder = None, "", None, False, None
        try:
            how = (_setup.split_host(local_hostname or "127.0.0.1"), _setup.transports(protocol),
                   _setup.masters(master_server_addr), "" if tenant_id == "default" else tenant_id)
            memory, local_buffer = _setup.parse_size(global_segment_size), _setup.parse_size(local_buffer_size)
            if rdma_devices and "rdma" in (how[1] or os.environ.get("KVPOOL_TRANSPORTS") or "rdma"):
                has_devices = _setup.devices.take(rdma_devices)
                if not has_devices:
                    log.error("setup: a process uses one set of RDMA devices, here %s by an earlier call, and not %s",
                              _setup.devices, rdma_devices)
                    return _INVALID
            folder = self._folder_for(memory, ssd_offload_path) if enable_ssd_offload else None
            port = how[0][1] if engine is None or memory == 0 else 0  # the engine listens at its own port
            raw, name, err = self._join(memory, how, port, folder)
        except (_setup.ProtocolError, _offload.OffloadError) as e:
            log.error("setup: %s", e)
            err = _FAILED if isinstance(e, _setup.ProtocolError) else _INVALID
        finally:
            if has_devices and raw is None:
                _setup.devices.give()
            with self._lock:
                is_wanted = self._opening is opening
                if is_wanted:
                    self._opening = None
                if is_wanted and raw is not None:
                    self._raw, self._hostname, self._how, self._session = raw, name, how, opening
                    self._local_buffer, self._folder = local_buffer, folder
                    self._staged.limit = max(local_buffer, _STAGED_LEAST)
            if folder is not None and raw is None:
                folder.close()
        if raw is not None and not is_wanted:
            raw.close()
            if folder is not None:
                folder.close()
            log.error("setup: the store was closed meanwhile")
            return _INVALID
        return err

    def _folder_for(self, memory, path):
        """The folder of the SSD tier of a node with this much memory; None = no tier. OffloadError."""
        if memory == 0:
            log.warning("setup: enable_ssd_offload: a process that gives no memory keeps nothing on an SSD; mooncake_client --enable_offload does")
            return None
        _offload.tell_unused()
        return _offload.take(path, memory)

    def _join(self, memory, how, port=0, folder=None):
        """Opens a handle, with a node if memory is above 0, at the port if it is not 0: (raw, "host:port", 0 or a code). folder:
        of the node's SSD tier; it also has the node's name."""
        (host, _), transports, master, tenant = how
        for turn in range(_SETUP_TRIES):
            try:
                at = port or (_setup.free_port(host, os.getpid() + 97 * turn) if memory else 0)
            except _setup.HostError as e:
                log.error("setup: %s", e)
                return None, "", _FAILED
            raw = _kvpool.Pool(is_dropin=True)
            name = _setup.join_host(host, at)
            err, detail = raw.open(master, _setup.node_name(folder.name, host) if folder else name, None, transports, 0, 0, memory, name if memory else None,
                                   _setup.chunk_bytes(memory), tenant, 0, _setup.master_wait_ms(), (folder.device,) if folder else (), 0,
                                   _setup.cluster())
            if err == 0:
                raw.on_invalid(functools.partial(_tell_invalid, self._teller))
                return raw, name, 0
            rdma = _setup.PROTOCOLS["rdma"]
            if transports == rdma and _setup.may_do_without_rdma(log, "KVPOOL_TRANSPORTS", rdma, detail):
                transports = _setup.PROTOCOLS["tcp"]
                continue
            if port or not memory or "address already in use" not in detail.lower():
                break
        log.error("setup: %s", detail or f"code {err}")
        return None, "", err

    def init_all(self, protocol: str, device_name: str, mount_segment_size: int) -> int:
        """setup() at 127.0.0.1, with the master $MOONCAKE_MASTER, else 127.0.0.1:50051."""
        master = os.environ.get("MOONCAKE_MASTER", "127.0.0.1:50051")
        return self.setup("127.0.0.1", "P2PHANDSHAKE", mount_segment_size, 0, protocol, device_name, master)

    def close(self) -> int:
        """Ends the session, and the embedded node with its objects. A setup() under way has no effect, and is not waited for.
        Returns 0, also if the session has ended already. Another setup() may follow."""
        with self._lock:
            self._opening = self._session = None
            raw, joined, memory, folder = self._raw, self._joined, (self._gets, self._puts, self._mem_pool), self._folder
            self._folder = None
            self._joined, self._gets, self._puts, self._mem_pool, self._known_nodes = {}, {}, {}, None, (0.0, [])
        for node in list(joined.values()):
            node.close()
        if raw is not None:
            raw.close()
        if folder is not None:
            folder.close()
        del memory  # of sessions and the pool
        return 0

    def get_hostname(self) -> str:
        return self._hostname

    def health_check(self) -> int:
        """Returns 0: healthy; 1: not set up, or closed; 2: the master is not reached."""
        if self._raw is None:
            return 1
        found = self._raw.exists("kvpool/health", 0)
        return 0 if found >= 0 else 2 if found == _UNREACHABLE else 1

    def _invalid(self, why=""):
        """Returns -600, and logs the error, because -600 stands for many errors. why: the cause, where it is known."""
        name = _public_caller()
        self._teller.error(("refused", name), "%s is refused with %d: %s", name, _INVALID, why or ("the store is not set up, or was closed"
                           if self._raw is None else "the arguments cannot be: lists are of one length, values are not empty, sizes are above 0, and "
                           "of a ReplicateConfig replica_num is 1 or more (copies in NoF memory alone are none), group_ids has an id for each key, and "
                           "soft_pin_ttl_ms is that of an enabled soft pin"))
        return _INVALID

    # ---- memory
    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """Returns 0 also for memory of alloc_from_mem_pool(), which is registered already."""
        if self._is_of_mem_pool(buffer_ptr, size):
            return 0
        return self._raw.register(buffer_ptr, size) if self._raw is not None else self._invalid()

    def unregister_buffer(self, buffer_ptr: int) -> int:
        if self._is_of_mem_pool(buffer_ptr, 1):
            return 0
        return self._raw.unregister(buffer_ptr) if self._raw is not None else self._invalid()

    def _is_of_mem_pool(self, address, size):
        pool = self._mem_pool
        return pool is not None and pool.holds(address, size)

    # ---- bytes by copy
    def put(self, key: Key, value: Memory, config: Optional[ReplicateConfig] = None) -> int:
        return self._put_value(key, value, 0, config)

    def upsert(self, key: Key, value: Memory, config: Optional[ReplicateConfig] = None) -> int:
        return self._put_value(key, value, _kvpool.UPSERT, config)

    def put_parts(self, key: Key, *parts: Memory, config: Optional[ReplicateConfig] = None) -> int:
        """Puts the parts, objects with the buffer protocol, as one object. If all are empty, nothing is put and 0 returned."""
        return self._put_parts(key, parts, 0, config)

    def upsert_parts(self, key: Key, *parts: Memory, config: Optional[ReplicateConfig] = None) -> int:
        return self._put_parts(key, parts, _kvpool.UPSERT, config)

    def put_batch(self, keys: Sequence[Key], values: Sequence[Memory], config: Optional[ReplicateConfig] = None) -> int:
        """Returns 0 or the first code; the other values are put. If a value is empty or no memory, none is put."""
        return self._put_values(keys, values, 0, config)

    def upsert_batch(self, keys: Sequence[Key], values: Sequence[Memory], config: Optional[ReplicateConfig] = None) -> int:
        return self._put_values(keys, values, _kvpool.UPSERT, config)

    def _put_value(self, key, value, flags, config):
        return self._put_values([key], [value], flags, config)

    def _put_parts(self, key, parts, flags, config):
        terms = self._put_terms(config, 1, flags)
        return self._put_one(key, parts, terms[0], groups_of(terms, 1)[0]) if self._raw is not None and terms is not None else self._invalid()

    def _put_one(self, key, parts, options, group):
        if group is None or not any(_kvpool.memory_of(part, False)[1] for part in parts):
            return self._raw.put_parts(key, parts, 0, *options)
        return _pieces.put_grouped(self._raw, self._staged, key, parts, options, group)

    def _put_values(self, keys, values, flags, config):
        terms = self._put_terms(config, len(list_of(keys)), flags)
        if self._raw is None or terms is None or not are_alike(keys, values) or not are_some(values):
            return self._invalid()
        results = [self._raw.put(key, value, 0, *terms[0]) if group is None else self._put_one(key, (value,), terms[0], group)
                   for key, value, group in zip(keys, values, groups_of(terms, len(keys)))]
        return next((r for r in results if r != 0), 0)

    def get(self, key: Key) -> bytes:
        """Returns the bytes, or b"" after any error."""
        if self._raw is None:
            return b""
        value = self._raw.get(key, 0, 0)
        return value if type(value) is bytes else b""

    def get_batch(self, keys: Sequence[Key]) -> List[bytes]:
        if self._raw is None or len(list_of(keys)) == 0:
            return [b""] * len(keys)
        found = {}
        for window in _staging.read(self._raw, keys):
            found.update((key, _kvpool.read_bytes(*place[:2]) if type(place) is tuple else b"") for key, place in window.items())
        return [found[key] for key in keys]

    def get_buffer(self, key: Key) -> Optional[BufferHandle]:
        """Returns a BufferHandle or None."""
        value = self.get(key)
        return BufferHandle(_kvpool.memory_of(value, False)[0], len(value), value) if value else None

    def batch_get_buffer(self, keys: Sequence[Key]) -> List[Optional[BufferHandle]]:
        """Returns a BufferHandle or None for each key. The memory of one batch is freed together."""
        if self._raw is None or len(list_of(keys)) == 0:
            return [None] * len(keys)
        found = {}
        for window in _staging.read(self._raw, keys):
            found.update(window)
        return [BufferHandle(*found[key]) if type(found[key]) is tuple else None for key in keys]

    # ---- registered memory
    def put_from(self, key: Key, buffer_ptr: int, size: int, config: Optional[ReplicateConfig] = None) -> int:
        """If size is 0, nothing is put and 0 returned. A batch refuses a size of 0."""
        return 0 if self._is_nothing(key, size, config) else self.batch_put_from([key], [buffer_ptr], [size], config)[0]

    def upsert_from(self, key: Key, buffer_ptr: int, size: int, config: Optional[ReplicateConfig] = None) -> int:
        return 0 if self._is_nothing(key, size, config) else self.batch_upsert_from([key], [buffer_ptr], [size], config)[0]

    def put_from_with_metadata(self, key: Key, buffer_ptr: int, metadata_buffer_ptr: int, size: int, metadata_size: int,
                               config: Optional[ReplicateConfig] = None) -> int:
        """Puts the metadata and then the data as one object."""
        if self._is_nothing(key, size, config) and self._is_nothing(key, metadata_size, config):
            return 0
        return self.batch_put_from_multi_buffers([key], [[metadata_buffer_ptr, buffer_ptr]], [[metadata_size, size]], config)[0]

    def _is_nothing(self, key, size, config):
        """Returns whether there are no bytes to put. TypeError for a key or config of a wrong type."""
        if self._raw is None or type(size) is not int or size != 0:
            return False
        put_terms(config, 1)
        is_key(key)
        return True

    def batch_put_from(self, keys: Sequence[Key], buffer_ptrs: Sequence[int], sizes: Sequence[int],
                       config: Optional[ReplicateConfig] = None) -> List[int]:
        return self._put_memory(keys, buffer_ptrs, sizes, 0, config)

    def batch_upsert_from(self, keys: Sequence[Key], buffer_ptrs: Sequence[int], sizes: Sequence[int],
                          config: Optional[ReplicateConfig] = None) -> List[int]:
        return self._put_memory(keys, buffer_ptrs, sizes, _kvpool.UPSERT, config)

    def batch_put_from_multi_buffers(self, keys: Sequence[Key], all_buffer_ptrs: Sequence[Sequence[int]],
                                     all_sizes: Sequence[Sequence[int]], config: Optional[ReplicateConfig] = None) -> List[int]:
        return self._put_memory(keys, all_buffer_ptrs, all_sizes, 0, config)

    def _put_memory(self, keys, ptrs, sizes, flags, config):
        terms = self._put_terms(config, len(list_of(keys)), flags)
        if self._raw is None or terms is None or not are_buffers(keys, ptrs, sizes):
            return [self._invalid()] * len(keys)
        options, groups = terms
        return _pieces.put(self._raw, self._staged, keys, ptrs, sizes, options, groups)

    def get_into(self, key: Key, buffer_ptr: int, size: int) -> int:
        return self.batch_get_into([key], [buffer_ptr], [size])[0]

    def batch_get_into(self, keys: Sequence[Key], buffer_ptrs: Sequence[int], sizes: Sequence[int]) -> List[int]:
        if self._raw is None or not are_buffers(keys, buffer_ptrs, sizes):
            return [self._invalid()] * len(keys)
        return _pieces.get(self._raw, self._staged, keys, buffer_ptrs, sizes)

    def batch_get_into_multi_buffers(self, keys: Sequence[Key], all_buffer_ptrs: Sequence[Sequence[int]],
                                     all_sizes: Sequence[Sequence[int]], prefer_alloc_in_same_node: bool = False) -> List[int]:
        return self.batch_get_into(keys, all_buffer_ptrs, all_sizes)

    # ---- presence
    def is_exist(self, key: Key) -> int:
        """Returns 1, 0, or a code. A present object is kept for a while."""
        return self._raw.exists(key, 0) if self._raw is not None else self._invalid()

    def batch_is_exist(self, keys: Sequence[Key]) -> List[int]:
        return self._raw.batch_is_exist(keys, 0, 0) if self._raw is not None else [self._invalid()] * len(keys)

    def get_size(self, key: Key) -> int:
        return self._raw.size(key, 0) if self._raw is not None else self._invalid()

    # ---- removal
    def remove(self, key: Key, force: bool = False) -> int:
        return self._raw.remove(key, 0, _remove_flags(force)) if self._raw is not None else self._invalid()

    def batch_remove(self, keys: Sequence[Key], force: bool = False) -> List[int]:
        if self._raw is None:
            return [self._invalid()] * len(list_of(keys))
        return self._raw.batch_remove(list_of(keys), 0, _remove_flags(force), 0)

    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> int:
        """Returns the number of removed objects, or a code."""
        if not isinstance(regex_pattern, str):
            raise TypeError(f"a pattern is a str, not {type(regex_pattern).__name__}")
        return self._remove_many(regex_pattern, force)

    def remove_all(self, force: bool = False) -> int:
        return self._remove_many(None, force)

    def _remove_many(self, pattern, force):
        if self._raw is None:
            return self._invalid()
        answer = self._raw.remove_many(pattern, 0, _remove_flags(force))
        return answer if type(answer) is int else answer[0]


def _public_caller():
    """The name of this class's method under way."""
    frame = sys._getframe(2)
    while frame.f_code.co_name.startswith(("_", "<")) and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_name


def _tell_invalid(teller, name, text):
    """Logs the error behind -600, for each call and error separately."""
    call = _public_caller()
    teller.error(("invalid", call, name), "%s is refused with %d: %s (%s)", call, _INVALID, text, name)


def _remove_flags(force):
    return _kvpool.FORCE if force else _kvpool.HEED_PROBES


# ---- for programs that store tensors themselves
_serialize_tensor = serialize
_deserialize_tensor = deserialize


def _tensor_metadata_size() -> int:
    return _tensor_format.SIZE
