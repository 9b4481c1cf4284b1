# SPDX-License-Identifier: Apache-2.0
"""`kvpool doctor` on machines and pools that lack something: it says what, and what helps, and leaves nothing behind. What it
makes of facts that no test machine has is in tests/unit/tools/test_doctor.c, and with devices in tests/rdma_vm."""
import os

import pytest

from conftest import PROGRAMS, SLOW, run_program

HAS_RDMA = os.path.isdir("/sys/class/infiniband") and os.listdir("/sys/class/infiniband") != []


def doctor(pool, *args, limits=(), **env):
    """limits: arguments of prlimit for the process."""
    argv = [PROGRAMS["kvpool"], "doctor", "--json", *args]
    return run_program(["prlimit", *limits, *argv] if limits else argv, pool.env(**env), timeout=60 * SLOW)


def codes(r, severity=None):
    return {f["code"] for f in r.json["findings"] if severity in (None, f["severity"])}


def finding(r, code):
    found = [f for f in r.json["findings"] if f["code"] == code]
    assert len(found) == 1, (code, r.json["findings"])
    return found[0]


@pytest.fixture
def pair(bench):
    """A pool of two nodes: one with all transports, and one that offers tcp alone."""
    master = bench.master()
    bench.near = bench.node(master, "near", "4MiB")
    bench.far = bench.node(master, "far", "4MiB", "--transports", "tcp")
    bench.at = master.listen
    return bench


def test_pool_that_is_well(pair):
    """Fails if a node is not probed by each transport that leads to it, an error is found where there is none, or anything is
    left in the pool.
    """
    r = doctor(pair, "--master", pair.at)
    assert r.rc == 0 and r.json["is_healthy"] and not codes(r, "error") and not codes(r, "warning"), r
    nodes = {n["node"]: n for n in r.json["nodes"]}
    assert {n: {p["transport"] for p in nodes[n]["probes"]} - {"rdma"} for n in nodes} == {"near": {"shm", "tcp"}, "far": {"tcp"}}
    assert all(p["result"] == "OK" and p["put_us"] > 0 and p["get_us"] > 0 for n in nodes.values() for p in n["probes"]), r
    assert r.json["pool"]["result"] == "OK" and r.json["pool"]["master"] == pair.at
    stat = pair.run("kvpool", "stat", "--json", "--master", pair.at).json
    assert stat["pool"]["objects"] == 0 and pair.run("kvpool", "ls", "--master", pair.at).out == b""


def test_node_that_is_stopped(pair):
    """Fails if a node that does not answer is not named with what helps, or another one is blamed for it."""
    pair.near.freeze()
    try:
        r = doctor(pair, "--master", pair.at, "--deadline", "2s")
    finally:
        pair.near.thaw()
    assert r.rc == 1 and not r.json["is_healthy"], (r.json["findings"], r.json["nodes"])
    found = [f for f in r.json["findings"] if f["severity"] == "error"]
    assert found and all("near" in f["what"] and f["fix"] for f in found), found
    assert codes(r, "error") <= {"node_unreachable", "no_place", "node_away"}
    far = next(n for n in r.json["nodes"] if n["node"] == "far")
    assert [p["result"] for p in far["probes"]] == ["OK"], far


def test_node_that_was_killed(pair):
    """Fails if a node that the master knows no more, or knows to be lost, counts as well."""
    pair.far.kill9()
    r = doctor(pair, "--master", pair.at, "--deadline", "2s")
    assert r.rc == 1 and "far" in finding(r, "node_away")["what"], r


def test_node_by_tcp_alone(pair):
    """Fails if a client that has shared memory alone is not told that no way leads to the node."""
    r = doctor(pair, "--master", pair.at, "--transports", "shm")
    assert r.rc == 1 and codes(r, "error") == {"no_way"}, r
    assert "far offers tcp" in finding(r, "no_way")["what"]
    assert all(p["transport"] == "shm" for n in r.json["nodes"] for p in n["probes"])


def test_without_a_pool(bench):
    """Fails if the machine is not looked at where no master answers, or the exit code is another one."""
    r = doctor(bench, "--master", "127.0.0.1:1", "--deadline", "1s")
    assert r.rc == 3 and not r.json["is_healthy"], r
    assert "127.0.0.1:1" in finding(r, "pool_unreachable")["what"]
    assert {t["name"] for t in r.json["transports"]} == {"shm", "rdma", "tcp"}
    assert r.json["nodes"] == [] and r.json["limits"]["open_files"] > 0


def test_low_limits(pair):
    """Fails if limits of this process are not the ones that are shown and judged."""
    r = doctor(pair, "--master", pair.at, limits=("--memlock=65536:65536", "--nofile=200:200"))
    assert r.json["limits"]["memlock_bytes"] == 65536 and r.json["limits"]["open_files"] == 200
    assert "may open 200 files" in finding(r, "open_files")["what"] and "ulimit -n" in finding(r, "open_files")["fix"]
    assert "may lock 64 KiB" in finding(r, "memlock")["what"] and "LimitMEMLOCK" in finding(r, "memlock")["fix"]
    assert r.rc == 1 and finding(r, "memlock")["severity"] == ("error" if HAS_RDMA else "info"), r


@pytest.mark.skipif(HAS_RDMA, reason="this machine has RDMA devices")
def test_rdma_where_there_is_none(pair):
    """Fails if a machine without a device is not told so, or is worse for it than it is where rdma was named."""
    r = doctor(pair, "--master", pair.at)
    assert r.rc == 0 and finding(r, "no_rdma")["severity"] == "info", r
    assert r.json["rdma_ports"] == []
    for how in (dict(args=["--transports", "rdma,tcp"]), dict(env={"KVPOOL_TRANSPORTS": "rdma"})):
        r = doctor(pair, "--master", pair.at, *how.get("args", []), **how.get("env", {}))
        assert r.rc == 1 and "rdma cannot be used here" in finding(r, "transport_named")["what"], r
        assert codes(r, "error") == {"transport_named"}, r


@pytest.mark.skipif(HAS_RDMA, reason="this machine has RDMA devices")
@pytest.mark.parametrize("args, env, code", [
    ([], {"KVPOOL_RDMA_DEVICE": "nope"}, "device_named"),
    ([], {"KVPOOL_RDMA_GID_INDEX": "3"}, "device_named"),
    (["--transports", "rdma"], {}, "transport_named"),
    (["--transports", "rdma,tcp"], {}, "transport_named"),
    (["--transports", "tcp"], {"KVPOOL_RDMA_DEVICE": "nope"}, None),
])
def test_is_healthy_only_where_a_pool_opens(pair, args, env, code):
    """Fails if what keeps every other verb from opening the pool is none of doctor's errors, or a node is said to be reached
    all the same.
    """
    got = run_program([PROGRAMS["kvpool"], "get", "k", "--master", pair.at, *args], pair.env(**env), timeout=60 * SLOW)
    r = doctor(pair, "--master", pair.at, *args, **env)
    ways = {n["transport"] for n in r.json["nodes"]}
    if code is None:
        assert r.rc == 0 and got.rc == 1 and ways == {"tcp"}, (r, got)
    else:
        assert r.rc == 1 and got.rc == 2 and codes(r, "error") == {code} and ways == {"none"}, (r, got)


@pytest.mark.parametrize("args, env, says", [
    (["--transports", "pigeon"], {}, "--transports"),
    ([], {"KVPOOL_TRANSPORTS": "pigeon"}, "KVPOOL_TRANSPORTS"),
    ([], {"KVPOOL_RDMA_GID_INDEX": "first"}, 'KVPOOL_RDMA_GID_INDEX "first"'),
    ([], {"KVPOOL_RDMA_DEVICE": "rxe0,rxe0"}, 'KVPOOL_RDMA_DEVICE "rxe0,rxe0"'),
    (["now"], {}, "no operand"),
])
def test_usage(bench, args, env, says):
    """Fails if what is not meant is taken for something."""
    r = doctor(bench, *args, **env)
    assert r.rc == 2 and says in r.err and not r.out, r


def test_text_says_the_same(pair):
    """Fails if people are told less than scripts."""
    r = pair.run("kvpool", "doctor", "--master", pair.at, "--transports", "shm")
    assert r.rc == 1, r
    for part in ("this machine", "memlock", "open files", f"pool at {pair.at}", "near", "far", "get ", "fix: "):
        assert part in r.text, (part, r.text)
