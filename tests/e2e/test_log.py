# SPDX-License-Identifier: Apache-2.0
"""What was acknowledged outlives the master, by its log: also where the nodes that would tell of it were away."""
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import threading
import time

import pytest

from clients import E2E, PATHS, Shell, figures, slow
from conftest import READY_S, SLOW, TIER, wait_until

LEN = 4096
SHORT = 512  # of objects that are put for as long as it takes
TINY = 64  # of objects of which there are very many
KILLS = 100 if TIER == "long" else 10
AWAY_S = 120 if TIER == "long" else 0  # that a node is away on top of what is done meanwhile
BASE_BYTES = 64 << 20  # of the log, before it is replaced by a base, where that is small


def start(bench, pool, name, *args, timeout=READY_S):
    """The next master of the pool, with its data directory."""
    master = bench.master(*args, listen=pool.master.listen, data_dir=pool.master.data, name=name, ready=False)
    pool.master = master.wait_ready(timeout)


def health(master):
    return json.loads(master.http_get("/health")[1])


def removed_of(shell, keys):
    """Removes them all; each is acknowledged."""
    for key in keys:
        assert shell(f"remove {key} force=1 deadline={5000 * SLOW}")["err"] == "OK", key


@pytest.mark.limit(120)
def test_removals_at_a_node_that_was_given_up(make_pool, bench):
    """Fails if keys whose removal was acknowledged while their node was stopped are served again after that node was given
    up, the master was killed and the node came back.
    """
    forget = 1000 * SLOW
    args = ("--node-forget", f"{forget}ms")
    pool = make_pool(nodes=2, data_dir=f"{bench.home}/data", master_args=args)
    client = Shell(bench, pool.addr, "client", **PATHS["tcp"])
    assert client(f"bput k/ 0 400 {LEN}")["results"] == {"OK": 400}
    stopped = pool.nodes[0]
    stopped.freeze()
    removed_of(client, [f"k/{i}" for i in range(100)])
    wait_until(lambda: figures(pool.master)["segments"] == 1, 60, "the node to be given up")
    time.sleep(1.5 * forget / 1000)
    pool.master.kill9()
    start(bench, pool, "master2", *args)
    stopped.thaw()
    wait_until(lambda: figures(pool.master)["segments"] == 2, 60, "both nodes to be back")
    reader = Shell(bench, pool.addr, "reader", **PATHS["tcp"])
    assert reader("bexist k/ 0 100")["exist"] == 0
    kept = reader("bexist k/ 100 300")["exist"]
    got = reader(f"bget k/ 100 300 {LEN}")
    assert kept > 0 and got["results"].get("OK") == kept and got["wrong"] == 0, got


@pytest.mark.limit(60)
def test_gets_wait_for_nodes_of_a_new_master(make_pool, bench):
    """Fails if, right after a master's restart, a get of what lies at a node that is back 0.5 s later does not wait for it, or if it
    waits until its deadline for one that does not come.
    """
    pool = make_pool(nodes=1, data_dir=f"{bench.home}/data")
    writer = Shell(bench, pool.addr, "writer", **PATHS["tcp"])
    assert writer(f"bput k/ 0 8 {LEN}")["results"] == {"OK": 8}
    pool.master.kill9()
    pool.nodes[0].freeze()
    start(bench, pool, "master2")
    reader = Shell(bench, pool.addr, "reader", **PATHS["tcp"])
    timer = threading.Timer(0.5, pool.nodes[0].thaw)
    timer.start()
    got = reader(f"bget k/ 0 8 {LEN} deadline={20000 * SLOW}")
    timer.join()
    assert got["results"] == {"OK": 8} and got["wrong"] == 0, got
    pool.master.kill9()
    pool.nodes[0].kill9()
    start(bench, pool, "master3")
    begun = time.monotonic()
    late = Shell(bench, pool.addr, "late", **PATHS["tcp"])
    assert late(f"bget k/ 0 8 {LEN} deadline={20000 * SLOW}")["results"] == {"NODE_LOST": 8}
    assert time.monotonic() - begun < 10 * SLOW


@pytest.mark.limit(120)
def test_older_versions_are_never_back(make_pool, bench):
    """Fails if, after removals and upserts that were acknowledged while one of three nodes was stopped, and a kill of the master, a
    removed key or an older version is read at any time while the nodes come back.
    """
    n = 120
    pool = make_pool(nodes=3, data_dir=f"{bench.home}/data")
    client = Shell(bench, pool.addr, "client", **PATHS["tcp"])
    for i in range(2 * n):
        assert client(f"put k/{i} {LEN} version=1")["err"] == "OK"
    pool.nodes[0].freeze()
    removed_of(client, [f"k/{i}" for i in range(n)])
    for i in range(n, 2 * n):
        assert client(f"put k/{i} {LEN} version=2 upsert=1 deadline={5000 * SLOW}")["err"] == "OK"
    pool.master.kill9()
    start(bench, pool, "master2")
    pool.nodes[0].thaw()
    reader = Shell(bench, pool.addr, "reader", **PATHS["tcp"])
    end = None
    while end is None or time.monotonic() < end:
        for i in range(0, 2 * n, 7):
            got = reader(f"get k/{i} {LEN} deadline={2000 * SLOW}")
            assert got["err"] != "OK" or (i >= n and got["version"] == 2), (i, got)
        if end is None and figures(pool.master)["segments"] == 3:
            end = time.monotonic() + 1
    for i in range(n, 2 * n):
        got = reader(f"get k/{i} {LEN}")
        assert got["err"] == "OK" and got["version"] == 2, (i, got)


@pytest.mark.limit(120)
def test_log_of_another_boot(make_pool, bench):
    """Fails if what was removed from a stopped node is back after the master's machine lost its power, or if anything else is
    missing: the end of the log is not to be relied on then, but what it says is gone is.
    """
    pool = make_pool(nodes=2, data_dir=f"{bench.home}/data")
    client = Shell(bench, pool.addr, "client", **PATHS["tcp"])
    assert client(f"bput k/ 0 200 {LEN}")["results"] == {"OK": 200}
    pool.nodes[0].freeze()
    wait_until(lambda: figures(pool.master)["segments"] == 1, 60, "its session to be over, so that no order reaches it")
    removed_of(client, [f"k/{i}" for i in range(50)])
    pool.master.kill9()
    with open(f"{pool.master.data}/log/boot", "w", encoding="ascii") as f:
        f.write("another")
    start(bench, pool, "master2")
    pool.nodes[0].thaw()
    wait_until(lambda: figures(pool.master)["segments"] == 2, 60, "both nodes to have told what they hold")
    pool.master.wait_log("may lack its end")
    reader = Shell(bench, pool.addr, "reader", **PATHS["tcp"])
    assert reader("bexist k/ 0 50")["exist"] == 0
    got = reader(f"bget k/ 50 150 {LEN}")
    assert got["results"] == {"OK": 150} and got["wrong"] == 0, got


class Putter(threading.Thread):
    """Puts keys one after the other, in batches, and knows which of them were acknowledged."""

    def __init__(self, bench, pool):
        super().__init__(daemon=True)
        self.shell = Shell(bench, pool.addr, "putter", **PATHS["shm"])
        self.done = []
        self.n = 0
        self.is_over = False

    def run(self):
        while not self.is_over:
            got = self.shell(f"bput p/{self.n}/ 0 50 {SHORT} deadline={300 * SLOW}")
            if got.get("results") == {"OK": 50}:
                self.done.append(self.n)
            self.n += 1


@pytest.mark.limit(120 + 12 * KILLS)
def test_kills_under_puts(make_pool, bench):
    """Fails if an acknowledged put is missing or wrong, or a removed key is back, after kill -9 of the master, time and again, under a
    stream of puts.
    """
    pool = make_pool(nodes=2, memory=f"{256 + 24 * KILLS}MiB", data_dir=f"{bench.home}/data")
    remover = Shell(bench, pool.addr, "remover", **PATHS["tcp"])
    putter = Putter(bench, pool)
    putter.start()
    removed = []
    for turn in range(KILLS):
        seen = len(putter.done)
        wait_until(lambda: len(putter.done) > seen + 5, 60, "puts to be acknowledged")
        victim = putter.done[seen]
        removed.append(victim)
        removed_of(remover, [f"p/{victim}/{i}" for i in range(5)])
        pool.master.kill9()
        start(bench, pool, f"master{turn + 2}")
    putter.is_over = True
    putter.join(30 * SLOW)
    wait_until(lambda: figures(pool.master)["segments"] == 2, 20, "both nodes to have told what they hold")
    reader = Shell(bench, pool.addr, "reader", **PATHS["shm"])
    for n in putter.done:
        first = 5 if n in removed else 0
        got = reader(f"bget p/{n}/ {first} {50 - first} {SHORT}")
        assert got["results"] == {"OK": 50 - first} and got["wrong"] == 0, (n, got)
    for n in removed:
        assert reader(f"bexist p/{n}/ 0 5")["exist"] == 0
    after = figures(pool.master)
    print(f"{KILLS} kills, {50 * len(putter.done)} puts acknowledged, {putter.n - len(putter.done)} batches cut")
    assert after["log_failed"] == 0 and after["evictions"] == 0


def dir_bytes(path):
    """What the files in a directory take; one may go meanwhile."""
    total = 0
    for name in os.listdir(path):
        with contextlib.suppress(FileNotFoundError):
            total += os.stat(f"{path}/{name}").st_size
    return total


class Churn:
    """Puts batches of new objects, into a full pool, where each evicts another one, or removes them again."""

    BATCH, BYTES = 2000, 1024

    def __init__(self, bench, pool, removes=False):
        self.removes = removes
        self.pool, self.client = pool, Shell(bench, pool.addr, "churn", **PATHS["shm"])
        self.log = f"{pool.master.data}/log"
        self.batches = self.most_bytes = 0

    def until_based(self, puts=0):
        """Goes on until that many objects were put, and after that a base has replaced the log before it."""
        bases = None
        while bases is None or figures(self.pool.master)["log_bases"] == bases:
            if bases is None and self.batches * self.BATCH >= puts:
                bases = figures(self.pool.master)["log_bases"]
            for _ in range(20):
                got = self.client(f"bput e/{self.batches}/ 0 {self.BATCH} {self.BYTES} deadline={30000 * SLOW}")
                assert got["results"] == {"OK": self.BATCH}, got
                self.batches += 1
            if self.removes:
                assert self.client("regex ^e/ force=1")["removed"] == 20 * self.BATCH
            self.most_bytes = max(self.most_bytes, dir_bytes(self.log))
            assert self.batches * self.BATCH < puts + 2_000_000
        wait_until(lambda: len([f for f in os.listdir(self.log) if f.endswith(".log")]) == 1, 20, "files before the base to go")


@pytest.mark.limit(240)
def test_log_does_not_grow_for_ever(make_pool, bench, scaled):
    """Fails if a million puts and evictions leave more of the log than one base and what came since; or if what is there then is
    not found by the next master.
    """
    pool = make_pool(nodes=1, memory="16MiB", data_dir=f"{bench.home}/data")
    churn = Churn(bench, pool)
    churn.until_based(scaled(1_000_000))
    left, puts, n = dir_bytes(churn.log), churn.batches * churn.BATCH, churn.batches
    evictions = figures(pool.master)["evictions"]
    print(f"{puts} puts, {evictions} evictions: {churn.most_bytes} bytes of log at most, {left} in the end")
    assert left < BASE_BYTES // 2 and churn.most_bytes < 2 * BASE_BYTES and evictions > puts - 20000
    live = [churn.client(f"bexist e/{i}/ 0 2000")["exist"] for i in range(n - 5, n)]
    pool.master.kill9()
    start(bench, pool, "master2")
    wait_until(lambda: figures(pool.master)["segments"] == 1, 20, "the node to have told what it holds")
    reader = Shell(bench, pool.addr, "reader", **PATHS["shm"])
    assert [reader(f"bexist e/{i}/ 0 2000")["exist"] for i in range(n - 5, n)] == live and live[-1] > 0


@slow
@pytest.mark.limit(120 + AWAY_S)
def test_removals_at_a_node_that_was_away_over_a_base(make_pool, bench):
    """Fails if of 1,000 objects that were removed while their node was stopped one is served when it is back, or if one of its others is
    not, where meanwhile the master was killed twice and a base replaced the log that told of them.
    """
    args = ("--location-grace", "1s")  # which the next master waits for, because the node cannot say that what is removed is DEAD
    pool = make_pool(nodes=1, master_args=args, data_dir=f"{bench.home}/data")
    client = Shell(bench, pool.addr, "client", **PATHS["tcp"])
    assert client(f"bput k/ 0 3000 {LEN}")["results"] == {"OK": 3000}
    away = pool.nodes[0]
    away.freeze()
    pool.master.kill9()
    start(bench, pool, "master2", *args)  # to which that node never came
    pool.add_node()
    assert client(f"bremove k/ 0 500 force=1 deadline={20000 * SLOW}")["removed"] == 500
    Churn(bench, pool, removes=True).until_based()  # evictions would take what lies at the node that is away, too
    assert client(f"bremove k/ 500 500 force=1 deadline={20000 * SLOW}")["removed"] == 500
    time.sleep(AWAY_S)
    pool.master.kill9()
    start(bench, pool, "master3", *args)
    away.thaw()
    wait_until(lambda: figures(pool.master)["segments"] == 2, 20, "both nodes to have told what they hold")
    reader = Shell(bench, pool.addr, "reader", **PATHS["tcp"])
    got = reader(f"bget k/ 1000 2000 {LEN}")
    assert got["results"] == {"OK": 2000} and got["wrong"] == 0, got
    assert reader("bexist k/ 0 1000")["exist"] == 0


def tiny_objects(bench, pool, n):
    """Puts them, t/0 to t/n-1."""
    filler = Shell(bench, pool.addr, "filler", **PATHS["shm"])
    for i in range(0, n, 4000):
        assert filler(f"bput t/ {i} 4000 {TINY} deadline={30000 * SLOW}")["results"] == {"OK": 4000}
    assert filler.finish() == 0


def unrun_s(pid):
    """How long the process's first thread was ready to run and others had the processor; 0 where the kernel does not tell."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(pathlib.Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    return 0


def random_ones_are_read(bench, pool, n, number):
    """1,000 of them by a client that knows nothing, again and again until all are there; each is right."""
    reader = Shell(bench, pool.addr, f"reader{number}", **PATHS["shm"])

    def is_all():
        got = reader(f"bget t/ 0 1000 {TINY} among={n} seed={number + 1} deadline={5000 * SLOW}")
        assert got.get("wrong", 0) == 0, got
        return got.get("results") == {"OK": 1000}

    wait_until(is_all, 30, "1,000 random keys to be read")
    return reader


@slow
@pytest.mark.limit(600)
@pytest.mark.parametrize("keys, disk, limit_s", [
    (200_000, "kept", 1), (200_000, "gone", 2),
    *([(1_000_000, "kept", 1), (10_000_000, "kept", 10)] if TIER == "long" else []),
])
def test_served_again_in_time(make_pool, bench, keys, disk, limit_s):
    """Fails if 1,000 random keys are not read right within that time of the exec of the next master, or if without its data directory
    not all keys are found within it. The best of three turns counts, without what the master's thread waited for a processor.
    """
    pool = make_pool(nodes=2, memory=f"{64 + keys * 5 // 8 * 256 // (1 << 20)}MiB", data_dir=f"{bench.home}/data")
    tiny_objects(bench, pool, keys)
    turns = []
    while len(turns) < 3 and min(turns, default=limit_s) >= limit_s:
        pool.master.kill9()
        if disk == "gone":
            shutil.rmtree(pool.master.data)
        begun = time.monotonic()
        start(bench, pool, f"master{len(turns) + 2}", timeout=120)
        ready_s, ready_unrun_s = time.monotonic() - begun, unrun_s(pool.master.pid)
        reader = random_ones_are_read(bench, pool, keys, len(turns)) if disk == "kept" else None
        wait_until(lambda: figures(pool.master)["objects"] == keys, 30, "all keys to be known")
        took, unrun = time.monotonic() - begun, unrun_s(pool.master.pid)
        turns.append(took - unrun)
        print(f"{keys} keys, data directory {disk}: ready after {ready_s:.2f} s, served after {took:.2f} s; "
              f"{ready_unrun_s:.2f} s and {unrun:.2f} s of these the master waited for a processor")
        reader = reader or random_ones_are_read(bench, pool, keys, len(turns))
        assert sum(reader(f"bexist t/ {i} 4000")["exist"] for i in range(0, min(keys, 1_000_000), 4000)) == min(keys, 1_000_000)
        wait_until(lambda: figures(pool.master)["segments"] == 2, 60, "both nodes to have told what they hold")
    assert min(turns) < limit_s * SLOW, turns


def put_until_it_fails(client, master):
    """The numbers of those keys f/0, f/1, ... that were acknowledged before the master said that it cannot write its log."""
    acknowledged, n = [], 0
    while health(master)["log"] == "ok":
        err = client(f"put f/{n} {LEN} deadline={20000 * SLOW}")["err"]
        assert err in ("OK", "LOG_FAILED"), err
        if err == "OK":
            acknowledged.append(n)
        n += 1
        assert n < 1000
    return acknowledged


def check_nothing_is_promised(client):
    """Puts and removals are refused long before their deadline, while k/20 to k/99 are read."""
    begun = time.monotonic()
    assert client(f"put late {LEN} deadline={20000 * SLOW}")["err"] == "LOG_FAILED"
    assert client(f"remove k/20 deadline={20000 * SLOW}")["err"] == "LOG_FAILED"
    assert time.monotonic() - begun < 10 * SLOW
    got = client(f"bget k/ 20 80 {LEN}")
    assert got["results"] == {"OK": 80} and got["wrong"] == 0, got


def check_it_is_shown(bench, pool, cause):
    """The state of the log is in /health, stat and doctor."""
    shown = health(pool.master)
    assert shown["status"] == "degraded" and any(cause in why and pool.master.data in why for why in shown["why"]), shown
    stat = bench.run("kvpool", "stat", "--master", pool.addr)
    assert stat.rc == 0 and b"the master cannot write its log" in stat.out, stat
    doctor = bench.run("kvpool", "doctor", "--master", pool.addr)
    assert b"the master cannot write its log" in doctor.out, doctor


def check_all_is_there(client, acknowledged):
    for key in ["new", *(f"f/{i}" for i in acknowledged), *(f"k/{i}" for i in range(30, 100))]:
        got = client(f"get {key} {LEN}")
        assert got["err"] == "OK" and got["intact"], (key, got)


@slow
@pytest.mark.limit(120)
@pytest.mark.parametrize("how", ["write", "sync"])
def test_disk_that_fails(make_pool, bench, monkeypatch, how):
    """Fails if a master stops whose log can be written no more, or synced, promises what it cannot keep, does not say so, loses what it
    acknowledged when it is killed then, or does not go on when the disk is well again.
    """
    data = f"{bench.home}/data"
    switch = pathlib.Path(f"{data}/eio-{how}")
    monkeypatch.setenv("LD_PRELOAD", str(E2E / "e2e_eio.so"))
    monkeypatch.setenv("E2E_EIO", data)
    pool = make_pool(nodes=1, data_dir=data)
    client = Shell(bench, pool.addr, "client", **PATHS["tcp"])
    assert client(f"bput k/ 0 100 {LEN}")["results"] == {"OK": 100}
    removed_of(client, [f"k/{i}" for i in range(20)])
    switch.touch()
    acknowledged = put_until_it_fails(client, pool.master)
    check_nothing_is_promised(client)
    pool.master.wait_log("the log cannot be written: Input/output error")
    assert pool.master.log().count("the log cannot be written: Input/output error") == 1
    pool.master.kill9()
    start(bench, pool, "master2")
    wait_until(lambda: health(pool.master)["log"] == "failed", 20, "the next master to find the disk as bad")
    assert client(f"put late {LEN} deadline={200 * SLOW}")["err"] != "OK"
    switch.unlink()
    wait_until(lambda: health(pool.master)["log"] == "ok", 20, "the log to be written again")
    pool.master.wait_log("the log is written again")
    assert pool.master.log().count("the log is written again") == 1
    assert client(f"put new {LEN}")["err"] == "OK"
    removed_of(client, [f"k/{i}" for i in range(20, 30)])
    check_all_is_there(client, acknowledged)
    pool.master.kill9()
    start(bench, pool, "master3")
    wait_until(lambda: figures(pool.master)["segments"] == 1, 20, "the node to have told what it holds")
    check_all_is_there(client, acknowledged)
    assert client("bexist k/ 0 30")["exist"] == 0


@pytest.mark.limit(120)
@pytest.mark.parametrize("how", ["write", "sync"])
def test_disk_that_hangs(make_pool, bench, monkeypatch, how):
    """Fails if a master whose log disk hangs stops answering gets, look-ups, stat or /health, makes puts and removals wait, does not name the
    disk, does not go on when the disk answers again, does not end at SIGTERM, or loses what it acknowledged.
    """
    data = f"{bench.home}/data"
    switch = pathlib.Path(f"{data}/stall-{how}")
    monkeypatch.setenv("LD_PRELOAD", str(E2E / "e2e_eio.so"))
    monkeypatch.setenv("E2E_EIO", data)
    pool = make_pool(nodes=1, data_dir=data)
    client, writer = (Shell(bench, pool.addr, name, **PATHS["tcp"]) for name in ("client", "writer"))
    assert client(f"bput k/ 0 100 {LEN}")["results"] == {"OK": 100}
    acknowledged = []
    for is_last in (False, True):
        switch.touch()
        late = threading.Thread(target=lambda: writer(f"remove k/{int(is_last)} deadline={30000 * SLOW}", timeout=40 * SLOW), daemon=True)  # noqa: B023
        late.start()
        wait_until(lambda: is_served(client, pool) and health(pool.master)["log"] == "failed", 20, "the disk to be given up")
        late.join(15 * SLOW)
        assert not late.is_alive()
        check_nothing_is_promised(client)
        check_it_is_shown(bench, pool, "its disk does not answer")
        assert is_served(client, pool)
        if is_last:
            break
        switch.unlink()
        wait_until(lambda: health(pool.master)["log"] == "ok", 20, "the log to be written again")
        pool.master.wait_log("the log is written again")
        assert health(pool.master)["status"] == "ok" and client(f"put new {LEN}")["err"] == "OK"
        for i in range(100):
            assert client(f"put f/{i} {LEN}")["err"] == "OK"
            acknowledged.append(i)
    pool.master.terminate()
    pool.master.killed = True  # it could not end as it should
    switch.unlink()
    start(bench, pool, "master2")
    wait_until(lambda: figures(pool.master)["segments"] == 1, 20, "the node to have told what it holds")
    check_all_is_there(client, acknowledged)


def is_served(client, pool):
    """Gets, look-ups, the pool's status and /health are answered: none waits for the disk, which hangs for as long as the test wants."""
    answers = [lambda: client(f"get k/50 {LEN}")["err"] == "OK", lambda: client("bexist k/ 30 70")["exist"] == 70,
               lambda: client("stat"), lambda: health(pool.master)["status"] in ("ok", "degraded")]
    for answer in answers:
        begun = time.monotonic()
        assert answer()
        assert time.monotonic() - begun < 4 * SLOW
    return True


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system, which wants root")
@pytest.mark.limit(120)
def test_disk_is_full(make_pool, bench):
    """Fails if a master whose disk is full stops, promises what it cannot keep, does not say so, or does not go on when there is
    room again.
    """
    data = f"{bench.home}/data"
    os.mkdir(data)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", data], check=True)
    try:
        pool = make_pool(nodes=1, data_dir=data)
        client = Shell(bench, pool.addr, "client", **PATHS["tcp"])
        assert client(f"bput k/ 0 100 {LEN}")["results"] == {"OK": 100}
        with open(f"{data}/filler", "wb", buffering=0) as f:
            fill(f)
        acknowledged = put_until_it_fails(client, pool.master)
        check_nothing_is_promised(client)
        check_it_is_shown(bench, pool, "No space left on device")
        pool.master.wait_log("the log cannot be written: No space left on device")
        assert pool.master.log().count("the log cannot be written: No space left on device") == 1
        os.unlink(f"{data}/filler")
        wait_until(lambda: health(pool.master)["log"] == "ok", 20, "the log to be written again")
        assert health(pool.master)["status"] == "ok" and health(pool.master)["why"] == []
        assert client(f"put new {LEN}")["err"] == "OK"
        pool.master.kill9()
        start(bench, pool, "master2")
        wait_until(lambda: figures(pool.master)["segments"] == 1, 20, "the node to have told what it holds")
        check_all_is_there(client, acknowledged)
    finally:
        for daemon in [*pool.nodes, pool.master]:
            daemon.terminate()
        subprocess.run(["umount", data], check=True)


def fill(f):
    """Until nothing fits any more."""
    block = b"\0" * 4096
    try:
        while True:
            f.write(block)
    except OSError:
        pass


def test_log_of_another_pool(make_pool, bench):
    """Fails if a master takes the log of another pool for its own, or does not say what to do."""
    pool = make_pool(nodes=1, data_dir=f"{bench.home}/a")
    assert Shell(bench, pool.addr, "client")(f"put k {LEN}")["err"] == "OK"
    pool.master.terminate()
    other = make_pool(nodes=1, data_dir=f"{bench.home}/b")
    assert Shell(bench, other.addr, "client2")(f"put k {LEN}")["err"] == "OK"
    other.master.terminate()
    shutil.rmtree(f"{bench.home}/b/log")
    shutil.copytree(f"{bench.home}/a/log", f"{bench.home}/b/log")
    r = bench.run("kvpool-master", "--listen", "127.0.0.1:0", "--http", "none", "--data-dir", f"{bench.home}/b")
    assert r.rc == 1 and "cannot use the log: it belongs to another pool; remove the directory to begin with an empty log" in r.err, r


@pytest.mark.parametrize("damage", ["cut", "flipped", "garbage", "early"])
def test_damaged_log(make_pool, bench, damage):
    """Fails if a master does not start with a log whose last bytes are cut, flipped or garbage, or with a flipped byte where a piece that is
    read ends; or if it serves wrong bytes then, or takes damage for the end that a kill may cut, and so loses what was acknowledged."""
    pool = make_pool(nodes=1, data_dir=f"{bench.home}/data")
    client = Shell(bench, pool.addr, "client", **PATHS["tcp"])
    n, length = (9000, SHORT) if damage == "early" else (100, LEN)
    assert client(f"bput k/ 0 {n} {length}")["results"] == {"OK": n}
    pool.master.kill9()
    log = f"{bench.home}/data/log"
    path = f"{log}/{max(f for f in os.listdir(log) if f.endswith('.log'))}"
    with open(path, "r+b") as f:
        size = f.seek(0, os.SEEK_END)
        if damage == "cut":
            f.truncate(size - 7)
        elif damage == "garbage":
            f.write(os.urandom(5000))
        else:
            at = size - 30 if damage == "flipped" else (1 << 20) - 500
            f.seek(at)
            byte = f.read(1)[0]
            f.seek(at)
            f.write(bytes([byte ^ 4]))
    start(bench, pool, "master2")
    pool.master.wait_log("the log was torn and is cut")
    wait_until(lambda: figures(pool.master)["segments"] == 1, 20, "the node to have told what it holds")
    got = client(f"bget k/ 0 {n} {length}")
    assert got["results"].get("OK") == n and got["wrong"] == 0, got
