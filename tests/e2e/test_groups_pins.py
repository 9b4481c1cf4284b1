# SPDX-License-Identifier: Apache-2.0
"""Groups and pins with real processes: a group is not seen before all of it is there, goes as one, and leaves nothing
behind when its writer dies; what is pinned stays as long as the pin says.
"""
import pytest

from clients import PATHS, Shell, extent_bytes, figures, settled
from conftest import SLOW, wait_until

KIB = 1 << 10
LEN = 256 * KIB


@pytest.fixture
def pool(make_pool):
    """Room for 64 objects."""
    return make_pool(nodes=1, memory="16MiB")


def exist(client, prefix, n, first=0):
    got = client(f"bexist {prefix} {first} {n}")
    assert got["failed"] == 0
    return got["exist"]


@pytest.mark.parametrize("path", PATHS)
def test_group_is_seen_when_it_is_whole(pool, path):
    """Fails if a member is found by get, exists, size, list or lookup before the last one is committed, or if one of
    them is missing or wrong after that; or if look-ups by group do not say the same.
    """
    writer = Shell(pool.bench, pool.addr, "writer", **PATHS[path])
    reader = Shell(pool.bench, pool.addr, "reader", **PATHS[path])
    assert writer(f"bput g/ 0 7 {LEN} group=g members=8")["results"] == {"OK": 7}
    for client in (writer, reader):
        assert exist(client, "g/", 8) == 0
        assert client(f"bget g/ 0 8 {LEN}")["results"] == {"NOT_FOUND": 8}
        assert client("size g/3")["err"] == "NOT_FOUND"
        assert client("prefix g/ 0 8")["found"] == 0
    assert reader("lookup g 0 1 groups=1")["found"] == 0
    assert b"g/3" not in pool.kvpool("ls").out
    # A put of what is hidden is one of a key that somebody else has begun.
    assert reader(f"bput g/ 3 1 {LEN} group=g members=8")["results"] == {"IN_PROGRESS": 1}
    assert writer(f"bput g/ 7 1 {LEN} group=g members=8")["results"] == {"OK": 1}
    got = reader(f"bget g/ 0 8 {LEN}")
    assert got["results"] == {"OK": 8} and got["wrong"] == 0, got
    assert exist(reader, "g/", 8) == 8


def test_groups_are_found_by_prefix(pool):
    """Fails if the longest prefix over groups counts an incomplete one, goes on behind it, or reserves nothing."""
    client = Shell(pool.bench, pool.addr)
    for g in range(4):
        n = 2 if g != 2 else 1
        assert client(f"bput m{g}/ 0 {n} {4 * KIB} group=chain{g} members=2")["results"] == {"OK": n}
    got = client("prefix chain 0 4 groups=1 ttl=60000")
    assert (got["found"], got["granted"]) == (2, 2), got
    assert client("remove m0/1")["err"] == "HELD"
    assert client("remove m3/1")["err"] == "OK"
    assert client("release")["err"] == "OK"
    assert client("remove m0/1")["err"] == "OK"
    assert client("prefix chain 0 4 groups=1")["found"] == 0


@pytest.mark.parametrize("members", [0, 8])
def test_group_is_evicted_as_one(pool, members):
    """Fails if eviction leaves a part of a group."""
    client = Shell(pool.bench, pool.addr)
    assert client(f"bput g/ 0 8 {LEN} group=g members={members}")["results"] == {"OK": 8}
    seen = set()
    for i in range(80):
        seen.add(pool.kvpool("ls", "g/").out.count(b"g/"))  # neither a use nor a probe
        assert client(f"bput fill/ {i} 1 {LEN}")["results"] == {"OK": 1}
    assert seen == {0, 8}
    assert figures(pool.master)["group_evictions"] == 1


def test_incomplete_group_goes_with_its_writer(pool):
    """Fails if what a killed writer left of a group keeps its keys or its space, or if the group can then not be put."""
    writer = Shell(pool.bench, pool.addr, "writer", **PATHS["shm"])
    other = Shell(pool.bench, pool.addr, "other", **PATHS["shm"])
    assert writer(f"bput g/ 0 5 {LEN} group=g members=8")["results"] == {"OK": 5}
    assert figures(pool.master)["used_bytes"] == 5 * extent_bytes(LEN)
    writer.kill9()
    settled(pool.master, used_bytes=0)
    assert figures(pool.master)["groups"] == 0
    assert other(f"bput g/ 0 8 {LEN} group=g members=8")["results"] == {"OK": 8}
    got = other(f"bget g/ 0 8 {LEN}")
    assert got["results"] == {"OK": 8} and got["wrong"] == 0, got


def test_soft_pins_outlive_pressure_within_their_budget(pool):
    """Fails if a pinned object is evicted while others are there, or if more than a quarter of the pool stays pinned."""
    client = Shell(pool.bench, pool.addr)
    assert client(f"bput soft/ 0 12 {LEN} soft=1")["results"] == {"OK": 12}
    for i in range(0, 160, 8):
        assert client(f"bput fill/ {i} 8 {LEN}")["results"] == {"OK": 8}
    got = client(f"bget soft/ 0 12 {LEN}")
    assert got["results"] == {"OK": 12} and got["wrong"] == 0, got
    assert client(f"bput more/ 0 16 {LEN} soft=1")["results"] == {"OK": 16}
    assert figures(pool.master)["pins_lost"] >= 12
    for i in range(200, 360, 8):
        assert client(f"bput fill/ {i} 8 {LEN}")["results"] == {"OK": 8}
    assert exist(client, "soft/", 12) == 0
    assert exist(client, "more/", 16) >= 15
    assert figures(pool.master)["soft_pinned_bytes"] <= 4 * 1024 * KIB


def test_hard_pins_stay_and_fill_a_pool(pool):
    """Fails if a hard pin is evicted, if a pool full of them makes a put wait for its deadline instead of refusing it, or
    if a removal does not make room.
    """
    client = Shell(pool.bench, pool.addr)
    results = client(f"bput hard/ 0 64 {LEN} pin=1")["results"]
    fits = results["OK"]
    assert fits >= 60
    got = client(f"bput one-more/ 0 1 {LEN} deadline=8000")
    assert got["results"] == {"NO_SPACE": 1}, got
    assert got["ms"] < 5000 * SLOW, got
    assert exist(client, "hard/", 64) == fits
    assert client("remove hard/5")["err"] == "OK"
    assert client(f"bput one-more/ 0 1 {LEN}")["results"] == {"OK": 1}
    assert client(f"bput upsert/ 0 1 {LEN}")["results"] == {"OK": 1}  # in the place of one-more
    assert exist(client, "hard/", 64) == fits - 1
    wait_until(lambda: figures(pool.master)["put_no_space"] >= 1, 5, "the refusal to be counted")
