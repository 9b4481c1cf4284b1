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
        path = self.dir / f"{role}-{name}"
        if not path.with_suffix(".pem").exists():
            words = ["user", name, role] if role in ("monitor", "reader", "writer", "admin") else [role, name]
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
