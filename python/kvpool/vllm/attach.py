# SPDX-License-Identifier: Apache-2.0
"""The way to the pool: an engine starts without a master too, and has no cache until one answers. Nothing here knows vLLM.

Generations. The fingerprint object of a namespace has a number that rises with each reset. An engine's weights belong to
the generation that it found, plus one for each reset of its own. It uses the namespace only while the stored generation is
its own. So of N engines that are reset one bumps, and the others, once they are reset too, find their generation there; an
engine that is behind neither reads nor stores. The epoch, which each message carries, holds this at the master.
"""
from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, Optional, Tuple

from .. import errors
from .._pool import Pool
from .names import FINGERPRINT_KEY, differences
from .settings import Settings

log = logging.getLogger(__name__)

_FIRST_S = 1.0  # of the first attempt, which the engine's start waits for
_AGAIN_S = 1.0  # between attempts, and between looks at a namespace that is not this engine's
_CALL_S = 2.0
_BUMP_S = 0.3
_MISSING_S = 3.0  # after which a fingerprint that is missing is lost
_TASKS_MAX = 64
_ENDS = ("ready", "mismatch", "failed")  # states in which nothing is tried
_BYTES_MAX = 1 << 20  # of a fingerprint


class Mismatch(ValueError):
    """The namespace has blocks of another engine."""


class Attachment:
    """One handle of the pool. fields: the fingerprint, or None for a handle that only moves bytes (a worker's).
    on_ready(pool, epoch) and on_lost() are called by the attachment's thread, or by start() for the first attempt."""

    def __init__(self, settings: Settings, name: str, fields: Optional[Dict[str, Any]], on_ready: Callable[[Pool, int], None],
                 on_lost: Callable[[], None] = lambda: None, memory: Any = 0) -> None:
        self._settings, self._name, self._fields, self._memory = settings, name, fields, memory
        self._on_ready, self._on_lost = on_ready, on_lost
        self.pool: Optional[Pool] = None
        self.state = "away"  # "away", "ready", "behind" (another generation), "mismatch", "failed" (a fault of ours)
        self._generation: Optional[int] = None
        self._is_new = False  # the namespace has not been advanced to the generation
        self._epoch = -1
        self._missing_s = 0.0  # when the fingerprint was first missing
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._tasks: Deque[Callable[[], Any]] = deque()
        self._is_closing = False
        self._has_warned = False
        self._thread = threading.Thread(target=self._run, name="kvpool-attach", daemon=True)

    def start(self) -> None:
        """Tries once. Raises Mismatch for a namespace of another engine, if the settings say so; further attempts are made by
        a thread, which only switches the cache off for this."""
        with self._lock:
            self._try(_FIRST_S)
        if self.state == "mismatch" and self._settings.on_mismatch == "refuse":
            self.close()
            raise Mismatch(self._why)
        self._thread.start()

    def close(self) -> None:
        self._is_closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(_CALL_S)
        with self._lock:
            if self.pool is not None:
                self.pool.close()

    def look(self) -> None:
        """The master said that the namespace has another epoch: the cache is off until the thread has looked."""
        self.state = "behind" if self.state == "ready" else self.state
        self._wake.set()

    def later(self, task: Callable[[], Any]) -> None:
        """The thread calls task, which may wait for the master. While the pool is away tasks are dropped."""
        if self.state == "ready" and len(self._tasks) < _TASKS_MAX:
            self._tasks.append(task)
            self._wake.set()

    def _run(self) -> None:
        while not self._is_closing:
            self._wake.wait(None if self.state in _ENDS else _AGAIN_S)
            self._wake.clear()
            try:
                while self._tasks and not self._is_closing:
                    self._tasks.popleft()()
                if self.state not in _ENDS and not self._is_closing:
                    with self._lock:
                        self._try(_CALL_S)
            except Exception as e:  # the engine goes on without the pool
                self._warn(e)

    # ---- attempts
    def _try(self, seconds: float) -> None:
        s = self._settings
        try:
            if self.pool is None:
                self.pool = Pool(s.master, name=self._name, transports=s.transports, deadline=seconds, verify=s.verify,
                                 memory=self._memory, tenant=s.namespace, master_wait=seconds)
            if self._fields is not None and not self._settle():
                return
        except (errors.Error, OSError) as e:
            self._warn(e)
            return
        self.state = "ready"
        if self._has_warned:
            log.warning("the pool is reached, and its cache is used")
        self._has_warned = False
        self._on_ready(self.pool, self._epoch)

    def _warn(self, why: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            at = self._settings.master or os.environ.get("KVPOOL_MASTER") or "127.0.0.1:50051"
            log.warning("no cache until the pool can be used (master %s): %s", at, why)

    def _read(self) -> Tuple[int, Optional[Dict[str, Any]], int]:
        """(epoch, the stored fields or None, their generation). Fields of another form are {}."""
        assert self.pool is not None
        with self.pool.lookup([FINGERPRINT_KEY], deadline=_CALL_S) as found:
            epoch = found.epoch
        try:
            size = self.pool.size(FINGERPRINT_KEY, deadline=_CALL_S)
            stored = self.pool.get(FINGERPRINT_KEY, epoch=epoch, deadline=_CALL_S) if size <= _BYTES_MAX else b""
        except errors.NotFoundError:
            return epoch, None, 0
        try:
            value = json.loads(stored)
            fields, generation = value["fields"], value["generation"]
        except (ValueError, KeyError, TypeError, RecursionError):
            fields, generation = {}, 0
        return epoch, fields if isinstance(fields, dict) else {}, generation if type(generation) is int else 0

    def _bump(self, epoch: int) -> int:
        """Begins a new epoch, unless another engine was faster. A bump holds at once; its answer, which comes when nobody reads
        older objects any more, is not waited for. Returns the epoch."""
        assert self.pool is not None
        try:
            return self.pool.bump(epoch=epoch, deadline=_BUMP_S)
        except errors.Error as e:
            now = self._read()[0] if e.name in ("STALE", "DEADLINE") else epoch
            if now == epoch:
                raise
            return now

    def _put(self, epoch: int) -> None:
        assert self.pool is not None and self._fields is not None
        value = json.dumps({"fields": self._fields, "generation": self._generation}, sort_keys=True, indent=1).encode()
        self.pool.put(FINGERPRINT_KEY, value, pin="hard", replicas=2, epoch=epoch, deadline=_CALL_S)

    def _settle(self) -> bool:
        """Returns whether the namespace is this engine's, of its generation. A namespace without a fingerprint may have blocks
        of anybody, so it is bumped before it becomes this engine's."""
        epoch, stored, generation = self._read()
        if self._is_new and self._generation is None:
            self._generation = generation + 1  # new weights before the first contact
        is_strange = stored is None and epoch != self._epoch  # blocks of this epoch may be anybody's
        if is_strange and self._generation is not None and not self._is_new:
            self._missing_s = self._missing_s or time.monotonic()
            if time.monotonic() - self._missing_s < _MISSING_S:
                self.state = "behind"  # another engine has bumped, and its fingerprint is on its way
                return False
        self._missing_s = 0.0
        is_older = self._is_new and generation < (self._generation or 0)
        if stored is None or is_older:
            if is_strange or is_older:
                epoch = self._bump(epoch)
            self._generation = self._generation or 0
            self._put(epoch)
            epoch, stored, generation = self._read()
        self._is_new = False
        found = differences(self._fields or {}, stored or {})
        if found:
            self._why = (f"namespace {self._settings.namespace!r} has blocks of another engine (choose another namespace, or bump "
                         f"it): {found}")
            self.state = "mismatch"
            log.error("the cache is off: %s", self._why)
            return False
        self._generation = generation if self._generation is None else self._generation
        self.state = "ready" if generation == self._generation else "behind"
        if self.state == "behind":
            self._warn(ValueError(f"the namespace was reset {generation} times, and this engine {self._generation} times: reset every "
                                  "engine of a namespace equally often, or restart this one"))
        self._epoch = epoch if self.state == "ready" else self._epoch
        return self.state == "ready"

    _why = ""

    # ---- reset
    def reset(self) -> None:
        """The engine has new weights. Without a master the cache is off until the thread has reached one and advanced the
        namespace, so old blocks are not read in any case."""
        with self._lock:
            self._on_lost()
            if self.state == "mismatch":
                return
            self._generation, self._is_new = None if self._generation is None else self._generation + 1, True
            self.state = "away"
            self._try(_CALL_S)
        self._wake.set()
