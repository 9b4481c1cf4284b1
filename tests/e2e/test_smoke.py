# SPDX-License-Identifier: Apache-2.0
"""The promises that other programs and scripts rely on first: ready lines, exit codes, put and get, a clean stop."""
import hashlib
import json
import os
import pathlib
import random
import re
import signal
import subprocess

import pytest

from clients import free_ports
from conftest import PROGRAMS, RDMA, SLOW, STOP_S, read_log_line, run_program

HOST_PORT = r"127\.0\.0\.1:[1-9]\d*"
NODE_HOST_PORT = rf"({'|'.join(map(re.escape, RDMA or ['127.0.0.1']))}):[1-9]\d*"


def keys_of(value):
    """Every object key in a JSON value."""
    if isinstance(value, dict):
        for k, v in value.items():
            yield k
            yield from keys_of(v)
    elif isinstance(value, list):
        for v in value:
            yield from keys_of(v)


def find_value(value, pattern):
    """Every (key, value) in a JSON value whose key matches."""
    if isinstance(value, dict):
        for k, v in value.items():
            if re.search(pattern, k):
                yield k, v
            yield from find_value(v, pattern)
    elif isinstance(value, list):
        for v in value:
            yield from find_value(v, pattern)


# ---- programs alone


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_version_and_help(bench, program):
    version = bench.run(program, "--version")
    assert version.rc == 0
    assert re.search(r"\b\d+\.\d+\.\d+\b", version.text), version
    assert "kvpool" in version.text
    usage = bench.run(program, "--help")
    assert usage.rc == 0
    assert usage.out and not usage.err
    if program != "kvpool":
        own = {"kvpool-keeper": "--name", "kvpool-conductor": "--http"}.get(program, "--listen")
        for option in ("--config", "--log-level", own, "--version", "--help"):
            assert option in usage.text, f"{option} is not in the help"
    else:
        for verb in ("put", "get", "exists", "rm", "ls", "stat", "replay", "up", "bench"):
            assert re.search(rf"\b{verb}\b", usage.text), f"{verb} is not in the help"


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_bad_flag_exits_2(bench, program):
    r = bench.run(program, "--no-such-flag")
    assert r.rc == 2, r
    assert r.err, "a usage error says what is wrong"
    assert not r.out


def test_bad_values_exit_2(bench):
    for args in (["--listen", "nonsense"], ["--listen"], ["--lease-ttl", "soon"], ["--log-level", "loud"],
                 ["--config", "/nonexistent/kvpool.conf"]):
        r = bench.run("kvpool-master", "--data-dir", "none", *args)
        assert r.rc == 2, r
        assert r.err
    r = bench.run("kvpool-node", "--master", "127.0.0.1:1", "--name", "n", "--memory", "much")
    assert r.rc == 2, r


def test_cli_usage_exits_2(bench):
    for args in ([], ["no-such-verb"], ["put"], ["get"], ["exists"], ["rm"], ["get", "--no-such-flag", "k"]):
        r = bench.run("kvpool", *args)
        assert r.rc == 2, r
        assert r.err


def test_unreachable_pool_exits_3(bench):
    at = f"127.0.0.1:{free_ports(1)[0]}"
    for verb in (["get", "k"], ["exists", "k"], ["rm", "k"], ["ls"], ["stat"]):
        r = bench.run("kvpool", verb[0], "--master", at, "--deadline", "1s", *verb[1:], timeout=10 * SLOW)
        assert r.rc == 3, r
        assert r.err and not r.out
    r = bench.run("kvpool", "put", "--master", at, "--deadline", "1s", "k", stdin=b"v", timeout=10 * SLOW)
    assert r.rc == 3, r


# ---- daemons


def test_ready_lines(bench):
    master = bench.master()
    assert re.fullmatch(rf"ready listen={HOST_PORT}( unix=\S+)? http={HOST_PORT} data=none", master.ready_line)
    node = bench.node(master, "node1", "32MiB")
    assert re.fullmatch(rf"ready listen={NODE_HOST_PORT}( unix=\S+)?( http=\S+)?( data=none)?", node.ready_line)
    ports = {d.rpartition(":")[2] for d in (master.listen, master.http, node.listen)}
    assert len(ports) == 3
    assert master.stdout() == master.ready_line, "one line on standard output, no more"
    assert node.stdout() == node.ready_line


def test_ready_line_names_data_dir(bench):
    data = f"{bench.home}/data"
    os.mkdir(data)
    master = bench.master(data_dir=data)
    assert master.data == data


def test_sigterm_stops_cleanly(pool):
    assert pool.put("k", b"v").rc == 0
    for daemon in [*pool.nodes, pool.master]:
        unix = daemon.unix
        daemon.signal(signal.SIGTERM)
        assert daemon.proc.wait(STOP_S) == 0, daemon.log()
        if unix and unix.startswith("/"):
            assert not pathlib.Path(unix).exists(), f"{daemon.name} left its socket {unix}"


def test_master_stops_with_nodes_attached(pool):
    assert pool.master.terminate() == 0
    for node in pool.nodes:
        assert node.is_running(), "a node outlives its master"


def test_port_in_use_is_an_error(bench):
    master = bench.master()
    second = run_program([PROGRAMS["kvpool-master"], "--listen", master.listen, "--http", "127.0.0.1:0",
                          "--data-dir", "none"], bench.env(), timeout=10 * SLOW)
    assert second.rc not in (0, 2), second
    assert master.listen in second.err or master.listen.rpartition(":")[2] in second.err, second


def test_option_from_environment(bench):
    master = bench.start("master", "kvpool-master", "--listen", "127.0.0.1:0",
                         env={"KVPOOL_HTTP": "127.0.0.1:0", "KVPOOL_DATA_DIR": "none"})
    assert master.data == "none"
    assert re.fullmatch(HOST_PORT, master.http)


def test_health_and_metrics(pool):
    status, body = pool.master.http_get("/health")
    assert status == 200, body
    status, body = pool.master.http_get("/metrics")
    assert status == 200
    assert re.search(r"^kvpool_\w+(\{[^}]*\})? \S+$", body, re.M), "Prometheus text"
    assert pool.master.http_get("/no-such-page")[0] == 404


@pytest.mark.skipif(any(pathlib.Path("/sys/class").glob("infiniband/*")), reason="there is an RDMA device here")
def test_rdma_without_a_device(pool):
    """Fails if a node or a client that is told to use rdma where there is no device does without, or if one that was told of
    no transports misses it."""
    for program, args in (("kvpool-node", ("--transports", "rdma,tcp")), ("kvpool", ("get", "k", "--transports", "rdma"))):
        r = pool.bench.run(program, *args, "--master", pool.addr, timeout=10 * SLOW)
        assert r.rc != 0 and "rdma cannot be used here" in r.err, r
    stat = pool.kvpool("stat", "--json")
    assert {s["offers"] for s in stat.json["segments"]} == {"shm,tcp"} and "rdma" not in stat.err, stat


# ---- a value's life


def test_put_get_exists_rm(pool):
    value = random.Random(7).randbytes(100_000)
    assert pool.exists("a/key").rc == 1
    miss = pool.get("a/key")
    assert miss.rc == 1 and miss.out == b""
    assert pool.put("a/key", value).rc == 0
    assert pool.exists("a/key").rc == 0
    got = pool.get("a/key")
    assert got.rc == 0
    assert got.out == value
    assert pool.rm("a/key").rc == 0
    assert pool.exists("a/key").rc == 1
    assert pool.get("a/key").rc == 1
    assert pool.rm("a/key").rc == 1


def test_sizes_round_trip(pool):
    for size in (1, 63, 64, 65, 4095, 65536, 65537, 1 << 20, (3 << 20) + 17):
        value = random.Random(size).randbytes(size)
        assert pool.put(f"k{size}", value).rc == 0
        got = pool.get(f"k{size}")
        assert got.rc == 0
        assert hashlib.sha256(got.out).digest() == hashlib.sha256(value).digest(), size


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_transports_round_trip(pool, transport):
    value = random.Random(3).randbytes(200_001)
    env = {"KVPOOL_TRANSPORTS": transport, "KVPOOL_VERIFY": "payload"}
    assert pool.kvpool("put", f"by-{transport}", stdin=value, env=env).rc == 0
    got = pool.kvpool("get", f"by-{transport}", env=env)
    assert got.rc == 0 and got.out == value
    other = {"KVPOOL_TRANSPORTS": "tcp" if transport == "shm" else "shm"}
    got = pool.kvpool("get", f"by-{transport}", env=other)
    assert got.rc == 0 and got.out == value


def test_odd_keys(pool):
    keys = ["with blank", "ünïcode/ключ", "a" * 1024, "%41?&=#", "new\nline"]
    for key in keys:
        assert pool.put(key, b"value of " + key.encode()).rc == 0
    for key in keys:
        got = pool.get(key)
        assert got.rc == 0 and got.out == b"value of " + key.encode(), key


def test_refused_input(pool):
    assert pool.put("", b"v").rc in (1, 2)
    assert pool.put("k" * 1025, b"v").rc in (1, 2)
    assert pool.put("empty-value", b"").rc in (1, 2)
    assert pool.exists("empty-value").rc == 1
    assert pool.put("fine", b"v").rc == 0, "the pool goes on"


def test_ls(pool):
    names = [f"list/{i:03}" for i in range(30)]
    for name in names:
        assert pool.put(name, b"x").rc == 0
    r = pool.kvpool("ls")
    assert r.rc == 0
    for name in names:
        assert name in r.text
    as_json = pool.kvpool("ls", "--json")
    assert as_json.rc == 0
    found = json.dumps(as_json.docs, ensure_ascii=False)
    for name in names:
        assert f'"{name}"' in found


def test_stat(pool):
    assert pool.put("k", bytes(50_000)).rc == 0
    assert pool.kvpool("stat").rc == 0
    r = pool.kvpool("stat", "--json")
    assert r.rc == 0
    keys = list(keys_of(r.json))
    assert keys
    for key in keys:
        assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", key) or key in ("node1", "node2"), f"{key} is not snake_case"
    assert "node1" in r.text and "node2" in r.text


def test_json_on_every_data_verb(pool):
    assert pool.put("k", b"value", "--json").json is not None
    assert pool.exists("k", "--json").json is not None
    miss = pool.exists("absent", "--json")
    assert miss.rc == 1 and miss.json is not None
    assert pool.rm("k", "--json").json is not None


def test_master_from_environment(pool):
    env = {"KVPOOL_MASTER": pool.addr}
    assert pool.bench.run("kvpool", "put", "k", stdin=b"v", env=env).rc == 0
    got = pool.bench.run("kvpool", "get", "k", env=env)
    assert got.rc == 0 and got.out == b"v"


# ---- the main job, small


def test_replay_of_a_small_trace(pool):
    rng = random.Random(11)
    path = pathlib.Path(pool.bench.home) / "trace.jsonl"
    conversations = {}
    next_id = 1
    with path.open("w") as f:
        for i in range(100):
            blocks = conversations.setdefault(rng.randrange(12), [0])
            blocks.extend(range(next_id, next_id + 3))
            next_id += 3
            f.write(json.dumps({"timestamp": i * 10, "input_length": 512 * len(blocks), "output_length": 64,
                                "hash_ids": blocks}) + "\n")
    r = pool.kvpool("replay", "--trace", str(path), "--block-bytes", "8192", "--json", timeout=50 * SLOW)
    assert r.rc == 0, r
    wrong = list(find_value(r.json, r"wrong"))
    assert wrong, f"no count of wrong bytes in {r.text}"
    assert all(v == 0 for _, v in wrong), wrong


def test_client_killed_while_it_waits_for_input(pool):
    p = pool.bench.popen("kvpool", "put", "--master", pool.addr, "half", stdin=subprocess.PIPE)
    p.stdin.write(b"some bytes")
    p.stdin.flush()
    p.kill()
    p.wait()
    assert pool.put("half", b"whole").rc == 0, "the key can be put again at once"
    assert pool.get("half").out == b"whole"


# ---- standard descriptors


def run_closed(argv, env, closed):
    return subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *map(str, argv)], env=env, capture_output=True,
                          timeout=30 * SLOW)


@pytest.mark.parametrize("program, args", [
    ("kvpool-master", ("--listen", "127.0.0.1:0", "--http", "none", "--data-dir", "none")),
    ("kvpool-node", ("--master", "127.0.0.1:1", "--memory", "1MiB", "--insecure", "--listen", "192.0.2.1:1")),
])
def test_daemon_without_standard_descriptors(bench, program, args):
    """Fails if a daemon that was started with 0, 1 and 2 closed takes one of them for a socket of its own: it cannot say
    that it is ready (or why it cannot start), so it ends with 1, and does not abort."""
    assert run_closed([PROGRAMS[program], *args], bench.env(), "<&- >&- 2>&-").returncode == 1


def test_node_without_descriptors_left_says_so(bench):
    """Fails if a node that finds no descriptor left aborts instead of saying what it cannot do."""
    got = subprocess.run(["sh", "-c", 'ulimit -n 8; exec "$0" --master 127.0.0.1:1 --memory 16MiB',
                          str(PROGRAMS["kvpool-node"])], env=bench.env(), capture_output=True, timeout=30 * SLOW)
    assert got.returncode == 1 and got.stderr, got


def test_put_of_nothing(pool):
    """Fails if an empty value is refused without a word on why, or if a closed standard input is read as something
    else's descriptor and stored."""
    empty = pool.put("nothing", b"")
    assert empty.rc == 2 and "empty" in empty.err, empty
    closed = run_closed([PROGRAMS["kvpool"], "put", "nostdin", "--master", pool.addr], pool.bench.env(), "<&-")
    assert closed.returncode == 1 and b"Bad file descriptor" in closed.stderr, closed
    assert pool.exists("nostdin").rc == 1


@pytest.mark.parametrize("program", ["kvpool-master", "kvpool-node", "kvpool-conductor", "kvpool-keeper"])
def test_log_in_json(pool, bench, program):
    """Fails if a line of a daemon's log is not one JSON object with --log-format json, whichever source sets the option."""
    args = {"kvpool-master": ["--listen", "127.0.0.1:0", "--http", "none", "--data-dir", "none"],
            "kvpool-node": ["--master", pool.addr, "--memory", "1MiB", "--listen", "127.0.0.1:0"],
            "kvpool-conductor": ["--http", "127.0.0.1:0", "--data-dir", "none"], "kvpool-keeper": ["--name", "json"]}[program]
    for how in ({"env": {"KVPOOL_LOG_FORMAT": "json"}}, {}):
        daemon = bench.start(program, program, *args, "--log-level", "debug", *([] if how else ["--log-format", "json"]), **how)
        assert daemon.terminate() == 0
        lines = [json.loads(line) for line in daemon.log().split("\n") if line]
        assert all(list(line)[:4] == ["time", "level", "part", "msg"] for line in lines), lines
        assert lines or program in ("kvpool-conductor", "kvpool-keeper")


def test_log_of_the_library(pool):
    """Fails if the library's lines are not in the format that KVPOOL_LOG_FORMAT names, or if it takes any other name."""
    env = {"KVPOOL_SLOW_CALL": "1us"}
    for how, keys in (({"KVPOOL_LOG_FORMAT": "json"}, 1), ({}, "1")):
        err = pool.kvpool("put", "a", stdin=b"x", env={**env, **how}).err
        lines = [read_log_line(line) for line in err.split("\n") if line and not line.startswith("kvpool put: ")]
        assert all(err.startswith("{" if how else "time=") and line["msg"] == "slow call" and line["part"] == "client" for line in lines), err
        assert [line["keys"] for line in lines if line["call"] == "batch_put"] == [keys], err
    r = pool.kvpool("get", "a", env={"KVPOOL_LOG_FORMAT": "xml"})
    assert r.rc != 0 and 'KVPOOL_LOG_FORMAT: "text" or "json" is expected' in r.err, r
