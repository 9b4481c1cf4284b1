# SPDX-License-Identifier: Apache-2.0
"""Engines, which lend memory and put (docs/adr/0056-engines-that-lend-memory.md): what their identity allows, and what it does not."""
import pytest

import rawwire as w
from clients import Shell
from secured import Secured
from trusted import DENIED, Trusted, hello

MIB = 1 << 20


@pytest.fixture
def pool(bench):
    """A pool without nodes: what is put can only lie in an engine's memory."""
    return Secured(bench, nodes=False)


def engine(pool, program="engine", role="engine", identity="acme/h1", is_open=True, **conf):
    """A process with that certificate. It lends memory under the name of the certificate, unless conf says otherwise."""
    shell = Shell(pool.bench, "", program, is_open=False, env=pool.certs.env(role, identity))
    words = {"master": pool.master.listen, "memory_bytes": 32 * MIB, "chunk_bytes": 8 * MIB, "detail": 1, **conf}
    got = shell("open " + " ".join(f"{k}={v}" for k, v in words.items()))
    assert (got["err"] == "OK") == is_open, got
    return shell if is_open else got


def test_an_engine_lends_memory_and_puts(pool):
    one = engine(pool)
    two = engine(pool, "two", name="h1:7001", transports="tcp")
    assert one("put a 1000000")["err"] == "OK" and two("bput b/ 0 20 1000000")["results"] == {"OK": 20}
    assert two("get a 1000000")["intact"] and one("bget b/ 0 20 1000000")["results"] == {"OK": 20}
    segments = pool.kvpool("node", "ls", "--json", env=pool.certs.env("admin", "default")).json
    assert {node["node"] for node in segments} == {"h1", "h1:7001"}, segments
    # A client compares the name in the certificate, here over TCP.
    writer, other = pool.certs.env("writer"), pool.certs.env("writer", "other")
    tcp = {"KVPOOL_TRANSPORTS": "tcp"}
    assert pool.kvpool("get", "a", env={**writer, **tcp}).rc == 0
    assert pool.kvpool("put", "c", stdin=b"c", env={**writer, **tcp}).rc == 0 and one("get c 1")["err"] != "NOT_FOUND"
    # Another tenant neither finds nor removes the keys.
    assert pool.kvpool("get", "a", env={**other, **tcp}).rc == 1 and pool.kvpool("exists", "a", env=other).rc == 1
    assert pool.kvpool("rm", "a", env=other).rc == 1 and pool.kvpool("get", "a", env={**writer, **tcp}).rc == 0
    who = pool.kvpool("whoami", "--json", env=pool.certs.env("engine", "acme/h1")).json
    assert who["role"] == "engine" and who["tenant"] == "acme"
    assert one("close")["err"] == "OK" and two("close")["err"] == "OK"


def test_a_node_does_not_put_and_a_writer_does_not_lend(pool):
    node = engine(pool, "n1", "node", "n1")
    assert node("put a 1000")["err"] == "DENIED"
    got = engine(pool, "w", "writer", "acme", is_open=False, name="n2")
    assert got["err"] == "INVALID" and "needs a certificate of the role node or engine" in got["detail"], got
    with pool.raw("writer") as raw:
        answer = raw.call(hello(role=w.NODE, name="acme"))
        assert answer.err == DENIED and "only the roles node and engine" in answer.detail
    assert pool.kvpool("put", "a", stdin=b"a", env=pool.certs.env("node", "n1")).rc == 1


@pytest.mark.parametrize("name", ["h2", "h", "h10", "h1x:1", "[h1]", "[h1:1", ":h1", "acme/h1", "h1/ssd"])
def test_an_engine_lends_under_its_own_names_only(pool, name):
    pair = pool.certs.pair("engine", "acme/h1")

    def try_it():
        with pool.raw(pair=pair) as raw:
            assert raw.call(hello(role=w.NODE, name=name)).err == DENIED

    try_it()
    pool.audit("role=engine tenant=acme .*what=HELLO result=DENIED.*of a node with another name")
    for own in ("h1", "h1:1", "[h1]:1"):
        with pool.raw(pair=pair) as raw:
            assert raw.call(hello(role=w.NODE, name=own)).err == w.OK
            # The segment's name is that of the Hello.
            answer = raw.call(w.frame(w.MOUNT, w.pack((1, "h1:2"), (2, bytes(16)), (3, w.Fixed(1)), (4, 8 * MIB), (5, 8 * MIB), (6, "127.0.0.1:1"), (8, "tcp"), (9, 1))))
            assert answer.err == DENIED, answer.detail


def test_the_reason_is_given_at_once(pool):
    """Fails if a program waits for its deadline, or is not told why."""
    got = engine(pool, identity="acme/h1", is_open=False, name="h2", deadline=600000)
    assert got["err"] == "DENIED" and "the identity is of a node with another name" in got["detail"], got


def test_an_engine_has_no_other_rights(pool):
    pair = pool.certs.pair("engine", "acme/h1")
    with pool.raw(pair=pair) as raw:
        assert raw.call(hello(tenant="other")).err == DENIED
    env = pool.certs.env("engine", "acme/h1")
    for verb in (["rm", "--all"], ["snapshot"], ["session", "ls"], ["node", "drain", "h1"]):
        got = pool.kvpool(*verb, env=env)
        assert got.rc != 0 and "needs the role admin" in got.err, got
    for program, more in (("kvpool-master", ["--data-dir", "none"]), ("kvpool-node", ["--memory", "16MiB", "--name", "h2", "--master", pool.master.listen])):
        got = pool.bench.run(program, "--listen", "127.0.0.1:0", "--http", "none", *more, "--tls-ca", pool.certs.ca, "--tls-cert", pair[0],
                             "--tls-key", pair[1])
        assert got.rc != 0 and ("needs a certificate of the role master" in got.err or "of a node with another name" in got.err), got


def test_an_engine_with_a_token(bench):
    """Without TLS: the token goes over the master's Unix socket, for both connections."""
    pool = Trusted(bench, nodes=False)
    pool.token("t-engine", "engine", "acme", name="h1")
    pool.master.wait_log('read again"? tokens=2')
    shell = Shell(bench, "", "engine", is_open=False, env=pool.env("t-engine"))
    words = f"open master={pool.master.listen} memory_bytes={32 * MIB} chunk_bytes={8 * MIB} detail=1"
    refused = shell(f"{words} name=h2")
    assert refused["err"] == "DENIED" and "of a node with another name" in refused["detail"], refused
    assert shell(f"{words} name=h1:7001")["err"] == "OK"
    assert shell("put a 100000")["err"] == "OK" and shell("get a 100000")["intact"]
    assert pool.kvpool("get", "a").rc == 0
    pool.token("t-other", "reader", "other")
    pool.master.wait_log('read again"? tokens=3')
    assert pool.kvpool("get", "a", env=pool.env("t-other")).rc == 1
    # A deleted token ends both sessions, so the memory leaves the pool.
    pool.delete("t-engine")
    pool.audit("t-engine.*deleted")
    assert shell("put b 1000 deadline=5000")["err"] == "DENIED"


@pytest.mark.parametrize("words, why", [
    (["engine", "acme"], "say what"), (["user", "acme", "engine"], "say what"), (["engine", "acme", "a/b"], "a character other than"),
    (["engine", "acme", ""], "the name is empty"), (["engine", "", "h1"], "the name is empty"), (["engine", "acme", "x" * 129], "longer than 128"),
])
def test_names_that_no_engine_may_have(pool, words, why):
    made = pool.certs.make(*words)
    assert made.rc == 2 and why in made.err, made
    token = pool.bench.run("kvpool", "token", "create", "--file", str(pool.file), "--role", "engine", "--tenant", "acme")
    assert token.rc == 2 and "--name NAME is missing" in token.err, token
