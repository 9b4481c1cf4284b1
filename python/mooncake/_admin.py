# SPDX-License-Identifier: Apache-2.0
"""The reference's admin paths over HTTP, answered from the pool. Answers are as long as the pool has keys, and streamed a page
at a time; at most _AT_ONCE are made at once, others wait their turn."""
import http.client
import itertools
import json
import logging
import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import kvpool

_AT_ONCE = 16
_SILENCE_S = 10  # of a client in the middle of a request
_PATIENCE_S = 5
_PAGE_KEYS = 1000
_BODY_MAX = 65536
_TEXT = "text/plain; charset=utf-8"

log = logging.getLogger("mooncake.master")


def _lines(entries):
    """The next page of keys, a line each; b"" where there are no more."""
    return b"".join(key + b"\n" for key, _ in itertools.islice(entries, _PAGE_KEYS))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "kvpool"
    sys_version = ""
    timeout = _SILENCE_S

    def log_message(self, *args):
        pass

    def do_GET(self):
        self._answer({
            "/get_all_keys": self._all_keys, "/get_all_segments": self._all_segments, "/query_key": self._query_key,
            "/batch_query_keys": self._batch_query_keys, "/health": self._health, "/metrics": self._metrics,
            "/metrics/summary": self._summary, "/role": lambda q: self._text("leader"),
        })

    def do_POST(self):
        length = self.headers.get("Content-Length") or "0"
        if not length.isdecimal() or len(length) > len(str(_BODY_MAX)) or int(length) > _BODY_MAX:
            self.close_connection = True
            self._text("400 Bad Request\n", 400)
            return
        self.rfile.read(int(length))  # nobody looks at it
        self._answer({"/api/v1/remove_all": self._remove_all})

    def _answer(self, paths):
        url = urlsplit(self.path)
        known = paths.get(url.path)
        if known is None:
            self._text("404 Not Found\n", 404)
            return
        with self.server.turns:
            try:
                known(parse_qs(url.query))
            except kvpool.Error as e:
                self.close_connection = True
                self._json({"success": False, "error_message": str(e)}, 503)

    def _text(self, text, status=200):
        self._body(text.encode(), _TEXT, status)

    def _json(self, value, status=200):
        self._body(json.dumps(value).encode(), "application/json; charset=utf-8", status)

    def _body(self, body, kind, status):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    # ---- paths
    def _all_keys(self, query):
        """A key a line, in chunks, as it is not known before how many there are."""
        entries = self.server.pool.list(page=_PAGE_KEYS, deadline=_PATIENCE_S)
        lines = _lines(entries)  # what goes wrong here has an answer of its own yet
        is_chunked = self.request_version >= "HTTP/1.1"
        self.send_response(200)
        self.send_header("Content-Type", _TEXT)
        if is_chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        try:
            while lines:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(lines), lines) if is_chunked else lines)
                lines = _lines(entries)
        except kvpool.Error as e:
            log.warning("/get_all_keys was cut: %s", e)
            self._cut()
            return
        if is_chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _cut(self):
        """Resets the connection, so that nobody takes what was sent for the whole: to a client of HTTP/1.0 an end would be the end."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        socket.close(self.connection.detach())

    def _all_segments(self, query):
        nodes = self.server.pool.stat(deadline=_PATIENCE_S).get("segments", [])
        self._text("".join(f"{node['node']}\n" for node in nodes))

    def _found(self, key):
        """What is told of one key, or None."""
        try:
            size = self.server.pool.size(key, deadline=_PATIENCE_S)
        except kvpool.NotFoundError:
            return None
        except kvpool.Error as e:
            if e.name == "BAD_KEY":  # no object can have it
                return None
            raise
        return [{"size_": size, "buffer_address_": 0, "protocol_": "kvpool", "transport_endpoint_": ""}]

    def _query_key(self, query):
        found = self._found(query.get("key", [""])[0])
        if found is None:
            self._json({"success": False, "error_code": -704, "error_message": "OBJECT_NOT_FOUND"}, 404)
        else:
            self._json({"success": True, "data": found})

    def _batch_query_keys(self, query):
        data = {}
        for key in query.get("keys", [""])[0].split(","):
            found = self._found(key)
            data[key] = {"ok": found is not None, "error": None if found else "OBJECT_NOT_FOUND", "values": found}
        self._json({"success": True, "data": data})

    def _health(self, query):
        self.server.pool.stat(deadline=_PATIENCE_S)
        self._json({"status": "ok", "role": "leader", "ha_state": "serving", "service_ready": True})

    def _metrics(self, query):
        connection = http.client.HTTPConnection(self.server.metrics_at, timeout=_PATIENCE_S)
        try:
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            body, kind, status = answer.read(), answer.headers["Content-Type"], answer.status
        except (OSError, http.client.HTTPException) as e:
            body, kind, status = f"the master does not answer: {e}\n".encode(), _TEXT, 503
        finally:
            connection.close()
        self._body(body, kind, status)

    def _summary(self, query):
        self._text(json.dumps(self.server.pool.stat(deadline=_PATIENCE_S)) + "\n")

    def _remove_all(self, query):
        removed, _ = self.server.pool.remove_all(force=query.get("force", ["false"])[0] == "true", deadline=_PATIENCE_S)
        self._json({"success": True, "removed_count": removed})


class Admin(ThreadingHTTPServer):
    """Serves at `at`, from the pool of `master`; metrics_at is where the master serves its own."""

    daemon_threads = True

    def __init__(self, at, master, metrics_at):
        super().__init__(at, _Handler)
        host, _, port = master.rpartition(":")
        self.pool = kvpool.Pool(f"{'127.0.0.1' if host == '0.0.0.0' else host}:{port}", name="mooncake_master")
        self.metrics_at = metrics_at
        self.turns = threading.BoundedSemaphore(_AT_ONCE)

    def start(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
