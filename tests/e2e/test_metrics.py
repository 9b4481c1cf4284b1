# SPDX-License-Identifier: Apache-2.0
"""The metrics of all daemons, read by Prometheus's own checker."""
import os
import re
import shutil
import subprocess

import pytest

from clients import PATHS, Shell, figures
from conftest import SLOW, wait_until

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here (Debian's prometheus)")


def checked(daemon):
    """The daemon's metrics, of which promtool has nothing to say."""
    status, body = daemon.http_get("/metrics")
    assert status == 200
    done = subprocess.run(["promtool", "check", "metrics"], input=body.encode(), capture_output=True, timeout=20 * SLOW, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert 'kvpool_build_info{version="' in body and "\nprocess_resident_memory_bytes " in body
    assert not re.search(r"^kvpool_\w+_(ns|ms|us)(_total)?[ {]", body, re.M)
    return body


def series(body):
    return len([line for line in body.splitlines() if not line.startswith("#")])


@needs_promtool
def test_promtool_has_nothing_to_say(bench):
    folder = os.path.join(bench.home, "ssd")
    os.mkdir(folder)
    master = bench.master()
    node = bench.node(master, 'a"node', "32MiB", "--ssd", f"{folder}:64MiB", "--http", "127.0.0.1:0")
    conductor = bench.start("conductor", "kvpool-conductor", "--http", "127.0.0.1:0")
    for tenant in ("default", "b\\lue"):
        bench.run("kvpool", "put", "k", "--tenant", tenant, "--master", master.listen, stdin=b"x")
        bench.run("kvpool", "exists", "k", "l", "--tenant", tenant, "--master", master.listen)
    wait_until(lambda: 'tier="ssd"' in master.http_get("/metrics")[1], 10, "the SSD to be mounted")
    body = checked(master)
    for line in ('kvpool_master_node_up{node="a\\"node",tier="ssd"} 1', 'kvpool_master_node_objects{node="a\\"node",tier="memory"} 2',
                 'kvpool_master_tenant_objects{tenant="b\\\\lue"} 1', 'kvpool_master_hit_ratio{tenant="",window="1h"} 0.5',
                 'kvpool_master_lookup_misses_total{reason="not_known"} 2'):
        assert f"\n{line}\n" in body, line
    stat = bench.run("kvpool", "stat", "--master", master.listen).text
    assert "\nmisses     not_known 100.0 % of 2: kvpool why KEY\n" in stat, stat
    of_master = series(body) + 99 * len([line for line in body.splitlines() if 'node="' in line]) + 33 * 10 + 8 * 6
    body = checked(node)
    assert of_master < 2100 and of_master + 100 * series(body) < 20000
    for line in ('call_seconds_count{call="attach"} 2', 'served_seconds_count{transport="tcp",op="read"} 0',
                 'served_bytes_total{transport="tcp",op="write"} 0'):
        assert f"\nkvpool_node_{line}\n" in body, line
    checked(conductor)


def test_what_a_node_serves(bench):
    """Fails if objects that pass through a node's TCP lanes, or to and from its SSD, are not counted with their bytes and times."""
    folder = os.path.join(bench.home, "ssd")
    os.mkdir(folder)
    master = bench.master()
    node = bench.node(master, "node1", "16MiB", "--ssd", f"{folder}:64MiB", "--http", "127.0.0.1:0")
    wait_until(lambda: 'tier="ssd"' in master.http_get("/metrics")[1], 10, "the SSD to be mounted")
    client = Shell(bench, master.listen, "client", **PATHS["tcp"])
    for i in range(40):  # paced, so that the SSD keeps up
        assert client(f"put k/{i} {1 << 20}")["err"] == "OK"
        wait_until(lambda: (lambda f: f["demoted"] + f["demotes_refused"] == f["demotes"])(figures(master)), 10, "the writes to the SSD")
    assert client(f"get k/0 {1 << 20}")["intact"]
    values = {key: float(value) for key, value in re.findall(r"^kvpool_node_(\S+) (\S+)$", node.http_get("/metrics")[1], re.M)}
    for op, n in (("read", 1), ("write", 40)):
        labels = f'{{transport="tcp",op="{op}"}}'
        assert values[f"served_seconds_count{labels}"] >= n and n <= values[f"served_bytes_total{labels}"] / (1 << 20) < n + 1, (op, values)
        assert 0 < values[f"served_seconds_sum{labels}"] < 60 * SLOW
    for call in ("attach", "retire", "demote", "stage"):
        assert values[f'call_seconds_count{{call="{call}"}}'] > 0 and values[f'call_seconds_sum{{call="{call}"}}'] > 0, (call, values)


@needs_promtool
def test_tenants_that_are_not_among_the_largest(bench):
    """Fails if tenants beyond the 32 largest are missing in the sums, or a tenant with the name of the sum makes two series equal."""
    master = bench.master()
    bench.node(master, "node1", "256MiB", "--chunk-bytes", "1MiB")
    for i in range(40):
        bench.run("kvpool", "put", "k", "--tenant", "other" if i == 39 else f"t{i}", "--master", master.listen, stdin=b"x" * 1000 * (i + 1))
    bench.run("kvpool", "exists", "k", "l", "--tenant", "t0", "--master", master.listen)
    body = checked(master)
    objects = {tenant: int(n) for tenant, n in re.findall(r'^kvpool_master_tenant_objects{tenant="(.*)"} (\d+)$', body, re.M)}
    assert objects == {**{f"t{i}": 1 for i in range(7, 39)}, "other": 8}
    used = {tenant: int(n) for tenant, n in re.findall(r'^kvpool_master_tenant_used_bytes{tenant="(.*)"} (\d+)$', body, re.M)}
    assert sum(used.values()) == figures(master)["used_bytes"]
    assert '\nkvpool_master_hit_ratio{tenant="other",window="1m"} 0.5\n' in body
