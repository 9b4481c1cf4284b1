# SPDX-License-Identifier: Apache-2.0
"""The HTTP metadata server: bytes under keys, by GET, PUT and DELETE of /metadata?key=KEY, in memory alone. A GET tells the value's
ETag, and a DELETE may say by If-Match which value is meant.

Whoever reaches its port reads and changes all of it, as in the reference: keep it inside a network that you trust. What strangers may
take is bounded: keys, bytes, connections, and the time of a request and of its answer. One thread runs it, so that a client that is slow
costs a connection and nobody's turn.
"""
import asyncio
import errno
import hashlib
import threading
from concurrent.futures import Future
from urllib.parse import parse_qs, urlsplit

MAX_KEYS = 65536
MAX_KEY_BYTES = 1024
MAX_VALUE_BYTES = 1 << 20
MAX_BYTES = 64 << 20  # of keys and values together
MAX_CONNECTIONS = 256
_HEAD_BYTES = 8192  # a request's first line and fields
_EXCHANGE_S = 10  # for a request to come whole, counted from the answer before it, and again for its answer to go
_LINGER_S = 1
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 411: "Length Required",
            412: "Precondition Failed",
            413: "Content Too Large", 431: "Request Header Fields Too Large", 503: "Service Unavailable", 507: "Insufficient Storage"}


class _Refused(Exception):
    """A request that gets (status, text), and whose connection ends then, because nobody knows where the next one begins."""


def _tag(value):
    """What HTTP calls the ETag of a value: equal for equal ones alone."""
    return f'"{hashlib.sha256(value).hexdigest()[:32]}"'


class _Entries:
    """What is stored, within bounds. Every call gives (status, body)."""

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


def _parse(head):
    """(method, target, fields) of a request's head."""
    first, *lines = head.decode("latin-1")[:-4].split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.0", "HTTP/1.1"):
        raise _Refused(400, "not an HTTP request")
    fields = {"connection": "close"} if words[2] == "HTTP/1.0" else {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or not name or name != name.strip() or (name == "content-length" and name in fields):
            raise _Refused(400, "a field that is none")
        fields[name] = value.strip(" \t")
    return words[0], words[1], fields


def _length(fields):
    """The bytes of a request's body."""
    if "transfer-encoding" in fields:
        raise _Refused(411, "a body has a Content-Length here")
    text = fields.get("content-length", "0")
    if not text.isdigit() or not text.isascii():
        raise _Refused(400, "Content-Length is no number")
    if len(text) > 18 or int(text) > MAX_VALUE_BYTES:
        raise _Refused(413, f"metadata is {MAX_VALUE_BYTES} bytes at most")
    return int(text)


class MetadataServer:
    """start() serves at (host, port) in a thread of its own, until stop(). A server starts once."""

    def __init__(self, host, port):
        self.host, self.port = host, port
        self.thread = None
        self._entries = _Entries()
        self._connections = 0

    def start(self):
        """Returns when it listens; port is then the one it has. OSError where it cannot."""
        listens = Future()

        def run():
            serving = self._run(listens)
            try:
                asyncio.run(serving)
            except BaseException as e:  # no event loop, as where there are no descriptors left: start()'s caller is told
                serving.close()
                if listens.done():
                    raise
                listens.set_exception(e if isinstance(e, OSError) else OSError(errno.EAGAIN, f"no event loop: {e}"))

        self.thread = threading.Thread(target=run, name="kvpool-metadata", daemon=True)
        try:
            self.thread.start()
        except RuntimeError as e:
            raise OSError(errno.EAGAIN, str(e)) from None
        try:
            self.port = listens.result()
        except OSError:
            self.thread.join()  # who asks whether it serves asks whether the thread lives
            raise

    def stop(self):
        """Ends what clients are at. Waits for the thread, which waits for nobody."""
        if self.thread is None or not self.thread.is_alive():
            return
        try:
            self._loop.call_soon_threadsafe(self._is_over.set)
        except RuntimeError:  # another thread has stopped it meanwhile
            pass
        self.thread.join()

    async def _run(self, listens):
        self._loop, self._is_over = asyncio.get_running_loop(), asyncio.Event()
        try:
            server = await asyncio.start_server(self._serve, self.host, self.port, limit=_HEAD_BYTES)
        except Exception as e:  # start()'s caller is told
            listens.set_exception(OSError(errno.EINVAL, f"no port: {self.port}") if isinstance(e, OverflowError) else e)
            return
        listens.set_result(server.sockets[0].getsockname()[1])
        await self._is_over.wait()
        server.close()

    async def _serve(self, reader, writer):
        self._connections += 1
        writer.transport.set_write_buffer_limits(0)  # drain() returns when all has gone
        try:
            if self._connections > 2 * MAX_CONNECTIONS:
                pass
            elif self._connections > MAX_CONNECTIONS:
                await self._refuse(reader, writer, 503, "too many connections")
            else:
                while await self._exchange(reader, writer):
                    pass
        except (OSError, EOFError, asyncio.TimeoutError, asyncio.CancelledError):  # the last: stop()
            pass
        finally:
            self._connections -= 1
            writer.transport.abort()

    async def _exchange(self, reader, writer):
        """One request and its answer. True where another one may follow."""
        try:
            method, target, fields, body = await asyncio.wait_for(self._read(reader, writer), _EXCHANGE_S)
            status, answer, tag = self._answer(method, target, fields, body)
        except _Refused as e:
            await self._refuse(reader, writer, *e.args)
            return False
        stays = fields.get("connection", "").lower() != "close"
        await self._send(writer, status, answer, stays, tag)
        return stays

    async def _read(self, reader, writer):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise _Refused(431, f"a request's head is {_HEAD_BYTES} bytes at most") from None
        method, target, fields = _parse(head)
        length = _length(fields)
        if length and fields.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return method, target, fields, await reader.readexactly(length)

    def _answer(self, method, target, fields, body):
        """(status, body, tag of the value that the body is, or "")."""
        status, answer = self._outcome(method, target, fields, body)
        return status, answer, _tag(answer) if method == "GET" and status == 200 else ""

    def _outcome(self, method, target, fields, body):
        try:
            url = urlsplit(target)
            key = parse_qs(url.query, errors="strict", max_num_fields=16).get("key", [""])[0].strip()
        except ValueError:
            return 400, b"not a path"
        if url.path == "/health":
            return (200, b"OK") if method == "GET" else (405, b"Method not allowed")
        if url.path != "/metadata":
            return 404, b"Not Found"
        if not key:
            return 400, b"metadata key is required"
        if len(key.encode()) > MAX_KEY_BYTES:
            return 400, b"metadata keys are %d bytes at most" % MAX_KEY_BYTES
        if method == "PUT":
            return self._entries.put(key, body)
        if method == "DELETE":
            return self._entries.delete(key, fields.get("if-match", ""))
        return self._entries.get(key) if method == "GET" else (405, b"Method not allowed")

    async def _send(self, writer, status, body, stays, tag=""):
        field = f"ETag: {tag}\r\n" if tag else ""
        writer.write(f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{field}"
                     f"Connection: {'keep-alive' if stays else 'close'}\r\n\r\n".encode() + body)
        await asyncio.wait_for(writer.drain(), _EXCHANGE_S)

    async def _refuse(self, reader, writer, status, text):
        """The answer, and a moment for the client to read it: a connection that ends with bytes unread takes it back."""
        await self._send(writer, status, text.encode(), False)
        writer.write_eof()

        async def rest():
            while await reader.read(65536):
                pass

        await asyncio.wait_for(rest(), _LINGER_S)
