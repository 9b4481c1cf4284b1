# SPDX-License-Identifier: Apache-2.0
"""Writers that die, or stop and come back, in the middle of a put: the key is free at once, the space comes back once
nothing of the writer can land any more, and nothing leaks.
"""
import random
import time

import pytest

from clients import DEADLINE_MS, PATHS, Board, Load, Shell, extent_bytes, figures, settled, slow
from conftest import RDMA, SAN, SLOW, TIER, wait_until

MIB = 1 << 20
ROUNDS = (500 if TIER == "long" else 24) // (2 if SAN else 1)

paths = pytest.mark.parametrize("path", sorted(PATHS))


def put_at_once(client, key, length, **words):
    """Puts a key of a writer that has just died: OK within four seconds, however often it has to be asked until then."""
    end = time.monotonic() + 4.0 * SLOW
    line = " ".join([f"put {key} {length} deadline={5000 * SLOW}"] + [f"{k}={v}" for k, v in words.items()])
    while True:
        asked = time.monotonic()
        got = client(line)
        if got["err"] == "OK":
            return
        assert got["err"] == "IN_PROGRESS", got
        assert asked < end, f"{key} was still {got['err']} four seconds after its writer died"


@slow
@pytest.mark.pool(nodes=2, memory="32MiB")
@pytest.mark.limit(180)
@paths
@pytest.mark.parametrize("fill", ["empty", "full"])
def test_killed_at_any_time(pool, path, fill):
    """Fails if a key of a killed writer cannot be put again within four seconds, if its value is not whole then, or if
    after 5 s attempts, quarantine or space that no object accounts for are left; in a pool that is full as in an empty
    one. Also fails if the rounds hardly ever hit a put under way: then they would show nothing.
    """
    rng = random.Random(5)
    watcher = Shell(pool.bench, pool.addr, **PATHS[path])
    if fill == "full":
        for i in range(6):
            assert watcher(f"bput filler/{i}/ 0 16 {MIB}")["results"] == {"OK": 16}
    aborts = figures(pool.master)["aborts"]
    for n in range(4 * ROUNDS):
        if n >= ROUNDS and figures(pool.master)["aborts"] - aborts >= ROUNDS // 4:
            break  # on a busy machine it takes more rounds until enough writers were caught
        board = Board(pool.bench, 1, name=f"board{n}")
        writer = Load(pool.bench, pool.addr, "writer", prefix=f"{n}/", putters=1, batch=4, **board.options,
                      min_bytes=2 * MIB, max_bytes=2 * MIB, **PATHS[path]).ready()
        time.sleep(rng.uniform(0, 0.5 if RDMA else 0.05))  # by rdma it takes a while until the first bytes move
        writer.kill9()
        first = board.begun(0)
        for i in range(first, first + 4):
            put_at_once(watcher, f"{n}/s0/{i}", 2 * MIB)
            got = watcher(f"get {n}/s0/{i} {2 * MIB}")
            assert got["intact"], got
        if fill == "empty":
            assert watcher("all force=1")["err"] == "OK"
        settled(pool.master, f"round {n} to leave nothing", used_bytes=0 if fill == "empty" else None)
    assert figures(pool.master)["aborts"] - aborts >= ROUNDS // 4, "the writers were hardly ever caught in a put"
    assert watcher("all force=1")["err"] == "OK"
    settled(pool.master, "an empty pool in the end", used_bytes=0)
    stat = pool.kvpool("stat", "--json").json["pool"]
    assert stat["used_bytes"] == stat["quarantine_bytes"] == stat["attempts"] == stat["objects"] == 0, stat


@pytest.mark.pool(nodes=1, memory="32MiB")
@paths
@pytest.mark.parametrize("stuck_at", [0, 3 * MIB + 12345, 8 * MIB - 1])
def test_killed_at_this_byte(pool, path, stuck_at):
    """Fails if, with a writer stuck at the first byte, in the middle or at the last byte of its value, another one gets
    anything but IN_PROGRESS, or DEADLINE, while it lives, or cannot put the key at once when it is dead; or if the space of the dead
    attempt is not given back within 5 s.
    """
    writer = Shell(pool.bench, pool.addr, "writer", **PATHS[path])
    other = Shell(pool.bench, pool.addr, "other", **PATHS[path])
    writer.stuck(f"put k {8 * MIB} stuck_at={stuck_at}")
    assert other(f"put k {MIB} version=2 deadline=1500")["err"] in ("IN_PROGRESS", "DEADLINE")
    assert other("get k 100")["err"] == "NOT_FOUND", "an unfinished put is invisible"
    assert figures(pool.master)["attempts"] == 1
    writer.kill9()
    put_at_once(other, "k", MIB, version=2)
    got = other(f"get k {MIB}")
    assert got["intact"] and got["version"] == 2, got
    settled(pool.master, used_bytes=extent_bytes(MIB))


@pytest.mark.pool(nodes=1, memory="32MiB")
def test_space_of_many_dead_writers(pool):
    """Fails if writers that hold most of the pool keep others from putting into the rest, or if what they held is not
    usable again after they were killed: then the pool could not hold again what fits into it.
    """
    writers = [Shell(pool.bench, pool.addr, f"writer{i}", **PATHS["shm" if i % 2 else "tcp"]) for i in range(4)]
    other = Shell(pool.bench, pool.addr, "other")
    for i, writer in enumerate(writers):
        writer.stuck(f"put big{i} {6 * MIB} stuck_at={i * MIB}")
    for i in range(20):
        assert other(f"put small{i} {2 * MIB}")["err"] == "OK", "8 MiB of the pool are nobody's"
    for writer in writers:
        writer.kill9()
    for i in range(4):
        put_at_once(other, f"big{i}", 6 * MIB)
    settled(pool.master)
    assert other("all force=1")["err"] == "OK"
    settled(pool.master, used_bytes=0)
    assert other(f"bput again/ 0 15 {2 * MIB}")["results"] == {"OK": 15}
    assert other("bexist again/ 0 15")["exist"] == 15, "30 of 32 MiB fit without an eviction"
    assert other("bexist big 0 4")["exist"] == 0


@slow
@pytest.mark.pool(nodes=1, memory="32MiB")
@pytest.mark.limit(90)
@paths
def test_stopped_writer_comes_back(pool, path):
    """Fails if bytes of a writer that was stopped for longer than its session, and goes on after its key and space were
    given to others, are ever seen; if its space is reused while the process could still store there (shared memory: it
    must stay in quarantine); or if the quarantine does not end once the writer, alive, has said that it is done.
    """
    writer = Shell(pool.bench, pool.addr, "writer", **PATHS[path])
    other = Shell(pool.bench, pool.addr, "other", **PATHS[path])
    writer.stuck(f"put k {8 * MIB} version=1 stuck_at={3 * MIB}")
    expired = figures(pool.master)["sessions_expired"]
    writer.freeze()
    wait_until(lambda: figures(pool.master)["sessions_expired"] > expired, 20, "its session to expire")
    put_at_once(other, "k", 4 * MIB, version=2)
    for i in range(40):
        assert other(f"put filler/{i} {MIB} version={i}")["err"] == "OK", "the rest of the pool goes on"
    if path == "shm":
        assert figures(pool.master)["quarantine_bytes"] == 8 * MIB, "a live process can still store into it"
    else:
        settled(pool.master, "tcp's proof: its connections are closed")
    assert other("remove k force=1")["err"] in ("OK", "NOT_FOUND")
    put_at_once(other, "k", 4 * MIB, version=3)

    writer.thaw()
    late = writer.unstick()
    assert late["err"] in ("OK", "ABORTED", "DEADLINE", "NODE_LOST"), late
    got = other(f"get k {4 * MIB}")
    assert got["err"] == "OK" and got["intact"] and got["version"] == 3, got
    for i in range(40):
        got = other(f"get filler/{i} {MIB}")
        assert got["err"] == "NOT_FOUND" or (got["intact"] and got["version"] == i), got
    settled(pool.master, "the writer's word that nothing is under way", 10)
    assert writer("put alive 100000")["err"] == "OK", "the writer itself goes on"
    assert other("get alive 100000")["intact"]


def stop_beyond_its_session(pool, writer, key, deadline=DEADLINE_MS):
    """Stops a writer over shared memory in the middle of a put, for longer than its session lasts."""
    writer.stuck(f"put {key} {8 * MIB} version=1 stuck_at={3 * MIB} deadline={deadline}")
    expired = figures(pool.master)["sessions_expired"]
    writer.freeze()
    wait_until(lambda: figures(pool.master)["sessions_expired"] > expired, 20, "its session to expire")
    assert figures(pool.master)["quarantine_bytes"] == 8 * MIB, "a live process can still store into it"


@slow
@pytest.mark.pool(nodes=1, memory="32MiB")
@pytest.mark.limit(90)
def test_stopped_writer_with_a_view(pool):
    """Fails if the quarantine of a writer that lost its session in the middle of a put lasts for as long as it keeps
    looking at an object that it had found in that session; if that object is not where it was any more, or if its view is
    not presented again in the next session.
    """
    writer = Shell(pool.bench, pool.addr, "writer", **PATHS["shm"])
    assert writer("put seen 100000 version=7")["err"] == "OK"
    assert writer("view seen")["err"] == "OK"
    stop_beyond_its_session(pool, writer, "k")
    writer.thaw()
    assert writer.unstick()["err"] in ("OK", "ABORTED", "DEADLINE", "NODE_LOST")
    settled(pool.master, "the writer's word that nothing is under way", 10)
    assert writer("look seen")["intact"], "the memory stays where it was"
    wait_until(lambda: figures(pool.master)["held_bytes"] > 0, 10, "the view to be presented")
    assert writer("unview")["err"] == "OK"


@slow
@pytest.mark.pool(nodes=1, memory="32MiB")
@pytest.mark.limit(90)
def test_stopped_writer_closes_without_a_master(pool):
    """Fails if a process that lost its session in the middle of a put, and then closes its handle while no master
    answers, does not tell the node that it is done once it has another handle: its space would be lost until it ends.
    """
    writer = Shell(pool.bench, pool.addr, "writer", **PATHS["shm"])
    # The put is over when it goes on: one that looked for a master as long as the node does would let the node give it up first.
    stop_beyond_its_session(pool, writer, "k", deadline=5000)
    pool.master.freeze()
    writer.thaw()
    assert writer.unstick()["err"] in ("ABORTED", "DEADLINE", "NODE_LOST")
    assert writer("close")["ms"] < 2500 * SLOW, "not even for the Hello that is under way"
    writer("free")
    pool.master.thaw()
    assert figures(pool.master)["quarantine_bytes"] == 8 * MIB, "nobody has given the word yet"
    words = " ".join(f"{name}={value}" for name, value in PATHS["shm"].items())
    assert writer(f"open master={pool.addr} {words}")["err"] == "OK"
    settled(pool.master, "the word of the process's next handle", 10)
