# SPDX-License-Identifier: Apache-2.0
"""Drain jobs of the reference's admin API: a job begins the drain of nodes, and its state is what the pool says of these nodes."""
import json
import secrets
import threading
import time

from kvpool import errors

_JOBS_MAX = 1000  # a new job replaces the oldest
_BEGIN, _END = 1, 2  # KVPOOL_DRAIN_* of kvpool.h
_STATUSES = ("CREATED", "PLANNING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELED")
BAD_REQUEST, NO_SEGMENT, _NO_JOB, _ENDED = (400, -600), (404, -101), (404, -1402), (500, -1010)


class RefusedError(Exception):
    """A request that has no effect: the text, after the HTTP status and the reference's error code."""

    def __init__(self, kind, text):
        super().__init__(text)
        self.status, self.code = kind


def _now_ms():
    return int(time.time() * 1000)


def _segments_of(body):
    """The names in the body of a request. RefusedError."""
    try:
        asked = json.loads(body)
        segments, targets = asked.get("segments"), asked.get("target_segments")
    except (ValueError, AttributeError, RecursionError) as e:
        raise RefusedError(BAD_REQUEST, f"Invalid JSON body: {e}") from None
    if not isinstance(segments, list) or not segments or not all(isinstance(name, str) and name for name in segments):
        raise RefusedError(BAD_REQUEST, 'Invalid JSON body: "segments" is a list of one name or more')
    if targets:
        raise RefusedError(BAD_REQUEST, "the pool chooses the targets of each object: leave target_segments out")
    return list(dict.fromkeys(segments))


class _Job:
    def __init__(self, segments, nodes):
        self.id = f"{secrets.randbits(64)}-{secrets.randbits(64)}"
        self.segments, self.nodes = segments, nodes
        self.created_ms = self.changed_ms = _now_ms()
        self.status, self.message, self.figures = "RUNNING", "", (0, 0, 0, 0)

    def end(self, status, message=""):
        self.status, self.message, self.changed_ms = status, message, _now_ms()

    def look(self, known):
        """Takes the state from what the pool says of its nodes. A job that has ended keeps its state."""
        if self.status != "RUNNING":
            return
        found = [known[node] for node in self.nodes if node in known]
        if len(found) < len(self.nodes) or any(node["drain"] == "none" for node in found):
            self.end("FAILED", "a node left the pool, or its drain was ended by another call")
            return
        figures = (sum(node["moved_objects"] for node in found), sum(node["stuck_objects"] for node in found),
                   sum(node["objects"] + node["left_ssd_objects"] for node in found), sum(node["moved_bytes"] for node in found))
        if figures != self.figures:
            self.figures, self.changed_ms = figures, _now_ms()
        self.message = "; ".join(f"{node['node']}: {node['waits_for']}" for node in found if node["waits_for"])
        if all(node["drain"] == "done" for node in found):
            self.end("SUCCEEDED")

    def told(self):
        moved, stuck, left, moved_bytes = self.figures
        return {"success": True, "job_id": self.id, "type": 0, "type_name": "DRAIN", "status": _STATUSES.index(self.status),
                "status_name": self.status, "created_at_ms_epoch": self.created_ms, "last_updated_at_ms_epoch": self.changed_ms,
                "segments": self.segments, "succeeded_units": moved, "failed_units": 0, "blocked_units": stuck,
                "active_units": max(left - stuck, 0), "migrated_bytes": moved_bytes, "message": self.message, "error_code": 0,
                "error_message": ""}


class DrainJobs:
    """The jobs that this process was asked for. Any thread. drain: drain(node, BEGIN or END) -> 0 or an error number; nodes: nodes() -> the
    pool's nodes as kvpool_stat has them. Both raise kvpool.Error."""

    def __init__(self, drain, nodes):
        self._drain, self._nodes = drain, nodes
        self._jobs, self._lock = {}, threading.Lock()

    def _known(self):
        return {node["node"]: node for node in self._nodes()}

    def _ask(self, node, what):
        err = self._drain(node, what)
        if err:
            raise errors.error(err)

    def create(self, body):
        """Begins the drains of the body's segments, or of none. Returns the answer. RefusedError, kvpool.Error."""
        segments, known = _segments_of(body), self._known()
        by_name = {**{node["addr"]: name for name, node in known.items()}, **{name: name for name in known}}
        missing = [name for name in segments if name not in by_name]
        if missing:
            raise RefusedError(NO_SEGMENT, f"SEGMENT_NOT_FOUND: {missing[0][:100]}")
        job, begun = _Job(segments, [by_name[name] for name in segments]), []
        try:
            for node in job.nodes:
                self._ask(node, _BEGIN)
                begun.append(node)
        except errors.Error:
            for node in begun:
                if known[node]["drain"] == "none":
                    self._drain(node, _END)
            raise
        with self._lock:
            while len(self._jobs) >= _JOBS_MAX:
                del self._jobs[next(iter(self._jobs))]
            self._jobs[job.id] = job
        return {"success": True, "job_id": job.id, "status": "CREATED", "error_code": 0, "error_message": ""}

    def _find(self, job_id):
        if not job_id:
            raise RefusedError(BAD_REQUEST, "Missing or invalid job_id")
        job = self._jobs.get(job_id)
        if job is None:
            raise RefusedError(_NO_JOB, "JOB_NOT_FOUND: this mooncake_master began no such job")
        return job

    def query(self, job_id):
        job = self._find(job_id)
        known = self._known()
        with self._lock:
            job.look(known)
            return job.told()

    def cancel(self, job_id):
        job = self._find(job_id)
        known = self._known()
        with self._lock:
            job.look(known)
            if job.status not in ("RUNNING", "CANCELED"):
                raise RefusedError(_ENDED, f"UNAVAILABLE_IN_CURRENT_STATUS: the job is {job.status}")
            for node in job.nodes if job.status == "RUNNING" else ():
                self._ask(node, _END)
            job.end("CANCELED")
        return {"success": True, "job_id": job_id, "status": "CANCELED", "error_code": 0, "error_message": ""}
