# SPDX-License-Identifier: Apache-2.0
"""An SSD that fails under a node: errors, short reads, a stall, bytes that are not what was written. What it costs is misses: nothing wrong is given, nothing
hangs, memory does not notice, figures count it and the log says it once. Errors come from e2e_eio.c, which the node is started with.
"""
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import time

import pytest

from clients import E2E, PATHS, Shell, figures
from conftest import BUILD, SAN, SLOW, wait_until
from test_log import health
from test_tier import LEN, MEMORY, get_all, node_figures, put_all, ssd_of

N = 512  # twice what memory holds
SSD = 128 << 20
BLOCK = 4096

# The library comes before that of the sanitizer.
preloads = pytest.mark.skipif(SAN != "", reason="a preloaded library and a sanitizer do not go together")


class Rig:
    """A pool of one node, whose file is full of what memory does not hold."""

    def __init__(self, bench, pool, is_preloaded=SAN == ""):
        self.bench, self.pool, self.is_preloaded = bench, pool, is_preloaded
        self.dir = ssd_of(bench)
        self.start()
        self.client = Shell(bench, pool.addr, "client", deadline=8000 * SLOW, **PATHS["tcp"])
        pool.nodes = [self.node]
        put_all(pool, self.client, N)

    def start(self):
        env = {"LD_PRELOAD": str(E2E / "e2e_eio.so"), "E2E_EIO": str(self.dir), "KVPOOL_TIER_ENGINE": "pread"} if self.is_preloaded else {}
        self.node = self.bench.node(self.pool.master, "node1", MEMORY, "--ssd", f"{self.dir}:{SSD}", "--http", "127.0.0.1:0", env=env)

    def switch(self, what):
        return self.dir / what

    def check_told_once(self, what):
        """One line of the node's log says so, and names the directory."""
        self.node.wait_log(what)
        lines = [line for line in self.node.log().splitlines() if what in line]
        assert len(lines) == 1 and f"dir={self.dir}" in lines[0], lines

    def memory_ms(self, prefix):
        """The middle of the times of a put, and of a get of what is in memory."""
        times = {"get": [], "put": []}
        for i in range(32):
            for what in ("put", "get"):
                got = self.client(f"{what} {prefix}/{i} {LEN}")
                assert got["err"] == "OK" and got.get("intact", True), got
                times[what].append(got["ms"])
        return {what: statistics.median(ms) for what, ms in times.items()}

    def check_memory(self, before, slack_ms=10):
        for what, ms in self.memory_ms("during").items():
            assert ms <= 4 * before[what] + slack_ms * SLOW, (what, ms, before)


@pytest.fixture
def rig(make_pool, bench):
    return Rig(bench, make_pool(nodes=0))


def check_is_off(rig, error):
    wait_until(lambda: node_figures(rig.node)["devices_failed"] == 1, 5, "the device to be switched off")
    rig.check_told_once(f"a read or write fails: {error}")
    rig.check_told_once("the device is switched off")
    assert node_figures(rig.node)["io_errors_total"] > 0
    told = health(rig.node)
    assert told["tier"] == "failed" and told["tier_failed_dir"] == str(rig.dir), told
    # The master is told: it looks for nothing there any more, and what is in memory is all that there is, and stays.
    wait_until(lambda: (lambda f: f["tier_objects"] == 0 and f["tier_size_bytes"] <= 1)(figures(rig.pool.master)), 10, "the master to be told")
    there = rig.client(f"bexist k/ 0 {N}")["exist"]
    assert get_all(rig.client, N) == (there, 0) == get_all(rig.client, N)
    assert "ssd_failed" in str(rig.pool.kvpool("doctor", "--json").json["findings"])


@preloads
def test_reads_that_fail(rig):
    """Fails if a get of what cannot be read hangs, is no miss, or is asked for again and again, or if memory notices."""
    before = rig.memory_ms("before")
    rig.switch("eio-read").touch()
    assert rig.client(f"get k/20 {LEN}")["err"] == "NOT_FOUND"
    rig.switch("eio-read").unlink()
    assert rig.client(f"get k/20 {LEN}")["err"] == "NOT_FOUND" and rig.client("exists k/20")["exists"] == 0
    assert rig.client(f"get k/21 {LEN}")["intact"] and health(rig.node)["tier"] == "ok"
    rig.switch("eio-read").touch()
    gets = [rig.client(f"get k/{i} {LEN}") for i in range(8)]
    assert {got["err"] for got in gets} == {"NOT_FOUND"} and statistics.median(got["ms"] for got in gets) < 500 * SLOW, gets
    check_is_off(rig, "Input/output error")
    rig.check_memory(before)
    assert rig.client("bexist k/ 0 8")["exist"] == 0
    assert rig.client("bput k/ 0 8 1000")["results"] == {"OK": 8}
    assert rig.client("bget k/ 0 8 1000")["results"] == {"OK": 8}


@preloads
@pytest.mark.parametrize("how,error", [("eio-write", "Input/output error"), ("enospc-write", "No space left on device")])
def test_writes_that_fail(rig, how, error):
    """Fails if puts wait for a device that cannot be written, its objects are not missed, or nobody is told."""
    before = rig.memory_ms("before")
    rig.switch(how).touch()
    assert rig.client(f"bput new/ 0 256 {LEN}")["results"] == {"OK": 256}
    check_is_off(rig, error)
    rig.check_memory(before)
    begun = time.monotonic()
    found, wrong = get_all(rig.client, 64)
    assert found == 0 and wrong == 0 and time.monotonic() - begun < 6 * SLOW, found


@preloads
def test_reads_and_writes_that_are_cut_short(rig):
    """Fails if what a device reads or writes in part is taken for all, or for an error."""
    for how in ("short-read", "short-write"):
        rig.switch(how).touch()
    put_all(rig.pool, rig.client, 64, N)
    found, wrong = get_all(rig.client, N + 64)
    assert wrong == 0 and found >= N + 64 - figures(rig.pool.master)["tier_missed"], found
    tier = node_figures(rig.node)
    assert tier["io_errors_total"] == 0 and tier["corrupt_total"] == 0 and tier["reads_total"] > 200, tier


def tier_of(pool):
    tier, = pool.kvpool("stat", "--json").json["tiers"]
    return tier


@preloads
@pytest.mark.parametrize("kinds", [("read",), ("write",), ("read", "write")], ids="-".join)
def test_a_device_that_hangs(rig, kinds):
    """Fails if a device that hangs, for reads, writes or both, delays puts, gets of what is in memory, or a removal; is not reported while it hangs, by
    /health, the counter and stat; if gets of what it alone has are no misses at once by then, or exists says that it is there; or if it is not
    believed any more afterwards.
    """
    before = rig.memory_ms("before")
    for kind in kinds:
        rig.switch(f"stall-{kind}").touch()
    got = rig.client(f"get k/1 {LEN}" + f" deadline={1000 * SLOW}" * ("read" in kinds))
    assert (got["err"] == "OK") == ("read" not in kinds) and got["ms"] < 4000 * SLOW, got
    removed = rig.client("remove k/2")
    assert removed["err"] == "OK" and removed["ms"] < 1900 * SLOW, removed  # a stall is noticed after 2 s
    rig.check_memory(before, 50)
    wait_until(lambda: health(rig.node)["tier"] == "stalled", 5 * SLOW, "the stall to be noticed")
    told = health(rig.node)
    assert told["status"] == "degraded" and told["why"] and told["tier_stalled_dir"] == str(rig.dir), told
    assert node_figures(rig.node)["stalls_total"] > 0
    wait_until(lambda: tier_of(rig.pool)["stalled_devices"] == 1, 5, "the master to be told")
    assert "do not answer" in rig.pool.kvpool("stat").out.decode()
    assert health(rig.pool.master)["status"] == "degraded" and "do not answer" in str(health(rig.pool.master)["why"])
    if "read" in kinds:
        assert rig.client("bexist k/ 3 20")["exist"] == 0
        gets = [rig.client(f"get k/{i} {LEN}") for i in range(3, 23)]
        assert {got["err"] for got in gets} <= {"NOT_FOUND", "NODE_LOST"} and statistics.median(got["ms"] for got in gets) < 100 * SLOW, gets
    else:
        got = rig.client(f"get k/4 {LEN}")
        assert rig.client("bexist k/ 3 20")["exist"] == 20 and got["err"] == "OK" and got["intact"], got
    rig.check_memory(before, 50)
    for kind in kinds:
        rig.switch(f"stall-{kind}").unlink()
    wait_until(lambda: health(rig.node)["tier"] == "ok" and rig.client(f"get k/1 {LEN}")["intact"], 10 * SLOW, "it to be read")
    wait_until(lambda: tier_of(rig.pool)["stalled_devices"] == 0, 5, "the master to be told")
    assert rig.client(f"get k/2 {LEN}")["err"] == "NOT_FOUND" and rig.client("bexist k/ 3 20")["exist"] == 20
    tier = node_figures(rig.node)
    assert tier["devices_failed"] == 0 and tier["io_errors_total"] == 0, tier
    rig.node.wait_log("the device stalls")
    assert get_all(rig.client)[1] == 0


@preloads
def test_a_device_of_two_that_hangs(make_pool, bench):
    """Fails if a device that hangs takes what the other one has, or keeps it from being written; if a node does not start while one hangs; or if what
    the other one has is lost then, or where the first one is not given any more.
    """
    pool, dirs = make_pool(nodes=0, data_dir="data"), [ssd_of(bench), ssd_of(bench, "ssd2")]
    env = {"LD_PRELOAD": str(E2E / "e2e_eio.so"), "E2E_EIO": str(dirs[0]), "KVPOOL_TIER_ENGINE": "pread"}

    def start(using):
        args = [arg for path in using for arg in ("--ssd", f"{path}:{SSD}")]
        return bench.node(pool.master, "node1", MEMORY, *args, "--http", "127.0.0.1:0", "--keeper", "none", env=env)

    def there():
        return client(f"bexist k/ 0 {N}")["exist"]

    node = start(dirs)
    client = Shell(bench, pool.addr, "client", deadline=2000 * SLOW, **PATHS["tcp"])
    put_all(pool, client, N)
    for kind in ("read", "write"):
        (dirs[0] / f"stall-{kind}").touch()
    client(f"bget k/ 0 32 {LEN} deadline={500 * SLOW}")
    wait_until(lambda: N / 4 < there() < N * 7 / 8, 10 * SLOW, "what the first device alone has to be away")
    written = node_figures(node)["writes_total"]
    assert client(f"bput new/ 0 256 {LEN}")["results"] == {"OK": 256}
    wait_until(lambda: node_figures(node)["writes_total"] > written + 32, 10 * SLOW, "the other device to be written")
    node.kill9()
    (dirs[0] / "stall-write").unlink()
    node = start(dirs)
    node.wait_log("does not answer")
    wait_until(lambda: there() > N / 4, 20 * SLOW, "what the other device has")
    kept, wrong = get_all(client, N)
    assert N / 4 < kept and wrong == 0, kept
    assert node_figures(node)["devices_stalled"] == 1
    node.kill9()
    node = start(dirs[1:])
    wait_until(lambda: there() > kept * 3 / 4, 20 * SLOW, "what the other device has")
    (dirs[0] / "stall-read").unlink()
    node.kill9()
    start(dirs).wait_log("the tier was used without the device")


def flip(path, every, rng):
    """One bit in every so many bytes of what was written, behind the headers."""
    with path.open("r+b") as f:
        for at in range(1 << 20, SSD // 4, every):
            f.seek(at + rng.randrange(every))
            byte = f.read(1)
            f.seek(-1, os.SEEK_CUR)
            f.write(bytes([byte[0] ^ 1 << rng.randrange(8)]))


def tear(path, every, rng):
    """Blocks that were not written."""
    with path.open("r+b") as f:
        for at in range(1 << 20, SSD // 4, every):
            f.seek((at + rng.randrange(every)) // BLOCK * BLOCK)
            f.write(b"\0" * BLOCK)


def test_bytes_that_change(rig):
    """Fails if bits that are flipped under a running node are given to anybody, are not missed and counted, or not told."""
    before = rig.memory_ms("before")
    flip(rig.dir / "kvpool.tier", 4 * LEN, random.Random(5))
    found, wrong = get_all(rig.client)
    tier = node_figures(rig.node)
    assert wrong == 0 and 30 < tier["corrupt_total"] < N / 2 and N - found >= tier["corrupt_total"], (found, tier)
    assert figures(rig.pool.master)["tier_lost"] == tier["corrupt_total"]
    rig.check_told_once("a damaged record was dropped")
    assert health(rig.node)["tier"] == "ok"
    assert get_all(rig.client)[1] == 0
    rig.check_memory(before)


@pytest.mark.parametrize("how", [flip, tear])
def test_a_file_that_was_damaged_meanwhile(rig, how):
    """Fails if a node does not start from a file in which bits or whole blocks are wrong, in headers, tables and records, or gives anything wrong
    of it, or nothing at all.
    """
    assert rig.node.terminate() == 0
    path = rig.dir / "kvpool.tier"
    how(path, 64 * LEN, random.Random(6))
    with path.open("r+b") as f:  # of the pages' headers some
        for page in range(0, 48, 7):
            f.seek(16384 + page * 2 * BLOCK)
            f.write(b"\xff" * 2 * BLOCK)
    wait_until(lambda: figures(rig.pool.master)["segments"] == 0, 20, "the node to be missed")
    rig.start()
    wait_until(lambda: rig.client(f"bexist k/ 0 {N}")["exist"] > N / 8, 20, "the tier to be back")
    found, wrong = get_all(rig.client)
    assert wrong == 0 and N / 8 < found < N, found
    assert get_all(rig.client)[1] == 0


def refused(bench, pool, path, size=SSD):
    """What a node says that cannot use that directory."""
    r = subprocess.run([BUILD / "bin" / "kvpool-node", "--master", pool.addr, "--name", "node1", "--memory", MEMORY, "--ssd", f"{path}:{size}"],
                       env=bench.env(), capture_output=True, text=True, timeout=10 * SLOW)
    assert r.returncode in (1, 2) and f"dir={path}" in r.stderr, r
    return r.stderr


def test_a_newer_format(make_pool, bench):
    """Fails if a node writes to a file whose format it does not know, or does not say so."""
    pool, path = make_pool(nodes=0), ssd_of(bench)
    assert bench.node(pool.master, "node1", MEMORY, "--ssd", f"{path}:{SSD}").terminate() == 0
    with (path / "kvpool.tier").open("r+b") as f:
        for at in (0, BLOCK):
            f.seek(at + 8)
            f.write((99).to_bytes(4, "little"))
        f.seek(0)
        was = f.read(1 << 20)
    assert "format of another version" in refused(bench, pool, path)
    assert (path / "kvpool.tier").read_bytes()[:1 << 20] == was


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts small file systems, which wants root")
def test_file_systems(make_pool, bench):
    """Fails if a node does not work in memory that is a file system, or does not refuse one that is too small, or not to be written."""
    path = ssd_of(bench)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=136m", "tmpfs", path], check=True)
    pool = make_pool(nodes=0)
    try:
        assert "the disk is too small" in refused(bench, pool, path, SSD * 2)
        rig = Rig(bench, pool)
        found, wrong = get_all(rig.client)
        assert wrong == 0 and found >= N - figures(pool.master)["tier_missed"] and node_figures(rig.node)["reads_total"] > 200
        assert rig.node.terminate() == 0
        subprocess.run(["mount", "-o", "remount,ro", path], check=True)
        assert "Read-only file system" in refused(bench, pool, path)
    finally:
        for node in pool.nodes:
            node.terminate()
        subprocess.run(["umount", path], check=True)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mkfs.ext4") or not os.path.exists("/dev/loop-control"),
                    reason="mounts a device, which wants root, mkfs.ext4 and loop devices")
def test_a_device_of_its_own(make_pool, bench):
    """Fails if by io_uring, too, writes that stall delay anybody, or reads that fail are no misses."""
    path, image = ssd_of(bench), pathlib.Path(bench.home, "image")
    with image.open("wb") as f:
        f.truncate(SSD + (64 << 20))
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, path], check=True)
    pool = make_pool(nodes=0)
    try:
        rig = Rig(bench, pool, is_preloaded=False)
        before = rig.memory_ms("before")
        subprocess.run(["fsfreeze", "--freeze", path], check=True)
        begun = time.monotonic()
        try:
            rig.check_memory(before)
            removed = rig.client("remove k/2")
            assert removed["err"] == "OK" and removed["ms"] < 1900 * SLOW, removed
            time.sleep(max(0, 2.5 - (time.monotonic() - begun)))
        finally:
            subprocess.run(["fsfreeze", "--unfreeze", path], check=True)
        wait_until(lambda: node_figures(rig.node)["stalls_total"] > 0, 5, "the stall to be counted")
        rig.node.wait_log("the device stalls")
        assert rig.client(f"get k/1 {LEN}")["intact"]
        os.truncate(image, 1 << 20)  # reads fail, or get zeros
        found, wrong = get_all(rig.client)
        tier = node_figures(rig.node)
        # One write that fails switches the device off; reads do so one after another.
        assert wrong == 0 and found < N / 2 + 64 and (tier["io_errors_total"] + tier["corrupt_total"] > 8 or tier["devices_failed"] == 1), (found, tier)
        for figure, line in (("io_errors_total", "a read or write fails: Input/output error"), ("corrupt_total", "a damaged record was dropped")):
            if tier[figure] > 0:
                rig.check_told_once(line)
    finally:
        for node in pool.nodes:
            node.terminate()
        subprocess.run(["umount", path], check=True)
