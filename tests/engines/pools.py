# SPDX-License-Identifier: Apache-2.0
"""What sglang_cases.py and lmcache_cases.py share: a pool of the package under test, and cases that are run one by one."""
import contextlib
import os
import pathlib
import subprocess
import sys
import time
import traceback
import urllib.request

from places import free_ports

START_S = 60
AWAY_S, CALL_S, BACK_S = 1.5, 0.005, 1.0  # of an engine whose master was killed: its waits in all, a call after that, until it works again


class Pool:
    """A mooncake_master, and what else is started beside it; all of it ends with the block."""

    def __init__(self, programs, folder):
        self.programs, self.folder = pathlib.Path(programs), pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.processes = []
        self.port, self.http = free_ports(2)
        self.address = f"127.0.0.1:{self.port}"
        self.start_master()

    def start(self, name, *words):
        with (self.folder / f"{name}.log").open("a") as log:
            process = subprocess.Popen([str(word) for word in words], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.processes.append(process)
        return process

    def program(self, name, *flags):
        return self.start(name, self.programs / name, *flags)

    def start_master(self):
        self.master = self.program("mooncake_master", "--rpc_address=127.0.0.1", f"--rpc_port={self.port}", "--metrics_host=127.0.0.1",
                                   f"--metrics_port={self.http}")
        await_http(f"http://127.0.0.1:{self.http}/health", self.master)

    def kill_master(self):
        self.master.kill()
        self.master.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def await_http(url, process, is_answer=lambda text: True):
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            if is_answer(urllib.request.urlopen(url, timeout=5).read()):
                return
        assert process.poll() is None, f"the process of {url} ended"
        time.sleep(0.05)
    raise AssertionError(f"{url} did not answer")


def lose_master(pool, calls, works):
    """The master is killed under an engine: `calls` are its calls by name, and `works` says whether it puts and gets. Returns what was
    measured, as text."""
    assert works(), "it does not work to begin with"
    pool.kill_master()
    first, best = {}, {}
    for best_of in (first, best):
        for _ in range(1 if best_of is first else 10):
            for name, call in calls.items():
                began = time.monotonic()
                call()
                took = time.monotonic() - began
                best_of[name] = min(took, best_of.get(name, took))
    waited, slowest = sum(first.values()), max(best.values())
    pool.start_master()
    began = time.monotonic()
    while not works():
        assert time.monotonic() - began < 60, "it does not work again"
    back = time.monotonic() - began
    found = f"waited {waited:.2f} s in all, then {1e3 * slowest:.1f} ms a call, works {back:.2f} s behind the master's return"
    assert waited <= AWAY_S and slowest <= CALL_S and back <= BACK_S, found
    return found


def run(cases, chosen):
    """Runs cases by name; a line each. Ends the process with 0 where all pass."""
    failed = 0
    for name in chosen or cases:
        began = time.monotonic()
        try:
            found = cases[name]()
        except BaseException as e:
            if isinstance(e, KeyboardInterrupt):
                raise
            failed += 1
            traceback.print_exc()
            found = None
            print(f"{name}: FAILS after {time.monotonic() - began:.1f} s: {type(e).__name__}: {e}", flush=True)
        else:
            print(f"{name}: passes, {time.monotonic() - began:.1f} s{'; ' + found if found else ''}", flush=True)
    sys.stdout.flush()
    os._exit(1 if failed else 0)  # the engines' own threads do not end
