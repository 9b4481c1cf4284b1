# SPDX-License-Identifier: Apache-2.0
"""TLS of control connections (docs/adr/0053-tls.md): what an honest client does over it, and each attack on certificates and on the
handshake."""
import json
import os
import pathlib
import re
import shutil
import ssl
import stat
import threading
import time

import pytest

import rawwire as w
from conftest import SLOW, wait_until
from secured import Certs, Raw, Secured, openssl
from standby import Masters, needs_etcd
from trusted import DENIED, FOLLOW, SWITCH, Trusted, hello


@pytest.fixture
def pool(bench):
    return Secured(bench)


def test_put_get_exists_and_stat_over_tls(pool):
    value = os.urandom(3 << 20)
    assert pool.kvpool("put", "big", stdin=value).rc == 0
    assert pool.kvpool("get", "big").out == value
    assert pool.kvpool("exists", "big").rc == 0
    assert pool.kvpool("exists", "other").rc == 1
    assert pool.kvpool("ls", "b").out.split() == [b"big"]
    assert pool.kvpool("stat", "--json").rc == 0
    assert pool.kvpool("rm", "big").rc == 0
    whoami = pool.kvpool("whoami", "--json").json
    assert whoami["role"] == "writer" and whoami["tenant"] == "acme" and re.fullmatch("[0-9a-f]{32}", whoami["id"])


def test_a_token_proves_an_identity_over_tls(pool):
    token = (pool.home / "t-writer.token").read_bytes().strip()
    with pool.raw() as raw:
        answer = raw.call(hello(token))
        assert answer.err == w.OK, answer.detail
        assert answer.fields[16] == b"acme" and answer.fields[17] == b"writer t-writer"
    env = {**pool.certs.env(pair=("", "")), **pool.env("t-writer")}
    assert pool.kvpool("whoami", env=env).rc == 0


def test_a_token_alone_at_nodes(pool):
    """What docs/operations/secure.md says of it: fails if such a client does not read and write, if a monitor or a stranger finds what opens
    the memory of nodes, or if a node goes on serving the session of a deleted token."""
    for ident, role, tenant in (("t-reader", "reader", "acme"), ("t-other", "writer", "other"), ("t-monitor", "monitor", None)):
        pool.token(ident, role, tenant)
    pool.master.wait_log('read again"? tokens=4')
    alone = {**pool.certs.env(pair=("", "")), "KVPOOL_TRANSPORTS": "tcp"}
    roles = {ident: {**alone, **pool.env(ident)} for ident in ("t-writer", "t-reader", "t-other", "t-monitor")}
    assert pool.kvpool("put", "a", stdin=b"bytes", env=roles["t-writer"]).rc == 0
    assert pool.kvpool("get", "a", env=roles["t-reader"]).out == b"bytes"
    for ident, verb, why in (("t-reader", "put", "needs the role writer"), ("t-other", "get", "no such object"), ("t-monitor", "get", "needs the role reader")):
        got = pool.kvpool(verb, "a" if verb == "get" else "b", stdin=b"x", env=roles[ident])
        assert got.rc == 1 and why in got.err, got
    assert pool.kvpool("doctor", env=roles["t-writer"]).rc == 0

    def attach(session):
        raw = Raw(pool.node.listen, pool.certs.ca)
        return raw, raw.call(w.hello(pool_id=session[7], incarnation=session[6]))

    def login(raw, ident):
        return raw.call(hello((pool.home / f"{ident}.token").read_bytes().strip())).fields

    with pool.raw() as monitor, pool.raw() as reader:
        looks, mine = login(monitor, "t-monitor"), login(reader, "t-reader")
        assert 7 not in looks and len(mine[7]) == 16
        shown = [json.loads(pool.master.http_get("/health")[1])["pool_id"], pool.kvpool("stat", "--json", env=roles["t-monitor"]).json["pool"]["pool_id"]]
        assert shown == [mine[7][:4].hex()] * 2
        raw, answer = attach({**looks, 7: mine[7][:4] + bytes(12)})
        assert answer.err == w.INVALID and raw.is_closed()
        raw, answer = attach(mine)
        assert answer.err == w.OK
        pool.delete("t-reader")
        assert reader.is_closed(10) and raw.is_closed(10)
        assert attach(mine)[1].err == w.FENCED
    assert pool.kvpool("get", "a", env=roles["t-reader"]).rc == 1
    pool.still_serves()


def test_a_certificate_keeps_its_identity_on_the_masters_host(pool):
    """The master's Unix socket would give the client the identity of its user."""
    assert pool.kvpool("whoami", "--json").json["role"] == "writer"
    assert pool.bench.run("kvpool", "whoami", "--json", "--master", pool.master.listen, env={"KVPOOL_TLS_CERT": "", "KVPOOL_TLS_KEY": ""}
                          ).json["role"] == "admin"


@needs_etcd
def test_a_standby_takes_over_and_hands_over(bench):
    bench.certs = Certs(bench, own=("admin", "default"))
    cert, key = bench.certs.pair("master", "m")
    pool = Masters(bench, args=("--tls-ca", bench.certs.ca, "--tls-cert", cert, "--tls-key", key))
    pool.wait_insync(3)

    def kvpool(*args, stdin=b""):
        return bench.run("kvpool", args[0], "--master", pool.addr, "--deadline", "20s", *args[1:], stdin=stdin, env={"KVPOOL_TRANSPORTS": "tcp"})

    assert kvpool("put", "a", stdin=b"1").rc == 0
    pool.masters[pool.wait_leader()].kill9()
    assert kvpool("get", "a").out == b"1"
    assert kvpool("put", "b", stdin=b"2").rc == 0
    pool.wait_insync(2)
    wait_until(lambda: kvpool("master", "switch").rc == 0, 20, "a switch")
    assert kvpool("get", "b").out == b"2"
    assert kvpool("put", "c", stdin=b"3").rc == 0


def test_renewed_certificates_are_used_without_a_failed_call(pool):
    def serial():
        with pool.raw("writer") as raw:
            return raw.sock.getpeercert(True)

    def work():
        while not is_over.is_set():
            results.append(pool.kvpool("put", f"k{len(results)}", stdin=b"x"))

    before, results, is_over, renewed = serial(), [], threading.Event(), pool.home / "renewed"
    worker = threading.Thread(target=work)
    worker.start()
    try:
        renewed.mkdir()
        for name in ("ca.pem", "ca.key"):
            shutil.copy(pool.certs.dir / name, renewed)
        for name in ("master-m", "node-n1"):
            assert pool.bench.run("kvpool", "cert", *name.split("-"), "--dir", str(renewed)).rc == 0
            for end in (".key", ".pem"):
                os.replace(renewed / f"{name}{end}", pool.certs.dir / f"{name}{end}")
        wait_until(lambda: serial() != before)
    finally:
        is_over.set()
        worker.join()
    assert all(got.rc == 0 for got in results), [got for got in results if got.rc != 0][:3]
    pool.still_serves()


# ---- certificates
def handshake(pool, pair, say=hello()):
    """What becomes of a client with that certificate: the code of the refusal in a message, or the alert."""
    with pool.raw(pair=pair) as raw:
        answer = raw.call(say) if not raw.why else None
        assert answer is not None or raw.why or raw.is_closed()
        return answer.err if answer is not None else raw.why


def test_a_client_without_certificate_and_token_is_refused(pool):
    pool.attack("what=HELLO result=DENIED.*no certificate and no token", lambda: handshake(pool, None))


@pytest.mark.parametrize("kind, audit, alert, why", [
    ("other", "DENIED.*issuer certificate", "unknown ca", "another CA"),
    ("self", "DENIED.*self.signed", "unknown ca", "another CA"),
    ("ended", "EXPIRED", "expired", "EXPIRED"),
])
def test_a_certificate_that_is_not_valid_is_refused(pool, kind, audit, alert, why):
    other = Certs(pool.bench, "other")
    pair = (other.pair("writer", "acme") if kind == "other" else
            pool.certs.odd("odd", is_signed=kind != "self", days="-1" if kind == "ended" else "30"))

    def try_it():
        assert alert in handshake(pool, pair).lower()
        got = pool.kvpool("whoami", env=pool.certs.env(pair=pair))
        assert got.rc == 1 and why in got.err, got

    pool.attack(f"what=TLS result={audit}", try_it)


@pytest.mark.parametrize("names, cause", [
    ("URI:kvpool://other/writer/acme", "of the cluster other, not kvpool"),
    ("URI:kvpool://kvpool/writer/acme,URI:kvpool://kvpool/admin/acme", "not one name"),
    ("DNS:kvpool", "not one name"),
    ("", "not one name"),
    (f"URI:kvpool://kvpool/writer/{'x' * 300}", "longer than 128 bytes"),
    ("URI:kvpool://kvpool/king/acme", "unknown role"),
    ("URI:https://kvpool/writer/acme", "does not begin with kvpool"),
], ids=["cluster", "two", "dns", "none", "long", "role", "scheme"])
def test_a_certificate_with_another_name_is_refused(pool, names, cause):
    pair = pool.certs.odd("odd", names)

    def try_it():
        assert handshake(pool, pair) == DENIED

    pool.attack(f"what=HELLO result=DENIED.*{cause}", try_it)


@pytest.mark.parametrize("role, name", [("writer", "acme"), ("node", "thief")])
def test_a_role_may_not_follow_or_be_another_node(pool, role, name):
    def try_all():
        pair = pool.certs.pair(role, name)
        assert handshake(pool, pair, hello(role=w.NODE, name="n1")) == DENIED
        assert handshake(pool, pair, w.frame(FOLLOW, w.pack((1, 1), (2, 1), (3, "x")))) == DENIED
        assert handshake(pool, pair, w.frame(SWITCH, w.pack((1, 1)))) == DENIED

    pool.attack("what=FOLLOW result=DENIED", try_all)


def test_daemons_need_a_certificate_of_their_role(pool):
    cert, key = pool.certs.pair("writer", "acme")
    flags = ["--tls-ca", pool.certs.ca, "--tls-cert", cert, "--tls-key", key]
    for program, role, more in (("kvpool-master", "master", ["--data-dir", "none"]), ("kvpool-node", "node", ["--memory", "64MiB"])):
        got = pool.bench.run(program, "--listen", "127.0.0.1:0", "--http", "none", *more, *flags)
        assert got.rc != 0 and f"needs a certificate of the role {role}" in got.err, got
    got = pool.bench.run("kvpool", "whoami", "--master", pool.node.listen)
    assert got.rc == 1 and "the certificate of the master is of the role node" in got.err, got


def test_a_revoked_certificate_is_refused(bench):
    certs = Certs(bench)
    gone, crl = certs.pair("reader", "acme"), certs.dir / "ca.crl"
    (certs.dir / "index.txt").touch()
    (certs.dir / "crlnumber").write_text("01\n")
    (certs.dir / "ca.cnf").write_text(f"[ca]\ndefault_ca=x\n[x]\ndatabase={certs.dir}/index.txt\ncrlnumber={certs.dir}/crlnumber\n"
                                      "default_md=sha256\ndefault_crl_days=30\n")

    def openssl_ca(*args):
        openssl("ca", "-config", f"{certs.dir}/ca.cnf", "-cert", certs.ca, "-keyfile", f"{certs.dir}/ca.key", *args)

    openssl_ca("-gencrl", "-out", str(crl))
    pool = Secured(bench, "--tls-crl", str(crl), certs=certs)
    before = pool.fences()
    with pool.raw(pair=gone) as raw, pool.raw("reader", "other") as other:
        assert raw.call(hello()).err == w.OK and other.call(hello()).err == w.OK
        openssl_ca("-revoke", gone[0])
        openssl_ca("-gencrl", "-out", f"{crl}.new")
        os.replace(f"{crl}.new", crl)
        assert raw.is_closed(10)  # no other handshake makes the master read the list
        assert other.call(w.frame(w.STATUS)).opcode == w.STATUS
    pool.audit("what=HELLO result=DENIED.*the certificate was revoked")
    wait_until(lambda: pool.fences() > before)
    pool.attack("who=[0-9a-f]+ role=none tenant=acme .*what=TLS result=DENIED.*revoked", lambda: handshake(pool, gone))


def test_refusals_are_counted_by_reason(pool):
    def counts():
        return {m[1]: int(m[2]) for m in re.finditer(r'^kvpool_master_denied_total{reason="(\w+)"} (\d+)', pool.master.http_get("/metrics")[1], re.M)}

    before = counts()
    assert set(before) == {"identity", "expired", "role", "tls"}
    assert handshake(pool, None) == DENIED
    for say in (w.frame(SWITCH, w.pack((1, 1))), hello(tenant="other"), hello(role=w.NODE, name="acme")):
        assert handshake(pool, pool.certs.pair("writer", "acme"), say) == DENIED
    handshake(pool, Certs(pool.bench, "other").pair("writer", "acme"))
    assert pool.kvpool("bump").rc == 1
    wait_until(lambda: {reason: n - before[reason] for reason, n in counts().items()} == {"identity": 1, "expired": 0, "role": 4, "tls": 1})
    pool.token("t-short", "reader", "acme", ttl="1s")
    short = {**pool.certs.env(pair=("", "")), **pool.env("t-short")}
    wait_until(lambda: "EXPIRED" in pool.kvpool("whoami", env=short).err)
    assert counts()["expired"] > before["expired"]


def test_doctor_names_a_node_without_tls(pool):
    """A node on the master's host can join over the Unix socket, and clients with TLS then do not reach it by TCP."""
    certs, pool.bench.certs = pool.bench.certs, None
    node = pool.bench.node(pool.master, "n2", "16MiB")
    pool.bench.certs = certs
    got = pool.kvpool("doctor", env={**certs.env("writer"), "KVPOOL_TRANSPORTS": "tcp"})
    assert re.search("node n2 at .* is not reached by tcp", got.text) and "kvpool cert node n2" in got.text and "firewall" not in got.text, got
    node.wait_log("this node has no --tls-cert")


# ---- the handshake
def test_plain_frames_at_a_tls_port_get_the_reason(pool):
    def try_it():
        for at in (pool.master.listen, pool.node.listen):
            with w.Raw(at) as raw:
                answer = raw.call(hello())
                assert answer.err == DENIED and "accepts only TLS" in answer.detail, answer.detail
                assert raw.is_closed()

    pool.attack("what=HELLO result=DENIED.*accepts only TLS", try_it)
    pool.node.wait_log("accepts only TLS")


def test_tls_at_a_plain_port_names_the_reason_at_both_ends(bench):
    pool = Trusted(bench)
    master, node, certs = pool.master, pool.node, Certs(bench)
    pool.watch(node)
    got = bench.run("kvpool", "whoami", "--master", master.listen, "--deadline", "3s", env=certs.env("writer"))
    assert got.rc == 3 and "it has no TLS" in got.err, got
    master.wait_log("the peer begins TLS, and this master has no --tls-cert")
    with Raw(node.listen, certs.ca) as raw:
        assert raw.why
    node.wait_log("the peer begins TLS, and this node has no --tls-cert")
    pool.still_serves()


@pytest.mark.parametrize("how, cause", [({"most": ssl.TLSVersion.TLSv1_2}, "unsupported protocol"), ({"alpn": "h2"}, "")], ids=["1.2", "alpn"])
def test_another_version_or_protocol_is_refused(pool, how, cause):
    def try_it():
        with pool.raw("writer", **how) as raw:
            assert raw.why

    pool.attack(f"what=TLS result=PROTO.*{cause}", try_it)


def test_a_first_message_of_64_kib_is_refused(pool):
    record = b"\x16\x03\x01\x40\x00" + b"\x01\x00\xff\xfc" + b"\x03\x03" + b"A" * (16384 - 6)

    def try_it():
        with w.Raw(pool.master.listen) as raw:
            raw.send(record + (b"\x16\x03\x01\x40\x00" + b"A" * 16384) * 3)
            assert raw.is_closed()

    pool.attack("what=TLS result=PROTO", try_it)


def test_one_byte_a_second_ends_after_five_seconds(pool):
    with w.Raw(pool.master.listen) as raw:
        began = time.monotonic()
        for byte in b"\x16\x03\x01\x02\x00\x01\x00\x01":
            if not raw.send(bytes([byte])) or raw.is_closed(1 / SLOW):
                break
        assert raw.is_closed()
        assert time.monotonic() - began < 12 * SLOW
    pool.audit("what=TLS result=DEADLINE.*longer than 5 s")
    pool.still_serves()


def test_strangers_that_say_nothing_leave_room_for_others(pool):
    """All come from one address, as the honest client: at most 32 of an address are in a handshake, the others are refused at once."""
    raws = [w.Raw(pool.master.listen) for _ in range(1000)]
    try:
        wait_until(lambda: sum(r.is_closed(0.001) for r in raws) >= 1000 - 32, what="most to be closed")
        wait_until(lambda: all(r.is_closed(0.001) for r in raws), 15, "the rest to be closed")
    finally:
        for r in raws:
            r.sock.close()
    pool.audit("what=TLS result=DEADLINE")
    pool.still_serves()


def test_a_node_refuses_certificates_of_others(pool):
    other = Certs(pool.bench, "other")
    pool.watch(pool.node)
    with Raw(pool.node.listen, pool.certs.ca, other.pair("writer", "acme")) as raw:
        assert raw.call(hello()) is None and "unknown ca" in raw.why.lower()
    pool.node.wait_log("refused a client: the certificate of the client is refused")
    with Raw(pool.node.listen, pool.certs.ca, pool.certs.pair("monitor", "acme")) as raw:
        answer = raw.call(hello())
        assert answer.err == DENIED and "needs the role reader" in answer.detail
    with Raw(pool.node.listen, pool.certs.ca) as raw:  # without the pool's id a client without a certificate gets nothing
        assert raw.call(hello()).err != w.OK
    pool.still_serves()


def test_a_node_with_an_identity_serves_no_objects_over_http(pool):
    """Fails if --rest starts where each of its puts and removals would be refused."""
    refused = pool.bench.run("kvpool-node", "--master", pool.master.listen, "--name", "n2", "--memory", "16MiB", "--http", "127.0.0.1:0",
                             "--rest", "yes", *pool.certs.flags("kvpool-node", ["--name", "n2"]))
    assert refused.rc == 2 and "--rest puts and removes as this process" in refused.err and "without --rest" in refused.err, refused


def test_cert_makes_private_keys_and_replaces_nothing(bench):
    certs = Certs(bench)
    cert, key = certs.pair("writer", "acme")
    assert stat.S_IMODE(os.stat(key).st_mode) == 0o600 and stat.S_IMODE(os.stat(certs.dir).st_mode) == 0o700
    before = pathlib.Path(key).read_bytes()
    again = certs.make("user", "acme", "writer")
    assert again.rc == 1 and "File exists" in again.err and pathlib.Path(key).read_bytes() == before
    assert certs.make("init", str(certs.dir)).rc == 1 and certs.make("init", str(certs.dir), "--replace").rc == 2
    assert "--replace" in again.err
    replaced = certs.make("user", "acme", "writer", "--replace", "--ttl", "7000d")
    assert replaced.rc == 0 and "the CA ends before this certificate" in replaced.err, replaced
    assert pathlib.Path(key).read_bytes() != before and stat.S_IMODE(os.stat(key).st_mode) == 0o600
    made = certs.make("node", "n2", "--json")
    assert made.json == {"cert": f"{certs.dir}/node-n2.pem", "key": f"{certs.dir}/node-n2.key"}


@pytest.mark.parametrize("words, why", [
    (["user", "a/b", "writer"], "a character other than"), (["user", "acme", "king"], "say what"), (["user", "acme", "node"], "say what"),
    (["node", "x" * 129], "longer than 128"), (["node"], "say what"), (["node", "n", "--ttl", "0s"], "--ttl"),
])
def test_cert_refuses_what_no_certificate_may_have(bench, words, why):
    made = Certs(bench).make(*words)
    assert made.rc == 2 and why in made.err, made


def test_verbs_without_a_pool_have_no_options_for_one(bench):
    for verb in ("cert", "token"):
        said = bench.run("kvpool", verb, "--help").out.decode()
        assert "--master" not in said and "--transports" not in said and said.count("--cluster") == (verb == "cert"), said
        assert ("conductor NAME" in said) == (verb == "cert"), said


def test_a_key_that_others_may_read_is_refused(pool):
    cert, key = pool.certs.pair("reader", "acme")
    os.chmod(key, 0o644)
    got = pool.kvpool("whoami", env=pool.certs.env("reader"))
    assert got.rc != 0 and "chmod 600" in got.err, got


def test_mistakes_in_local_files_fail_at_once(pool):
    """Fails if a client waits for a master although its own files are wrong, or does not say what is wrong."""
    cert, key = pool.certs.pair("writer", "acme")
    for files, cause in (((pool.certs.ca, "/nowhere/cert", key), "the certificate /nowhere/cert: No such file"),
                         ((pool.certs.ca, cert, "/nowhere/key"), "the key /nowhere/key: No such file"),
                         (("/nowhere/ca", cert, key), "the CA /nowhere/ca: No such file")):
        env = dict(zip(("KVPOOL_TLS_CA", "KVPOOL_TLS_CERT", "KVPOOL_TLS_KEY"), files))
        got = pool.kvpool("get", "key", "--deadline", "1000s", env=env)
        assert got.rc != 0 and cause in got.err, got


def test_daemons_refuse_a_certificate_of_another_ca(bench):
    certs, other = Certs(bench), Certs(bench, "other")
    cert, key = other.pair("master", "m")
    got = bench.run("kvpool-master", "--listen", "127.0.0.1:0", "--http", "none", "--data-dir", "none", "--tls-ca", certs.ca, "--tls-cert", cert,
                    "--tls-key", key)
    assert got.rc != 0 and "is not of the CA" in got.err, got


def test_a_node_named_by_its_certificate_has_a_keeper(pool):
    cert, key = pool.certs.pair("node", "n7")
    node = pool.bench.start("n7", "kvpool-node", "--master", pool.master.listen, "--memory", "64MiB", "--tls-ca", pool.certs.ca, "--tls-cert", cert,
                            "--tls-key", key, "--keeper", "auto")
    node.kill9()
    assert pool.bench.run("kvpool-keeper", "--name", "n7", "--end", "yes").rc == 0
