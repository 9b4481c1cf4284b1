# SPDX-License-Identifier: Apache-2.0
"""The reference's admin paths over HTTP, answered from the pool. Answers are as long as the pool has keys, and streamed a page
at a time. At most _AT_ONCE questions are put to the pool at once, and nobody keeps others from it who reads slowly; connections above
_CONNECTIONS are closed."""
import contextlib
import functools
import http.client
import itertools
import json
import logging
import socket
import struct
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import kvpool

from . import _origin
from ._drain_jobs import BAD_REQUEST, NO_SEGMENT, DrainJobs, RefusedError

_AT_ONCE = 16
_CONNECTIONS = 256
_SILENCE_S = 10  # of a client in the middle of a request
_PATIENCE_S = 5
_PAGE_KEYS = 1000
_BODY_MAX = 65536
_STATUS = {"up": "OK", "draining": "DRAINING", "lost": "UNMOUNTING"}  # of a segment, in the reference's words
_STATUS_NUMBERS = ("UNDEFINED", "OK", "DRAINING", "DRAINED", "GRACEFULLY_UNMOUNTING", "UNMOUNTING")
_TEXT = "text/plain; charset=utf-8"
# Who may ask, if the pool has tokens; monitor for the other paths. The master decides about its figures itself.
_ROLES = {"/health": "", "/metrics": "", "/get_all_keys": "reader", "/query_key": "reader", "/batch_query_keys": "reader",
          "/api/v1/remove_all": "writer", "/api/v1/drain_jobs": "admin", "/api/v1/drain_jobs/cancel": "admin"}

log = logging.getLogger("mooncake.master")


class _BusyError(Exception):
    """Too many others ask the pool."""


class _AwayError(Exception):
    """The master does not answer over HTTP."""


def _lines(entries):
    """The next page of keys, a line each; b"" where there are no more."""
    return b"".join(key + b"\n" for key, _ in itertools.islice(entries, _PAGE_KEYS))


def _status(node):
    """The reference's word for the state of a node, as kvpool_stat has it."""
    return "DRAINED" if node["drain"] == "done" and node["state"] == "draining" else _STATUS.get(node["state"], "UNDEFINED")


def _told(key, place, nodes):
    """(copies in memory, the one on an SSD or None) in the reference's form; None where there is no object."""
    if type(place) is int:
        error = kvpool.errors.error(place, key)
        if isinstance(error, kvpool.NotFoundError) or error.name == "BAD_KEY":  # which no object can have
            return None
        raise error
    size, segments, tier = place
    on_ssd = [{"client_id": "", "object_size": size, "transport_endpoint": nodes.get(tier, "")}] if tier else None
    return [{"size_": size, "buffer_address_": 0, "protocol_": "kvpool", "transport_endpoint_": nodes.get(segment, "")}
            for segment in segments], on_ssd


def _in_batch(found):
    in_memory, on_ssd = found or (None, None)
    return {"ok": found is not None, "error": None if found else "OBJECT_NOT_FOUND", "values": in_memory, "disk_values": None,
            "local_disk_values": on_ssd, "nof_values": None}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "kvpool"
    sys_version = ""
    timeout = _SILENCE_S

    def log_message(self, *args):
        pass

    def _bad(self):
        self.close_connection = True
        self._text("400 Bad Request\n", 400)

    def do_GET(self):
        if self.headers.get("Transfer-Encoding") or self.headers.get("Content-Length", "0") != "0":
            self._bad()  # what nobody reads would be taken for the next request
            return
        self._answer({
            "/get_all_keys": self._all_keys, "/get_all_segments": self._all_segments, "/query_key": self._query_key,
            "/batch_query_keys": self._batch_query_keys, "/health": self._health, "/metrics": self._metrics,
            "/metrics/summary": self._summary, "/role": lambda q: self._text(self._who()),
            "/leader": self._leader, "/ha_status": self._ha_status, "/kv_events/status": self._kv_events, "/query_segment": self._query_segment, "/get_segments_detail": self._segments_detail,
            "/api/v1/segments/status": self._segment_status,
            "/api/v1/drain_jobs/query": lambda q: self._json(self.server.drain_jobs.query(q.get("job_id", [""])[0])),
        })

    def do_HEAD(self):
        self.do_GET()

    def do_POST(self):
        length = self.headers.get("Content-Length") or "0"
        is_number = length.isdecimal() and len(length) <= len(str(_BODY_MAX))
        if self.headers.get("Transfer-Encoding") or not is_number or int(length) > _BODY_MAX:
            self._bad()
            return
        body = self.rfile.read(int(length))
        self._answer({
            "/api/v1/remove_all": self._remove_all, "/api/v1/drain_jobs": lambda q: self._json(self.server.drain_jobs.create(body)),
            "/api/v1/drain_jobs/cancel": lambda q: self._json(self.server.drain_jobs.cancel(q.get("job_id", [""])[0])),
        })

    def _answer(self, paths):
        why = _origin.refusal(self.headers, _origin.is_loopback(self.server.server_address[0]))
        if why is not None:
            self._text(f"403 Forbidden: {why}\n", 403)
            return
        url = urlsplit(self.path)
        known = paths.get(url.path)
        if known is None:
            self._text("404 Not Found\n", 404)
            return
        refused = self.server.tokens and self.server.tokens.refusal(
            self.command, url.path, self.headers.get("Authorization"), self.client_address[0], _ROLES.get(url.path, "monitor"))
        if refused:
            self.close_connection = True
            self._json({"success": False, "error_message": refused[1]}, refused[0])
            return
        try:
            known(parse_qs(url.query))
        except RefusedError as e:
            self._json({"success": False, "error_code": e.code, "error_message": str(e)}, e.status)
        except (kvpool.Error, _BusyError, _AwayError) as e:
            self.close_connection = True
            self._json({"success": False, "error_message": str(e)}, 503)

    def _page(self, entries):
        with self.server.turn():
            return _lines(entries)

    def _text(self, text, status=200):
        self._body(text.encode(), _TEXT, status)

    def _json(self, value, status=200):
        self._body(json.dumps(value).encode(), "application/json; charset=utf-8", status)

    def _body(self, body, kind, status):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    # ---- paths
    def _all_keys(self, query):
        """A key a line, in chunks, as it is not known before how many there are."""
        entries = self.server.pool.list(page=_PAGE_KEYS, deadline=_PATIENCE_S)
        lines = self._page(entries)  # what goes wrong here has an answer of its own yet
        is_chunked = self.request_version >= "HTTP/1.1"
        self.send_response(200)
        self.send_header("Content-Type", _TEXT)
        if is_chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if self.command == "HEAD":
            return
        try:
            while lines:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(lines), lines) if is_chunked else lines)
                lines = self._page(entries)
        except (kvpool.Error, _BusyError, OSError) as e:
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
        self._text("".join(f"{node['node']}\n" for node in self.server.segments()))

    def _query_segment(self, query):
        """By the name that /get_all_segments has, or by "host:port"."""
        name = query.get("segment", [""])[0]
        found = [node for node in self.server.segments() if name in (node["node"], node["addr"])]
        if found:
            self._text(f"{name}\nUsed(bytes): {found[0]['used_bytes']}\nCapacity(bytes) : {found[0]['size_bytes']}\n")
        else:
            self._text("Failed to query segment\n", 404)

    def _segment_status(self, query):
        name = query.get("segment", [""])[0]
        found = [_status(node) for node in self.server.segments() if name in (node["node"], node["addr"])]
        if not found:
            raise RefusedError(NO_SEGMENT if name else BAD_REQUEST, "SEGMENT_NOT_FOUND" if name else "Missing segment query parameter")
        self._json({"success": True, "segment": name, "status": _STATUS_NUMBERS.index(found[0]), "status_name": found[0],
                    "error_code": 0, "error_message": ""})

    def _segments_detail(self, query):
        """Addresses in a node's memory and its client's id are nothing that others could use here: they are empty."""
        segments = [{
            "segment_name": node["node"], "segment_id": f"{node['segment_id']:016x}", "client_id": "", "base_address": "0x0",
            "size_bytes": node["size_bytes"], "size_human": f"{node['size_bytes'] / 2**30:g} GiB", "te_endpoint": node["addr"],
            "protocol": node["offers"], "status": _status(node),
            "allocator_used_bytes": node["used_bytes"], "allocator_capacity_bytes": node["size_bytes"],
            "allocator_usage_percent": 100 * node["used_bytes"] / max(node["size_bytes"], 1),
        } for node in self.server.segments()]
        self._json({"total_segments": len(segments), "segments": segments})

    def _who(self):
        """leader, or what the master is instead."""
        return json.loads(self._ask("/health")[0])["role"] if self.server.is_elected else "leader"

    def _state(self):
        """(role, what the reference calls it): a leader serves where the pool answers."""
        role = self._who()
        if role == "leader":
            self.server.stat()
        return role, "serving" if role == "leader" else role

    def _leader(self, query):
        self._body(*self._ask("/leader"))

    def _ha_status(self, query):
        self._text(self._state()[1])

    def _kv_events(self, query):
        self._body(*self._ask("/kv_events/status"))

    def _nodes(self):
        """segment_id -> "host:port", also of SSD tiers, which are named as their nodes with /ssd behind it."""
        stat = self.server.stat()
        at = {node["node"] + "/ssd": node["addr"] for node in stat["segments"]}
        return {**{node["segment_id"]: node["addr"] for node in stat["segments"]},
                **{tier["segment_id"]: at.get(tier["node"], "") for tier in stat["tiers"]}}

    def _found(self, keys):
        """What is told of each key."""
        nodes = self._nodes()
        with self.server.turn():
            places = self.server.pool._raw.batch_locate(keys, _PATIENCE_S * 1000, 0)
        return [_told(key, place, nodes) for key, place in zip(keys, places)]

    def _query_key(self, query):
        found = self._found([query.get("key", [""])[0]])[0]
        if found is None:
            self._json({"success": False, "error_code": -704, "error_message": "OBJECT_NOT_FOUND"}, 404)
        else:
            self._json({"success": True, "data": found[0]})

    def _batch_query_keys(self, query):
        keys = list(dict.fromkeys(query.get("keys", [""])[0].split(",")))
        self._json({"success": True, "data": {key: _in_batch(found) for key, found in zip(keys, self._found(keys))}})

    def _health(self, query):
        role, state = self._state()
        self._json({"status": "ok", "role": role, "ha_state": state, "service_ready": role == "leader"})

    def _ask(self, path):
        """(body, type, status) of what the master itself answers. _AwayError."""
        connection = http.client.HTTPConnection(self.server.metrics_at, timeout=_PATIENCE_S)
        try:
            given = self.headers.get("Authorization")
            connection.request("GET", path, headers={"Authorization": given} if given else {})
            answer = connection.getresponse()
            return answer.read(), answer.headers["Content-Type"], answer.status
        except (OSError, http.client.HTTPException, ValueError) as e:
            raise _AwayError(f"the master does not answer: {e}") from None
        finally:
            connection.close()

    def _metrics(self, query):
        try:
            self._body(*self._ask("/metrics"))
        except _AwayError as e:
            self._body(f"{e}\n".encode(), _TEXT, 503)

    def _summary(self, query):
        self._text(json.dumps(self.server.stat()) + "\n")

    def _remove_all(self, query):
        with self.server.turn():
            removed, _ = self.server.pool.remove_all(force=query.get("force", ["false"])[0] == "true", deadline=_PATIENCE_S)
        self._json({"success": True, "removed_count": removed})


class Admin(ThreadingHTTPServer):
    """Serves at `at`, from the pool of `master`; metrics_at is where the master serves its own. With etcd, which elects one of several
    masters, any of them answers for the pool of that cluster. tokens: a Tokens that says who may ask; None = everybody."""

    daemon_threads = True
    request_queue_size = 128  # who comes while others do waits for no second try

    def __init__(self, at, master, metrics_at, etcd="", cluster=None, tokens=None):
        super().__init__(at, _Handler)
        host, _, port = master.rpartition(":")
        where = f"etcd://{etcd}" if etcd else f"{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"
        self._open = functools.partial(kvpool.Pool, where, name="mooncake_master", cluster=cluster)
        self._pool, self._lock = None if etcd else self._open(), threading.Lock()  # maybe none leads yet
        self.is_elected = bool(etcd)
        self.metrics_at, self.tokens = metrics_at, tokens
        self.turns = threading.BoundedSemaphore(_AT_ONCE)
        self.rooms = threading.BoundedSemaphore(_CONNECTIONS)
        self.drain_jobs = DrainJobs(self._drain, self.segments)

    @property
    def pool(self):
        with self._lock:
            if self._pool is None:
                self._pool = self._open()
            return self._pool

    @contextlib.contextmanager
    def turn(self):
        """To ask the pool, and not to write what it said."""
        if not self.turns.acquire(timeout=_PATIENCE_S):
            raise _BusyError("too many ask at once")
        try:
            yield
        finally:
            self.turns.release()

    def stat(self):
        with self.turn():
            return self.pool.stat(deadline=_PATIENCE_S)

    def segments(self):
        return self.stat().get("segments", [])

    def _drain(self, node, what):
        with self.turn():
            return self.pool._raw.drain(node, what, _PATIENCE_S * 1000)

    def process_request(self, request, client_address):
        if not self.rooms.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.rooms.release()
            raise

    def process_request_thread(self, request, client_address):
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.rooms.release()

    def handle_error(self, request, client_address):
        """What a client does to its connection is no line in the log."""
        if not isinstance(sys.exc_info()[1], OSError):
            log.exception("an answer failed")

    def start(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
