# SPDX-License-Identifier: Apache-2.0
"""Listing and removing many objects at once."""
import pathlib
import re

import pytest

from clients import Load, Shell, figures, settled
from conftest import SAN, TIER, wait_until

MANY = {"quick": 2000, "normal": 20000, "long": 20000}[TIER] // (4 if SAN else 1)


@pytest.fixture
def filled(pool):
    """A client of a pool with MANY small objects many/0, many/1, ..."""
    client = Shell(pool.bench, pool.addr)
    for first in range(0, MANY, 5000):
        n = min(5000, MANY - first)
        assert client(f"bput many/ {first} {n} 100", 60)["results"] == {"OK": n}
    assert figures(pool.master)["objects"] == MANY
    return client


def names(i_list):
    return {f"many/{i}" for i in i_list}


def listed(client, bench, limit, prefix=""):
    path = pathlib.Path(bench.home) / "list"
    got = client(f"list {path} {limit}" + (f" prefix={prefix}" if prefix else ""), 60)
    assert got["err"] == "OK", got
    lines = [line.split() for line in path.read_text().splitlines()]
    assert all(int(length) == 100 for _, length in lines)
    return [key for key, _ in lines], got["pages"]


@pytest.mark.pool(nodes=1, memory="64MiB")
def test_list(pool, filled):
    """Fails if the pages of a listing miss a key, give one twice, hold more than the limit or something without the
    prefix.
    """
    keys, pages = listed(filled, pool.bench, 1000)
    assert len(keys) == MANY and set(keys) == names(range(MANY))
    assert pages >= MANY // 1000
    keys, _ = listed(filled, pool.bench, 7, "many/12")
    assert len(keys) == len(set(keys))
    assert set(keys) == {k for k in names(range(MANY)) if k.startswith("many/12")}
    assert listed(filled, pool.bench, 100, "other/")[0] == []


@pytest.mark.pool(nodes=1, memory="64MiB")
def test_list_while_others_remove_and_put(pool, filled):
    """Fails if a key that is there from the first page to the last one is missing, or listed twice, because others are
    removed and put meanwhile.
    """
    churn = Load(pool.bench, pool.addr, "churn", churners=2, streams=2, keys=64, min_bytes=100, max_bytes=100).ready()
    for _ in range(3):
        keys, _ = listed(filled, pool.bench, 500, "many/")
        assert len(keys) == len(set(keys)) and set(keys) == names(range(MANY))
    got = churn.stop()
    assert got["results"].get("OK", 0) > 0 and got["wrong"] == 0


@pytest.mark.pool(nodes=1, memory="64MiB")
def test_remove_by_regex(pool, filled):
    """Fails if a pattern removes anything but what it matches, counts wrong, takes what is held without force, or
    leaves it with force; or if the space does not come back.
    """
    holder = Shell(pool.bench, pool.addr, "holder")
    assert holder("lookup many/ 10 10 ttl=60000")["granted"] == 10
    pattern = r"/1\d*[05]$"
    match = {k for k in names(range(MANY)) if re.search(pattern, k)}
    held = match & names(range(10, 20))
    assert held
    got = filled(f"regex {pattern}", 60)
    assert got["err"] == "OK" and got["removed"] == len(match - held) and got["held"] == len(held), got
    keys, _ = listed(filled, pool.bench, 4096)
    assert set(keys) == names(range(MANY)) - match | held
    got = filled(f"regex {pattern} force=1")
    assert got["removed"] == len(held) and got["held"] == 0, got
    assert set(listed(filled, pool.bench, 4096)[0]) == names(range(MANY)) - match
    assert filled("regex no-such-key")["removed"] == 0
    assert filled("regex (unclosed")["err"] == "BAD_PATTERN"
    assert filled("size many/3")["len"] == 100


@pytest.mark.pool(nodes=1, memory="64MiB")
def test_remove_all(pool, filled):
    """Fails if anything but what is held stays, if that is not counted, if it goes without force, or if the space of
    all of it does not come back.
    """
    holder = Shell(pool.bench, pool.addr, "holder")
    assert holder("lookup many/ 0 50 ttl=60000")["granted"] == 50
    got = filled("all", 60)
    assert got["err"] == "OK" and got["removed"] == MANY - 50 and got["held"] == 50, got
    assert set(listed(filled, pool.bench, 4096)[0]) == names(range(50))
    assert filled("bget many/ 0 50 100")["results"] == {"OK": 50}
    assert holder("release")["err"] == "OK"
    wait_until(lambda: figures(pool.master)["reserved_bytes"] == 0, 5, "the reservation to end")
    got = filled("all")
    assert got["removed"] == 50 and got["held"] == 0, got
    settled(pool.master, used_bytes=0)
    assert filled("bput many/ 0 100 100")["results"] == {"OK": 100}


@pytest.mark.pool(nodes=1, memory="64MiB")
def test_remove_of_many_keys(pool, filled):
    """Fails if a batch takes other keys than it names, or what is held without force; if one key's refusal is another's; or if
    what went is found again.
    """
    holder = Shell(pool.bench, pool.addr, "holder")
    n, at = MANY * 3 // 5, MANY // 5
    assert holder(f"lookup many/ {at} 10 ttl=60000")["granted"] == 10
    got = filled(f"bremove many/ 0 {n}")
    assert (got["err"], got["removed"], got["held"], got["absent"]) == ("OK", n - 10, 10, 0), got
    assert set(listed(filled, pool.bench, 4096)[0]) == names([*range(at, at + 10), *range(n, MANY)])
    assert filled(f"bget many/ 0 {n} 100")["results"] == {"NOT_FOUND": n - 10, "OK": 10}
    got = filled(f"bremove many/ 0 {n + 1} force=1")
    assert (got["removed"], got["held"], got["absent"]) == (11, 0, n - 10), got
    assert set(listed(filled, pool.bench, 4096)[0]) == names(range(n + 1, MANY))
    assert filled("bput many/ 0 100 100")["results"] == {"OK": 100}
