# SPDX-License-Identifier: Apache-2.0
"""What was acknowledged outlives the master, by its log: also where the nodes that would tell of it were away."""
import json
import os
import shutil
import subprocess
import threading
import time

import pytest

from clients import PATHS, Shell, figures
from conftest import SLOW, wait_until

LEN = 4096
SHORT = 512  # of objects that are put for as long as it takes


def start(bench, pool, name, *args):
    """The next master of the pool, with its data directory."""
    pool.master = bench.master(*args, listen=pool.master.listen, data_dir=pool.master.data, name=name)


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
    assert "may lack its end" in pool.master.log()
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


@pytest.mark.limit(240)
def test_ten_kills_under_puts(make_pool, bench):
    """Fails if an acknowledged put is missing or wrong, or a removed key is back, after ten times kill -9 of the master under a
    stream of puts.
    """
    pool = make_pool(nodes=2, memory="512MiB", data_dir=f"{bench.home}/data")
    remover = Shell(bench, pool.addr, "remover", **PATHS["tcp"])
    putter = Putter(bench, pool)
    putter.start()
    removed = []
    for turn in range(10):
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
    assert after["log_failed"] == 0 and after["evictions"] == 0


@pytest.mark.limit(120)
def test_log_does_not_grow_for_ever(make_pool, bench):
    """Fails if a million puts and evictions leave more of the log than one base and what came since; or if what is there then is
    not found by the next master.
    """
    pool = make_pool(nodes=1, memory="64MiB", data_dir=f"{bench.home}/data")
    client = Shell(bench, pool.addr, "client", **PATHS["shm"])
    log = f"{bench.home}/data/log"
    n = 0
    while figures(pool.master)["log_bases"] < 1:
        for _ in range(20):
            got = client(f"bput e/{n}/ 0 2000 {LEN} deadline={30000 * SLOW}")
            assert got["results"] == {"OK": 2000}, got
            n += 1
        assert n < 1000
    wait_until(lambda: len([f for f in os.listdir(log) if f.endswith(".log")]) == 1, 20, "files before the base to go")
    assert figures(pool.master)["log_bytes"] < 32 << 20
    live = [client(f"bexist e/{i}/ 0 2000")["exist"] for i in range(n - 5, n)]
    pool.master.kill9()
    start(bench, pool, "master2")
    wait_until(lambda: figures(pool.master)["segments"] == 1, 20, "the node to have told what it holds")
    reader = Shell(bench, pool.addr, "reader", **PATHS["shm"])
    assert [reader(f"bexist e/{i}/ 0 2000")["exist"] for i in range(n - 5, n)] == live and live[-1] > 0


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
        n, acknowledged = 0, []
        while health(pool.master)["log"] == "ok":
            got = client(f"put f/{n} {LEN} deadline={300 * SLOW}")["err"]
            acknowledged += [n] if got == "OK" else []
            n += 1
            assert n < 1000
        assert client(f"put late {LEN} deadline={200 * SLOW}")["err"] in ("RETRY_AFTER", "DEADLINE")
        assert client(f"remove k/0 deadline={200 * SLOW}")["err"] in ("RETRY_AFTER", "DEADLINE")
        got = client(f"bget k/ 0 100 {LEN}")
        assert got["results"] == {"OK": 100} and got["wrong"] == 0, got
        assert pool.master.log().count("the log cannot be written: No space left on device") == 1
        os.unlink(f"{data}/filler")
        wait_until(lambda: health(pool.master)["log"] == "ok", 20, "the log to be written again")
        assert client(f"put new {LEN}")["err"] == "OK"
        pool.master.kill9()
        start(bench, pool, "master2")
        wait_until(lambda: figures(pool.master)["segments"] == 1, 20, "the node to have told what it holds")
        for key in ["new", *(f"f/{i}" for i in acknowledged)]:
            assert client(f"get {key} {LEN}")["err"] == "OK", key
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
    assert r.rc == 1 and "cannot use the log: it is of another pool; remove the directory to begin anew" in r.err, r


@pytest.mark.parametrize("damage", ["cut", "flipped", "garbage"])
def test_damaged_log(make_pool, bench, damage):
    """Fails if a master does not start with a log whose last bytes are cut, flipped or garbage, or serves wrong bytes then."""
    pool = make_pool(nodes=1, data_dir=f"{bench.home}/data")
    client = Shell(bench, pool.addr, "client", **PATHS["tcp"])
    assert client(f"bput k/ 0 100 {LEN}")["results"] == {"OK": 100}
    pool.master.kill9()
    log = f"{bench.home}/data/log"
    path = f"{log}/{max(f for f in os.listdir(log) if f.endswith('.log'))}"
    with open(path, "r+b") as f:
        size = f.seek(0, os.SEEK_END)
        if damage == "cut":
            f.truncate(size - 7)
        elif damage == "flipped":
            f.seek(size - 30)
            byte = f.read(1)[0]
            f.seek(size - 30)
            f.write(bytes([byte ^ 4]))
        else:
            f.write(os.urandom(5000))
    start(bench, pool, "master2")
    wait_until(lambda: "the log was torn and is cut" in pool.master.log(), 5 * SLOW, "a line of the master's")
    wait_until(lambda: figures(pool.master)["segments"] == 1, 20, "the node to have told what it holds")
    kept = 100 if damage == "garbage" else 99  # the last record was the last put's
    got = client(f"bget k/ 0 100 {LEN}")
    assert got["results"].get("OK") == kept and got["wrong"] == 0, got
