# SPDX-License-Identifier: Apache-2.0
"""mooncake_master under the flags that scripts start the reference's with, and its files of flags, and its paths for people (stage `python`
of tests/run)."""
import http.client
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kvpool
from clients import free_ports
from conftest import wait_until
from kvevents import Follower
from mooncake.engine import TransferEngine
from stores import make
from test_pool_events import endpoints
from test_python_store import fetch, programs  # noqa: F401: a fixture


def said(process):
    return Path(process.log).read_text()


@pytest.fixture
def master(programs):  # noqa: F811
    """start(*flags) -> (the process, its port, that of its HTTP paths), once it serves these."""

    def start(*flags, env=None):
        rpc, metrics = free_ports(2)
        process = programs("mooncake_master", f"--rpc_port={rpc}", f"--metrics_port={metrics}", "--rpc_address=127.0.0.1", *flags, env=env)
        wait_until(lambda: fetch(metrics, "/health")[0] == 200 or process.poll() is not None, 20, "the master's health")
        assert process.poll() is None, said(process)
        return process, rpc, metrics

    return start


def test_metadata_server(master, programs):  # noqa: F811
    port = free_ports(1)[0]
    flags = "--enable_http_metadata_server", f"--http_metadata_server_port={port}", "--http_metadata_server_host=127.0.0.1"
    process, _, _ = master(*flags)
    wait_until(lambda: fetch(port, "/health") == (200, "OK"), 10, "the metadata server")
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", f"http://127.0.0.1:{port}/metadata", "tcp", "") == 0
    assert engine.send_probe("127.0.0.1") == 0
    # A port that is taken ends the whole program, and says which.
    rpc, metrics = free_ports(2)
    second = programs("mooncake_master", f"--rpc_port={rpc}", f"--metrics_port={metrics}", "--rpc_address=127.0.0.1", *flags)
    assert second.wait(20) == 1 and f"127.0.0.1:{port}: " in said(second)
    process.terminate()
    assert process.wait(20) == 0


@pytest.mark.parametrize("size", ["50%", "-1", "99999999999999999999", "16777216TB"])
def test_sizes_that_are_none(programs, size):  # noqa: F811
    process = programs("mooncake_client", f"--global_segment_size={size}")
    assert process.wait(20) == 1
    assert "mooncake_client: --global_segment_size: " in said(process) and "Traceback" not in said(process)


@pytest.mark.parametrize("flags", [["--protocol=bogus"], ["--rest"], ["--rest=yes", "--enable_http_server=false"]])
def test_flags_of_a_client_that_cannot_be(programs, flags):  # noqa: F811
    process = programs("mooncake_client", *flags)
    assert process.wait(20) == 1
    assert said(process).startswith("mooncake_client: --") and said(process).count("\n") == 1


def test_objects_over_http(master, programs):  # noqa: F811
    """A client serves them where it is told to, and where it is not told nobody reaches them by --enable_http_server alone, as in the
    reference."""
    _, rpc, _ = master()
    for flags, status in ((["--rest"], 200), ([], 404)):
        port, http = free_ports(2)
        programs("mooncake_client", "--master_server_address", f"127.0.0.1:{rpc}", "--host", "127.0.0.1", "--port", str(port), "--protocol",
                 "tcp", "--global_segment_size", "64MB", "--enable_http_server", "--http_port", str(http), *flags)
        # Health is 200 from the first moment; only a client whose memory the master has can hold an object.
        wait_until(lambda: '"is_mounted":true' in fetch(http, "/health")[1], 20, "the client's memory in the pool")
        got, said_of_it = fetch(http, "/api/put", "PUT", json.dumps({"key": "k", "value": "v"}))
        assert got == status, said_of_it
        found = fetch(http, "/api/get/k")
        assert found[0] == status and (found[1] == "v" or status == 404)
        assert fetch(http, "/api/remove/k", "DELETE")[0] == status


def test_store_service(master, bench, programs):  # noqa: F811
    """As SGLang's guide starts it: an engine that gives no memory lives from that of the service, which serves objects, too."""
    _, rpc, _ = master()
    http, at = free_ports(2)
    path = Path(bench.home) / "service.json"
    fields = {"local_hostname": f"127.0.0.1:{at}", "metadata_server": "P2PHANDSHAKE", "master_server_address": f"127.0.0.1:{rpc}",
              "protocol": "tcp", "device_name": "", "global_segment_size": "64MB", "local_buffer_size": 0}
    path.write_text(json.dumps(fields))
    module = "-m", "mooncake.mooncake_store_service"
    service = programs("python3", *module, f"--config={path}", f"--port={http}", "-D", "enable_client_http_server=true")
    wait_until(lambda: '"is_mounted":true' in fetch(http, "/health")[1], 20, "the service's memory in the pool")
    assert "setup: enable_client_http_server=true: " in said(service)
    store = make(f"127.0.0.1:{rpc}")
    assert store.put("k", b"value") == 0 and fetch(http, "/api/get/k") == (200, "value")
    assert store.get_replica_desc("k")[0].get_memory_descriptor().buffer_descriptor.transport_endpoint == f"127.0.0.1:{at}"
    assert store.close() == 0
    for words, why in ((["-D", "nothing=1"], "nothing=1"), (["-D", "global_segment_size=0"], "no memory"), (["-D", "tenant_id=x"], "tenant"),
                       (["-D", "global_segment_size=50%"], "50%"), (["--config=/no/such"], "/no/such")):
        bad = programs("python3", *module, f"--config={path}", *words)
        assert bad.wait(20) == 1
        assert said(bad).startswith("mooncake_store_service: ") and why in said(bad) and said(bad).count("\n") == 1


@pytest.mark.parametrize("device", [None, "none_0"])
def test_client_by_rdma_where_there_is_none(pool, programs, device):  # noqa: F811
    """By TCP then, and one line says so, unless a device is named."""
    process = programs("mooncake_client", f"--master_server_address={pool.addr}", "--host=127.0.0.1", "--port=0", "--protocol=rdma",
                       "--global_segment_size=16MB", *([f"--device_names={device}"] if device else []))
    if device:
        assert process.wait(20) != 0 and "RDMA device" in said(process)
    else:
        wait_until(lambda: "msg=mounted" in said(process) or process.poll() is not None, 20, "the node")
        assert process.poll() is None and said(process).count("KVPOOL_TRANSPORTS=shm,rdma") == 1


def test_flags_of_scripts(master):
    """What a pool does not do is told in a line each, and the master serves."""
    on = ["enable_offload", "offload_on_evict", "root_fs_dir", "enable_snapshot", "enable_multi_tenants", "enable_kv_events",
          "dynamic_replication_mode"]
    process, _, _ = master("--enable_offload=true", "-offload_on_evict", "--root_fs_dir=/mnt/kv", "--quota_bytes", "1099511627776",
                           "--enable_snapshot", "--enable_multi_tenants=true", "--enable_kv_events=1",
                           "--dynamic_replication_mode=enforce", "--enable_ha=false", "--noenable_oplog", "--etcd_endpoints=",
                           "--snapshot_interval_seconds=600", "--promotion_on_hit=false", "--logtostderr")
    text = said(process)
    for name in on:
        assert len(re.findall(rf"^mooncake_master: --{name}: \w.*$", text, re.M)) == 1, text
    assert "--quota_bytes is of no use to a pool" in text and "enable_ha" not in text and "oplog:" not in text


def test_kv_events(master, bench):
    """Fails if the reference's flags do not publish, or its status path and field names are not there."""
    at = endpoints()
    process, rpc, http = master("--enable_kv_events=true", f"--kv_events_bind_endpoint={at[0]}", f"--kv_events_replay_endpoint={at[1]}",
                                "--kv_events_backend_id=pool-a", "--kv_events_queue_capacity=4096", "--kv_events_emit_object_key=true")
    bench.node(f"127.0.0.1:{rpc}", "node1", "16MiB")
    with kvpool.Pool(f"127.0.0.1:{rpc}") as handle:
        handle.put("k", b"v")
        follower = Follower(*at)
        follower.until(lambda: follower.held == {("default", "k"): {"cpu"}})
        handle.remove("k")
        follower.until(lambda: not follower.held)
    removed = follower.events[-1]
    assert removed["type"] == "BlockRemoved" and removed["backend_id"] == "pool-a" and removed["block_hashes"] == [], removed
    told = json.loads(fetch(http, "/kv_events/status")[1])
    assert told["enabled"] and told["published_events"] >= 2 and told["dropped_events"] == 0, told


def test_flags_of_the_logging_library(bench):
    """Fails if a flag that glog or gflags defines ends a program, or is passed over without a line, or takes the word behind it."""
    said = subprocess.run([sys.executable, "-c", "import sys; from mooncake._flags import Flags; print(Flags('p', {'a': '1', 'b': True}).parse(sys.argv[1:]))",
                           "-stop_logging_if_full_disk", "--logbufsecs=0", "--vmodule=a=1", "--nolog_prefix", "--log_utc_time", "--undefok", "x", "--a=2"],
                          capture_output=True, text=True, timeout=20)
    assert said.stdout == "{'a': '2', 'b': True}\n" and said.stderr.count(" is of no use to a pool\n") == 6, said


@pytest.mark.parametrize("flag", ["--enable_ha=true", "--enable_ha", "--enable_oplog=1", "--enable_cxl=true",
                                  "--tenant_quota_connector_uri=/etc/quotas.json"])
def test_flags_that_would_be_relied_on(programs, flag):  # noqa: F811
    process = programs("mooncake_master", flag)
    assert process.wait(20) == 1
    assert re.fullmatch(rf"mooncake_master: {flag.partition('=')[0]}: .*leave it out.*\n", said(process))


def test_interface_and_log(master, bench, programs):  # noqa: F811
    process, rpc, _ = master("--rpc_interface=lo", f"--log_dir={bench.home}")
    assert f"listen=127.0.0.1:{rpc}" in said(process)
    assert f"listen=127.0.0.1:{rpc}" in (Path(bench.home) / "mooncake_master.log").read_text()
    for flag in ("--rpc_interface=nosuchdevice0", "--log_dir=/no/such/folder"):
        bad = programs("mooncake_master", flag)
        assert bad.wait(20) == 1 and flag.partition("=")[0] in said(bad) and said(bad).count("\n") == 1


JSON = '{{"rpc_port": {rpc}, "rpc_address": "127.0.0.1", "metrics_port": 1, "enable_metric_reporting": true, "enable_offload": true, "cluster_id": null}}'
YAML = """---
# a master's
rpc_port: {rpc}      # of clients
rpc_address: "127.0.0.1"
metrics_port: 1
enable_metric_reporting: 'true'
enable_offload: true
cluster_id:
"""


@pytest.mark.parametrize("content", [JSON, YAML], ids=["json", "yaml"])
def test_config_file(programs, bench, content):  # noqa: F811
    rpc, metrics = free_ports(2)
    path = Path(bench.home) / "master.conf"
    path.write_text(content.format(rpc=rpc))
    process = programs("mooncake_master", f"--metrics_port={metrics}", f"--config_path={path}")  # the command line goes before it
    wait_until(lambda: fetch(metrics, "/health")[0] == 200, 20, "the master's health")
    assert f"listen=127.0.0.1:{rpc}" in said(process) and "--enable_offload: " in said(process)


@pytest.mark.parametrize("content", [
    None, b"", b"{", b'{"rpc_port": [1]}', b'{"rpc_port": {"a": 1}}', b'{"no_such": 1}', b"[" * 100000, b'{"rpc_port": ' + b"[" * 100000,
    b"no_such: 1\n", b"rpc_port 5\n", b"rpc_port:5\n", b"rpc_port:\n  - 1\n", b"rpc_address: [a]\n", b"rpc_address: 'a\n", b"- rpc_port\n",
    b"rpc_port: many\n", b"enable_metric_reporting: perhaps\n", b"config_path: other\n", b"\xff\xfe", b"#" * ((1 << 20) + 1)],
    ids=lambda c: "absent" if c is None else c[:20].decode("latin-1") or "empty")
def test_bad_config_files(programs, bench, content):  # noqa: F811
    path = Path(bench.home) / "master.conf"
    if content is not None:
        path.write_bytes(content)
    flags = ["--rpc_port=99999"] if content == b"" else []  # an empty file is none the worse; something has to end it
    process = programs("mooncake_master", f"--config_path={path}", *flags)
    assert process.wait(20) == 1
    assert said(process).startswith("mooncake_master: ") and said(process).count("\n") == 1


def heads_are_as_gets(port):
    """HEAD has the status and the fields of GET and no body, which the next answer on the connection would begin with."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    for path in ("/get_all_keys", "/query_key?key=k", "/metrics", "/health", "/role", "/query_segment?segment=nosuch", "/nosuch",
                 "/api/v1/remove_all"):
        said = {}
        for method in ("GET", "HEAD", "GET"):
            connection.request(method, path)
            answer = connection.getresponse()
            body = answer.read()
            assert (body == b"") == (method == "HEAD"), (method, path)
            told = answer.status, *(answer.headers[name] for name in ("Content-Type", "Transfer-Encoding"))
            assert said.setdefault("as", told) == told
            length = answer.headers["Content-Length"]
            assert path == "/metrics" or said.setdefault("long", length) == length  # whose figures change
    connection.close()


def test_paths_for_people(master, programs):  # noqa: F811
    _, rpc, metrics = master()
    owner = free_ports(1)[0]
    node = f"127.0.0.1:{owner}"
    programs("mooncake_client", "--master_server_address", f"127.0.0.1:{rpc}", "--host", "127.0.0.1", "--port", str(owner),
             "--protocol", "tcp", "--global_segment_size", "64MB")
    name = wait_until(lambda: fetch(metrics, "/get_all_segments")[1].strip(), 20, "the node")
    assert fetch(metrics, "/ha_status") == (200, "serving")
    store = make(f"127.0.0.1:{rpc}")
    assert store.put("k", b"v" * 100000) == 0
    status, text = fetch(metrics, "/get_segments_detail")
    detail = json.loads(text)
    assert status == 200 and detail["total_segments"] == 1
    [segment] = detail["segments"]
    assert segment["segment_name"] == name and segment["te_endpoint"] == node and segment["status"] == "OK"
    assert segment["size_bytes"] == segment["allocator_capacity_bytes"] == 64 << 20
    used = segment["allocator_used_bytes"]
    assert 100000 <= used < 64 << 20 and segment["allocator_usage_percent"] == pytest.approx(100 * used / (64 << 20))
    for asked in (name, node):
        assert fetch(metrics, f"/query_segment?segment={asked}") == (200, f"{asked}\nUsed(bytes): {used}\nCapacity(bytes) : {64 << 20}\n")
    for asked in ("?segment=nosuch", "?segment=", "", "?segment=%ff%00", "?segment=" + "x" * 5000):
        assert fetch(metrics, f"/query_segment{asked}") == (404, "Failed to query segment\n")
    [copy] = json.loads(fetch(metrics, "/query_key?key=k")[1])["data"]
    assert copy["transport_endpoint_"] == node and copy["size_"] == 100000
    found = json.loads(fetch(metrics, "/batch_query_keys?keys=k,absent")[1])["data"]
    assert found["k"]["values"] == [copy] and not found["absent"]["ok"]
    store.close()
    heads_are_as_gets(metrics)


def test_drain_jobs(master, programs):  # noqa: F811
    """Fails if a drain job loses an object, does not end, is not ended by a cancel, or if a request that names no job, no segment or
    nonsense has an effect or another answer than the reference's.
    """
    _, rpc, metrics = master()
    names = [f"127.0.0.1:{port}" for port in free_ports(2)]
    for name in names:
        programs("mooncake_client", "--master_server_address", f"127.0.0.1:{rpc}", "--host", "127.0.0.1", "--port", name.split(":")[1],
                 "--protocol", "tcp", "--global_segment_size", "64MB")

    def ask(path, body=None):
        status, text = fetch(metrics, f"/api/v1/{path}", "GET" if body is None else "POST", body or None)
        return status, json.loads(text)

    def state_of(name):
        return ask(f"segments/status?segment={name}")[1].get("status_name")

    wait_until(lambda: [state_of(name) for name in names] == ["OK"] * 2, 20, "two nodes")
    store = make(f"127.0.0.1:{rpc}")
    assert [store.put(f"k{i}", b"v" * 100000) for i in range(100)] == [0] * 100
    for body in (b"x", b"[]", b"{}", b'{"segments":[]}', b'{"segments":[1]}', b'{"segments":"x"}', b"[" * 60000,
                 json.dumps({"segments": names[:1], "target_segments": names[1:]}).encode()):
        status, said = ask("drain_jobs", body)
        assert status == 400 and said["error_code"] == -600 and said["error_message"], (body[:20], said)
    status, said = ask("drain_jobs", json.dumps({"segments": [names[0], "nosuch"]}).encode())
    assert status == 404 and said["error_code"] == -101
    assert [state_of(name) for name in names] == ["OK"] * 2
    for path, body, status, code in (("drain_jobs/query?job_id=1-2", None, 404, -1402), ("drain_jobs/query", None, 400, -600),
                                     ("drain_jobs/cancel?job_id=1-2", b" ", 404, -1402), ("drain_jobs/cancel", b" ", 400, -600),
                                     ("segments/status?segment=nosuch", None, 404, -101), ("segments/status", None, 400, -600)):
        assert (lambda told: (told[0], told[1]["error_code"]))(ask(path, body)) == (status, code), path

    def drained(name):
        status, said = ask("drain_jobs", json.dumps({"segments": [name], "target_segments": [], "max_concurrency": 4}).encode())
        assert status == 200 and said["success"] and said["status"] == "CREATED"
        return said["job_id"]

    job = drained(names[0])
    told = wait_until(lambda: (lambda told: told[1] if told[1]["status_name"] != "RUNNING" else None)(ask(f"drain_jobs/query?job_id={job}")), 30,
                      "the end of the job")
    assert (told["status"], told["status_name"], told["type_name"], told["segments"]) == (3, "SUCCEEDED", "DRAIN", names[:1]), told
    assert told["succeeded_units"] > 0 and told["migrated_bytes"] >= 100000 * told["succeeded_units"] and told["active_units"] == 0
    assert [state_of(name) for name in names] == ["DRAINED", "OK"]
    assert [store.get(f"k{i}") for i in range(100)] == [b"v" * 100000] * 100
    assert ask(f"drain_jobs/cancel?job_id={job}", b" ") == (500, {"success": False, "error_code": -1010,
                                                                  "error_message": "UNAVAILABLE_IN_CURRENT_STATUS: the job is SUCCEEDED"})
    job = drained(names[1])  # no other node takes puts: this one waits
    assert ask(f"drain_jobs/query?job_id={job}")[1]["status_name"] == "RUNNING" and state_of(names[1]) == "DRAINING"
    for _ in range(2):
        status, said = ask(f"drain_jobs/cancel?job_id={job}", b" ")
        assert status == 200 and said["status"] == "CANCELED"
    assert ask(f"drain_jobs/query?job_id={job}")[1]["status"] == 5 and state_of(names[1]) == "OK"
    store.close()


def test_ports_ask_for_tokens(master, programs, bench, monkeypatch):  # noqa: F811
    """Fails if an HTTP port of a program with the reference's name answers without a token of the right role where the pool has tokens."""
    file, files = Path(bench.home) / "pool.tokens", {}
    for name, role, tenant in (("monitor", "monitor", "acme"), ("reader", "reader", "default"), ("writer", "writer", "default"),
                               ("other", "writer", "acme"), ("admin", "admin", "acme"), ("node", "node", "n")):
        made = bench.run("kvpool", "token", "create", "--file", str(file), "--role", role, "--id", name,
                         *(("--name",) if role == "node" else ("--tenant",)), tenant)
        files[name] = Path(bench.home) / f"{name}.token"
        files[name].write_bytes(made.out)
        files[name].chmod(0o600)
    environment = {"KVPOOL_TOKENS": str(file)}
    server_port = free_ports(1)[0]
    server = programs("mooncake_http_metadata_server", "--host", "0.0.0.0", "--port", str(server_port),
                      env={**environment, "KVPOOL_SECURITY": "required"})
    process, _, http_port = master(env=environment)

    def ask(port, path, who=None, method="GET"):
        headers = {"Authorization": f"Bearer {files[who].read_text().strip()}"} if who else {}
        return fetch(port, path, method, b"x" if method == "PUT" else None, **headers)[0]

    wait_until(lambda: ask(server_port, "/health") == 200, 20, "the metadata server")
    paths = [(http_port, "/get_all_keys", "GET", "reader"), (http_port, "/query_key?key=k", "GET", "reader"),
             (http_port, "/batch_query_keys?keys=k", "GET", "reader"), (http_port, "/api/v1/remove_all", "POST", "writer"),
             (http_port, "/api/v1/drain_jobs", "POST", "admin"), (http_port, "/api/v1/drain_jobs/query", "GET", "monitor"),
             (http_port, "/metrics/summary", "GET", "monitor"), (http_port, "/role", "GET", "monitor"), (http_port, "/get_all_segments", "GET", "monitor"),
             (server_port, "/metadata?key=k", "GET", "reader"), (server_port, "/metadata?key=k", "PUT", "writer"),
             (server_port, "/metadata?key=k", "DELETE", "writer")]
    ranks = ["monitor", "reader", "writer", "admin"]
    for port, path, method, role in paths:
        assert ask(port, path, method=method) == 401, path
        for who in ranks[:3]:
            assert (ask(port, path, who, method) not in (401, 403)) == (ranks.index(who) >= ranks.index(role)), (path, method, who)
        assert ask(port, path, "node", method) == 403 and ask(port, path, "admin", method) not in (401, 403), (path, method)
        assert role == "monitor" or ask(port, path, "other", method) == 403, (path, method)
    assert ask(http_port, "/health") == ask(http_port, "/metrics") == 200 == ask(server_port, "/health")
    assert re.search(r'part=audit msg=refused who=reader role=reader tenant="" from=127.0.0.1 what="POST /api/v1/remove_all" result=403 cause=',
                     said(process)), said(process)
    assert "not authenticated" not in said(server)
    # An engine sends its token. A deleted token ends, though the file is written in place.
    monkeypatch.setenv("KVPOOL_TOKEN_FILE", str(files["writer"]))
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", f"http://127.0.0.1:{server_port}/metadata", "tcp", "") == 0
    monkeypatch.delenv("KVPOOL_TOKEN_FILE")
    assert TransferEngine().initialize("localhost", f"http://127.0.0.1:{server_port}/metadata", "tcp", "") != 0
    file.write_text("".join(line for line in file.read_text().splitlines(True) if " reader reader " not in line))
    wait_until(lambda: ask(server_port, "/metadata?key=absent", "reader") == 401 == ask(http_port, "/get_all_keys", "reader"), 20, "the deletion")
    assert ask(http_port, "/get_all_keys", "writer") == 200
    file.write_text("not a token\n")
    wait_until(lambda: ask(server_port, "/health") == 200 and ask(server_port, "/metadata?key=absent", "writer") == 404
               and "line 1: a line has five fields" in said(server), 20, "the fault in the log")
    bad = programs("mooncake_http_metadata_server", "--host", "127.0.0.1", "--port", "0", env=environment)
    assert bad.wait(20) == 1 and "KVPOOL_TOKENS: " in said(bad) and "line 1: " in said(bad)


def test_open_ports_are_named(programs):  # noqa: F811
    """Fails if a program with the reference's name does not listen as the reference's does, says nothing of it, or listens all the same
    where security is required."""
    rpc, http, metadata, node = free_ports(4)
    flags = ("--port", str(metadata))
    server = programs("mooncake_http_metadata_server", *flags)
    started = programs("mooncake_master", f"--rpc_port={rpc}", f"--metrics_port={http}")
    client = programs("mooncake_client", f"--master_server_address=127.0.0.1:{rpc}", f"--port={node}", "--global_segment_size=64MB")
    for process, port in ((server, metadata), (started, http), (started, rpc), (client, node)):
        wait_until(lambda process=process, port=port: re.search(rf"clients are not authenticated: every host.*0\.0\.0\.0:{port}\b", said(process)),
                   20, f"a warning of port {port}")
        assert process.poll() is None, said(process)
    assert [said(p).count("not authenticated") for p in (server, started, client)] == [1, 2, 1], [said(p) for p in (server, started, client)]
    required = {"KVPOOL_SECURITY": "required"}
    for ended in (programs("mooncake_http_metadata_server", *flags, env=required), programs("mooncake_master", f"--rpc_port={rpc}", env=required),
                  programs("mooncake_master", f"--rpc_port={node}", "--metrics_host=127.0.0.1", env=required),
                  programs("mooncake_client", f"--master_server_address=127.0.0.1:{rpc}", env=required)):
        wait_until(lambda ended=ended: ended.poll() is not None, 20, "the end of the program")
        assert ended.returncode in (1, 2) and "KVPOOL_SECURITY=required: " in said(ended), said(ended)
