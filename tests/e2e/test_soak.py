# SPDX-License-Identifier: Apache-2.0
"""Everything at once, for a while: groups, hard and soft pins, upserts, copies on two hosts, several tenants, probes and
removals, from several processes over both paths, in a full pool, while nodes stand still, clients are killed, and the
master is killed and started again. No byte may be wrong, what was acknowledged and cannot be evicted must be there, a
group is seen whole or not at all, and in the end nothing is left and all counters agree.
"""
import random
import threading
import time

import pytest

from clients import PATHS, Board, Load, Shell, check_versions, figures, settled, slow
from conftest import SAN, SLOW, TIER, wait_until

KIB = 1 << 10
SOAK_S = 600 if TIER == "long" else 12
LEN = 16 * KIB
SIZE = 4  # of a group
TENANTS = ("default", "1", "2")
DEADLINE = 3000 * SLOW
FROZEN_S = 1.0
GRACE_S = 30  # in which a master that has begun anew keeps what a node may yet complete
# What a call may say while a node stands still, or the master is away.
CUT = {"UNREACHABLE", "DISCONNECTED", "DEADLINE", "FENCED", "ABORTED", "NODE_LOST", "RETRY_AFTER", "IN_PROGRESS", "STALE"}


class Actor(threading.Thread):
    """Does one thing after the other in a client process of its own, until it is told to end."""

    def __init__(self, pool, name, seed, tenant, path):
        super().__init__(daemon=True)
        self.pool = pool
        self.shell = Shell(pool.bench, pool.addr, name, deadline=DEADLINE, tenant=tenant, **PATHS[path])
        self.name = name
        self.rng = random.Random(seed)
        self.tenant = tenant
        self.done = 0  # acknowledged
        self.refused = []
        self.is_over = False
        self.error = None

    def run(self):
        try:
            while not self.is_over:
                self.step()
        except BaseException as e:  # of whatever kind: the test is to fail with it, and not this thread alone
            self.error = e

    def end(self):
        self.is_over = True
        self.join(10 * DEADLINE / 1000)
        assert not self.is_alive(), self.name
        if self.error is not None:
            raise self.error
        assert set(self.refused) <= CUT, (self.name, self.refused)

    def is_done(self, err):
        if err == "OK":
            self.done += 1
        else:
            self.refused.append(err)
        return err == "OK"


class Owner(Actor):
    """Keys of its own, pinned hard, on one host or two: nothing but this client takes one away. Knows for each which
    versions (0 = none) a reader may find.
    """

    def __init__(self, pool, name, seed, tenant, path):
        super().__init__(pool, name, seed, tenant, path)
        self.may_be = {f"{name}/{i}": {0} for i in range(24)}
        self.version = 0

    def step(self):
        key = self.rng.choice(list(self.may_be))
        if len(self.may_be[key]) > 1:  # what a cut call did is not known: what comes next could not be told apart
            key = f"{self.name}/{len(self.may_be)}"
            self.may_be[key] = {0}
        self.version += 1
        becomes = self.version
        put = f"put {key} {LEN} version={self.version} pin=1 replicas={self.rng.choice((1, 2))}"
        if self.may_be[key] == {0}:
            line = put
        elif self.rng.random() < 0.6:
            line = f"{put} upsert=1"
        else:
            line, becomes = f"remove {key} force=1", 0
        self.may_be[key].add(becomes)
        master, was_whole = self.pool.master, self.pool.is_whole
        err = self.shell(line)["err"]
        is_cut = not (was_whole and self.pool.is_whole and master is self.pool.master)
        if err == "NOT_FOUND" and becomes == 0 and is_cut:  # carried out by the dead master, or the node has not reported
            self.refused.append("DISCONNECTED")
        elif self.is_done(err):
            self.may_be[key] = {becomes}

    def check(self, reader):
        return check_versions(reader, self.may_be, LEN)


class Grouper(Actor):
    """Puts groups: of a size, some of them left incomplete, some pinned softly, some with copies; and units of eviction."""

    def __init__(self, pool, name, seed, tenant, path):
        super().__init__(pool, name, seed, tenant, path)
        self.begun = []  # (name, how many members may be seen)
        self.read = 0

    def step(self):
        name = f"{self.name}/{len(self.begun)}"
        n = SIZE if self.rng.random() < 0.8 else SIZE - 1
        size = SIZE if self.rng.random() < 0.7 else 0
        more = self.rng.choice(("", "soft=1", "replicas=2"))
        # A unit of eviction may go in two parts while nodes report one after the other.
        self.begun.append((name, range(SIZE + 1) if size == 0 else (0, SIZE) if n == SIZE else (0,)))
        got = self.shell(f"bput {name}/ 0 {n if size else SIZE} {LEN} group={name} members={size} {more}")
        for err in got["results"] or [got["err"]]:
            self.is_done(err)
        name, may_see = self.rng.choice(self.begun[-8:])
        got = self.shell(f"bget {name}/ 0 {SIZE} {LEN}")
        assert got["wrong"] == 0, (name, got)
        assert may_see != (0,) or "OK" not in got["results"], f"{name} is incomplete, and seen: {got}"
        self.read += got["results"].get("OK", 0)

    def check(self, reader):
        """Returns how many groups were there."""
        there = 0
        for name, may_see in self.begun:
            seen = reader(f"bexist {name}/ 0 {SIZE}")
            assert seen["failed"] == 0 and seen["exist"] in may_see, (name, may_see, seen)
            there += seen["exist"] == SIZE
        return there


class Prober(Actor):
    """Asks, and looks up, what others put; never anything else."""

    def __init__(self, pool, name, seed, tenant, path, names):
        super().__init__(pool, name, seed, tenant, path)
        self.names = names

    def step(self):
        name = self.rng.choice(self.names)
        if self.rng.random() < 0.7:
            self.is_done(self.shell(f"bexist {name}/ 0 64")["err"])
            return
        got = self.shell(f"prefix {name}/ 0 8 ttl=100")
        if self.is_done(got["err"]):
            self.is_done(self.shell("release")["err"])


@pytest.fixture
def pool(make_pool, bench):
    """Two hosts, three nodes, and chunks enough for all tenants."""
    pool = make_pool(nodes=2, memory="24MiB", node_args=("--chunk-bytes", "4MiB"), data_dir=f"{bench.home}/data")
    pool.add_node("node3", "24MiB", "--chunk-bytes", "4MiB", "--host-id", "second-host")
    pool.is_whole = True
    pool.evictions = 0  # by masters that are dead
    return pool


def start_actors(pool):
    actors = [kind(pool, f"{kind.__name__.lower()}{tenant}-{path}", f"{kind.__name__}{tenant}{path}", tenant, path)
              for tenant in TENANTS[1:] for path in sorted(PATHS) for kind in (Owner, Grouper)]
    names = [a.name for a in actors if isinstance(a, Owner)]
    actors += [Prober(pool, f"prober{tenant}", tenant, tenant, "shm", names) for tenant in TENANTS[1:]]
    for actor in actors:
        actor.start()
    return actors


def start_loads(pool):
    """Pressure, in a tenant of its own: what is put pushes out what was put before. A version that was read before it was
    acknowledged may be undone by the master's death: readers are held to what was acknowledged.
    """
    board = Board(pool.bench, 2, keys=16)
    common = dict(batch=4, min_bytes=4 * KIB, max_bytes=256 * KIB, window=40, pause_ms=10, deadline_ms=DEADLINE, seed=7,
                  **board.options)
    return [Load(pool.bench, pool.addr, f"load-{path}", putters=1, getters=1, upserters=1, checkers=1, probers=1,
                 stream_base=i, remove_pct=20, replicas=1 + i, seen=0, **common, **PATHS[path]).ready()
            for i, path in enumerate(sorted(PATHS))]


def wait_for_progress(actors, what):
    seen = {a: a.done for a in actors}
    wait_until(lambda: all(a.error or a.done >= n + 5 for a, n in seen.items()), 40, f"everybody to get on after {what}")


def freeze_a_node(pool, rng):
    node = rng.choice(pool.nodes)
    node.freeze()
    time.sleep(FROZEN_S)
    node.thaw()


def kill_the_master(pool, turn):
    listen, data_dir = pool.master.listen, pool.master.data
    pool.evictions += figures(pool.master)["evictions"]
    pool.is_whole = False
    pool.master.kill9()
    pool.master = pool.bench.master(listen=listen, data_dir=data_dir, name=f"master{turn + 2}")
    wait_until(lambda: figures(pool.master)["segments"] == len(pool.nodes), 30, "all nodes to have told what they hold")
    pool.is_whole = True


def kill_a_client(pool, turn):
    """In the middle of a group, which goes with it."""
    client = Shell(pool.bench, pool.addr, f"short{turn}", tenant=TENANTS[-1], **PATHS["shm"])
    client.say(f"bput short{turn}/ 0 {SIZE - 1} {LEN} group=short{turn} members={SIZE} replicas=2")
    time.sleep(0.01)
    client.kill9()


def was_full(pool):
    return pool.evictions + figures(pool.master)["evictions"] > 0


def hurt(pool, actors):
    """Everything that may happen, in turn, with time to get on in between; on a busy machine until the pool was full."""
    rng, end, turn = random.Random(1), time.monotonic() + SOAK_S, 0
    while turn == 0 or time.monotonic() < end or (not was_full(pool) and time.monotonic() < end + 60):
        for what, hurts in (("the master's death", lambda: kill_the_master(pool, turn)),
                            ("a client's death", lambda: kill_a_client(pool, turn)),
                            ("a node that stood still", lambda: freeze_a_node(pool, rng))):
            hurts()
            wait_for_progress(actors, what)
            time.sleep(SOAK_S / 20 if TIER != "long" else 5)
        turn += 1


def listed(pool):
    return sum(len(pool.kvpool("ls", "--tenant", tenant).out.splitlines()) for tenant in TENANTS)


def check_counters(pool):
    """With nobody at work: what is counted in several places is the same in each."""
    stats = [pool.kvpool("stat", "--json", "--tenant", tenant).json for tenant in TENANTS]
    pool_, segments = stats[0]["pool"], stats[0]["segments"]
    tenants = [next((t for t in s["tenants"] if t["tenant"] == tenant), {"objects": 0, "used_bytes": 0})
               for tenant, s in zip(TENANTS, stats)]
    assert sum(t["objects"] for t in tenants) == pool_["objects"] == listed(pool), (tenants, pool_)
    assert sum(s["used_bytes"] for s in segments) == pool_["used_bytes"], (segments, pool_)
    assert sum(t["used_bytes"] for t in tenants) == pool_["used_bytes"], (tenants, pool_)
    assert pool_["held_bytes"] == pool_["reserved_bytes"] == pool_["quarantine_bytes"] == 0, pool_


@slow
@pytest.mark.limit(SOAK_S + 240)
def test_everything_at_once(pool):
    """Fails on a wrong byte, an incomplete group that is seen, a part of a whole one, a pinned object that is gone or
    older than what was acknowledged, an actor that does not get on after something was hurt, or anything that is left, or
    counted differently, when all is over.
    """
    actors = start_actors(pool)
    loads = start_loads(pool)
    hurt(pool, actors)
    for actor in actors:
        actor.end()
    for load in loads:
        got = load.stop(60)
        assert got["wrong"] == 0, f"{load.name}: {got['wrong']} wrong, the first: {got['first_wrong']}"
        assert got["results"]["OK"] > SOAK_S // (8 if SAN else 1), (load.name, got["results"])
        assert set(got["results"]) <= CUT | {"OK", "NOT_FOUND", "ALREADY", "NO_SPACE"}, (load.name, got["results"])
    assert was_full(pool), "the pool was never full: nothing was pressed"
    for actor in actors:
        readers = [Shell(pool.bench, pool.addr, f"{actor.name}-by-{path}", tenant=actor.tenant, **PATHS[path])
                   for path in sorted(PATHS)]
        for reader in readers if isinstance(actor, (Owner, Grouper)) else []:
            assert actor.check(reader) > 0 or isinstance(actor, Grouper), f"nothing of {actor.name} is there"
        if isinstance(actor, Grouper):
            assert actor.read > 0, f"{actor.name} never read a group"
            last = f"bput {actor.name}-last/ 0 {SIZE} {LEN} group={actor.name}-last members={SIZE}"
            assert actor.shell(last)["results"] == {"OK": SIZE}
            assert readers[0](f"bget {actor.name}-last/ 0 {SIZE} {LEN}")["results"] == {"OK": SIZE}
        for reader in readers:
            assert reader.finish() == 0
        assert actor.shell.finish() == 0
    settled(pool.master, "everything under way to end", 20)
    wait_until(lambda: figures(pool.master)["objects"] == listed(pool), GRACE_S + 10, "hidden members to go")
    settled(pool.master, "their space to come back", 20)
    check_counters(pool)
    for tenant in TENANTS:
        cleaner = Shell(pool.bench, pool.addr, f"cleaner{tenant}", tenant=tenant)
        wait_until(lambda: cleaner("all force=1")["err"] == "OK", GRACE_S, "the removal of everything to be taken")
        assert cleaner.finish() == 0
    settled(pool.master, "everything to be gone", 20, used_bytes=0)
    names = ("clients", "objects", "groups", "soft_pinned_bytes", "hard_pinned_bytes", "held_bytes", "reserved_bytes",
             "pending_puts")
    wait_until(lambda: figures(pool.master)["clients"] == 0, 10, "the last client to be gone")
    now = figures(pool.master)
    assert {name: now[name] for name in names} == dict.fromkeys(names, 0)
