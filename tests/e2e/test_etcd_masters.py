# SPDX-License-Identifier: Apache-2.0
"""Programs that know the members of etcd, and learn from them where the masters are; and what the tool says of masters."""
import json
import pathlib
import re
import ssl
import statistics
import subprocess
import urllib.error
import urllib.request
from base64 import b64encode

import pytest

from clients import Shell, free_ports
from conftest import SLOW, _die_with_parent, wait_until
from rawwire import HEARTBEAT, LIMIT, MOUNT, NODE, Fixed, Raw, frame, hello, pack
from standby import ETCD, Masters, needs_etcd
from test_json_keys import of_verb, words
from test_log import health

pytestmark = needs_etcd


class KnownByEtcd(Masters):
    """Nodes and clients are given etcd's members alone."""

    @property
    def addr(self):
        return "etcd://" + ";".join(m.url for m in self.etcd.members)


def with_cluster(bench, **more):
    """The bench's environment, and the cluster's name in it."""
    plain = type(bench).env
    bench.env = lambda **extra: plain(bench, **{"KVPOOL_CLUSTER": "test", **more, **extra})


@pytest.fixture
def masters(bench):
    with_cluster(bench)
    pool = KnownByEtcd(bench)
    pool.wait_insync(3)
    return pool


def test_masters_that_move(masters):
    """Fails if a node or a client that knows etcd alone does not find the pool, whose masters all come back at other ports."""
    shell = Shell(masters.bench, masters.addr, "client")
    assert shell("put before 100")["err"] == "OK"
    assert masters.kvpool("get", "before").rc == 0
    # The members that are gone keep nobody from it, one that hangs for a second.
    masters.etcd.members[0].kill()
    wait_until(lambda: masters.kvpool("exists", "before").rc == 0, 5, "the key to be found without a member of etcd")
    masters.etcd.members[0].start()
    masters.etcd.wait()
    masters.etcd.members[1].freeze()
    # A leader that is fenced for a moment, on a busy machine, has its nodes come anew.
    wait_until(lambda: masters.kvpool("exists", "before").rc == 0, 5, "the key to be found while a member of etcd hangs")
    masters.etcd.members[1].thaw()
    was = [m.listen for m in masters.masters]
    for m in masters.masters:
        m.kill9()
    for i in range(3):
        masters.masters[i] = masters.start(i)
    assert not {m.listen for m in masters.masters} & set(was)
    masters.wait_leader()
    wait_until(lambda: masters.leader_status()["segments"] == 2, 20, "the nodes to have found the leader")
    assert shell(f"put after 100 deadline={20000 * SLOW}", timeout=60)["err"] == "OK"
    assert shell("get before 100")["err"] == "OK" and shell("get after 100")["err"] == "OK"


def test_cluster(masters):
    """Fails if the cluster's name is not taken from where it is given first, or nothing says what is wrong."""
    assert masters.kvpool("exists", "k", "--cluster", "test", "--deadline", "5s").rc == 1
    got = masters.kvpool("stat", "--cluster", "other", "--deadline", "2s")
    assert got.rc == 3 and "it knows no master of this cluster" in got.err
    assert masters.kvpool("stat", "--cluster", "a/b").rc == 2
    assert masters.kvpool("stat", at="etcd://127.0.0.1").rc == 2
    got = masters.kvpool("stat", "--deadline", "2s", at=f"etcd://127.0.0.1:{free_ports(1)[0]}")
    assert got.rc == 3 and "etcd at http://127.0.0.1:" in got.err
    with_cluster(masters.bench, KVPOOL_CLUSTER="", MC_STORE_CLUSTER_ID="test")
    assert masters.kvpool("exists", "k").rc == 1


def test_switch(masters):
    """Fails if a switch does not tell who led and who leads, or one that cannot be ends with another code than docs say."""
    was = masters.wait_leader()
    told = masters.switch()
    assert set(told) == set(words(of_verb("master switch")))
    assert told["from"] == masters.masters[was].listen and told["to"] == masters.masters[masters.wait_leader()].listen
    assert told["term"] == masters.leader_status()["term"]
    # Again at once, also back to one that gave it up a moment ago.
    took_ms = []
    for _ in range(4):
        again = masters.switch()
        assert again["from"] == told["to"]
        took_ms.append(again["elapsed_ms"])
        told = again
    assert statistics.median(took_ms) < 1000 * SLOW, took_ms
    was = masters.wait_leader()
    # One address does not tell who leads next, and two that do not lead are no masters to be told.
    at = masters.masters[was].listen
    assert masters.kvpool("master", "switch", at=at).rc == 2
    assert masters.kvpool("master").rc == 2 and masters.kvpool("master", "stop").rc == 2
    dead = ",".join(f"127.0.0.1:{p}" for p in free_ports(2))
    assert masters.kvpool("master", "switch", "--deadline", "500ms", at=dead).rc == 3
    # Nobody is in sync: the leader says no, and leads on.
    now = masters.wait_leader()
    for i in range(3):
        if i != now:
            masters.masters[i].kill9()
    got = masters.kvpool("master", "switch", "--deadline", "1s")
    assert got.rc == 1 and "no standby is in sync" in got.err, got
    assert masters.leader() == now and masters.kvpool("put", "k", stdin=b"x").rc == 0


def told(at, *frames):
    """What a stranger is answered who says Hello as a node, and then these."""
    with Raw(at) as raw:
        said = raw.call(hello(NODE, name="stranger"))
        return [raw.call(f(said.fields[6])) for f in frames]


def test_what_raises_the_term(bench):
    """Fails if a peer deposes the leader, by a term that it says it obeys or by a switch soon after the election; or if a leader goes on
    below the term in etcd's key, or the next one leads in a term that is not above it."""
    with_cluster(bench)
    masters = KnownByEtcd(bench, n=2, nodes=1, switch_after="60s")
    was = masters.wait_leader()
    at, term = masters.masters[was].listen, masters.leader_status()["term"]
    # Each beat is refused, and its connection closed.
    for step in (1, 14, 15, 16, 1000):
        beat, mount = told(at, lambda i, n=step: frame(HEARTBEAT, pack((1, Fixed(i)), (2, term + n)))), \
            told(at, lambda _, n=step: frame(MOUNT, pack((1, "stranger"), (2, b"u" * 16), (4, 1 << 20), (5, 1 << 20), (10, term + n), (11, term))))
        assert beat[0].err == mount[0].err == LIMIT and "etcd gave this master its term" in mount[0].detail
    masters.wait_insync(2)
    got = masters.kvpool("master", "switch", "--deadline", "1s")
    assert got.rc == 1 and re.search("less than 60 s: a switch is possible in [0-9.]+ s", got.err), got
    assert masters.leader() == was and masters.leader_status()["term"] == term
    key, value = (b64encode(x.encode()).decode() for x in ("/kvpool/test/term", "50"))
    masters.etcd.members[0].post("/v3/kv/put", json.dumps({"key": key, "value": value}))
    wait_until(lambda: masters.leader_status()["term"] > 50, 15, "a lead in a term above the key's")
    assert masters.kvpool("put", "k", "--deadline", "10s", stdin=b"x").rc == 0


def test_a_standby_names_the_leader(masters):
    """Fails if a tool that is given one standby does not say which master leads."""
    leader = masters.masters[masters.wait_leader()].listen
    standby = next(m.listen for m in masters.masters if m.listen != leader)

    def told():
        got = masters.kvpool("exists", "k", "--deadline", "300ms", "--json", at=standby)
        return got.rc == 3 and got.json["error"] == "UNREACHABLE" and f"{standby}: it does not lead; {leader} leads" in got.json["detail"]

    wait_until(told, 10, "the standby to know the leader")
    got = masters.bench.run("kvpool", "get", "k", "--master", standby, "--deadline", "600s", timeout=20)  # at once
    assert got.rc == 3 and f"it does not lead; {leader} leads" in got.err, got


def test_stat_of_a_standby(masters):
    """Fails if stat does not say that who answered is a standby."""
    leads = masters.wait_leader()
    for i, m in enumerate(masters.masters):
        shown = masters.kvpool("stat", at=m.listen)
        assert shown.rc == 0 and ("a standby" in shown.out.decode()) == (i != leads)
        assert masters.kvpool("stat", "--json", at=m.listen).json["pool"]["is_standby"] == (i != leads)
    assert json.loads(masters.kvpool("stat", "--json").out)["pool"]["is_standby"] is False


def test_a_master_is_missing(masters):
    """Fails if a standby that died is not told by health and stat of the others, or is told after it is back."""
    leads = masters.wait_leader()
    gone, other = (i for i in range(3) if i != leads)
    wait_until(lambda: masters.health(leads)["status"] == "ok", 10, "all to be well")
    masters.masters[gone].kill9()
    address = masters.masters[gone].listen
    for i in (leads, other):
        told = wait_until(lambda i=i: "missing" in str((got := masters.health(i)).get("why")) and got, 10, "it to be missed")
        assert told["status"] == "degraded" and f"master {address} is missing" in str(told["why"]), told
    stat = json.loads(masters.kvpool("stat", "--json").out)
    assert stat["pool"]["status"] == "degraded" and [w["code"] for w in stat["pool"]["why"]] == ["master_missing"], stat["pool"]
    assert {m["address"]: m["state"] for m in stat["masters"]} == {
        m.listen: "leader" if i == leads else "missing" if i == gone else "standby" for i, m in enumerate(masters.masters)}
    shown = masters.kvpool("stat").out.decode()
    assert re.search(rf"^wrong +master {re.escape(address)} is missing", shown, re.M) and re.search(rf"{re.escape(address)} +missing +away ", shown), shown
    masters.again(gone)
    wait_until(lambda: masters.health(leads)["status"] == "ok", 20, "all to be well again")


# ---- TLS and users
def certify(folder):
    """A CA, and with it a certificate of 127.0.0.1 that servers and clients may show: ca.pem, cert.pem and key.pem there."""
    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    folder.mkdir()
    for name in ("ca", "other"):
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/O={name}", "-days", "2",
                "-keyout", f"{name}.key", "-out", f"{name}.pem")
    # No common name: etcd's gateway would take it for a user.
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/O=kvpool", "-keyout", "key.pem", "-out", "req.pem")
    (folder / "ext").write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
    openssl("x509", "-req", "-in", "req.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "ext",
            "-out", "cert.pem")
    return folder


class SecureEtcd:
    """One member that wants certificates, and the name of a user that may write what is the cluster's alone."""

    def __init__(self, bench):
        self.at = certify(pathlib.Path(bench.home) / "certs")
        ports = free_ports(2)
        self.tls = ssl.create_default_context(cafile=self.at / "ca.pem")
        self.tls.load_cert_chain(self.at / "cert.pem", self.at / "key.pem")
        self.url = self.urls = f"https://127.0.0.1:{ports[0]}"
        self.log = pathlib.Path(bench.home) / "etcd.log"
        with self.log.open("w") as out:
            self.proc = subprocess.Popen(
                [ETCD, "--name", "e0", "--data-dir", f"{bench.home}/etcd0", "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
                 "--listen-peer-urls", f"http://127.0.0.1:{ports[1]}", "--initial-advertise-peer-urls", f"http://127.0.0.1:{ports[1]}",
                 "--initial-cluster", f"e0=http://127.0.0.1:{ports[1]}", "--cert-file", self.at / "cert.pem", "--key-file", self.at / "key.pem",
                 "--client-cert-auth", "--trusted-ca-file", self.at / "ca.pem"],
                env=bench.env(), stdin=subprocess.DEVNULL, stdout=out, stderr=out, preexec_fn=_die_with_parent)
        wait_until(lambda: self.post("maintenance/status"), 20, "etcd to answer")
        prefix = b"/kvpool/test/"
        self.post("auth/role/add", name="kvpool")
        self.post("auth/role/grant", name="kvpool", perm={"permType": "READWRITE", "key": b64encode(prefix).decode(),
                                                          "range_end": b64encode(prefix[:-1] + b"0").decode()})
        for name, role in (("root", "root"), ("kvpool", "kvpool")):
            self.post("auth/user/add", name=name, password="secret")
            self.post("auth/user/grant", user=name, role=role)
        self.post("auth/enable")

    def post(self, path, **body):
        ask = urllib.request.Request(f"{self.url}/v3/{path}", json.dumps(body).encode())
        try:
            with urllib.request.urlopen(ask, timeout=5, context=self.tls) as r:
                return json.load(r)
        except urllib.error.HTTPError:
            raise
        except OSError:
            return None


def test_tls_and_users(bench):
    """Fails if masters do not work with an etcd that has TLS and users, or if one without a right certificate or password does, or does
    not say why it waits.
    """
    etcd = SecureEtcd(bench)
    try:
        (etcd.at / "password").write_text("secret\n")
        (etcd.at / "wrong").write_text("wrong\n")
        shows = ("--etcd-cert", etcd.at / "cert.pem", "--etcd-key", etcd.at / "key.pem")
        user = ("--etcd-user", "kvpool", "--etcd-password-file", etcd.at / "password")
        masters = Masters(bench, n=2, nodes=1, etcd=etcd, args=("--etcd-ca", etcd.at / "ca.pem", *shows, *user))
        masters.wait_insync(2)
        assert masters.kvpool("put", "k", stdin=b"value").rc == 0
        masters.masters[masters.wait_leader()].kill9()
        assert masters.kvpool("get", "k").out == b"value"
        for name, args, why in (("unknown", ("--etcd-ca", etcd.at / "other.pem", *shows, *user), "certificate"),
                                ("bare", ("--etcd-ca", etcd.at / "ca.pem", *user), "certificate"),
                                ("wrong", ("--etcd-ca", etcd.at / "ca.pem", *shows, *user[:3], etcd.at / "wrong"), "password"),
                                ("nobody", ("--etcd-ca", etcd.at / "ca.pem", *shows), "user")):
            m = bench.start(name, "kvpool-master", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data-dir", f"{bench.home}/{name}",
                            "--etcd", etcd.url, "--cluster", "test", *args)
            wait_until(lambda m=m, why=why: why in m.log(), 15, f"{name} to say why it waits")
            told = wait_until(lambda m=m: (h := health(m))["role"] == "standby" and h, 5, f"{name} to be a standby")
            assert told["term"] == 0
    finally:
        etcd.proc.kill()
        etcd.proc.wait()
