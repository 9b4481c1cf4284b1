# SPDX-License-Identifier: Apache-2.0
"""Readers race eviction, removal and reuse of the very extents that they read. Over shared memory nothing but the
descriptor's word stands between them and wrong bytes: there is no sum to help.
"""
import pytest

from clients import PATHS, Board, Load, Shell, figures, slow, work
from conftest import RDMA, SAN, TIER, wait_until

MIB = 1 << 20
RACE_S = {"quick": 2, "normal": 20, "long": 600}[TIER]
VERSIONS_S = 60 if TIER == "long" else 6
UPSERTS_S = {"quick": 2, "normal": 6, "long": 120}[TIER]
SHARE = 8 if SAN else 2 if RDMA else 1  # sanitizer builds, and adapters that are emulated, do less in the same time


def stop_and_judge(loads):
    """Ends all loads; no byte may be wrong. Returns {name: report}."""
    reports = {load.name: load.stop() for load in loads}
    for name, got in reports.items():
        assert got["wrong"] == 0, f"{name}: {got['wrong']} wrong, the first: {got['first_wrong']}"
    return reports


def stale_reads(reports):
    """How often a reader found out by itself that its extent had been given away."""
    return sum(got["stat"]["client"]["stale_reads"] for got in reports.values())


def judge_reader(results):
    """A machine on which nothing moves for a second makes clients give a node up for a moment; that must stay rare."""
    assert set(results) <= {"OK", "NOT_FOUND", "STALE", "NODE_LOST", "DEADLINE"}, results
    assert results.get("NODE_LOST", 0) + results.get("DEADLINE", 0) <= results["OK"] // 100, results


def judge_writer(results):
    """Soft RoCE's queue pairs fall silent at times: whoever wrote over one gives its node up for a moment."""
    lost = results.get("NODE_LOST", 0)
    assert set(results) <= ({"OK", "NODE_LOST"} if RDMA else {"OK"}) and lost <= results["OK"] // 100, results


@pytest.mark.pool(nodes=1, memory="64MiB")
@pytest.mark.limit(RACE_S + 120)
def test_readers_race_reuse(pool):
    """Fails on one wrong byte in objects of 4 KiB to 4 MiB that are written, evicted and removed by force under their
    readers, with extents cut anew at other boundaries all the time. Also fails if little was read, evicted or removed,
    or if no reader ever met an extent that had been given away: then nothing was raced.
    """
    board = Board(pool.bench, 3)
    common = dict(batch=4, min_bytes=4096, max_bytes=4 * MIB, window=40, **board.options)
    loads = [
        Load(pool.bench, pool.addr, "put-shm", putters=2, stream_base=0, remove_pct=50, **common, **PATHS["shm"]),
        Load(pool.bench, pool.addr, "put-tcp", putters=1, stream_base=2, remove_pct=50, **common, **PATHS["tcp"]),
        Load(pool.bench, pool.addr, "get-shm", getters=3, **common, **PATHS["shm"]),
        Load(pool.bench, pool.addr, "get-tcp", getters=2, **common, **PATHS["tcp"]),
    ]
    for load in loads:
        load.ready()
    enough = 50 * RACE_S // SHARE
    work(RACE_S, lambda: figures(pool.master)["evictions"] > enough, lambda: figures(pool.master)["removes"] > enough // 2,
         *(lambda load=load: load.done() > enough for load in loads[2:]))
    before = figures(pool.master)
    reports = stop_and_judge(loads)

    assert before["evictions"] > enough, before
    assert before["removes"] > enough // 2, before
    for name in ("get-shm", "get-tcp"):
        ok = reports[name]["results"].get("OK", 0)
        assert ok > enough, f"{name} read only {ok} objects: {reports[name]['results']}"
        judge_reader(reports[name]["results"])
    for name in ("put-shm", "put-tcp"):
        judge_writer(reports[name]["results"])
    assert stale_reads(reports) > 0 or TIER == "quick", "no reader met an extent that was given away"


@slow
@pytest.mark.pool(nodes=2, memory="16MiB")
@pytest.mark.limit(VERSIONS_S + 120)
def test_versions_do_not_mix(pool):
    """Fails if a reader of keys that are removed and put again with other bytes and another length, over and over, gets
    a mix of two versions, or one that was removed, with an acknowledgement, before its call began.
    """
    board = Board(pool.bench, 2, keys=48)
    common = dict(batch=8, min_bytes=4096, max_bytes=MIB, **board.options)
    loads = [
        Load(pool.bench, pool.addr, "churn-shm", churners=1, stream_base=0, **common, **PATHS["shm"]),
        Load(pool.bench, pool.addr, "churn-tcp", churners=1, stream_base=1, **common, **PATHS["tcp"]),
        Load(pool.bench, pool.addr, "check-shm", checkers=2, **common, **PATHS["shm"]),
        Load(pool.bench, pool.addr, "check-tcp", checkers=2, **common, **PATHS["tcp"]),
    ]
    for load in loads:
        load.ready()
    enough = 20 * VERSIONS_S // SHARE
    work(VERSIONS_S, lambda: board.versions() > enough, *(lambda load=load: load.done() > enough for load in loads[2:]))
    versions = board.versions()
    reports = stop_and_judge(loads)
    assert versions > enough, f"only {versions} versions were put"
    for name in ("check-shm", "check-tcp"):
        assert reports[name]["results"].get("OK", 0) > enough, reports[name]["results"]
        judge_reader(reports[name]["results"])


@pytest.mark.pool(nodes=2, memory="32MiB")
@pytest.mark.limit(UPSERTS_S + 120)
@pytest.mark.parametrize("known", [0, 1])
def test_upserts_never_go_back(pool, known):
    """Fails if a reader of keys that are upserted over and over gets a mix of two versions, one older than what was
    acknowledged before its call or than what it has seen itself, or no value at all; over both paths, with readers that
    ask the master, or that read where they know the object to be while the upserts wait for them.
    """
    writers = 4 if known else 1  # of each path: one that waits for leases has its answer with a reader's next heartbeat
    floor = 5 if known else 20  # upserts a second; 4 x 2 that wait for a third of a second each make 23
    board = Board(pool.bench, 2 * writers, keys=24)
    common = dict(batch=8, min_bytes=4096, max_bytes=256 << 10, **board.options)
    loads = [Load(pool.bench, pool.addr, f"upsert-{path}", upserters=writers, stream_base=i * writers, wait=known,
                  **common, **conf).ready()
             for i, (path, conf) in enumerate(sorted(PATHS.items()))]
    wait_until(lambda: min(board.floors()) > 0, 20, "every key to be there")
    before = sum(board.floors())
    readers = [Load(pool.bench, pool.addr, f"check-{path}", checkers=2, known=known, **common, **conf).ready()
               for path, conf in sorted(PATHS.items())]
    enough = floor * UPSERTS_S // SHARE
    work(UPSERTS_S, lambda: sum(board.floors()) - before > enough,
         *(lambda load=load: load.done() > 50 * UPSERTS_S // SHARE for load in readers))
    after = sum(board.floors())
    reports = stop_and_judge(readers + loads)
    assert after - before > enough, f"only {after - before} upserts"
    for load in loads:
        assert set(reports[load.name]["results"]) == {"OK"}, reports[load.name]["results"]
    for reader in readers:
        got = reports[reader.name]
        assert got["results"]["OK"] > 50 * UPSERTS_S // SHARE, got["results"]
        judge_reader(got["results"])
        assert "NOT_FOUND" not in got["results"], got["results"]
        assert (got["stat"]["client"]["known_location_gets"] > 0) == (known == 1), got["stat"]["client"]


def test_the_checker_sees_wrong_bytes(pool):
    """Fails if the check that the other tests rest on would let foreign bytes, an old version's bytes or shifted bytes
    pass.
    """
    client = Shell(pool.bench, pool.addr)
    assert client("put one 10000 version=3")["err"] == "OK"
    got = client("get one 10000")
    assert got["intact"] and got["version"] == 3
    value = pool.get("one").out
    assert len(value) == 10000
    for name, other in {"foreign": value, "one-shifted": value[8:] + value[:8], "cut": value[:-8],
                        "flipped": value[:5000] + bytes([value[5000] ^ 1]) + value[5001:]}.items():
        client("remove one force=1")
        key = "one" if name != "foreign" else "two"
        assert pool.put(key, other).rc == 0
        got = client(f"get {key} 10000")
        assert got["err"] == "OK" and not got["intact"], (name, got)
