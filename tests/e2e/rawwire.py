# SPDX-License-Identifier: Apache-2.0
"""The wire by hand, for tests that break it: frames, the few protobuf fields that are needed, and raw sockets. It
follows PROTOCOL and shares no code with the product.
"""
import ctypes
import os
import select
import socket
import struct
import threading
import time

from conftest import SLOW

HDR = struct.Struct("<IBBHQ")  # length, opcode, flags, head_len, request id
REPLY, ONEWAY = 1, 2
FRAME_MAX, FIRST_MAX = 1 << 20, 16 << 10

HELLO, BYE, HEARTBEAT = 1, 2, 3
PUT_BEGIN, PUT_COMMIT, PUT_ABORT, GET, EXISTS, LOOKUP, RELEASE = range(16, 23)
REMOVE, REMOVE_MANY, LIST, SEGMENTS, STATUS, USED = range(23, 29)
BUMP = 29
MOUNT, UNMOUNT, FREED, RETIRE, FENCE = range(48, 53)
OPEN_CHUNK, DRAINED, DATA_HELLO = 64, 65, 66
DEAD, FREE = 1, 2  # of a RETIRE's answer
CLIENT, NODE = 1, 2

OK, INVALID, BAD_KEY, LIMIT, PROTO, VERSION, FENCED, NO_SEGMENT = 0, -1, -13, -21, -30, -31, -35, -51


# ---- protobuf: fields as (number, value): int = varint, bytes = length-delimited, Fixed = fixed64
class Fixed(int):
    pass


def varint(value):
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def pack(*fields):
    out = b""
    for number, value in fields:
        if isinstance(value, Fixed):
            out += varint(number << 3 | 1) + struct.pack("<Q", value)
        elif isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            value = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(value)) + value
    return out


def unpack(data):
    """{number: value} of a message; of a repeated field the last one."""
    found, at = {}, 0

    def read_varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = read_varint()
        if tag & 7 == 0:
            found[tag >> 3] = read_varint()
        elif tag & 7 == 1:
            found[tag >> 3] = struct.unpack_from("<Q", data, at)[0]
            at += 8
        else:
            n = read_varint()
            found[tag >> 3] = data[at:at + n]
            at += n
    return found


def signed(value):
    """A sint32 as it lies in a message."""
    return (value >> 1) ^ -(value & 1)


# ---- frames
def frame(opcode, head=b"", tail=b"", flags=0, request_id=1):
    padded = head + bytes(-len(head) % 8)
    return HDR.pack(len(padded) + len(tail), opcode, flags, len(head), request_id) + padded + tail


def hello(role=CLIENT, version=1, version_min=1, name="raw", host_id="raw-host", incarnation=0, pool_id=b""):
    fields = [(1, version), (2, version_min), (4, role), (5, name), (6, host_id), (8, Fixed(incarnation))]
    if pool_id:
        fields.append((9, pool_id))
    return frame(HELLO, pack(*fields))


class Reply:
    def __init__(self, opcode, flags, request_id, head, tail):
        self.opcode, self.flags, self.request_id, self.tail = opcode, flags, request_id, tail
        self.fields = unpack(head)
        first = self.fields.get(1, 0)
        self.err = signed(first) if isinstance(first, int) else OK  # other messages have something else there
        self.detail = self.fields.get(2, b"").decode() if isinstance(self.fields.get(2, b""), bytes) else ""


class Raw:
    """A socket to HOST:PORT or to a Unix path ('@' for an abstract one)."""

    def __init__(self, at, timeout=5.0):
        self.timeout = timeout * SLOW
        if at.startswith(("/", "@")):
            self.sock = socket.socket(socket.AF_UNIX)
            at = "\0" + at[1:] if at.startswith("@") else at
        else:
            host, _, port = at.rpartition(":")
            self.sock = socket.socket()
            at = (host, int(port))
        self.sock.settimeout(self.timeout)
        self.sock.connect(at)
        self.buffer = b""

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.sock.close()

    def send(self, data):
        """Sends what it can; a peer that has closed is no error here."""
        try:
            self.sock.sendall(data)
            return True
        except (BrokenPipeError, ConnectionResetError):
            return False

    def half_close(self):
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def _more(self):
        try:
            data = self.sock.recv(65536)
        except ConnectionResetError:
            return False
        self.buffer += data
        return bool(data)

    def exactly(self, n):
        """n bytes, or None where the connection ends before."""
        while len(self.buffer) < n:
            if not self._more():
                return None
        data, self.buffer = self.buffer[:n], self.buffer[n:]
        return data

    def reply(self):
        """The next frame, or None where the connection ends."""
        header = self.exactly(HDR.size)
        if header is None:
            return None
        length, opcode, flags, head_len, request_id = HDR.unpack(header)
        body = self.exactly(length)
        if body is None:
            return None
        return Reply(opcode, flags, request_id, body[:head_len], body[(head_len + 7) // 8 * 8:])

    def call(self, data):
        self.send(data)
        return self.reply()

    def is_closed(self, timeout=10.0):
        """Whether the peer closes within timeout; what it says before is dropped."""
        end = time.monotonic() + timeout * SLOW
        while True:
            left = end - time.monotonic()
            if left <= 0:
                return False
            poll = select.poll()  # select takes no descriptor above 1023
            poll.register(self.sock, select.POLLIN)
            if not poll.poll(left * 1000):
                return False
            if not self._more():
                return True

    def fd(self):
        return self.sock.fileno()


def push(raws, data, seconds, each=lambda: None):
    """Sends data over all of them, as far as they are read within so long; calls each between."""
    end = time.monotonic() + seconds
    left = {raw: memoryview(data) for raw in raws}
    for raw in raws:
        raw.sock.setblocking(False)
    while left and time.monotonic() < end:
        _, ready, _ = select.select([], [raw.sock for raw in left], [], 0.05)
        for raw in [raw for raw in left if raw.sock in ready]:
            try:
                left[raw] = left[raw][raw.sock.send(left[raw][:1 << 18]):]
            except (BrokenPipeError, ConnectionResetError):
                left[raw] = b""
            if not left[raw]:
                del left[raw]
        each()
    for raw in raws:
        raw.sock.settimeout(raw.timeout)


def session(at, role=CLIENT, **kw):
    """A connection that has said Hello, and what was answered."""
    raw = Raw(at)
    answer = raw.call(hello(role=role, **kw))
    assert answer is not None and answer.err == OK, "Hello refused"
    return raw, answer.fields


class MountedNode:
    """A node that only the master reaches: it offers memory at an address where nobody listens, and says that all it is
    ordered is done. unix_path: where it says that it is reached within its host, whose id is its name.
    """

    def __init__(self, at, name, addr, size=64 << 20, chunk=4 << 20, unix_path="", transports="tcp"):
        self.raw, _ = session(at, role=NODE, name=name, host_id=name)
        self.raw.send(frame(MOUNT, pack((1, name), (2, os.urandom(16)), (3, Fixed(1)), (4, size), (5, chunk), (6, addr),
                                        (7, unix_path), (8, transports), (9, 1)), request_id=2))
        answer = self.raw.reply()
        while answer is not None and not answer.flags & REPLY:
            self._done(answer)
            answer = self.raw.reply()
        assert answer is not None and answer.err == OK, "Mount refused"
        self.is_ending = False
        self.thread = threading.Thread(target=self._obey, daemon=True)
        self.thread.start()

    def _done(self, order):
        """Says that an order is carried out. One-way messages have no answer."""
        if order.flags & ONEWAY:
            return
        n = order.fields.get(1, 0) if order.opcode == RETIRE else 0
        self.raw.send(frame(order.opcode, pack((3, n)), bytes([DEAD | FREE]) * n, REPLY, order.request_id))

    def _obey(self):
        beat = frame(HEARTBEAT, request_id=3)
        while not self.is_ending:
            if not select.select([self.raw.fd()], [], [], 0.5)[0]:
                self.raw.send(beat)
                continue
            order = self.raw.reply()
            if order is None:
                return
            if not order.flags & REPLY:
                self._done(order)

    def end(self):
        self.is_ending = True
        self.thread.join()
        self.raw.sock.close()


# ---- data over TCP
DATA_MAGIC = 0x4B56
DATA_READ, DATA_WRITE, DATA_PUBLISH = 1, 2, 3
DATA_OP = struct.Struct("<BBHIQQQQQQQ")
DATA_REQ = struct.Struct("<HHIQ")


class _Hash(ctypes.Structure):
    _fields_ = [("lo", ctypes.c_uint64), ("hi", ctypes.c_uint64)]


def digest(key, seed):
    """Of a key of tenant 0."""
    hashes = ctypes.CDLL("libxxhash.so.0").XXH3_128bits_withSeed
    hashes.restype, hashes.argtypes = _Hash, [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64]
    found = hashes(key, len(key), seed)
    return struct.pack("<QQ", found.lo, found.hi)


def put_begin(keys, size, seed, attempt, pin=0, wait_ms=1000):
    records = b"".join(digest(k, seed) + struct.pack("<QQII", size, attempt + i, len(b"".join(keys[:i])), len(k)) for i, k in enumerate(keys))
    return frame(PUT_BEGIN, pack((1, len(keys)), (2, wait_ms), (6, pin)), records + b"".join(keys), request_id=2)


def put_commit(attempt, n):
    return frame(PUT_COMMIT, pack((1, n)), b"".join(struct.pack("<QQII", attempt + i, 0, 1, 0) for i in range(n)), request_id=3)


def data_hello(pool_id, incarnation, version=1, version_min=1):
    return frame(DATA_HELLO, pack((1, version), (2, pool_id), (3, Fixed(incarnation)), (4, version_min)))


def data_op(kind, key, off, length, flags=0, guard=(0, 0, 0), body=b""):
    return DATA_OP.pack(kind, flags, 0, 0, key, off, length, *guard, 0) + body


def data_request(*ops, seq=1, n_ops=None, size=None):
    body = b"".join(ops)
    n = len(ops) if n_ops is None else n_ops
    return DATA_REQ.pack(DATA_MAGIC, n, seq, len(body) if size is None else size) + body


def rss_bytes(pid):
    """Anonymous memory of a process; shared memory (the pool itself) is not counted."""
    with open(f"/proc/{pid}/status") as f:
        for line in f:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def open_descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))
