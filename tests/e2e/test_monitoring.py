# SPDX-License-Identifier: Apache-2.0
"""deploy/monitoring: the alerts, the scrape file and the dashboard, by Prometheus's own checker and by a Prometheus server that scrapes
a real pool in which the fault of each alert is made."""
import json
import pathlib
import random
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse

import pytest

from clients import E2E, PATHS, Shell, free_ports, slow
from conftest import ROOT, SAN, SLOW, Daemon, ask_http, wait_until
from standby import Masters, needs_etcd
from test_log import removed_of
from test_proxy import Proxy, Server
from test_tier_faults import flip

FOLDER = ROOT / "deploy" / "monitoring"
ALERTS = (FOLDER / "alerts.yml").read_text()
BOARD = json.loads((FOLDER / "kvpool.json").read_text())
PANELS = [p for p in BOARD["panels"] if p["type"] != "row"]
LEN = 32 << 10
TIER_LEN = 64 << 10

needs_prometheus = pytest.mark.skipif(not (shutil.which("prometheus") and shutil.which("promtool")),
                                      reason="no prometheus and promtool here (Debian's prometheus)")


@needs_prometheus
@pytest.mark.parametrize("words", [("check", "config", FOLDER / "prometheus.yml"), ("check", "rules", FOLDER / "alerts.yml"),
                                   ("test", "rules", ROOT / "tests" / "e2e" / "alerts.yml")], ids=lambda words: "-".join(words[:2]))
def test_promtool(words):
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=20 * SLOW, check=False)
    assert done.returncode == 0 and "WARN" not in done.stderr, done


def test_each_alert_has_a_runbook():
    """Fails if an alert leads to no section of a page, or has no duration, severity or summary."""
    rules = re.split(r"^      - alert: ", ALERTS, flags=re.M)[1:]
    assert 10 <= len(rules) <= 15
    for rule in rules:
        name = rule.split()[0]
        page, _, anchor = re.search(r"^          runbook: (\S+)$", rule, re.M).group(1).partition("#")
        headings = re.findall(r"^#+ (\S+)$", (ROOT / page).read_text(), re.M)
        assert anchor == name.lower() and name in headings, name
        assert re.search(r"^        for: \d+[sm]$", rule, re.M) and re.search(r"severity: (page|ticket)}", rule) and "summary: " in rule, name


def test_dashboard():
    """Fails if Grafana would not draw the dashboard as meant: panels that overlap or leave the grid, a number or letter given twice, a
    panel without a unit, a query without the pool's variable, or a variable or data source that the dashboard does not have."""
    cells, ids = set(), set()
    for p in BOARD["panels"]:
        at = p["gridPos"]
        mine = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert mine and not mine & cells and all(0 <= x < 24 for x, _ in mine), p["title"]
        assert p["type"] in ("row", "stat", "timeseries") and p["title"] and p["id"] not in ids
        cells |= mine
        ids.add(p["id"])
    variables = {v["name"] for v in BOARD["templating"]["list"]}
    assert variables == {"datasource", "pool"} and BOARD["uid"] == "kvpool" and BOARD["schemaVersion"] >= 36
    for p in PANELS:
        letters = [t["refId"] for t in p["targets"]]
        assert letters and len(set(letters)) == len(letters) and p["fieldConfig"]["defaults"]["unit"], p["title"]
        for t in p["targets"]:
            used = set(re.findall(r"\$(\w+)", t["expr"]))
            assert "pool" in used and used <= {"pool", "__rate_interval"}, t["expr"]
            assert t["datasource"] == p["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


class Prometheus:
    """Debian's server with the files of deploy/monitoring, in which only addresses and durations are others. at: by job, HOST:PORTs."""

    def __init__(self, bench, at):
        self.dir = pathlib.Path(bench.home, "prometheus")
        self.dir.mkdir()
        self.at = f"127.0.0.1:{free_ports(1)[0]}"
        config = (FOLDER / "prometheus.yml").read_text()
        for job, targets in at.items():
            config, n = re.subn(rf"(job_name: {job}\n    static_configs:\n      - targets: )\[.*\]", rf"\1[{', '.join(targets)}]", config)
            assert n == 1, job
        assert set(at) == set(re.findall(r"job_name: (\S+)", config))
        (self.dir / "prometheus.yml").write_text(re.sub(r"_interval: 15s", "_interval: 1s", config))
        (self.dir / "alerts.yml").write_text(re.sub(r"for: \d+[sm]", "for: 2s", ALERTS))
        bench.daemons.append(Daemon("prometheus", [
            "prometheus", f"--config.file={self.dir}/prometheus.yml", f"--web.listen-address={self.at}", f"--storage.tsdb.path={self.dir}/data"],
            bench.env(), bench.home))

    def ask(self, path, **words):
        status, body = ask_http(self.at, f"/api/v1/{path}?{urllib.parse.urlencode(words)}")
        got = json.loads(body)
        assert status == 200 and got["status"] == "success", (words, body)
        return got["data"]

    def query(self, expr):
        return self.ask("query", query=expr)["result"]

    def scrapes(self):
        """The fewest successful scrapes of any target."""
        try:
            return min((int(r["value"][1]) for r in self.query("sum_over_time(up[5m])")), default=0)
        except (OSError, ValueError):  # it is not ready
            return 0

    def firing(self):
        return {a["labels"]["alertname"] for a in self.ask("alerts")["alerts"] if a["state"] == "firing"}


class FailingDisks(Masters):
    """Masters whose logs fail when a test says so."""

    def start(self, i, *args, **kw):
        plain = self.bench.env
        self.bench.env = lambda **more: plain(LD_PRELOAD=str(E2E / "e2e_eio.so"), E2E_EIO=f"{self.bench.home}/m{i}", **more)
        try:
            return super().start(i, *args, **kw)
        finally:
            self.bench.env = plain


class Site:
    """Three masters, two nodes with SSDs, a conductor with a proxy and a server, and a Prometheus."""

    def __init__(self, bench, server):
        self.bench, self.server, self.home = bench, server, pathlib.Path(bench.home)
        self.pool = FailingDisks(bench, nodes=0)
        for i, env in enumerate(({"LD_PRELOAD": str(E2E / "e2e_eio.so"), "E2E_EIO": f"{bench.home}/ssd0", "KVPOOL_TIER_ENGINE": "pread"}, {})):
            (self.home / f"ssd{i}").mkdir()
            self.pool.nodes.append(bench.node(self.pool.addr, f"node{i}", "16MiB", "--chunk-bytes", "1MiB", "--http", "127.0.0.1:0",
                                              "--ssd", f"{bench.home}/ssd{i}:64MiB", env=env))
        self.proxy = Proxy(bench, [server])
        self.pool.wait_insync(3)
        self.client = Shell(bench, self.pool.addr, "client", **PATHS["shm"])
        self.prometheus = Prometheus(bench, {
            "kvpool-master": [m.http for m in self.pool.masters], "kvpool-node": [n.http for n in self.pool.nodes],
            "kvpool-conductor": [self.proxy.daemon.http], "kvpool-proxy": [self.proxy.daemon.listen]})

    def work(self, turns):
        """One client that puts, finds and reads, one prompt that is looked up, and one request to the proxy, again and again."""
        for turn in range(turns):
            assert self.client(f"bput k/ {8 * turn} 8 {LEN}")["results"] == {"OK": 8}
            assert self.client(f"bget k/ 0 {8 * turn + 8} {LEN}")["results"] == {"OK": 8 * turn + 8}
            assert self.client(f"bexist k/ 0 {8 * turn + 8}")["exist"] == 8 * turn + 8
            assert ask_http(self.proxy.daemon.http, "/query", json.dumps({"model": "m", "block_size": 4, "token_ids": [1, 2, 3, 4]}))[0] == 200
            assert self.proxy.post({"model": "m", "prompt": "x"})[0] == 200
            time.sleep(0.2)

    # ---- the faults
    def send_garbage(self):
        for _ in range(40):
            with socket.create_connection(self.pool.masters[self.pool.wait_leader()].listen.split(":")) as s:
                s.sendall(b"GET / HTTP/1.0\r\n\r\n" * 4)
                s.recv(100)

    def register_an_engine_that_is_not_there(self):
        body = {"endpoint": f"tcp://127.0.0.1:{free_ports(1)[0]}", "type": "vLLM", "modelname": "m", "instance_id": "e", "block_size": 4, "dp_rank": 0}
        assert ask_http(self.proxy.daemon.http, "/register", json.dumps(body))[0] == 200

    def break_the_server(self):
        self.server.fail = "close"
        for _ in range(20):
            assert self.proxy.post({"model": "m", "prompt": "x"})[0] in (502, 503)

    def ask_for_other_keys(self):
        for i in range(500):
            assert self.client(f"bexist other/ {1000 * i} 1000")["exist"] == 0

    def fill_with_pins(self):
        got = self.client(f"bput pinned/ 0 1200 {LEN} pin=1", timeout=60)["results"]
        assert got["NO_SPACE"] > 100, got
        removed_of(self.client, [f"pinned/{i}" for i in range(got["OK"])])

    def stop_a_writer(self):
        self.writer = Shell(self.bench, self.pool.addr, "writer", **PATHS["shm"])
        self.writer.stuck(f"put stopped {512 << 10} stuck_at={100 << 10}")
        self.writer.freeze()

    def put_more_than_fits(self):
        self.writer.kill9()
        for i in range(12):
            self.client(f"bput many/ {1000 * i} 1000 {LEN}", timeout=60)

    def flip_bits(self):
        flip(self.home / "ssd1" / "kvpool.tier", 4 * TIER_LEN, random.Random(5))
        for i in range(12):
            assert self.client(f"bget many/ {1000 * i} 1000 {LEN}", timeout=60)["wrong"] == 0

    def break_an_ssd(self):
        (self.home / "ssd0" / "eio-read").touch()
        (self.home / "ssd0" / "eio-write").touch()
        self.put_and_get_more("broken")

    def put_and_get_more(self, name):
        for what in ("bput", "bget"):
            self.client(f"{what} {name}/ 0 1200 {LEN}", timeout=60)

    def break_the_log(self):
        (self.home / f"m{self.pool.wait_leader()}" / "eio-write").touch()
        self.client(f"put late {LEN}")

    def kill_a_node(self):
        for switch in self.home.glob("m?/eio-write"):
            switch.unlink()
        self.pool.nodes[1].kill9()

    def kill_a_standby(self):
        self.pool.masters[(self.pool.wait_leader() + 1) % 3].kill9()

    def kill_etcd(self):
        for member in self.pool.etcd.members[:2]:
            member.kill()


# In this order: the fault, the alerts that it has to make, and those that may come with it.
FAULTS = [
    (Site.send_garbage, {"KvpoolProtocolErrors"}, set()),
    (Site.register_an_engine_that_is_not_there, {"KvpoolEngineUnreachable"}, set()),
    (Site.break_the_server, {"KvpoolProxyFails"}, set()),
    (Site.ask_for_other_keys, {"KvpoolOnlyMisses"}, set()),
    (Site.fill_with_pins, {"KvpoolPutsRefused"}, {"KvpoolDegraded"}),
    (Site.stop_a_writer, {"KvpoolQuarantineStays"}, set()),
    (Site.put_more_than_fits, {"KvpoolEvictsEarly"}, {"KvpoolDegraded"}),
    (Site.flip_bits, {"KvpoolSsdDamaged"}, {"KvpoolDegraded"}),
    (Site.break_an_ssd, {"KvpoolSsdFailed"}, {"KvpoolDegraded"}),
    (Site.break_the_log, {"KvpoolLogFailed"}, {"KvpoolDegraded", "KvpoolNoLeader"}),
    (Site.kill_a_node, {"KvpoolNodeLost", "KvpoolDegraded", "KvpoolDown"}, set()),
    (Site.kill_a_standby, {"KvpoolStandbyMissing"}, set()),
    (Site.kill_etcd, {"KvpoolNoLeader"}, set()),
]


@pytest.fixture
def site(bench):
    server = Server("replica")
    yield Site(bench, server)
    server.close()


@slow
@needs_prometheus
@needs_etcd
@pytest.mark.skipif(SAN != "", reason="a preloaded library and a sanitizer do not go together")
@pytest.mark.limit(150)
def test_a_live_pool(site):
    """Fails if an expression of the dashboard returns no series, an alert fires in a pool that is well and has load, or an alert does
    not fire when its fault is made, or fires for the fault of another one."""
    load = threading.Thread(target=site.work, args=(30,))
    load.start()
    wait_until(lambda: site.prometheus.scrapes() >= 6, 20, "Prometheus to have scraped all")
    for p in PANELS:
        for t in p["targets"]:
            expr = t["expr"].replace("$pool", ".*").replace("$__rate_interval", "5s")
            assert site.prometheus.query(expr), (p["title"], expr)
    load.join()
    assert site.client("exists k/239")["exists"] == 1, "the load ended early"
    names = set(re.findall(r"alert: (\S+)", ALERTS))
    rules = {r["name"]: r for g in site.prometheus.ask("rules")["groups"] for r in g["rules"]}
    assert set(rules) == names and {r["health"] for r in rules.values()} == {"ok"}, rules
    assert site.prometheus.query('count_over_time(ALERTS{alertstate="firing"}[5m])') == []
    for fault, makes, may_make in FAULTS:
        before = site.prometheus.firing()
        assert not (makes & before) - may_make - {"KvpoolDegraded"}, (fault.__name__, before)
        fault(site)
        wait_until(lambda: makes <= site.prometheus.firing(), 25, f"{makes} after {fault.__name__}; firing: {site.prometheus.firing()}")
        names -= makes
        assert site.prometheus.firing() <= before | makes | may_make, (fault.__name__, site.prometheus.firing() - before)
    assert not names, f"no fault makes {names}"
