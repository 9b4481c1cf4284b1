# SPDX-License-Identifier: Apache-2.0
"""The SSD tier: what leaves memory is read back from there, over kills of node and master, and what was removed is not."""
import os
import pathlib
import random
import re
import subprocess
import time

import pytest

from clients import PATHS, Shell, figures
from conftest import SLOW, TIER, wait_until
from test_log import health, removed_of, start

LEN = 64 << 10
MEMORY = "16MiB"  # 256 objects
N = 1024
SSD = 256 << 20
KILLS = 200 if TIER == "long" else 20


def ssd_of(bench, name="ssd"):
    path = pathlib.Path(bench.home, name)
    path.mkdir(exist_ok=True)
    return path


def make_tiered(make_pool, bench, data="none"):
    pool = make_pool(nodes=1, memory=MEMORY, data_dir=data, node_args=("--ssd", f"{ssd_of(bench)}:{SSD}"))
    wait_until(lambda: figures(pool.master)["tier_size_bytes"] > 0, 20, "the tier to be mounted")
    return pool


def node_again(bench, pool, name="node1b"):
    pool.nodes[0] = bench.start(name, "kvpool-node", "--master", pool.addr, "--name", "node1", "--memory", MEMORY, "--listen",
                                "127.0.0.1:0", "--ssd", f"{ssd_of(bench)}:{SSD}")


def put_all(pool, client, n=N, first=0):
    """Puts them so slowly that the disk keeps up."""
    for at in range(first, first + n, 32):
        assert client(f"bput k/ {at} 32 {LEN}")["results"] == {"OK": 32}
        wait_until(lambda: written(pool), 10, "what is written ahead to be on the disk")


def written(pool):
    f = figures(pool.master)
    return f["demoted"] + f["demotes_refused"] == f["demotes"]


def get_all(client, n=N, first=0):
    """(how many were found, how many were wrong)."""
    found = wrong = 0
    for at in range(first, first + n, 32):
        end = time.monotonic() + 10 * SLOW
        while True:  # a node that has begun just now mounts its tier behind its memory
            got = client(f"bget k/ {at} 32 {LEN}", timeout=60)
            wrong += got["wrong"]
            if "NODE_LOST" not in got["results"] or time.monotonic() > end:
                break
            time.sleep(0.05)
        found += got["results"].get("OK", 0)
        assert set(got["results"]) <= {"OK", "NOT_FOUND"}, got
    return found, wrong


def node_figures(node):
    """What it tells of its tier."""
    status, body = node.http_get("/metrics")
    assert status == 200, body
    return {name: int(float(value)) for name, value in re.findall(r"^kvpool_node_tier_(\w+) (\S+)$", body, re.M)}


@pytest.mark.parametrize("path", ["shm", "tcp"])
def test_what_is_evicted_is_read_back(make_pool, bench, path):
    """Fails if an object that had to leave memory is not found, or other bytes are read for it."""
    pool = make_tiered(make_pool, bench)
    client = Shell(bench, pool.addr, "client", deadline=20000 * SLOW, **PATHS[path])
    put_all(pool, client)
    assert client(f"bexist k/ 0 {N}")["exist"] == N
    missed = figures(pool.master)["tier_missed"]
    found, wrong = get_all(client)
    f = figures(pool.master)
    assert missed == 0 and wrong == 0 and found >= N - f["tier_missed"] and f["tier_missed"] < 32, (found, wrong, f)
    assert f["staged"] >= N - 288 and f["tier_objects"] >= N - 288, f


def test_reads_cost_nothing_that_is_in_memory_alone(make_pool, bench):
    """Fails if reading what is on the SSD drops what was not written there yet, or evicts where there is room: large objects come and go, and then all the
    small ones fit into memory.
    """
    pool = make_pool(nodes=1, memory="64MiB", node_args=("--chunk-bytes", "4MiB", "--ssd", f"{ssd_of(bench)}:1GiB"))
    wait_until(lambda: figures(pool.master)["tier_size_bytes"] > 0, 20, "the tier to be mounted")
    client = Shell(bench, pool.addr, "client", deadline=20000 * SLOW, **PATHS["tcp"])
    put_all(pool, client, 1280)
    lost = figures(pool.master)["tier_missed"]
    for i in range(1280):
        client(f"get k/{i} {LEN}")  # one by one: each wants room when nothing else does
    found, wrong = get_all(client, 1280)
    assert wrong == 0 and found >= 1280 - lost and figures(pool.master)["tier_missed"] == lost, (found, lost, figures(pool.master))
    for i in range(16):
        assert client(f"put big/{i} {3 << 20}")["err"] == "OK"
        wait_until(lambda: written(pool), 10, "what is written ahead to be on the disk")
        assert client(f"remove big/{i} force=1")["err"] == "OK"
    for _ in range(3):  # less than an eighth of memory: the first read loads them, the second keeps them
        get_all(client, 96)
    staged = figures(pool.master)["staged"]
    get_all(client, 96)
    assert figures(pool.master)["staged"] == staged


def test_node_killed_and_back(make_pool, bench):
    """Fails if a node that was killed and comes back does not bring what its tier had, brings what was removed while it was away or before, or
    wrong bytes.
    """
    pool = make_tiered(make_pool, bench, f"{bench.home}/data")
    client = Shell(bench, pool.addr, "client", deadline=20000 * SLOW, **PATHS["tcp"])
    put_all(pool, client)
    removed_of(client, [f"k/{i}" for i in range(32)])
    on_tier = figures(pool.master)["tier_objects"]
    pool.nodes[0].kill9()
    wait_until(lambda: figures(pool.master)["segments"] == 0, 20, "the node to be missed")
    removed_of(client, [f"k/{i}" for i in range(32, 64)])
    node_again(bench, pool)
    wait_until(lambda: client(f"bexist k/ 0 {N}")["exist"] >= on_tier - 32, 20, "the tier to be back")
    assert client("bexist k/ 0 64")["exist"] == 0
    found, wrong = get_all(client)
    assert wrong == 0 and found >= on_tier - 32, (found, on_tier)
    assert client("bexist k/ 0 64")["exist"] == 0


def test_devices_in_another_order(make_pool, bench):
    """Fails if a node whose devices are named in another order at its restart gives up what they have."""
    a, b = (("--ssd", f"{ssd_of(bench, name)}:{SSD // 2}") for name in ("a", "b"))
    pool = make_pool(nodes=1, memory=MEMORY, data_dir=f"{bench.home}/data", node_args=(*a, *b))
    client = Shell(bench, pool.addr, "client", deadline=20000 * SLOW, **PATHS["tcp"])
    put_all(pool, client)
    on_tier = figures(pool.master)["tier_objects"]
    pool.nodes[0].kill9()
    wait_until(lambda: figures(pool.master)["segments"] == 0, 20, "the node to be missed")
    pool.nodes[0] = bench.node(pool.master, "node1", MEMORY, *b, *a)
    wait_until(lambda: client(f"bexist k/ 0 {N}")["exist"] >= on_tier, 20, "the tier to be back")
    found, wrong = get_all(client)
    assert wrong == 0 and found >= on_tier - 32 and on_tier > N / 2, (found, on_tier)
    assert "given up" not in pool.nodes[0].log(), pool.nodes[0].log()


@pytest.mark.limit(240 if TIER != "long" else 2400)
def test_node_killed_at_any_moment(make_pool, bench):
    """Fails if a node that is killed while it writes, gives up pages or drops records serves wrong bytes afterwards, or what was removed, or
    less than was on its device a second before.
    """
    device = f"{ssd_of(bench)}:{64 << 20}"
    pool = make_pool(nodes=1, memory=MEMORY, data_dir=f"{bench.home}/data", node_args=("--ssd", device))
    client = Shell(bench, pool.addr, "client", deadline=20000 * SLOW, **PATHS["tcp"])
    rng = random.Random(2211)
    removed, at = set(), 0
    for turn in range(KILLS):
        put_all(pool, client, 96, at)
        gone = [at + i for i in rng.sample(range(96), 8)]
        removed_of(client, [f"k/{i}" for i in gone])
        removed |= set(gone)
        at += 96
        client.say(f"bput k/{turn}/ 0 200 {LEN} deadline={3000 * SLOW}")  # it goes on while the node is killed
        time.sleep(rng.random() * 0.1)
        pool.nodes[0].kill9()
        client.hear(60)
        on_tier = figures(pool.master)["tier_objects"]
        pool.nodes[0] = bench.start(f"node1-{turn}", "kvpool-node", "--master", pool.addr, "--name", "node1", "--memory", MEMORY,
                                    "--listen", "127.0.0.1:0", "--ssd", device)
        wait_until(lambda: client(f"bexist k/ 0 {at}")["exist"] > 0 or on_tier == 0, 20, "the tier to be back")
        first = max(0, at - 384)
        assert get_all(client, at - first, first)[1] == 0
        assert all(client(f"exists k/{i}")["exists"] == 0 for i in rng.sample(sorted(removed), min(20, len(removed))))
    assert client("bexist k/ 0 4096")["exist"] <= at - len(removed)
    f = figures(pool.master)
    assert f["stages"] > 1000 and f["tier_lost"] <= f["stages"] / 1000, f  # what the master believes to be there is there


@pytest.mark.parametrize("has_log", [True, False])
def test_master_killed_and_back(make_pool, bench, has_log):
    """Fails if the next master, which has the log or learns it from the node, does not know what is on the tier, or knows what was removed."""
    pool = make_tiered(make_pool, bench, f"{bench.home}/data" if has_log else "none")
    client = Shell(bench, pool.addr, "client", deadline=60000 * SLOW, **PATHS["tcp"])
    put_all(pool, client)
    removed_of(client, [f"k/{i}" for i in range(32)])
    pool.master.kill9()
    start(bench, pool, "master2")
    wait_until(lambda: client(f"bexist k/ 0 {N}")["exist"] == N - 32, 30, "all to be back")
    found, wrong = get_all(client, N - 32, 32)
    # Those that were in memory alone may leave it for what is staged.
    assert wrong == 0 and found >= N - 32 - figures(pool.master)["tier_missed"], (found, wrong, figures(pool.master))
    assert figures(pool.master)["tier_missed"] < 32 and client("bexist k/ 0 32")["exist"] == 0


def test_tier_that_is_too_small(make_pool, bench):
    """Fails if pages are not given up when the device is full, a put waits for that, or what is read then is wrong."""
    pool = make_pool(nodes=1, memory=MEMORY, node_args=("--ssd", f"{ssd_of(bench)}:{64 << 20}", "--http", "127.0.0.1:0"))
    client = Shell(bench, pool.addr, "client", deadline=20000 * SLOW, **PATHS["tcp"])
    for turn in range(3):  # each is as much as the device, and so are those that are asked for again and again
        put_all(pool, client, N, turn * N)
        assert get_all(client, 64, 0)[1] == 0
    found, wrong = get_all(client, 3 * N)
    tier = node_figures(pool.nodes[0])
    assert wrong == 0 and found > 256 + 400, (found, tier)
    assert tier["pages_reclaimed_total"] > 0 and tier["devices_failed"] == 0 and tier["io_errors_total"] == 0, tier
    assert figures(pool.master)["tier_evictions"] > 0


def test_pages_are_given_up_after_a_restart(make_pool, bench):
    """Fails if a node that is not asked what its tier has, since the master knows, gives up no page later."""
    args = ("--ssd", f"{ssd_of(bench)}:{64 << 20}", "--http", "127.0.0.1:0")
    pool = make_pool(nodes=1, memory=MEMORY, node_args=args)
    client = Shell(bench, pool.addr, "client", deadline=20000 * SLOW, **PATHS["tcp"])
    put_all(pool, client, 320)
    pool.nodes[0].kill9()
    wait_until(lambda: figures(pool.master)["segments"] == 0, 20, "the node to be missed")
    pool.nodes[0] = bench.node(pool.master, "node1", MEMORY, *args)
    wait_until(lambda: client("bexist k/ 0 320")["exist"] > 0, 20, "the tier to be back")
    put_all(pool, client, 1280, 320)
    assert node_figures(pool.nodes[0])["pages_reclaimed_total"] > 0


def test_what_tools_say(make_pool, bench):
    """Fails if stat does not tell of the tier, or stat or doctor takes it for a node that nothing leads to."""
    pool = make_tiered(make_pool, bench)
    client = Shell(bench, pool.addr, "client", deadline=20000 * SLOW, **PATHS["tcp"])
    put_all(pool, client)
    stat = pool.kvpool("stat", "--json").json
    assert [s["node"] for s in stat["segments"]] == ["node1"] and [t["node"] for t in stat["tiers"]] == ["node1/ssd"], stat
    assert set(stat["tiers"][0]) == {"node", "state", "size_bytes", "used_bytes", "objects", "stalled_devices", "segment_id"}
    assert stat["tiers"][0]["objects"] >= N - 256
    screen = pool.kvpool("stat").out.decode()
    assert "nodes      1 of 1 up\n" in screen and "\nSSD        " in screen and "wrong      nothing\n" in screen, screen
    doctor = pool.kvpool("doctor", "--json").json
    assert [n["node"] for n in doctor["nodes"]] == ["node1"] and "no_way" not in str(doctor["findings"]), doctor
    pool.nodes[0].kill9()
    wait_until(lambda: "ssd_away" in str(pool.kvpool("doctor", "--json").json["findings"]), 20, "doctor to miss the tier")


def test_budget_of_writes(make_pool, bench):
    """Fails if more is written to the device than a day may, or a put waits or fails for that; or if stat and doctor do not report evictions of objects
    that the SSD does not have.
    """
    pool = make_pool(nodes=1, memory=MEMORY, node_args=("--ssd", f"{ssd_of(bench)}:{SSD}", "--ssd-writes", "8MiB", "--http", "127.0.0.1:0"))
    client = Shell(bench, pool.addr, "client", deadline=20000 * SLOW, **PATHS["tcp"])
    put_all(pool, client)
    why, = pool.kvpool("stat", "--json").json["pool"]["why"]
    assert why["code"] == "ssd_behind" and "on node node1" in why["text"], why
    assert health(pool.master)["status"] == "degraded" and "ssd_behind" in str(pool.kvpool("doctor", "--json").json["findings"])
    pool.master.wait_log("level=warn part=master msg=\"objects were evicted before the SSD had them: .* lately, .* on node node1")
    tier = node_figures(pool.nodes[0])
    assert 4 << 20 < tier["write_bytes_total"] <= 8 << 20 and tier["refused_writes_total"] > 0, tier
    assert pool.nodes[0].log().count("the write budget of the day is used up") == 1
    found, wrong = get_all(client)
    assert wrong == 0 and 200 < found < N / 2


def test_budget_without_a_device(make_pool):
    """Fails if a node with a budget and no device says nothing, or does not start."""
    pool = make_pool(nodes=1, memory=MEMORY, node_args=("--ssd-writes", "8MiB"))
    assert pool.nodes[0].log().count("--ssd-writes has no meaning without --ssd") == 1


def test_idle_node_writes_next_to_nothing(make_pool, bench):
    """Fails if a node that nobody asks for anything wears its device out."""
    pool = make_pool(nodes=1, memory=MEMORY, node_args=("--ssd", f"{ssd_of(bench)}:{SSD}", "--http", "127.0.0.1:0"))
    put_all(pool, Shell(bench, pool.addr, "client", deadline=20000 * SLOW, **PATHS["tcp"]), 512)
    time.sleep(1)
    before = node_figures(pool.nodes[0])["device_bytes_total"]
    time.sleep(2)
    assert before > 256 * LEN and node_figures(pool.nodes[0])["device_bytes_total"] - before <= 2 << 20


@pytest.mark.parametrize("how", ["missing", "no size", "too small", "too large", "a file", "used twice"])
def test_directory_that_is_no_good(make_pool, bench, how):
    """Fails if a node whose SSD cannot be used starts, says nothing, or does not name the directory."""
    pool = make_pool(nodes=0)
    path = ssd_of(bench)
    what = {"missing": f"{path}/none:{SSD}", "no size": f"{path}", "too small": f"{path}:1MiB", "too large": f"{path}:60TiB",
            "a file": f"/etc/hostname:{SSD}",
            "used twice": f"{path}:{SSD}"}[how]
    if how == "used twice":
        bench.node(pool.master, "other", MEMORY, "--ssd", f"{path}:{SSD}")
    name = "other" if how == "used twice" else "bad"
    r = subprocess.run([os.environ.get("KVPOOL_BUILD", "build") + "/bin/kvpool-node", "--master", pool.addr, "--name", name, "--memory",
                        MEMORY, "--ssd", what], env=bench.env(), capture_output=True, text=True, timeout=20 * SLOW)
    assert r.returncode in (1, 2), r
    assert str(path if how != "a file" else "/etc/hostname") in r.stderr, r.stderr
    assert how == "used twice" or sum(f.stat().st_blocks for f in path.iterdir()) == 0
