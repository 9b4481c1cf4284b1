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
_STATUS = {"up": "OK", "draining": "DRAINING", "lost": "UNMOUNTING"}  # of a segment, in the reference's words
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
            "/ha_status": self._ha_status, "/query_segment": self._query_segment, "/get_segments_detail": self._segments_detail,
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

    def _segments(self):
        return self.server.pool.stat(deadline=_PATIENCE_S).get("segments", [])

    def _all_segments(self, query):
        self._text("".join(f"{node['node']}\n" for node in self._segments()))

    def _query_segment(self, query):
        """By the name that /get_all_segments has, or by "host:port"."""
        name = query.get("segment", [""])[0]
        found = [node for node in self._segments() if name in (node["node"], node["addr"])]
        if found:
            self._text(f"{name}\nUsed(bytes): {found[0]['used_bytes']}\nCapacity(bytes) : {found[0]['size_bytes']}\n")
        else:
            self._text("Failed to query segment\n", 404)

    def _segments_detail(self, query):
        """Addresses in a node's memory and its client's id are nothing that others could use here: they are empty."""
        segments = [{
            "segment_name": node["node"], "segment_id": f"{node['segment_id']:016x}", "client_id": "", "base_address": "0x0",
            "size_bytes": node["size_bytes"], "size_human": f"{node['size_bytes'] / 2**30:g} GiB", "te_endpoint": node["addr"],
            "protocol": node["offers"], "status": _STATUS.get(node["state"], "UNDEFINED"),
            "allocator_used_bytes": node["used_bytes"], "allocator_capacity_bytes": node["size_bytes"],
            "allocator_usage_percent": 100 * node["used_bytes"] / max(node["size_bytes"], 1),
        } for node in self._segments()]
        self._json({"total_segments": len(segments), "segments": segments})

    def _ha_status(self, query):
        self.server.pool.stat(deadline=_PATIENCE_S)
        self._text("serving")

    def _nodes(self):
        """segment_id -> "host:port"."""
        return {node["segment_id"]: node["addr"] for node in self._segments()}

    def _found(self, key, nodes):
        """What is told of one key, a copy each, or None."""
        place = self.server.pool._raw.batch_locate([key], _PATIENCE_S * 1000, 0)[0]
        if type(place) is int:
            error = kvpool.errors.error(place, key)
            if isinstance(error, kvpool.NotFoundError) or error.name == "BAD_KEY":  # which no object can have
                return None
            raise error
        size, segments = place
        return [{"size_": size, "buffer_address_": 0, "protocol_": "kvpool", "transport_endpoint_": nodes.get(segment, "")}
                for segment in segments]

    def _query_key(self, query):
        found = self._found(query.get("key", [""])[0], self._nodes())
        if found is None:
            self._json({"success": False, "error_code": -704, "error_message": "OBJECT_NOT_FOUND"}, 404)
        else:
            self._json({"success": True, "data": found})

    def _batch_query_keys(self, query):
        data, nodes = {}, self._nodes()
        for key in query.get("keys", [""])[0].split(","):
            found = self._found(key, nodes)
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
