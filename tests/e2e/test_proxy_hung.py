# SPDX-License-Identifier: Apache-2.0
"""A server that hangs, as under SIGSTOP: the kernel takes connections and requests for it, and nothing is answered."""
import contextlib
import json
import signal
import socket
import subprocess
import sys
import time

import pytest

from conftest import SLOW, _die_with_parent, proc_state, wait_until
from test_proxy import BODY, Proxy, Server

PROMPT = {**BODY, "stream": False}


# Answers everything, and prints its port.
PROGRAM = '''
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
'''


class Process:
    """A server that is a process of its own."""
    kind = "replica"

    def __init__(self):
        self.proc = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                     preexec_fn=_die_with_parent)
        self.url = self.arg = f"http://127.0.0.1:{int(self.proc.stdout.readline())}"

    def close(self):
        self.proc.kill()
        self.proc.communicate()


def hang(server):
    server.fail, server.health, server.can_tokenize = "stall", None, False


def wake(server):
    """The requests that wait are answered, too."""
    server.fail, server.health, server.can_tokenize = None, 200, True
    server.release.set()


def begin(proxy, body=PROMPT, secs=20):
    """A client whose request is on its way."""
    text = json.dumps(body).encode()
    s = socket.create_connection(proxy.at, timeout=secs * SLOW)
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
    return s


def ask(proxy, body=PROMPT, secs=2):
    """Whether a client with that much patience is answered."""
    with begin(proxy, body, secs) as s, contextlib.suppress(TimeoutError):
        return s.recv(100).startswith(b"HTTP/1.1 200 ")
    return False


def is_left_out(proxy, server):
    return next(s["is_left_out"] for s in proxy.servers("GET")[1]["servers"] if s["url"] == server.url)


def load_of(proxy, server):
    return next(s["open"] for s in proxy.servers("GET")[1]["servers"] if s["url"] == server.url)


SYN_SENT = "02"  # the kernel's number


def connections_to(port, states=None):
    """Of sockets that some process has open, in one of these states of the kernel."""
    with open("/proc/net/tcp") as f:
        rows = [line.split() for line in f]
    return sum(row[2].endswith(f":{port:04X}") and row[9] != "0" and (states is None or row[3] in states) for row in rows)


@pytest.fixture
def servers():
    made = [Server("replica") for _ in range(3)]
    yield made
    for s in made:
        s.close()


def test_hung_server_is_left_out(bench, servers):
    """Fails if clients that give up make a hung server look idle, or well, or if it gets nothing when it is well again."""
    proxies = [Proxy(bench, servers, "--proxy-threads", "1"), Proxy(bench, servers, "--policy", "round-robin")]
    hung = servers[0]
    hang(hung)
    for proxy, lost in zip(proxies, (1, 3)):  # by load the first one alone is lost
        answers = [ask(proxy) for _ in range(20)]
        assert 1 <= answers.count(False) <= lost + 1, answers
    for proxy in proxies:
        wait_until(lambda: is_left_out(proxy, hung), 10, "the server to be left out")
        wait_until(lambda: load_of(proxy, hung) <= 1, 10, "its requests to be dropped")  # 1: a check
        assert all(ask(proxy) for _ in range(6))
    asked, begun = len(hung.asked), time.monotonic()
    wake(hung)
    for proxy in proxies:
        wait_until(lambda: not is_left_out(proxy, hung), 20, "the server to be back")
        assert all(ask(proxy, secs=5) for _ in range(6)) and time.monotonic() - begun < 30 * SLOW
        wait_until(lambda: all(s["open"] == 0 for s in proxy.servers("GET")[1]["servers"]), 5, "the load to fall")
    assert len(hung.asked) >= asked + 2


@pytest.mark.parametrize("policy", ["router", "round-robin"])
def test_stopped_server_is_left_out(bench, servers, policy):
    """Fails if a server under SIGSTOP costs more than three requests, or gets none within 20 s after it goes on."""
    stopped = Process()
    servers.append(stopped)
    proxy = Proxy(bench, servers, "--policy", policy, "--proxy-threads", "1")
    for _ in range(8):  # it is used, and keeps a connection
        assert ask(proxy, secs=5)
    stopped.proc.send_signal(signal.SIGSTOP)
    wait_until(lambda: proc_state(stopped.proc.pid) == "T", 5, "the server to stop")
    answers = [ask(proxy) for _ in range(20)]
    assert answers.count(False) <= 4, answers
    if policy == "round-robin":
        wait_until(lambda: is_left_out(proxy, stopped), 10, "the server to be left out")
    assert all(ask(proxy, secs=5) for _ in range(8))
    stopped.proc.send_signal(signal.SIGCONT)
    wait_until(lambda: not is_left_out(proxy, stopped), 20, "the server to be back")
    assert all(ask(proxy, secs=5) for _ in range(8))
    wait_until(lambda: all(s["open"] == 0 for s in proxy.servers("GET")[1]["servers"]), 5, "the load to fall")


def test_slow_server_is_not_left_out(bench, servers):
    """Fails if a hundred clients that give up leave a server out that answers checks, or are its load for ever."""
    slow = servers[0]
    slow.fail = "stall"
    proxy = Proxy(bench, [slow], "--proxy-threads", "2")
    text = json.dumps(PROMPT).encode()
    clients = [socket.create_connection(proxy.at, timeout=20) for _ in range(100)]
    for c in clients:
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
    wait_until(lambda: len(slow.asked) >= 100, 20, "the requests")
    for c in clients:
        c.close()
    wait_until(lambda: proxy.counter("gone_total") == 100, 10, "the clients to go")
    wait_until(lambda: proxy.servers("GET")[1]["servers"][0]["open"] <= 2, 10, "a check to be answered")
    assert slow.checks >= 1 and not is_left_out(proxy, slow)
    assert "left out" not in proxy.daemon.log()


def test_client_gives_up_before_the_answer(bench, servers):
    """Fails if a server that is busy for a client that has gone looks idle before it answers."""
    slow = servers[0]
    slow.fail = "stall"
    proxy = Proxy(bench, [slow])
    assert not ask(proxy)
    wait_until(lambda: proxy.counter("open") == 0, 5, "the client to go")
    assert proxy.servers("GET")[1]["servers"][0]["open"] == 1
    wake(slow)
    wait_until(lambda: proxy.servers("GET")[1]["servers"][0]["open"] == 0, 5, "its end")


def test_bodies_of_given_up_requests_are_bounded(bench, servers):
    """Fails if clients that upload large bodies and go fill the proxy's memory while a server hangs, or hold its connections after it was removed."""
    slow = servers[0]
    slow.fail = "stall"
    proxy = Proxy(bench, [slow])
    text = {**PROMPT, "prompt": "x" * (30 << 20)}
    with contextlib.ExitStack() as clients:
        for _ in range(4):
            clients.enter_context(begin(proxy, text))
        wait_until(lambda: len(slow.asked) == 4, 20, "the requests")
    wait_until(lambda: proxy.counter("open") == 0, 5, "the clients to go")
    assert load_of(proxy, slow) <= 3  # 64 MiB; up to 12 MiB of each body may still be in the kernel
    proxy.servers("DELETE", {"role": "replica", "url": slow.url})
    wait_until(lambda: connections_to(slow.port) <= 1, 5, "the connections to a server that was removed to end")  # 1: of a check


def test_client_goes_before_the_connection_is_made(bench):
    """Fails if a server is left out because a client went before the server had taken the connection."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, contextlib.ExitStack() as fill:
        at = server.getsockname()
        for _ in range(2):  # the kernel takes no third connection, and looks again after a second
            s = fill.enter_context(socket.socket())
            s.setblocking(False)
            s.connect_ex(at)
        proxy = Proxy(bench, [], "--replica", "http://%s:%d" % at)
        waiting = connections_to(at[1], [SYN_SENT])
        with begin(proxy):
            wait_until(lambda: connections_to(at[1], [SYN_SENT]) > waiting, 10, "the proxy to ask for a connection")
        wait_until(lambda: proxy.counter("open") == 0, 5, "the client to go")
        server.settimeout(20)
        for _ in range(3):
            fill.enter_context(server.accept()[0])
        wait_until(lambda: proxy.servers("GET")[1]["servers"][0]["open"] == 0, 5, "the request to end")
        assert "left out" not in proxy.daemon.log()
