# SPDX-License-Identifier: Apache-2.0
"""The proxy against stubs of servers: what they are asked, what the client gets, and what happens when they fail, stall, or the client goes."""
import contextlib
import http.client
import http.server
import json
import shutil
import socket
import subprocess
import threading
import time

import pytest

from conftest import SLOW, wait_until


class Server:
    """A stub of an engine. kind: prefill, decode or replica. What it was asked is in `asked`: (path, body, headers)."""

    def __init__(self, kind, bootstrap=False):
        server = self
        self.kind, self.asked, self.fail, self.chunks, self.gap, self.gone = kind, [], None, 5, 0.02, 0
        self.health, self.checks, self.tokenized, self.can_tokenize = 200, 0, 0, True
        self.ranks, self.headers = None, []
        self.release, self.engine, self.models = threading.Event(), "engine-7", [{"id": "m"}]

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self, status, body, kind="application/json"):
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                if status == 429:
                    self.send_header("Retry-After", "7")
                for name, value in server.headers:
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):
                if self.path == "/health":
                    server.checks += 1
                    if server.health is None:  # it hangs
                        server.release.wait(30)
                    with contextlib.suppress(OSError):
                        self.answer(server.health or 200, b"")
                    return
                server.asked.append((self.path, None, dict(self.headers)))
                if server.fail == 429:
                    self.answer(429, b"{}")
                    return
                self.answer(200, json.dumps((server.ranks or {"0": {"engine_id": server.engine}}) if self.path == "/query" else {"data": server.models}).encode())

            def do_POST(self):
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                body = json.loads(raw)
                if self.path == "/tokenize":
                    server.tokenized += 1
                    if not server.can_tokenize:
                        server.release.wait(30)
                    self.answer(200, json.dumps({"tokens": [int(word) for word in body["prompt"].split()]}).encode())
                    return
                server.asked.append((self.path, body, dict(self.headers)))
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    self.run(body)

            def run(self, body):
                fail = server.fail
                if fail == "once":  # as "close", and well after that
                    fail, server.fail = "close", None
                if fail == "die":  # as "close", and no connection comes any more
                    server.http.socket.shutdown(socket.SHUT_RDWR)
                if fail in ("close", "die"):
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                elif fail == "stall":
                    server.release.wait(30)
                    self.close_connection = True
                elif fail == "params" and "kv_transfer_params" in body:
                    self.answer(500, b"{}")
                elif isinstance(fail, int):
                    self.answer(fail, json.dumps({"error": {"message": f"stub says {fail}"}}).encode())
                elif server.kind == "prefill" and fail == "no_params":
                    self.answer(200, b'{"id": "x", "choices": []}')
                elif server.kind == "prefill":
                    self.answer(200, json.dumps({"id": "x", "choices": [], "kv_transfer_params": {"remote_host": "h", "remote_port": 1, "remote_block_ids": [1, 2]}}).encode())
                elif body.get("stream"):
                    self.stream(fail)
                else:
                    self.answer(200, json.dumps({"choices": [{"text": "ok"}]}).encode())

            def stream(self, fail):
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                if fail == "event":
                    data = b'data: {"error": {"message": "stub", "code": 500}}\n\ndata: [DONE]\n\n'
                    self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data))
                    return
                if fail == "silent":
                    server.release.wait(30)
                if fail in ("head", "silent"):  # dies behind its head
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                for i in range(server.chunks):
                    data = f"data: {i}\n\n".encode()
                    try:
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                        self.wfile.flush()
                    except OSError:
                        server.gone += 1
                        self.close_connection = True
                        return
                    if fail == "middle" and i == 2:
                        self.connection.shutdown(socket.SHUT_RDWR)
                        return
                    time.sleep(server.gap)
                self.wfile.write(b"0\r\n\r\n")

            def log_message(self, *_):
                pass

        class Listener(http.server.ThreadingHTTPServer):
            request_queue_size = 256

        self.http = Listener(("127.0.0.1", 0), Handler)
        self.port = self.http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.arg = f"{self.url},{self.port}" if bootstrap else self.url
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self):
        self.release.set()
        self.http.shutdown()
        self.http.server_close()


class Proxy:
    def __init__(self, bench, servers, *args, **kw):
        flags = [word for s in servers for word in (f"--{s.kind}", s.arg)]
        self.daemon = bench.start("proxy", "kvpool-conductor", "--http", "127.0.0.1:0", "--proxy", "127.0.0.1:0", *flags, *args, **kw)
        self.at = self.daemon.listen.split(":")

    def open(self, body, path="/v1/completions", headers=(), raw=None):
        c = http.client.HTTPConnection(*self.at, timeout=20 * SLOW)
        c.request("POST", path, raw if raw is not None else json.dumps(body), dict(headers))
        return c, c.getresponse()

    def post(self, body=None, path="/v1/completions", headers=(), raw=None):
        c, r = self.open(body, path, headers, raw)
        text = r.read()
        c.close()
        return r.status, text, r

    def get(self, path):
        c = http.client.HTTPConnection(*self.at, timeout=20 * SLOW)
        c.request("GET", path)
        r = c.getresponse()
        text = r.read()
        c.close()
        return r.status, text

    def servers(self, method, body=None):
        c = http.client.HTTPConnection(*self.daemon.http.split(":"), timeout=20 * SLOW)
        c.request(method, "/servers", None if body is None else json.dumps(body))
        r = c.getresponse()
        told = json.loads(r.read())
        c.close()
        return r.status, told

    def counter(self, name):
        return next(int(line.split()[1]) for line in self.get("/metrics")[1].decode().splitlines() if line.startswith(f"kvpool_proxy_{name} "))


@pytest.fixture
def site(bench):
    made = []

    def make(*kinds, args=(), bootstrap=False):
        servers = [Server(kind, bootstrap and kind == "prefill") for kind in kinds]
        made.extend(servers)
        return Proxy(bench, servers, *args), *servers

    yield make
    for s in made:
        s.close()


BODY = {"model": "m", "prompt": "hello", "max_tokens": 77, "stream": True, "stream_options": {"include_usage": True}, "seed": 2**63, "odd": 1e-400, "min_tokens": 3}


def test_pages_of_other_origins(site, bench):
    """Fails if a page cannot ask before it sends JSON or read the answer, also an error, or if --allow-origin lets another one in."""
    page, other = "https://chat.example", "https://evil.example"
    proxy, a = site("replica")
    ask = {"Origin": page, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os"}

    def options(to, headers):
        c = http.client.HTTPConnection(*to.at, timeout=20 * SLOW)
        c.request("OPTIONS", "/v1/chat/completions", headers=headers)
        return c.getresponse()

    r = options(proxy, ask)
    assert r.status == 204 and r.headers["Access-Control-Allow-Origin"] == "*" and "POST" in r.headers["Access-Control-Allow-Methods"]
    assert r.headers["Access-Control-Allow-Headers"] == ask["Access-Control-Request-Headers"]
    assert options(proxy, {**ask, "Access-Control-Request-Headers": ""}).status == 204
    for body in (BODY, {**BODY, "stream": False}):
        assert proxy.post(body, headers={"Origin": page})[2].headers.get_all("Access-Control-Allow-Origin") == ["*"]
    assert proxy.post(raw="{", headers={"Origin": page})[2].headers["Access-Control-Allow-Origin"] == "*"
    assert "Access-Control-Allow-Origin" not in proxy.post(BODY)[2].headers
    proxy, b = site("replica", args=("--allow-origin", f"http://localhost:8080,{page}"))
    assert options(proxy, ask).headers["Access-Control-Allow-Origin"] == page
    r = proxy.post(BODY, headers={"Origin": page})[2]
    assert r.status == 200 and r.headers["Access-Control-Allow-Origin"] == page and r.headers["Vary"] == "Origin"
    r = options(proxy, {**ask, "Origin": other})
    assert r.status == 403 and "Access-Control-Allow-Origin" not in r.headers
    assert proxy.post(BODY, headers={"Origin": other})[0] == 403 and len(b.asked) == 1
    assert proxy.post(BODY)[0] == 200  # a program
    for bad in ("chat.example", "https://chat.example/", "*,https://a", "https://a,", ""):
        r = bench.run("kvpool-conductor", "--http", "127.0.0.1:0", "--proxy", "127.0.0.1:0", "--replica", b.url, f"--allow-origin={bad}")
        assert r.rc == 1 and "--allow-origin" in r.err


def test_latencies_by_server(site):
    """Fails if a server's answers are not in its histograms, if promtool finds fault, or if a removed server stays."""
    proxy, a, b = site("replica", "replica")
    for _ in range(6):
        assert proxy.post(BODY)[0] == 200
    text = proxy.get("/metrics")[1].decode()
    if shutil.which("promtool"):
        assert subprocess.run(["promtool", "check", "metrics"], input=text.encode(), check=True, capture_output=True).stdout == b""
    for name in ("first_byte", "answer"):
        for server in (a, b):
            labels = f'{{server="{server.url}",role="replica"}}'
            assert f"kvpool_proxy_{name}_seconds_count{labels} 3\n" in text, text
            assert 0 < float(text.split(f"kvpool_proxy_{name}_seconds_sum{labels} ")[1].split()[0]) < 60
    assert proxy.servers("DELETE", {"url": b.url, "role": "replica"})[0] == 200
    assert b.url not in proxy.get("/metrics")[1].decode()


def test_prefill_and_decode(site):
    """Fails if the prefill copy is not cut down, if the decode copy lacks a field or the parameters, if both have not one id, or if Authorization does not pass."""
    proxy, p, d = site("prefill", "decode")
    status, text, r = proxy.post(BODY, headers={"Authorization": "Bearer k", "X-Request-Id": "mine"})
    assert status == 200 and text == b"".join(b"data: %d\n\n" % i for i in range(5)), text
    assert r.headers["Content-Type"] == "text/event-stream" and r.headers["Transfer-Encoding"] == "chunked" and r.headers["X-Request-Id"] == "mine"
    (path, first, headers), = p.asked
    assert path == "/v1/completions" and headers["Authorization"] == "Bearer k" and headers["X-Request-Id"] == "mine"
    assert first["max_tokens"] == first["max_completion_tokens"] == first["min_tokens"] == 1 and first["stream"] is False and "stream_options" not in first
    assert first["kv_transfer_params"]["do_remote_decode"] is True and first["kv_transfer_params"]["do_remote_prefill"] is False and first["seed"] == 2**63
    (path, second, headers), = d.asked
    assert second.pop("kv_transfer_params") == {"remote_host": "h", "remote_port": 1, "remote_block_ids": [1, 2]}
    assert second == BODY and headers["Authorization"] == "Bearer k" and headers["X-Request-Id"] == "mine"
    ids = set()
    for _ in range(3):
        status, text, r = proxy.post({"model": "m", "messages": []}, "/v1/chat/completions")
        assert status == 200 and json.loads(text) == {"choices": [{"text": "ok"}]} and r.headers["Content-Length"] == str(len(text))
        ids.add(p.asked[-1][2]["X-Request-Id"])
        assert p.asked[-1][2]["X-Request-Id"] == d.asked[-1][2]["X-Request-Id"] and p.asked[-1][0] == "/v1/chat/completions"
    assert len(ids) == 3
    assert json.loads(proxy.get("/healthcheck")[1]) == {"status": "ok", "prefill_instances": 1, "decode_instances": 1, "replica_instances": 0, "left_out": 0}
    assert json.loads(proxy.get("/v1/models")[1]) == {"data": [{"id": "m"}]}


def test_bootstrap_handshake(site):
    """Fails if the engine's id is not asked for, and once, or the two copies name other transfers."""
    proxy, p, d = site("prefill", "decode", bootstrap=True)
    for _ in range(2):
        assert proxy.post(BODY)[0] == 200
    asked = [path for path, _, _ in p.asked]
    assert asked == ["/query", "/v1/completions", "/v1/completions"], asked
    transfers = []
    for (_, first, _), (_, second, _) in zip(p.asked[1:], d.asked):
        a, b = first["kv_transfer_params"], second["kv_transfer_params"]
        assert a == {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": b["transfer_id"]}
        assert b == {"do_remote_prefill": True, "do_remote_decode": False, "remote_bootstrap_addr": p.url, "remote_engine_id": "engine-7", "transfer_id": a["transfer_id"]}
        transfers.append(a["transfer_id"])
    assert len(set(transfers)) == 2
    p.engine = "engine-8"  # another process, with connections that nobody has used since

    def engine():
        assert proxy.post(BODY)[0] == 200
        return d.asked[-1][1]["kv_transfer_params"]["remote_engine_id"]

    wait_until(lambda: engine() == "engine-8", 10, "the engine that is there now")


def ranks_of(p, d, since=0):
    """The ranks that the prefill server was asked for. Fails if the decode server was told another rank's engine."""
    asked = [(int(headers["X-data-parallel-rank"]), body["kv_transfer_params"]["transfer_id"]) for path, body, headers in p.asked if path != "/query"][since:]
    engines = {body["kv_transfer_params"]["transfer_id"]: body["kv_transfer_params"]["remote_engine_id"] for _, body, _ in d.asked}
    assert all(engines[transfer] == p.ranks[str(rank)]["engine_id"] for rank, transfer in asked), (asked, engines)
    return [rank for rank, _ in asked]


def test_ranks_of_a_prefill_server(site):
    """Fails if one rank alone computes, if a rank goes out with another one's engine id, or if one that is gone is chosen."""
    proxy, p, d = site("prefill", "decode", bootstrap=True)
    p.ranks = {"3": {"engine_id": "e3", "worker_addr": {"0": {"0": "tcp://h:1"}}}, "11": {"engine_id": "e11"}, "12": {}, "x": {"engine_id": "ex"}, "5": {"engine_id": "e5"}}
    for _ in range(6):
        assert proxy.post(BODY)[0] == 200
    assert sorted(ranks_of(p, d)) == [3, 3, 5, 5, 11, 11] and sum(path == "/query" for path, _, _ in p.asked) == 1
    p.ranks = {"4": {"engine_id": "e4"}, "11": {"engine_id": "e11-again"}}

    def is_asked_again():
        assert proxy.post(BODY)[0] == 200
        return sum(path == "/query" for path, _, _ in p.asked) > 1

    wait_until(is_asked_again, 10, "the bootstrap server to be asked again")
    before = sum(path != "/query" for path, _, _ in p.asked)
    for _ in range(4):
        assert proxy.post(BODY)[0] == 200
    assert sorted(ranks_of(p, d, before)) == [4, 4, 11, 11]


def test_ranks_by_load(site):
    """Fails if a rank gets the next request although another one has fewer under way."""
    proxy, p, d = site("prefill", "decode", bootstrap=True)
    p.ranks, p.fail = {"0": {"engine_id": "e0"}, "1": {"engine_id": "e1"}}, "stall"
    c = http.client.HTTPConnection(*proxy.at, timeout=20 * SLOW)
    c.request("POST", "/v1/completions", json.dumps(BODY))
    wait_until(lambda: len(p.asked) == 2, 5, "the slow request")
    busy, p.fail = int(p.asked[-1][2]["X-data-parallel-rank"]), None
    for _ in range(4):
        assert proxy.post(BODY)[0] == 200
    assert [int(headers["X-data-parallel-rank"]) for _, _, headers in p.asked[2:]] == [1 - busy] * 4
    c.close()


@pytest.mark.parametrize("way", ["flag", "environment", "servers"])
def test_bootstrap_server_on_another_host(bench, way):
    """Fails if a bootstrap server is taken to be on the prefill server's host."""
    with contextlib.ExitStack() as stack:
        p, b, d = (stack.enter_context(contextlib.closing(Server(kind))) for kind in ("prefill", "prefill", "decode"))
        args = {"flag": ["--prefill", f"{p.url},localhost:{b.port}", "--decode", d.url], "servers": ["--decode", d.url, "--prefill", "http://127.0.0.1:9"]}.get(way, [])
        env = {"KVPOOL_PREFILL": f"{p.url},localhost:{b.port},http://127.0.0.1:9,127.0.0.1:9", "KVPOOL_DECODE": d.url} if way == "environment" else {}
        proxy = Proxy.__new__(Proxy)
        proxy.daemon = bench.start("proxy", "kvpool-conductor", "--http", "127.0.0.1:0", "--proxy", "127.0.0.1:0", *args, env=env)
        proxy.at = proxy.daemon.listen.split(":")
        if way == "servers":
            one = {"role": "prefill", "url": "http://127.0.0.1:9"}
            proxy.servers("DELETE", one)
            for bad in ({"bootstrap_server_address": bad} for bad in ("localhost", "localhost:0", "http://localhost:1", 7, "")):
                assert proxy.servers("POST", {**one, **bad})[0] == 400, bad
            assert proxy.servers("POST", {**one, "bootstrap_server_address": "a:1", "bootstrap_port": 1})[0] == 400
            assert proxy.servers("POST", {"role": "prefill", "url": p.url, "bootstrap_server_address": f"localhost:{b.port}"})[0] == 200
        told = {s["url"]: s.get("bootstrap") for s in proxy.servers("GET")[1]["servers"] if s["role"] == "prefill"}
        assert told == {p.url: f"http://localhost:{b.port}", **({"http://127.0.0.1:9": "http://127.0.0.1:9"} if way == "environment" else {})}
        wait_until(lambda: proxy.post(BODY)[0] == 200 and d.asked[-1][1].get("kv_transfer_params", {}).get("remote_bootstrap_addr") == f"http://localhost:{b.port}", 5, "the hand-over")
        assert [path for path, _, _ in b.asked] == ["/query"] and "/query" not in [path for path, _, _ in p.asked]


def test_parameters_of_clients(site):
    """Fails if a client can tell a decode server what to fetch, also where the prefill server tells nothing or there is none, or if an escaped name passes to the prefill server."""
    proxy, p, d = site("prefill", "decode")
    own = b'{"kv_transfer_params":{"remote_host":"evil"},"\\u006bv_transfer_params":{"remote_host":"evil"},"x":{"kv_transfer_params":1},"stream\\u005foptions":{},"model":"m"}'
    for p.fail, told in ((None, {"remote_host": "h", "remote_port": 1, "remote_block_ids": [1, 2]}), ("no_params", None), (500, None)):
        assert proxy.post(raw=own)[0] == 200
        assert d.asked[-1][1] == {"x": {"kv_transfer_params": 1}, "stream_options": {}, "model": "m", **({"kv_transfer_params": told} if told else {})}
        assert "evil" not in json.dumps(p.asked[-1][1]) and "stream_options" not in p.asked[-1][1] and p.asked[-1][1]["x"] == {"kv_transfer_params": 1}
    p.fail, d.fail = None, "params"  # the decode server that is asked again
    assert proxy.post(raw=own)[0] == 200 and "evil" not in json.dumps(d.asked[-1][1]) and "kv_transfer_params" not in d.asked[-1][1]


@pytest.mark.parametrize("bootstrap", [False, True])
def test_one_hand_over_is_for_one_prompt_and_one_choice(site, bootstrap):
    """Fails if several prompts or choices are to load one cache, if a prefill server keeps a cache that is never fetched, or if it computes more than one choice."""
    proxy, p, d = site("prefill", "decode", bootstrap=bootstrap)

    def ask(path="/v1/completions", **more):
        assert proxy.post({"model": "m", **more}, path)[0] == 200
        assert {k: d.asked[-1][1][k] for k in more} == more
        return "kv_transfer_params" in d.asked[-1][1]

    assert ask(prompt="a") and ask(prompt=["a"]) and ask(prompt=[1, 2]) and ask(prompt=[[1, 2]], n=1) and ask("/v1/chat/completions", messages=[{}, {}])
    asked, plain = len(p.asked), proxy.counter("plain_total")
    assert not ask(prompt=["a", "b"]) and not ask(prompt=[[1], [2]]) and len(p.asked) == asked
    for more in ({"n": 4}, {"n": 2, "best_of": 3}, {"best_of": 2}, {"n": 2, "use_beam_search": True}):
        assert not ask(prompt="a", **more) and not ask("/v1/chat/completions", messages=[{}], **more)
        first = p.asked[-1][1]
        assert first.get("n", 1) == first.get("best_of", 1) == 1 and "use_beam_search" not in first and "kv_transfer_params" not in first
    assert len(p.asked) == asked + 8 and proxy.counter("plain_total") == plain + 10


def test_lists_of_the_environment(site, bench):
    """A bootstrap port stands behind a comma there, too."""
    p, q, d = (Server(kind, True) for kind in ("prefill", "prefill", "decode"))
    daemon = bench.start("proxy", "kvpool-conductor", "--http", "127.0.0.1:0", "--proxy", "127.0.0.1:0", env={"KVPOOL_PREFILL": f"{p.arg},{q.url}", "KVPOOL_DECODE": d.url})
    told = [(s["role"], s["url"], s.get("bootstrap")) for s in json.loads(daemon.http_get("/servers")[1])["servers"]]
    assert told == [("prefill", p.url, p.url), ("prefill", q.url, None), ("decode", d.url, None)]
    for s in (p, q, d):
        s.close()


def test_replicas_in_turn_and_streams_at_once(site):
    """Fails if replicas are not used in turn, the body is changed, or a stream waits for more of itself."""
    proxy, a, b = site("replica", "replica")
    a.chunks = b.chunks = 3
    a.gap = b.gap = 0.4
    raw = b' {"model" : "m",\n "stream":true, "x":1.0000000000000000001}\n'
    first_s = []
    while len(first_s) < 2 or (len(first_s) < 6 and sorted(first_s)[1] >= 0.3 * SLOW):
        c, r = proxy.open(None, raw=raw)
        begun, times = time.monotonic(), []
        while line := r.readline():
            if line.strip():
                times.append(time.monotonic() - begun)
        c.close()
        assert len(times) == 3
        first_s.append(times[0])
    assert sorted(first_s)[1] < 0.3 * SLOW, first_s  # two of them: the machine may stand still for others
    assert {len(s.asked) for s in (a, b)} <= {len(first_s) // 2, (len(first_s) + 1) // 2}


@pytest.mark.parametrize("how", ["close", "stall", 500])
def test_prefill_fails(site, how):
    """Fails if a prefill that fails or stalls is not tried elsewhere, or decoding without it is not what is left."""
    proxy, p, q, d = site("prefill", "prefill", "decode", args=("--prefill-timeout", "2s"))
    p.fail = how
    for _ in range(2):
        assert proxy.post(BODY)[0] == 200
    assert len(q.asked) >= 1 and all("kv_transfer_params" in body for _, body, _ in d.asked) and proxy.counter("plain_total") == 0
    q.fail = how
    assert proxy.post(BODY)[0] == 200
    assert "kv_transfer_params" not in d.asked[-1][1] and proxy.counter("plain_total") == 1


@pytest.mark.parametrize("how", ["close", "stall", "head", "silent", "event", 503])
def test_decode_fails_before_its_first_byte(site, how):
    """Fails if the request is lost, or if another server is to fetch what may be gone, or was fetched."""
    proxy, p, d, e = site("prefill", "decode", "decode", args=("--first-byte-timeout", "2s"))
    d.fail = how
    for _ in range(3):
        assert proxy.post(BODY)[0] == 200
    assert len(e.asked) == 3
    assert all("kv_transfer_params" not in body for _, body, _ in e.asked[:len(d.asked)]) and e.asked[0][1] == BODY
    assert proxy.counter("plain_total") == len(d.asked)
    e.fail = how
    status, text, _ = proxy.post(BODY)
    assert status == 502 and json.loads(text)["error"]["type"] == "upstream_error", text
    d.fail = e.fail = None
    assert proxy.post(BODY)[0] == 200, "servers that are left out are tried where there is no other"


def test_decode_server_that_is_not_there(site):
    """What the prefill server has is still there for another one."""
    proxy, p, d, e = site("prefill", "decode", "decode")
    d.close()
    assert [proxy.post(BODY)[0] for _ in range(2)] == [200, 200]
    assert [body["kv_transfer_params"]["remote_host"] for _, body, _ in e.asked] == ["h", "h"] and proxy.counter("plain_total") == 0


def test_decode_server_dies_under_a_kept_connection(site):
    """Fails if that no connection could be made after that looks as if it had not seen the request."""
    proxy, p, d, e = site("prefill", "decode", "decode", args=("--proxy-threads", "1"))
    assert [proxy.post(BODY)[0] for _ in range(2)] == [200, 200]
    d.fail = "die"
    assert [proxy.post(BODY)[0] for _ in range(2)] == [200, 200]
    assert len(d.asked) == 2 and ["kv_transfer_params" in body for _, body, _ in e.asked] == [True, False, True]
    assert proxy.counter("plain_total") == 1


def test_failed_transfer_with_one_decode_server(site):
    """The same server computes what it could not fetch."""
    proxy, p, d = site("prefill", "decode")
    d.fail = "params"
    assert proxy.post(BODY)[0] == 200 and proxy.post({**BODY, "stream": False})[0] == 200
    assert ["kv_transfer_params" in body for _, body, _ in d.asked] == [True, False] * 2


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_request_is_delivered_at_most_twice(site, is_kept):
    """Fails if one request ends more servers than two, or if a second delivery is lost although its server is well."""
    proxy, *servers = site(*["replica"] * 6, args=("--proxy-threads", "1"))
    for _ in servers if is_kept else ():
        assert proxy.post({"model": "m"})[0] == 200
    before = len(servers) * is_kept
    for s in servers:
        s.fail = "close"
    assert proxy.post({"model": "m"})[0] == 502 and sum(len(s.asked) for s in servers) == before + 2
    assert max(len(s.asked) for s in servers) == 1 + is_kept


@pytest.mark.parametrize("n", [1, 2])
def test_a_kept_connection_that_ends(site, n):
    """Fails if the second delivery goes to the same server although there is another, if it is lost where there is none, or if a decode server gets the same parameters twice."""
    for kind in ("replica", "decode", "prefill"):
        kinds = [kind] * n + {"replica": [], "decode": ["prefill"], "prefill": ["decode"]}[kind]
        proxy, *servers = site(*kinds, args=("--proxy-threads", "1"))
        mine = servers[:n]
        for _ in mine:
            assert proxy.post({"model": "m"})[0] == 200
        mine[0].fail = "once"
        assert proxy.post({"model": "m"})[0] == 200
        assert [len(s.asked) for s in mine] == ([3] if n == 1 else [2, 2])
        assert json.loads(proxy.get("/healthcheck")[1])["left_out"] == 0
        if kind == "decode":
            assert ["kv_transfer_params" in s.asked[-1][1] for s in mine] == ([False] if n == 1 else [True, False])
        for s in mine:
            s.fail = "close"
        before = sum(len(s.asked) for s in mine)
        assert proxy.post({"model": "m"})[0] == (200 if kind == "prefill" else 502)
        assert sum(len(s.asked) for s in mine) == before + 2
        proxy.daemon.terminate()


def test_servers_without_room(site):
    """Fails if one server's 429 is the answer although another has room, if a decode server's costs the hand-over, or if none has room and the client is not told when to come again."""
    proxy, p, q, d, e, f = site("prefill", "prefill", "decode", "decode", "decode")
    p.fail = 429
    for _ in range(4):
        assert proxy.post({"model": "m"})[0] == 200
    assert all("kv_transfer_params" in body for s in (d, e, f) for _, body, _ in s.asked)
    q.fail = 429
    assert proxy.post({"model": "m"})[0] == 200 and proxy.counter("plain_total") == 1, "decode servers compute alone"
    p.fail = q.fail = None
    d.fail = e.fail = 429
    for _ in range(3):
        assert proxy.post({"model": "m"})[0] == 200 and "kv_transfer_params" in f.asked[-1][1]
    f.fail = 429
    before = sum(len(s.asked) for s in (d, e, f))
    status, text, r = proxy.post({"model": "m"})
    assert status == 429 and r.headers["Retry-After"] == "7" and json.loads(text)["error"]["message"] == "stub says 429"
    assert sum(len(s.asked) for s in (d, e, f)) == before + 3
    f.fail, f.health = "close", 503
    assert proxy.post({"model": "m"})[0] == 429, "a server that fails says nothing of when to come again"
    assert json.loads(proxy.get("/healthcheck")[1])["left_out"] == 1


def test_prefill_that_tells_no_parameters(site):
    """Fails if it is hidden that all is computed twice."""
    proxy, p, d = site("prefill", "decode")
    p.fail = "no_params"
    assert [proxy.post(BODY)[0] for _ in range(2)] == [200, 200]
    assert proxy.counter("plain_total") == 2 and "kv_transfer_params" not in d.asked[0][1]
    assert proxy.daemon.log().count("answers without kv_transfer_params") == 1


@pytest.mark.parametrize("kinds", [("prefill", "prefill", "decode"), ("replica", "replica")])
def test_errors_of_one_request(site, kinds):
    """Fails if a request that every server answers 500 leaves others without servers."""
    proxy, *servers = site(*kinds)
    for s in servers:
        s.fail = s.health = 500
    assert proxy.post(BODY)[0] == 502
    assert not any(s["is_left_out"] for s in proxy.servers("GET")[1]["servers"])
    for _ in range(2):
        proxy.post(BODY)
    assert json.loads(proxy.get("/healthcheck")[1])["left_out"] == len(servers)


def test_after_the_first_byte(site):
    """Fails if an answer that breaks off looks whole."""
    proxy, a, b = site("replica", "replica")
    a.fail = b.fail = "middle"
    c, r = proxy.open(BODY)
    with pytest.raises(http.client.IncompleteRead) as e:
        r.read()
    assert e.value.partial.startswith(b"data: 0\n\ndata: 1\n\ndata: 2\n\n") and b'"error"' in e.value.partial
    c.close()
    assert proxy.counter("broken_total") == 1 and len(a.asked) + len(b.asked) == 1


def test_a_servers_own_word(site):
    """Fails if a 4xx is changed, or puts anybody out of service."""
    proxy, p, d = site("prefill", "decode")
    for s, at in ((p, 422), (d, 404)):
        s.fail = at
        for _ in range(2):
            status, text, _ = proxy.post(BODY)
            assert status == at and json.loads(text) == {"error": {"message": f"stub says {at}"}}
        s.fail = None
    assert proxy.post(BODY)[0] == 200


WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
ANSWERS = {
    "plain": (WHOLE, 200), "interim": (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 x\r\nLink: y\r\n\r\n" + WHOLE, 200), "to_the_end": (b"HTTP/1.0 200 OK\r\n\r\nhello", 200),
    "chunked": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nTrailer: z\r\n\r\n", 200), "more": (WHOLE + b"HTTP/1.1 200 OK\r\n", 200),
    "nothing": (b"", 502), "no_http": (b"SSH-2.0-x\r\n", 502), "half_a_head": (b"HTTP/1.1 200 OK\r\nContent-Le", 502), "two_lengths": (WHOLE.replace(b"\r\n\r\n", b"\r\nContent-Length: 6\r\n\r\n"), 502),
    "no_length": (WHOLE.replace(b": 5", b": five"), 502), "long_head": (WHOLE.replace(b"Content-Type: ", b"Content-Type: " + b"x" * 100000), 502), "upgrade": (b"HTTP/1.1 101 x\r\nUpgrade: y\r\nConnection: upgrade\r\n\r\n", 502),
    "no_chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 502), "interim_body": (b"HTTP/1.1 199 Odd\r\nContent-Length: 5\r\n\r\nhello", 502),
    "interim_body_and_answer": (b"HTTP/1.1 103 x\r\nContent-Length: 5\r\n\r\nhello" + WHOLE, 502), "interim_chunks": (b"HTTP/1.1 150 x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n" + WHOLE, 502),
    "interim_rest": (b"HTTP/1.1 102 x\r\n\r\nhello", 502), "interim_alone": (b"HTTP/1.1 102 x\r\n\r\n", 502), "no_values": (WHOLE.replace(b"\r\n\r\n", b"\r\nX-Empty:\r\nX-Tab: a\tb\r\nX-Folded: a\r\n\r\n"), 200),
    "trailers": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-T: 1\r\nContent-Type: y\r\n\r\n", 200)}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("piece", [1, 1 << 20], ids=["bytewise", "at_once"])
def test_what_servers_answer(bench, name, piece):
    """Fails if an answer that is one is not passed on, or one that is none is."""
    sent, status = ANSWERS[name]
    if piece == 1 and len(sent) > 1000:
        piece = 1000

    def serve():
        while True:
            try:
                s, _ = listener.accept()
            except OSError:
                return
            with s, contextlib.suppress(OSError):
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                asked = b""
                while not asked.endswith(b"}"):  # a close before all is read would cut the answer
                    asked += s.recv(65536) or b"}"
                for i in range(0, len(sent), piece):
                    s.sendall(sent[i:i + piece])

    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, daemon=True).start()
    daemon = bench.start("proxy", "kvpool-conductor", "--http", "127.0.0.1:0", "--proxy", "127.0.0.1:0", "--replica", f"http://localhost:{listener.getsockname()[1]}")
    for _ in range(2):
        with contextlib.closing(http.client.HTTPConnection(*daemon.listen.split(":"), timeout=20 * SLOW)) as c:
            c.request("POST", "/v1/completions", json.dumps(BODY))
            r = c.getresponse()
            assert r.status == status and (r.read() == b"hello" if status == 200 else json.loads(r.read())["error"])
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def test_headers_of_an_answer(site):
    """Fails if a header of a server's answer is lost, comes twice, or passes although it is between neighbours only."""
    proxy, p, d = site("prefill", "decode")
    more = [("Content-Encoding", "gzip"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"), ("ETag", '"x"'), ("X-Long", "y" * 8000)]
    p.headers = d.headers = [*more, ("Connection", "keep-alive, X-Hop"), ("X-Hop", "1"), ("Keep-Alive", "timeout=5"), ("Upgrade", "x"), ("Access-Control-Allow-Origin", "http://other"),
                             ("X-Request-Id", "theirs"), ("X-Empty", "")]
    for p.fail, status in ((None, 200), (401, 401)):  # the decode server's answer, and a prefill server's own word
        got, _, r = proxy.post({"model": "m"}, headers={"X-Request-Id": "mine", "Origin": "http://page"})
        assert got == status and [(k, v) for k, v in r.headers.items() if (k, v) in more] == more, r.headers.items()
        assert not {"x-hop", "keep-alive", "upgrade"} & {k.lower() for k in r.headers}
        assert [r.headers.get_all(k) for k in ("X-Request-Id", "Access-Control-Allow-Origin", "Content-Type")] == [["mine"], ["*"], ["application/json"]]
        assert len(r.headers.get_all("Date")) == len(r.headers.get_all("Server")) == len(r.headers.get_all("Content-Length")) == 1
    p.fail, d.fail = None, "close"
    status, _, r = proxy.post({"model": "m"})
    assert status == 502 and "Set-Cookie" not in r.headers and "Content-Encoding" not in r.headers, "an answer of the proxy's own"


def test_authorization_that_is_too_long(site):
    """Fails if a request goes out without the Authorization that it came with."""
    proxy, a = site("replica")
    for n, status in ((4095, 200), (4096, 431), (20000, 431)):
        asked = len(a.asked)
        assert proxy.post({"model": "m"}, headers={"Authorization": "x" * n})[0] == status
        assert len(a.asked) == asked + (status == 200) and (status != 200 or a.asked[-1][2]["Authorization"] == "x" * n)


def test_paths_of_replicas(site):
    """Fails if what replicas serve does not pass, passes elsewhere, or passes to decode servers."""
    proxy, a, b = site("replica", "replica")
    pd, p, d = site("prefill", "decode")
    posts = ("/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/responses", "/v1/rerank", "/v1/score", "/detokenize")
    for path in (*posts, "/tokenize"):
        status, text, _ = proxy.post({"model": "m", "prompt": "1"}, path)
        assert status == 200 and json.loads(text) == ({"tokens": [1]} if path == "/tokenize" else {"choices": [{"text": "ok"}]}), path
        assert proxy.get(path)[0] == 405 and pd.post({"model": "m", "prompt": "1"}, path)[0] == (200 if path.endswith("completions") else 404)
    assert sorted(path for s in (a, b) for path, _, _ in s.asked) == sorted(posts) and a.tokenized + b.tokenized == 1
    for path in ("/v1/models", "/v1/models/m", "/v1/models/org/m", "/v1/models/org%2Fm"):
        for at, servers in ((proxy, (a, b)), (pd, (d,))):
            for s in servers:
                s.asked.clear()
            assert at.get(path)[0] == 200 and [path for s in servers for path, _, _ in s.asked] == [path]
    assert proxy.get("/v1/models/../../metrics")[0] == 404 and proxy.get("/v1/models/")[0] == 404
    a.fail = 429
    assert [proxy.get("/v1/models")[0] for _ in range(2)] == [200, 200]
    b.fail = 429
    assert proxy.get("/v1/models")[0] == 429


@pytest.mark.parametrize("kinds", [("replica", "replica"), ("prefill", "decode"), ("prefill", "decode", "decode")])
def test_health(site, kinds):
    """Fails if /health is not 200 just while each role has a server in use, or asks the servers."""
    proxy, *servers = site(*kinds)
    assert proxy.get("/health")[0] == 200 and all(s.asked == [] and s.checks == 0 for s in servers)
    for s in servers:
        s.fail, s.health = "close", 503
        for _ in range(2 if s.kind != "prefill" else 1):
            proxy.post({"model": "m"})
        others = [o for o in servers if o.kind == s.kind and o.fail is None]
        assert proxy.get("/health")[0] == (200 if others else 503), (s.kind, proxy.servers("GET"))
        assert proxy.get("/healthcheck")[0] == 200
        if s.kind == "prefill":
            s.fail, s.health = None, 200
            wait_until(lambda: proxy.get("/health")[0] == 200, 10, "the prefill server to be back")
    for s in servers:
        s.fail, s.health = None, 200
    wait_until(lambda: proxy.get("/health")[0] == 200, 10, "the servers to be back")


def test_client_goes(site):
    """Fails if a server goes on for a client that has gone."""
    proxy, a = site("replica")
    a.chunks, a.gap = 1000, 0.02
    c, r = proxy.open(BODY)
    r.readline()
    c.sock.close() if c.sock else None
    r.close()
    c.close()
    wait_until(lambda: a.gone == 1, 5, "the server to lose its client")
    a.fail = "stall"
    c = http.client.HTTPConnection(*proxy.at, timeout=5)
    c.request("POST", "/v1/completions", json.dumps(BODY))
    wait_until(lambda: len(a.asked) == 2, 5, "the request")
    c.close()
    wait_until(lambda: proxy.counter("gone_total") == 2 and proxy.counter("open") == 0, 5, "the end of what nobody waits for")


@pytest.mark.parametrize("raw", [b"", b"x", b"[]", b'{"a":1', b'{"a":"\xff"}', b'{"a":' + b"[" * 100000 + b"]" * 100000 + b"}", b'{"a":01}', b'{"a":1} x', b'{"a":"\n"}',
                                 b"{" + b",".join(b'"%d":1' % i for i in range(200)) + b"}"],
                         ids=["empty", "no_json", "no_object", "cut", "no_utf8", "deep", "number", "more", "control", "fields"])
def test_bodies_that_are_none(site, raw):
    proxy, a = site("replica")
    status, text, _ = proxy.post(raw=raw)
    assert status == 400 and json.loads(text)["error"]["message"] and a.asked == []
    assert proxy.post({"model": "m"})[0] == 200


def test_sizes_paths_and_smuggling(site):
    proxy, a = site("replica")
    assert proxy.post({"p": "x" * (4 << 20)})[0] == 200
    assert proxy.get("/v1/completions")[0] == 405 and proxy.get("/no")[0] == 404
    for head in (b"Content-Length: 5\r\nContent-Length: 6\r\n", b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", b"Content-Length: -1\r\n", b"Content-Length: x\r\n",
                 b"X: " + b"y" * 300000 + b"\r\n", b"Transfer-Encoding: chunked\r\n"):
        with socket.create_connection(proxy.at, timeout=10) as s:
            with contextlib.suppress(OSError):
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + head + b'\r\nzz\r\n{"model":"m"}GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n')
            got = b""
            with contextlib.suppress(OSError):
                while more := s.recv(65536):
                    got += more
        assert b" 200 " not in got, (head[:60], got[:300])
    good = b'{"model":"m"}'
    hidden = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 13\r\n\r\n" + good
    for head, status in ((b"Content-Length: 13\r\nContent-Length: %d" % (13 + len(hidden)), 400), (b"Content-Length: 13\r\nContent-Length: 13", 400),
                         (b"Content-Length: 0\r\nContent-Length: 95", 400), (b"Content-Length : 95", 400), (b"Transfer-Encoding : chunked\r\nContent-Length: 0", 400),
                         (b"Transfer-Encoding: gzip, chunked", 501), (b"Transfer-Encoding: xchunked", 501), (b"Content-Length: 33554433", 413)):
        begun = time.monotonic()
        with socket.create_connection(proxy.at, timeout=10) as s:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n" + good + hidden)
            got = b""
            with contextlib.suppress(ConnectionResetError):
                while more := s.recv(65536):
                    got += more
        assert got.startswith(b"HTTP/1.1 %d " % status) and got.count(b"HTTP/1.1") == 1 and b'"error"' in got, (head, got[:300])
        assert time.monotonic() - begun < 5 * SLOW
    assert [path for path, _, _ in a.asked] == ["/v1/completions"]


@pytest.mark.parametrize("sent", [b"POST /v1/completions HTTP/1.1\r\nX: ", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n"], ids=["head", "body"])
def test_slow_clients_are_cut_off(site, sent):
    """Fails if one that sends a byte now and then is waited for, or keeps another one waiting, or if one whose request was answered may send no other."""
    proxy, a = site("replica", args=("--upload-timeout", "3s"))
    c = http.client.HTTPConnection(*proxy.at, timeout=20 * SLOW)
    begun = time.monotonic()
    with socket.create_connection(proxy.at, timeout=10) as s, pytest.raises(OSError):
        s.sendall(sent)
        while time.monotonic() - begun < 15 * SLOW:
            s.sendall(b"x")
            c.request("POST", "/v1/completions", json.dumps({**BODY, "stream": False}))
            assert c.getresponse().read() and time.monotonic() - begun < 10 * SLOW
            time.sleep(0.1)
    assert time.monotonic() - begun > 2.9 and proxy.counter("open") == 0 and len(a.asked) > 2
    c.close()


def test_large_body_is_refused_and_many_streams_pass(site):
    proxy, a = site("replica")
    with contextlib.suppress(OSError):
        assert proxy.post(raw=b'{"p":"' + b"x" * (64 << 20) + b'"}')[0] == 413
    a.chunks, bad = 20, []

    def stream():
        if proxy.post(BODY)[1] != b"".join(b"data: %d\n\n" % i for i in range(20)):
            bad.append(1)

    threads = [threading.Thread(target=stream) for _ in range(60)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not bad
    wait_until(lambda: proxy.counter("open") == 0, 5, "all requests to be over")


def test_ends_in_time(site):
    proxy, a = site("replica")
    a.fail = "stall"

    def ask():
        with contextlib.suppress(OSError, http.client.HTTPException):
            proxy.post(BODY)

    threading.Thread(target=ask, daemon=True).start()
    wait_until(lambda: len(a.asked) == 1, 5, "the request")
    proxy.daemon.terminate(8 * SLOW)


def test_servers_come_and_go(site):
    """Fails if a server that is added gets nothing, one that is removed gets more or loses what is under way, or a bad one is taken."""
    proxy, a = site("replica")
    b = Server("replica", False)
    try:
        a.chunks, a.gap = 20, 0.05
        c, r = proxy.open(BODY)
        r.readline()
        one = {"role": "replica", "url": b.url + "/"}
        assert [s["url"] for s in proxy.servers("POST", one)[1]["servers"]] == [a.url, b.url]
        assert proxy.servers("POST", one)[0] == 200
        status, told = proxy.servers("DELETE", {"role": "replica", "url": a.url})
        assert status == 200 and [s["url"] for s in told["servers"]] == [b.url]
        for _ in range(3):
            assert proxy.post(BODY)[0] == 200
        assert len(a.asked) == 1 and len(b.asked) == 3
        assert r.read().endswith(b"data: 19\n\n"), "what was under way goes on"
        c.close()
        assert proxy.servers("DELETE", {"role": "replica", "url": a.url})[0] == 404
        assert proxy.servers("POST", {"role": "replica", "url": b.url + "/v1"})[1]["servers"] == proxy.servers("GET")[1]["servers"]
        for bad in ({}, [], {"role": "x", "url": "http://a"}, {"role": "replica", "url": "https://a"}, {"role": "replica", "url": "ftp://a"}, {"role": "replica", "url": 1}, {"role": "replica", "url": ""},
                    {"role": "replica", "url": "http://a b"}, {"role": "replica", "url": "http://a:99999"}, {"role": "replica", "url": "http://a", "bootstrap_port": 1}, {"role": "prefill", "url": "http://a", "bootstrap_port": 65536},
                    {"role": "prefill", "url": "http://a", "bootstrap_port": "1"}, {"role": "replica", "url": "http://" + "a" * 300}, {"role": "replica", "url": "http://" + "a" * 600}):
            status, told = proxy.servers("POST", bad)
            assert status == 400 and told["error"], bad
        told = proxy.servers("POST", {"role": "prefill", "url": "http://[::1]:9/x", "bootstrap_port": 7})[1]
        assert [s.get("bootstrap") for s in told["servers"] if s["role"] == "prefill"] == ["http://[::1]:7"], told
    finally:
        b.close()


def test_decode_servers_go_on_without_prefill_servers(site):
    proxy, p, d = site("prefill", "decode")
    assert proxy.servers("DELETE", {"role": "prefill", "url": p.url})[0] == 200
    assert proxy.post(BODY)[0] == 200 and "kv_transfer_params" not in d.asked[-1][1] and proxy.counter("plain_total") == 1
    assert proxy.servers("POST", {"role": "prefill", "url": p.url})[0] == 200
    assert proxy.post(BODY)[0] == 200 and "kv_transfer_params" in d.asked[-1][1]


def test_one_that_failed_is_checked(site):
    """Fails if a server that failed gets requests before it answers checks again."""
    proxy, a, b = site("replica", "replica")
    a.fail, a.health = "close", 503
    for _ in range(2):
        assert proxy.post(BODY)[0] == 200
    asked = len(a.asked)
    assert asked == 1
    wait_until(lambda: a.checks >= 2, 10, "checks")
    for _ in range(3):
        assert proxy.post(BODY)[0] == 200
    assert len(a.asked) == asked
    a.fail, a.health = None, 200
    wait_until(lambda: not any(s["is_left_out"] for s in proxy.servers("GET")[1]["servers"]), 10, "the server to be back")
    for _ in range(2):
        assert proxy.post(BODY)[0] == 200
    assert len(a.asked) == asked + 1
