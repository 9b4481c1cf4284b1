# SPDX-License-Identifier: Apache-2.0
"""A full pool: while anything may be evicted, no put is refused; when nothing may be, the refusal has its type."""
import json
import pathlib

import pytest

from clients import PATHS, Board, Load, Shell, figures, settled, slow, work
from conftest import PROGRAMS, SAN, SLOW, TIER, wait_until
from replays import MIB, watched

FILL_S = 30 if TIER == "long" else 4
SHARE = 8 if SAN else 1

PROMPT, TURNS = 240, 12  # blocks
SIZES = {"uniform": (65536, 65536), "mixed": (4096, 2 * MIB)}


@slow
@pytest.mark.pool(nodes=2, memory="32MiB")
@pytest.mark.limit(FILL_S + 60)
@pytest.mark.parametrize("sizes", sorted(SIZES))
def test_writers_are_never_refused(pool, sizes):
    """Fails if one put of several processes that keep the pool full, with objects of one size or of mixed sizes (a
    place for a large one is cut out of many small), is refused or fails; or if the pool was not full at all.
    """
    least, most = SIZES[sizes]
    board = Board(pool.bench, 4)
    common = dict(batch=4, min_bytes=least, max_bytes=most, **board.options)
    loads = [Load(pool.bench, pool.addr, f"put-{path}", putters=2, stream_base=2 * i, **common, **PATHS[path])
             for i, path in enumerate(sorted(PATHS))]
    for load in loads:
        load.ready()
    enough = 50 * FILL_S // SHARE
    work(FILL_S, lambda: figures(pool.master)["evictions"] > enough,
         *(lambda load=load: load.done() > enough for load in loads))
    reports = [load.stop() for load in loads]
    now = figures(pool.master)
    for got in reports:
        assert set(got["results"]) == {"OK"}, got["results"]
        assert got["results"]["OK"] > enough, got["results"]
    assert now["put_no_space"] == 0 and now["put_retry_after"] == 0, now
    assert now["evictions"] > enough, now


@pytest.mark.pool(nodes=1, memory="64MiB")
def test_reservations_refuse_nobody(pool):
    """Fails if lookups reserve more than their share (a quarter of the pool, a twentieth a client), if a reserved
    object is evicted, or if a put is refused because of what is reserved.
    """
    writer = Shell(pool.bench, pool.addr, "writer")
    readers = [Shell(pool.bench, pool.addr, f"reader{i}") for i in range(8)]
    assert writer("bput old/ 0 56 1048576")["results"] == {"OK": 56}
    granted = [reader(f"lookup old/ {7 * i} 7 ttl=60000")["granted"] for i, reader in enumerate(readers)]
    assert granted == [3, 3, 3, 3, 3, 1, 0, 0], "3 MiB are a client's twentieth, 16 MiB the pool's quarter"
    assert figures(pool.master)["reserved_bytes"] == 16 * MIB
    for i in range(120):
        got = writer(f"put new/{i} {MIB}")
        assert got["err"] == "OK", got
    now = figures(pool.master)
    assert now["put_no_space"] == 0 and now["put_retry_after"] == 0, now
    for i, reader in enumerate(readers):
        if granted[i] == 0:
            continue
        got = reader(f"bget old/ {7 * i} {granted[i]} {MIB}")
        assert got["results"] == {"OK": granted[i]} and got["wrong"] == 0, "what is reserved is there"
    for reader in readers:
        assert reader("release")["err"] == "OK"
    wait_until(lambda: figures(pool.master)["reserved_bytes"] == 0, 5, "the reservations to end")


@pytest.mark.pool(nodes=1, memory="32MiB")
def test_everything_held(pool):
    """Fails if a put into a pool whose every byte is held by a reader in the middle of its copy is answered by anything
    but RETRY_AFTER at its deadline (or DEADLINE, where the answer comes late), if the reader's bytes are touched meanwhile, or if the put does not succeed as soon
    as the reader is done.
    """
    writer = Shell(pool.bench, pool.addr, "writer")
    reader = Shell(pool.bench, pool.addr, "reader", **PATHS["shm"])
    there = 0
    for i in range(40):
        assert writer(f"put k/{i} {MIB}")["err"] == "OK"
    there = writer("bexist k/ 0 40")["exist"]
    assert there >= 30
    first = 40 - there
    reader.stuck(f"bget k/ {first} {there} {MIB} stuck_at=0 deadline=60000")
    assert figures(pool.master)["held_bytes"] == there * MIB
    refusals = [writer(f"bput new{i}/ 0 {1 + 3 * i} {2 * MIB} deadline=1500") for i in range(4)]
    assert all(1000 < got["ms"] < 4500 * SLOW and set(got["results"]) <= {"RETRY_AFTER", "DEADLINE"} for got in refusals), refusals
    assert sum("RETRY_AFTER" in got["results"] for got in refusals) > 1, refusals  # where the machine stands still the deadline is over first
    got = reader.unstick()
    assert got["results"] == {"OK": there} and got["wrong"] == 0, got
    assert writer(f"put new {2 * MIB}")["err"] == "OK"
    settled(pool.master, "the holds to end")
    assert figures(pool.master)["held_bytes"] == 0


@pytest.mark.pool(nodes=1, memory="32MiB")
def test_a_batch_larger_than_the_pool(pool):
    """Fails if a batch of more bytes than the pool holds does not go through: its first objects make room for the last.
    """
    writer = Shell(pool.bench, pool.addr, "writer")
    got = writer(f"bput big/ 0 48 {MIB}", 30)
    assert got["results"] == {"OK": 48}, got
    got = writer(f"bget big/ 0 48 {MIB}")
    assert set(got["results"]) <= {"OK", "NOT_FOUND"} and got["results"]["OK"] >= 24 and got["wrong"] == 0, got


@pytest.mark.pool(nodes=1, memory="8MiB")
def test_too_large_for_the_pool(pool):
    """Fails if a value larger than a chunk is anything but TOO_LARGE, or costs the pool an object."""
    client = Shell(pool.bench, pool.addr)
    assert client(f"bput k/ 0 4 {MIB}")["results"] == {"OK": 4}
    assert client(f"put big {9 * MIB}")["err"] == "TOO_LARGE"
    assert client("bexist k/ 0 4")["exist"] == 4
    assert client(f"put big {8 * MIB}")["err"] == "OK", "a whole chunk fits"
    got = client(f"get big {8 * MIB}")
    assert got["err"] == "OK" and got["intact"], got
    assert client("bexist k/ 0 4")["exist"] == 0


@slow
@pytest.mark.limit(1200 if TIER == "long" else 120)
@pytest.mark.parametrize("memory", [128 * MIB, 512 * MIB, 2048 * MIB, 16384 * MIB] if TIER == "long" else [128 * MIB])
def test_a_full_pool_is_full(bench, make_pool, memory):
    """Fails if less than 0.99 of the memory holds committed blocks of 64 KiB on the mean, while long prompts go through it again and
    again: that is, less what is kept free ahead, on its way back, and begun and not committed.
    """
    trace = pathlib.Path(bench.home) / "prompts.jsonl"
    with trace.open("w") as to:
        for first in range(0, TURNS * memory // 65536, PROMPT):
            ids = list(range(first, first + PROMPT))
            print(json.dumps(dict(timestamp=first, input_length=512 * PROMPT, output_length=1, hash_ids=ids)), file=to)
    pool = make_pool(nodes=1, memory=str(memory))
    _, full = watched(pool, 65536, [PROGRAMS["kvpool"], "replay", "--master", pool.addr, "--trace", trace, "--block-bytes", "64KiB"])
    assert full >= 0.99, full
