# SPDX-License-Identifier: Apache-2.0
"""Clients put, upsert, remove and get shared keys, and drop single copies, while master, nodes and clients are killed and stopped
and nodes are drained at random. Every call is written down, and a checker decides about the history: no wrong byte, nothing that was
removed or superseded, no late call.

A run prints its seed; KVPOOL_HISTORY_SEED repeats its plan and its calls, though not how they fall together.
"""
import bisect
import collections
import heapq
import itertools
import math
import os
import random
import threading
import time
from typing import NamedTuple

import pytest

from clients import PATHS, Shell, extent_bytes, figures, settled, slow
from conftest import SLOW, TIER, wait_until

KIB = 1 << 10
SECONDS = 3600 if TIER == "long" else 60
PAUSE_S = 0.02 if TIER == "long" else 0.003  # between the calls of a client, at most: the history is kept in memory
NODE_ARGS = ("12MiB", "--chunk-bytes", "4MiB")
SSD = "64MiB"  # with the memory less than all keys take, and more than once around in a minute
FORGET_S = 3  # from the end of a node's session, which is over after SESSION_S of silence
SESSION_S = 10
LEASE_S = 1 + 0.5 * SLOW  # the location lease and the grace, and how exactly a busy machine keeps them
LATE_S = 2 * SLOW  # by which a call may miss its deadline
AFTER_S = 10 * SLOW  # after a fault: reads are counted for so long
KEYS = 40  # of each writer
DOUBLE = 8  # of so many keys one is put in two copies
LENS = (64 * KIB, 256 * KIB, 640 * KIB)  # by the version
DEADLINES_MS = (250, 1000, 3000)
CUT = {"UNREACHABLE", "DISCONNECTED", "DEADLINE", "FENCED", "ABORTED", "NODE_LOST", "RETRY_AFTER", "IN_PROGRESS", "STALE", "NO_SPACE"}
# What happens in a round, in any order.
ROUND = (*[("kill", "master")] * 2, ("stop", "master"), ("kill", "node"), *[("stop", "node")] * 4, ("stop", "client"),
         *[("drain", "node")] * 2)


class Call(NamedTuple):
    """A call as its caller saw it. Times are of one clock, in seconds."""

    who: str
    what: str  # get, put, upsert, remove, drop (of one copy)
    key: str
    version: int  # that was put, or read
    begin: float
    end: float
    err: str
    is_intact: bool = True  # the bytes that were read, and their length
    took: float = 0  # by the clock of the client's process, which leaves out what others had the processor
    limit: float = math.inf  # the deadline


def superseded(writes, answers):
    """For each of a key's writes, in order, when a later one was acknowledged after which its version is gone. A put is none of
    those: it is answered OK, too, where an older version stays.
    """
    times, at = [], math.inf
    for w in reversed(writes):
        times.append(at)
        if w.what in ("upsert", "remove") and w.err in answers:
            at = w.end
    return times[::-1]


def stopped_s(stops, call):
    """How much of a call its client was stopped."""
    return sum(max(0, min(end, call.end) - max(begin, call.begin)) for begin, end in stops.get(call.who, ()))


def judge(calls, stops, lease=LEASE_S, late=LATE_S):
    """What is wrong in a history, [(why, call)], and a count of what it has. Each key has one writer, which does one thing after the
    other. What a cut call did is not known, and it may be done at any time after its begin: so its version may be read for ever, and
    what it would have replaced or removed, too. Those are counted only.
    """
    wrong, counts, writes, reads = [], collections.Counter(), collections.defaultdict(list), []
    for c in calls:
        counts[f"{c.what} {c.err}"] += 1
        if c.took - stopped_s(stops, c) > c.limit + late:
            wrong.append(("returned late", c))
        if c.what not in ("get", "drop"):
            writes[c.key].append(c)
        elif c.what == "get" and c.err == "OK":
            reads.append(c)
    known = {}
    for key, of_key in writes.items():
        of_key.sort(key=lambda w: w.begin)
        for w, sure, likely in zip(of_key, superseded(of_key, {"OK"}), superseded(of_key, {"OK", "NOT_FOUND"})):
            if w.what != "remove":
                known[key, w.version] = w, sure, likely
    for r in reads:
        w, sure, likely = known.get((r.key, r.version), (None, 0, 0))
        if not r.is_intact:
            wrong.append(("wrong bytes", r))
        elif w is None or r.end < w.begin:
            wrong.append(("never put", r))
        elif w.err != "OK":
            counts["of a cut put"] += 1
            counts["of a cut put, later than the next"] += r.begin > sure + lease
        elif r.begin > sure + lease:
            wrong.append((f"stale for {r.begin - sure:.2f} s", r))
        else:
            counts["stale within the lease"] += r.begin > sure
            counts["stale after a removal that found nothing"] += r.begin > likely + lease
    return wrong, counts


class Fault(NamedTuple):
    what: str
    begin: float
    end: float


def plan(rng, seconds):
    """[(at, what, whom, how long)]: rounds of short faults, and in each minute a node and a client that are away for long."""
    events = []
    for minute in range(0, seconds, 60):
        events.append((minute + rng.uniform(3, 28), "stop", "node", rng.uniform(1.1, 1.5) * (SESSION_S + FORGET_S)))
        events.append((minute + rng.uniform(3, 33), "stop", "client", rng.uniform(1.05, 1.3) * SESSION_S))
    at = 2.0
    while at < seconds:
        for what, whom in rng.sample(ROUND, len(ROUND)):
            is_short = rng.random() < (0.9 if whom == "master" else 0.7)  # nothing is acknowledged while the master is away
            events.append((at, what, whom, rng.uniform(0.02, 0.6) if is_short else rng.uniform(1, 1.5 * FORGET_S)))
            at += rng.uniform(0.1, 1.6)
    return sorted(e for e in events if e[0] < seconds)


def is_double(key):
    return int(key.rpartition("/")[2]) % DOUBLE == 0


class Worker(threading.Thread):
    """One client process, which writes keys of its own and reads all."""

    def __init__(self, pool, name, seed, path, writes, moves):
        super().__init__(daemon=True)
        self.moves = moves  # nodes are drained, some keys have two copies, and single copies are dropped
        self.shell = Shell(pool.bench, pool.addr, name, **PATHS[path])
        self.name = name
        self.rng = random.Random(seed)
        self.keys = [f"{name}/{i}" for i in range(KEYS)] if writes else []
        self.all_keys = []  # of everybody
        self.version = 0
        self.calls = []
        self.stops = []
        self.is_over = False
        self.error = None

    def run(self):
        try:
            while not self.is_over:
                self.step()
                time.sleep(self.rng.uniform(0, PAUSE_S))
        except BaseException as e:  # of whatever kind: the test is to fail with it, and not this thread alone
            self.error = e

    def step(self):
        what, version, length = "get", 0, max(LENS)
        if self.keys and self.rng.random() < 0.35:
            what = self.rng.choices(("upsert", "put", "remove", "drop"), (6, 2, 2, self.moves))[0]
        if what in ("upsert", "put"):
            self.version += 1
            version, length = self.version, LENS[self.version % len(LENS)]
        of = self.keys if what != "get" else self.all_keys
        key = self.rng.choice(of[::DOUBLE] if what == "drop" or self.rng.random() < 0.5 else of)  # some are used more than others
        limit = self.rng.choice(DEADLINES_MS) * SLOW
        put = f"put {key} {length} version={version} replicas={2 if self.moves and is_double(key) else 1}"
        line = {"get": f"get {key} {length}", "put": put, "remove": f"remove {key} force=1", "upsert": f"{put} upsert=1",
                "drop": f"remove {key} force=1 segment={self.rng.randint(1, 8)}"}[what]
        begin = time.monotonic()
        got = self.shell(f"{line} deadline={limit}", timeout=60)
        end = time.monotonic()
        is_intact = True
        if what == "get" and got["err"] == "OK":
            version = got["version"]
            is_intact = got["intact"] and got["len"] == LENS[version % len(LENS)]
        self.calls.append(Call(self.name, what, key, version, begin, end, got["err"], is_intact, got["ms"] / 1e3, limit / 1e3))


class Tormentor:
    """Does what a plan says, and what ends it: the next master or node, or SIGCONT."""

    def __init__(self, pool, workers, master_args, node_args, rng):
        self.pool, self.workers, self.master_args, self.node_args, self.rng = pool, workers, master_args, node_args, rng
        self.busy = set()  # who is stopped or dead at this moment
        self.faults = []
        self.counted = collections.Counter()  # by masters that are dead
        self.n = itertools.count(1)

    def run(self, events, seconds):
        begun = time.monotonic()
        self.until = begun + seconds
        todo = [(at, next(self.n), lambda e=(what, *more): self.drain(e[-1]) if e[0] == "drain" else self.hurt(*e))
                for at, what, *more in events]
        heapq.heapify(todo)
        while todo:
            due, _, act = heapq.heappop(todo)
            at = min(due, seconds)
            while time.monotonic() < min(begun + at, self.until):
                time.sleep(max(0, min(0.2, begun + at - time.monotonic())))
                if any(w.error for w in self.workers):
                    self.until = 0
            after = act()
            if after is not None:
                heapq.heappush(todo, (due + after[0], next(self.n), after[1]))

    def count(self, master):
        f = figures(master)
        self.counted.update({what: f[what] for what in ("evictions", "demoted", "stages", "tier_lost", "moved")})

    def node(self, *args):
        """kvpool node, which fails where the master is away."""
        return self.pool.kvpool("node", *args, "--deadline", f"{500 * SLOW}ms")

    def drain(self, for_s):
        """Drains a node, which may be killed or stopped meanwhile, and ends that after for_s."""
        free = [i for i in range(len(self.pool.nodes)) if ("drain", i) not in self.busy]
        if not free or time.monotonic() > self.until:
            return None
        i, begin = self.rng.choice(free), time.monotonic()
        self.busy.add(("drain", i))
        self.node("drain", f"node{i + 1}", "--keep-ssd")

        def end():
            done = self.node("undrain", f"node{i + 1}")
            if done.rc != 0 and "no node of that name" not in done.err:
                return 0.2, end
            self.busy.discard(("drain", i))
            self.faults.append(Fault("drain node", begin, time.monotonic()))
            return None

        return for_s, end

    def hurt(self, what, whom, for_s):
        """Returns when something is to be done next, and what: the end of it, or the same again where all are stopped or dead."""
        if time.monotonic() > self.until:
            return None
        free = [i for i in range({"master": 1, "node": len(self.pool.nodes), "client": len(self.workers)}[whom])
                if (whom, i) not in self.busy]
        if not free:
            return 0.2, lambda: self.hurt(what, whom, for_s)
        i = self.rng.choice(free)
        target = {"master": [self.pool.master], "node": self.pool.nodes, "client": [w.shell for w in self.workers]}[whom][i]
        name = f"{what} {whom}"
        if what == "stop" and for_s > SESSION_S:
            name += " for long"
        self.busy.add((whom, i))
        begin = time.monotonic()
        if what == "kill":
            if whom == "master":
                self.count(target)
            target.kill9()
        else:
            target.freeze()

        def end():
            if what == "stop":
                target.thaw()
                if whom == "client":
                    self.workers[i].stops.append((begin, time.monotonic()))
            elif whom == "master":
                self.pool.master = self.pool.bench.master(*self.master_args, listen=self.pool.addr, data_dir=target.data,
                                                          name=f"master-{next(self.n)}")
            else:  # it is ready when the master has it, which may be stopped just now
                self.pool.nodes[i] = self.pool.bench.node(self.pool.addr, f"node{i + 1}", *self.node_args[i], ready=False)
            self.busy.discard((whom, i))
            self.faults.append(Fault(name, begin, time.monotonic()))

        return for_s, end


def check_nothing_is_left(pool, keys):
    """Fails unless in the end the space in use is that of the objects that are there."""
    for node in pool.nodes:
        node.wait_ready()
    wait_until(lambda: figures(pool.master)["segments"] == len(pool.nodes), 30, "all nodes to be back")
    settled(pool.master, "everything under way to end", 40)
    reader = Shell(pool.bench, pool.addr, "last")
    seen = {}

    def is_exact():
        got = [reader(f"size {key} deadline={3000 * SLOW}") for key in keys]
        f = figures(pool.master)
        seen.update(objects=sum(g["err"] == "OK" for g in got), used=f["used_bytes"], on_tier=f["tier_objects"],
                    need=sum(extent_bytes(g["len"]) * g["copies"] for g in got if g["err"] == "OK"))
        return seen["used"] == seen["need"] and {g["err"] for g in got} <= {"OK", "NOT_FOUND"}

    try:
        wait_until(is_exact, 30)
    except pytest.fail.Exception:
        pytest.fail(f"the space in use is not that of what is there: {seen}, {figures(pool.master)}")
    settled(pool.master)
    assert reader.finish() == 0
    return seen


def served(calls, faults):
    """How many reads were answered OK within AFTER_S of the end of a fault, by its kind. Other faults that begin in this time prolong it."""
    begins = sorted(c.begin for c in calls if c.what == "get" and c.err == "OK")
    by_kind = collections.Counter()
    for f in faults:
        others = sum(g.end - max(g.begin, f.end) for g in faults if f.end < g.end and g.begin < f.end + AFTER_S)
        by_kind[f.what] += bisect.bisect(begins, f.end + AFTER_S + others) - bisect.bisect(begins, f.end)
    return by_kind


def tell(wrong, calls, faults, start):
    """What is wrong, each with the writes of its key and the faults around it."""
    lines = [f"second 0 is {time.strftime('%H:%M:%S', time.gmtime(time.time() - time.monotonic() + start))} UTC"]
    for why, c in wrong[:10]:
        lines.append(f"{why}: {c}, begun in second {c.begin - start:.3f}")
        near = sorted((w for w in calls if w.key == c.key and w.what != "get" and w.begin < c.end), key=lambda w: w.begin)[-8:]
        lines += [f"    {w.what} {w.version} {w.err} {w.begin - start:.3f} to {w.end - start:.3f}" for w in near]
        since = min([w.begin for w in near], default=c.begin) - 15
        lines += [f"    {f.what} {f.begin - start:.3f} to {f.end - start:.3f}" for f in faults if f.end > since and f.begin < c.end]
    return "\n".join(lines)


@slow
@pytest.mark.limit(SECONDS + 240)
@pytest.mark.parametrize("tier", ["memory", "ssd"])
def test_any_history_of_faults(make_pool, bench, tier):
    """Fails if a read gets wrong bytes, or a version that was removed or superseded by a call that was acknowledged more than a
    location lease before it; if a call returns late; if something is left in the end; or if little was served.
    """
    seed = os.environ.get("KVPOOL_HISTORY_SEED") or str(random.SystemRandom().randrange(1 << 32))
    print(f"KVPOOL_HISTORY_SEED={seed}")
    args = ("--node-forget", f"{FORGET_S}s", "--location-grace", "1s")
    pool = make_pool(nodes=0, master_args=args, data_dir=f"{bench.home}/data")
    node_args = [NODE_ARGS] * 3
    if tier == "ssd":
        node_args = [(*NODE_ARGS, "--ssd", f"{bench.home}/ssd{i}:{SSD}") for i in range(3)]
    for i in range(3):
        os.mkdir(f"{bench.home}/ssd{i}")
        pool.add_node(f"node{i + 1}", *node_args[i])
    moves = tier == "memory"
    workers = [Worker(pool, f"w{i}-{path}", f"{seed}/{i}", path, i < 4, moves) for i, path in enumerate(("shm", "tcp") * 3)]
    keys = [key for w in workers for key in w.keys]
    rng = random.Random(seed)
    tormentor = Tormentor(pool, workers, args, node_args, rng)
    start = time.monotonic()
    for w in workers:
        w.all_keys = keys
        w.start()
    tormentor.run([e for e in plan(rng, SECONDS) if moves or e[1] != "drain"], SECONDS)
    for w in workers:
        w.is_over = True
    for w in workers:
        w.join(30 * SLOW)
        assert not w.is_alive(), w.name
        if w.error is not None:
            raise w.error
    calls = [c for w in workers for c in w.calls]
    wrong, counts = judge(calls, {w.name: w.stops for w in workers})
    after = served(calls, tormentor.faults)
    tormentor.count(pool.master)
    print(f"{len(calls)} calls: {dict(sorted(counts.items()))}; masters: {dict(tormentor.counted)}")
    print(f"faults: {dict(collections.Counter(f.what for f in tormentor.faults))}; reads after: {dict(after)}")
    assert not wrong, f"KVPOOL_HISTORY_SEED={seed}: {len(wrong)} wrong\n" + tell(wrong, calls, tormentor.faults, start)
    strange = {c.err for c in calls} - CUT - {"OK", "NOT_FOUND", "LOG_FAILED"}  # the disk of a busy machine may not answer for a second
    assert not strange, strange
    for w in workers if moves else ():  # what a put of two copies did not finish is quarantined until its client is gone
        assert w.shell.finish() == 0, w.name
    print(f"at the end: {check_nothing_is_left(pool, keys)}")
    assert counts["get OK"] > 3000 and tormentor.counted["evictions"] > 100, (counts, tormentor.counted)
    assert tier == "memory" or tormentor.counted["stages"] > 100, tormentor.counted
    assert not moves or (tormentor.counted["moved"] > 10 and counts["drop OK"] > 10), (counts, tormentor.counted)
    assert len(after) == 7 + moves and min(after.values()) > 20, after


def history(*calls):
    """Calls of one client as (what, version, begin, end, more), in a history."""
    return judge([Call("w", what, "k", version, begin, end, **{"err": "OK", **more}) for what, version, begin, end, more in calls],
                 {"w": [(20, 30)]}, lease=1, late=1)


PUT = ("upsert", 1, 0, 1, {})
NEXT = ("upsert", 2, 2, 3, {})


@pytest.mark.parametrize("calls, why", [
    ([PUT, NEXT, ("get", 1, 3.5, 3.6, {}), ("get", 2, 9, 9.1, {}), ("remove", 0, 10, 11, {}), ("get", 2, 12, 12.1, {})], None),
    ([PUT, NEXT, ("get", 1, 4.1, 4.2, {})], "stale for 1.10 s"),
    ([PUT, ("remove", 0, 2, 3, {}), ("put", 2, 3, 4, {}), ("get", 1, 4.5, 4.6, {})], "stale for 1.50 s"),
    ([PUT, (*NEXT[:4], {"err": "DEADLINE"}), ("get", 1, 9, 9.1, {}), ("get", 2, 10, 10.1, {}), ("get", 1, 11, 11.1, {})], None),
    ([PUT, ("put", 2, 2, 3, {}), ("get", 1, 9, 9.1, {})], None),
    ([(*PUT[:4], {"err": "DEADLINE"}), ("remove", 0, 2, 3, {}), ("get", 1, 9, 9.1, {})], None),
    ([PUT, ("get", 3, 4, 4.1, {})], "never put"),
    ([("get", 1, -2, -1, {}), PUT], "never put"),
    ([PUT, ("get", 1, 4, 4.1, {"is_intact": False})], "wrong bytes"),
    ([("get", 0, 4, 7.1, {"err": "DEADLINE", "took": 3.1, "limit": 2})], "returned late"),
    ([("get", 0, 19, 31, {"err": "DEADLINE", "took": 12, "limit": 2})], None),
])
def test_checker(calls, why):
    """Fails if the checker calls a good history bad, or a bad one good."""
    wrong, _ = history(*calls)
    assert [w[0] for w in wrong] == ([] if why is None else [why])
