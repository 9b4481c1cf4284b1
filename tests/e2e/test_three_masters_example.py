# SPDX-License-Identifier: Apache-2.0
"""deploy/three-masters/start, as docs/operations/standbys.md tells to try it."""
import json
import os
import pathlib
import re
import signal
import subprocess

import pytest

import rawwire as w
from clients import free_ports
from conftest import BUILD, ROOT, SLOW, _die_with_parent, ask_http, wait_until
from standby import needs_etcd

pytestmark = needs_etcd


class Example:
    """The script as it runs in `home`/example, and what it has started."""

    def __init__(self, bench, *args):
        self.dir = pathlib.Path(bench.home) / "example"
        self.dir.mkdir()
        ports = [str(p) for p in free_ports(12)]
        names = ("MASTER_PORTS", "HTTP_PORTS", "MEMBER_PORTS", "PEER_PORTS")
        env = bench.env(KVPOOL_BUILD=str(BUILD), THREE_MASTERS_DIR=str(self.dir),
                        **{name: " ".join(ports[3 * i:3 * i + 3]) for i, name in enumerate(names)})
        self.masters, self.http = ([f"127.0.0.1:{p}" for p in some] for some in (ports[:3], ports[3:6]))
        self.out = pathlib.Path(bench.home) / "example.out"
        with self.out.open("w") as out:
            self.proc = subprocess.Popen([ROOT / "deploy" / "three-masters" / "start", *args], env=env, stdin=subprocess.DEVNULL,
                                         stdout=out, stderr=out, preexec_fn=_die_with_parent)

    def running(self):
        """The pids of its programs that run: they are those whose working directory is its own."""
        pids = [int(path.read_text()) for path in self.dir.glob("*.pid")]
        return [pid for pid in pids if is_at(pid, self.dir)]

    def kill_leader(self):
        number = self.masters.index(json.loads(ask_http(self.http[0], "/leader")[1])["leader"]["address"]) + 1
        os.kill(int((self.dir / f"master{number}.pid").read_text()), signal.SIGKILL)

    def stop(self):
        self.proc.send_signal(signal.SIGTERM)
        return self.proc.wait(30 * SLOW)

    def problems(self):
        """For a test that failed before its stop. The programs die with the script."""
        if self.proc.poll() is None:
            self.stop()
        return []

    def log(self):
        return "\n".join([self.out.read_text()] + [f"{path.name}: {line}" for path in sorted(self.dir.glob("*.log"))
                                                   for line in path.read_text(errors="replace").splitlines()[-10:]])

    def stdout(self):
        return ""

    name = "three-masters"
    argv = ["deploy/three-masters/start"]

    @property
    def pid(self):
        return self.proc.pid


def is_at(pid, folder):
    try:
        return pathlib.Path(f"/proc/{pid}/cwd").resolve(strict=True) == folder.resolve()
    except OSError:
        return False


def test_three_masters_without_programs_or_a_folder(bench):
    """Fails if the script does not say what is missing, and what to do."""
    script = ROOT / "deploy" / "three-masters" / "start"
    for env, said in (({"KVPOOL_BUILD": bench.home}, f"no kvpool-master in {bench.home}/bin: build it"),
                      ({"KVPOOL_BUILD": str(BUILD), "THREE_MASTERS_DIR": "/proc/none"}, "THREE_MASTERS_DIR names no folder that can be made")):
        r = subprocess.run([script], env=bench.env(**env), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
        assert r.returncode == 1 and f"start: {said}" in r.stderr, r


@pytest.mark.parametrize("args", [[], ["--tls"]], ids=["plain", "tls"])
def test_three_masters_example(bench, args):
    """Fails if the example does not come up, does not store, does not find a key before and after the leader is killed, or leaves a program;
    or if the next leader's first screens say what is not so: that a node is drained, or that memory is in quarantine. With --tls: if a master
    accepts a connection without, or if the commands that the script shows lack what it needs.
    """
    example = Example(bench, *args)
    bench.daemons.append(example)
    wait_until(lambda: "\nready:" in "\n" + example.out.read_text() or example.proc.poll() is not None, 20, "the example to be ready")
    assert example.proc.poll() is None
    assert len(example.running()) == 8
    masters = ",".join(example.masters)
    if args:
        for at in example.masters:
            with w.Raw(at) as raw:
                assert "accepts only TLS" in raw.call(w.hello()).detail
        shown = dict(re.findall(r"(KVPOOL_TLS_[A-Z]+)=(\S+)", example.out.read_text()))
        plain = bench.env
        bench.env = lambda **extra: plain(**{**shown, **extra})
        who = bench.run("kvpool", "whoami", "--json", "--master", masters).json
        assert len(shown) == 3 and who["role"] == "admin" and re.fullmatch("[0-9a-f]{32}", who["id"]), who  # proved by the certificate
    assert bench.run("kvpool", "put", "--master", masters, "greeting", stdin=b"hello").rc == 0
    for is_killed in (False, True):
        if is_killed:
            example.kill_leader()
            said = []  # what the next leader says, until both nodes are up again

            def both_are_up():
                said.append(bench.run("kvpool", "stat", "--master", masters, "--deadline", "300ms").text)
                return "nodes      2 of 2 up" in said[-1]

            wait_until(both_are_up, 20 * SLOW, "the nodes to be up at the next leader")
            assert not re.search("drain|quarantine", "".join(said)), said
        got = bench.run("kvpool", "get", "--master", masters, "--deadline", "15s", "greeting")
        assert (got.rc, got.out) == (0, b"hello"), got
    assert example.stop() == 0
    assert example.running() == []


def test_start_without_a_majority_of_etcd(bench):
    """Fails if the script waits in silence, or if stat, /health or the metric of a master do not name etcd as the cause."""
    example = Example(bench)
    bench.daemons.append(example)
    wait_until(lambda: all((example.dir / f"etcd{n}.pid").exists() for n in (2, 3)), 10, "etcd to be started")
    stopped = [int((example.dir / f"etcd{n}.pid").read_text()) for n in (2, 3)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        said = wait_until(lambda: "etcd has not answered this master: for" in (text := example.out.read_text()) and text, 30 * SLOW, "the reason")
        assert "start: still waiting for a leader and both nodes" in said and "most of etcd's members must run" in said, said
        health = ask_http(example.http[1], "/health")[1]
        assert "etcd has not answered" in health and '"degraded"' in health and "Last failure: http://127.0.0.1:" in health, health
        silent = re.search(r"^kvpool_master_etcd_silent_seconds (\S+)", ask_http(example.http[1], "/metrics")[1], re.M)
        assert float(silent[1]) > 3
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    wait_until(lambda: "ready: three masters" in example.out.read_text(), 60 * SLOW, "the pool")
    assert '"etcd has not' not in ask_http(example.http[1], "/health")[1]
    assert example.stop() == 0
