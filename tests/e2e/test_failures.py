# SPDX-License-Identifier: Apache-2.0
"""Rows of the failure table that need long silence or exhaustion: a writer stopped for a minute while the pool is full
and busy, gets cut by their deadline whose buffers are watched afterwards, clients that do nothing but probe, a node
that stands still in the middle of answers, and processes without a descriptor left.
"""
import resource
import statistics
import time

import pytest

import rawwire as w
from clients import PATHS, Board, Load, Shell, extent_bytes, figures, settled, slow, work
from conftest import SLOW, TIER, wait_until

MIB = 1 << 20
PRESSURE_S = 60 if TIER == "long" else 5
POISON_S = 2.0

paths = pytest.mark.parametrize("path", sorted(PATHS))


def stop_in_the_middle(pool, key, length):
    """A writer over shared memory, stopped with half of its value copied."""
    writer = Shell(pool.bench, pool.addr, "writer", **PATHS["shm"])
    writer.stuck(f"put {key} {length} version=1 stuck_at={length // 2}")
    writer.freeze()
    return writer


def put_until(client, line, timeout):
    """Puts as soon as the key is nobody's, and returns how long that took."""
    begun = time.monotonic()
    while True:
        got = client(f"{line} deadline={1000 * SLOW}")
        if got["err"] == "OK":
            return time.monotonic() - begun
        assert got["err"] == "IN_PROGRESS", got
        assert time.monotonic() - begun < timeout * SLOW, f"still {got['err']} after {timeout} s"
        time.sleep(0.05)


def press(pool, name, seconds):
    """Keeps the pool full and turning over, with readers that check every byte, and returns what they saw."""
    board = Board(pool.bench, 2, name=f"board-{name}")
    common = dict(batch=4, min_bytes=4096, max_bytes=MIB, window=40, **board.options)
    loads = [Load(pool.bench, pool.addr, f"{name}-{path}", prefix=f"{name}/", putters=1, getters=1, stream_base=i,
                  **common, **PATHS[path]).ready() for i, path in enumerate(sorted(PATHS))]
    work(seconds, *(lambda load=load: load.done() > 20 for load in loads))
    return [load.stop() for load in loads]


@slow
@pytest.mark.pool(nodes=1, memory="48MiB")
@pytest.mark.limit(60 + 2 * PRESSURE_S)
@pytest.mark.parametrize("end", ["resumed", "killed"])
def test_stopped_writer_under_pressure(pool, end):
    """Fails if the key of a writer that was stopped in the middle of its copy cannot be put by another within six
    seconds; if, with the pool full and turning over all that time, its space is given to anyone (shared memory:
    it can still store there), or a put is refused because of it; if after SIGCONT a wrong byte is ever read; or if,
    killed instead, its space is not back within a second.
    """
    writer = stop_in_the_middle(pool, "k", 8 * MIB)
    other = Shell(pool.bench, pool.addr, "other", **PATHS["shm"])
    put_until(other, f"put k {4 * MIB} version=2", 6)
    for got in press(pool, "one", PRESSURE_S):
        assert got["wrong"] == 0, got["first_wrong"]
        assert set(got["results"]) <= {"OK", "NOT_FOUND", "STALE"}, got["results"]
        assert got["results"]["OK"] > 20, got["results"]
    now = figures(pool.master)
    assert now["quarantine_bytes"] == extent_bytes(8 * MIB), "a live process can still store into it"
    assert now["evictions"] > 0 and now["put_no_space"] == 0, now

    if end == "killed":
        writer.kill9()
        settled(pool.master, "the space of the dead writer", 1.0)
        return
    writer.thaw()
    late = writer.unstick()
    assert late["err"] in ("OK", "ABORTED", "DEADLINE", "NODE_LOST"), late
    for got in press(pool, "two", PRESSURE_S / 4):
        assert got["wrong"] == 0, got["first_wrong"]
    got = other(f"get k {8 * MIB}")
    assert got["err"] == "NOT_FOUND" or (got["intact"] and got["version"] == 2), got
    settled(pool.master, "the writer's word that nothing is under way", 10)


@slow
@pytest.mark.pool(nodes=1, memory="64MiB", node_args=("--chunk-bytes", "64MiB"))
@paths
def test_cut_gets_leave_their_buffer_alone(pool, path):
    """Fails if a byte of a buffer changes after the get that its deadline cut has returned: each is poisoned at once
    and compared 2 s later; or if no get was cut, which would show nothing.
    """
    readers = [Shell(pool.bench, pool.addr, f"reader{i}", **PATHS[path]) for i in range(6)]
    assert readers[0](f"put big {32 * MIB}")["err"] == "OK"
    cut, took_ms = 0, []
    for turn in range(3):
        for i, reader in enumerate(readers):
            assert reader(f"get big {32 * MIB}")["err"] == "OK", "with time enough"
            for _ in range(20):
                got = reader(f"get big {32 * MIB} deadline={1 + (i + turn) % 4}")
                assert got["err"] in ("OK", "DEADLINE", "NODE_LOST"), got
                took_ms.append(got["ms"])
                if got["err"] != "OK":
                    cut += 1
                    break
        time.sleep(POISON_S)
        for reader in readers:
            assert reader("untouched")["untouched"], f"{reader.name}: written to after the call had returned"
    assert cut >= 6, f"{cut} gets were cut"
    assert sorted(took_ms)[-4] < 250 * SLOW, took_ms  # the machine may have stood still for some


@slow
@pytest.mark.pool(nodes=1, memory="64MiB", node_args=("--chunk-bytes", "64MiB"))
def test_node_stands_still_in_an_answer(pool):
    """Fails if a get over TCP whose node is stopped in the middle outlives its deadline, or if what the node still
    sends when it goes on reaches the buffer.
    """
    reader = Shell(pool.bench, pool.addr, "reader", **PATHS["tcp"])
    assert reader(f"put big {32 * MIB}")["err"] == "OK"
    cut, took_ms = 0, []
    while cut < 3 and len(took_ms) < 12:
        reader.say(f"get big {32 * MIB} deadline={400 * SLOW}")
        time.sleep(0.004)
        pool.nodes[0].freeze()
        got = reader.hear()
        took_ms.append(got["ms"])
        pool.nodes[0].thaw()
        cut += got["err"] != "OK"
        time.sleep(POISON_S / 2)
        assert reader("untouched")["untouched"], "written to after the call had returned"
        wait_until(lambda: reader(f"get big {32 * MIB} deadline={2000 * SLOW}")["err"] == "OK", 10, "it to be served")
    assert cut >= 1, "every get was faster than the signal"
    assert statistics.median(took_ms) < (400 + 250) * SLOW, took_ms


@pytest.mark.pool(nodes=8, memory="16MiB")
def test_many_silent_nodes_do_not_add_up(pool):
    """Fails if a get by TCP from eight nodes that are all stopped returns later than its deadline and what one of them
    may take: each used to add 5 ms.
    """
    reader = Shell(pool.bench, pool.addr, "reader", **PATHS["tcp"])
    assert reader("bput k/ 0 64 50000")["results"] == {"OK": 64}
    late_ms = []
    for _ in range(4):
        wait_until(lambda: reader("bget k/ 0 64 50000")["results"] == {"OK": 64}, 10, "connections to all nodes")
        for node in pool.nodes:
            node.freeze()
        got = reader(f"bget k/ 0 64 50000 deadline={200 * SLOW}")
        for node in pool.nodes:
            node.thaw()
        assert "OK" not in got["results"], got
        late_ms.append(got["ms"] - 200 * SLOW)
    assert min(late_ms) < 20 * SLOW, late_ms


@pytest.mark.pool(nodes=1, memory="32MiB")
def test_probing_refuses_nobody(pool):
    """Fails if clients that ask for everything all the time, and do nothing else, make a put fail or wait."""
    writer = Shell(pool.bench, pool.addr, "writer")
    probers = [Shell(pool.bench, pool.addr, f"prober{i}") for i in range(3)]
    assert writer("bput old/ 0 28 1048576")["results"] == {"OK": 28}
    took_ms = []
    for i in range(90):
        for prober in probers:
            assert prober("bexist old/ 0 28")["err"] == "OK"
            assert prober(f"bexist new/ {max(0, i - 27)} 28")["err"] == "OK"
        got = writer(f"put new/{i} {MIB}")
        assert got["err"] == "OK", got
        took_ms.append(got["ms"])
    assert sorted(took_ms)[-4] < 1000 * SLOW, took_ms
    now = figures(pool.master)
    assert now["put_no_space"] == 0 and now["put_retry_after"] == 0, now


@pytest.mark.pool(nodes=1, memory="32MiB")
def test_probing_keeps_no_put_from_staying(pool):
    """Fails if what is put while somebody asks for everything else again and again is evicted by the next put."""
    writer, prober = (Shell(pool.bench, pool.addr, name) for name in ("writer", "prober"))
    assert writer("bput old/ 0 28 1048576")["results"] == {"OK": 28}
    assert writer(f"bput more/ 0 8 {MIB}")["results"] == {"OK": 8}  # it is full
    for i in range(40):
        assert prober("bexist old/ 0 28")["err"] == "OK"
        assert prober("bexist more/ 0 8")["err"] == "OK"
        assert writer(f"put new/{i} {MIB}")["err"] == "OK"
        got = writer(f"bget new/ {max(0, i - 2)} {min(3, i + 1)} {MIB}")
        assert got["results"] == {"OK": min(3, i + 1)} and got["wrong"] == 0, got


# ---- descriptors


def limit_descriptors(pid, spare):
    """Leaves a running process that many descriptors, and returns the limit that it had."""
    had = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (w.open_descriptors(pid) + spare, had[1]))
    return had


@slow
@pytest.mark.pool(nodes=1, memory="32MiB")
@pytest.mark.parametrize("who", ["master", "node"])
def test_no_descriptor_left(pool, who):
    """Fails if a daemon whose descriptors are used up by strangers stops serving those it serves, spins on its
    listener, ends, or does not take newcomers again once the strangers are gone.
    """
    daemon = pool.master if who == "master" else pool.nodes[0]
    client = Shell(pool.bench, pool.addr, "client", **PATHS["tcp"])
    assert client("bput k/ 0 8 100000")["results"] == {"OK": 8}
    had = limit_descriptors(daemon.pid, 4)
    strangers = [w.Raw(daemon.listen) for _ in range(16)]
    try:
        begun, cpu = time.monotonic(), cpu_s(daemon.pid)
        while time.monotonic() - begun < 2:
            got = client("bget k/ 0 8 100000")
            assert got["results"] == {"OK": 8} and got["wrong"] == 0, got
            assert client("put again 100000")["err"] in ("OK", "ALREADY")
            time.sleep(0.1)
        assert cpu_s(daemon.pid) - cpu < (time.monotonic() - begun) / 2 * SLOW, "it spins on what it cannot accept"
    finally:
        for raw in strangers:
            raw.sock.close()
    newcomer = Shell(pool.bench, pool.addr, "newcomer", is_open=False)
    wait_until(lambda: newcomer(f"open master={pool.addr} transports=tcp deadline=2000")["err"] == "OK", 10, "room")
    wait_until(lambda: newcomer("get k/1 100000")["err"] == "OK", 10, "a newcomer to be served")
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, had)


def cpu_s(pid):
    """Processor seconds that the process has used."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


@pytest.mark.pool(nodes=1, memory="32MiB")
@paths
def test_client_without_descriptors(pool, path):
    """Fails if a client that cannot open anything more hangs, crashes, or gives a wrong byte instead of an error; or
    if it does not work again as soon as it has descriptors.
    """
    writer = Shell(pool.bench, pool.addr, "writer")
    assert writer("bput k/ 0 8 100000")["results"] == {"OK": 8}
    client = Shell(pool.bench, pool.addr, "poor", **PATHS[path])
    had = limit_descriptors(client.pid, 0)
    failed = 0
    for i in range(4):
        got = client(f"get k/{i} 100000 deadline=500")
        failed += got["err"] != "OK"
        assert got["err"] in ("NODE_LOST", "SYS", "DEADLINE", "UNREACHABLE", "OK", "LIMIT"), got
        assert got["err"] != "OK" or got["intact"], got
        assert got["ms"] < 3500 * SLOW, got
    assert failed > 0, "nothing had to be opened"
    resource.prlimit(client.pid, resource.RLIMIT_NOFILE, had)
    wait_until(lambda: client("get k/1 100000")["err"] == "OK", 10, "the client to work again")
    assert client("get k/2 100000")["intact"]
