# SPDX-License-Identifier: Apache-2.0
"""A node is drained: its objects move to other nodes while clients read, put and remove, and then it may die."""
import collections
import json
import os
import re
import threading
import time

import pytest

from clients import PATHS, Board, Load, Shell, figures, free_ports, slow, work
from conftest import RDMA, SLOW, TIER, chat_trace, wait_until
from replays import lru_hits, requests_of
from standby import Masters, needs_etcd

MIB = 1 << 20


def drain(pool, name, *args, timeout=60):
    """The outcome of `kvpool node drain NAME`, as the command line prints it."""
    return pool.kvpool("node", "drain", name, "--json", *args, timeout=timeout * SLOW)


def segments(pool):
    return {s["node"]: s for s in pool.kvpool("stat", "--json").json["segments"]}


def fill(pool, client, n=120, size=65536):
    assert client(f"bput a/ 0 {n} {size}")["results"] == {"OK": n}
    return segments(pool)["node1"]["objects"]


def intact(client, n=120, size=65536, prefix="a/"):
    got = client(f"bget {prefix} 0 {n} {size}")
    assert got["results"] == {"OK": n} and got["wrong"] == 0, (prefix, got)


@pytest.mark.parametrize("path", ["shm", "tcp"])
def test_drained_node_may_be_killed(make_pool, path):
    """Fails if an object of a drained node, of any size, with a long key, a pin or a group, is lost or wrong when the node is killed
    after the drain; if a put goes to a draining node; or if a drain evicts although there is room.
    """
    node_args = () if path == "shm" or RDMA else ("--transports", "tcp")
    pool = make_pool(nodes=0)
    for i in (1, 2):
        pool.add_node(f"node{i}", "64MiB", *node_args, *(("--host-id", f"host-{i}") if path == "tcp" else ()))
    client = Shell(pool.bench, pool.addr, **PATHS[path])
    sizes = {"small/": (300, 64), "mid/": (100, 65536), "long/": (4, 3 * MIB + 17)}
    for prefix, (n, size) in sizes.items():
        assert client(f"bput {prefix} 0 {n} {size}")["results"] == {"OK": n}
    assert client("bput pinned/ 0 50 4096 pin=1")["results"] == {"OK": 50}
    sizes["pinned/"] = (50, 4096)
    assert client("bput group/ 0 16 20000 group=g members=16")["results"] == {"OK": 16}
    sizes["group/"] = (16, 20000)
    long_keys = ["k" * 900 + str(i) for i in range(8)]
    for key in long_keys:
        assert pool.put(key, key.encode()).rc == 0
    had = segments(pool)["node1"]["objects"]
    assert had > 50

    done = drain(pool, "node1", "--wait")
    assert done.rc == 0, done
    assert done.json["state"] == "done" and done.json["is_durable"] and done.json["left_objects"] == 0, done.json
    assert done.json["moved_objects"] == had and done.json["evicted_objects"] == 0, done.json
    assert client("bput after/ 0 50 4096")["results"] == {"OK": 50}
    sizes["after/"] = (50, 4096)
    assert segments(pool)["node1"]["state"] == "draining" and segments(pool)["node1"]["objects"] == 0
    shown, page = pool.kvpool("stat"), json.loads(pool.master.http_get("/overview")[1])["pool"]
    assert re.search(r"^memory .* of 64 MiB used .*\n {11}64 MiB more are of nodes that are being drained", shown.text, re.M), shown.text
    assert page["size_bytes"] == page["draining_bytes"] == figures(pool.master)["size_bytes"] == 64 * MIB
    pool.nodes[0].kill9()
    for prefix, (n, size) in sizes.items():
        intact(client, n, size, prefix)
    for key in long_keys:
        assert pool.get(key).out == key.encode()
    wait_until(lambda: segments(pool)["node1"]["state"] == "lost", 5, "the master to miss the node")
    assert pool.kvpool("stat", "--json").json["pool"]["status"] == "ok" and "undrain node1" in pool.kvpool("node", "ls").text
    assert re.search(r"^  node1 +away \(drained\) +- ", pool.kvpool("node", "ls").text, re.M)
    wait_until(lambda: {"away (drained)", "up"} == {n["state"] for n in json.loads(pool.master.http_get("/overview")[1])["nodes"]}, 3,
               "the page to say so")
    assert 'kvpool_master_node_drained{node="node1",tier="memory"} 1\n' in pool.master.http_get("/metrics")[1]
    assert "node_drained" in {it["code"] for it in pool.kvpool("doctor", "--json").json["findings"]}
    assert client("all force=1")["removed"] == len(long_keys) + sum(n for n, _ in sizes.values())


def test_drained_node_that_is_away_when_the_master_restarts(bench, make_pool):
    """Fails if a node that was drained and stopped is an error, or anything but away, to a master that read its log since then."""
    os.mkdir(f"{bench.home}/ssd")
    pool = make_pool(nodes=0, data_dir=f"{bench.home}/data")
    pool.add_node("stays")
    gone = pool.add_node("gone", "64MiB", "--ssd", f"{bench.home}/ssd:64MiB")
    client = Shell(bench, pool.addr)
    assert client("bput k/ 0 50 4096")["results"] == {"OK": 50} and segments(pool)["gone"]["objects"] > 0
    assert drain(pool, "gone", "--wait").json["state"] == "done"
    gone.kill9()
    pool.master.kill9()
    pool.master = bench.master(data_dir=f"{bench.home}/data", listen=pool.addr, name="master2")
    wait_until(lambda: segments(pool)["stays"]["state"] == "up", 10, "the other node to be back")
    assert re.search(r"^  gone +away \(drained\) +- ", pool.kvpool("node", "ls").text, re.M), pool.kvpool("node", "ls").text
    assert "gone is away. It was drained: its memory had no object any more. No object is lost with it" in pool.kvpool("node", "ls").text
    found = {f["code"]: f for f in pool.kvpool("doctor", "--json").json["findings"]}
    assert "node_drained" in found and not {"node_away", "ssd_away"} & found.keys(), found
    assert '"status":"ok"' in pool.master.http_get("/health")[1]
    intact(client, 50, 4096, "k/")


def test_undrained_node_takes_puts_again(pool):
    """Fails if `undrain` leaves a node without new objects, or what was moved, removed or replaced meanwhile is wrong."""
    client = Shell(pool.bench, pool.addr)
    assert client("bput a/ 0 200 20000")["results"] == {"OK": 200}
    assert drain(pool, "node1", "--rate", "1MB").json["state"] == "running"
    for i in range(0, 200, 4):
        assert client(f"remove a/{i} force=1")["err"] == "OK"
    for said in ("accepts new objects again", "was not draining"):
        assert pool.kvpool("node", "undrain", "node1").text == f"node1 {said}\n"
    ended = pool.kvpool("node", "undrain", "node1", "--json").json
    assert ended["state"] == "none" and ended["is_durable"], ended
    assert segments(pool)["node1"]["state"] == "up"
    assert client("bput b/ 0 200 20000")["results"] == {"OK": 200}
    assert segments(pool)["node1"]["objects"] > 20
    intact(client, 200, 20000, "b/")
    got = client("bget a/ 0 200 20000")
    assert got["results"] == {"OK": 150, "NOT_FOUND": 50} and got["wrong"] == 0, got


@pytest.mark.pool(nodes=2, memory="32MiB")
def test_full_pool_says_what_is_missing(pool):
    """Fails if --no-evict evicts or does not say how many bytes are missing, or if without it the drain does not end."""
    client = Shell(pool.bench, pool.addr)
    client("bput a/ 0 500 100000")
    before = figures(pool.master)["evictions"]
    stuck = pool.kvpool("node", "drain", "node1", "--wait", "--no-evict", timeout=60 * SLOW)
    assert stuck.rc == 1 and "lack" in stuck.err and "--evict" in stuck.err, stuck
    asked = drain(pool, "node1", "--rate", "1GB").json  # changes the rate alone
    assert asked["no_room_bytes"] > MIB and asked["no_evict"] and asked["limit_bytes_per_s"] == 10**9, asked
    wait_until(lambda: drain(pool, "node1").json["is_durable"], 10, "a question that does not begin the drain again")
    asked = drain(pool, "node1").json
    assert asked["no_evict"] and asked["limit_bytes_per_s"] == 10**9 and "lack" in asked["waits_for"], asked
    assert figures(pool.master)["evictions"] == before
    assert "stuck" in pool.kvpool("node", "ls").text and "other nodes lack" in pool.kvpool("node", "ls").text
    draining = [f for f in pool.kvpool("doctor", "--json").json["findings"] if f["code"] == "node_draining"]
    assert draining[0]["severity"] == "info" and "other nodes lack" in draining[0]["what"], draining
    done = drain(pool, "node1", "--wait", "--evict")
    assert done.rc == 0 and done.json["left_objects"] == 0 and not done.json["waits_for"], done
    evicted = figures(pool.master)["evictions"] - before
    assert done.json["evicted_objects"] == segments(pool)["node1"]["evicted_objects"] == evicted > 0, done
    pool.nodes[0].kill9()
    said = f"{evicted} objects of the pool were evicted for it"
    wait_until(lambda: said in pool.kvpool("node", "ls").text, 10, "the list to say what the drain has cost")
    finding = {f["code"]: f for f in pool.kvpool("doctor", "--json").json["findings"]}["node_drained"]
    assert f"for the drain {evicted} objects" in finding["what"], finding
    got = client("bget a/ 0 500 100000")
    assert got["wrong"] == 0 and set(got["results"]) == {"OK", "NOT_FOUND"} and got["results"]["OK"] > 200, got
    assert f'misses_by_reason_total{{reason="evicted_for_drain"}} {evicted}\n' in pool.master.http_get("/metrics")[1]


def test_drain_refuses_what_it_cannot_do(pool):
    """Fails if a wrong name, verb, option or rate is taken, or is refused without its reason."""
    for args, rc, why in (
        (("drain", "nobody"), 1, "no node of that name"),
        (("drain",), 2, "drain NAME"),
        (("shake", "node1"), 2, "drain NAME"),
        (("undrain", "node1", "--wait"), 2, "undrain"),
        (("drain", "node1", "--evict", "--no-evict"), 2, "exclude each other"),
        (("drain", "node1", "--rate", "0"), 2, "rate"),
        (("drain", "node1", "--grace", "never"), 2, "grace"),
    ):
        got = pool.kvpool("node", *args)
        assert got.rc == rc and why in got.err, (args, got)
    assert segments(pool)["node1"]["state"] == "up"


def test_a_drain_names_a_client_that_holds_objects(pool):
    """Fails if a drain that clients hold up does not name one of them, or goes on after the end of its session; or if `kvpool why` of
    an object that is to move does not name the drain.
    """
    client, holder = Shell(pool.bench, pool.addr), Shell(pool.bench, pool.addr, "holder")
    fill(pool, client)
    assert holder("lookup a/ 0 120 ttl=120000")["found"] == 120
    assert drain(pool, "node1").rc == 0
    wait_until(lambda: drain(pool, "node1").json["held_objects"] == segments(pool)["node1"]["objects"], 20, "what is held alone to be left")
    asked = drain(pool, "node1").json
    name, host, session = re.fullmatch(r"(.+) on host (\S+), session ([0-9a-f]{16})", asked["held_by"]).groups()
    rows = {r["id"]: r for r in pool.kvpool("session", "ls", "--json").json["sessions"]}
    assert (rows[session]["name"], rows[session]["host_id"]) == (name, host), (asked, rows)
    assert f"one of them {asked['held_by']}" in asked["waits_for"] and "held by" in pool.kvpool("node", "drain", "node1").text
    said = [pool.kvpool("why", f"a/{i}").text for i in range(4)]
    assert any("it moves from node node1, which is being drained" in text for text in said), said
    assert pool.kvpool("session", "end", session).rc == 0
    assert drain(pool, "node1", "--wait").json["state"] == "done"


@pytest.mark.pool(nodes=1)
def test_last_node_has_nowhere_to_drain_to(pool):
    """Fails if the drain of the only node loses something, or waits without a reason."""
    client = Shell(pool.bench, pool.addr)
    assert client("bput a/ 0 50 4096")["results"] == {"OK": 50}
    stuck = pool.kvpool("node", "drain", "node1", "--wait", timeout=60 * SLOW)
    assert stuck.rc == 1 and "no other node" in stuck.err, stuck
    intact(client, 50, 4096)


@slow
@pytest.mark.limit(90)
@pytest.mark.parametrize("killed", ["nothing", "master"])
def test_drain_under_load_misses_nothing(make_pool, killed, tmp_path):
    """Fails if a drain under reads and puts, and the death of the node after that, cost a miss, an error, a wrong byte or an object,
    with the only master killed and started again in the middle, or not.
    """
    addr = f"127.0.0.1:{free_ports(1)[0]}"
    pool = make_pool(nodes=0)
    pool.master.terminate()
    pool.master = pool.bench.master(data_dir=tmp_path, listen=addr)
    for i in (1, 2):
        pool.add_node(f"node{i}", "384MiB")
    client = Shell(pool.bench, addr, deadline=20000)
    assert client("bput mid/ 0 1500 65536")["results"] == {"OK": 1500}
    assert client("bput big/ 0 100 1048576")["results"] == {"OK": 100}
    board = Board(pool.bench, 1)
    common = dict(batch=4, min_bytes=4096, max_bytes=65536, window=500, deadline_ms=20000, **board.options)
    writer = Load(pool.bench, addr, "put", putters=1, pause_ms=20, **common).ready()
    wait_until(lambda: board.begun(0) >= 200, 20, "something to read")
    readers = [Load(pool.bench, addr, f"get{i}", getters=2, **common).ready() for i in range(2)]
    work(3.0, *(lambda r=r: r.done() > 100 for r in readers))
    had = segments(pool)["node1"]["objects"]
    assert drain(pool, "node1", "--rate", "20MB").rc == 0
    if killed == "master":
        wait_until(lambda: segments(pool)["node1"]["objects"] < had * 3 // 4, 30, "a part to be moved")
        pool.master.kill9()
        pool.master = pool.bench.master(data_dir=tmp_path, listen=addr)
    done = drain(pool, "node1", "--wait", "--deadline", "20s")
    assert done.rc == 0 and done.json["evicted_objects"] == 0 and done.json["left_objects"] == 0, done
    pool.nodes[0].kill9()
    work(2.0, *(lambda r=r: r.done() > 100 for r in readers))
    for load in (*readers, writer):
        got = load.stop()
        assert got["wrong"] == 0 and set(got["results"]) == {"OK"} and got["late"] == 0, (load.name, got)
    intact(client, 1500, 65536, "mid/")
    intact(client, 100, MIB, "big/")


@slow
@pytest.mark.limit(600 if TIER == "long" else 60)
@pytest.mark.parametrize("keeper", ["none", "auto"])
def test_three_hosts_are_patched_in_turn(bench, make_pool, keeper):
    """Fails if the hit ratio of a replay is not within 1 % of that of the same pool left alone, if a read or put fails, or if another
    object is lost, while each of three nodes in turn is drained, stopped, started and undrained, with up to 55 % of the memory in use.
    """
    trace = chat_trace(bench, 4000 if TIER == "long" else 400)
    with open(trace) as f:
        blocks = len({block for line in f for block in json.loads(line)["hash_ids"]})
    fixed = blocks * 25 // 30  # a quarter of the memory has these, and the trace's come to 30 %
    memory = f"{int(blocks * 65536 / 0.3 / 3) // MIB}MiB"
    pool = make_pool(nodes=3, memory=memory, node_args=("--keeper", keeper))
    client = Shell(pool.bench, pool.addr, deadline=20000)
    assert client(f"bput a/ 0 {fixed} 65536", timeout=60)["results"] == {"OK": fixed}
    replays = []

    def replay():
        got = pool.kvpool("replay", "--trace", trace, "--block-bytes", "64KiB", "--rate", "2000", "--json", timeout=300).json
        replays.append(got)
        assert pool.kvpool("rm", "--regex", "^deepseek", "--force", "--yes").rc == 0

    def replay_on():
        while not is_over.is_set():
            replay()

    replay()
    is_over, player = threading.Event(), threading.Thread(target=replay_on)
    player.start()
    try:
        for i, name in enumerate(("node1", "node2", "node3")):
            done = drain(pool, name, "--wait")
            assert done.rc == 0 and done.json["evicted_objects"] == 0 and done.json["moved_objects"] > fixed // 4, done
            assert pool.nodes[i].terminate() == 0
            pool.nodes[i] = pool.bench.node(pool.master, name, memory, "--keeper", keeper)
            assert pool.kvpool("node", "undrain", name).rc == 0
            wait_until(lambda name=name: segments(pool)[name]["state"] == "up", 10, "the node to take puts again")
    finally:
        is_over.set()
        player.join()
    ratios = [got["hit_ratio"] for got in replays]
    print(f"{blocks} blocks; hit ratio left alone {ratios[0]}, while hosts were patched {ratios[1:]}")
    for got in replays:
        assert [got[bad] for bad in ("wrong_bytes", "get_failed_after_lookup", "puts_refused", "puts_failed")] == [0] * 4, got
    assert len(ratios) > 1 and min(ratios) > ratios[0] - 0.01, ratios
    intact(client, fixed)


@slow
@pytest.mark.limit(300 if TIER == "long" else 90)
def test_full_hosts_are_patched_in_turn(bench, make_pool):
    """Fails if a replay has fewer than 98 % of the hits of an LRU cache with the memory that is there at each moment, while each of three
    full nodes in turn is drained, stopped, started and undrained.
    """
    trace = chat_trace(bench, 4000 if TIER == "long" else 1000)
    requests = requests_of(trace)
    blocks = sum(map(len, requests))
    memory = len({block for ids in requests for block in ids}) * 65536 // 10 // MIB
    pool = make_pool(nodes=3, memory=f"{memory}MiB", node_args=("--keeper", "none"))
    replays, changes = [], []

    def asked():
        """How many blocks the replay has asked for."""
        return pool.kvpool("stat", "--json").json["pool"]["counters"]["lookups"]

    def has_memory(nodes):
        changes.append((asked(), nodes * memory * MIB // 65536))

    has_memory(3)
    player = threading.Thread(target=lambda: replays.append(
        pool.kvpool("replay", "--trace", trace, "--block-bytes", "64KiB", "--rate", "1500", "--json", timeout=280).json))
    player.start()
    try:
        for i, name in enumerate(("node1", "node2", "node3")):
            wait_until(lambda i=i: asked() > blocks * (4 + 2 * i) // 10, 60, "the next node's turn")
            has_memory(2)
            assert drain(pool, name, "--wait").rc == 0
            assert pool.nodes[i].terminate() == 0
            pool.nodes[i] = pool.bench.node(pool.master, name, f"{memory}MiB", "--keeper", "none")
            has_memory(3)
            pool.kvpool("node", "undrain", name)
    finally:
        player.join()
    [got] = replays
    assert [got[bad] for bad in ("wrong_bytes", "get_failed_after_lookup", "puts_refused", "puts_failed")] == [0] * 4, got
    assert asked() == blocks == got["blocks"]
    lru = lru_hits(requests, *changes)
    hits = got["hit_ratio"] * blocks
    print(f"3 nodes of {memory} MiB: {hits:.0f} hits, LRU {lru}: {hits / lru:.3f}; memory {changes}")
    assert hits >= 0.98 * lru


@pytest.mark.pool(nodes=2)
def test_one_object_is_copied_and_moved(pool):
    """Fails if kvpool copy and move bring an object elsewhere than to the node named, wait for ever, or give no reason."""
    assert pool.put("k", b"x" * 100_000).rc == 0

    def places():
        return {c["node"] for c in pool.kvpool("where", "k", "--json").json["found"][0]["copies"]}

    (at,) = places()
    other = "node1" if at == "node2" else "node2"
    assert pool.kvpool("copy", "k", other, "--json").json == {"state": "done"} and places() == {at, other}
    assert pool.kvpool("move", "k", at, other).rc == 0 and places() == {other}
    for words, rc, why in (("copy k node7", 1, "there is no node node7"), ("move k node7 node1", 1, "there is no node node7"),
                           (f"move k {at} {other}", 1, "no copy on the node that it is to leave"), ("copy none node1", 1, "NOT_FOUND"),
                           ("copy k", 2, "1 to 8 nodes"), ("move k node1", 2, "the node that it leaves")):
        got = pool.kvpool(*words.split())
        assert got.rc == rc and why in got.err, got
    assert drain(pool, at).rc == 0
    got = pool.kvpool("copy", "k", at)
    assert got.rc == 1 and "is being drained" in got.err, got
    assert pool.kvpool("node", "drain", other).rc == 0
    got = pool.put("new", b"x", "--deadline", "1500ms")
    assert got.rc == 1 and "2 nodes are draining" in got.err, got
    pool.add_node("small", "16MiB", "--chunk-bytes", "2MiB")
    for name in (other, at):  # the drain of `other` ends before anything can move to `at`
        assert pool.kvpool("node", "undrain", name).rc == 0
    assert pool.put("long", b"x" * (3 * MIB)).rc == 0
    got = pool.kvpool("copy", "long", "small")
    assert got.rc == 1 and "smaller than the object" in got.err, got
    next(n for n in pool.nodes if n.name == at).kill9()
    got = pool.get("k", "--deadline", "20s")
    assert got.out == b"x" * 100_000, got
    silent = next(n for n in pool.nodes if n.name not in places() | {at})
    silent.freeze()
    got = pool.kvpool("copy", "k", silent.name, timeout=30 * SLOW)
    silent.thaw()
    assert got.rc == 1 and "stopped answering" in got.err, got


@pytest.mark.parametrize("keeper", ["none", "auto"])
def test_node_drains_before_it_stops(make_pool, keeper):
    """Fails if a node with --drain-on-stop loses an object at SIGTERM, leaves empty memory to its keeper, or stays in the list."""
    pool = make_pool(nodes=0)
    pool.add_node("node1", "64MiB", "--drain-on-stop", "30s", "--keeper", keeper)
    pool.add_node("node2", "64MiB")
    client = Shell(pool.bench, pool.addr)
    assert fill(pool, client) > 30
    pool.nodes[0].terminate()
    assert "no object is left" in pool.nodes[0].log()
    assert set(segments(pool)) == {"node2"}
    intact(client)
    if keeper == "auto":
        wait_until(lambda: pool.bench.run("kvpool-keeper", "--name", "node1", "--end", "yes").rc == 0, 5, "no keeper")
        assert "stays with its keeper" not in pool.nodes[0].log()


@pytest.mark.pool(nodes=1, node_args=("--drain-on-stop", "1s", "--keeper", "auto", "--keeper-hold", "20s"))
def test_time_for_the_drain_is_over(pool):
    """Fails if the keeper gives memory back that is not drained, or the next process of the node is still drained."""
    client = Shell(pool.bench, pool.addr)
    assert fill(pool, client) == 120
    pool.nodes[0].terminate()
    assert "stays with its keeper" in pool.nodes[0].log()
    assert 'left_objects=120 left_bytes=7864320 why="no other node can take 120 objects' in pool.nodes[0].log()
    pool.nodes[0] = pool.bench.node(pool.master, "node1", "64MiB", "--keeper", "auto")
    pool.nodes[0].wait_log("mounted name=node1")
    # A client that knew the process before may miss objects for a moment.
    after = Shell(pool.bench, pool.addr, "after")
    wait_until(lambda: (got := after("bget a/ 0 120 65536"))["results"] == {"OK": 120} and got["wrong"] == 0, 10, "the objects to be found")
    assert segments(pool)["node1"]["state"] == "up" and segments(pool)["node1"]["drain"] == "none"
    pool.nodes[0].terminate()
    assert pool.bench.run("kvpool-keeper", "--name", "node1", "--end", "yes").rc == 0


@pytest.mark.pool(nodes=1)
def test_engine_with_memory_closes(pool):
    """Fails if objects in the memory of a handle with drain_ms are lost when it is closed, or if a close in vain takes longer."""
    engine = Shell(pool.bench, pool.addr, "engine", memory_bytes=64 * MIB, drain_ms=20000)
    client = Shell(pool.bench, pool.addr)
    assert fill(pool, client) < 120
    assert engine("lookup a/ 0 120 ttl=60000")["found"] == 120
    assert engine("close", timeout=30)["err"] == "OK"
    assert set(segments(pool)) == {"node1"}
    intact(client)

    last = Shell(pool.bench, pool.addr, "last", memory_bytes=64 * MIB, drain_ms=1000)
    pool.nodes[0].terminate()
    assert last("put b/0 4096")["err"] == "OK"
    got = last("close", timeout=30)
    assert got["err"] == "OK" and 900 < got["ms"] < 4000 * SLOW, got


@slow
@pytest.mark.parametrize("path", ["shm", "tcp"])
def test_source_hangs_or_dies_during_a_drain(make_pool, path):
    """Fails if a source that is stopped in the middle of a drain costs more than time, or its death more than what it alone had."""
    node_args = ("--transports", "tcp") if path == "tcp" else ()
    pool = make_pool(nodes=0)
    for i in (1, 2):
        pool.add_node(f"node{i}", "64MiB", *node_args, *(("--host-id", f"host-{i}") if path == "tcp" else ()))
    client = Shell(pool.bench, pool.addr, **PATHS[path])
    had = fill(pool, client, 300, 100000)
    assert drain(pool, "node1", "--rate", "10MB").rc == 0
    wait_until(lambda: segments(pool)["node1"]["objects"] < had, 20, "the drain to move something")
    pool.nodes[0].freeze()
    begun = time.monotonic()
    while time.monotonic() - begun < 2.5:
        assert client("put during/0 1000 upsert=1")["err"] == "OK"
    pool.nodes[0].thaw()
    done = drain(pool, "node1", "--wait", "--rate", "1GB")
    assert done.rc == 0 and done.json["left_objects"] == 0, done
    intact(client, 300, 100000)

    assert drain(pool, "node2", "--rate", "4MB").rc == 0  # node1 is draining as well: nothing moves
    assert pool.kvpool("node", "undrain", "node1").rc == 0
    wait_until(lambda: segments(pool)["node1"]["objects"] > 10, 20, "the drain to move something")
    pool.nodes[1].kill9()
    got = client("bget a/ 0 300 100000 deadline=5000")
    assert got["wrong"] == 0 and set(got["results"]) <= {"OK", "NODE_LOST", "NOT_FOUND"}, got
    assert got["results"]["OK"] >= 10, got
    assert client("bput b/ 0 50 100000")["results"] == {"OK": 50}


@slow
@pytest.mark.limit(90)
def test_target_dies_during_a_drain(make_pool):
    """Fails if the death of a node to which objects move costs more than what it alone had, or ends the drain."""
    pool = make_pool(nodes=3)
    client = Shell(pool.bench, pool.addr)
    assert client("bput a/ 0 600 65536")["results"] == {"OK": 600}
    had = segments(pool)["node1"]["objects"]
    assert drain(pool, "node1", "--rate", "8MB").rc == 0
    wait_until(lambda: segments(pool)["node1"]["objects"] < had * 3 // 4, 30, "a part to be moved")
    pool.nodes[1].kill9()
    done = drain(pool, "node1", "--wait", "--rate", "1GB")
    assert done.rc == 0 and done.json["left_objects"] == 0, done
    pool.nodes[0].kill9()
    at = segments(pool)
    got = client("bget a/ 0 600 65536 deadline=5000")
    assert got["wrong"] == 0 and got["results"]["OK"] == at["node3"]["objects"], (got, at)
    assert 600 - at["node3"]["objects"] <= at["node2"]["objects"], at


@slow
@needs_etcd
@pytest.mark.limit(120)
def test_leader_dies_during_a_drain(bench):
    """Fails if the death of the leader of three masters in the middle of a drain ends the drain, or costs an object."""
    masters = Masters(bench, nodes=2, memory="128MiB")
    masters.wait_insync(3)
    client = Shell(bench, masters.addr, deadline=20000)
    assert client("bput a/ 0 600 65536")["results"] == {"OK": 600}
    had = segments(masters)["node1"]["objects"]
    assert drain(masters, "node1", "--rate", "8MB").rc == 0
    wait_until(lambda: segments(masters)["node1"]["objects"] < had * 3 // 4, 30, "a part to be moved")
    was = masters.wait_leader()
    masters.masters[was].kill9()
    masters.wait_leader(other_than=was)
    wait_until(lambda: segments(masters)["node1"]["state"] == "draining", 20, "the next leader to have the node")
    assert client("bput b/ 0 100 65536")["results"] == {"OK": 100}
    done = drain(masters, "node1", "--wait", "--deadline", "20s")
    assert done.rc == 0 and done.json["left_objects"] == 0, done
    masters.nodes[0].kill9()
    intact(client, 600)
    intact(client, 100, prefix="b/")


@slow
def test_object_larger_than_the_chunks_elsewhere_stays(make_pool):
    """Fails if a drain evicts objects to make room for an object that no other node can take, or does not say that it stays."""
    pool = make_pool(nodes=0)
    pool.add_node("node1", "64MiB", "--chunk-bytes", "32MiB")
    assert pool.put("large", b"x" * (20 * MIB)).rc == 0
    pool.add_node("node2", "64MiB", "--chunk-bytes", "16MiB")
    client = Shell(pool.bench, pool.addr)
    fill(pool, client)
    stuck = pool.kvpool("node", "drain", "node1", "--wait", timeout=60 * SLOW)
    assert stuck.rc == 1 and "no other node" in stuck.err, stuck
    at = segments(pool)
    assert at["node1"]["objects"] == 1 and at["node1"]["stuck_objects"] == 1 and at["node2"]["objects"] == 120, at
    assert figures(pool.master)["evictions"] == 0
    assert len(pool.get("large").out) == 20 * MIB


@slow
@pytest.mark.pool(nodes=12, memory="2MiB")
def test_drain_finds_the_free_memory_of_one_node_in_many(pool):
    """Fails if a drain evicts although one node has room for all, because it looks at some of the others alone."""
    client = Shell(pool.bench, pool.addr)
    assert client("bput a/ 0 384 65536")["results"] == {"OK": 384}
    pool.add_node("new", "16MiB")
    had = segments(pool)
    assert all(s["used_bytes"] == 2 * MIB for name, s in had.items() if name != "new"), had
    for i in range(1, 5):
        done = drain(pool, f"node{i}", "--wait")
        assert done.rc == 0 and done.json["evicted_objects"] == 0 and done.json["moved_objects"] == 32, done
    assert figures(pool.master)["evictions"] == 0 and segments(pool)["new"]["objects"] == 128
    intact(client, 384, 65536)


def fill_ssd(pool, client, rounds=12, size=100_000):
    """Puts so slowly that the SSD of node1 has what leaves memory. Returns how many objects are on the SSD alone."""
    for i in range(rounds):
        assert client(f"bput a/ {i * 20} 20 {size}")["results"] == {"OK": 20}
        wait_until(lambda: figures(pool.master)["demotes"] == figures(pool.master)["demoted"], 10, "the SSD to have them")
    on_ssd = {t["node"]: t["objects"] for t in pool.kvpool("stat", "--json").json["tiers"]}["node1/ssd"]
    assert on_ssd > rounds * 4, on_ssd
    return on_ssd


@slow
def test_objects_on_the_ssd_alone_stay(make_pool):
    """Fails if --keep-ssd moves an object off the SSD, or if an object there is not read during the drain, or after the node's return."""
    pool = make_pool(nodes=0)
    ssd = ("--ssd", f"{pool.bench.home}:256MiB")
    pool.add_node("node1", "16MiB", *ssd)
    client = Shell(pool.bench, pool.addr)
    on_ssd = fill_ssd(pool, client)
    pool.add_node("node2", "64MiB")
    done = drain(pool, "node1", "--wait", "--keep-ssd")
    assert done.rc == 0 and done.json["left_objects"] == 0 and done.json["ssd_objects"] >= on_ssd, done
    assert client("bget a/ 0 5 100000 deadline=10000")["results"] == {"OK": 5}  # of the oldest, which are on the SSD
    pool.nodes[0].kill9()
    pool.nodes[0] = pool.bench.node(pool.master, "node1", "16MiB", *ssd)
    wait_until(lambda: {t["state"] for t in pool.kvpool("stat", "--json").json["tiers"]} == {"up"}, 20, "the tier")
    found = [client(f"get a/{i} 100000 deadline=10000")["err"] for i in range(240)]
    assert set(found) == {"OK"}, found


@pytest.mark.limit(300 if TIER == "long" else 60)
@pytest.mark.parametrize("room", ["memory", "ssd"])
def test_objects_on_the_ssd_alone_are_moved(make_pool, room):
    """Fails if an object that was on the SSD of a drained node alone is lost with the node, in memory or on the SSD of another one,
    or if the progress does not say what is left there.
    """
    rounds, memory = (256, 64) if TIER == "long" else (16, 16)  # objects of 100,000 bytes, 20 a round
    pool = make_pool(nodes=0)
    for name in ("ssd1", "ssd2"):
        os.mkdir(f"{pool.bench.home}/{name}")
    pool.add_node("node1", f"{memory}MiB", "--ssd", f"{pool.bench.home}/ssd1:{rounds * 4 + 256}MiB")
    client = Shell(pool.bench, pool.addr, deadline=20000)
    on_ssd = fill_ssd(pool, client, rounds)
    if room == "memory":
        pool.add_node("node2", f"{rounds * 2 + 64}MiB")
    else:
        pool.add_node("node2", f"{memory}MiB", "--ssd", f"{pool.bench.home}/ssd2:{rounds * 4 + 256}MiB")
        wait_until(lambda: len(pool.kvpool("stat", "--json").json["tiers"]) == 2, 20, "the other SSD")
    begun = drain(pool, "node1", "--rate", "1MB")  # so slowly that the calls below come first
    assert begun.json["with_ssd"] and begun.json["state"] == "running" and begun.json["ssd_objects"] > 0, begun
    row = next(s for s in pool.kvpool("stat", "--json").json["segments"] if s["node"] == "node1")
    assert 0 < row["left_ssd_objects"] <= on_ssd and row["left_ssd_bytes"] == row["left_ssd_objects"] * 100_000, row
    assert re.search(r"^node1: is being drained; left \d+ objects and \d+ on its SSD alone", pool.kvpool("node", "ls").text, re.M)
    done = drain(pool, "node1", "--wait", timeout=200)
    assert done.rc == 0 and done.json["state"] == "done", done
    assert [done.json[left] for left in ("left_objects", "ssd_objects", "ssd_bytes", "evicted_objects")] == [0] * 4, done
    assert done.json["moved_objects"] == rounds * 20, done
    pool.nodes[0].kill9()
    intact(client, rounds * 20, 100_000)
