# SPDX-License-Identifier: Apache-2.0
"""kvpool snapshot and kvpool fsck: the log of a running and of a stopped pool, and whether what the pool has can be read."""
import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import threading

import pytest

import rawwire as w
from clients import PATHS, Shell, figures
from conftest import RDMA, SLOW, wait_until
from test_bad_input import DataDoor
from test_hostile import commit_hollow
from test_log import removed_of, start

LEN = 512


def files_of(data):
    """The log's directory: {name: bytes}."""
    return {f.name: f.read_bytes() for f in sorted(pathlib.Path(data, "log").iterdir())}


def fsck_dir(bench, data, *args):
    return bench.run("kvpool", "fsck", "--data-dir", data, "--json", *args)


# ---- snapshot
def test_snapshot_shrinks_the_log(make_pool, bench):
    """Fails if a snapshot leaves the log longer than what is there needs, returns before files are gone, does not serve four that ask at
    once, tells wrong figures; or if the next master lacks anything, or has what was removed."""
    pool = make_pool(nodes=2, memory="16MiB", data_dir=f"{bench.home}/data")
    client = Shell(bench, pool.addr, "client", **PATHS["tcp"])
    for turn in range(6):  # more than the pool has room for
        assert client(f"bput {turn}/ 0 8000 4000 deadline={30000 * SLOW}")["results"] == {"OK": 8000}
    removed_of(client, [f"5/{i}" for i in range(7000, 7100)])
    assert figures(pool.master)["evictions"] > 30000
    before = sum(map(len, files_of(pool.master.data).values()))
    asking = [bench.popen("kvpool", "snapshot", "--master", pool.addr, "--json", stdout=subprocess.PIPE) for _ in range(3)]
    r = pool.kvpool("snapshot", "--json")
    now = {name: len(text) for name, text in files_of(pool.master.data).items() if name.endswith(".log")}
    assert r.rc == 0 and r.json["objects"] == figures(pool.master)["objects"], r
    assert len(now) == 1 and r.json["log_bytes"] <= sum(now.values()) < before / 3, (before, now, r)
    assert [p.wait(20 * SLOW) for p in asking] == [0] * 3
    live = client("bexist 5/ 0 8000")["exist"]
    pool.master.kill9()
    start(bench, pool, "master2")
    wait_until(lambda: figures(pool.master)["segments"] == 2, 20, "both nodes to have told what they hold")
    reader = Shell(bench, pool.addr, "reader", **PATHS["tcp"])
    assert reader("bexist 5/ 0 8000")["exist"] == live > 1000 and reader("bexist 5/ 7000 100")["exist"] == 0


def test_snapshot_without_a_log(pool):
    """Fails if a master without a log does not say so, or the error has no name."""
    r = pool.kvpool("snapshot")
    assert r.rc == 1 and "(NOTSUP): the master keeps no log" in r.err, r


# ---- fsck of a stopped pool
def stopped_pool(make_pool, bench, name="data", n=100):
    """A pool whose master was killed; n keys of it are there, and 10 were removed before the last of them was put."""
    pool = make_pool(nodes=1, data_dir=f"{bench.home}/{name}")
    client = Shell(bench, pool.addr, f"client-{name}", **PATHS["tcp"])
    assert client(f"bput gone/ 0 10 {LEN}")["results"] == {"OK": 10}
    removed_of(client, [f"gone/{i}" for i in range(10)])
    assert client(f"bput k/ 0 {n} {LEN}")["results"] == {"OK": n}
    pool.master.kill9()
    return pool, client


def flip(path, at):
    with open(path, "r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 4]))


def damage_of(how, path, data):
    """Does it, and returns the verdict that fsck has to give, and where: (name, least offset, greatest)."""
    size = os.path.getsize(path)
    if how == "cut":
        os.truncate(path, size - 7)
        return "cut", size - 2048, size - 7
    if how == "flipped":
        flip(path, size // 2)
        return "damaged", size // 2 - 2048, size // 2
    if how == "garbage":
        with open(path, "ab") as f:
            f.write(os.urandom(64))
        return "damaged", size, size
    if how == "gap":  # another file, which does not follow
        shutil.copy(path, f"{data}/log/{size + 8:016x}.log")
        return "damaged", size, size
    assert how == "none"
    return "clean", size, size


@pytest.mark.parametrize("how", ["none", "cut", "flipped", "garbage", "gap"])
def test_fsck_of_a_log(make_pool, bench, how):
    """Fails if the verdict, its place or the exit code is wrong; if anything is changed without --repair, or where nothing is damaged; if a
    byte is lost by --repair, or the log looks damaged after it; or if the next master lacks a key then, or has a removed one."""
    pool, client = stopped_pool(make_pool, bench)
    data = pool.master.data
    (name,) = [f for f in files_of(data) if f.endswith(".log")]
    verdict, least, greatest = damage_of(how, f"{data}/log/{name}", data)
    found = files_of(data)
    is_damaged = verdict == "damaged"
    r = fsck_dir(bench, data)
    told = r.json
    assert (r.rc, told["verdict"]) == (int(is_damaged), verdict), r
    assert told["end_file"] == name and least <= told["end_offset"] <= greatest, r
    all_bytes = sum(len(text) for f, text in found.items() if f.endswith(".log"))
    assert told["log_bytes"] == all_bytes == told["end_offset"] + told["unread_bytes"], r
    assert told["is_whole"] == 1 and told["gone_records"] >= 10 and told["segments"] == told["tenants"] == 1, r
    if how in ("none", "garbage", "gap"):
        assert told["objects"] == 100 and told["commit_records"] == 110, r
    assert files_of(data) == found
    text = bench.run("kvpool", "fsck", "--data-dir", data)
    assert text.rc == r.rc and f"verdict              {verdict}\n" in text.text and ("asks the nodes" in text.text) == (how != "none"), text

    r = fsck_dir(bench, data, "--repair")
    assert r.rc == int(is_damaged) and (r.json["set_aside"] != "") == is_damaged, r
    after = files_of(data)
    if is_damaged:
        assert "boot" not in after and f"{r.json['set_aside']}" in after
        rest = b"".join(text for f, text in after.items() if f.endswith(".damaged"))
        assert after[name] + rest == b"".join(text for f, text in found.items() if f.endswith(".log"))
        again = fsck_dir(bench, data)
        assert again.rc == 0 and again.json["verdict"] == "clean" and again.json["is_of_another_boot"] == 1, again
    else:
        assert after == found
    start(bench, pool, "master2")
    wait_until(lambda: figures(pool.master)["segments"] == 1, 20, "the node to have told what it holds")
    got = client(f"bget k/ 0 100 {LEN}")
    assert got["results"].get("OK") == 100 and got["wrong"] == 0, got
    assert client("bexist gone/ 0 10")["exist"] == 0


def test_fsck_of_another_pools_log(make_pool, bench):
    """Fails if the log of another pool is not told from damage, or if a master does not start, and have all that its node has, after
    --repair has set it aside."""
    pool, client = stopped_pool(make_pool, bench)
    other, _ = stopped_pool(make_pool, bench, "other")
    data = pool.master.data
    shutil.rmtree(f"{data}/log")
    shutil.copytree(f"{other.master.data}/log", f"{data}/log")
    r = fsck_dir(bench, data)
    assert r.rc == 1 and (r.json["verdict"], r.json["end_offset"], r.json["objects"]) == ("another_pool", 0, 0), r
    assert fsck_dir(bench, data, "--repair").rc == 1 and fsck_dir(bench, data).json["files"] == 0
    start(bench, pool, "master2")
    wait_until(lambda: client("bexist k/ 0 100")["exist"] == 100, 20, "the node to have told what it holds")


def test_fsck_that_cannot_check(make_pool, bench):
    """Fails if a directory that is absent, empty, without a log or in use is not refused with 2 and the reason, or if anything is made there;
    or if a master starts on one that a master uses."""
    absent, empty = f"{bench.home}/absent", f"{bench.home}/empty"
    os.mkdir(empty)
    for data, why in ((absent, "No such file or directory"), (empty, "this directory has no pool")):
        r = fsck_dir(bench, data, "--repair")
        assert r.rc == 2 and why in r.err, r
    assert not os.path.exists(absent) and os.listdir(empty) == []
    pool = make_pool(nodes=1, data_dir=f"{bench.home}/data")
    assert pool.put("k", b"k").rc == 0
    for program, args in (("kvpool", ("fsck", "--json")), ("kvpool-master", ("--listen", "127.0.0.1:0", "--http", "none"))):
        r = bench.run(program, *args, "--data-dir", pool.master.data)
        assert r.rc in (1, 2) and "another master uses the data directory" in r.err, r
        assert r.rc == 2 or program == "kvpool-master"
    pool.master.kill9()
    shutil.rmtree(f"{pool.master.data}/log")
    r = fsck_dir(bench, pool.master.data)
    assert r.rc == 2 and "cannot open the log: No such file or directory" in r.err, r
    assert bench.run("kvpool", "fsck", "--data-dir", pool.master.data, "--deep").rc == 2
    assert bench.run("kvpool", "fsck", "--data-dir", empty, env={"KVPOOL_BIN_DIR": empty}).rc == 2


# ---- fsck of a running pool
def test_fsck_of_a_running_pool(make_pool, bench):
    """Fails if sound keys are called unreadable, figures that are true wrong, or if not every key is read, also of more than a page."""
    pool = make_pool(nodes=2)
    client = Shell(bench, pool.addr, "client", **PATHS["tcp"])
    assert client(f"bput k/ 0 700 {LEN}")["results"] == {"OK": 700} and pool.put("big", bytes(3 << 20)).rc == 0
    for args in ((), ("--deep",), ("--repair",)):
        r = pool.kvpool("fsck", "--json", *args)
        assert r.rc == 0 and r.json["verdict"] == "clean", r
        assert (r.json["keys"], r.json["objects"], r.json["read_bytes"]) == (701, 701, 700 * LEN + (3 << 20)), r
        found = {row["node"]: row for row in r.json["nodes"]}
        for node in pool.kvpool("node", "ls", "--json").json:
            assert found[node["node"]]["keys"] == node["objects"] > 0, (found, node)
        assert sum(row["read_bytes"] for row in found.values()) == r.json["read_bytes"], found
    assert pool.kvpool("fsck", "--tenant", "7", "--json").json["keys"] == 0
    pool.master.kill9()
    assert pool.kvpool("fsck", "--deadline", "300ms").rc == 3


@pytest.mark.pool(nodes=1)
def test_fsck_while_keys_change(pool):
    """Fails if keys that are put, replaced, evicted and removed meanwhile are reported."""
    client = Shell(pool.bench, pool.addr, "client", **PATHS["shm"])
    assert client("bput k/ 0 1000 4096")["results"] == {"OK": 1000}
    is_over = threading.Event()

    def change():
        turn = 0
        while not is_over.is_set():
            turn += 1
            client(f"bput x/{turn}/ 0 500 40000")  # more than the pool has room for, after some turns
            client("bput k/ 0 200 4096 upsert=1")
            client(f"remove k/{turn % 1000} force=1")
        assert figures(pool.master)["evictions"] > 0 < figures(pool.master)["removes"]

    with concurrent.futures.ThreadPoolExecutor() as threads:
        changer = threads.submit(change)
        try:
            results = [pool.kvpool("fsck", "--json", "--deep") for _ in range(3)]
        finally:
            is_over.set()
        changer.result()
    for r in results:
        assert r.rc == 0 and r.json["verdict"] == "clean", r


@pytest.mark.skipif(bool(RDMA), reason="bytes are flipped over TCP")
@pytest.mark.pool(nodes=1)
def test_fsck_finds_what_nobody_can_read(pool):
    """Fails if keys without bytes, or with other bytes, are not found and named, if the latter are removed without --repair, or not
    with it; or if a node that is away is called anything else."""
    assert pool.put("sound", b"sound").rc == 0 and pool.put("flipped", b"f" * 5000).rc == 0
    commit_hollow(pool.addr, [b"hollow", b"\xff\0hollow"], 4096)
    door = DataDoor(pool)
    meta = pool.kvpool("fsck", "--json")
    lines, told = meta.docs[:-1], meta.docs[-1]
    assert [(row["node"], row["keys"], row["unreadable"]) for row in told["nodes"]] == [("node1", 4, 2)], told
    assert meta.rc == 1 and told["verdict"] == "unreadable" and (told["keys"], told["unreadable"]) == (4, 2), meta
    assert [(line.get("key") or line["key_hex"], line["error"]) for line in lines] == [("hollow", "STALE"), ("ff00686f6c6c6f77", "STALE")]
    wait_until(lambda: pool.kvpool("fsck").rc == 0, 5, "the master to drop them")

    key, write_key = door.read_keys[0][0], door.write_keys[0][0]
    with door.connect() as raw:
        payload = door.run(raw, w.data_op(w.DATA_READ, key, 0, 1 << 20))[1]
        at = payload.index(b"f" * 5000) + 100
        assert door.run(raw, w.data_op(w.DATA_WRITE, write_key, at, 1, body=b"x"))[0] == (w.OK,)
    assert pool.kvpool("fsck").rc == 0  # shared memory is believed
    for args, removed in ((("--deep",), 0), (("--deep", "--repair"), 1)):
        r = pool.kvpool("fsck", "--json", *args)
        assert r.rc == 1 and r.docs[0] == {"key": "flipped", "error": "CORRUPT"}, r
        assert (r.docs[-1]["unreadable"], r.docs[-1]["removed"]) == (1, removed), r
    r = pool.kvpool("fsck", "--deep")
    assert r.rc == 0 and pool.get("sound").out == b"sound" and pool.get("flipped").rc == 1, r

    pool.nodes[0].freeze()
    r = pool.kvpool("fsck", "--json", "--deadline", f"{500 * SLOW}ms", "--transports", "tcp", "--host-id", "other")
    assert r.rc == 1 and r.docs[-1]["verdict"] == "away" and r.docs[-1]["away"] == 1, r
