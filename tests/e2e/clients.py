# SPDX-License-Identifier: Apache-2.0
"""Client processes in a test's hands: Shell does single things on command, Load works until it is told to stop. Both
are real processes linked with libkvpool (e2e_shell.c, e2e_load.c), so they can be killed, stopped, or stuck in a copy.
"""
import contextlib
import json
import mmap
import os
import pathlib
import queue
import random
import re
import signal
import socket
import struct
import subprocess
import threading
import time

import pytest

from conftest import BUILD, RDMA, SANITIZER_RE, SLOW, TIER, _die_with_parent, close_pipes, proc_state, wait_until

E2E = BUILD / "tests" / "e2e"

# How a client reaches nodes on the same machine: through shared memory, or as if it were on another host. In the guest with
# RDMA devices both ways lead over them.
PATHS = {"shm": {"transports": "shm,tcp"}, "tcp": {"transports": "tcp", "host_id": "another-host"}}
if RDMA:
    PATHS = {name: {**conf, "transports": "rdma"} for name, conf in PATHS.items()}

DEADLINE_MS = 5000 * SLOW  # of a call, where a test says nothing else

# The quick tier runs what takes a moment; the rest is skipped there.
slow = pytest.mark.skipif(TIER == "quick", reason="not in the quick tier")


def free_ports(n):
    """So many ports that nothing listens on at this moment. They are below those that the kernel gives to others, so what other tests
    start at the same time does not get them."""
    ports = set()
    while len(ports) < n:
        port = random.SystemRandom().randrange(10240, 32768)
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            ports.add(port)
    return sorted(ports)


class Talker:
    """A process that answers on standard output with lines of JSON. env: more of its environment."""

    def __init__(self, bench, name, argv, env=None):
        self.name = name
        self.argv = [str(a) for a in argv]
        self.is_killed = False
        self.err_path = pathlib.Path(bench.home) / f"{name}-{len(bench.daemons)}.err"
        with self.err_path.open("w") as err:
            self.proc = subprocess.Popen(
                self.argv, env=bench.env(**(env or {})), cwd=bench.home, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=err, preexec_fn=_die_with_parent, text=True, bufsize=1)
        self._lines = queue.Queue()
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()
        bench.daemons.append(self)

    def _drain(self):
        for line in self.proc.stdout:
            self._lines.put(line)
        self._lines.put(None)

    @property
    def pid(self):
        return self.proc.pid

    def log(self):
        return self.err_path.read_text(errors="replace") if self.err_path.exists() else ""

    def stdout(self):
        return ""

    def say(self, line):
        self.proc.stdin.write(line + "\n")
        self.proc.stdin.flush()

    def hear(self, timeout=20):
        """The next answer, as a dict."""
        try:
            line = self._lines.get(timeout=timeout * SLOW)
        except queue.Empty:
            pytest.fail(f"{self.name} said nothing for {timeout * SLOW} s; its log:\n{self.log()[-4000:]}")
        if line is None:
            pytest.fail(f"{self.name} ended with {self.proc.wait()}; its log:\n{self.log()[-4000:]}")
        return json.loads(line)

    def ask(self, line, timeout=20):
        self.say(line)
        return self.hear(timeout)

    def signal(self, sig):
        os.kill(self.pid, sig)

    def freeze(self):
        self.signal(signal.SIGSTOP)
        wait_until(lambda: proc_state(self.pid) == "T", 5, f"{self.name} to stop")

    def thaw(self):
        self.signal(signal.SIGCONT)

    def kill9(self):
        """kill -9, and waits for the process to be gone."""
        self.is_killed = True
        self.proc.kill()
        self.proc.wait()

    def finish(self, timeout=20):
        """Ends its input and waits for the clean end of the process; returns its exit code."""
        if self.proc.poll() is None:
            self.thaw()
            try:
                self.proc.stdin.close()
            except BrokenPipeError:
                pass
        return self.proc.wait(timeout * SLOW)

    def problems(self):
        found = []
        if not self.is_killed:
            try:
                rc = self.finish()
                if rc != 0:
                    found.append(f"{self.name} ended with {rc}: {self.log()[-2000:]}")
            except subprocess.TimeoutExpired:
                self.kill9()
                found.append(f"{self.name} did not end when its input did: {self.log()[-2000:]}")
        self._reader.join(5)
        close_pipes(self.proc)
        report = SANITIZER_RE.search(self.log())
        if report:
            found.append(f"{self.name}: {report.group(0).strip()}")
        return found


class Shell(Talker):
    """A client that does what it is asked. conf: master, transports, host_id, deadline, memory_bytes, ..."""

    def __init__(self, bench, master, name="client", is_open=True, env=None, **conf):
        if bench.certs and "memory_bytes" in conf:
            env = bench.certs.env("engine", f"default/{name}")
        super().__init__(bench, name, [E2E / "e2e_shell"], env)
        words = {"master": master, **conf}
        if is_open:
            words.setdefault("deadline", DEADLINE_MS)
            got = self.ask("open " + " ".join(f"{k}={v}" for k, v in words.items()))
            assert got["err"] == "OK", (got, self.log())

    def __call__(self, line, timeout=20):
        """Runs a command and returns its answer."""
        return self.ask(line, timeout)

    def stuck(self, line):
        """Runs a command that gets stuck in the middle of its copy (stuck_at=), and returns once it is."""
        got = self.ask(line)
        assert got.get("stuck"), f"{line}: it was not stuck but {got}"

    def unstick(self, timeout=20):
        """Lets the copy go on, and returns the command's answer."""
        self.signal(signal.SIGUSR1)
        return self.hear(timeout)

    def finish(self, timeout=20):
        if self.proc.poll() is None:
            self.signal(signal.SIGUSR1)  # it may still be stuck, where a test has failed
        return super().finish(timeout)


class Load(Talker):
    """Threads that put, get, replace and check objects until stop(). Options are e2e_load's, with _ for -."""

    def __init__(self, bench, master, name="load", **options):
        argv = [E2E / "e2e_load", "--master", master]
        options.setdefault("deadline_ms", DEADLINE_MS)
        for option, value in options.items():
            argv += [f"--{option.replace('_', '-')}", value]
        super().__init__(bench, name, argv)

    def ready(self):
        assert self.hear()["ready"]
        return self

    def mark(self, what="mark", timeout=20):
        """What happened since the last mark."""
        return self.ask(what, timeout)

    def done(self, result="OK"):
        """How many objects had that result since the last mark. The count goes on."""
        return self.mark("peek")["results"].get(result, 0)

    def stop(self, timeout=30):
        """Ends it, and returns what happened since the last mark, with the client's own figures in "stat"."""
        self.proc.stdin.close()
        got = self.hear(timeout)
        assert self.proc.wait(timeout * SLOW) == 0, self.log()
        return got


class Board:
    """The file in which load processes tell each other what was put: a number for each stream (how many keys were
    begun), then one for each key that is replaced (the oldest version that may be read).
    """

    def __init__(self, bench, streams, keys=64, name="board"):
        size = 8 * (streams + keys)
        self.options = {"board": pathlib.Path(bench.home) / name, "streams": streams, "keys": keys}
        self.options["board"].write_bytes(bytes(size))
        with self.options["board"].open("r+b") as f:
            self._map = mmap.mmap(f.fileno(), size)

    def begun(self, stream):
        return struct.unpack_from("<Q", self._map, 8 * stream)[0]

    def floors(self):
        """By key: the oldest version that may be read."""
        first, n = self.options["streams"], self.options["keys"]
        return struct.unpack_from(f"<{n}Q", self._map, 8 * first)

    def versions(self):
        """All versions that churners put so far: the number at each key counts put and remove."""
        return sum(self.floors()) // 2


def work(seconds, *enough, more=30):
    """Lets loads work for so long, and on a busy machine longer, until all of the conditions hold: tests judge what came
    of it, and not how much of the machine they had. After `more` seconds on top it ends anyway, and the test says what
    is missing.
    """
    begun = time.monotonic()
    time.sleep(max(0, seconds))
    while time.monotonic() - begun < seconds + more * SLOW and not all(is_so() for is_so in enough):
        time.sleep(0.1)


def figures(master):
    """The master's own figures, by their short names: used_bytes, quarantine_bytes, evictions, ..."""
    status, body = master.http_get("/metrics")
    assert status == 200, body
    found = re.findall(r"^kvpool_master_(\w+?)(?:_total)? (\S+)$", body, re.M)
    return {name: int(float(value)) for name, value in found}


def settled(master, what="the space to come back", timeout=5.0, used_bytes=None):
    """Waits until nothing is under way: no attempt, no quarantine, no retirement; and, if told, until exactly
    used_bytes are in use. Returns the figures.
    """
    last = {}

    def is_settled():
        last.update(figures(master))
        quiet = not (last["attempts"] or last["quarantine_bytes"] or last["retiring_bytes"])
        return quiet and (used_bytes is None or last["used_bytes"] == used_bytes)

    try:
        wait_until(is_settled, timeout, what)
    except pytest.fail.Exception:
        names = ("attempts", "quarantine_bytes", "retiring_bytes", "used_bytes", "objects", "clients", "held_bytes")
        pytest.fail(f"timed out after {timeout * SLOW:g} s: {what}; {({n: last.get(n) for n in names})}")
    return last


def extent_bytes(length):
    """The space that an object of this length takes."""
    align = 64 if (length + 63) // 64 * 64 < 65536 else 4096
    return (length + align - 1) // align * align


def check_versions(reader, may_be, length):
    """Fails where a key has none of the versions that it may have, {key: versions}, 0 = none. Returns how many are there."""
    there = 0
    for key, versions in may_be.items():
        got = reader(f"get {key} {length}")
        if got["err"] == "NOT_FOUND":
            assert 0 in versions, f"{key} is gone, and was not removed: {versions}"
            continue
        assert got["err"] == "OK" and got["intact"], (key, got)
        assert got["version"] in versions, f"{key} has version {got['version']}, not one of {versions}"
        there += 1
    return there
