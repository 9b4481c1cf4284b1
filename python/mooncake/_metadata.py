# SPDX-License-Identifier: Apache-2.0
"""The HTTP metadata server: bytes under keys, by GET, PUT and DELETE of /metadata?key=KEY, in memory alone. A GET tells the value's
ETag, and a DELETE may say by If-Match which value is meant.

Without tokens, whoever reaches its port reads and changes all of it, as in Mooncake: keep it inside a network that you trust. What
strangers may take is bounded: keys, bytes, connections, and the time of a request and of its answer. http.server parses requests. A thread serves each
connection, and the thread that accepts shuts those down whose time is over.
"""
import contextlib
import errno
import hashlib
import io
import socket
import socketserver
import threading
import time
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

from . import _origin

MAX_KEYS = 65536
MAX_KEY_BYTES = 1024
MAX_VALUE_BYTES = 1 << 20
MAX_BYTES = 64 << 20  # of keys and values together
MAX_CONNECTIONS = 256
_HEAD_BYTES = 8192  # a request's first line and fields
_EXCHANGE_S = 10  # for a request to come whole, counted from the answer before it, and again for its answer to go
_LINGER_S = 1
_LOOK_S = 0.1  # between two looks for connections whose time is over


def _tag(value):
    """What HTTP calls the ETag of a value: equal for equal ones alone."""
    return f'"{hashlib.sha256(value).hexdigest()[:32]}"'


class _Entries:
    """What is stored, within bounds. Every call gives (status, body). One thread at a time calls it (_Server.entries_lock)."""

    def __init__(self):
        self._values = {}
        self._bytes = 0

    def get(self, key):
        return (200, self._values[key]) if key in self._values else (404, b"metadata not found")

    def put(self, key, value):
        old = self._values.get(key)
        if old is not None and "rpc_meta" in key:  # the reference's engines learn so that a name is taken
            return 400, b"Duplicate rpc_meta key not allowed"
        total = self._bytes + len(value) + (len(key.encode()) if old is None else -len(old))
        if total > MAX_BYTES or (old is None and len(self._values) >= MAX_KEYS):
            return 507, b"no space for more metadata"
        self._bytes = total
        self._values[key] = value
        return 200, b"metadata updated"

    def delete(self, key, wanted=""):
        """wanted: an If-Match, tags of the values of which it has to be one. Who has found an entry to be of nobody removes that one and
        no later one."""
        old = self._values.get(key)
        if old is None:
            return 404, b"metadata not found"
        tags = [tag.strip() for tag in wanted.split(",")]
        if wanted and "*" not in tags and _tag(old) not in tags:
            return 412, b"metadata has changed"
        del self._values[key]
        self._bytes -= len(old) + len(key.encode())
        return 200, b"metadata deleted"


class _Reader(io.BufferedReader):
    """A connection's bytes. A head of more than _HEAD_BYTES is not read."""

    head_left = 0

    def readline(self, size=-1):
        line = super().readline(min(size, self.head_left + 1) if size >= 0 else self.head_left + 1)
        self.head_left -= len(line)
        if self.head_left < 0:
            raise LineTooLong("head")
        return line


class _Handler(BaseHTTPRequestHandler):
    protocol_version = default_request_version = "HTTP/1.1"
    server_version, sys_version = "kvpool", ""
    disable_nagle_algorithm = True

    def setup(self):
        super().setup()
        self.rfile.close()
        self.rfile = _Reader(self.connection.makefile("rb", buffering=0))
        self.requestline, self.command, self.request_version = "", "", self.protocol_version

    def log_message(self, *args):
        pass

    def handle(self):
        if self.server.is_beyond(self.connection):
            self._refuse(503, "too many connections")
        else:
            super().handle()

    def handle_one_request(self):
        self.server.allow(self.connection, _EXCHANGE_S)
        self.rfile.head_left = _HEAD_BYTES
        try:
            super().handle_one_request()
        except LineTooLong:  # the first line
            self._refuse(431, f"a request's head is {_HEAD_BYTES} bytes at most")

    def parse_request(self):
        """http.server's, which takes what is no request for one of HTTP/0.9 and leaves fields out that are none."""
        self.close_connection = True
        if len(self.raw_requestline.split()) != 3:
            self._refuse(400, "not an HTTP request")
            return False
        if not super().parse_request():
            return False
        if self.headers.defects or len(self.headers.get_all("Content-Length", [])) > 1:
            self._refuse(400, "a field that is none")
            return False
        return True

    def send_error(self, code, message=None, explain=None):
        self._refuse(code, message or "not an HTTP request")

    def _length(self):
        """The bytes of the request's body; None where that was refused."""
        text = self.headers.get("Content-Length", "0")
        if self.headers.get("Transfer-Encoding"):
            self._refuse(411, "a body has a Content-Length here")
        elif not text.isdigit() or not text.isascii():
            self._refuse(400, "Content-Length is no number")
        elif len(text) > 18 or int(text) > MAX_VALUE_BYTES:
            self._refuse(413, f"metadata is {MAX_VALUE_BYTES} bytes at most")
        else:
            return int(text)
        return None

    def _serve(self):
        length = self._length()
        if length is None:
            return
        body = self.rfile.read(length)
        if len(body) < length:  # cut off
            self.close_connection = True
            return
        status, answer = self._outcome(body)
        self.server.allow(self.connection, _EXCHANGE_S)
        self._send(status, answer, _tag(answer) if self.command == "GET" and status == 200 else "")

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = do_OPTIONS = _serve

    def _outcome(self, body):
        why = _origin.refusal(self.headers, _origin.is_loopback(self.server.server_address[0]))
        if why is not None:
            return 403, why.encode()
        try:
            url = urlsplit(self.path)
            key = parse_qs(url.query, errors="strict", max_num_fields=16).get("key", [""])[0].strip()
        except ValueError:
            return 400, b"not a path"
        if url.path == "/health":
            return (200, b"OK") if self.command == "GET" else (405, b"Method not allowed")
        if url.path != "/metadata":
            return 404, b"Not Found"
        refused = self.server.tokens and self.server.tokens.refusal(
            self.command, url.path, self.headers.get("Authorization"), self.client_address[0],
            "reader" if self.command in ("GET", "HEAD") else "writer")
        if refused:
            return refused[0], refused[1].encode()
        if not key:
            return 400, b"metadata key is required"
        if len(key.encode()) > MAX_KEY_BYTES:
            return 400, b"metadata keys are %d bytes at most" % MAX_KEY_BYTES
        entries = self.server.entries
        with self.server.entries_lock:
            if self.command == "PUT":
                return entries.put(key, body)
            if self.command == "DELETE":
                return entries.delete(key, self.headers.get("If-Match", ""))
            return entries.get(key) if self.command == "GET" else (405, b"Method not allowed")

    def _send(self, status, body, tag=""):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if tag:
            self.send_header("ETag", tag)
        self.send_header("Connection", "close" if self.close_connection else "keep-alive")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status, text):
        """The answer, and a moment for the client to read it: a connection that ends with bytes unread takes it back. Nobody knows where
        the next request begins, so it ends."""
        self.close_connection = True
        self._send(status, text.encode())
        self.connection.shutdown(socket.SHUT_WR)
        self.server.allow(self.connection, _LINGER_S)
        while self.rfile.read1(65536):
            pass


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host, port, tokens):
        self.tokens = tokens
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # Of a name with addresses of both kinds that of IPv4: who asks for "localhost" finds it there.
        self.address_family, _, _, _, at = min(found, key=lambda one: one[0] != socket.AF_INET)
        self.entries, self.entries_lock = _Entries(), threading.Lock()
        self._ends, self._beyond, self._lock = {}, set(), threading.Lock()  # connection -> when its time is over; those that are refused
        super().__init__(at, _Handler)

    def is_beyond(self, connection):
        with self._lock:
            return connection in self._beyond

    def count(self):
        with self._lock:
            return len(self._ends)

    def allow(self, connection, seconds):
        with self._lock:
            if connection in self._ends:
                self._ends[connection] = time.monotonic() + seconds

    def get_request(self):
        try:
            return super().get_request()
        except OSError:  # no descriptor is left, say: it asks again soon, and not at once
            time.sleep(_LOOK_S)
            raise

    def process_request(self, request, client_address):
        with self._lock:
            n = len(self._ends)
            if n < 2 * MAX_CONNECTIONS:
                self._ends[request] = time.monotonic() + _EXCHANGE_S
            if n >= MAX_CONNECTIONS:
                self._beyond.add(request)
        if n < 2 * MAX_CONNECTIONS:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request):
        with self._lock:
            self._ends.pop(request, None)
            self._beyond.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request, client_address):
        """A connection that was cut, or for which there is no thread: it is closed, and that is all."""

    def service_actions(self):
        self.end(time.monotonic())

    def end(self, now):
        """Shuts connections down whose time is over by then. Their threads close them."""
        with self._lock:
            for connection, end in self._ends.items():
                if end <= now:
                    with contextlib.suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)


class MetadataServer:
    """start() serves at (host, port) in threads of its own, until stop(). A server starts once. tokens: a Tokens that says who may ask;
    None = everybody."""

    def __init__(self, host, port, tokens=None):
        self.host, self.port, self._tokens = host, port, tokens
        self.thread = None
        self._server = None

    @property
    def _connections(self):
        return self._server.count()

    def start(self):
        """Returns when it listens; port is then the one it has. OSError where it cannot."""
        try:
            self._server = _Server(self.host, self.port, self._tokens)
        except OverflowError:
            raise OSError(errno.EINVAL, f"no port: {self.port}") from None
        self.port = self._server.server_address[1]
        thread = threading.Thread(target=self._server.serve_forever, args=(_LOOK_S,), name="kvpool-metadata", daemon=True)
        try:
            thread.start()
        except RuntimeError as e:
            self._server.server_close()
            raise OSError(errno.EAGAIN, str(e)) from None
        self.thread = thread

    def stop(self):
        """Ends what clients are at. Waits for the thread that accepts, which waits for nobody."""
        if self.thread is None or not self.thread.is_alive():
            return
        self._server.shutdown()
        self.thread.join()
        self._server.server_close()
        self._server.end(float("inf"))
