# SPDX-License-Identifier: Apache-2.0
"""What a hostile or careless neighbour can do (docs/adr/0026-strangers.md): a case for each way, from a raw socket, with what the
others lived through meanwhile: longest wait, failed calls, memory of the daemons.
"""
import os
import pathlib
import threading
import time

import rawwire as w
from clients import Shell
from conftest import PROGRAMS, SLOW, Daemon

MIB = 1 << 20


class Bystander:
    """Another client that asks EXISTS for one digest again and again, over its own connection. .waits_s has how long each answer took,
    .failed how many calls got no answer."""

    def __init__(self, master):
        self.waits_s, self.failed = [], 0
        self._raw, _ = w.session(master, name="bystander")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        ask = w.frame(w.EXISTS, b"", bytes(16))
        while not self._over.is_set():
            began = time.monotonic()
            answer = self._raw.call(ask)
            if answer is None:
                self.failed += 1
                return
            self.waits_s.append(time.monotonic() - began)
            time.sleep(0.001)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._over.set()
        self._thread.join(30 * SLOW)

    def p99_s(self):
        return sorted(self.waits_s)[int(len(self.waits_s) * 0.99)]


# ---- 1. terms
# ---- 2. hash flooding
# ---- 3. turns of the master
# ---- 4. empty messages
# ---- 5. tenants
# ---- 6. descriptors of a large node
FEW_FILES = 4096  # a common hard limit of open files


def large_node(bench, master, files, *args):
    """A node of 2 TiB that touches no memory ahead, in a process that may have that many descriptors."""
    node = Daemon("large", ["prlimit", f"--nofile={files}:{files}", PROGRAMS["kvpool-node"], "--master", master.listen, "--name",
                            "large", "--memory", "2TiB", "--populate", "no", "--transports", "shm,tcp", *args],
                  bench.env(), bench.home)
    bench.daemons.append(node)
    return node


def shared_bytes(pid):
    """What the memory files of a process hold."""
    return sum(fd.stat().st_blocks * 512 for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir() if "memfd:" in os.readlink(fd))


def test_large_node_starts_with_few_descriptors(bench):
    """Fails if 2 TiB do not start where a process may have 4,096 descriptors, if their node has more than two a chunk or more than 1,024
    chunks, if a client of the same host does not put and get there by shared memory, or if the start touches the memory.
    """
    master = bench.master()
    node = large_node(bench, master, FEW_FILES).wait_ready()
    client = Shell(bench, master.listen, transports="shm")
    assert client(f"put k {MIB}")["err"] == "OK"
    got = client(f"get k {MIB}")
    assert got["err"] == "OK" and got["intact"], got
    assert 2 * 1024 <= w.open_descriptors(node.pid) < 2 * 1024 + 100
    assert shared_bytes(node.pid) < 64 * MIB
    assert not [line for line in node.log().splitlines() if " warn " in line and "descriptors" in line], node.log()


def test_large_node_says_what_it_lacks(bench):
    """Fails if a node whose chunks need more descriptors or mappings than it may have does anything but end with a line that names both
    numbers and what helps.
    """
    master = bench.master()
    maps = int(pathlib.Path("/proc/sys/vm/max_map_count").read_text())
    short = (2 << 40) // (maps // 2 + 1) // 4096 * 4096
    for args, says in (((1024,), "1024 chunks take 2048 descriptors, .* may have 1024: ulimit -Hn .* longer chunks"),
                       ((FEW_FILES, "--chunk-bytes", str(short)), f"mappings, .* vm.max_map_count is {maps}: sysctl -w .* longer chunks")):
        node = large_node(bench, master, *args)
        node.wait_log(says)
        assert node.proc.wait(20 * SLOW) == 1
        node.killed = True  # it has ended as it should


# ---- 7. big frames
# ---- 8. Unix paths
