# SPDX-License-Identifier: Apache-2.0
"""Several masters of one pool, and the real etcd that elects one of them."""
import contextlib
import json
import pathlib
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest

from clients import free_ports
from conftest import SLOW, _die_with_parent, proc_state, wait_until

TTL_S = 2
ETCD = shutil.which("etcd")

needs_etcd = pytest.mark.skipif(ETCD is None, reason="no etcd here (Debian's etcd-server)")


class Member:
    """One member of etcd."""

    def __init__(self, bench, number, ports, all_peers, host="127.0.0.1"):
        self.bench, self.number = bench, number
        self.url = f"http://{host}:{ports[0]}"
        self.argv = [ETCD, "--name", f"e{number}", "--data-dir", f"{bench.home}/etcd{number}", "--logger", "zap",
                     "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
                     "--listen-peer-urls", f"http://{host}:{ports[1]}",
                     "--initial-advertise-peer-urls", f"http://{host}:{ports[1]}",
                     "--initial-cluster", all_peers, "--initial-cluster-token", pathlib.Path(bench.home).name]
        self.name = f"etcd{number}"
        self.path = pathlib.Path(bench.home) / f"etcd{number}.log"
        self.start()
        bench.daemons.append(self)

    def start(self):
        with self.path.open("a") as out:
            self.proc = subprocess.Popen(self.argv, env=self.bench.env(), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                         preexec_fn=_die_with_parent)

    @property
    def pid(self):
        return self.proc.pid

    def kill(self):
        self.proc.kill()
        self.proc.wait()

    def freeze(self):
        self.proc.send_signal(19)
        wait_until(lambda: proc_state(self.proc.pid) == "T", 5, "etcd to stop")

    def thaw(self):
        self.proc.send_signal(18)

    def post(self, path, body="{}", timeout=1):
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}{path}", body.encode()), timeout=timeout) as r:
            return json.load(r)

    def is_leader(self):
        with contextlib.suppress(OSError, KeyError, ValueError):
            got = self.post("/v3/maintenance/status")
            return got["leader"] == got["header"]["member_id"]
        return False

    def problems(self):
        self.kill()
        return []

    def log(self):
        return "\n".join(self.path.read_text(errors="replace").splitlines()[-5:])

    def stdout(self):
        return ""


class Etcd:
    """A cluster of n members on loopback."""

    def __init__(self, bench, n=3):
        ports = free_ports(2 * n)
        pairs = [(ports[2 * i], ports[2 * i + 1]) for i in range(n)]
        peers = ",".join(f"e{i}=http://127.0.0.1:{p[1]}" for i, p in enumerate(pairs))
        self.members = [Member(bench, i, pair, peers) for i, pair in enumerate(pairs)]
        self.wait()

    @property
    def urls(self):
        return ",".join(m.url for m in self.members)

    def wait(self):
        wait_until(lambda: any(m.is_leader() for m in self.members), 20, "etcd to have a leader")

    def leader(self):
        return wait_until(lambda: next((m for m in self.members if m.is_leader()), None), 20, "etcd to have a leader")


class Masters:
    """n masters of one pool, and nodes that know all of them. Looks like the Pool of conftest.py."""

    def __init__(self, bench, n=3, nodes=2, memory="64MiB", args=(), etcd=None, node_args=()):
        self.bench, self.args, self.etcd, self.master = bench, args, etcd or Etcd(bench), None
        self.masters = [self.start(i) for i in range(n)]
        self.wait_leader()
        self.nodes = [bench.node(self.addr, f"node{i + 1}", memory, *node_args) for i in range(nodes)]
        wait_until(lambda: self.leader_status()["segments"] == nodes, 10, "the nodes to have found the leader")

    def start(self, i, listen="127.0.0.1:0", http="127.0.0.1:0", ready=True):
        return self.bench.start(f"m{i}", "kvpool-master", "--listen", listen, "--http", http,
                                "--data-dir", f"{self.bench.home}/m{i}", "--etcd", self.etcd.urls, "--cluster", "test",
                                *self.args, ready=ready)

    @property
    def addr(self):
        return ",".join(m.listen for m in self.masters)

    def again(self, i):
        """Starts a master that was killed with the flags that it had."""
        old = self.masters[i]
        self.masters[i] = self.start(i, old.listen, old.http)
        return self.masters[i]

    def health(self, i):
        with contextlib.suppress(OSError, ValueError, urllib.error.URLError):
            return json.loads(self.masters[i].http_get("/health", timeout=1 * SLOW)[1])
        return {"role": "", "term": 0}

    def status(self, i):
        return json.loads(self.masters[i].http_get("/ha_status")[1])

    def roles(self):
        return [self.health(i)["role"] for i in range(len(self.masters))]

    def leader(self):
        roles = self.roles()
        return roles.index("leader") if "leader" in roles else None

    def wait_leader(self, timeout=15, other_than=None):
        def found():
            roles = self.roles()
            return next((i + 1 for i, role in enumerate(roles) if role == "leader" and i != other_than), 0)

        return wait_until(found, timeout, "a master to lead") - 1

    def leader_status(self):
        return self.health(self.wait_leader())

    def wait_insync(self, n, timeout=10):
        """Until n masters are in sync, the leader included."""
        wait_until(lambda: len(self.status(self.wait_leader()).get("insync", [])) == n, timeout, f"{n} masters to be in sync")

    def kvpool(self, verb, *args, stdin=b"", timeout=30 * SLOW, at=None):
        return self.bench.run("kvpool", verb, "--master", at or self.addr, *args, stdin=stdin, timeout=timeout)
