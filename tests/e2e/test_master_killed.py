# SPDX-License-Identifier: Apache-2.0
"""The master is killed and started again while the nodes live: what they hold is found again, what was removed or
replaced is not. The index itself is kept nowhere but in the nodes' memory.
"""
import json
import random
import shutil
import threading
import time

import pytest

from clients import PATHS, Shell, check_versions, figures, settled, slow
from conftest import SLOW, TIER, wait_until

LEN = 4096
KEYS = 400  # of each worker
FILL = 2000  # that nobody touches while the master dies
DOWN = ("UNREACHABLE", "DISCONNECTED", "DEADLINE", "FENCED", "ABORTED", "NODE_LOST", "RETRY_AFTER", "IN_PROGRESS")


class Worker(threading.Thread):
    """Puts, upserts and removes keys of its own, one call at a time, and knows for each which versions (0 = none) a
    reader may find: the one that was acknowledged, and those of calls since then whose outcome it was not told.
    """

    def __init__(self, pool, name, seed, deadline, **path):
        super().__init__(daemon=True)
        self.pool = pool
        self.shell = Shell(pool.bench, pool.addr, name, **path)
        self.deadline = deadline  # of a call: to open the pool may take longer than that
        self.rng = random.Random(seed)
        self.may_be = {f"{name}/{i}": {0} for i in range(KEYS)}
        self.version = 0
        self.acknowledged = 0
        self.failed = []
        self.is_over = False

    def run(self):
        while not self.is_over and not self.is_spent():
            self.step(self.rng.choice(list(self.may_be)))

    def is_spent(self):
        """Calls were cut on all of its keys, as they may be where a short deadline meets a busy machine."""
        return all(len(versions) > 1 for versions in self.may_be.values())

    def step(self, key):
        """A key whose state is not known is left alone: what comes next could not be told apart."""
        if len(self.may_be[key]) > 1:
            return
        self.version += 1
        if self.may_be[key] == {0}:
            line, becomes = f"put {key} {LEN} version={self.version}", self.version
        elif self.rng.random() < 0.5:
            line, becomes = f"put {key} {LEN} version={self.version} upsert=1", self.version
        else:
            line, becomes = f"remove {key} force=1", 0
        master, was_whole = self.pool.master, self.pool.is_whole
        err = self.shell(f"{line} deadline={self.deadline}")["err"]
        # A removal that the dead master had carried out, and not answered, finds nothing when it is asked again; nor does
        # one of what was not reported yet.
        may_miss = becomes == 0 and not (was_whole and self.pool.is_whole and master is self.pool.master)
        if err == "OK" or (err == "NOT_FOUND" and may_miss):
            self.may_be[key] = {becomes}
            self.acknowledged += 1
        else:
            self.may_be[key].add(becomes)
            self.failed.append((line, err))

    def end(self):
        self.is_over = True
        self.join(30 * SLOW)
        assert not self.is_alive()
        assert all(err in DOWN for _, err in self.failed), self.failed


def kill_and_start(pool, n, disk="kept"):
    """Returns the new master and when it was started."""
    listen, data_dir = pool.master.listen, pool.master.data
    pool.is_whole = False
    pool.master.kill9()
    if disk == "gone":
        shutil.rmtree(data_dir)
    time.sleep(0.05 * SLOW)  # some calls must not outlive it
    begun = time.monotonic()
    pool.master = pool.bench.master(listen=listen, data_dir=data_dir, name=f"master{n}")
    return begun


@pytest.mark.limit(240)
@pytest.mark.parametrize("disk", ["kept", "gone"])
def test_master_killed(make_pool, bench, disk):
    """Fails if, after kill -9 of the master during puts, upserts and removals, and a start with the same data directory,
    or with an empty one (then the nodes alone know which pool they are), an acknowledged object is missing or has another version, a removed one is served, a byte is wrong, one of the objects
    that nobody touched is missed, or puts do not work.
    """
    pool = make_pool(nodes=2, data_dir=f"{bench.home}/data")
    prober = Shell(bench, pool.addr, "prober")
    pool.is_whole = True
    workers = [Worker(pool, f"w{i}", i, (25 if i < 2 else 2000) * SLOW, **PATHS[path])
               for i, path in enumerate(sorted(PATHS) * 2)]
    for i in range(0, FILL, 500):
        assert prober(f"bput fill/ {i} 500 {LEN} deadline={10000 * SLOW}")["results"] == {"OK": 500}
    for worker in workers:
        worker.start()
    for turn in range(5 if TIER == "long" else 2):
        seen = [w.acknowledged for w in workers]
        wait_until(lambda: all(w.acknowledged > n + 100 or w.is_spent() for w, n in zip(workers, seen)), 60, "the workers to work")
        assert not all(w.is_spent() for w in workers), "nobody works any more"
        begun = kill_and_start(pool, turn + 2, disk)
        wait_until(lambda: prober(f"exists fill/{turn} deadline=200")["err"] == "OK", 20, "the master to answer")
        wait_until(lambda: prober(f"exists fill/{turn} deadline=200").get("exists") == 1, 20, "the first hit")
        print(f"first hit {1e3 * (time.monotonic() - begun):.0f} ms after the start of the master")
        wait_until(lambda: figures(pool.master)["segments"] == 2, 20, "both nodes to have told what they hold")
        pool.is_whole = True
    for worker in workers:
        worker.end()
    for path in PATHS:
        reader = Shell(bench, pool.addr, f"reader-{path}", **PATHS[path])
        for i in range(0, FILL, 500):
            got = reader(f"bget fill/ {i} 500 {LEN}")
            assert got["results"] == {"OK": 500} and got["wrong"] == 0, got
        for worker in workers:
            check_versions(reader, worker.may_be, LEN)
    assert prober(f"bput new/ 0 100 {LEN} deadline={10000 * SLOW}")["results"] == {"OK": 100}
    assert prober(f"bget new/ 0 100 {LEN}")["results"] == {"OK": 100}
    assert any(len(v) > 1 for w in workers for v in w.may_be.values()), "no call was cut: nothing was shown"


def restart_when_told(pool):
    """The master dies, and the next one has heard what both nodes hold."""
    kill_and_start(pool, 2)
    wait_until(lambda: figures(pool.master)["segments"] == 2, 20, "both nodes to have told what they hold")


def test_groups_and_pins_outlive_the_master(make_pool, bench):
    """Fails if, after kill -9 of the master, a whole group is not found whole, one that is not is seen at all, one cannot be
    finished or is not evicted as one, or if a pin does not protect any more.
    """
    size, block = 8, 65536
    pool = make_pool(nodes=2, memory="16MiB", data_dir=f"{bench.home}/data")
    writer = Shell(bench, pool.addr, "writer", **PATHS["shm"])
    reader = Shell(bench, pool.addr, "reader", **PATHS["tcp"])

    def put(prefix, first, n, more):
        got = writer(f"bput {prefix}/ {first} {n} {block} {more} deadline={10000 * SLOW}")
        assert got["results"] == {"OK": n}, (prefix, got)

    def seen(prefix, n=size):
        return reader(f"bexist {prefix}/ 0 {n}")["exist"]

    for g in range(size):
        put(f"whole{g}", 0, size, f"group=whole{g} members={size}")
    put("part", 0, 5, f"group=part members={size}")
    put("holed", 0, size, f"group=holed members={size}")
    put("unit", 0, size, "group=unit members=0")
    put("hard", 0, size, "pin=1")
    put("soft", 0, size, "soft=1")
    assert reader("remove holed/3")["err"] == "OK"
    assert seen("holed") == size - 1 and seen("part") == 0
    before = figures(pool.master)
    assert all(s["used_bytes"] > 0 for s in pool.kvpool("stat", "--json").json["segments"]), "one node has everything"
    restart_when_told(pool)
    assert seen("part") == 0 and seen("holed") == 0
    for g in range(size):
        got = reader(f"bget whole{g}/ 0 {size} {block}")
        assert got["results"] == {"OK": size} and got["wrong"] == 0, got
    # What lies between the objects is nobody's when the writers of the time before have said that they are done.
    assert writer("exists hard/0")["exists"] == 1
    after = settled(pool.master, timeout=20, used_bytes=before["used_bytes"] - (size - 1) * block)  # "holed" is not whole
    assert after["groups"] == before["groups"] - 1
    for name in ("soft_pinned_bytes", "hard_pinned_bytes"):
        assert after[name] == before[name], name
    put("part", 5, 3, f"group=part members={size}")
    got = reader(f"bget part/ 0 {size} {block}")
    assert got["results"] == {"OK": size} and got["wrong"] == 0, got
    units = set()
    for i in range(0, 1024, 16):  # twice the pool
        put("fill", i, 16, "")
        units.add(pool.kvpool("ls", "unit/").out.count(b"unit/"))  # neither a use nor a probe
    assert units == {0, size}
    for prefix in ("hard", "soft"):
        got = reader(f"bget {prefix}/ 0 {size} {block}")
        assert got["results"] == {"OK": size} and got["wrong"] == 0, (prefix, got)


@slow
@pytest.mark.limit(120)
def test_incomplete_group_goes_when_no_node_can_bring_the_rest(make_pool, bench):
    """Fails if the members of a group that a dead master's client left unfinished are kept for good."""
    pool = make_pool(nodes=2, memory="16MiB", data_dir=f"{bench.home}/data")
    writer = Shell(bench, pool.addr, "writer", **PATHS["shm"])
    assert writer(f"bput part/ 0 5 {LEN} group=part members=8")["results"] == {"OK": 5}
    assert writer(f"bput plain/ 0 5 {LEN}")["results"] == {"OK": 5}
    writer.kill9()
    settled(pool.master, used_bytes=5 * LEN)
    writer = Shell(bench, pool.addr, "writer2", **PATHS["shm"])
    assert writer(f"bput part/ 0 5 {LEN} group=part members=8")["results"] == {"OK": 5}
    restart_when_told(pool)
    settled(pool.master, timeout=20, used_bytes=10 * LEN)
    settled(pool.master, "the group to be dropped", timeout=60, used_bytes=5 * LEN)
    assert figures(pool.master)["groups"] == 0


def test_all_of_a_pool_lost(make_pool, bench):
    """Fails if a client of a pool of which nothing is left finds an old key in the new one at the same port, or if puts and
    gets do not work within 10 s.
    """
    pool = make_pool(nodes=1, memory="32MiB", data_dir=f"{bench.home}/data")
    client = Shell(bench, pool.addr, "client", deadline=1000 * SLOW)
    assert client(f"bput old/ 0 100 {LEN}")["results"] == {"OK": 100}
    listen = pool.master.listen
    for daemon in (pool.nodes[0], pool.master):
        daemon.kill9()
    shutil.rmtree(f"{bench.home}/data")
    pool.master = bench.master(listen=listen, data_dir=f"{bench.home}/data", name="master2")
    pool.add_node(memory="32MiB")
    wait_until(lambda: client(f"put first {LEN}")["err"] == "OK", 10, "the client to come back")
    assert client(f"bget old/ 0 100 {LEN}")["results"] == {"NOT_FOUND": 100}
    assert client(f"bput new/ 0 100 {LEN}")["results"] == {"OK": 100}
    got = client(f"bget new/ 0 100 {LEN}")
    assert got["results"] == {"OK": 100} and got["wrong"] == 0, got


def test_a_start_that_nothing_came_of_costs_nothing(make_pool, bench):
    """Fails if a master without its disk that was stopped before a node found it makes the next one another pool, if a
    removal is answered before it is known which pool this is, or if what a node holds is lost.
    """
    pool = make_pool(nodes=1, memory="32MiB", data_dir=f"{bench.home}/data")
    client = Shell(bench, pool.addr, "client", deadline=1000 * SLOW)
    assert client(f"bput old/ 0 100 {LEN}")["results"] == {"OK": 100}
    listen = pool.master.listen
    pool.master.kill9()
    shutil.rmtree(f"{bench.home}/data")
    stray = bench.master(data_dir=f"{bench.home}/data", name="stray")
    r = bench.run("kvpool", "rm", "--master", stray.listen, "--deadline", "2s", "old/0")
    assert r.rc == 1 and "no node has offered memory yet" in r.err, r
    stray.kill9()
    pool.master = bench.master(listen=listen, data_dir=f"{bench.home}/data", name="master2")
    wait_until(lambda: client(f"bget old/ 0 100 {LEN}")["results"] == {"OK": 100}, 10, "the pool to come back")
    pool_id = json.loads(pool.master.http_get("/health")[1])["pool_id"]
    pool.master.kill9()
    pool.master = bench.master(listen=listen, data_dir=f"{bench.home}/data", name="master3")
    assert json.loads(pool.master.http_get("/health")[1])["pool_id"] == pool_id, "the name was not kept"


def test_terms_that_were_used_before(make_pool, bench):
    """Fails if a master whose first node had missed the master before, so that it takes that one's term again, throws away
    what another node holds of that term.
    """
    pool = make_pool(nodes=2, memory="32MiB")
    early, late = pool.nodes
    client = Shell(bench, pool.addr, "client", deadline=10000 * SLOW)
    listen = pool.master.listen

    def restart(n, node):
        pool.master.kill9()
        pool.master = bench.master(listen=listen, name=f"master{n}")
        wait_until(lambda: figures(pool.master)["segments"] == 1, 20, f"{node.name} to come alone")

    early.freeze()
    restart(2, late)
    assert client(f"bput k/ 0 50 {LEN}")["results"] == {"OK": 50}
    late.freeze()
    pool.master.kill9()
    early.thaw()
    pool.master = bench.master(listen=listen, name="master3")
    wait_until(lambda: figures(pool.master)["segments"] == 1, 20, "the one that missed a master")
    late.thaw()
    wait_until(lambda: client(f"bget k/ 0 50 {LEN}")["results"] == {"OK": 50}, 20, "the other one's objects")
