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
from .requests import PROBE_BLOCKS, Load, LoadReport, Part, Save, SaveReport, is_dense

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
    error: str = ""
    report: LoadReport = field(default_factory=lambda: LoadReport(1, 0, 0.0))  # made before anything can fail


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
        self.is_dense = is_dense(groups)
        self.pool: Any = None
        self._lock = threading.Condition()
        self._loads: Deque[_Loading] = deque()  # a load is in it once for each of its threads, a probe once
        self._saves: Deque[Tuple[Save, Callable[[], Any], float]] = deque()
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

    def save(self, save: Save, ready: Callable[[], Any]) -> None:
        """ready: called by a thread before it reads the blocks; it returns when the engine has written them."""
        with self._lock:
            self._saves.append((save, ready, time.monotonic() + _SAVE_S))
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
        """The layout of the blocks of a probe in memory beside the cache."""
        size = sum(piece[2] for piece in struct.iter_unpack("=QQQ", layout))
        if size not in self._spare:
            memory = bytearray(PROBE_BLOCKS * size)
            self.pool.register(memory)
            self._spare[size] = struct.pack("=QQQ", _kvpool.memory_of(memory, True)[0], size, size)
        return self._spare[size]

    def _job(self, part: Part, shard: int, layout: bytes, is_put: bool = False) -> Any:
        group = self.groups[part.group]
        prefix = self.names.object_prefix(group, shard, self.rank.stage)
        if not is_put:
            return _kvpool.Job(self.pool._raw, layout, prefix, part.hashes, part.blocks)
        grouped = None
        if self.names.is_grouped:
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
        """Gets the blocks of all jobs, one job after the other. A block has arrived when all its shards have, so the end moves
        by a share of a block for each object."""
        c = loading.load.choice
        for i, (part, job) in enumerate(loading.jobs):
            m = len(self.rank.layouts[part.group]) if self.is_dense else 1
            before = i * len(job) / m
            err, _, _ = job.get(loading.begun, c.patience_s + before * (c.block_s + before * c.growth_s),
                                (c.block_s + 2 * before * c.growth_s) / m, c.growth_s / m**2, c.max_s, loading.load.rate, self.is_dense,
                                _kvpool.EPOCH | _kvpool.SOON, loading.load.epoch)
            if err:
                return

    def _leave(self, loading: _Loading, error: str) -> None:
        with self._lock:
            loading.turns -= 1
            loading.error = loading.error or error
            if loading.turns == 0 and not loading.is_over:
                self._over(loading)

    def _over(self, loading: _Loading) -> None:
        """Reports the load, once. The caller holds the lock."""
        load = loading.load
        loading.is_over = True
        wanted, report = sum(len(p.blocks) for p in load.parts), loading.report
        report.seconds = time.monotonic() - loading.begun
        report.error = loading.error or ("" if loading.jobs else "UNREACHABLE")
        try:
            if not report.error:
                self._judge(loading, wanted, report)
        except Exception as e:
            log.exception("a load cannot be judged")
            report.error = type(e).__name__
        if not report.error:
            report.blocks = wanted
        elif not load.is_probe and self.is_dense:
            self._results.bad_blocks.update(load.parts[0].blocks[report.blocks:])
        elif not load.is_probe:
            self._results.failed.add(load.request_id)
        self._results.loads[load.job] = report
        if not load.is_probe:
            self._results.finished.add(load.request_id)
        self._all.pop(load.job, None)

    def _judge(self, loading: _Loading, wanted: int, report: LoadReport) -> None:
        """Finds the first block that did not arrive."""
        begin, n, first_bad = {}, 0, wanted
        for part in loading.load.parts:
            begin[id(part)] = n
            n += len(part.blocks)
        for part, job in loading.jobs:
            for i, result in enumerate(job.results()):
                at = begin[id(part)] + i
                if result == _NUMBER["CORRUPT"]:
                    report.corrupt.append(job.key(i))
                if result and at < first_bad:
                    first_bad, report.error, report.is_cut = at, _NAME.get(result, "INTERNAL"), result in _CUT
        report.blocks = first_bad

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
                save, ready, end_s = self._saves.popleft()
            report = SaveReport(1)
            try:
                ready()
                self._put(save, report, end_s)
            except BaseException:
                log.exception("a save failed")
                report.failed.update((p.group, p.first + i) for p in save.parts for i in range(len(p.blocks)))
            with self._lock:
                self._results.saves[save.job] = report

    def _put(self, save: Save, report: SaveReport, end_s: float) -> None:
        for part in save.parts:
            mine = self._share(part)
            for shard, layout in self.rank.layouts[part.group] if mine.blocks else ():
                results = [_NUMBER["UNREACHABLE"]] * len(mine.blocks)
                if self.pool is not None:
                    job = self._job(mine, shard, layout, is_put=True)
                    job.put(end_s, _kvpool.EPOCH | _kvpool.SOON | _kvpool.REPORT_ALREADY, save.epoch)
                    results = job.results()
                    report.bytes += job.block_bytes * results.count(0)
                report.stored += sum(result in _STORED for result in results)
                report.failed.update((part.group, mine.first + i) for i, result in enumerate(results) if result not in _STORED)
                report.is_stale |= _NUMBER["STALE"] in results

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
