# SPDX-License-Identifier: Apache-2.0
"""The metrics of all daemons, read by Prometheus's own checker."""
import os
import re
import shutil
import subprocess

import pytest

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
    of_node = len([line for line in body.splitlines() if 'node="' in line])
    assert len(body.splitlines()) + 99 * of_node + 32 * 10 + 8 * 6 < 2000
    checked(node)
    checked(conductor)
