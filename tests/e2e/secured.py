# SPDX-License-Identifier: Apache-2.0
"""A pool with TLS, for the tests of trust: a CA, certificates of each role by `kvpool cert`, odd ones by openssl, and raw frames over TLS."""
import os
import pathlib
import ssl
import subprocess

import rawwire as w
from conftest import PROGRAMS, run_program
from trusted import Trusted

ALPN = "kvpool/1"
# With KVPOOL_TEST_TLS=1 all tests of this folder run with TLS but these: why, and how their names begin.
LEFT_OUT = {
    "it sends frames by TCP itself; the tests of trust do that with TLS": (
        "test_bad_input.py::", "test_hostile.py::", "test_fsck.py::test_fsck_finds_what_nobody_can_read",
        "test_etcd_masters.py::test_what_raises_the_term", "test_node_killed.py::test_node_out_of_reach_fails_no_put"),
    "it sets up its own trust": ("test_trust_", "test_three_masters_example.py::"),
    "nodes with a certificate serve no objects over HTTP": ("test_rest.py::",),
    "it knows all lines of stat, which has more with TLS": ("test_cli.py::test_stat_shows_how_the_pool_is",),
    "no certificate has such a name": (
        "test_master_page.py::test_names_are_text", "test_master_page.py::test_what_has_changed",
        "test_metrics.py::test_promtool_has_nothing_to_say"),
    "kvpool up and replay start a pool without TLS": (
        "test_cli.py::test_replay_over_a_pool_of_its_own", "test_cli.py::test_nodes_of_up", "test_cli.py::test_up_with",
        "test_cli.py::test_interrupted_replay", "test_keeper.py::test_when_the_keeper_ends", "test_questions.py::test_preparation_of_bench",
        "test_rdma_reads.py::test_replay"),
    "it starts a program by itself, without the options for TLS": (
        "test_cli.py::test_http_port_in_use", "test_cli.py::test_open_doors", "test_doctor.py::test_disk_with_little_space",
        "test_examples.py::test_program_builds_and_runs", "test_keeper.py::test_keeper_inherits_nothing",
        "test_keeper.py::test_memory_that_does_not_fit", "test_lifecycle.py::test_node_at_a_loopback_address",
        "test_pool_events.py::test_options_that_are_none", "test_smoke.py::test_log_in_json", "test_standby.py::test_standbys_that_are_none",
        "test_tier.py::test_directory_that_is_no_good", "test_tier_faults.py::test_a_newer_format", "test_tier_faults.py::test_file_systems"),
}


def why_left_out(name):
    """None if the test runs with TLS. name: FILE::TEST."""
    return next((why for why, starts in LEFT_OUT.items() if name.startswith(starts)), None)


class Certs:
    """A CA in a folder. own: role and name of the certificate that commands of the test have; None = none."""

    def __init__(self, bench, name="ca", cluster="kvpool", own=("writer", "acme")):
        self.bench, self.dir, self.own = bench, pathlib.Path(bench.home) / name, own
        self.make("init", str(self.dir), "--cluster", cluster)

    @property
    def ca(self):
        return str(self.dir / "ca.pem")

    def make(self, *args):
        where = [] if args[0] == "init" else ["--dir", str(self.dir)]
        env = {**os.environ, "XDG_RUNTIME_DIR": str(self.bench.home)}
        return run_program([PROGRAMS["kvpool"], "cert", *args, *where], env)

    def pair(self, role, name):
        """The paths of a certificate and its key, which are made at the first call."""
        path = self.dir / f"{role}-{name.replace('/', '-')}"
        if not pathlib.Path(f"{path}.pem").exists():
            words = ["user", name, role] if role in ("monitor", "reader", "writer", "admin") else [role, *name.split("/")]
            made = self.make(*words)
            assert made.rc == 0, made
        return f"{path}.pem", f"{path}.key"

    def env(self, role=None, name="acme", pair=None):
        """The environment of a client with that certificate."""
        pair = pair or (self.pair(role, name) if role else self.own and self.pair(*self.own))
        found = {"KVPOOL_TLS_CA": self.ca}
        return {**found, "KVPOOL_TLS_CERT": pair[0], "KVPOOL_TLS_KEY": pair[1]} if pair else found

    def flags(self, program, args=()):
        """The flags of a daemon."""
        if not program.startswith(("kvpool-master", "kvpool-node")) or "--tls-cert" in args:
            return []
        is_node = program.startswith("kvpool-node")
        cert, key = self.pair("node", args[args.index("--name") + 1]) if is_node else self.pair("master", "m")
        return ["--tls-ca", self.ca, "--tls-cert", cert, "--tls-key", key]

    def odd(self, file, names="URI:kvpool://kvpool/writer/acme", days="30", is_signed=True):
        """A certificate that `kvpool cert` does not make. days: before and after now, as for openssl."""
        path = self.dir / file
        openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{path}.key")
        os.chmod(f"{path}.key", 0o600)
        path.with_suffix(".ext").write_text(f"subjectAltName={names}\n" if names else "keyUsage=digitalSignature\n")
        openssl("req", "-new", "-key", f"{path}.key", "-subj", "/CN=odd", "-out", f"{path}.csr")
        signer = ["-CA", self.ca, "-CAkey", str(self.dir / "ca.key"), "-CAcreateserial"] if is_signed else ["-signkey", f"{path}.key"]
        openssl("x509", "-req", "-in", f"{path}.csr", *signer, "-days", days, "-extfile", f"{path}.ext", "-out", f"{path}.pem")
        return f"{path}.pem", f"{path}.key"


def openssl(*args):
    subprocess.run(["openssl", *args], check=True, capture_output=True)


class Raw(w.Raw):
    """Frames over TLS. pair: certificate and key; None = no certificate."""

    def __init__(self, at, ca, pair=None, alpn=ALPN, most=ssl.TLSVersion.TLSv1_3, timeout=5.0):
        super().__init__(at, timeout)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(ca)
        context.maximum_version = most
        if alpn:
            context.set_alpn_protocols([alpn])
        if pair:
            context.load_cert_chain(*pair)
        self.why = ""
        try:
            self.sock = context.wrap_socket(self.sock)
        except (ssl.SSLError, ConnectionError) as e:
            self.why = str(e)

    def send(self, data):
        try:
            return super().send(data)
        except ssl.SSLError as e:
            self.why = str(e)
            return False

    def _more(self):
        try:
            return super()._more()
        except (ssl.SSLError, OSError) as e:
            self.why = str(e)
            return False


class Secured(Trusted):
    """A pool with TLS and tokens. honest: a client with a writer's certificate, which reads over TCP."""

    def __init__(self, bench, *master_args, certs=None, **kw):
        bench.certs = certs or Certs(bench)
        super().__init__(bench, *master_args, **kw)
        self.certs = bench.certs
        self.honest = {"KVPOOL_TRANSPORTS": "tcp"}
        if self.node:
            self.still_serves()  # so that memory for the first handshakes is no growth

    def raw(self, role=None, name="acme", pair=None, **kw):
        return Raw(self.master.listen, self.certs.ca, pair or (self.certs.pair(role, name) if role else None), **kw)
