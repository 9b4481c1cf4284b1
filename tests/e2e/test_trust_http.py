# SPDX-License-Identifier: Apache-2.0
"""Tokens at the HTTP ports of master, node, conductor and proxy (docs/operations/secure.md): which path needs which role, and requests that
are made to get around that."""
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from browser import CHROMIUM, browser  # noqa: F401: a fixture
from conftest import ask_http, wait_until
from trusted import Trusted

OPEN = ("GET /", "GET /health")
MASTER = {"monitor": ["GET /role", "GET /leader", "GET /ha_status", "GET /kv_events/status", "GET /overview"], "admin": ["GET /explain?key=k"]}
NODE = {"writer": ["PUT /api/put", "GET /api/get/k", "GET /api/exist/k", "DELETE /api/remove/k", "DELETE /api/remove_all",
                   "POST /api/unmount_local_disk"]}
CONDUCTOR = {"monitor": ["GET /services", "GET /servers"], "admin": ["GET /global_view"],
             "reader": ["POST /query", "POST /query_by_hash", "POST /route", "POST /route/done"],
             "writer": ["POST /register", "POST /unregister", "POST /servers", "DELETE /servers"]}
PROXY = {"reader": ["POST /v1/completions", "GET /v1/models"]}
BELOW = {"monitor": None, "reader": "monitor", "writer": "reader", "admin": "writer"}


class Echo(BaseHTTPRequestHandler):
    """A server behind the proxy that says which Authorization it got."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b'{"choices": [], "auth": "%s"}' % self.headers.get("Authorization", "none").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_HEAD = do_POST = do_POST

    def log_message(self, *args):
        pass


class Ports:
    """Each daemon with its tokens, and a token of each role of the default tenant."""

    def __init__(self, bench, engine):
        self.pool = Trusted(bench, "--metrics-token", nodes=False)
        self.tokens = {role: self.pool.token(f"h-{role}", role).decode() for role in BELOW}
        self.tokens["acme"] = self.pool.token("h-acme", "writer", "acme").decode()
        self.tokens["node"] = self.pool.token("h-node", "node", name="n1").decode()
        file = str(self.pool.file)
        node = bench.node(self.pool.master, "n1", "64MiB", "--http", "127.0.0.1:0", "--rest", "yes", "--tokens", file, "--metrics-token")
        conductor = bench.start("conductor", "kvpool-conductor", "--http", "127.0.0.1:0", "--tokens", file, "--metrics-token",
                                "--proxy", "127.0.0.1:0", "--replica", engine, "--api-keys", file)
        self.daemons = {"master": self.pool.master, "node": node, "conductor": conductor, "proxy": conductor}
        self.at = {name: d.http for name, d in self.daemons.items()}
        self.at["proxy"] = conductor.listen
        wait_until(lambda: self.ask("master", "GET /role", "node")[0] == 403, what="the master to have read the tokens")
        self.pool.watch(node, conductor)

    def ask(self, where, request, role=None, **headers):
        method, path = request.split(" ")
        if role:
            headers["Authorization"] = f"Bearer {self.tokens[role]}"
        body = b"{}" if method in ("POST", "PUT") else None
        return ask_http(self.at[where], path, method=method, body=body, headers=headers)


@pytest.fixture
def engine():
    server = HTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def ports(bench, engine):
    return Ports(bench, engine)


def test_each_path_needs_its_role(ports):
    for where, paths in (("master", MASTER), ("node", NODE), ("conductor", CONDUCTOR), ("proxy", PROXY)):
        for role, requests in {**paths, "monitor": [*paths.get("monitor", []), "GET /metrics"]}.items():
            for request in requests:
                status, answer = ports.ask(where, request)
                assert status == 401 and "no token" in answer, (where, request, status, answer)
                if BELOW[role]:
                    status, answer = ports.ask(where, request, BELOW[role])
                    assert status == 403 and f"needs the role {role}" in answer, (where, request, status, answer)
                if request not in ("DELETE /api/remove_all", "POST /api/unmount_local_disk"):
                    assert ports.ask(where, request, role)[0] not in (401, 403), (where, request)
    for where in ("master", "node", "conductor", "proxy"):
        for request in OPEN:
            assert ports.ask(where, request)[0] != 401, (where, request)
    for name in ("master", "node", "conductor"):
        assert re.search("part=audit msg=refused .*what=\"GET /metrics\" result=401 ", ports.daemons[name].log()), name
    ports.pool.still_serves()


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here (a Debian package)")
def test_the_pages_ask_for_a_token(ports, browser):  # noqa: F811
    """Fails if a page shows nothing while tokens are needed, or takes a wrong one."""
    for where, role, shows in (("master", "monitor", "1 of 1"), ("conductor", "admin", "0 publishers")):
        browser.open(f"http://{ports.at[where]}/")
        for token in ("kvp_wrong", ports.tokens[role]):
            browser.shows("Use this token", "#login")
            browser.get(f"(() => {{ const f = document.getElementById('login'); f.elements[0].value = '{token}'; f.requestSubmit(); }})()")
        browser.shows(shows)
        wait_until(lambda: not browser.text("#login"), 10, "the form to go")


def test_tokens_that_do_not_suffice(ports):
    for where in ("master", "node", "conductor", "proxy"):
        token = ports.tokens["admin"]
        for path in ("/overview", "/api/exist/k", "/services", "/v1/models"):
            assert ports.ask(where, f"GET {path}?token={token}&access_token={token}")[0] == 401  # a token in a URL is none
            for header in (f"Basic {token}", token, "Bearer ", f"Bearer {token}x", f"Bearer {token[:-1]}", "Bearer kvp_" + "A" * 43, "Bearer " + "k" * 20000):
                assert ports.ask(where, f"GET {path}", Authorization=header)[0] in (401, 431), (where, header[:60])
            assert ports.ask(where, f"GET {path}", "node")[0] == 403
    status, answer = ports.ask("node", "GET /api/exist/k", "acme")
    assert status == 403 and "serves the default tenant" in answer
    ports.pool.still_serves()


def test_a_deleted_token_is_refused(ports):
    assert ports.ask("conductor", "GET /services", "monitor")[0] == 200
    ports.pool.delete("h-monitor")
    wait_until(lambda: ports.ask("conductor", "GET /services", "monitor")[0] == 401)
    wait_until(lambda: ports.ask("master", "GET /overview", "monitor")[0] == 401)


def test_the_proxy_keeps_its_keys_to_itself(ports):
    """Fails if a server gets the client's key, or if the proxy cannot ask its own router."""
    status, answer = ports.ask("proxy", "POST /v1/completions", "reader")
    assert status == 200 and '"auth": "none"' in answer, (status, answer)
    assert "router could not choose" not in ports.daemons["proxy"].log()


RAW = {
    "two lengths": "GET /{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
    "chunked with a length": "POST /{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two slashes": "GET //{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "dots": "GET /health/../{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "escaped dots": "GET /health/%2e%2e/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "escaped slash": "GET /health%2f..%2f{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "two tokens": "GET /{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
    "foreign origin": "GET /{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://evil.example\r\n\r\n",
    "much head": "GET /{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n" + "X-Pad: " + "x" * (10 << 20) + "\r\n\r\n",
}


@pytest.mark.parametrize("kind", RAW)
def test_odd_requests_get_nothing(ports, kind):
    for where, path in (("master", "overview"), ("node", "api/exist/k"), ("conductor", "global_view"), ("proxy", "v1/models")):
        host, port = ports.at[where].rsplit(":", 1)
        with socket.create_connection((host, int(port)), 10) as sock:
            try:
                sock.sendall(RAW[kind].format(path=path).encode())
                answer = sock.recv(4096)
            except ConnectionError:
                answer = b""
        assert answer == b"" or answer.split()[1] in (b"400", b"401", b"403", b"404", b"413", b"414", b"431", b"501"), (where, kind, answer[:200])
        assert ports.ask(where, "GET /health")[0] == 200
    ports.pool.still_serves()


def test_tools_send_their_token_to_this_host(ports):
    at = ports.at["conductor"]
    got = ports.pool.bench.run("kvpool", "stat", "--conductor", "--conductor-http", at, "--json", env=ports.pool.env("h-admin"))
    assert got.rc == 0 and "part=audit" not in ports.daemons["conductor"].log(), got
    ports.pool.bench.run("kvpool", "stat", "--conductor", "--conductor-http", at, "--json")
    ports.daemons["conductor"].wait_log("part=audit msg=refused.*no token")


def test_metrics_need_tokens_to_be_protected(bench):
    master = bench.start("bare", "kvpool-master", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data-dir", "none", "--metrics-token",
                         ready=False)
    master.wait_log("--metrics-token needs tokens")
    wait_until(lambda: not master.is_running())
    bench.daemons.remove(master)
