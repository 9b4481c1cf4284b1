# SPDX-License-Identifier: Apache-2.0
"""Known locations: what was got before is got again with no message to anyone, and never for longer than it may be."""
import time

import pytest

from clients import PATHS, Shell, slow
from conftest import RDMA, SLOW, wait_until

SIZE = 4096
LEASE_S = 1.0  # the master's default
# Gets that may find their lease over, because the heartbeat's thread had no processor for so long: in the guest it happens.
MAY_LAPSE = 10 if RDMA else 0


@pytest.fixture(params=sorted(PATHS))
def reader(request, pool):
    return Shell(pool.bench, pool.addr, f"reader-{request.param}", **PATHS[request.param])


@pytest.fixture
def writer(pool):
    return Shell(pool.bench, pool.addr, "writer", **PATHS["shm"])


def counters(shell):
    """What the client counted: gets from known locations, and messages to the master (that of stat itself left out)."""
    client = shell("stat")["stat"]["client"]
    return client["known_location_gets"], client["master_calls"]


def get_known(reader, key, timeout=10):
    """Gets the key until that needed no question: then its location is known, under a lease."""
    def is_known():
        before = counters(reader)[0]
        got = reader(f"get {key} {SIZE}")
        assert got["err"] == "OK" and got["intact"], got
        return counters(reader)[0] > before
    wait_until(is_known, timeout, "the location to be known")


def last_served(reader, line):
    """Repeats the get until it gives something else than the object; returns when the last one was asked that did: what
    comes behind the question, the machine may have delayed.
    """
    asked = last = time.monotonic()
    got = reader(line)
    while got["err"] == "OK":
        last = asked
        time.sleep(0.01)
        asked = time.monotonic()
        got = reader(line)
    print(f"then: {got}")
    return last


def test_repeated_get_sends_nothing(pool, writer, reader):
    """Fails if a get of what was got a moment ago sends a message to the master, by the client's counters or by the
    master's own.
    """
    assert writer(f"put k {SIZE} version=5")["err"] == "OK"
    get_known(reader, "k")
    for _ in range(3):  # a lease lapses where its heartbeat's thread, or the master, stands still for a second
        known, calls = counters(reader)
        asked = reader("stat")["stat"]["pool"]["counters"]
        for _ in range(200):
            got = reader(f"get k {SIZE}")
            assert (got["err"], got["version"], got["intact"]) == ("OK", 5, True)
        known_now, calls_now = counters(reader)
        asked_now = reader("stat")["stat"]["pool"]["counters"]
        anew = 200 - (known_now - known)
        if 0 <= anew <= MAY_LAPSE:
            break
    assert 0 <= anew <= MAY_LAPSE
    assert calls_now - calls <= 3 + anew, "two stats and nothing else"
    for name, value in asked_now.items():
        if "get" in name and name != "get_bytes":  # which has the reads that heartbeats report
            assert value <= asked[name] + anew, f"the master's {name} moved"


def test_fresh_asks_the_master(writer, reader):
    """Fails if a get that wants to be fresh goes by what is known."""
    assert writer(f"put k {SIZE}")["err"] == "OK"
    get_known(reader, "k")
    known = counters(reader)[0]
    assert reader(f"get k {SIZE} fresh=1")["err"] == "OK"
    assert counters(reader)[0] == known


def test_removal_is_seen(writer, reader):
    """Fails if a removed key is still got once the removal was answered: its node stored that it is dead. A node that stands still for
    longer than the removal waits for it is late with that store, so this has to hold in one of three times; and it fails if a key
    is got for longer than the location lease. By rdma a sum alone vouches for a small object, so that is all there.
    """
    at_once = []
    while len(at_once) < 3 and not any(at_once):
        key = f"k{len(at_once)}"
        assert writer(f"put {key} {SIZE}")["err"] == "OK"
        get_known(reader, key)
        assert writer(f"remove {key}")["err"] == "OK"
        answered = time.monotonic()
        at_once.append(bool(RDMA) or reader(f"get {key} {SIZE}")["err"] == "NOT_FOUND")
        assert last_served(reader, f"get {key} {SIZE}") < answered + LEASE_S
        assert reader(f"get {key} {SIZE}")["err"] == "NOT_FOUND"
    assert any(at_once)


@pytest.mark.pool(nodes=1)
def test_removal_at_a_stopped_node_is_seen_within_the_lease(pool, writer):
    """Fails if, with a node that does not answer, the removed object is read from its memory for longer than the
    location lease.
    """
    reader = Shell(pool.bench, pool.addr, "reader", **PATHS["shm"])
    assert writer(f"put k {SIZE}")["err"] == "OK"
    get_known(reader, "k")
    pool.nodes[0].freeze()
    assert writer("remove k")["err"] == "OK"
    answered = time.monotonic()
    assert last_served(reader, f"get k {SIZE}") < answered + LEASE_S, "the lease was over"
    assert reader(f"get k {SIZE}")["err"] == "NOT_FOUND"
    pool.nodes[0].thaw()


@pytest.mark.pool(nodes=1)
def test_removal_that_waits_is_never_read_after(pool, writer):
    """Fails if a removal with WAIT is answered while a reader can still get the object, though its node is stopped."""
    reader = Shell(pool.bench, pool.addr, "reader", **PATHS["shm"])
    for turn in range(3):
        assert writer(f"put k{turn} {SIZE}")["err"] == "OK"
        get_known(reader, f"k{turn}")
    pool.add_node()
    pool.nodes[0].freeze()
    for turn in range(3):
        assert reader(f"get k{turn} {SIZE}")["err"] == "OK"
        assert writer(f"remove k{turn} wait=1 deadline=8000")["err"] == "OK"
        assert reader(f"get k{turn} {SIZE}")["err"] == "NOT_FOUND"
    pool.nodes[0].thaw()


def test_bump_is_never_read_after(pool, writer):
    """Fails if anything that was put before a bump is got after it, from known locations too; or if another tenant's
    equal key goes with it.
    """
    reader = Shell(pool.bench, pool.addr, "reader", **PATHS["shm"])
    other = Shell(pool.bench, pool.addr, "other", tenant=7, **PATHS["shm"])
    assert writer(f"put k {SIZE} version=1")["err"] == "OK"
    assert other(f"put k {SIZE} version=2")["err"] == "OK"
    get_known(reader, "k")
    get_known(other, "k")
    first = writer("bump deadline=8000")
    assert first["err"] == "OK", first
    assert reader(f"get k {SIZE}")["err"] == "NOT_FOUND"
    got = other(f"get k {SIZE}")
    assert (got["err"], got["version"]) == ("OK", 2)
    assert writer("bump deadline=8000")["epoch"] == first["epoch"] + 1
    assert writer(f"put k {SIZE} version=3")["err"] == "OK"
    assert reader(f"get k {SIZE}")["version"] == 3


def test_known_locations_are_read_on_without_a_master(pool, writer, reader):
    """Fails if, with the master killed, what is known is not served for longer than the lease; or if what is not known
    hangs beyond its deadline.
    """
    for key in "kx":
        assert writer(f"put {key} {SIZE} version=4")["err"] == "OK"
    get_known(reader, "k")
    pool.master.kill9()
    end = time.monotonic() + 3  # well within the grace, however slow the machine is
    while time.monotonic() < end:
        got = reader(f"get k {SIZE} deadline=2000")
        assert (got["err"], got["version"], got["intact"]) == ("OK", 4, True)
        time.sleep(0.02)
    got = reader(f"get x {SIZE} deadline=200")
    assert got["err"] in ("UNREACHABLE", "DISCONNECTED", "DEADLINE") and got["ms"] < 3000 * SLOW, got
    assert reader(f"get k {SIZE} deadline=2000")["err"] == "OK"


@slow
@pytest.mark.limit(60)
def test_grace_ends(pool, writer, reader):
    """Fails if known locations are read for longer than the grace after the master was killed."""
    assert writer(f"put k {SIZE}")["err"] == "OK"
    get_known(reader, "k")
    pool.master.kill9()
    killed = time.monotonic()
    assert killed + 7 < last_served(reader, f"get k {SIZE} deadline={1000 * SLOW}") < killed + 11, "the grace is 10 s"
    assert reader(f"get k {SIZE} deadline=100")["err"] != "OK"


def test_node_that_dies_is_a_miss_at_known_locations(pool, writer, reader):
    """Fails if a get from a known location on a node that was killed gives anything but a typed error or the object."""
    assert writer(f"put k {SIZE}")["err"] == "OK"
    get_known(reader, "k")
    for node in pool.nodes:
        node.kill9()
    wait_until(lambda: reader(f"get k {SIZE} deadline=300 fresh=1")["err"] != "OK", 10, "the node to be missed")
    got = reader(f"get k {SIZE} deadline=300")
    assert got["err"] in ("NOT_FOUND", "NODE_LOST", "OK"), got
    assert got["err"] != "OK" or got["intact"]
