# SPDX-License-Identifier: Apache-2.0
"""Processes that die, stop and come back under transfers by rdma: nodes, clients, the master, and children that were forked.
Every call comes back by its deadline with a result for each key, no byte is wrong, and what is whole again is used again.
That each transfer completes once is seen from outside: a completion that never comes makes a late call, and one that comes twice
a wrong byte or a crash.
"""
import random
import time

import pytest

from clients import PATHS, Board, Load, Shell, Talker, E2E, figures, settled
from conftest import SLOW, TIER, wait_until
from test_node_killed import TYPED_GET, TYPED_PUT

KIB, MIB = 1 << 10, 1 << 20
DEADLINE_MS = 4000
GRACE_MS = 500 * SLOW  # what emulated processors may add
PHASE_S = 10.0 if TIER == "long" else 1.5
ROUNDS = {"quick": 1, "normal": 2, "long": 30}[TIER]
ELSEWHERE = PATHS["tcp"]
TYPED = TYPED_GET | TYPED_PUT
MASTER_DOWN = {"UNREACHABLE", "DISCONNECTED", "FENCED"}


# ---- loads


class Loads:
    """A process that puts, and one that gets what was put and checks it."""

    def __init__(self, pool, replicas=1, max_bytes=128 * KIB):
        self.board = Board(pool.bench, 1)
        common = dict(deadline_ms=DEADLINE_MS, batch=4, min_bytes=4 * KIB, max_bytes=max_bytes, window=60, **self.board.options)
        self.putter = Load(pool.bench, pool.addr, "put", putters=1, replicas=replicas, **common, **ELSEWHERE).ready()
        self.getter = Load(pool.bench, pool.addr, "get", getters=2, **common, **ELSEWHERE).ready()
        self.both = [self.putter, self.getter]
        wait_until(lambda: self.board.begun(0) > 60 and self.getter.done() > 20, 30, "something to be got")

    def check_hurt(self, what, typed=TYPED, floor=0):
        """While something is broken not everything need succeed; but each call ends in time, and says what became of each
        key. As much as the floor is served, for which it may take a while."""
        time.sleep(PHASE_S)
        for load in self.both:
            served = 0

            def has_served():
                nonlocal served
                got = load.mark()
                assert got["wrong"] == 0, (load.name, what, got["first_wrong"])
                assert set(got["results"]) <= typed, (load.name, what, got["results"])
                assert got["max_ms"] < DEADLINE_MS + GRACE_MS, (load.name, what, got)
                served += got["results"].get("OK", 0)
                return served >= floor

            wait_until(has_served, 10, f"{floor} objects of {load.name} {what}")

    def check_whole(self, what):
        """Within a while nothing fails any more."""
        last = []

        def is_quiet():
            time.sleep(0.5)
            last[:] = [load.mark() for load in self.both]
            assert all(m["wrong"] == 0 and m["max_ms"] < DEADLINE_MS + GRACE_MS for m in last), (what, last)
            return all(set(m["results"]) <= {"OK", "NOT_FOUND", "STALE"} and m["results"].get("OK") for m in last)

        try:
            wait_until(is_quiet, 15, what)
        except pytest.fail.Exception:
            pytest.fail(f"{what}, not everything works: {[(m['results'], m['max_ms']) for m in last]}")

    def end(self):
        """They end by themselves: no call waits for a completion that never comes."""
        for load in self.both:
            got = load.stop()
            assert got["wrong"] == 0, (load.name, got["first_wrong"])


def objects(pool, node):
    segments = pool.kvpool("stat", "--json").json["segments"]
    return sum(s["objects"] for s in segments if s["node"] == node and s["state"] == "up")


def two_hosts(make_pool, memory="32MiB"):
    """Nodes that count as hosts of their own, so that copies lie on both."""
    pool = make_pool(nodes=0)
    for i in (1, 2):
        pool.add_node(f"node{i}", memory, "--host-id", f"host-{i}")
    return pool


# ---- nodes


@pytest.mark.limit(120)
@pytest.mark.parametrize("replicas", [1, 2])
def test_node_killed_under_load(make_pool, replicas):
    """Fails if, with one of two nodes killed under puts and gets, a call outlives its deadline, a byte is wrong, what the other
    one holds is not served or nothing can be put; or if the node, started again as who it was and where it was, with new memory
    and new keys under the clients' old ones, is not used again, or anything fails then.
    """
    pool = two_hosts(make_pool)
    loads = Loads(pool, replicas)
    old = pool.nodes[0]
    old.kill9()
    loads.check_hurt("with one node", floor=20)
    pool.bench.node(pool.master, "node1", "32MiB", "--host-id", "host-1", listen=old.listen)
    wait_until(lambda: objects(pool, "node1") > 10, 20, "the node to be used again")
    loads.check_whole("with the node back")
    loads.end()


@pytest.mark.limit(120)
@pytest.mark.pool(nodes=1, memory="32MiB")
def test_node_comes_back_with_new_keys(pool):
    """Fails if a client that knows places in the memory of a node, and keys to it, gets anything by them from the node that was
    started in its stead at the same address: other objects lie there, under other keys.
    """
    reader = Shell(pool.bench, pool.addr, "reader", **ELSEWHERE)
    writer = Shell(pool.bench, pool.addr, "writer", **ELSEWHERE)
    for turn in range(ROUNDS):
        assert writer(f"bput k/ 0 32 50000 version={turn}")["results"] == {"OK": 32}
        for _ in range(2):
            got = reader("bget k/ 0 32 50000")
            assert got["results"] == {"OK": 32} and got["wrong"] == 0, got
        old = pool.nodes[-1]
        old.kill9()
        pool.nodes.append(pool.bench.node(pool.master, "node1", "32MiB", listen=old.listen))
        wait_until(lambda: writer("bput other/ 0 32 50000")["results"].get("OK"), 10, "the new node to be written to")
        got = reader(f"bget k/ 0 32 50000 deadline={DEADLINE_MS}")
        assert got["wrong"] == 0 and "OK" not in got["results"], got
        wait_until(lambda: reader("bget other/ 0 32 50000")["results"].get("OK"), 10, "the new node to be read from")
        got = reader("bget other/ 0 32 50000")
        assert got["wrong"] == 0 and set(got["results"]) <= {"OK", "NOT_FOUND"}, got
        assert writer("all force=1")["err"] == "OK"


@pytest.mark.limit(120)
@pytest.mark.pool(nodes=2, memory="32MiB")
def test_memory_goes_under_readers(pool):
    """Fails if the memory of a node that stops in order, which takes it from its device under the READs of clients that know
    where objects lie, gives them a wrong byte or lets a call outlive its deadline; if the node does not stop; or if the other
    one does not serve then.
    """
    loads = Loads(pool)
    assert pool.nodes[0].terminate(20 * SLOW) == 0
    loads.check_hurt("with a node's memory gone", floor=20)
    loads.check_whole("with one node")
    loads.end()


@pytest.mark.limit(180)
@pytest.mark.pool(nodes=1, memory="16MiB")
def test_extents_are_retired_under_readers(pool):
    """Fails on a wrong byte in objects that are removed by force, evicted and overwritten under the READs of those who know where
    they lay; if little is removed, evicted or read; or if no reader ever met what was gone: then nothing was raced.
    """
    board = Board(pool.bench, 1)
    common = dict(batch=4, min_bytes=4 * KIB, max_bytes=MIB, window=24, **board.options)
    putter = Load(pool.bench, pool.addr, "put", putters=1, remove_pct=50, **common, **ELSEWHERE).ready()
    getter = Load(pool.bench, pool.addr, "get", getters=2, **common, **ELSEWHERE).ready()

    def is_enough():
        return min(figures(pool.master)[name] for name in ("evictions", "removes")) > 30 and getter.done() > 100

    wait_until(is_enough, 60, "enough to be evicted, removed and read")
    time.sleep(PHASE_S)
    for load in (putter, getter):
        got = load.stop()
        assert got["wrong"] == 0, got["first_wrong"]
        assert set(got["results"]) <= TYPED, got
    assert got["stat"]["client"]["stale_reads"] + got["results"].get("NOT_FOUND", 0) > 0, got


@pytest.mark.limit(120)
@pytest.mark.pool(nodes=2, memory="32MiB")
def test_node_stands_still(pool):
    """Fails if, with the processes of one of two nodes stopped (its adapter is not), a call outlives its deadline, a byte is wrong,
    or nothing is served; or if not everything works again once it goes on.
    """
    loads = Loads(pool)
    pool.nodes[0].freeze()
    loads.check_hurt("with a node stopped", floor=20)
    stranger = Shell(pool.bench, pool.addr, "stranger", **ELSEWHERE)  # who has no connection to it yet
    got = stranger(f"bput new/ 0 8 50000 deadline={DEADLINE_MS}")
    assert set(got["results"]) <= TYPED_PUT and got["ms"] < DEADLINE_MS + GRACE_MS, got
    pool.nodes[0].thaw()
    loads.check_whole("after the node went on")
    wait_until(lambda: stranger("bput more/ 0 8 50000")["results"] == {"OK": 8}, 10, "the stranger to be served")
    loads.end()


# ---- the master


@pytest.mark.limit(120)
def test_master_killed_under_load(make_pool, bench):
    """Fails if, with the master killed and started again under puts and gets, whose new term makes nodes revoke the keys that
    its predecessor's clients write with, a call outlives its deadline, a byte is wrong, or not everything works again.
    """
    pool = make_pool(nodes=2, memory="32MiB", data_dir=f"{bench.home}/data")
    loads = Loads(pool)
    for turn in range(ROUNDS):
        listen = pool.master.listen
        pool.master.kill9()
        time.sleep(0.5)
        pool.master = bench.master(listen=listen, data_dir=f"{bench.home}/data", name=f"master{turn + 2}")
        wait_until(lambda: figures(pool.master)["segments"] == 2, 20, "both nodes to have told what they hold")
        loads.check_hurt("with another master", TYPED | MASTER_DOWN | {"ALREADY"})
        loads.check_whole("with another master")
    loads.end()


# ---- clients


def put_by_another(other, key, length):
    """Puts the key of a writer that stands still: within 2 s it is nobody's. Returns the version that is there then: 1 where
    the writer had been through with it (a put of what is there is OK, and changes nothing)."""
    begun = time.monotonic()
    while (got := other(f"put {key} {length} version=2"))["err"] == "IN_PROGRESS":
        assert time.monotonic() - begun < 2 * SLOW, f"{key} is still the writer's"
        time.sleep(0.05)
    assert got["err"] == "OK", got
    got = other(f"get {key} {4 * MIB}")
    assert got["err"] == "OK" and got["intact"], got
    return got["version"]


MEANWHILE = 23  # MiB, put while the writer stands still


def check_all_there(reader, n, turn):
    for i in range(n):
        got = reader(f"get f{i} {MIB}")
        assert got["err"] == "OK" and got["intact"] and got["version"] == i, (turn, i, got)


@pytest.mark.limit(300)
@pytest.mark.pool(nodes=1, memory="28MiB")
def test_writer_stops_in_the_middle_of_writes(pool):
    """Fails if the key of a client that was stopped at any moment of a put, with writes at its adapter, cannot be put by another
    within 2 s, or is not what that one put from then on, also after the client goes on; if a byte of anything that was put
    meanwhile, into the space that it had among others, is wrong; or if its space does not come back.
    """
    rng = random.Random(9)
    other = Shell(pool.bench, pool.addr, "other", **ELSEWHERE)
    writer = Shell(pool.bench, pool.addr, "writer", **ELSEWHERE)
    whole_ms = min(writer(f"put warm{i} {4 * MIB}")["ms"] for i in range(3))
    taken = 0
    for turn in range(2 * ROUNDS):
        assert other("all force=1")["err"] == "OK"
        writer.say(f"put k {4 * MIB} version=1")
        time.sleep(rng.uniform(0.1, 0.8) * whole_ms / 1000)
        writer.freeze()
        version = put_by_another(other, "k", 2 * MIB)
        taken += version == 2
        if version == 1:  # through already: the next one is stopped earlier
            whole_ms /= 2
        evictions = settled(pool.master, "the space of a writer that stands still", 10)["evictions"]
        for i in range(MEANWHILE):  # so many fit only if what the writer had is used again
            assert other(f"put f{i} {MIB} version={i}")["err"] == "OK"
        assert figures(pool.master)["evictions"] == evictions
        writer.thaw()
        late = writer.hear()
        assert late["err"] in {"OK", "ABORTED", "IN_PROGRESS", "DEADLINE", "NODE_LOST"}, late
        got = other(f"get k {4 * MIB}")
        assert got["err"] == "OK" and got["intact"] and got["version"] == version, (turn, got)
        check_all_there(other, MEANWHILE, turn)
        settled(pool.master, f"the space of turn {turn}", 10)
    assert taken > 0, f"none of {2 * ROUNDS} puts was hit in the middle"


def fill(client):
    """Fills the pool so that a put has to wait: all is pinned but one object, and that is reserved."""
    pinned = 0
    while (got := client(f"put p{pinned} {MIB} pin=1 deadline={1000 * SLOW:g}"))["err"] == "OK":
        pinned += 1
    assert pinned > 8 and got["err"] in {"NO_SPACE", "RETRY_AFTER"}, (pinned, got)
    assert client("remove p0 force=1")["err"] == "OK"
    assert client(f"put r0 {MIB}")["err"] == "OK"
    assert client("lookup r 0 1 ttl=10000")["granted"] == 1


@pytest.mark.limit(300)
@pytest.mark.pool(nodes=1, memory="28MiB")
def test_writer_stops_before_its_first_write(pool):
    """Fails if a client that was never connected to the node, and is stopped while the master looks for room for it, writes
    into what it was given then, once that is another's: it finds no connection of its own ended.
    """
    other = Shell(pool.bench, pool.addr, "other", **ELSEWHERE)
    for turn in range(2 * ROUNDS):
        assert other("all force=1")["err"] == "OK"
        fill(other)
        writer = Shell(pool.bench, pool.addr, f"writer{turn}", **ELSEWHERE)
        writer.say(f"put k {4 * MIB} version=1 deadline=60000")
        time.sleep(0.5 * SLOW)  # it is asked for, and waits
        writer.freeze()
        assert other("all force=1")["err"] == "OK"
        wait_until(lambda: figures(pool.master)["attempts"] == 1, 5, "room to be given to the one that stands still")
        assert other("release")["err"] == "OK"
        assert put_by_another(other, "k", 2 * MIB) == 2
        settled(pool.master, "the space of a writer that stands still", 10)
        for i in range(MEANWHILE):
            assert other(f"put f{i} {MIB} version={i}")["err"] == "OK"
        writer.thaw()
        late = writer.hear()
        assert late["err"] in {"OK", "ABORTED", "IN_PROGRESS"}, late
        got = other(f"get k {4 * MIB}")
        assert got["err"] == "OK" and got["intact"] and got["version"] == 2, (turn, got)
        check_all_there(other, MEANWHILE, turn)
        assert writer.finish() == 0
        settled(pool.master, f"the space of turn {turn}", 10)


@pytest.mark.limit(200)
@pytest.mark.pool(nodes=2, memory="32MiB")
def test_killed_clients_leave_nothing(pool):
    """Fails if the keys of clients that were killed in the middle of writes cannot be put at once, if what is put then is not
    whole, or if their space does not come back, to the last byte.
    """
    rng = random.Random(4)
    other = Shell(pool.bench, pool.addr, "other", **ELSEWHERE)
    for turn in range(ROUNDS):
        writer = Shell(pool.bench, pool.addr, f"writer{turn}", **ELSEWHERE)
        writer.say(f"bput k{turn}/ 0 8 {2 * MIB}")
        time.sleep(rng.uniform(0.02, 0.4))
        writer.kill9()
        wait_until(lambda: set(other(f"bput k{turn}/ 0 8 {2 * MIB}")["results"]) <= {"OK", "ALREADY"}, 2, "its keys")
        got = other(f"bget k{turn}/ 0 8 {2 * MIB}")
        assert got["results"] == {"OK": 8} and got["wrong"] == 0, got
        assert other("all force=1")["err"] == "OK"
        settled(pool.master, f"the space of turn {turn}", 10, used_bytes=0)


# ---- forks


def test_forked_child(bench, make_pool):
    """Fails if a child of a process that has a pool open by rdma waits for anything, or is told anything but that and why it cannot
    use rdma; if it cannot use the other transports; or if its parent notices it: by a wrong byte of memory that is
    registered and was shared between them, or by a connection that ends with the child.
    """
    pool = make_pool(nodes=0)
    pool.nodes.append(bench.node(pool.master, "at-device", env={"KVPOOL_TRANSPORTS": ""}))
    env = bench.env
    bench.env = lambda **extra: env(KVPOOL_MASTER=pool.addr, **extra)
    got = Talker(bench, "life", [E2E / "e2e_life", "worker"]).hear(60)
    assert got["child_get"] == "FORKED", got
    assert got["child_rdma"] == "NOTSUP" and "was forked from a process that had opened its RDMA devices" in got["child_rdma_detail"], got
    assert got["child_any"] == "OK" and got["child_status"] == 0, got
    assert got["child_ms"] < 2000 * SLOW, got
    assert got["before"] and got["beside"] and got["after"], got
    client = got["stat"]["client"]
    assert client["attaches"] == 1 and client["peer_failures"] == 0, client
    assert [s["transport"] for s in got["stat"]["segments"]] == ["rdma"], got["stat"]["segments"]
