# SPDX-License-Identifier: Apache-2.0
"""The metrics of a client process: in `stat()` always, and over HTTP where $KVPOOL_METRICS asks for it."""
import http.client
import os
import re
import socket
import time

import pytest

import kvpool
from clients import free_ports
from conftest import SLOW, ask_http, wait_until
from test_metrics import checked, needs_promtool

KIB = 1 << 10


class Port:
    """The metrics of one handle."""

    def __init__(self, handle):
        self.at = handle.stat()["client"]["metrics"]

    def http_get(self, path):
        return ask_http(self.at, path)

    def values(self, name):
        return {labels: float(value) for labels, value in
                re.findall(rf"^kvpool_client_{name}(?:{{(.*)}})? (\S+)$", self.http_get("/metrics")[1], re.M)}


def calls_of(handle):
    return {call["name"]: call for call in handle.stat()["client"]["calls"]}


def raw(at, data, timeout=5 * SLOW):
    """What the port answers to these bytes."""
    host, port = at.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=timeout) as s:
        s.sendall(data)
        got = b""
        while chunk := s.recv(65536):
            got += chunk
        return got.decode()


@needs_promtool
def test_calls_and_transports_are_counted(pool, monkeypatch):
    """Fails if a call is not in stat() and in its histogram, bytes are not counted for the transport that moved them, or the text is no good."""
    monkeypatch.setenv("KVPOOL_METRICS", "127.0.0.1:0")
    with kvpool.Pool(pool.addr, name='eng"ine') as near, kvpool.Pool(pool.addr, transports="tcp", host_id="elsewhere") as far:
        for handle, transport in ((near, "shm"), (far, "tcp")):
            handle.put(f"{transport}/one", bytes(64 * KIB))
            for _ in range(3):
                assert len(handle.get(f"{transport}/one")) == 64 * KIB
            handle.exists(f"{transport}/one")
            handle.exists_many([f"{transport}/one", "no"])
            with handle.lookup([f"{transport}/one"]):
                pass
            handle.remove(f"{transport}/one", force=True)
            port = Port(handle)
            body = checked(port)
            calls, counts = calls_of(handle), port.values("call_seconds_count")
            assert counts == {f'call="{name}"': call["count"] for name, call in calls.items()}
            for name in ("exists", "batch_is_exist", "lookup", "remove"):
                assert calls[name]["count"] == 1, (name, calls)
            assert calls["put"]["count"] == 1 and 3 <= calls["get"]["count"] <= 6  # again where the buffer was too small
            for call in calls.values():
                assert (call["count"] == 0) == (call["p99_us"] == 0) and call["p50_us"] <= call["p99_us"]
                assert call["sum_us"] <= call["count"] * 5_000_000 * SLOW
            label = f'transport="{transport}"'
            assert port.values("reads_total")[label] == 3 and port.values("read_bytes_total")[label] == 3 * 64 * KIB
            assert port.values("writes_total")[label] == 1 and port.values("written_bytes_total")[label] == 64 * KIB
            assert sum(port.values("read_bytes_total").values()) == 3 * 64 * KIB
            assert len(body.splitlines()) < 400
        assert '\nkvpool_client_info{name="eng\\"ine"} 1\n' in Port(near).http_get("/metrics")[1]


def test_each_handle_has_a_port(pool, monkeypatch):
    """Fails if a second handle of one environment has no metrics, a handle does not open because no port is free, or a port outlives its handle."""
    first, = free_ports(1)
    monkeypatch.setenv("KVPOOL_METRICS", f"127.0.0.1:{first}")
    with kvpool.Pool(pool.addr) as one, kvpool.Pool(pool.addr) as two:
        ports = [int(Port(handle).at.rsplit(":", 1)[1]) for handle in (one, two)]
        assert first <= ports[0] < ports[1] < first + 64
        assert all(ask_http(f"127.0.0.1:{port}", "/metrics")[0] == 200 for port in ports)
        pid = os.fork()
        if pid == 0:
            time.sleep(10)
            os._exit(0)
        try:
            one.close()
            with pytest.raises(OSError):
                ask_http(f"127.0.0.1:{ports[0]}", "/metrics")
        finally:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
    monkeypatch.setenv("KVPOOL_METRICS", "192.0.2.1:9400")  # no address of this host
    with kvpool.Pool(pool.addr) as handle:
        assert Port(handle).at == ""
        handle.put("k", b"v")
    monkeypatch.setenv("KVPOOL_METRICS", "9400")
    with pytest.raises(kvpool.Error, match="KVPOOL_METRICS"):
        kvpool.Pool(pool.addr)
    monkeypatch.delenv("KVPOOL_METRICS")
    with kvpool.Pool(pool.addr) as handle:
        assert Port(handle).at == "" and calls_of(handle)["put"]["count"] == 0


def test_bad_requests(pool, monkeypatch):
    """Fails if the port answers anything but a GET of /metrics, answers a web page, or is kept busy by peers that send nothing or do not end."""
    monkeypatch.setenv("KVPOOL_METRICS", "127.0.0.1:0")
    with kvpool.Pool(pool.addr) as handle:
        at = Port(handle).at
        ok = f"GET /metrics HTTP/1.1\r\nHost: {at}\r\n"
        for data, status in ((ok, 200), (ok.replace("GET", "HEAD"), 200), (ok.replace("GET", "POST"), 405), (ok.replace("metrics", "other"), 404),
                             ("hello\r\n", 400), ("\r\n", 400), ("GET  HTTP/1.1\r\n", 404), (ok + "X: " + "y" * 5000, 400), (ok + "X\0\r\n", 400),
                             ("GET /" + "m" * 3000 + " HTTP/1.1\r\n", 404), (ok.replace(at, "evil.example"), 403),
                             (ok + "Origin: http://evil.example\r\n", 403), (ok + "Sec-Fetch-Site: cross-site\r\n", 403)):
            got = raw(at, (data + "\r\n").encode())
            assert got.startswith(f"HTTP/1.1 {status} ") and ("kvpool_client_gets_total" in got) == (data == ok), (data, got[:200])
        host, port = at.rsplit(":", 1)
        idle = [socket.create_connection((host, int(port))) for _ in range(40)]
        begun = time.monotonic()
        for s in idle[::2]:
            s.sendall(b"GET /metr")
        assert ask_http(at, "/metrics")[0] == 200 and time.monotonic() - begun < 4 * SLOW
        slow = http.client.HTTPConnection(host, int(port))
        slow.request("GET", "/metrics")  # and does not read
        assert ask_http(at, "/metrics")[0] == 200
        for s in idle:
            s.settimeout(10 * SLOW)
            with s:
                try:
                    assert s.recv(100) == b""
                except ConnectionResetError:
                    pass
        slow.close()
        handle.put("k", b"v")
        wait_until(lambda: Port(handle).values("puts_total") == {"": 1}, 5, "the put to be counted")
