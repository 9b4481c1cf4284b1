# SPDX-License-Identifier: Apache-2.0
"""mooncake.store under many threads and many processes: no wrong byte, no deadlock, a clean end, by close() or without, in a pool that is
smaller than what is put (store_load.py, stage `python` of tests/run). Seconds in the quick tier, a minute each in the long one."""
import json
import pathlib
import re
import subprocess
import sys

import pytest

from clients import settled
from conftest import SLOW, TIER, _die_with_parent
from store_load import READS, StoreWorker
from stores import MIB

LOAD_S = {"quick": 2, "normal": 8, "long": 60}[TIER]
THREADS = 16
PROCESSES = 8
ENDS = ("close", "left", "calling")
# Of the log: a loaded machine may be slow to answer, and buffers that are too small are a part of the load.
QUIET = re.compile(r"time=\S+Z level=(info|warn) |\w+ is refused with -600: buffer is smaller than the object ")

pytestmark = pytest.mark.limit(LOAD_S + 240)


class Client:
    """A process of store_load.py."""

    def __init__(self, bench, addr, threads, seed, memory, end):
        self.err = pathlib.Path(bench.home) / f"client{seed}.err"
        self.end = end
        script = pathlib.Path(__file__).with_name("store_load.py")
        argv = [sys.executable, script, addr, LOAD_S, threads, seed, memory, end]
        with self.err.open("w") as err:
            self.proc = subprocess.Popen([str(a) for a in argv], env=bench.env(), text=True, stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, stderr=err, preexec_fn=_die_with_parent)

    def work(self):
        """How often it did what, once it is done."""
        line = self.proc.stdout.readline()
        assert line, self.err.read_text()
        did = json.loads(line)
        assert did["stuck"] == [] and did["least"] > 0, did
        assert not did["wrong"], did["wrong"]
        return did["counts"]

    def leave(self):
        self.proc.stdin.close()

    def judge(self):
        try:
            code = self.proc.wait(30 * SLOW)
        finally:
            self.proc.kill()
            self.proc.wait()
            self.proc.stdout.close()
        said = [line for line in self.err.read_text().splitlines() if not QUIET.match(line)]
        assert (code, said) == (0, []), self.end


def run(clients):
    counts = {}
    for client in clients:
        for what, n in client.work().items():
            counts[what] = counts.get(what, 0) + n
    for client in clients:
        client.leave()
    for client in clients:
        client.judge()
    return counts


def judge(master, counts):
    """All calls were made, each kind of read found something, and the pool was full."""
    assert set(StoreWorker.CALLS) | {f"{read} found" for read in READS} <= set(counts), counts
    assert settled(master, timeout=30)["evictions"] > 0


@pytest.mark.pool(nodes=2, memory="4MiB")
@pytest.mark.parametrize("end", ENDS)
def test_sixteen_threads_on_one_store(pool, bench, end):
    """The one that does not close takes its own memory, which others may have read, with it."""
    counts = run([Client(bench, pool.addr, THREADS, 1, 4 * MIB if end == "left" else 0, end)])
    if end == "calling":  # what its threads did ends with them
        assert settled(pool.master, timeout=30)["evictions"] > 0
    else:
        judge(pool.master, counts)


@pytest.mark.pool(nodes=2, memory="4MiB")
def test_eight_processes_on_one_pool(pool, bench):
    """Two threads each, every fourth with memory of its own, ending in turn in each way."""
    counts = run([Client(bench, pool.addr, 2, i, 4 * MIB if i % 4 == 0 else 0, ENDS[i % 3]) for i in range(PROCESSES)])
    judge(pool.master, counts)
