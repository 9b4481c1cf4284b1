# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
"""Places of copies, and memory that a process gives to the pool in addition to setup()."""
from __future__ import annotations

import json
import mmap
import os
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from kvpool import _kvpool
from kvpool._typing import Key

from ._arguments import REPLICAS_MAX, list_of, put_terms
from ._telling import shown_key
from ._types import QueryTaskResponse, ReplicaDescriptor, ReplicateConfig, TaskStatus, TaskType

_Task = Tuple[Tuple[int, int], int]
_INTERNAL = -1
_NO_TASK = -1400
_NO_OBJECT = -704
_NO_ID = (0, 0)
_KNOWN_S = 1.0  # what is known of nodes is asked for again after that
_ASK_MS = 1000
_FULL = 0.9  # of a node's memory


class Segments:
    """A part of MooncakeDistributedStore."""

    # ---- copies
    def get_replica_desc(self, key: Key) -> List[ReplicaDescriptor]:
        """Returns a ReplicaDescriptor for each copy, a copy on an SSD last; [] for a missing key."""
        return self.batch_get_replica_desc([key]).get(key, [])

    def batch_get_replica_desc(self, keys: Sequence[Key]) -> Dict[Key, List[ReplicaDescriptor]]:
        """Returns key -> list of ReplicaDescriptor, for present keys."""
        found = self._places(keys)
        nodes = self._nodes() if found else {}
        return {k: [ReplicaDescriptor(size, nodes.get(s, "")) for s in segments] + [ReplicaDescriptor(size, "", True)] * (tier > 0)
                for k, (size, segments, tier) in found.items()}

    def batch_replica_clear(self, keys: Sequence[Key], segment_name: str = "") -> List[Key]:
        """Removes objects without readers; with a segment's "host:port" only their copies there. Returns the affected keys."""
        keys = list(self._places(keys))
        if not keys:
            return []
        at = [s for s, node in self._nodes().items() if node == segment_name][:1] if segment_name else [0]
        codes = self._raw.batch_remove(keys, 0, _kvpool.HEED_PROBES, at[0]) if at else ()
        return [key for key, code in zip(keys, codes) if code == 0]

    def create_copy_task(self, key: Key, targets: Sequence[str]) -> _Task:
        """Lets the pool copy the object to the memory of the nodes "host:port". Returns (the task's id, 0), or ((0, 0), code). A copy
        evicts nothing, so a task fails where no memory is free."""
        return self._begin_task(key, "", list(list_of(targets)))

    def create_move_task(self, key: Key, source: str, target: str) -> _Task:
        """As create_copy_task; the copy at the source is dropped when the other is there and nobody reads the object."""
        return self._begin_task(key, source, [target])

    def query_task(self, task_id: Tuple[int, int]) -> Tuple[Optional[QueryTaskResponse], int]:
        """Returns (the task's state, 0), or (None, code); -1400 for a task that is not known. The pool's leader knows its last 10,000."""
        if not isinstance(task_id, tuple) or len(task_id) != 2 or not all(isinstance(part, int) for part in task_id):
            raise TypeError("a task's id is a pair of ints")
        if self._raw is None:
            return None, self._invalid()
        number = task_id[0]
        told = self._raw.task_ask(number, 0) if 0 < number < 1 << 64 and task_id[1] == 0 else _NO_OBJECT
        if type(told) is int:
            return None, _NO_TASK if told == _NO_OBJECT else told
        state, is_move, name, text, created_ms, changed_ms = told
        task = QueryTaskResponse()
        task.id, task.type, task.status = task_id, TaskType(is_move), TaskStatus(state)
        task.created_at_ms_epoch, task.last_updated_at_ms_epoch = created_ms, changed_ms
        task.message = f"{name}: {text}" if task.status == TaskStatus.FAILED else ""
        return task, 0

    def _begin_task(self, key, source, targets):
        if self._raw is None or not targets:
            return _NO_ID, self._invalid()
        place = self._raw.batch_locate([key], 0, 0)[0]
        if type(place) is int:
            return _NO_ID, place
        segments = {node: s for s, node in self._nodes().items()}
        wanted = [segments.get(name) for name in ([source] if source else []) + targets]
        why = ""
        if None in wanted:
            why = "no node of the pool has one of these addresses: " + ", ".join(([source] if source else []) + targets)
        elif source and segments[source] not in place[1]:
            why = f"the object has no copy at the source {source}"
        elif len(set(wanted)) < len(wanted):
            why = "the nodes have to be different"
        elif len(targets) > REPLICAS_MAX:
            why = f"an object has at most {REPLICAS_MAX} copies"
        if why:
            return _NO_ID, self._invalid(why)
        got = self._raw.task_begin(key, segments[source] if source else 0, tuple(segments[name] for name in targets), 0)
        return ((got, 0), 0) if got > 0 else (_NO_ID, got)

    def _places(self, keys):
        """key -> (length, segments, SSD tier or 0), for present keys."""
        if self._raw is None or len(list_of(keys)) == 0:
            return {}
        return {k: place for k, place in zip(keys, self._raw.batch_locate(keys, 0, 0)) if type(place) is tuple}

    def _nodes(self):
        """segment_id -> "host:port" of its node."""
        return {s["segment_id"]: s["addr"] for s in self._ask_segments(0)}

    def _ask_segments(self, deadline_ms):
        text = self._raw.stat(deadline_ms)
        return json.loads(text)["segments"] if type(text) is str else []

    def _put_terms(self, config, n, flags=0):
        """((flags, replicas, (segment_id, ...)), group ids or None) of a put, as put_terms. Copies go to several hosts if there are several."""
        terms = put_terms(config, n, flags)
        if terms is None:
            return None
        (flags, replicas), groups, names = terms
        return (flags, replicas, self._prefer(names) if names else ()), groups

    def _prefer(self, names):
        """The segment_ids of these nodes, by name or "host:port", that take puts, at most KVPOOL_COPIES_MAX. Another node is better
        than a full one, because the put would evict objects there."""
        if self._raw is None:
            return ()
        until, nodes = self._known_nodes
        if time.monotonic() > until:
            nodes = [s for s in self._ask_segments(_ASK_MS) if s["state"] == "up"]
            self._known_nodes = time.monotonic() + _KNOWN_S, nodes
        wanted = [s for name in names for s in nodes if name in (s["addr"], s["node"])]
        if any(_has_room(s) for s in nodes):
            wanted = [s for s in wanted if _has_room(s)]
        return tuple(dict.fromkeys(s["segment_id"] for s in wanted))[:REPLICAS_MAX]

    # ---- memory
    def allocate_and_mount_segment(self, size: int, protocol: str = "tcp", location: str = "") -> Dict[str, Any]:
        """Gives size more bytes to the pool, as a new node. Returns {"ret": 0 or code, "segment_ids": [its "host:port"],
        "allocated_size": bytes}."""
        if not isinstance(size, int):
            raise TypeError(f"size is an int, not {type(size).__name__}")
        session = self._session
        if session is None or isinstance(size, bool) or size <= 0:
            return {"ret": _INTERNAL, "segment_ids": [], "allocated_size": 0}
        raw, name, err = self._join(size, self._how)
        if err != 0:
            return {"ret": err, "segment_ids": [], "allocated_size": 0}
        with self._lock:
            is_open = self._session is session  # else it was closed by another thread meanwhile
            if is_open:
                self._joined[name] = raw
        if not is_open:
            raw.close()
            return {"ret": _INTERNAL, "segment_ids": [], "allocated_size": 0}
        return {"ret": 0, "segment_ids": [name], "allocated_size": size}

    def mount_segment(self, path: str, size: int, offset: int = 0, protocol: str = "tcp", location: str = "") -> Dict[str, Any]:
        """Gives as many bytes to the pool as the part of a file has. The file is not used, because a node has its own memory. As
        allocate_and_mount_segment; -1 if the file has no such part, or offset is not a multiple of a page."""
        if not isinstance(path, str):
            raise TypeError(f"path is a str, not {type(path).__name__}")
        try:
            is_part = size >= 0 and offset >= 0 and offset % mmap.PAGESIZE == 0 and offset + size <= os.stat(path).st_size
        except (OSError, ValueError):
            is_part = False
        if not is_part:
            self._teller.error("mount_segment", "mount_segment(%s): there is no file of that length", shown_key(path))
        if not is_part or self._session is None:
            return {"ret": _INTERNAL, "segment_ids": []}
        if size == 0:
            return {"ret": 0, "segment_ids": []}
        self._teller.warning("mount_given", "mount_segment(%s): a node's memory is no file: %d bytes of its own are given instead",
                             shown_key(path), size)
        given = self.allocate_and_mount_segment(size, protocol, location)
        return {"ret": given["ret"], "segment_ids": given["segment_ids"]}

    def unmount_segment(self, segment_ids: Sequence[str], grace_period_seconds: int = 0) -> int:
        """Takes back memory of allocate_and_mount_segment at once; objects that are only there are lost. 0, or -1 for an unknown id,
        and before setup()."""
        return self._leave_segments(segment_ids)

    def unmount_and_free_segment(self, segment_ids: Sequence[str], grace_period_seconds: int = 0) -> int:
        return self._leave_segments(segment_ids)

    def unmount_local_disk_segment(self, grace_period_seconds: int = 0) -> int:
        """Takes the SSD tier of this process out of the pool until close(). Objects that are only there are misses, and are found
        again by the next process with the same folder. There is no grace to wait for. 0, also without a tier; -1 before
        setup(); else a code."""
        if not isinstance(grace_period_seconds, int) or grace_period_seconds < 0:
            raise TypeError("grace_period_seconds is an int, 0 or more")
        return self._raw.unmount_ssd(0) if self._raw is not None else _INTERNAL

    def _leave_segments(self, segment_ids):
        result = 0 if self._session is not None else _INTERNAL
        for name in list_of(segment_ids):
            raw = self._joined.pop(name, None)
            if raw is not None:
                raw.close()
            else:
                result = _INTERNAL
        return result

    def get_offload_rpc_read_count(self) -> int:
        """Returns 0: objects on a disk are read by their node."""
        return 0


def _has_room(segment):
    return segment["used_bytes"] < _FULL * segment["size_bytes"]
