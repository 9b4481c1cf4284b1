# SPDX-License-Identifier: Apache-2.0
"""`kvpool rebalance`: objects move from full nodes to emptier ones."""
import re

import pytest

from clients import Shell
from conftest import SLOW

SIZE = 256 << 10
N = 160  # 40 MiB


def shares(pool):
    return {s["node"]: s["used_bytes"] / s["size_bytes"] for s in pool.kvpool("stat", "--json").json["segments"]}


@pytest.mark.pool(nodes=0)
def test_a_node_that_is_added_is_filled(pool):
    """Fails if the nodes are not within 5 % of the mean afterwards, if an object is lost or wrong, if a second run moves anything, if it
    runs while a node is drained, or if bad arguments are taken."""
    pool.add_node("node1", "64MiB")
    client = Shell(pool.bench, pool.addr)
    assert client(f"bput k 0 {N} {SIZE}")["results"] == {"OK": N}
    pool.add_node("node2", "64MiB")
    pool.add_node("node3", "32MiB")
    mean = N * SIZE / (160 << 20)

    done = pool.kvpool("rebalance", "--json", timeout=60 * SLOW)
    assert done.rc == 0 and done.json["failed"] == done.json["held"] == 0, done
    assert all(abs(share - mean) <= 0.05 for share in shares(pool).values()), shares(pool)
    got = client(f"bget k 0 {N} {SIZE}")
    assert got["results"] == {"OK": N} and got["wrong"] == 0, got
    again = pool.kvpool("rebalance")
    assert again.rc == 0 and re.search(r"^ +moved objects +0$", again.text, re.M), again
    assert pool.kvpool("node", "drain", "node1", "--rate", "1B").rc == 0
    refused = pool.kvpool("rebalance")
    assert refused.rc == 1 and "node1 is being drained" in refused.err, refused
    assert pool.kvpool("rebalance", "node1").rc == 2 and pool.kvpool("rebalance", "--rate", "0").rc == 2


@pytest.mark.pool(nodes=0)
def test_what_cannot_be_moved_is_said(pool):
    """Fails if a pool that cannot be even makes the command wait, or end well."""
    pool.add_node("node1", "64MiB")
    client = Shell(pool.bench, pool.addr)
    assert client(f"bput k 0 1 {12 << 20}")["results"] == {"OK": 1}
    pool.add_node("node2", "64MiB")
    refused = pool.kvpool("rebalance")
    assert refused.rc == 1 and "no object of this tenant can be moved" in refused.err, refused
