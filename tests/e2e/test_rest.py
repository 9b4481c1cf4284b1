# SPDX-License-Identifier: Apache-2.0
"""Objects over HTTP (kvpool-node --http --rest): the paths and bodies of the reference's store service, and what a stranger may send."""
import contextlib
import http.client
import itertools
import json
import socket
import threading
import time
import urllib.parse

import pytest

from clients import Shell
from conftest import SLOW, wait_until

MIB = 1 << 20
VALUE_MAX = 100 * MIB


class Rest:
    """Requests to one node, each over a connection of its own."""

    def __init__(self, node):
        self.node = node

    def ask(self, method, path, body=None, timeout=30 * SLOW):
        """(status, parsed JSON or bytes)"""
        host, _, port = self.node.http.rpartition(":")
        at = http.client.HTTPConnection(host, int(port), timeout=timeout)
        try:
            at.request(method, path, body)
            answer = at.getresponse()
            data = answer.read()
            is_json = answer.getheader("Content-Type") == "application/json"
            return answer.status, json.loads(data) if is_json else data
        finally:
            at.close()

    def put(self, key, value):
        return self.ask("PUT", "/api/put", json.dumps({"key": key, "value": value}))

    def get(self, key):
        return self.ask("GET", f"/api/get/{urllib.parse.quote(key, safe='')}")


@pytest.fixture
def rest(pool):
    return Rest(pool.add_node("rest", "64MiB", "--http", "127.0.0.1:0", "--rest", "yes", "--chunk-bytes", "64MiB"))


def test_put_get_exist_remove(pool, rest):
    for key in ("plain", "a/b c?d&e%f", "ключ", "x" * 1024):
        quoted = urllib.parse.quote(key, safe="")
        assert rest.get(key) == (404, {"error": "Key not found"})
        assert rest.ask("GET", f"/api/exist/{quoted}") == (200, {"exists": False})
        assert rest.put(key, "value ü") == (200, {"status": "success", "stored": True, "already": False, "size_bytes": 8})
        assert rest.get(key) == (200, "value ü".encode())
        assert rest.ask("GET", f"/api/exist/{quoted}") == (200, {"exists": True})
        status, told = rest.put(key, "another")  # what is there stays, as in any put
        assert status == 200 and told.pop("detail") and told == {"status": "success", "stored": False, "already": True, "size_bytes": 8}
        assert rest.get(key) == (200, "value ü".encode())
        assert rest.ask("DELETE", f"/api/remove/{quoted}") == (200, {"status": "success"})
        assert rest.ask("DELETE", f"/api/remove/{quoted}") == (404, {"error": "Key not found"})
    # The pool's other clients see the same, and bytes are bytes.
    assert pool.put("cli", bytes(range(256))).rc == 0
    assert rest.get("cli") == (200, bytes(range(256)))
    rest.put("theirs", "mine")
    assert pool.get("theirs").out == b"mine"
    assert pool.rm("theirs").rc == 0
    assert rest.get("theirs")[0] == 404
    for i in range(5):
        rest.put(f"all{i}", "x")
    assert rest.ask("DELETE", "/api/remove_all") == (200, {"status": "success removed 6 keys"})
    assert rest.get("cli")[0] == 404


def test_large_values(rest):
    value = "0123456789abcdef" * (2 * MIB)  # 32 MiB
    assert rest.put("large", value)[1]["stored"]
    status, data = rest.get("large")
    assert status == 200 and data == value.encode()


def test_what_is_held_is_not_removed(pool, rest):
    holder = Shell(pool.bench, pool.addr, "holder")
    rest.put("held/0", "x")
    assert holder("lookup held/ 0 1 ttl=60000")["granted"] == 1
    status, answer = rest.ask("DELETE", "/api/remove/held%2F0")
    assert status == 409 and answer["error"].startswith("HELD")
    assert rest.get("held/0") == (200, b"x")


def test_bad_requests(pool, rest):
    """Each is refused with a reason, and nothing of the pool changes."""
    rest.put("a", "kept")
    missing = (400, {"error": "Missing key or value"})
    for body in ('{}', '{"key": "k"}', '{"value": "v"}', '{"key": "", "value": "v"}', '{"key": "k", "value": ""}', '{"key": 5, "value": "v"}',
                 '{"key": "k", "value": ["v"]}', '{"key": null, "value": "v"}', '[]', '"k"'):
        assert rest.ask("PUT", "/api/put", body) == missing, body
    for body in ("", "{", "5", "null", '{"key": "k", "value": "v"} x', b'{"key": "k", "value": "\xff"}', "[" * 100000):
        status, answer = rest.ask("PUT", "/api/put", body)
        assert status == 400 and "error" in answer, body
    many = {"error": "body has more than 4096 values"}  # the parser would take gigabytes for them
    for body in ("[" + "{}," * (8 * MIB) + "{}]", '{"key": "k", "value": "v", "more": [' + "0," * 5000 + "0]}"):
        assert rest.ask("PUT", "/api/put", body) == (400, many)
    assert rest.put("commas", ",[{" * 5000)[0] == 200 and rest.ask("DELETE", "/api/remove/commas")[0] == 200
    assert rest.ask("PUT", "/api/put", "null") == (400, {"error": "body is null"})
    for value in ('"\\ud800"', '"\\ude00\\ud83d"', b'"\xed\xa0\x80"'):  # no characters: they were stored as U+FFFD, or as they are
        body = b'{"key": "half", "value": ' + (value if isinstance(value, bytes) else value.encode()) + b"}"
        assert rest.ask("PUT", "/api/put", body)[0] == 400, body
    assert rest.put("smile", "\U0001f600")[0] == 200 and rest.get("smile") == (200, "\U0001f600".encode())  # json.dumps writes a pair
    assert rest.ask("DELETE", "/api/remove/smile")[0] == 200
    for key in ("a\0b", "\0", "a\0"):  # no path could name them
        assert rest.put(key, "v")[0] == 400, key
    assert rest.put("nul", "\0v\0")[0] == 200 and rest.get("nul") == (200, b"\0v\0")
    assert rest.ask("DELETE", "/api/remove/nul")[0] == 200
    assert rest.put("x" * 1025, "v")[0] == 400
    for method, path in (("GET", "/api/get/"), ("GET", "/api/exist/"), ("DELETE", "/api/remove/"), ("GET", "/api/get/" + "x" * 1025)):
        assert rest.ask(method, path)[0] == 400, path
    # A NUL in a path does not cut it down to another key.
    for method, path in (("GET", "/api/get/a%00b"), ("DELETE", "/api/remove/a%00b"), ("DELETE", "/api/remove/a%00")):
        assert rest.ask(method, path)[0] == 404, path
    assert rest.ask("GET", "/api/get/" + "x" * 40000)[0] in (400, 414, 431)
    for method, path in (("POST", "/api/put"), ("GET", "/api/put"), ("DELETE", "/api/get/a"), ("GET", "/api/remove_all"), ("POST", "/api/mount"),
                         ("GET", "/api/"), ("DELETE", "/api/remove_all/x")):
        assert rest.ask(method, path)[0] in (404, 405), path
    assert rest.get("a") == (200, b"kept")
    assert pool.kvpool("stat", "--json").json["pool"]["objects"] == 1


def test_head_is_get_without_a_body(pool, rest):
    """Where GET is served, by the node and by the master; for an object it tells the length."""
    rest.put("a", "kept")
    for at, paths in ((rest, ("/health", "/metrics", "/api/get/a", "/api/exist/a", "/api/remove/a")), (Rest(pool.master), ("/health", "/metrics", "/"))):
        host, _, port = at.node.http.rpartition(":")
        with contextlib.closing(http.client.HTTPConnection(host, int(port), timeout=30 * SLOW)) as kept:
            for path in paths:
                kept.request("HEAD", path)
                answer = kept.getresponse()
                assert answer.status == (405 if "remove" in path else 200) and answer.read() == b"", path
                if path == "/api/get/a":
                    assert answer.getheader("Content-Length") == "4"
            kept.request("GET", "/health")  # nothing of a body came before it
            assert json.loads(kept.getresponse().read())["status"] == "ok"
    assert rest.get("a") == (200, b"kept")


def test_bodies_have_a_bound(rest):
    """Over the limit: 413, or cut off where it goes on; several large ones at a time: 503, and room again once they have gone."""
    def declared(length):
        host, _, port = rest.node.http.rpartition(":")
        s = socket.create_connection((host, int(port)), timeout=30 * SLOW)
        s.sendall(f"PUT /api/put HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode())
        return s

    piece = b"x" * MIB

    def fill(s, n):
        try:
            for _ in range(n):
                s.sendall(piece)
            return True
        except OSError:
            return False

    with declared(VALUE_MAX + MIB) as s:
        fill(s, VALUE_MAX // MIB + 1)
        assert s.recv(100).startswith(b"HTTP/1.1 413")
    with declared(1 << 40) as s:
        assert not fill(s, 200)
    held = [declared(VALUE_MAX) for _ in range(4)]
    for s in held:
        assert fill(s, 98)
    status, answer = rest.ask("PUT", "/api/put", b"x" * (9 * MIB))
    assert status == 503, answer
    assert rest.ask("GET", "/health")[0] == 200
    for s in held:
        s.close()
    wait_until(lambda: rest.put("k", "y" * MIB)[0] == 200, 20, "room for a body")


@contextlib.contextmanager
def idle(at, n):
    """n connections that ask for nothing, every other of them in the middle of a word. The server may end them."""
    host, _, port = at.node.http.rpartition(":")
    with contextlib.ExitStack() as held:
        for i in range(n):
            s = held.enter_context(socket.create_connection((host, int(port)), timeout=30 * SLOW))
            if i % 2:
                with contextlib.suppress(OSError):
                    s.sendall(b"GET /hea")
        yield


def slowest_probe(at, seconds):
    """The longest that a probe of /health or /metrics takes, one behind the other, each over a connection of its own."""
    slowest, end = 0, time.monotonic() + seconds
    for path in itertools.cycle(("/health", "/metrics")):
        began = time.monotonic()
        if began > end:
            return slowest
        assert at.ask("GET", path)[0] == 200
        slowest = max(slowest, time.monotonic() - began)


@pytest.mark.limit(120)
def test_what_waits_keeps_nobody_waiting(pool, rest):
    """The master is stopped, so every object request waits for its deadline: /health answers meanwhile, the requests end with a
    reason, and the node is mounted all the time."""
    assert rest.put("k", "x")[0] == 200
    remounts = figure(rest, "kvpool_node_remounts_total")
    pool.master.freeze()
    answers = []

    def ask():
        answers.append(rest.ask("GET", "/api/get/k", timeout=60 * SLOW)[0])

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for t in threads:
        t.start()
    assert slowest_probe(rest, 2) < 4 * SLOW
    pool.master.thaw()
    for t in threads:
        t.join(60 * SLOW)
    assert len(answers) == 8 and set(answers) <= {200, 503, 504}
    wait_until(lambda: rest.get("k") == (200, b"x"), 20, "the master to be asked again")
    assert figure(rest, "kvpool_node_remounts_total") == remounts and rest.ask("GET", "/health")[1]["is_mounted"]


def figure(rest, name):
    text = rest.ask("GET", "/metrics")[1].decode()
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(name + " "))


def test_idle_connections_keep_nobody_from_health(pool, rest):
    """More than there is room for; nor from the objects, nor those who are in the middle of a body."""
    body = b'{"key": "k", "value": "' + b"x" * MIB + b'"}'
    for at in (rest, Rest(pool.master)):
        with idle(at, 300):
            assert slowest_probe(at, 0.5) < 5 * SLOW
    host, _, port = rest.node.http.rpartition(":")
    with contextlib.closing(http.client.HTTPConnection(host, int(port), timeout=30 * SLOW)) as putter:
        putter.putrequest("PUT", "/api/put")
        putter.putheader("Content-Length", str(len(body)))
        putter.endheaders(body[:1000])
        assert rest.get("k")[0] == 404
        with idle(rest, 300):
            assert rest.get("k")[0] == 404
            putter.send(body[1000:])
            assert putter.getresponse().status == 200
            assert rest.get("k") == (200, b"x" * MIB)


def test_busy_connections_keep_nobody_from_health(rest):
    """200 clients that keep their connections and ask all the time. What they get is right, or 503."""
    assert rest.put("k", "x")[0] == 200
    host, _, port = rest.node.http.rpartition(":")
    statuses, wrong, over = set(), [], threading.Event()

    def work():
        try:
            with contextlib.closing(http.client.HTTPConnection(host, int(port), timeout=30 * SLOW)) as kept:
                while not over.wait(0.3):
                    kept.request("GET", "/api/get/k")  # connects again where the last answer said that it ends
                    answer = kept.getresponse()
                    data = answer.read()
                    statuses.add(answer.status)
                    if answer.status == 200 and data != b"x":
                        wrong.append(data)
        except (OSError, http.client.HTTPException) as e:
            wrong.append(e)

    threads = [threading.Thread(target=work) for _ in range(200)]
    for t in threads:
        t.start()
    try:
        slowest = slowest_probe(rest, 3)
    finally:
        over.set()
        for t in threads:
            t.join(60 * SLOW)
    assert slowest < 5 * SLOW
    assert wrong == [] and 200 in statuses and statuses <= {200, 503}


def test_many_at_once(rest):
    wrong = []

    def work(i):
        for turn in range(20):
            key, value = f"{i}/{turn}", f"value {i} {turn} " * 1000
            if rest.put(key, value)[0] != 200 or rest.get(key) != (200, value.encode()):
                wrong.append(key)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60 * SLOW)
    assert wrong == []


def test_it_stops_under_requests(pool, rest):
    """The daemon ends within its time and cleanly, whatever waits; the fixture looks at its exit code."""
    assert rest.put("k", "x")[0] == 200
    pool.master.freeze()
    results = []

    def ask():
        try:
            results.append(rest.ask("GET", "/api/get/k")[0])
        except OSError:
            results.append(0)
        except http.client.HTTPException:
            results.append(0)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for t in threads:
        t.start()
    time.sleep(0.3)
    assert rest.node.terminate() == 0
    pool.master.thaw()
    for t in threads:
        t.join(30 * SLOW)
    assert len(results) == 8 and 200 not in results


def test_not_without_being_asked(pool):
    """Whoever reaches --http may read and remove everything under /api/, so it takes an option of its own."""
    node = Rest(pool.add_node("plain", "64MiB", "--http", "127.0.0.1:0"))
    for method, path in (("GET", "/api/get/k"), ("DELETE", "/api/remove_all")):
        assert node.ask(method, path)[0] == 404
    assert node.ask("GET", "/health")[0] == 200
    alone = pool.bench.run("kvpool-node", "--master", pool.addr, "--name", "no-http", "--memory", "1MiB", "--rest", "yes")
    assert alone.rc == 2 and "--http" in alone.err


def test_without_a_master(pool, rest):
    """Nobody waits for long, however many ask: one tries to connect for all."""
    pool.master.kill9()
    answers = []
    began = time.monotonic()
    threads = [threading.Thread(target=lambda: answers.append(rest.get("k"))) for _ in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30 * SLOW)
    assert [status for status, _ in answers] == [503] * 12 and all("error" in a for _, a in answers)
    assert time.monotonic() - began < 15 * SLOW
    assert rest.ask("GET", "/health")[0] == 200
