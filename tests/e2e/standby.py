# SPDX-License-Identifier: Apache-2.0
"""Several masters of one pool, and the real etcd that elects one of them."""
import contextlib
import ctypes
import json
import os
import pathlib
import shutil
import subprocess
import threading
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

    node_listen = None  # the usual

    def __init__(self, bench, n=3, nodes=2, memory="64MiB", args=(), etcd=None, node_args=(), switch_after="0s"):
        self.bench, self.args, self.etcd, self.master = bench, args, etcd or Etcd(bench), None
        self.switch_after = switch_after
        self.masters = [self.start(i) for i in range(n)]
        self.wait_leader()
        self.nodes = [bench.node(self.addr, f"node{i + 1}", memory, *node_args, listen=self.node_listen) for i in range(nodes)]
        wait_until(lambda: self.leader_status()["segments"] == nodes, 10, "the nodes to have found the leader")

    def start(self, i, listen="127.0.0.1:0", http="127.0.0.1:0", ready=True, program="kvpool-master"):
        return self.bench.start(f"m{i}", program, "--listen", listen, "--http", http,
                                "--data-dir", f"{self.bench.home}/m{i}", "--etcd", self.etcd.urls, "--cluster", "test",
                                "--switch-after", self.switch_after, *self.args, ready=ready)

    @property
    def addr(self):
        return ",".join(m.listen for m in self.masters)

    def again(self, i, **kw):
        """Starts a master that has ended with the flags that it had."""
        old = self.masters[i]
        self.masters[i] = self.start(i, old.listen, old.http, **kw)
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

    def wait_leader(self, timeout=30, other_than=None):
        def found():
            roles = self.roles()
            return next((i + 1 for i, role in enumerate(roles) if role == "leader" and i != other_than), 0)

        return wait_until(found, timeout, "a master to lead") - 1

    def leader_status(self):
        return self.health(self.wait_leader())

    def wait_insync(self, n, timeout=10):
        """Until n masters are in sync, the leader included."""
        wait_until(lambda: len(self.status(self.wait_leader()).get("insync", [])) == n, timeout, f"{n} masters to be in sync")

    def switch(self):
        """Has another master lead. A standby that stands still for a moment may not take the lead in time: then the leader says so, and is
        asked again. Returns what the tool printed."""
        return wait_until(lambda: (got := self.kvpool("master", "switch", "--json")).rc == 0 and got.json, 20, "a switch")

    def kvpool(self, verb, *args, stdin=b"", timeout=30 * SLOW, at=None):
        return self.bench.run("kvpool", verb, "--master", at or self.addr, *args, stdin=stdin, timeout=timeout)


def has_leader(member):
    """Whether that member of etcd is up, and knows one that leads."""
    with contextlib.suppress(OSError, KeyError, ValueError):
        return member.post("/v3/maintenance/status")["leader"] != "0"
    return False


# ---- hosts apart
_CLONE_NEWNET = 0x40000000
_NOBODY = "02:00:00:00:de:ad"  # a link address that no host has
_libc = ctypes.CDLL(None, use_errno=True)


def _check(rc, what):
    if rc != 0:
        raise OSError(ctypes.get_errno(), what)


def why_no_namespaces():
    """Why this process cannot make network namespaces and links between them; "" = it can."""
    if shutil.which("ip") is None:
        return "no ip here (Debian's iproute2)"
    tried = subprocess.run(["unshare", "--net", "sh", "-c", "ip link add br0 type bridge && ip link add v0 type veth peer name v1"],
                           capture_output=True, text=True, check=False)
    if tried.returncode == 0 and os.geteuid() == 0:
        return ""
    return f"cannot make network namespaces, links and bridges: {tried.stderr.strip()}"


class Host:
    """A network namespace that lives as long as the test. `with host:` moves the calling thread there, and what it starts, too."""

    def __init__(self, bench, name, address=None):
        self.name, self.address, self.before = name, address, threading.local()
        self.proc = subprocess.Popen(["sleep", "infinity"], stdin=subprocess.DEVNULL, preexec_fn=self._apart)
        self.fd = os.open(f"/proc/{self.proc.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self.argv = ["sleep", "infinity"]
        bench.daemons.append(self)

    @staticmethod
    def _apart():
        _die_with_parent()
        _check(_libc.unshare(_CLONE_NEWNET), "unshare")

    def __enter__(self):
        if not hasattr(self.before, "fds"):
            self.before.fds = []
        self.before.fds.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
        _check(_libc.setns(self.fd, _CLONE_NEWNET), "setns")
        return self

    def __exit__(self, *_):
        fd = self.before.fds.pop()
        _check(_libc.setns(fd, _CLONE_NEWNET), "setns")
        os.close(fd)

    @property
    def pid(self):
        return self.proc.pid

    def ip(self, *words):
        self.run("ip", *words)

    def run(self, *argv):
        with self:
            subprocess.run(argv, check=True, capture_output=True)

    def problems(self):
        self.proc.kill()
        self.proc.wait()
        os.close(self.fd)
        return []

    def log(self):
        return ""

    stdout = log


class Net:
    """Hosts at one bridge. Nothing of it is seen from outside."""

    def __init__(self, bench, names):
        self.switch = Host(bench, "switch")
        self.switch.ip("link", "add", "br0", "type", "bridge")
        self.switch.ip("link", "set", "br0", "up")
        self.hosts = {}
        for i, name in enumerate(names):
            host = self.hosts[name] = Host(bench, name, f"10.88.0.{i + 1}")
            host.ip("link", "add", "eth0", "type", "veth", "peer", "name", f"p{i}", "netns", str(self.switch.pid))
            host.ip("addr", "add", f"{host.address}/24", "dev", "eth0")
            host.ip("link", "set", "lo", "up")
            host.ip("link", "set", "eth0", "up")
            self.switch.ip("link", "set", f"p{i}", "master", "br0", "up")
        self.are_cut = set()

    def __getitem__(self, name):
        return self.hosts[name]

    def cut(self, some, others):
        """What they send each other is lost from now on, without a word."""
        for a in some:
            for b in others:
                self.are_cut.add((a, b))
                for x, y in ((self[a], self[b]), (self[b], self[a])):
                    x.ip("neigh", "replace", y.address, "lladdr", _NOBODY, "dev", "eth0", "nud", "permanent")

    def heal(self):
        while self.are_cut:
            a, b = self.are_cut.pop()
            for x, y in ((self[a], self[b]), (self[b], self[a])):
                x.ip("neigh", "del", y.address, "dev", "eth0")


class MemberApart(Member):
    def __init__(self, bench, number, peers, at):
        self.at = at
        super().__init__(bench, number, (2379, 2380), peers, at.address)

    def start(self):
        """With what etcd 3.5 has by itself: a member that comes back does not depose a leader that all others hear."""
        self.argv += [] if "--pre-vote" in self.argv else ["--pre-vote"]
        with self.at:
            super().start()

    def post(self, path, body="{}", timeout=1):
        with self.at:
            return super().post(path, body, timeout)


class EtcdApart(Etcd):
    def __init__(self, bench, hosts):
        peers = ",".join(f"e{i}=http://{h.address}:2380" for i, h in enumerate(hosts))
        self.members = [MemberApart(bench, i, peers, h) for i, h in enumerate(hosts)]
        self.wait()


class MastersApart(Masters):
    """Three hosts with a master and a member of etcd each, and one with the nodes and clients, which the caller is to be at. A master and
    its member have a namespace each, so that they can be cut off by themselves."""

    def __init__(self, bench, **kw):
        self.net = Net(bench, ["m0", "m1", "m2", "e0", "e1", "e2", "c"])
        self.node_listen = f"{self.net['c'].address}:0"
        with self.net["c"]:
            super().__init__(bench, etcd=EtcdApart(bench, [self.net[f"e{i}"] for i in range(3)]), **kw)

    def start(self, i, listen=None, http=None, ready=True):
        at = self.net[f"m{i}"]
        with at:  # with a directory of its own: the Unix socket in it would be a way around whatever is cut
            return self.bench.start(f"m{i}", "kvpool-master", "--listen", f"{at.address}:50051", "--http", f"{at.address}:9003",
                                    "--data-dir", f"{self.bench.home}/m{i}", "--runtime-dir", f"{self.bench.home}/run{i}",
                                    "--etcd", self.etcd.urls, "--cluster", "test", "--insecure", *self.args, ready=ready)

    def health(self, i):
        with self.net[f"m{i}"]:
            return super().health(i)

    def status(self, i):
        with self.net[f"m{i}"]:
            return super().status(i)

    def cut_host(self, i, and_clients=True):
        others = [f"{x}{k}" for x in "me" for k in range(3) if k != i] + ["c"] * and_clients
        self.net.cut([f"m{i}", f"e{i}"], others)
