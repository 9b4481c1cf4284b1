# SPDX-License-Identifier: Apache-2.0
"""Slow calls: one line with where the time went, at the master and at the library, limited in rate and counted."""
import concurrent.futures
import re
import time

import pytest

from clients import Shell, figures
from conftest import read_log_line, wait_until
from standby import Masters, needs_etcd

STOPPED_S = 2
SLOW_MS = 500  # of that, what must be found


def slow_lines(log, part):
    lines = [read_log_line(line) for line in log.split("\n") if 'msg="slow call"' in line]
    return [line for line in lines if line["part"] == part]


def counted(master):
    return int(re.search(r"^kvpool_master_slow_calls_total (\d+)", master.http_get("/metrics")[1], re.M).group(1))


def while_stopped(daemon, counts, call):
    """The result of call(), during which the daemon is stopped, for STOPPED_S from when counts() shows that the call is under way."""
    before = counts()
    daemon.freeze()
    with concurrent.futures.ThreadPoolExecutor() as threads:
        try:
            result = threads.submit(call)
            wait_until(lambda: counts() > before, 20, "the call to be under way")
            time.sleep(STOPPED_S)
        finally:
            daemon.thaw()
        return result.result()


@needs_etcd
def test_put_that_waits_for_a_standby(bench):
    """Fails if a put that a stopped standby delays is not logged by the leader and by the client, as a wait for the standby and for the
    master, or is not counted.
    """
    masters = Masters(bench, n=2, nodes=1, args=("--ack-standbys", "1"))
    masters.wait_insync(2)
    lead = masters.wait_leader()
    leader, standby = masters.masters[lead], masters.masters[1 - lead]
    before = counted(leader)
    r = while_stopped(standby, lambda: figures(leader)["put_begins"], lambda: bench.run(
        "kvpool", "put", "--master", masters.addr, "--deadline", "20s", "key", stdin=b"x" * 1000, env={"KVPOOL_SLOW_CALL": "100ms"}))
    assert r.rc == 0, r
    leader.wait_log('msg="slow call" call=put_commit')
    line = max(slow_lines(leader.log(), "master"), key=lambda found: int(found["ms"]))
    assert (line["call"], line["waits_for"]) == ("put_commit", "the log and standbys"), line
    assert int(line["wait_ms"]) >= SLOW_MS and int(line["wait_ms"]) >= int(line["ms"]) / 2, line
    assert counted(leader) > before
    [line] = [it for it in slow_lines(r.err, "client") if it["call"] == "batch_put"]
    assert line["keys"] == "1" and line["error"] == "OK" and int(line["master_ms"]) >= SLOW_MS, line


@pytest.mark.pool(nodes=1)
def test_get_that_waits_for_a_node(pool):
    """Fails if a get that a stopped node delays is not logged as a wait for nodes, or is logged below the limit."""
    assert pool.put("key", b"x" * 1000).rc == 0
    env = {"KVPOOL_TRANSPORTS": "tcp", "KVPOOL_SLOW_CALL": "100ms"}
    assert pool.kvpool("get", "key", env={**env, "KVPOOL_SLOW_CALL": "1m"}).rc == 0
    r = while_stopped(pool.nodes[0], lambda: figures(pool.master)["gets"], lambda: pool.kvpool("get", "--deadline", "20s", "key", env=env))
    assert r.rc == 0 and r.out == b"x" * 1000, r
    [line] = [it for it in slow_lines(r.err, "client") if it["call"] == "get"]
    assert int(line["node_ms"]) >= SLOW_MS and int(line["copy_ms"]) <= int(line["ms"]) - SLOW_MS, line
    r = pool.kvpool("get", "key", env={**env, "KVPOOL_SLOW_CALL": "soon"})
    assert r.rc == 2 or "KVPOOL_SLOW_CALL" in r.err, r


@pytest.mark.pool(nodes=1, master_args=("--slow-call", "1us"))
def test_lines_are_limited_and_calls_counted(pool):
    """Fails if each of many slow calls has a line, if one of them is not counted, or if no line has the number of those left out."""
    client = Shell(pool.bench, pool.addr)
    begun = time.monotonic()
    for i in range(50):
        assert client(f"put {i} 100")["err"] == "OK"
    assert counted(pool.master) >= 100  # put_begin and put_commit of each
    lines = len(slow_lines(pool.master.log(), "master"))
    assert 1 <= lines <= 6 + time.monotonic() - begun
    wait_until(lambda: client("get 1 100 fresh=1") and int(slow_lines(pool.master.log(), "master")[-1]["missed"]) > 0, 10,
               "a line with the number of lines left out")


@pytest.mark.pool(nodes=1, master_args=("--slow-call", "0"))
def test_slow_calls_switched_off(pool):
    """Fails if --slow-call 0 logs or counts."""
    assert pool.put("key", b"x").rc == 0
    assert counted(pool.master) == 0 and not slow_lines(pool.master.log(), "master")
