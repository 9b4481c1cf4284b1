# SPDX-License-Identifier: Apache-2.0
"""HTTP ports with TLS (docs/adr/0057-http-over-tls.md): what is served to clients that check the certificate, and what strangers can do."""
import json
import os
import shutil
import socket
import ssl
import urllib.error
import urllib.request

import pytest

from conftest import SLOW, wait_until
from secured import Certs, Secured
from test_proxy import Proxy, Server

HOSTS = ("--host", "localhost,127.0.0.1,::1")
TLS = ("--http-tls", "--http", "127.0.0.1:0")


def get(at, path, ca, token=None, body=None):
    """The status and the text of an answer over TLS; None as status: no handshake, and why."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"https://{at}{path}", body, headers), timeout=10 * SLOW,
                                    context=ssl.create_default_context(cafile=ca)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()
    except urllib.error.URLError as e:
        return None, str(e.reason)


class Pool(Secured):
    """A master, a node and a conductor with HTTPS, and a token of the role admin."""

    def __init__(self, bench):
        certs = Certs(bench)
        for words in (("master", "m"), ("node", "n1"), ("conductor", "c")):
            assert certs.make(*words, *HOSTS).rc == 0
        super().__init__(bench, "--http-tls", certs=certs, nodes=False)
        self.admin = self.token("t-admin", "admin").decode()
        self.node = bench.node(self.master, "n1", "64MiB", *TLS, "--tokens", str(self.file))
        wait_until(lambda: self.get(self.master, "/overview", self.admin)[0] == 200, what="the token to be read")

    def get(self, daemon, path, token=None, ca=None):
        return get(daemon.http, path, ca or self.certs.ca, token)

    def conductor(self, *args):
        cert, key = self.certs.pair("conductor", "c")
        return ("--http-tls", "--tokens", str(self.file), "--tls-ca", self.certs.ca, "--tls-cert", cert, "--tls-key", key, *args)


@pytest.fixture
def pool(bench):
    return Pool(bench)


def test_ports_serve_https_and_need_tokens(pool):
    conductor = pool.bench.start("conductor", "kvpool-conductor", "--http", "127.0.0.1:0", *pool.conductor())
    for daemon, path in ((pool.master, "/overview"), (pool.node, "/nothing"), (conductor, "/services")):
        assert pool.get(daemon, "/health")[0] == 200
        assert pool.get(daemon, "/metrics")[1].startswith("#")
        assert pool.get(daemon, path)[0] == 401
        assert pool.get(daemon, path, pool.admin)[0] == (404 if daemon is pool.node else 200)
    assert "<html" in pool.get(pool.master, "/")[1]
    other = Certs(pool.bench, "other")
    assert "CERTIFICATE_VERIFY_FAILED" in pool.get(pool.master, "/health", ca=other.ca)[1]
    assert json.loads(pool.get(pool.master, "/health")[1])["protection"] == "control tls, http tls"
    assert 'protection="control tls, http tls"' in pool.master.log()


def test_tools_ask_over_tls(pool):
    env = {**pool.certs.env(pair=("", "")), **pool.env("t-admin")}
    stat = pool.kvpool("stat", "--json", env=env).json
    assert stat["masters"][0]["http"] == f"https://{pool.master.http}"
    assert stat["segments"][0]["protection"] == "control tls, http tls, data loopback"
    codes = {it["code"] for it in pool.kvpool("doctor", "--json", env=env).json["findings"]}
    assert not codes & {"http_unreachable", "port_taken"}, codes
    conductor = pool.bench.start("conductor", "kvpool-conductor", "--http", "127.0.0.1:0", *pool.conductor())

    def ask(at, **more):
        return pool.bench.run("kvpool", "stat", "--conductor", "--json", "--conductor-http", at, env={**env, **more})

    assert ask(f"https://{conductor.http}").json == []
    assert ask(conductor.http).rc == 3  # plain bytes at a port with TLS
    assert b"is of the role master" in ask(f"https://{pool.master.http}").out
    other = Certs(pool.bench, "other")
    assert b"not of the CA here" in ask(f"https://{conductor.http}", KVPOOL_TLS_CA=other.ca).out
    assert pool.get(conductor, "/health")[0] == 200


def test_strangers_are_ended_and_hold_nothing_up(pool):
    """Fails if a peer that says nothing, half a handshake or plain HTTP holds up others, or waits for ever."""
    host, port = pool.master.http.rsplit(":", 1)
    hello = ssl.MemoryBIO()
    handshake = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        handshake.do_handshake()
    begun = [b"", hello.read()[:100]]
    silent = []
    try:
        for i in range(40):
            silent.append(socket.create_connection((host, int(port)), 10 * SLOW))
            silent[-1].sendall(begun[i % 2])
        assert pool.get(pool.master, "/health")[0] == 200
        with socket.create_connection((host, int(port)), 60 * SLOW) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"HTTP" not in plain.recv(4096)
        for sock in silent:
            sock.settimeout(60 * SLOW)
            while sock.recv(4096):  # an alert comes before the end
                pass
    finally:
        for sock in silent:
            sock.close()
    pool.still_serves()


def test_a_renewed_certificate_is_served_after_a_restart(pool):
    def serial():
        host, port = pool.node.http.rsplit(":", 1)
        context = ssl.create_default_context(cafile=pool.certs.ca)
        with context.wrap_socket(socket.create_connection((host, int(port)), 10 * SLOW), server_hostname=host) as sock:
            return sock.getpeercert()["serialNumber"]

    first = serial()
    assert pool.certs.make("node", "n1", *HOSTS, "--replace").rc == 0
    assert serial() == first
    pool.node.terminate()
    pool.node = pool.bench.node(pool.master, "n1", "64MiB", *TLS, "--tokens", str(pool.file))
    assert serial() != first


def test_the_proxy_asks_its_own_router(pool):
    """Fails if a conductor with HTTPS cannot route for its own proxy, or if others may ask the port that it has for that."""
    server = Server("replica")
    try:
        proxy = Proxy(pool.bench, [server], *pool.conductor())
        body = json.dumps({"instance_id": "s0", "endpoint": "tcp://127.0.0.1:9", "type": "vLLM", "modelname": "tiny", "url": server.url,
                           "block_size": 16, "tenant_id": "default", "dp_rank": 0}).encode()
        assert get(proxy.daemon.http, "/register", pool.certs.ca, pool.admin, body)[0] == 200

        def is_routed():
            assert proxy.post({"model": "tiny", "prompt": [1] * 32, "max_tokens": 4})[0] == 200
            return "\nkvpool_proxy_routed_total 0\n" not in proxy.get("/metrics")[1].decode()
        wait_until(is_routed, 30, "a prompt by the router")
    finally:
        server.close()


def test_what_https_needs(bench):
    certs = Certs(bench)
    cert, key = certs.pair("node", "n1")
    shutil.copy(certs.ca, bench.home)
    for args, why in (((), "--http-tls needs a certificate"),
                      (("--tls-ca", certs.ca, "--tls-cert", cert, "--tls-key", key), "needs a certificate of the role conductor")):
        daemon = bench.start("bare", "kvpool-conductor", *TLS, *args, ready=False)
        daemon.wait_log(why)
        wait_until(lambda: not daemon.is_running())
        bench.daemons.remove(daemon)
    for hosts in ("a b", "x,,y", "", "DNS:x", "n" * 300):
        assert certs.make("node", "n2", "--host", hosts).rc == (0 if hosts == "" else 2)
    assert not os.path.exists(certs.dir / "node-n3.pem")
