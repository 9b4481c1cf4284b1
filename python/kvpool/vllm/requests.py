# SPDX-License-Identifier: Apache-2.0
"""The scheduler's side of the connector: the states of requests, and the jobs of loads and saves.

A pure state machine: the pool, the clock and the engine's block pool are given to it, so the tests drive the shipped code.
Requests are vLLM's, of which only plain attributes are read. All calls come from the scheduler's thread.
"""
from __future__ import annotations

import enum
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Callable, DefaultDict, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from .. import _kvpool
from .cost import Choice, Cost
from .names import Group
from .settings import Settings

_QUIET_S = 0.1  # after a look-up without an answer none is sent for so long
_STALE = _kvpool.errors["STALE"][0]
PROBE_BLOCKS = 8
_PINNED_SHARE = 2  # saves hold at most one of so many blocks of the engine
_NO_SAVES_S = 1.0  # after a save of which nothing could be put, none is begun for so long
_AGAIN_S = 0.005  # first pause between the look-ups of a decode that waits for the puts of its prefill; doubles each time
_AGAIN_MOST_S = 0.08  # up to this


class State(enum.Enum):
    """Of a request. FAILED and REFUSED load nothing for the rest of the request's life: vLLM asks again in the step in
    which a load failed, and would load the same blocks again for ever."""

    ASKED = 1  # a look-up is under way
    FOUND = 2  # its answer is here, with a reservation
    LOADING = 3
    LOADED = 4  # also: another connector loads
    FAILED = 5
    REFUSED = 6  # computing is faster, or no answer came in time


class Part(NamedTuple):
    """Consecutive blocks of one cache group in a job, in the order of the prefix."""

    group: int  # its place in the engine's list of groups
    first: int  # the number of the first block in the request
    hashes: List[bytes]
    blocks: List[int]  # the numbers in the engine's cache
    parent: int  # the sequence of the block before the first one, for lineages

    def cut(self, lo: int, hi: int) -> Part:
        """The blocks [lo, hi) of these."""
        return Part(self.group, self.first + lo, self.hashes[lo:hi], self.blocks[lo:hi], sequence(self.hashes[lo - 1]) if lo else self.parent)


def is_dense(groups: Sequence[Group]) -> bool:
    """Whether a hit is a prefix of blocks, of which any part can be used: not so with windows, states or several groups."""
    return len(groups) == 1 and groups[0].kind == "full"


def sequence(block_hash: bytes) -> int:
    """A block's place in lineages: the low 64 bits of its hash."""
    return int.from_bytes(block_hash[-8:], "big")


class Load(NamedTuple):
    job: int
    request_id: str
    parts: List[Part]
    choice: Choice
    rate: float  # bytes a second that a thread may expect, 0 = unknown
    epoch: int
    is_probe: bool = False  # to memory beside the cache, to measure the way to it


class Save(NamedTuple):
    job: int
    parts: List[Part]
    epoch: int


@dataclass
class LoadReport:
    """Of one rank, or of several together: blocks is the least number of blocks that arrived."""

    ranks: int
    blocks: int
    seconds: float
    error: str = ""  # the name of the first error
    is_cut: bool = False
    corrupt: List[bytes] = field(default_factory=list)  # keys of blocks with a wrong sum

    def add(self, other: LoadReport) -> None:
        self.ranks += other.ranks
        self.blocks = min(self.blocks, other.blocks)
        self.seconds = max(self.seconds, other.seconds)
        self.error = self.error or other.error
        self.is_cut |= other.is_cut
        self.corrupt += other.corrupt


@dataclass
class SaveReport:
    """Of one rank, or of several together. failed: the blocks (group, number) that some rank could not put."""

    ranks: int
    failed: Set[Tuple[int, int]] = field(default_factory=set)
    bytes: int = 0  # put by this save
    stored: int = 0  # objects that the pool has
    is_stale: bool = False  # the namespace has another epoch

    def add(self, other: SaveReport) -> None:
        self.ranks += other.ranks
        self.failed |= other.failed
        self.bytes += other.bytes
        self.stored += other.stored
        self.is_stale |= other.is_stale


@dataclass
class _Entry:
    request: Any
    state: State
    asked_at: float = 0.0
    first_at: float = 0.0
    number: Optional[int] = None  # the asker's, while ASKED
    tickets: Sequence[Tuple[int, int, int]] = ()
    until: float = 0.0
    hit: int = 0  # tokens of the prefix that the pool has
    places: bytes = b""  # of the hit's blocks
    expected: int = 0  # tokens that a prefill said it stores
    again_s: float = _AGAIN_S
    epoch: int = 0  # of the look-up
    is_partial: bool = False  # some of its blocks were not stored
    is_old: bool = False  # in part computed by weights of before a reset
    computed: int = 0  # tokens that the engine had when it was told of the hit
    choice: Optional[Choice] = None
    load: Optional[Load] = None
    saved: List[int] = field(default_factory=list)  # for each group the first block that no save has
    is_gone: bool = False  # the request has ended; its load has not


@dataclass
class _Pinned:
    blocks: List[int]
    bytes: int
    parts: List[Part]
    epoch: int
    report: SaveReport = field(default_factory=lambda: SaveReport(0))


class Requests:
    """groups: of the engine, in its order. block_bytes: of one rank, for each group. ranks: that report.
    lookup_parts(request) -> what to ask for, as _kvpool.Asker takes it, and whether it is a prefix. hit_of(request, flags) ->
    tokens of the hit, and the place (cost.py) of each unit of it."""

    def __init__(self, settings: Settings, groups: Sequence[Group], block_bytes: Sequence[int], ranks: int, clock: Callable[[], float],
                 lookup_parts: Callable[[Any], Tuple[List[Tuple[bytes, List[bytes]]], bool]],
                 hit_of: Callable[[Any, bytes], Tuple[int, bytes]]) -> None:
        self.settings, self.groups, self.block_bytes, self.ranks, self.clock = settings, groups, block_bytes, ranks, clock
        self._lookup_parts, self._hit_of = lookup_parts, hit_of
        self.cost = Cost(settings.cost, settings.patience, settings.load_ms / 1e3, keeps_prefix=is_dense(groups))
        self.is_dense = is_dense(groups)
        self.counts: DefaultDict[str, float] = defaultdict(int)  # figures of stats.py
        self.unit_tokens = groups[0].block_tokens  # by which a hit grows
        self.mask: Callable[[int, int, int, int], Optional[List[bool]]] = lambda g, first, last, prompt: None  # see Hits
        self.asker: Any = None  # while no master is reached
        self.release: Callable[[Sequence[Tuple[int, int, int]]], None] = lambda tickets: None
        self.remove_damaged: Callable[[List[bytes]], None] = lambda keys: None
        self.epoch: Optional[int] = None  # None: the cache is off
        self.on_stale: Callable[[], None] = lambda: None
        self.pool: Any = None  # the engine's block pool
        self._entries: Dict[str, _Entry] = {}
        self._loads: Dict[int, Tuple[Optional[_Entry], LoadReport]] = {}  # under way; a probe has no entry
        self._new_loads: List[Load] = []
        self._stops: List[int] = []
        self._saves: Dict[int, _Pinned] = {}
        self._save_bytes = self._save_blocks = 0
        self._quiet_until = self._no_saves_until = 0.0
        self._distrusts_cache = False  # the engine's own cache has blocks of before a reset
        self._next = 1  # number of the next look-up or job

    # ---- look-ups
    def new(self, request: Any) -> None:
        """A request came: asks for its prefix."""
        if request.request_id in self._entries or self.epoch is None:
            return
        entry = _Entry(request, State.REFUSED, first_at=self.clock(), saved=[0] * len(self.groups))
        entry.expected = self._expected(request)
        self._entries[request.request_id] = entry
        if not self._ask(entry):
            entry.state = State.LOADED  # it asks when its turn comes

    def _expected(self, request: Any) -> int:
        """Tokens that the pool will have, by the answer of the prefill engine. It comes from a client, so it is checked."""
        params = request.kv_transfer_params
        told = params.get("kvpool") if isinstance(params, dict) else None
        given: Dict[str, Any] = told if isinstance(told, dict) else {}
        n, hashes = given.get("blocks"), self.hashes(request, 0)
        if type(n) is not int or not 0 < n <= len(hashes) or given.get("last") != hashes[n - 1].hex():
            return 0
        most: int = request.num_tokens if self.is_dense else (request.num_tokens - 1) // self.unit_tokens * self.unit_tokens
        return min(n * self.groups[0].block_tokens, most)

    def _ask(self, entry: _Entry) -> bool:
        """Returns whether a look-up is under way now."""
        now = self.clock()
        entry.state = State.REFUSED
        if self.asker is None or self.epoch is None or self.settings.cost == "never":
            return False
        if now < self._quiet_until:
            self.counts["lookups_quiet"] += 1
            return False
        parts, is_prefix = self._lookup_parts(entry.request)
        if not parts:
            return False
        number, self._next = self._next, self._next + 1
        if not self.asker.ask(number, parts, is_prefix, self.epoch):
            self.counts["lookups_quiet"] += 1  # thousands wait
            return False
        entry.state, entry.number, entry.asked_at, entry.epoch = State.ASKED, number, now, self.epoch
        return True

    def _answered(self, entry: _Entry, answer: Tuple[int, int, Any, bytes, float]) -> None:
        err, ttl_ms, tickets, present, seconds = answer
        entry.number, entry.tickets = None, tickets
        self.counts["lookup_seconds"] += seconds
        if err:
            self.release(tickets)
            entry.tickets, entry.state = (), State.REFUSED
            self.counts["lookups_failed"] += 1
            if err == _STALE:
                self._is_stale(entry.epoch)
            else:
                self._no_answer(entry)
            return
        entry.hit, entry.places = self._hit_of(entry.request, present)
        entry.until = entry.asked_at + ttl_ms / 1e3
        entry.state = State.FOUND
        self.counts["lookups_hit" if entry.hit else "lookups_miss"] += 1
        self.counts["tokens_found"] += entry.hit

    def _wait_for_answer(self, entry: _Entry) -> bool:
        """Returns whether the look-up is still to be waited for."""
        answer = self.asker.take(entry.number)
        now = self.clock()
        if answer is not None:
            self._answered(entry, answer)
            return False
        if now - entry.asked_at < self.settings.lookup_ms / 1e3:
            return True
        self.asker.drop(entry.number)
        entry.number = None
        self._no_answer(entry)
        self.counts["lookups_late"] += 1
        return False

    def _no_answer(self, entry: _Entry) -> None:
        """No look-up is sent for a while. Decode asks again after it, as long as it waits for prefill."""
        self._quiet_until = self.clock() + _QUIET_S
        entry.state = State.REFUSED
        if entry.expected:
            entry.state, entry.hit, entry.places, entry.until = State.FOUND, 0, b"", float("inf")
            entry.again_s = max(entry.again_s, _QUIET_S)

    def _waits_for_puts(self, entry: _Entry, computed: int) -> bool:
        """Decode: asks again while the pool has fewer tokens than prefill said, for handover_ms at most."""
        now = self.clock()
        if max(entry.hit, computed) >= entry.expected or now - entry.first_at >= self.settings.handover_ms / 1e3:
            return False
        if now - entry.asked_at >= entry.again_s and now >= self._quiet_until:
            entry.again_s = max(entry.again_s, min(2 * entry.again_s, _AGAIN_MOST_S))
            self._let_go(entry)
            self._ask(entry)
        return entry.state in (State.ASKED, State.FOUND)

    def matched(self, request: Any, computed: int) -> Tuple[Optional[int], bool]:
        """What get_num_new_matched_tokens returns. computed: tokens that the engine has."""
        entry = self._entries.get(request.request_id)
        if entry is None:
            self.new(request)
            entry = self._entries.get(request.request_id)
            if entry is None:
                return 0, False
        entry.is_old |= computed > 0 and self._distrusts_cache
        if entry.state is State.LOADED:
            self._ask(entry)
        if entry.state is State.ASKED and self._wait_for_answer(entry):
            return None, False
        if entry.state is State.FOUND and self.clock() >= entry.until:  # the reservation is over
            self._let_go(entry)
            return (None, False) if self._ask(entry) else (0, False)
        if entry.state is not State.FOUND:
            return 0, False
        if self._waits_for_puts(entry, computed):
            return None, False
        return self._choose(entry, computed) if entry.state is State.FOUND else (0, False)

    def _choose(self, entry: _Entry, computed: int) -> Tuple[int, bool]:
        first = computed // self.unit_tokens
        if entry.hit <= computed:
            return 0, False
        entry.computed = computed
        places = entry.places[first:]
        choice = self.cost.choose(self.clock(), places, self._unit_bytes(), self.unit_tokens, computed)
        if choice.probe is not None:
            self._probe(entry, first + choice.probe)
        if choice.blocks == 0 or (not self.is_dense and choice.blocks < len(places)):  # a shorter hit needs other blocks
            self.counts["tokens_refused"] += entry.hit - computed
            self._let_go(entry)
            entry.state = State.REFUSED
            return 0, False
        entry.choice = choice
        return min(choice.blocks * self.unit_tokens, entry.hit - computed), True

    def _probe(self, entry: _Entry, unit: int) -> None:
        """Reads some blocks of a hit that is computed, so that the engine learns how fast loading is."""
        units = [u for u in range(unit, min(unit + PROBE_BLOCKS, len(entry.places))) if entry.places[u] == entry.places[unit]]
        hashes, per = self.hashes(entry.request, 0), self.unit_tokens // self.groups[0].block_tokens
        chosen = [hashes[(u + 1) * per - 1] for u in units]
        job, self._next = self._next, self._next + 1
        end_s = self.settings.load_ms / 1e3
        part = Part(0, unit * per, chosen, list(range(len(chosen))), 0)
        self.cost.began(job, entry.places[unit:unit + 1] * len(units), self.block_bytes[0])
        self._loads[job] = None, LoadReport(0, len(units), 0.0)
        self._new_loads.append(Load(job, "", [part], Choice(len(units), end_s, 0.0, 0.0, end_s, None), 0.0, entry.epoch, True))
        self.counts["probes"] += 1

    def _unit_bytes(self) -> int:
        return sum(size * self.unit_tokens // g.block_tokens for size, g in zip(self.block_bytes, self.groups))

    def _let_go(self, entry: _Entry) -> None:
        """Releases the reservation, or drops the look-up."""
        if entry.number is not None:
            self.asker.drop(entry.number)
            entry.number = None
        if entry.tickets:
            self.release(entry.tickets)
            entry.tickets = ()

    # ---- loads
    def allocated(self, request: Any, tables: Sequence[List[int]], external: int) -> None:
        """The engine has blocks for `external` tokens of the hit. 0: it does not load from this connector."""
        entry = self._entries.get(request.request_id)
        if entry is None or entry.state not in (State.FOUND, State.REFUSED):
            return
        choice, entry.choice = entry.choice, None
        if external == 0 or choice is None:
            if entry.state is State.FOUND:
                self._let_go(entry)
                entry.state = State.LOADED
            return
        # What was promised before a reset refused it is loaded too: the load ends as STALE.
        parts = [p for g in range(len(self.groups)) for p in self._parts(request, g, tables[g], entry.computed, entry.computed + external)]
        job, self._next = self._next, self._next + 1
        entry.load = Load(job, request.request_id, parts, choice, self._rate(entry), entry.epoch)
        entry.state = State.LOADING
        first, n = entry.computed // self.unit_tokens, external // self.unit_tokens
        self.cost.began(job, entry.places[first:first + n], self._unit_bytes())
        self._loads[job] = entry, LoadReport(0, 1 << 30, 0.0)
        self._new_loads.append(entry.load)
        for g, group in enumerate(self.groups):
            entry.saved[g] = max(entry.saved[g], (entry.computed + external) // group.block_tokens)

    def _rate(self, entry: _Entry) -> float:
        per_byte = self.cost.loading.per_byte()
        return 0.0 if per_byte is None else 1.0 / per_byte[max(entry.places, default=0)]

    def _parts(self, request: Any, g: int, table: List[int], begin: int, end: int, mask: Optional[List[bool]] = None) -> List[Part]:
        """The blocks of a group for the tokens [begin, end), of which mask, if any, says whether they are wanted; of a window
        only those that the engine gave a block."""
        token, hashes, parts = self.groups[g].block_tokens, self.hashes(request, g), []
        at, last = begin // token, min(end // token, len(hashes), len(table))
        begun = at
        while at < last:
            first = at
            while at < last and table[at] != 0 and (mask is None or mask[at - begun]):
                at += 1
            if at > first:
                parts.append(Part(g, first, list(hashes[first:at]), table[first:at], sequence(hashes[first - 1]) if first else 0))
            at += 1
        return parts

    def hash_count(self, request: Any, g: int) -> int:
        return len(request.block_hashes) // (self.groups[g].block_tokens // self.hash_tokens)

    def hashes(self, request: Any, g: int) -> List[bytes]:
        """The hashes of a group's blocks: that of a block of several hash units is its last unit's."""
        per = self.groups[g].block_tokens // self.hash_tokens
        hashes: List[bytes] = request.block_hashes
        return hashes if per == 1 else hashes[per - 1::per]

    hash_tokens = 1  # set by the connector: tokens of a hash unit

    # ---- a step
    def step(self, scheduled: Iterable[Tuple[str, int, int]], tables_of: Callable[[str], Optional[Sequence[List[int]]]],
             states: Dict[str, List[Tuple[int, int, int]]]) -> Tuple[List[Load], List[Save], List[int]]:
        """The jobs of a step. scheduled: (request, tokens computed before, tokens of the step). tables_of: the request's
        block tables now. states: for a request the recurrent states that are whole: (group, block, tokens)."""
        loads, self._new_loads = self._new_loads, []
        stops, self._stops = self._stops, []
        saves = []
        if self.epoch is not None and self.settings.save != "none":
            for request_id, before, tokens in scheduled:
                entry = self._entries.get(request_id)
                if entry is not None and not (self.is_dense and self._room() == 0):
                    parts = self._new_blocks(entry, before, tokens, tables_of) + self._new_states(entry, states.get(request_id, ()))
                    save = self._save(parts) if parts else None
                    if save is not None:
                        saves.append(save)
                    kept = sum(len(p.blocks) for p in save.parts) if save is not None else 0
                    self._left_out(entry, sum(len(p.blocks) for p in parts) - kept)
        return loads, saves, stops

    def _left_out(self, entry: _Entry, blocks: int) -> None:
        """There was no room for the last of a request's new blocks. A prefix is tried again with the request's next step; with
        several groups vLLM may free some of them meanwhile."""
        if self.is_dense:
            entry.saved[0] -= blocks
        elif blocks:
            entry.is_partial = True
            self.counts["saves_dropped"] += blocks

    def _room(self) -> int:
        """The number of blocks that saves may hold beside those that they hold."""
        if self.clock() < self._no_saves_until or self._save_bytes >= self.settings.save_bytes:
            return 0
        return max(0, len(self.pool.blocks) // _PINNED_SHARE - self._save_blocks)

    def _new_blocks(self, entry: _Entry, before: int, tokens: int,
                    tables_of: Callable[[str], Optional[Sequence[List[int]]]]) -> List[Part]:
        """The blocks that this step completes."""
        request = entry.request
        if entry.is_old:
            return []
        # Tokens of this step beyond the prompt may be speculative, so decode blocks wait for the next step.
        end = min(before + tokens, request.num_prompt_tokens)
        if self.settings.save == "all":
            end = max(end, before)
        tables: Optional[Sequence[List[int]]] = None
        parts: List[Part] = []
        for g, group in enumerate(self.groups):
            first, last = entry.saved[g], min(end // group.block_tokens, self.hash_count(request, g))
            if last <= first:
                continue
            tables = tables or tables_of(request.request_id)
            if tables is None:
                return []
            entry.saved[g] = last
            mask = self.mask(g, first, last, request.num_prompt_tokens)
            parts += self._parts(request, g, tables[g], first * group.block_tokens, last * group.block_tokens, mask)
        return parts

    def _new_states(self, entry: _Entry, states: Iterable[Tuple[int, int, int]]) -> List[Part]:
        parts = []
        for g, block, tokens in () if entry.is_old else states:
            i, rest = divmod(tokens, self.groups[g].block_tokens)
            hashes = self.hashes(entry.request, g)
            if block and not rest and 0 < i <= len(hashes) and (tokens <= entry.request.num_prompt_tokens or self.settings.save == "all"):
                parts.append(Part(g, i - 1, [hashes[i - 1]], [block], sequence(hashes[i - 2]) if i > 1 else 0))
        return parts

    def _save(self, parts: List[Part]) -> Optional[Save]:
        """Takes references on the blocks, as far as there is room."""
        left, free, kept = self.settings.save_bytes - self._save_bytes, self._room(), []
        for part in parts:
            n = max(0, min(len(part.blocks), free, int(left // self.block_bytes[part.group])))
            left, free = left - n * self.block_bytes[part.group], free - n
            if n:
                kept.append(part.cut(0, n))
        if not kept:
            return None
        job, self._next = self._next, self._next + 1
        blocks = list(dict.fromkeys(b for p in kept for b in p.blocks))
        self.pool.touch([self.pool.blocks[b] for b in blocks])
        size = sum(len(p.blocks) * self.block_bytes[p.group] for p in kept)
        epoch = self.epoch or 0  # not None: see step
        self._saves[job] = _Pinned(blocks, size, kept, epoch)
        self._save_bytes += size
        self._save_blocks += len(blocks)
        return Save(job, kept, epoch)

    def _is_stale(self, epoch: int) -> None:
        """The namespace has another epoch than this one, with which the pool was asked, perhaps before a reset."""
        if epoch == self.epoch:
            self.on_stale()

    @property
    def has_saves(self) -> bool:
        """The engine has to go on stepping, so that the ranks' reports come."""
        return bool(self._saves)

    # ---- reports
    def loaded(self, job: int, report: LoadReport) -> None:
        """A report of some ranks. When all have reported the load is over."""
        entry, total = self._loads[job]
        total.add(report)
        if total.ranks < self.ranks:
            return
        del self._loads[job]
        if entry is None:
            self.cost.ended(job, self.clock(), total.seconds, total.blocks, total.is_cut)
            return
        self._let_go(entry)
        assert entry.load is not None
        wanted = sum(len(p.blocks) for p in entry.load.parts)
        arrived = total.blocks if self.is_dense else len(entry.places) * total.blocks // max(wanted, 1)
        self.cost.ended(job, self.clock(), total.seconds, min(arrived, wanted), total.is_cut and not entry.is_gone)
        first = entry.computed // self.unit_tokens
        tokens = wanted * self.unit_tokens if self.is_dense else len(entry.places) * self.unit_tokens - entry.computed
        got = tokens if total.blocks >= wanted else total.blocks * self.unit_tokens if self.is_dense else 0
        self.counts["tokens_loaded"] += got
        for place, name in enumerate(("host", "remote", "ssd")):
            self.counts[f"load_{name}_bytes"] += self._unit_bytes() * entry.places[first:first + got // self.unit_tokens].count(place)
        self.counts["load_seconds"] += total.seconds
        if total.error and not entry.is_gone:
            self.counts["loads_cut" if total.is_cut else "loads_failed"] += 1
            self.counts["failed_" + total.error] += 1
            self.counts["tokens_failed"] += tokens - got
        if total.error == "STALE":
            self._is_stale(entry.epoch)
        if total.corrupt:
            self.remove_damaged(total.corrupt)
        entry.state = State.FAILED if total.error and got == 0 else State.LOADED
        entry.load = None
        if total.error and not entry.is_old:  # these are computed again, and stored
            for g, group in enumerate(self.groups):
                entry.saved[g] = min(entry.saved[g], (entry.computed + got) // group.block_tokens)
        if entry.is_gone:
            self._entries.pop(entry.request.request_id, None)

    def saved(self, job: int, report: SaveReport) -> None:
        """A report of some ranks. When all have reported the blocks are free, and objects of blocks that some rank could not
        put are removed."""
        pinned = self._saves[job]
        pinned.report.add(report)
        if pinned.report.ranks < self.ranks:
            return
        del self._saves[job]
        self._save_bytes -= pinned.bytes
        self._save_blocks -= len(pinned.blocks)
        self.pool.free_blocks(self.pool.blocks[b] for b in reversed(pinned.blocks))
        self.counts["saved_bytes"] += pinned.report.bytes
        self.counts["saves_failed"] += len(pinned.report.failed)
        if pinned.report.failed and not pinned.report.stored:
            self._no_saves_until = self.clock() + _NO_SAVES_S
        if pinned.report.is_stale:
            self._is_stale(pinned.epoch)
        elif pinned.report.failed and pinned.report.stored:
            self.on_failed_put(pinned.parts, pinned.report.failed)

    on_failed_put: Callable[[List[Part], Set[Tuple[int, int]]], None] = staticmethod(lambda parts, failed: None)

    def finished(self, request: Any) -> Optional[Dict[str, Any]]:
        """The request has ended. Returns what its answer tells a decode engine, or None."""
        entry = self._entries.get(request.request_id)
        if entry is None:
            return None
        if entry.state is State.LOADING:
            entry.is_gone = True
            assert entry.load is not None
            self._stops.append(entry.load.job)
        else:
            self._let_go(entry)
            del self._entries[request.request_id]
        token, whole = self.groups[0].block_tokens, min(request.num_prompt_tokens, request.num_computed_tokens)
        blocks = min(whole // token, entry.saved[0], self.hash_count(request, 0))
        if self.is_dense and self.epoch is not None and self.settings.save != "none" and not entry.is_old:
            self.counts["saves_dropped"] += whole // token - blocks
        if not isinstance(request.kv_transfer_params, dict) or not blocks or self.epoch is None or entry.is_old or entry.is_partial:
            return None
        return {"kvpool": {"blocks": blocks, "last": self.hashes(request, 0)[blocks - 1].hex()}}

    def forget(self) -> None:
        """The weights have changed: no answer and no reservation of before counts, and nothing that they computed is stored. If
        the engine could not empty its own cache, what it finds there is not stored either."""
        self._distrusts_cache = self.pool is not None and any(block.block_hash is not None for block in self.pool.blocks)
        self._distrusts_cache |= any(entry.state is State.LOADING for entry in self._entries.values())  # their blocks have no hash yet
        for entry in self._entries.values():
            if entry.state in (State.ASKED, State.FOUND):
                self._let_go(entry)
                entry.state = State.REFUSED
            entry.is_old = True
