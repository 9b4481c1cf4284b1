# SPDX-License-Identifier: Apache-2.0
"""Bytes that move by rdma, on a machine with devices: who has no part in it, what nodes offer, and a replayed trace."""
import json
import pathlib
import random
import re
import subprocess

import pytest

from clients import PATHS, Shell, slow
from conftest import RDMA, SLOW, TIER, wait_until
from test_known import MAY_LAPSE, SIZE, counters, get_known

GETS = 300
REPLAYED = 600 if TIER == "long" else 200  # requests


def requests(pool):
    """How much each node was asked."""
    pages = [node.http_get("/metrics")[1] for node in pool.nodes]
    return [int(re.search(r"^kvpool_node_requests_total (\d+)$", page, re.M).group(1)) for page in pages]


def switches(node):
    """By thread: how often it was given a processor after it had slept, or was made to yield one."""
    found = {}
    for task in pathlib.Path(f"/proc/{node.pid}/task").iterdir():
        text = (task / "status").read_text()
        name = re.search(r"^Name:\s*(.*)$", text, re.M).group(1)
        found[f"{name} {task.name}"] = sum(map(int, re.findall(r"ctxt_switches:\s*(\d+)", text)))
    return found


@pytest.fixture
def known(pool):
    """A client that knows where 16 objects lie."""
    writer = Shell(pool.bench, pool.addr, "writer", **PATHS["tcp"])
    reader = Shell(pool.bench, pool.addr, "reader", **PATHS["tcp"])
    for i in range(16):
        assert writer(f"put k{i} {SIZE} version={i}")["err"] == "OK"
    for i in range(16):
        get_known(reader, f"k{i}", 20)
    return reader


def get_all(reader, gets):
    for i in range(gets):
        got = reader(f"get k{i % 16} {SIZE}")
        assert (got["err"], got["version"], got["intact"]) == ("OK", i % 16, True), got


@pytest.mark.pool(nodes=2, node_args=("--http", "127.0.0.1:0", "--lanes", "2"))
def test_known_get_has_no_part_of_the_nodes_in_it(pool, known):
    """Fails if gets from known locations make a node answer anything, or if one of its threads has part in them: it would run
    for each, and not once in a while, for a heartbeat or a connection that comes up. What the node answers is counted where its
    thread takes it, so one question in all these gets is seen. A lease that is over makes a get ask the master, and only that.
    """
    was_asked = requests(pool)
    newcomer = Shell(pool.bench, pool.addr, "newcomer", **PATHS["tcp"])
    assert newcomer(f"get k0 {SIZE}")["err"] == "OK" and newcomer.finish() == 0
    assert requests(pool) != was_asked, "it had to ask a node for its memory, and nobody counted that"
    was_asked = requests(pool)
    ran = [switches(node) for node in pool.nodes]
    calls = counters(known)
    get_all(known, GETS)
    now = counters(known)
    ran_now = [switches(node) for node in pool.nodes]
    anew = GETS - (now[0] - calls[0])
    assert 0 <= anew <= MAY_LAPSE, "they were not all gets from known locations"
    assert now[1] - calls[1] <= 3 + anew, "messages went to the master"
    for node, before, after in zip(pool.nodes, ran, ran_now):
        assert any("kvp-rdma" in thread for thread in after), f"the threads of {node.name} that serve: {after}"
        for thread, times in after.items():
            assert times - before.get(thread, 0) < GETS / 4, f"{thread} of {node.name} ran {times} times, before {before}"
    assert requests(pool) == was_asked


@pytest.mark.pool(nodes=1)
def test_stopped_node_is_read_from(pool, known):
    """Fails if gets from known locations need a node whose processes may run. It is stopped for less than it takes the master
    to miss it."""
    calls = counters(known)
    pool.nodes[0].freeze()
    get_all(known, 64)
    pool.nodes[0].thaw()
    assert counters(known)[0] - calls[0] >= 64 - MAY_LAPSE


# ---- what nodes offer


def registrations(node):
    """Pieces of memory that the node's process has registered, as the kernel lists them: by thread."""
    ran = subprocess.run(["rdma", "-j", "resource", "show", "mr"], capture_output=True, text=True, check=True)
    threads = {int(task.name) for task in pathlib.Path(f"/proc/{node.pid}/task").iterdir()}
    return sum(mr.get("pid") in threads for mr in json.loads(ran.stdout))


@pytest.mark.pool(nodes=1)
def test_clients_that_end_leave_nothing_registered(pool):
    """Fails if what a node registers for a client that writes stays so after that has ended, by itself or by a signal, while an
    older client lives: nobody fences who left nothing unfinished.
    """
    node = pool.nodes[0]
    older = Shell(pool.bench, pool.addr, "older", **PATHS["tcp"])
    assert older(f"put k {SIZE} version=1")["err"] == "OK"
    wait_until(lambda: registrations(node) > 0, 20, "the node's memory to be registered")
    before = registrations(node)
    for i in range(4):
        newcomer = Shell(pool.bench, pool.addr, f"newcomer{i}", **PATHS["tcp"])
        wait_until(lambda: newcomer(f"put n{i} {SIZE} version=1")["err"] in ("OK", "EXISTS") and registrations(node) > before,
                   20, "keys of its own to be registered")
        if i % 2 == 0:
            assert newcomer.finish() == 0
        else:
                newcomer.kill9()
        wait_until(lambda: registrations(node) == before, 20, "these to be given back")
    assert older(f"put l {SIZE} version=1")["err"] == "OK", "its own are there"
    assert registrations(node) == before


def offers(pool):
    return {s["node"]: s["offers"] for s in pool.kvpool("stat", "--json").json["segments"]}


def test_nodes_serve_by_rdma_without_being_told(bench, make_pool):
    """Fails if a node that was told of no transports does not offer rdma at the address of a device, or nothing can be put and
    got there by it."""
    pool = make_pool(nodes=0)
    pool.nodes.append(bench.node(pool.master, "at-device", env={"KVPOOL_TRANSPORTS": ""}))
    assert offers(pool) == {"at-device": "shm,rdma,tcp"}
    by_rdma = Shell(bench, pool.addr, "by-rdma", transports="rdma")
    assert by_rdma(f"bput k/ 0 8 {SIZE}")["results"] == {"OK": 8}
    got = by_rdma(f"bget k/ 0 8 {SIZE}")
    assert got["results"] == {"OK": 8} and got["wrong"] == 0, got


def test_memory_of_a_process_is_served_by_rdma_where_that_is_named(bench, make_pool):
    """Fails if a program that names rdma and gives memory is not told that nobody could get at it by rdma where it listens, or
    if its memory is not served by rdma at the address of a device."""
    pool = make_pool(nodes=0)
    lost = Shell(bench, pool.addr, "lost", is_open=False)
    got = lost(f"open master={pool.addr} transports=rdma memory_bytes={16 << 20} deadline=4000")
    assert got["err"] != "OK", got
    assert re.search(r'level=error part=node msg="cannot serve the memory by rdma: no device .*127\.0\.0\.1: listen at ', lost.log()), lost.log()
    owner = Shell(bench, pool.addr, "owner", transports="rdma", listen=f"{RDMA[0]}:0", memory_bytes=16 << 20)
    assert list(offers(pool).values()) == ["shm,rdma,tcp"]
    assert owner(f"bput k/ 0 8 {SIZE}")["results"] == {"OK": 8}


# ---- a trace


def replay(pool, trace, *args):
    """Replays it by rdma alone, and returns the figures; not one byte is wrong."""
    r = pool.kvpool("replay", "--trace", trace, "--block-bytes", "16KiB", "--json", *args, timeout=400 * SLOW)
    assert r.rc == 0, r
    got = r.json
    failures = ("wrong_bytes", "wrong_blocks", "get_failed_after_lookup", "puts_refused", "puts_failed")
    assert {name: got[name] for name in failures} == dict.fromkeys(failures, 0), got
    assert got["transports"] == "rdma 100 %" and got["requests"] == REPLAYED, got
    return got


@pytest.fixture
def invented_trace(bench):
    """Conversations that grow, and take turns."""
    rng, path, next_id = random.Random(3), f"{bench.home}/invented.jsonl", 1
    chats = [[0] for _ in range(24)]
    with open(path, "w", encoding="utf-8") as f:
        for i in range(REPLAYED):
            chat = rng.choice(chats)
            grown = rng.randrange(1, 6)
            chat.extend(range(next_id, next_id + grown))
            next_id += grown
            f.write(json.dumps({"timestamp": 20 * i, "input_length": 512 * len(chat), "output_length": 64,
                                "hash_ids": chat}) + "\n")
            if len(chat) > 40:
                chats[chats.index(chat)] = [0]
    return path


@pytest.mark.pool(nodes=3, memory="24MiB")
@pytest.mark.limit(500)
def test_replay(pool, invented_trace):
    """Fails if a trace replayed against three nodes by rdma has a wrong byte, or a get that fails; the pool is full after
    half of it, so that places are used again."""
    assert replay(pool, invented_trace)["hit_ratio"] > 0.3


@slow
@pytest.mark.pool(nodes=3, memory="48MiB")
@pytest.mark.limit(900)
def test_replay_of_the_published_trace(pool, trace_file):
    replay(pool, trace_file, "--limit", REPLAYED)
