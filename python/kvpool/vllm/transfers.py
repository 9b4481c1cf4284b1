# SPDX-License-Identifier: Apache-2.0
"""The worker's side of the connector: threads that load and save blocks. Nothing here knows vLLM.

A load has two threads at once, which take its slices in turn. Saves have threads of their own, so no save delays a load.
Every job is reported once, whatever happens to it.
"""
from __future__ import annotations

import logging
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Set, Tuple

from .. import _kvpool
from .names import Group, Names
from .requests import Load, LoadReport, Part, Save, SaveReport

log = logging.getLogger(__name__)

_LOADERS = 4  # threads, two for each load
_SAVERS = 2
_SAVE_S = 3.0  # the end of a save, which holds blocks of the engine

_NUMBER = {name: number for name, (number, _, _) in _kvpool.errors.items()}
_NAME = {number: name for name, number in _NUMBER.items()}
_CUT = (_NUMBER["DEADLINE"], _NUMBER["CANCELLED"])
_STORED = (0, _NUMBER["ALREADY"], _NUMBER["IN_PROGRESS"])


@dataclass(frozen=True)
class Rank:
    """What one rank holds. layouts: for each group its shards, each with the addresses of its pieces (_kvpool.Job).
    replicas, replica: ranks with the same bytes, and this one's number among them, for each group."""

    stage: int
    layouts: Sequence[Sequence[Tuple[int, bytes]]]
    replicas: Sequence[int]
    replica: Sequence[int]


@dataclass
class _Loading:
    load: Load
    jobs: List[Tuple[Part, Any]]
    begun: float
    turns: int = 2  # threads that have not left
    is_over: bool = False
    error: Optional[str] = None


@dataclass
class _Results:
    """Since the engine last asked."""

    loads: Dict[int, LoadReport] = field(default_factory=dict)
    saves: Dict[int, SaveReport] = field(default_factory=dict)
    finished: Set[str] = field(default_factory=set)
    failed: Set[str] = field(default_factory=set)
    bad_blocks: Set[int] = field(default_factory=set)


class Transfers:
    """pool: an open kvpool.Pool in which the engine's cache is registered, or None: every load fails and nothing is saved."""

    def __init__(self, names: Names, groups: Sequence[Group], rank: Rank) -> None:
        self.names, self.groups, self.rank = names, groups, rank
        self.pool: Any = None
        self._lock = threading.Condition()
        self._loads: Deque[_Loading] = deque()  # a load is in it once for each of its threads, a probe once
        self._saves: Deque[Tuple[Save, Callable[[], None]]] = deque()
        self._all: Dict[int, _Loading] = {}
        self._results = _Results()
        self._is_closing = False
        self._spare: Dict[int, bytes] = {}  # size of a block: the layout of memory beside the cache
        self._threads: List[threading.Thread] = []

    def start(self) -> None:
        for target, n in ((self._run_loads, _LOADERS), (self._run_saves, _SAVERS)):
            for i in range(n):
                thread = threading.Thread(target=target, name=f"kvpool{target.__name__[4:]}-{i}", daemon=True)
                thread.start()
                self._threads.append(thread)

    def close(self) -> None:
        """Ends the threads; what is under way is stopped at its next slice."""
        with self._lock:
            self._is_closing = True
            for loading in self._all.values():
                for _, job in loading.jobs:
                    job.stop()
            self._lock.notify_all()
        for thread in self._threads:
            thread.join(_SAVE_S)

    # ---- jobs
    def load(self, load: Load) -> None:
        loading = _Loading(load, [], time.monotonic(), 1 if load.is_probe else 2)
        try:
            if self.pool is not None:
                loading.jobs = self._jobs(load)
        except Exception as e:  # hashes or blocks that no job takes: nothing is raised into the engine
            log.exception("a load cannot be made")
            loading.error = type(e).__name__
        with self._lock:
            self._all[load.job] = loading
            self._loads.extend((loading,) * loading.turns)
            self._lock.notify_all()

    def save(self, save: Save, ready: Callable[[], None]) -> None:
        """ready: called by a thread before it reads the blocks; it returns when the engine has written them."""
        with self._lock:
            self._saves.append((save, ready))
            self._lock.notify_all()

    def stop(self, job: int) -> None:
        with self._lock:
            loading = self._all.get(job)
            for _, one in loading.jobs if loading else ():
                one.stop()

    def _jobs(self, load: Load) -> List[Tuple[Part, Any]]:
        return [(part, self._job(part, shard, self._scratch(layout) if load.is_probe else layout))
                for part in load.parts for shard, layout in self.rank.layouts[part.group]]

    def _scratch(self, layout: bytes) -> bytes:
        """The layout of a block in memory beside the cache."""
        size = sum(piece[2] for piece in struct.iter_unpack("=QQQ", layout))
        if size not in self._spare:
            memory = bytearray(size)
            self.pool.register(memory)
            self._spare[size] = struct.pack("=QQQ", _kvpool.memory_of(memory, True)[0], 0, size)
        return self._spare[size]

    def _job(self, part: Part, shard: int, layout: bytes, is_put: bool = False) -> Any:
        group = self.groups[part.group]
        prefix = self.names.object_prefix(group, shard, self.rank.stage)
        if not is_put:
            return _kvpool.Job(self.pool._raw, layout, prefix, part.hashes, part.blocks)
        grouped = None
        if self.names.is_grouped(group):
            grouped = (self.names.group_prefix(group), self.names.members(group), self.rank.stage * group.shards + shard)
        return _kvpool.Job(self.pool._raw, layout, prefix, part.hashes, part.blocks, grouped, (part.parent, part.first))

    # ---- loads
    def _run_loads(self) -> None:
        while True:
            with self._lock:
                while not self._loads and not self._is_closing:
                    self._lock.wait()
                if self._is_closing:
                    return
                loading = self._loads.popleft()
            error = ""
            try:
                if loading.load.is_probe:  # once more for the time: the first time may connect
                    self._get(loading)
                    loading.jobs, loading.begun = self._jobs(loading.load), time.monotonic()
                self._get(loading)
            except BaseException as e:
                log.exception("a load failed")
                error = type(e).__name__
            self._leave(loading, error)

    def _get(self, loading: _Loading) -> None:
        c, ends = loading.load.choice, len(self.groups) == 1
        for _, job in loading.jobs:
            err, _, _ = job.get(loading.begun, c.patience_s, c.block_s, c.growth_s, c.max_s, loading.load.rate, ends,
                                _kvpool.EPOCH, loading.load.epoch)
            if err:
                return

    def _leave(self, loading: _Loading, error: str) -> None:
        with self._lock:
            loading.turns -= 1
            loading.error = loading.error or error or None
            if loading.turns == 0 and not loading.is_over:
                self._over(loading)

    def _over(self, loading: _Loading) -> None:
        """Reports the load. The caller holds the lock."""
        load = loading.load
        loading.is_over = True
        self._all.pop(load.job, None)
        wanted = sum(len(p.blocks) for p in load.parts)
        good = [True] * wanted
        report = LoadReport(1, wanted, time.monotonic() - loading.begun)
        begin = {id(p): sum(len(q.blocks) for q in load.parts[:i]) for i, p in enumerate(load.parts)}
        first_bad, code = wanted, 0
        for part, job in loading.jobs:
            for i, result in enumerate(job.results()):
                if result == 0:
                    continue
                at = begin[id(part)] + i
                good[at] = False
                if at < first_bad:
                    first_bad, code = at, result
                if result == _NUMBER["CORRUPT"]:
                    report.corrupt.append(job.key(i))
        if loading.error is not None or not loading.jobs:
            first_bad = 0
        if first_bad < wanted:
            report.blocks = first_bad
            report.error = loading.error or (_NAME.get(code, "INTERNAL") if loading.jobs else "UNREACHABLE")
            report.is_cut = code in _CUT
            if load.is_probe:
                pass
            elif len(self.groups) == 1:
                self._results.bad_blocks.update(load.parts[0].blocks[first_bad:])
            else:
                self._results.failed.add(load.request_id)
        self._results.loads[load.job] = report
        if not load.is_probe:
            self._results.finished.add(load.request_id)

    def _guard(self) -> None:
        """Reports the loads whose threads are gone. The caller holds the lock."""
        if any(t.is_alive() for t in self._threads[:_LOADERS]):
            return
        for loading in list(self._all.values()):
            loading.error = loading.error or "INTERNAL"
            self._over(loading)

    # ---- saves
    def _run_saves(self) -> None:
        while True:
            with self._lock:
                while not self._saves and not self._is_closing:
                    self._lock.wait()
                if not self._saves:
                    return
                save, ready = self._saves.popleft()
            report = SaveReport(1)
            try:
                ready()
                self._put(save, report)
            except BaseException:
                log.exception("a save failed")
                report.failed.update((p.group, p.first + i) for p in save.parts for i in range(len(p.blocks)))
            with self._lock:
                self._results.saves[save.job] = report

    def _put(self, save: Save, report: SaveReport) -> None:
        began = time.monotonic()
        for part in save.parts:
            mine = self._share(part)
            if not mine.blocks:
                continue
            for shard, layout in self.rank.layouts[part.group]:
                if self.pool is None:
                    report.failed.update((part.group, mine.first + i) for i in range(len(mine.blocks)))
                    continue
                job = self._job(mine, shard, layout, is_put=True)
                job.put(began + _SAVE_S, _kvpool.EPOCH | _kvpool.SOON, save.epoch)
                for i, result in enumerate(job.results()):
                    if result not in _STORED:
                        report.failed.add((part.group, mine.first + i))
                    elif result == 0:
                        report.bytes += job.block_bytes
        report.seconds = time.monotonic() - began

    def _share(self, part: Part) -> Part:
        """What this rank puts of blocks that several ranks hold: one run of them."""
        n, mine, all_n = self.rank.replicas[part.group], self.rank.replica[part.group], len(part.blocks)
        lo, hi = all_n * mine // n, all_n * (mine + 1) // n
        return part if n == 1 else part.cut(lo, hi)

    # ---- results
    def take_reports(self) -> Tuple[Dict[int, LoadReport], Dict[int, SaveReport]]:
        with self._lock:
            loads, self._results.loads = self._results.loads, {}
            saves, self._results.saves = self._results.saves, {}
        return loads, saves

    def take_finished(self) -> Tuple[Set[str], Set[str], Set[int]]:
        """(requests whose load is over, those of them that failed as a whole, blocks that did not arrive)."""
        with self._lock:
            self._guard()
            taken = self._results.finished, self._results.failed, self._results.bad_blocks
            self._results.finished, self._results.failed, self._results.bad_blocks = set(), set(), set()
        return taken
