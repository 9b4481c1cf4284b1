# SPDX-License-Identifier: Apache-2.0
"""The HTTP metadata server, and engines that find one another there: what strangers send it, what it may answer, and peers and servers
that come and go (stage `python` of tests/run)."""
import gc
import http.client
import json
import os
import signal
import socket
import threading
import time
from urllib.parse import quote

import numpy as np
import pytest

from clients import free_ports
from conftest import own_s, wait_until
from mooncake import _metadata, _names
from mooncake.engine import TransferEngine
from mooncake.http_metadata_server import KVBootstrapServer, KVPoll
from test_python_engine import MIB, Peer, pattern
from test_python_store import programs  # noqa: F401: a fixture

THERE = "127.0.0.2"  # the peer's name: this host too, and not the engine's


@pytest.fixture
def server():
    """A metadata server in this process."""
    it = KVBootstrapServer(0, "127.0.0.1")
    it.run()
    assert it.poll() is KVPoll.Success
    yield it
    it.close()
    assert it.poll() is KVPoll.Failed


@pytest.fixture
def url(server):
    return f"http://127.0.0.1:{server.port}/metadata"


@pytest.fixture
def engine(url):
    new = TransferEngine()
    assert new.initialize("127.0.0.1", url, "tcp", "") == 0
    return new


def ask(port, method, key, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, f"/metadata?key={quote(key, safe='')}", body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def entry(port, name):
    """(status, body) of an engine's entry."""
    return ask(port, "GET", f"kvpool/rpc_meta/{name}")


def send(port, *pieces):
    """All that the server answers to these bytes until it ends the connection."""
    with socket.create_connection(("127.0.0.1", port), 20) as sock:
        try:
            for piece in pieces:
                sock.sendall(piece)
            return b"".join(iter(lambda: sock.recv(65536), b""))
        except (BrokenPipeError, ConnectionResetError):
            return b""


# ---- the server
@pytest.mark.parametrize("words", [("mooncake_http_metadata_server",), ("python", "-m", "mooncake.http_metadata_server")])
def test_program(programs, words):  # noqa: F811
    port = free_ports(1)[0]
    process = programs(*words, "--port", str(port), "--host", "127.0.0.1")

    def answer():
        try:
            return ask(port, "GET", "k")
        except OSError:
            return None

    assert wait_until(answer, 20, "the server") == (404, b"metadata not found")
    value = os.urandom(_metadata.MAX_VALUE_BYTES)
    assert ask(port, "PUT", "a key/of ü", value)[0] == 200
    assert ask(port, "GET", "a key/of ü") == (200, value)
    assert ask(port, "PUT", "a key/of ü", b"")[0] == 200 and ask(port, "GET", "a key/of ü") == (200, b"")
    assert ask(port, "DELETE", "a key/of ü")[0] == 200 and ask(port, "DELETE", "a key/of ü")[0] == 404
    assert ask(port, "PUT", "mooncake/rpc_meta/x", b"1")[0] == 200
    assert ask(port, "PUT", "mooncake/rpc_meta/x", b"2")[0] == 400 and ask(port, "GET", "mooncake/rpc_meta/x")[1] == b"1"
    assert ask(port, "POST", "k", b"v")[0] == 405 and ask(port, "GET", "")[0] == 400
    again = programs(*words, "--port", str(port), "--host", "127.0.0.1")
    assert again.wait(20) == 1
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


def test_the_server_of_an_engine_asks_for_tokens(bench, monkeypatch, caplog):
    """Fails if KVBootstrapServer serves without tokens in a process that names a token file, or where nothing protects it and it must be."""
    file = os.path.join(bench.home, "tokens")
    assert bench.run("kvpool", "token", "create", "--file", file, "--role", "writer", "--id", "w", "--tenant", "default").rc == 0
    monkeypatch.setenv("KVPOOL_SECURITY", "required")
    open_to_all = KVBootstrapServer(0)
    assert open_to_all.run() is None and open_to_all.poll() is KVPoll.Failed and "0.0.0.0:0 is not protected" in caplog.text
    open_to_all.close()
    monkeypatch.setenv("KVPOOL_TOKENS", file + ".gone")
    assert KVBootstrapServer(0).run() is None and "KVPOOL_TOKENS: " in caplog.text and "No such file" in caplog.text
    monkeypatch.setenv("KVPOOL_TOKENS", file)
    guarded = KVBootstrapServer(0, "127.0.0.1")
    guarded.run()
    assert guarded.poll() is KVPoll.Success
    assert [ask(guarded.port, method, "k", b"v")[0] for method in ("GET", "PUT", "DELETE")] == [401] * 3
    guarded.close()


def test_port_that_is_taken_is_told(server, caplog):
    second = KVBootstrapServer(server.port, "127.0.0.1")
    second.run()
    assert second.poll() is KVPoll.Failed and "in use" in caplog.text
    second.close()


@pytest.mark.parametrize("where, why", [((socket.socket, "listen"), OSError(24, "Too many open files")),
                                        ((threading.Thread, "start"), RuntimeError("can't start new thread"))])
def test_start_without_a_thread_is_told(monkeypatch, caplog, where, why):
    """run() has an answer also where there is no socket, or no thread."""
    def fail(*_):
        raise why

    server = KVBootstrapServer(0, "127.0.0.1")
    with monkeypatch.context() as m:
        m.setattr(*where, fail)
        server.run()
    assert server.poll() is KVPoll.Failed and why.args[-1] in caplog.text
    server.close()


HEAD = b"PUT /metadata?key=k HTTP/1.1\r\n"


@pytest.mark.parametrize("request_bytes, status", [
    (b"\r\n\r\n", 400), (b"nonsense\r\n\r\n", 400), (b"GET /metadata?key=k HTTP/2\r\n\r\n", 400), (b"\x00\xff" * 100 + b"\r\n\r\n", 400),
    (HEAD + b"Content-Length: -1\r\n\r\n", 400), (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
    (HEAD + b"Content-Length : 1\r\n\r\na", 400), (HEAD + b"no field\r\n\r\n", 400), (HEAD + "Content-Length: ²\r\n\r\n".encode("latin-1"), 400),
    (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", 411), (HEAD + b"Content-Length: 1048577\r\n\r\n", 413),
    (HEAD + b"Content-Length: " + b"9" * 4000 + b"\r\n\r\n", 413), (HEAD + b"X: " + b"x" * 9000 + b"\r\n\r\n", 431),
    (b"GET /metadata?key=%ff HTTP/1.0\r\n\r\n", 400), (b"GET /metadata?" + b"a&" * 50 + b" HTTP/1.0\r\n\r\n", 400),
    (b"GET /metadata?key=" + b"k" * 1025 + b" HTTP/1.0\r\n\r\n", 400), (b"GET http://[::1/metadata HTTP/1.0\r\n\r\n", 400),
    (HEAD + b"Host: 127.0.0.1\r\nSec-Fetch-Site: cross-site\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx", 403),
    (b"DELETE /metadata?key=k HTTP/1.0\r\nHost: 127.0.0.1\r\nOrigin: https://evil.example\r\n\r\n", 403),
    (b"GET /metadata?key=k HTTP/1.0\r\nHost: evil.example\r\n\r\n", 403), (b"GET /health HTTP/1.0\r\nHost: [::1]:8080\r\n\r\n", 200),
    (b"GET /none HTTP/1.0\r\n\r\n", 404), (b"PUT /health HTTP/1.0\r\n\r\n", 405), (b"GET /health HTTP/1.0\r\n\r\n", 200),
])
def test_bad_requests(server, request_bytes, status):
    said = send(server.port, request_bytes)
    assert said.startswith(b"HTTP/1.1 %d " % status), said
    assert ask(server.port, "GET", "k")[0] == 404


def test_a_body_that_is_cut_off_is_not_stored(server):
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(HEAD + b"Content-Length: 10\r\nExpect: 100-continue\r\n\r\nhalf")
        assert sock.recv(100).startswith(b"HTTP/1.1 100 ")
    assert ask(server.port, "GET", "k")[0] == 404


def test_what_is_stored_is_bounded(server, monkeypatch):
    monkeypatch.setattr(_metadata, "MAX_KEYS", 3)
    monkeypatch.setattr(_metadata, "MAX_BYTES", 1000)
    assert [ask(server.port, "PUT", f"k{i}", b"v")[0] for i in range(4)] == [200, 200, 200, 507]
    assert ask(server.port, "PUT", "k0", b"v" * 1001)[0] == 507 and ask(server.port, "GET", "k0") == (200, b"v")
    assert ask(server.port, "PUT", "k0", b"v" * 992)[0] == 200
    assert ask(server.port, "PUT", "k1", b"vv")[0] == 507
    assert [ask(server.port, "DELETE", f"k{i}")[0] for i in range(3)] == [200] * 3
    assert ask(server.port, "PUT", "k3", b"v" * 998)[0] == 200


def test_slow_clients_are_given_up(server, monkeypatch):
    """Those that send half a request, and that do not read their answer; others are served meanwhile."""
    monkeypatch.setattr(_metadata, "_EXCHANGE_S", 1)
    assert ask(server.port, "PUT", "k", b"v" * MIB)[0] == 200
    slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(2)]
    slow[0].sendall(b"GET /meta")
    slow[1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow[1].sendall(b"GET /metadata?key=k HTTP/1.1\r\n\r\n" * 50)
    assert ask(server.port, "GET", "k")[0] == 200
    wait_until(lambda: server._server._connections == 0, 10, "the connections' end")
    slow[0].settimeout(10)
    assert slow[0].recv(1) == b""
    for sock in slow:
        sock.close()


def test_connections_are_bounded(server, monkeypatch):
    monkeypatch.setattr(_metadata, "MAX_CONNECTIONS", 3)
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
    wait_until(lambda: server._server._connections == 3, 10, "the connections")
    assert ask(server.port, "GET", "k")[0] == 503
    idle.pop().close()
    wait_until(lambda: ask(server.port, "GET", "k")[0] == 404, 10, "a connection that is free")
    for sock in idle:
        sock.close()


# ---- engines
def test_transfer_by_name(engine, url, server):
    peer = Peer(THERE, metadata=url)
    mine = pattern(MIB, 1)
    try:
        assert entry(server.port, "127.0.0.1")[0] == 200
        assert engine.transfer_sync_write(THERE, mine.ctypes.data, peer.address, MIB) == 0
        assert peer.bytes(0, MIB) == mine.tobytes()
        assert engine.get_first_buffer_address(THERE) == peer.address and engine.send_probe(THERE) == 0
        batch = engine.batch_transfer_async_write(THERE, [mine.ctypes.data], [peer.address], [MIB])
        assert batch > 0 and engine.get_batch_transfer_status([batch]) == 0 and engine._targets == {}
        # A name is known once it was asked for; others are not made up of addresses.
        server.close()
        assert engine.transfer_sync_write(THERE, mine.ctypes.data, peer.address, MIB) == 0
        assert engine.transfer_sync_write(f"{THERE}:{peer.port}", mine.ctypes.data, peer.address, 8) == -1
        assert engine.send_probe("nobody") == -1 and engine.get_first_buffer_address("nobody") == 0
        assert engine.transfer_submit_write("nobody", mine.ctypes.data, peer.address, 8) == 0
        for bad in (None, 7):
            with pytest.raises(TypeError):
                engine.transfer_sync_read(bad, mine.ctypes.data, peer.address, 8)
    finally:
        peer.kill()


def test_entry_goes_with_its_engine(url, server):
    peer = Peer(THERE, metadata=url)
    assert json.loads(entry(server.port, THERE)[1])["port"] == peer.port
    peer.process.stdin.close()  # its program ends
    assert peer.process.wait(20) == 0
    peer.process.stdout.close()
    assert entry(server.port, THERE)[0] == 404
    engine = TransferEngine()
    assert engine.initialize_ext(THERE, url.partition("://")[2], "tcp", "", "http") == 0
    assert entry(server.port, THERE)[0] == 200
    if os.fork() == 0:  # the entry is not the child's
        engine._farewell()
        os._exit(0)
    assert os.wait()[1] == 0 and entry(server.port, THERE)[0] == 200
    del engine
    gc.collect()
    assert entry(server.port, THERE)[0] == 404


def test_entry_of_another_engine_stays(engine, server):
    other = b'{"host": "127.0.0.1", "port": 7}'
    assert ask(server.port, "DELETE", "kvpool/rpc_meta/127.0.0.1")[0] == 200
    assert ask(server.port, "PUT", "kvpool/rpc_meta/127.0.0.1", other)[0] == 200
    engine._farewell()
    assert entry(server.port, "127.0.0.1") == (200, other)


def test_a_name_is_one_engines(engine, url, server, caplog):
    """The second one is refused, and the first one keeps it; it is free once that has ended."""
    second = TransferEngine()
    for _ in range(2):
        assert second.initialize("127.0.0.1", url, "tcp", "") == -1
        assert "another engine has the name" in caplog.text
        assert second.get_rpc_port() == 0 and second.register_memory(4096, 1) == -1
        assert json.loads(entry(server.port, "127.0.0.1")[1])["port"] == engine.get_rpc_port()
    engine._farewell()
    assert second.initialize("127.0.0.1", url, "tcp", "") == 0
    assert json.loads(entry(server.port, "127.0.0.1")[1])["port"] == second.get_rpc_port()


def test_one_of_eight_has_the_name(url, server):
    """They come at once, as the processes of a host do."""
    engines, codes = [TransferEngine() for _ in range(8)], {}
    start = threading.Barrier(8)

    def begin(i):
        start.wait()
        codes[i] = engines[i].initialize("127.0.0.1", url, "tcp", "")

    threads = [threading.Thread(target=begin, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert sorted(codes.values()) == [-1] * 7 + [0]
    [winner] = [engines[i] for i in codes if codes[i] == 0]
    assert json.loads(entry(server.port, "127.0.0.1")[1])["port"] == winner.get_rpc_port()


def test_the_slower_of_two_does_not_remove_the_faster_s_entry(url, server, monkeypatch):
    """Both find an entry of a third to be nobody's. The faster one takes the name between the slower one's last look and its removal."""
    gone = free_ports(1)[0]
    assert ask(server.port, "PUT", "kvpool/rpc_meta/n", json.dumps({"host": "127.0.0.1", "port": gone}).encode())[0] == 200
    faster, slower = _names.Names(url), _names.Names(url)
    plain = _names.Names._ask

    def is_gone(address):
        return address == f"127.0.0.1:{gone}"

    def slowly(self, method, *args, **kw):
        if method == "DELETE" and self is slower and faster._own is None:
            faster.publish("n", "127.0.0.1", 7, is_gone)
        return plain(self, method, *args, **kw)

    monkeypatch.setattr(_names.Names, "_ask", slowly)
    try:
        with pytest.raises(_names.NamesError, match="another engine has the name 'n', at 127.0.0.1:7"):
            slower.publish("n", "127.0.0.1", 8, is_gone)
        assert json.loads(entry(server.port, "n")[1])["port"] == 7
    finally:
        faster.close()
        slower.close()
    assert entry(server.port, "n")[0] == 404


def test_a_value_can_be_named_by_its_tag(server):
    """What DELETE does with If-Match, and that only a value that is told has an ETag."""
    def say(method, body=None, **fields):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request(method, "/metadata?key=k", body, {name.replace("_", "-"): text for name, text in fields.items()})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.status, answer.headers.get("ETag")

    assert say("GET") == (404, None) and say("DELETE", If_Match='"x"') == (404, None)
    assert say("PUT", b"one") == (200, None)
    one = say("GET")[1]
    assert say("PUT", b"two") == (200, None)
    two = say("GET")[1]
    assert one and two and one != two
    for wanted in (one, '"x"', "nonsense", f"W/{two}", "," * 1000):
        assert say("DELETE", If_Match=wanted) == (412, None), wanted
    assert say("DELETE", If_Match=f"{one}, {two}") == (200, None) and say("GET")[0] == 404
    assert say("PUT", b"one") == (200, None) and say("GET")[1] == one
    assert say("DELETE", If_Match="*") == (200, None)


def test_a_stopped_engine_keeps_its_name(url, server, monkeypatch, caplog):
    monkeypatch.setattr("mooncake.engine._PROBE_MS", 1000)
    peer = Peer(THERE, metadata=url)
    try:
        peer.stop()
        assert TransferEngine().initialize(THERE, url, "tcp", "") == -1
        assert "another engine has the name" in caplog.text
        os.kill(peer.process.pid, signal.SIGCONT)
        assert json.loads(entry(server.port, THERE)[1])["port"] == peer.port
    finally:
        peer.kill()


def test_an_engine_is_back_at_its_port(url, server):
    """It was killed, and its name is of the place where it listens again itself."""
    at = f"{THERE}:{free_ports(1)[0]}"
    Peer(at, metadata=url).kill()
    assert entry(server.port, at)[0] == 200
    again = TransferEngine()
    assert again.initialize(at, url, "tcp", "") == 0 and entry(server.port, at)[0] == 200


def test_an_answer_that_is_late_leaves_no_entry(url, server, monkeypatch, caplog):
    """The server has stored it, and its answer does not come in time."""
    monkeypatch.setattr(_names, "_PATIENCE_S", 1)
    put = _metadata._Handler._send

    def send(self, status, body, *more):
        if body == b"metadata updated":
            time.sleep(3)
        put(self, status, body, *more)

    monkeypatch.setattr(_metadata._Handler, "_send", send)
    new = TransferEngine()
    assert new.initialize("127.0.0.1", url, "tcp", "") == -1 and "timed out" in caplog.text
    assert entry(server.port, "127.0.0.1")[0] == 404 and new.get_rpc_port() == 0
    monkeypatch.undo()
    assert new.initialize("127.0.0.1", url, "tcp", "") == 0


def test_peer_killed_and_back_under_its_name(engine, url, caplog):
    peer = Peer(THERE, metadata=url)
    mine = pattern(MIB, 2)
    here = mine.ctypes.data
    assert engine.transfer_sync_write(THERE, here, peer.address, MIB) == 0
    peer.kill()
    started = time.monotonic()
    assert engine.transfer_sync_write(THERE, here, peer.address, MIB) == -1
    assert engine.get_batch_transfer_status([engine.batch_transfer_async_write(THERE, [here], [peer.address], [MIB])]) == -1
    assert time.monotonic() - started < 20
    again = Peer(THERE, metadata=url)  # at another port
    try:
        assert engine.transfer_sync_write(THERE, here, again.address, MIB) == 0
        assert again.bytes(0, MIB) == mine.tobytes()
    finally:
        again.kill()
    assert engine.transfer_sync_write("nobody", here, peer.address, MIB) == -1
    assert "no engine of that name" in caplog.text


def test_server_that_lost_all_has_the_entry_again(monkeypatch, server):
    monkeypatch.setattr(_names, "_REFRESH_S", 0.1)
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", f"http://127.0.0.1:{server.port}/metadata", "tcp", "") == 0
    server.close()
    again = KVBootstrapServer(server.port, "127.0.0.1")
    again.run()
    wait_until(lambda: entry(server.port, "127.0.0.1")[0] == 200, 20, "the entry")
    del engine
    gc.collect()
    assert entry(server.port, "127.0.0.1")[0] == 404
    again.close()


@pytest.mark.parametrize("bad", ["http://", "http://127.0.0.1:99999/metadata", "https://127.0.0.1/metadata", "http://u:p@127.0.0.1/metadata",
                                 "http://127.0.0.1/metadata?key=", "etcd://127.0.0.1:2379", "http://[::1/metadata", ""])
def test_servers_that_are_none(bad, caplog):
    assert TransferEngine().initialize("127.0.0.1", bad, "tcp", "") == -1
    assert "initialize: " in caplog.text


def test_nobody_is_there(url, caplog):
    new = TransferEngine()
    assert new.initialize("127.0.0.1", f"http://127.0.0.1:{free_ports(1)[0]}/metadata", "tcp", "") == -1
    assert "the metadata server at 127.0.0.1:" in caplog.text
    assert new.initialize("0.0.0.0", url, "tcp", "") == -1  # where peers find nobody
    assert new.initialize("127.0.0.1", url, "tcp", "") == 0  # it is none the worse for it


def answering(answer):
    """(port, end) of a server that answers anything with these bytes, in pieces that an iterator gives, and keeps the connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    is_over = threading.Event()

    def serve(sock):
        with sock:
            try:
                while b"\r\n\r\n" not in sock.recv(65536):
                    pass
                for piece in answer():
                    sock.sendall(piece)
                    if is_over.is_set():
                        return
                is_over.wait(30)
            except OSError:
                pass

    def accept():
        while True:
            try:
                sock = listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=serve, args=(sock,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()

    def end():
        is_over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()

    return listener.getsockname()[1], end


def whole(body, status=b"200 OK"):
    return [b"HTTP/1.1 " + status + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body]


def drip():
    yield b"HTTP/1.1 200 OK\r\n"
    while True:
        time.sleep(0.1)
        yield b"X: y\r\n"


def flood():
    yield b"HTTP/1.1 200 OK\r\n\r\n"
    while True:
        yield b"x" * 65536


@pytest.mark.parametrize("answer", [
    lambda: [], drip, flood, lambda: [b"nonsense\r\n\r\n"], lambda: [b"HTTP/1.1 100 Continue\r\n\r\n" * 2000],
    lambda: [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"], lambda: whole(b"", b"500 No"),
    *(lambda body=body: whole(body) for body in (
        b"", b"x", b"[]", b"{}", b"null", b"[" * 9000, b'{"host": "127.0.0.1"}', b'{"host": "127.0.0.1", "port": 0}',
        b'{"host": "127.0.0.1", "port": true}', b'{"host": "127.0.0.1", "port": "7"}', b'{"host": 7, "port": 7}',
        b'{"host": "", "port": 7}', b'{"host": "a b", "port": 7}', b'{"host": "' + b"a" * 300 + b'", "port": 7}',
        b'{"host": "127.0.0.1", "port": 1e400}', b'{"host": "127.0.0.1", "port": 7' + b" " * 20000 + b"}"))])
def test_what_a_server_may_answer(answer, monkeypatch):
    monkeypatch.setattr(_names, "_PATIENCE_S", 1)
    port, end = answering(answer)
    try:
        names = _names.Names(f"http://127.0.0.1:{port}/metadata")
        started = own_s()
        with pytest.raises(_names.NamesError):
            names.find("a")
        assert own_s() - started < 6
    finally:
        end()


def test_names_that_are_none(url):
    names = _names.Names(url)
    for bad in ("", "n" * 257, "\udc80"):
        with pytest.raises(_names.NamesError):
            names.find(bad)


def test_names_that_are_known_are_bounded(url, server, monkeypatch):
    monkeypatch.setattr(_names, "_CACHED", 8)
    names = _names.Names(url)
    value = b'{"host": "127.0.0.1", "port": 7}'
    for i in range(20):
        assert ask(server.port, "PUT", f"kvpool/rpc_meta/n{i}", value)[0] == 200
        assert names.find(f"n{i}") == "127.0.0.1:7"
    assert len(names._found) == 8


def test_sixteen_threads_by_name(engine, url):
    peer = Peer(THERE, metadata=url)
    codes = []
    block = 4096
    mine = np.arange(16 * block, dtype=np.uint8)

    def send_some(t):
        for _ in range(20):
            codes.append(engine.transfer_sync_write(THERE, mine.ctypes.data + t * block, peer.address + t * block, block))
            engine._names.forget(THERE)

    threads = [threading.Thread(target=send_some, args=(t,)) for t in range(16)]
    try:
        for t in threads:
            t.start()
        for t in threads:
            t.join(40)
        assert codes == [0] * 320 and peer.bytes(0, mine.nbytes) == mine.tobytes()
    finally:
        peer.kill()
