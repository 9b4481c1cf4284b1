# SPDX-License-Identifier: Apache-2.0
"""The proxy's side towards clients: an answer that breaks off looks broken to each of them, and each has a place only as long as it uses it."""
import contextlib
import json
import os
import resource
import socket
import struct
import threading

import pytest

from conftest import SLOW, wait_until
from test_proxy import Proxy

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream; charset=utf-8\r\n"
PART = b'data: {"id":1,"text"'


class Raw:
    """A server that answers each request with `sent`, and when `may_end` is set closes the connection, or resets it."""
    kind = "replica"

    def __init__(self, sent, is_reset=False):
        self.sent, self.is_reset, self.may_end = sent, is_reset, threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.arg = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self.serve, args=self.listener.accept()[:1], daemon=True).start()

    def serve(self, s):
        with contextlib.suppress(OSError):
            s.recv(65536)
            s.sendall(self.sent)
            self.may_end.wait(60)
            if self.is_reset:
                s.sendall(b"x")  # comes together with the reset
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()

    def close(self):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.may_end.set()


@pytest.fixture
def raw(bench):
    made = []

    def make(sent, *args, is_reset=False):
        made.append(Raw(sent, is_reset))
        return Proxy(bench, made[-1:], "--proxy-threads", "1", *args), made[-1]

    yield make
    for s in made:
        s.close()


def connect(proxy, small=False):
    s = socket.socket()
    s.settimeout(20 * SLOW)
    if small:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.connect((proxy.at[0], int(proxy.at[1])))
    return s


def request(version, body=b'{"model":"m","stream":true}'):
    return b"POST /v1/completions HTTP/%s\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (version, len(body), body)


def read_all(s, got=b""):
    """What came and comes, and how it ends."""
    try:
        while more := s.recv(65536):
            got += more
    except ConnectionResetError:
        return got, "rst"
    return got, "fin"


def read_part(s):
    got = b""
    while PART not in got:
        more = s.recv(65536)
        assert more, got
        got += more
    return got


def ask(proxy, server, version):
    """The server ends its answer when the client has the first part."""
    server.may_end.clear()
    with connect(proxy) as s:
        s.sendall(request(version))
        got = read_part(s)
        server.may_end.set()
        return read_all(s, got)


def events(got):
    """The events of a stream, as a reader of such streams takes them."""
    return [e.removeprefix("data: ") for e in got.split(b"\r\n\r\n", 1)[1].decode().split("\n\n") if e]


@pytest.mark.parametrize("head, body, is_reset", [
    (b"Transfer-Encoding: chunked\r\n", b"%x\r\n%s\r\n" % (len(PART), PART), False),
    (b"Connection: close\r\n", PART, True),
    (b"Content-Length: 100\r\n", PART, False)], ids=["chunked", "to_the_end", "length"])
def test_cut_answer_is_reset(raw, head, body, is_reset):
    """Fails if a client that knows no chunks sees a FIN, loses a part, or finds the error inside the last event."""
    proxy, server = raw(STREAM + head + b"\r\n" + body, is_reset=is_reset)
    got, how = ask(proxy, server, b"1.0")
    assert how == "rst", got
    if head.startswith(b"Content-Length"):
        assert got.endswith(PART)
        return
    first, second = events(got)
    assert first.startswith(PART.decode().removeprefix("data: ")) and json.loads(second)["error"]["code"] == 502
    got, how = ask(proxy, server, b"1.1")
    assert how == "fin" and b'"error"' in got and not got.endswith(b"0\r\n\r\n")


def test_whole_answer_ends_with_fin(raw):
    proxy, server = raw(STREAM + b"Connection: close\r\n\r\n" + PART)
    for _ in range(2):
        got, how = ask(proxy, server, b"1.0")
        assert how == "fin" and got.endswith(PART)


def test_slow_client_has_all_before_the_reset(raw):
    """Fails if the reset drops bytes that the client has not taken yet, or waits for ever for a client that takes none."""
    text = b"".join(b"data: %d\n\n" % i for i in range(30000))
    proxy, server = raw(STREAM + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(text), text))
    with connect(proxy, small=True) as s, connect(proxy, small=True) as lazy:
        for c in (s, lazy):
            c.sendall(request(b"1.0"))
        for c in (s, lazy):
            assert c.recv(1, socket.MSG_PEEK)
        server.may_end.set()
        wait_until(lambda: proxy.counter("broken_total") == 2, 10, "the ends of the answers")
        got, how = read_all(s)
        assert how == "rst" and got.count(b"data: ") == 30001 and "error" in events(got)[-1]
        wait_until(lambda: proxy.counter("open") == 0, 10, "the end of the connection that takes nothing")
        assert read_all(lazy)[1] == "rst"


@pytest.mark.parametrize("how", ["terminate", "kill9"])
def test_proxy_ends_within_an_answer(raw, how):
    """Fails if a client takes what it had of an answer, as the proxy was stopped or killed, for all of it."""
    proxy, _ = raw(STREAM + b"Connection: close\r\n\r\n" + PART)
    with connect(proxy) as s, connect(proxy) as chunked:
        for c, version in ((s, b"1.0"), (chunked, b"1.1")):
            c.sendall(request(version))
        start = [read_part(c) for c in (s, chunked)]
        getattr(proxy.daemon, how)()
        got, end = read_all(s, start[0])
        assert end == "rst"
        if how == "terminate":
            assert json.loads(events(got)[-1])["error"]["message"] == "the proxy is being stopped"
        assert not read_all(chunked)[0].endswith(b"0\r\n\r\n")


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + b"Content-Length: 100\r\n\r\n{", request(b"1.1")], ids=["idle", "half_head", "half_body", "whole"])
def test_client_that_ends_its_connection_has_gone(raw, sent):
    """Fails if an end that comes together with bytes is missed, so that the connection stays for its timeout."""
    proxy, _ = raw(b"")
    with connect(proxy) as s:
        s.settimeout(5 * SLOW)
        s.sendall(sent)
        s.shutdown(socket.SHUT_WR)
        assert read_all(s)[0] == b""
    wait_until(lambda: proxy.counter("open") == proxy.counter("uploads") == 0, 5, "the places")
    with connect(proxy) as s:  # what can be answered at once is
        s.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        s.shutdown(socket.SHUT_WR)
        assert b"kvpool_proxy_uploads 0" in read_all(s)[0]


def test_client_that_goes_beside_a_stream(raw):
    """Fails if a client that reads nothing of a fast stream keeps its place after its end."""
    proxy, server = raw(STREAM + b"Content-Length: 16000000\r\n\r\n" + b"x" * 8000000)
    with connect(proxy, small=True) as s:
        s.sendall(request(b"1.1"))
        assert s.recv(1, socket.MSG_PEEK)
        wait_until(lambda: proxy.counter("open") == 1, 5, "the request")
        s.shutdown(socket.SHUT_WR)
        wait_until(lambda: proxy.counter("open") == 0, 5, "the place")
        assert proxy.counter("gone_total") == 1 and read_all(s)[1] == "rst"


def test_half_sent_requests_keep_nobody_out(raw):
    """Fails if uploads take the places of requests, or if it is not the oldest upload that gives way."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard >= 8192 + 2048, "this test opens 4,200 connections, and so does the proxy"
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    proxy, server = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    server.may_end.set()
    with contextlib.ExitStack() as held:
        half = []
        for _ in range(4096 + 10):
            half.append(held.enter_context(connect(proxy)))
            half[-1].sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        wait_until(lambda: proxy.counter("uploads") == 4096, 20, "the uploads")
        with connect(proxy) as s:
            s.sendall(request(b"1.1"))
            assert s.recv(100).startswith(b"HTTP/1.1 200 ")
        gone = []
        for i, s in enumerate(half):
            s.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                assert read_all(s) == (b"", "rst")
                gone.append(i)
        assert gone == list(range(11))  # the oldest, also for the whole request
    wait_until(lambda: proxy.counter("uploads") == 0, 10, "the places of those that have gone")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_no_descriptor_for_a_server(raw, bench, host):
    """Fails if a server is blamed for our own lack, or if the client is told that it was the server's."""
    _, server = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    proxy = Proxy(bench, [], "--proxy-threads", "1", "--replica", server.arg.replace("127.0.0.1", host))
    server.may_end.set()
    with connect(proxy) as s:
        s.sendall(request(b"1.1"))
        assert s.recv(65536).startswith(b"HTTP/1.1 200 ")
        before = resource.prlimit(proxy.daemon.pid, resource.RLIMIT_NOFILE)

        def ask_without_descriptors():
            used = {int(fd) for fd in os.listdir(f"/proc/{proxy.daemon.pid}/fd")}  # one may still be closed
            free = next(fd for fd in range(1024) if fd not in used)
            resource.prlimit(proxy.daemon.pid, resource.RLIMIT_NOFILE, (free, before[1]))
            s.sendall(request(b"1.1"))
            got = s.recv(65536)
            return got.startswith(b"HTTP/1.1 503 ") and b"limit of open files" in got

        for _ in range(4):
            wait_until(ask_without_descriptors, 5, "the lack")
        resource.prlimit(proxy.daemon.pid, resource.RLIMIT_NOFILE, before)
        s.sendall(request(b"1.1"))
        assert s.recv(65536).startswith(b"HTTP/1.1 200 ")
    assert [(one["is_left_out"], one["failures"]) for one in proxy.servers("GET")[1]["servers"]] == [(False, 0)]


def test_more_clients_than_descriptors(bench):
    """Fails if clients take all descriptors of a proxy with few, keep a whole request out, or cost a server its place."""
    server = Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    server.may_end.set()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    few = 300
    proxy = Proxy(bench, [server], "--proxy-threads", "1", files=few)
    try:
        with contextlib.ExitStack() as held:
            for _ in range(few - 20):
                held.enter_context(connect(proxy)).sendall(b"POST /v1/completions HTTP/1.1\r\n")
            with connect(proxy) as s:  # the others give way after 3 s
                s.sendall(request(b"1.1"))
                assert s.recv(65536).startswith(b"HTTP/1.1 200 ")
            assert len(os.listdir(f"/proc/{proxy.daemon.pid}/fd")) < few - 50, "half of the descriptors are for servers"
            assert [(one["is_left_out"], one["failures"]) for one in proxy.servers("GET")[1]["servers"]] == [(False, 0)]
        wait_until(lambda: proxy.counter("uploads") == 0, 10, "the clients to go")
    finally:
        server.close()


def test_idle_connections_to_the_control_port(raw, bench):
    """Fails if they take the descriptors that requests need."""
    _, server = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    server.may_end.set()
    proxy = Proxy(bench, [server], files=256)
    with contextlib.ExitStack() as idle:
        for _ in range(300):
            idle.enter_context(socket.create_connection(proxy.daemon.http.split(":"), timeout=20 * SLOW))
        with connect(proxy) as s:
            s.settimeout(5 * SLOW)
            s.sendall(request(b"1.1"))
            assert s.recv(100).startswith(b"HTTP/1.1 200 ")
