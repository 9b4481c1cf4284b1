# SPDX-License-Identifier: Apache-2.0
"""mooncake.store over a kvpool: the names, signatures and return codes that connectors call.

Numbers are 0 or more where all is well, else a code: -200 no space, -600 invalid (not set up, closed, memory that is not
registered, a buffer that is too small), -704 not there, -706 held, -900 not reached in time. Bytes are b"" for what is not there.
"""
import json
import logging
import os

from kvpool import _kvpool

from . import _setup
from ._types import (Descriptor, MemoryDescriptor, ObjectDataType, ReplicaDescriptor, ReplicaStatus, ReplicateConfig,
                     SoftPinAction)

__all__ = ["BufferHandle", "Descriptor", "MemoryDescriptor", "MooncakeDistributedStore", "ObjectDataType", "ReplicaDescriptor",
           "ReplicaStatus", "ReplicateConfig", "SoftPinAction"]

log = logging.getLogger("mooncake.store")

_INVALID = -600
_UNREACHABLE = -900
_SETUP_TRIES = 20  # another process may take the port that was free


class BufferHandle(bytearray):
    """The bytes of an object, in memory of their own: len(), the buffer protocol, ptr and size."""

    def ptr(self):
        return _kvpool.memory_of(self, True)[0]

    def size(self):
        return len(self)


def _flags(config):
    flags = _kvpool.PIN_HARD if config.with_hard_pin else 0
    return flags | (_kvpool.PIN_SOFT if config.soft_pin_action == SoftPinAction.ENABLE else 0)


class MooncakeDistributedStore:
    """A client of a pool, and with setup(global_segment_size > 0) a node of it, whose work never waits for the interpreter."""

    def __init__(self):
        self._raw = None
        self._hostname = ""

    # ---- life
    def setup(self, local_hostname, metadata_server=None, global_segment_size=None, local_buffer_size=None, protocol=None,
              rdma_devices=None, master_server_addr=None, engine=None, enable_ssd_offload=False, ssd_offload_path="",
              tenant_id="default", enable_client_http_server=False, client_http_port=9300):
        """Joins the pool of master_server_addr. One dict with the same names will do as well.

        A pool needs neither metadata_server nor local_buffer_size nor engine. 0, or a code.
        """
        if isinstance(local_hostname, dict):
            try:
                return self.setup(**_setup.from_dict(local_hostname))
            except ValueError as e:
                log.error("setup: %s", e)
                return _INVALID
        if None in (metadata_server, global_segment_size, local_buffer_size, protocol, rdma_devices, master_server_addr):
            raise TypeError("setup() takes local_hostname, metadata_server, global_segment_size, local_buffer_size, protocol, "
                            "rdma_devices, master_server_addr, or one dict")
        if self._raw is not None:
            log.error("setup: done before")
            return _INVALID
        if rdma_devices:
            os.environ.setdefault("KVPOOL_RDMA_DEVICE", rdma_devices)
        return self._open(local_hostname, _setup.parse_size(global_segment_size), protocol, master_server_addr, tenant_id)

    def _open(self, local_hostname, memory, protocol, master, tenant_id):
        host, port = _setup.split_host(local_hostname or "127.0.0.1")
        for turn in range(_SETUP_TRIES):
            at = port or (_setup.free_port(host, os.getpid() + 97 * turn) if memory else 0)
            raw = _kvpool.Pool(is_dropin=True)
            err, detail = raw.open(master, f"{host}:{at}", None, _setup.transports(protocol), 0, 0, memory,
                                   f"{host}:{at}" if memory else None, 0, _setup.tenant_number(tenant_id), 0)
            if err == 0:
                self._raw, self._hostname = raw, f"{host}:{at}"
                return 0
            if port or not memory or "address already in use" not in detail.lower():
                break
        log.error("setup: %s", detail or f"code {err}")
        return err

    def close(self):
        """Ends the session, and the embedded node with what it held. 0, also when it was ended before."""
        if self._raw is not None:
            self._raw.close()
        return 0

    def get_hostname(self):
        return self._hostname

    def health_check(self):
        """0: well; 1: not set up, or closed; 2: the master is not reached."""
        if self._raw is None:
            return 1
        found = self._raw.exists("kvpool/health", 1000)
        return 0 if found >= 0 else 2 if found == _UNREACHABLE else 1

    # ---- memory
    def register_buffer(self, buffer_ptr, size):
        return self._raw.register(buffer_ptr, size) if self._raw is not None else _INVALID

    def unregister_buffer(self, buffer_ptr):
        return self._raw.unregister(buffer_ptr) if self._raw is not None else _INVALID

    # ---- bytes by copy
    def put(self, key, value, config=None):
        return self._put_value(key, value, 0, config)

    def upsert(self, key, value, config=None):
        return self._put_value(key, value, _kvpool.UPSERT, config)

    def put_parts(self, key, *parts, config=None):
        return self._put_value(key, b"".join(parts), 0, config)

    def upsert_parts(self, key, *parts, config=None):
        return self._put_value(key, b"".join(parts), _kvpool.UPSERT, config)

    def put_batch(self, keys, values, config=None):
        return self._put_values(keys, values, self.put, config)

    def upsert_batch(self, keys, values, config=None):
        return self._put_values(keys, values, self.upsert, config)

    def _put_value(self, key, value, flags, config):
        if self._raw is None:
            return _INVALID
        config = config or _DEFAULT
        return self._raw.put(key, value, 0, _flags(config) | flags, config.replica_num)

    def _put_values(self, keys, values, put, config):
        if len(keys) != len(values):
            return _INVALID
        results = [put(k, v, config) for k, v in zip(keys, values)]
        return next((r for r in results if r != 0), 0)

    def get(self, key):
        """The bytes, or b"" where there are none, whatever the reason."""
        if self._raw is None:
            return b""
        value = self._raw.get(key, 0, 0)
        return value if type(value) is bytes else b""

    def get_batch(self, keys):
        return [self.get(key) for key in keys]

    def get_buffer(self, key):
        """A BufferHandle, or None."""
        value = self.get(key)
        return BufferHandle(value) if value else None

    def batch_get_buffer(self, keys):
        return [self.get_buffer(key) for key in keys]

    # ---- registered memory
    def put_from(self, key, buffer_ptr, size, config=None):
        return self.batch_put_from([key], [buffer_ptr], [size], config)[0]

    def upsert_from(self, key, buffer_ptr, size, config=None):
        return self.batch_upsert_from([key], [buffer_ptr], [size], config)[0]

    def put_from_with_metadata(self, key, buffer_ptr, metadata_buffer_ptr, size, metadata_size, config=None):
        """The metadata lies before the data, in one object."""
        return self.batch_put_from_multi_buffers([key], [[metadata_buffer_ptr, buffer_ptr]], [[metadata_size, size]], config)[0]

    def batch_put_from(self, keys, buffer_ptrs, sizes, config=None):
        return self._put_memory(keys, buffer_ptrs, sizes, 0, config)

    def batch_upsert_from(self, keys, buffer_ptrs, sizes, config=None):
        return self._put_memory(keys, buffer_ptrs, sizes, _kvpool.UPSERT, config)

    def batch_put_from_multi_buffers(self, keys, all_buffer_ptrs, all_sizes, config=None):
        return self._put_memory(keys, all_buffer_ptrs, all_sizes, 0, config)

    def _put_memory(self, keys, ptrs, sizes, flags, config):
        config = config or _DEFAULT
        groups = config.group_ids
        if self._raw is None or not len(keys) == len(ptrs) == len(sizes) or (groups is not None and len(groups) != len(keys)):
            return [_INVALID] * len(keys)
        return self._raw.batch_put(keys, ptrs, sizes, 0, _flags(config) | flags, config.replica_num, groups)

    def get_into(self, key, buffer_ptr, size):
        return self.batch_get_into([key], [buffer_ptr], [size])[0]

    def batch_get_into(self, keys, buffer_ptrs, sizes):
        if self._raw is None or not len(keys) == len(buffer_ptrs) == len(sizes):
            return [_INVALID] * len(keys)
        return self._raw.batch_get(keys, buffer_ptrs, sizes, 0, 0)

    def batch_get_into_multi_buffers(self, keys, all_buffer_ptrs, all_sizes, prefer_alloc_in_same_node=False):
        return self.batch_get_into(keys, all_buffer_ptrs, all_sizes)

    # ---- what is there
    def is_exist(self, key):
        """1, 0, or a code. What is there is kept for a while."""
        return self._raw.exists(key, 0) if self._raw is not None else _INVALID

    def batch_is_exist(self, keys):
        return self._raw.batch_is_exist(keys, 0, 0) if self._raw is not None else [_INVALID] * len(keys)

    def get_size(self, key):
        return self._raw.size(key, 0) if self._raw is not None else _INVALID

    def get_replica_desc(self, key):
        """A ReplicaDescriptor for each copy; [] where there is none."""
        return self.batch_get_replica_desc([key]).get(key, [])

    def batch_get_replica_desc(self, keys):
        """key -> list of ReplicaDescriptor, of those that are there."""
        if self._raw is None:
            return {}
        found = {k: place for k, place in zip(keys, self._raw.batch_locate(keys, 0, 0)) if type(place) is tuple}
        nodes = self._nodes() if found else {}
        return {k: [ReplicaDescriptor(size, nodes.get(s, "")) for s in segments] for k, (size, segments) in found.items()}

    def _nodes(self):
        """segment_id -> "host:port" of its node."""
        text = self._raw.stat(0)
        return {s["segment_id"]: s["addr"] for s in json.loads(text)["segments"]} if type(text) is str else {}

    # ---- removal
    def remove(self, key, force=False):
        return self._raw.remove(key, 0, _remove_flags(force)) if self._raw is not None else _INVALID

    def batch_remove(self, keys, force=False):
        return [self.remove(key, force) for key in keys]

    def remove_by_regex(self, regex_pattern, force=False):
        """How many went, or a code."""
        return self._remove_many(regex_pattern, force)

    def remove_all(self, force=False):
        return self._remove_many(None, force)

    def _remove_many(self, pattern, force):
        if self._raw is None:
            return _INVALID
        answer = self._raw.remove_many(pattern, 0, _remove_flags(force))
        return answer if type(answer) is int else answer[0]


def _remove_flags(force):
    return _kvpool.FORCE if force else _kvpool.HEED_PROBES


_DEFAULT = ReplicateConfig()
