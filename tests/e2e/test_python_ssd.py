# SPDX-License-Identifier: Apache-2.0
"""The drop-in's SSD tier: what leaves a rank's memory is read back, also after a kill, from a folder that is the rank's own (stage `python` of
tests/run)."""
import json
import os
import pathlib
import signal
import sys
import time

import pytest

import kvpool
from clients import Talker, figures, free_ports
from conftest import wait_until
from mooncake import _offload
from mooncake._admin import Admin
from mooncake.store import MooncakeDistributedStore
from stores import MIB, lasting_child
from test_log import start
from test_python_store import fetch, programs  # noqa: F401: a fixture

RANK = pathlib.Path(__file__).with_name("store_rank.py")
MEMORY = 32 * MIB  # 128 objects
N = 384
LIMIT = "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES"


@pytest.fixture
def path(bench, monkeypatch):
    """An SSD that ranks share, of which each may take 256 MiB."""
    monkeypatch.setenv(LIMIT, str(256 * MIB))
    folder = pathlib.Path(bench.home, "ssd")
    folder.mkdir()
    return folder


@pytest.fixture
def pool(make_pool, bench):
    return make_pool(nodes=0, data_dir=f"{bench.home}/data")


class Rank(Talker):
    def __init__(self, bench, pool, path, name="rank"):
        words = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "global_segment_size": MEMORY, "master_server_addr": pool.addr,
                 "enable_ssd_offload": "true", "ssd_offload_path": str(path)}
        began = time.monotonic()
        super().__init__(bench, name, [sys.executable, RANK, json.dumps(words)])
        assert self.hear(60) == 0, self.log()
        self.ready_s = time.monotonic() - began


@pytest.fixture
def rank(bench, pool, path, monkeypatch):
    monkeypatch.setattr(bench, "env", lambda **extra: {**type(bench).env(bench, **extra), LIMIT: os.environ[LIMIT]})
    return lambda name="rank", at=path: Rank(bench, pool, at, name)


def settled(pool):
    wait_until(lambda: (lambda f: f["demoted"] + f["demotes_refused"] == f["demotes"])(figures(pool.master)), 10, "the disk")


def put_all(pool, rank, first, n):
    """Puts them so slowly that the disk keeps up."""
    for at in range(first, first + n, 16):
        assert rank.ask(f"put_all({at}, 16)") == 0
        settled(pool)


def folders(path):
    return sorted(p.name for p in path.iterdir())


def name_in(folder):
    return json.loads((folder / "node.json").read_text())["name"]


def test_more_than_memory_and_a_kill(pool, rank, path):
    """Fails if what left memory is not read back, or a process that was killed does not have it again, at other ports, within 20 s; or if bytes
    are wrong.
    """
    one = rank()
    put_all(pool, one, 0, N)
    assert one.ask(f"get_all(0, {N})", 60) == [N, 0]
    on_tier = figures(pool.master)["tier_objects"]
    assert on_tier >= N - 160 and folders(path) == ["rank-0"], on_tier
    name, at = name_in(path / "rank-0"), one.ask("store.get_hostname()")
    child = one.ask("lasting_child()")  # whatever else it has of its parent
    one.kill9()
    two = rank("again")
    os.kill(child, signal.SIGKILL)
    assert two.ready_s < 20 and two.ask("store.get_hostname()") != at and name_in(path / "rank-0") == name
    assert folders(path) == ["rank-0"]
    found, wrong = two.ask(f"get_all(0, {N})", 60)
    assert wrong == 0 and found >= on_tier, (found, on_tier)
    assert two.ask("store.remove('k0')") in (0, -704)
    two.proc.stdin.close()  # a close, not a kill
    assert two.finish() == 0
    three = rank("third")
    found, wrong = three.ask(f"get_all(0, {N})", 60)
    assert wrong == 0 and found >= on_tier - 1 and three.ask("store.get('k0') == b''") is True, (found, on_tier)


def test_all_are_killed(bench, pool, rank):
    """Fails if a host that goes down with its master does not find what was on its SSD."""
    one = rank()
    put_all(pool, one, 0, N)
    on_tier = figures(pool.master)["tier_objects"]
    pool.master.kill9()
    one.kill9()
    start(bench, pool, "master2")
    two = rank("again")
    found, wrong = two.ask(f"get_all(0, {N})", 60)
    assert wrong == 0 and found >= on_tier, (found, on_tier)


def test_ranks_of_one_path(pool, rank, path):
    """Fails if two ranks share a folder, or what they had is not found when both, and in another order, are there again."""
    ranks = [rank("a"), rank("b")]
    assert folders(path) == ["rank-0", "rank-1"]
    for i, one in enumerate(ranks):
        put_all(pool, one, i * N, N)
    on_tier = figures(pool.master)["tier_objects"]
    names = {name_in(path / f) for f in folders(path)}
    assert len(names) == 2 and on_tier >= 2 * N - 320
    for one in ranks:
        one.kill9()
    ranks = [rank("c"), rank("d")]
    assert folders(path) == ["rank-0", "rank-1"] and {name_in(path / f) for f in folders(path)} == names
    found, wrong = ranks[1].ask(f"get_all(0, {2 * N})", 60)
    assert wrong == 0 and found >= on_tier, (found, on_tier)


def test_replicas_on_an_ssd(pool, rank):
    """Fails if a replica on an SSD, alone or beside memory, is not told in the reference's form, by a store or over HTTP; or is still told after
    unmount_local_disk_segment, or does not come back with the next process.
    """
    one = rank()
    put_all(pool, one, 0, N)
    at = one.ask("store.get_hostname()")
    admin = Admin(("127.0.0.1", 0), pool.addr, "127.0.0.1:1")
    admin.start()
    port = admin.server_address[1]

    def told(key):
        return json.loads(fetch(port, f"/batch_query_keys?keys={key}")[1])["data"][key]

    on_ssd = [{"client_id": "", "object_size": 256 << 10, "transport_endpoint": at}]
    assert one.ask("kinds('k0')") == [[False, False, True]] and one.ask(f"kinds('k{N - 1}')") == [[True, False, False]]
    assert told("k0") == {"ok": True, "error": None, "values": [], "disk_values": None, "local_disk_values": on_ssd, "nof_values": None}
    assert json.loads(fetch(port, "/query_key?key=k0")[1]) == {"success": True, "data": []}
    assert told(f"k{N - 1}")["local_disk_values"] is None and told(f"k{N - 1}")["values"][0]["transport_endpoint_"] == at
    assert one.ask("store.get_size('k0')") == 256 << 10
    assert one.ask("store.get('k0') == value(0)") and one.ask("kinds('k0')") == [[True, False, False], [False, False, True]]
    assert told("k0")["local_disk_values"] == on_ssd and told("k0")["values"][0]["size_"] == 256 << 10
    assert one.ask("store.unmount_local_disk_segment(1)") == 0 == one.ask("store.unmount_local_disk_segment()")
    assert one.ask("kinds('k0')") == [[True, False, False]] and one.ask("kinds('k1')") == [] and one.ask("store.is_exist('k1')") == 0
    assert one.ask("store.get('k1') == b''") is True and fetch(port, "/query_key?key=k1")[0] == 404
    assert one.ask("put_all(2000, 200)") == 0  # memory goes on to work
    one.kill9()
    two = rank("again")
    assert two.ask("store.get('k1') == value(1)") is True
    admin.shutdown()
    admin.server_close()
    admin.pool.close()


def test_kvpool_with_an_ssd(pool, bench):
    """Fails if an embedded node of kvpool.Pool has no tier, not what it had before, or one of another name takes its file."""
    folder = pathlib.Path(bench.home, "own")
    folder.mkdir()
    conf = {"memory": "32MiB", "chunk": "32MiB", "ssd": f"{folder}:128MiB", "ssd_writes": "1TiB"}
    with kvpool.Pool(pool.addr, name="here", **conf) as one:
        for at in range(0, 256, 16):
            for i in range(at, at + 16):
                one.put(f"k{i}", b"%08d" % i * 32768)
            settled(pool)
        assert [t["node"] for t in one.stat()["tiers"]] == ["here/ssd"]
        assert one.get("k0") == b"%08d" % 0 * 32768
        for keys in (["k1"], ["k2", "absent"]):
            look_up = one.longest_prefix if len(keys) == 1 else one.lookup
            with look_up(keys, prefetch=True) as found:
                assert (found.granted, found.on_ssd) == (1, 1)
        wait_until(lambda: one.longest_prefix(["k1", "k2"]).on_ssd == 0, 10, "what was asked for to be in memory")
    for bad in ({"name": "there", **conf}, {**conf}, {"name": "here", "ssd": conf["ssd"]}, {"name": "here", **conf, "ssd": [conf["ssd"]] * 17}):
        with pytest.raises((kvpool.Error, ValueError), match="here|name|memory|16"):
            kvpool.Pool(pool.addr, **bad)
    with kvpool.Pool(pool.addr, name="here", **conf) as one:
        assert one.get("k0") == b"%08d" % 0 * 32768
        one.unmount_ssd()
        assert "k1" not in one


def setup_at(pool, path, memory=MEMORY):
    store = MooncakeDistributedStore()
    code = store.setup("127.0.0.1", "P2PHANDSHAKE", memory, 0, "tcp", "", pool.addr, None, True, str(path))
    return store, code


@pytest.mark.parametrize("how", ["missing", "a file", "damaged", "too little", "no size", "no disk has so much", "no watermark", "no kvpool"])
def test_directory_that_is_no_good(pool, path, monkeypatch, caplog, how):
    """Fails if a store whose SSD cannot be used is set up, takes 10 s to say so, or says more or less than a line, without the reason."""
    at, why = {"missing": (path / "none", "none"), "a file": ("/etc/hostname", "/etc/hostname")}.get(how, (path, "rank-0"))
    if how in ("damaged", "no kvpool"):
        (path / "rank-0").mkdir()
        (path / "rank-0" / "kvpool.tier").write_bytes(b"something else " * 1000)
    if how == "damaged":
        (path / "rank-0" / "node.json").write_text('{"name": 1')
    if how == "no kvpool":
        (path / "rank-0" / "node.json").write_text(json.dumps({"name": "n", "asked": 256 * MIB, "size": 256 * MIB}))
    if how in ("too little", "no size"):
        monkeypatch.setenv(LIMIT, {"too little": "1MB", "no size": "much"}[how])
    if how == "no size":
        why = LIMIT
    if how == "no disk has so much":
        monkeypatch.setattr(os, "statvfs", lambda p: os.statvfs_result((4096, 4096, 1 << 30, 1 << 20, 1 << 20, 0, 0, 0, 0, 255)))
    if how == "no watermark":
        monkeypatch.setenv("MOONCAKE_OFFLOAD_DISK_EVICTION_HIGH_WATERMARK_RATIO", "90")
        why = "WATERMARK"
    began = time.monotonic()
    store, code = setup_at(pool, at)
    assert code < 0 and time.monotonic() - began < 10
    [line] = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert why in line and "\n" not in line, line
    assert store.health_check() == 1 and setup_at(pool, at)[1] == code  # it holds no lock
    assert not (pathlib.Path(at) / "rank-1").exists()


def test_sizes(path, monkeypatch):
    """Fails if a tier takes more than was asked for, or fills the disk, or has another size after a restart although nothing else was asked for."""
    gib = 1 << 30
    disk = {"size": 1000 * gib, "free": 400 * gib}
    monkeypatch.setattr(os, "statvfs", lambda p: os.statvfs_result((4096, 4096, disk["size"] // 4096, disk["free"] // 4096,
                                                                    disk["free"] // 4096, 0, 0, 0, 0, 255)))

    def size(memory, **limits):
        for name in _offload._LIMITS:
            monkeypatch.delenv(name, raising=False)
        for name, value in limits.items():
            monkeypatch.setenv(f"MOONCAKE_{name}", str(value))
        folder = _offload.take(path, memory)
        try:
            return int(folder.device.rpartition(":")[2][:-1]) / gib
        finally:
            folder.close()

    assert size(gib) == 10  # ten times the memory
    assert size(16 * MIB) == 10 * 16 / 1024 and size(1 * MIB) == 64 / 1024
    assert size(64 * gib) == 75  # a quarter of what is free below 90 %
    assert size(64 * gib, OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=300 * gib) == 300
    assert size(64 * gib, OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=2 << 40) == 150  # half of what is free: others come
    assert size(64 * gib, OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=200 * gib, OFFLOAD_BUCKET_MAX_TOTAL_SIZE=100 * gib, BUCKET_MAX_TOTAL_SIZE=0) == 100
    monkeypatch.setenv("MOONCAKE_OFFLOAD_DISK_EVICTION_HIGH_WATERMARK_RATIO", "0.7")
    assert size(64 * gib, OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=2 << 40) == 50
    (path / "rank-0" / "kvpool.tier").write_bytes(b"x")
    disk["free"] = 350 * gib
    assert size(64 * gib, OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=2 << 40) == 50  # it would be 25 if it were made now
    assert size(64 * gib, OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=1 << 40) == 25


def test_lock_ends_with_its_process(path):
    """Fails if a child that lives on keeps its parent's folder, or a folder is somebody else's while it is locked."""
    one, two = _offload.take(path, MEMORY), _offload.take(path, MEMORY)
    assert folders(path) == ["rank-0", "rank-1"] and one.name != two.name
    child = lasting_child()
    try:
        one.close()
        three = _offload.take(path, MEMORY)
        assert three.name == one.name
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    for folder in (two, three):
        folder.close()


def test_variables_without_use(pool, path, monkeypatch, caplog):
    """Once in a process; and of a store that gives no memory."""
    monkeypatch.setattr(_offload, "_told", set())
    monkeypatch.setenv("MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS", "10")
    monkeypatch.setenv("MOONCAKE_OFFLOAD_ENABLED", "1")
    for said in (1, 0):
        store, code = setup_at(pool, path)
        lines = [r.getMessage() for r in caplog.records if "HEARTBEAT" in r.getMessage()]
        assert code == 0 and len(lines) == said and all("LIMIT" not in line and "ENABLED" not in line for line in lines)
        assert store.close() == 0
        caplog.clear()
    store, code = setup_at(pool, path, memory=0)
    assert code == 0 and "mooncake_client --enable_offload" in caplog.text and store.close() == 0


def test_client_program(pool, path, programs, bench, monkeypatch):  # noqa: F811
    """Fails if mooncake_client --enable_offload has no tier, not the same one after a kill, keeps it when it is unmounted over HTTP, or starts
    without a directory.
    """
    plain = bench.env
    monkeypatch.setattr(bench, "env", lambda **extra: {**plain(**extra), LIMIT: os.environ[LIMIT], "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(path)})
    flags = [f"--master_server_address={pool.addr}", "--host=127.0.0.1", "--protocol=tcp", "--global_segment_size=32MB", "--enable_offload",
             "--enable_http_server", "--rest"]

    def start():
        port, http = free_ports(2)
        process = programs("mooncake_client", *flags, f"--port={port}", f"--http_port={http}")
        wait_until(lambda: '"tier":"ok"' in fetch(http, "/health")[1], 20, "the tier")
        return process, http

    def unmount(http, body):
        return fetch(http, "/api/unmount_local_disk", "POST", body)

    process, _ = start()
    name = name_in(path / "rank-0")
    assert [t["node"] for t in pool.kvpool("stat", "--json").json["tiers"]] == [f"{name}/ssd"]
    process.kill()
    process.wait()
    process, http = start()
    assert folders(path) == ["rank-0"] and [t["node"] for t in pool.kvpool("stat", "--json").json["tiers"]] == [f"{name}/ssd"]
    other, _ = start()
    assert folders(path) == ["rank-0", "rank-1"]
    for bad in ("[]", '{"grace_period_seconds": -1}', '{"grace_period_seconds": 3601}', '{"grace_period_seconds": "1"}', "{"):
        assert unmount(http, bad)[0] == 400, bad
    assert unmount(http, '{"grace_period_seconds": 1}') == (200, '{"status":"success"}')
    states = {t["node"]: t["state"] for t in pool.kvpool("stat", "--json").json["tiers"]}
    assert states[f"{name}/ssd"] == "lost" and sorted(states.values()) == ["lost", "up"] and '"tier":"not mounted"' in fetch(http, "/health")[1]
    monkeypatch.setattr(bench, "env", lambda **extra: {**plain(**extra), LIMIT: os.environ[LIMIT], "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": f"{path}/none"})
    config = pathlib.Path(bench.home, "service.json")
    config.write_text(json.dumps({"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "master_server_address": pool.addr,
                                  "global_segment_size": "32MB", "enable_ssd_offload": True, "ssd_offload_path": str(path)}))
    programs("python3", "-m", "mooncake.mooncake_store_service", f"--config={config}", f"--port={free_ports(1)[0]}")
    wait_until(lambda: folders(path) == ["rank-0", "rank-1", "rank-2"], 20, "the service's folder")
    bad = programs("mooncake_client", *flags, "--port=0")
    assert bad.wait(10) == 1
    text = pathlib.Path(bad.log).read_text()
    assert text.startswith("mooncake_client: --enable_offload: ") and f"{path}/none" in text and text.count("\n") == 1
