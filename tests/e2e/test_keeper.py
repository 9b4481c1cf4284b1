# SPDX-License-Identifier: Apache-2.0
"""A keeper holds a node's memory while the node is killed, stopped or replaced: what was put is served again, from the same memory, to
clients and by a master that go on as they were.
"""
import json
import os
import signal
import time

import pytest

from clients import PATHS, Shell
from conftest import SLOW, TIER, proc_state, wait_until

MIB = 1 << 20


class Kept:
    """A master and nodes with keepers, which are ended with the test."""

    def __init__(self, bench):
        self.bench = bench
        self.master = bench.master()
        self.names = set()

    def node(self, name="kept1", memory="32MiB", *args, mode="auto", **kw):
        self.names.add(name)
        return self.bench.node(self.master, name, memory, "--http", "127.0.0.1:0", "--keeper", mode, *args, **kw)

    def shell(self, **conf):
        return Shell(self.bench, self.master.listen, **conf)

    def end_keeper(self, name):
        return self.bench.run("kvpool-keeper", "--name", name, "--end", "yes")

    def end(self):
        for daemon in self.bench.daemons:
            if daemon is not self.master and hasattr(daemon, "terminate") and daemon.is_running():
                daemon.terminate()
        for name in self.names:
            assert self.end_keeper(name).rc == 0


@pytest.fixture
def kept(bench):
    k = Kept(bench)
    yield k
    k.end()


def health(node):
    return json.loads(node.http_get("/health")[1])


def wait_kept(node):
    wait_until(lambda: health(node)["is_kept"], 10, "the keeper to have the memory")
    return health(node)["keeper_pid"]


@pytest.mark.parametrize("path", sorted(PATHS))
def test_killed_node_comes_back_with_its_memory(kept, path):
    """Fails if, after kill -9 of the node and a new process of its name, an object is not served with its bytes, a new put or a removal
    does not work, or a client or the master would have to be restarted; four times, the last after a clean stop."""
    node = kept.node()
    client = kept.shell(deadline=3000, **PATHS[path])
    assert client("bput old/ 0 50 100000")["results"] == {"OK": 50}
    for turn in range(4):
        keeper = wait_kept(node)
        if turn < 3:
            node.kill9()
        else:
            assert node.terminate() == 0
        node = kept.node()
        assert health(node)["keeper_pid"] == keeper and health(node)["adopted_objects"] == 50 + turn
        got = wait_until(lambda: (g := client("bget old/ 0 50 100000"))["results"] == {"OK": 50} and g, 5, "the objects")
        assert got["wrong"] == 0, got
        assert client(f"put new/{turn} 50000")["err"] == "OK"
        assert client(f"get new/{turn} 50000")["intact"]
