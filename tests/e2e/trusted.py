# SPDX-License-Identifier: Apache-2.0
"""A pool whose master asks for identities, for the tests of trust: tokens of each role, raw frames with them, and what an honest client
still gets after an attack."""
import pathlib
import re

import rawwire as w
from conftest import wait_until

DENIED, EXPIRED = -38, -39
WATCH, FOLLOW, SWITCH = 4, 5, 8
SNAPSHOT = 31
GROWTH_MAX = 4 << 20


def hello(token=b"", tenant="", name="raw", role=w.CLIENT, host_id="raw-host"):
    fields = [(1, 1), (2, 1), (4, role), (5, name), (6, host_id)]
    if tenant:
        fields.append((10, tenant))
    if token:
        fields.append((13, token))
    return w.frame(w.HELLO, w.pack(*fields))


class Trusted:
    """master: the daemon; file: its token file; honest: the environment of a client with a writer's token of the tenant acme."""

    def __init__(self, bench, *master_args, nodes=True):
        self.bench, self.home = bench, pathlib.Path(bench.home)
        self.file = self.home / "tokens"
        self.file.touch(0o600)
        self.token("t-writer", "writer", "acme")
        # Memory for --why-memory is touched while time passes, also without an attack.
        self.master = bench.master("--tokens", str(self.file), "--why-memory", "0", *master_args)
        self.node = bench.node(self.master, "n1", "256MiB", "--http", "127.0.0.1:0") if nodes else None
        self.unix = self.master.unix
        self.honest = self.env("t-writer")
        self.audits = 0
        self.heaps = {}
        self.watch(self.master)

    def token(self, ident, role, tenant=None, name=None, ttl=None):
        """Makes a token and a file of it; returns its text."""
        args = ["--file", str(self.file), "--role", role, "--id", ident]
        args += ["--tenant", tenant] if tenant else []
        args += ["--name", name] if name else []
        args += ["--ttl", ttl] if ttl else []
        made = self.bench.run("kvpool", "token", "create", *args)
        assert made.rc == 0, made
        path = self.home / f"{ident}.token"
        path.write_bytes(made.out)
        path.chmod(0o600)
        return made.out.strip()

    def env(self, ident, **extra):
        return {"KVPOOL_TOKEN_FILE": str(self.home / f"{ident}.token"), **extra}

    def delete(self, ident):
        lines = self.file.read_text().splitlines(keepends=True)
        self.file.write_text("".join(line for line in lines if f" {ident} " not in line))

    def fences(self):
        """How many FENCE orders the node has had."""
        return int(re.search(r"^kvpool_node_fences_total (\d+)", self.node.http_get("/metrics")[1], re.M)[1])

    def kvpool(self, *args, env=None, stdin=b""):
        return self.bench.run("kvpool", args[0], "--master", self.master.listen, *args[1:], env=env or self.honest, stdin=stdin)

    def audit(self, pattern):
        """Waits for a line of the audit that has not been seen before."""
        def found():
            lines = [line for line in self.master.log().splitlines() if "part=audit " in line]
            return [line for line in lines[self.audits:] if re.search(pattern, line)]
        wait_until(found, what=f"audit {pattern}")
        self.audits = sum("part=audit " in line for line in self.master.log().splitlines())

    def watch(self, *daemons):
        """still_serves() compares their memory with that of now."""
        self.heaps.update({d: w.rss_bytes(d.pid) for d in daemons})

    def still_serves(self):
        """Fails unless an honest client is served, and no daemon has grown since it was called last."""
        assert self.kvpool("put", "honest", stdin=b"bytes").rc == 0
        got = self.kvpool("get", "honest")
        assert got.rc == 0 and got.out == b"bytes", got
        assert self.kvpool("stat").rc == 0
        for daemon, before in self.heaps.items():
            grown = w.rss_bytes(daemon.pid) - before
            assert grown < GROWTH_MAX, (daemon, grown)
        self.watch(*self.heaps)

    def attack(self, cause, fn):
        """Runs the attack, finds its cause in the audit, and sees that the pool serves and has not grown."""
        fn()
        self.audit(cause)
        self.still_serves()
