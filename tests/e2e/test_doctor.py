# SPDX-License-Identifier: Apache-2.0
"""`kvpool doctor` on machines and pools that lack something: it says what, and what helps, and leaves nothing behind. What it
makes of facts that no test machine has is in tests/unit/tools/test_doctor.c, and with devices in tests/rdma_vm."""
import contextlib
import json
import os
import pathlib
import re
import socket
import threading

import pytest

from clients import E2E, Shell, figures, free_ports
from conftest import PROGRAMS, SAN, SLOW, Daemon, ask_http, run_program, wait_until

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
    # Disks of this machine may be full for other reasons.
    assert r.rc == 0 and r.json["is_healthy"] and not codes(r, "error") and codes(r, "warning") <= {"disk_low"}, r
    nodes = {n["node"]: n for n in r.json["nodes"]}
    assert {n: {p["transport"] for p in nodes[n]["probes"]} - {"rdma"} for n in nodes} == {"near": {"shm", "tcp"}, "far": {"tcp"}}
    assert all(p["result"] == "OK" and p["put_us"] > 0 and p["get_us"] > 0 for n in nodes.values() for p in n["probes"]), r
    assert r.json["pool"]["result"] == "OK" and r.json["pool"]["master"] == pair.at
    stat = pair.run("kvpool", "stat", "--json", "--master", pair.at).json
    assert stat["pool"]["objects"] == 0 and pair.run("kvpool", "ls", "--master", pair.at).out == b""
    assert stat["pool"]["asked_minute"] == 0 and {stat["pool"]["counters"][c] for c in ("gets", "get_misses", "put_begins")} == {0}


@pytest.mark.pool(nodes=2, memory="16MiB", node_args=("--chunk-bytes", "1MiB"))
def test_probes_of_a_full_pool_change_nothing(pool):
    """Fails if a probe evicts an object, is counted as a refused put, or makes an error or a warning of a node that is full; with the
    other node connected, and with the other node away.
    """
    def full():
        r = doctor(pool.bench, "--master", pool.addr)
        probed = [f for f in r.json["findings"] if f["code"] == "not_probed"]
        assert probed and all("no memory is free there for the tenant" in f["what"] and f["severity"] == "info" for f in probed), r
        now = figures(pool.master)
        assert {k: now[k] for k in had} == had and pool.kvpool("stat").text.count("refused") == 0
        return r

    client = Shell(pool.bench, pool.addr, tenant="busy")
    for i in range(0, 512, 8):
        assert client(f"bput k/ {i} 8 65536")["results"] == {"OK": 8}
    had = {k: v for k, v in figures(pool.master).items() if re.match("evict|objects|put_no|put_retry|put_begins|gets$|get_miss", k)}
    assert had["evictions"] > 0 and len(had) > 9
    assert full().json["is_healthy"]
    pool.nodes[0].kill9()
    wait_until(lambda: '"lost"' in pool.kvpool("node", "ls", "--json").text, 5, "the node to be away")
    had["objects"] = figures(pool.master)["objects"]
    assert [f["what"].split()[1] for f in full().json["findings"] if f["severity"] == "error"] == ["node1"]


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


# ---- disks, host ids, and daemons that --http names
@pytest.mark.skipif(os.geteuid() != 0, reason="a file system can be mounted by root alone")
def test_disk_with_little_space(bench):
    """Fails if a daemon whose directory has little space left is not named with the directory, the space and the fix."""
    data = pathlib.Path(bench.home, "data")
    data.mkdir()
    master = Daemon("master", ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs -o size=32m none {data} && exec {PROGRAMS['kvpool-master']} "
                               f"--listen 127.0.0.1:0 --http none --data-dir {data}"], bench.env(), bench.home)
    bench.daemons.append(master)
    master.wait_ready()
    low = [f for f in doctor(bench, "--master", master.listen).json["findings"] if f["code"] == "disk_low" and str(data) in f["what"]]
    assert len(low) == 1 and low[0]["severity"] == "warning" and "kvpool-master" in low[0]["what"] and "MiB left" in low[0]["what"], low
    assert "--data-dir" in low[0]["fix"]


def test_host_ids_that_differ(bench):
    """Fails if two nodes at one address with different host ids are not named, or nodes with the same id are."""
    master = bench.master()
    bench.node(master, "one", "4MiB", "--host-id", "a")
    bench.node(master, "two", "4MiB", "--host-id", "a")
    assert "host_ids" not in codes(doctor(bench, "--master", master.listen))
    bench.node(master, "three", "4MiB", "--host-id", "b")
    found = finding(doctor(bench, "--master", master.listen), "host_ids")
    assert "three" in found["what"] and found["severity"] == "warning" and "/etc/machine-id" in found["fix"], found


def test_daemons_that_are_well(bench):
    """Fails if doctor finds fault with a master, a node or a conductor that are well."""
    master = bench.master()
    node = bench.node(master, "node", "4MiB", "--http", "127.0.0.1:0")
    conductor = bench.start("conductor", "kvpool-conductor", "--http", "127.0.0.1:0")
    r = doctor(bench, "--master", master.listen, "--http", f"{master.http},{node.http},{conductor.http}")
    assert r.rc == 0 and codes(r, "warning") <= {"disk_low"}, r
    engine = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    body = {"endpoint": engine, "type": "vLLM", "modelname": "m", "instance_id": "engine-7", "block_size": 4, "dp_rank": 0}
    assert ask_http(conductor.http, "/register", json.dumps(body))[0] == 200
    wait_until(lambda: engine in ask_http(conductor.http, "/ready")[1], 10, "the conductor to report the engine")
    found = finding(doctor(bench, "--master", master.listen, "--http", conductor.http), "engine_unreachable")
    assert "engine-7" in found["what"] and engine in found["what"] and "refused" in found["what"] and found["fix"], found


def test_daemon_of_another_version(bench):
    """Fails if a daemon of another version is not named, with both versions."""
    master = bench.start("next", "kvpool-master-next", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data-dir", "none")
    r = doctor(bench, "--master", master.listen)  # the master reports its HTTP port
    version = bench.run("kvpool", "--version").text.split()[-1]
    found = [f for f in r.json["findings"] if f["code"] == "versions" and master.http in f["what"]]
    assert len(found) == 1 and f"is of version next, this program of {version}" in found[0]["what"] and found[0]["fix"], r.json["findings"]


def test_master_that_is_stopped(bench):
    """Fails if doctor does not say what helps where the master's process is stopped, as by SIGSTOP."""
    master = bench.master()
    master.freeze()
    r = doctor(bench, "--master", master.listen, "--deadline", "1s")
    assert r.rc == 3 and "kill -CONT" in finding(r, "pool_unreachable")["fix"], r
    master.thaw()


@pytest.mark.skipif(SAN != "", reason="a preloaded library and a sanitizer do not go together")
@pytest.mark.parametrize("shift", [-3600, 3600])
def test_clock_that_is_wrong(bench, shift):
    """Fails if the difference of a daemon's clock is not within the bounds that doctor reports."""
    master = bench.master(env={"LD_PRELOAD": str(E2E / "e2e_clock.so"), "E2E_CLOCK": str(shift)})
    found = finding(doctor(bench, "--master", master.listen, "--http", master.http), "clock")
    least, most = (int(word) for word in found["what"].split() if word[0] in "+-")
    assert least <= shift <= most and most - least < 10 * SLOW and master.http in found["what"] and "chrony" in found["fix"], found


@pytest.mark.parametrize("answer, code", [
    (None, "http_unreachable"),
    (b"", "port_taken"),
    (b"SSH-2.0-x\r\n", "port_taken"),
    (b"HTTP/1.1 200 OK\r\nDate: Mon, 99 Abc\r\n\r\n<html>", "port_taken"),
    (b"HTTP/1.1 200 OK\r\n\r\n[[1]]", "port_taken"),
    (b"HTTP/1.1 200 OK\r\n\r\n" + b"\0" * 100, "port_taken"),
    (b'HTTP/1.1 200 OK\r\n\r\n{"status": [], "version": {"a": 1}, "unreachable": [1, null, {"instance_id": 3}]}', "engine_unreachable"),
])
def test_ports_of_others(bench, answer, code):
    """Fails if a port without a listener, or with another program, is not named as such, whatever that program answers."""
    master = bench.master()
    listener = socket.create_server(("127.0.0.1", 0))
    at = f"127.0.0.1:{listener.getsockname()[1]}"

    def serve():
        with contextlib.suppress(OSError):
            while True:
                s, _ = listener.accept()
                with s:
                    s.recv(4096)
                    s.sendall(answer)

    if answer is None:
        listener.close()
    else:
        threading.Thread(target=serve, daemon=True).start()
    r = doctor(bench, "--master", master.listen, "--http", at)
    listener.close()
    found = [f for f in r.json["findings"] if f["code"] == code]
    severity = "warning" if code == "engine_unreachable" else "error"
    assert found and all(at in f["what"] and f["fix"] and f["severity"] == severity for f in found), r


def test_addresses_that_are_none(bench):
    """Fails if what is no address is not refused by name."""
    r = doctor(bench, "--master", bench.master().listen, "--http", "no-port,,127.0.0.1:99999")
    assert r.rc == 1 and [f["what"].endswith("HOST:PORT is expected") for f in r.json["findings"] if f["code"] == "http_unreachable"] == [True] * 3, r
