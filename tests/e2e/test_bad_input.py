# SPDX-License-Identifier: Apache-2.0
"""Bad input: arguments that nobody should give, and bytes that nobody should send. A typed error or a closed
connection, with one line in the log; never a crash, a hang, growing memory, or harm to anybody else.
"""
import os
import random
import re
import resource
import socket
import struct
import threading
import time

import pytest

import rawwire as w
from clients import E2E, Shell, figures, slow
from conftest import SAN, SLOW, TIER, run_program, wait_until

MIB = 1 << 20
STORM = (2000 if TIER == "long" else 150) // (2 if SAN else 1)
GROWTH_MAX = 8 * MIB

# Where bytes can be sent: who listens, and how it is reached.
DOORS = ["master-tcp", "master-unix", "node-tcp", "node-unix"]
doors = pytest.mark.parametrize("door", DOORS)


class Door:
    def __init__(self, pool, name):
        who, how = name.split("-")
        self.daemon = pool.master if who == "master" else pool.nodes[0]
        self.is_node = who == "node"
        self.is_unix = how == "unix"
        self.at = self.daemon.unix if self.is_unix else self.daemon.listen
        assert self.at, f"{name}: the ready line has no address"

    def connect(self):
        return w.Raw(self.at)

    def lines(self):
        """Lines of trouble in the log so far."""
        return [line for line in self.daemon.log().splitlines() if re.search(r" level=(warn|error) ", line)]


def new_lines(door, known, at_least=1):
    wait_until(lambda: len(door.lines()) >= len(known) + at_least, 3, "a line in the log")
    return door.lines()[len(known):]


class Standing:
    """A client's standing with the pool, for what comes after Hello: the pool's id, an incarnation that lives."""

    def __init__(self, pool):
        self.raw, self.fields = w.session(pool.addr)
        self.pool_id, self.incarnation = self.fields[7], self.fields[6]

    def greet(self, door):
        """A connection that has said its Hello, of whichever kind the door wants."""
        raw = door.connect()
        if not door.is_node:
            answer = raw.call(w.hello())
        elif not door.is_unix:
            answer = raw.call(self.node_hello())
        else:
            pidfd = os.pidfd_open(os.getpid())
            socket.send_fds(raw.sock, [self.node_hello()], [pidfd])
            os.close(pidfd)
            answer = raw.reply()
        assert answer is not None and answer.err == w.OK, answer and answer.detail
        return raw

    def node_hello(self):
        return w.hello(pool_id=self.pool_id, incarnation=self.incarnation)


@pytest.fixture
def served(pool):
    """A client of the pool; whatever else happened, it must be served in the end, and no daemon may have died."""
    client = Shell(pool.bench, pool.addr)
    assert client("bput served/ 0 8 100000")["results"] == {"OK": 8}
    yield client
    assert pool.master.is_running() and all(node.is_running() for node in pool.nodes)
    for shell in (client, Shell(pool.bench, pool.addr, "newcomer")):
        got = shell("bget served/ 0 8 100000")
        assert got["results"] == {"OK": 8} and got["wrong"] == 0, got
        assert shell("put afterwards 100000")["err"] == "OK"


# ---- the API


@pytest.mark.pool(nodes=1, memory="16MiB")
def test_api_arguments(pool):
    """Fails if a function of the API answers a bad argument (NULLs, wrong sizes, foreign memory, closed handles, bad
    keys) with anything but the error that is written beside the call in e2e_api.c, or crashes.
    """
    r = run_program([E2E / "e2e_api", str(16 * MIB)], pool.bench.env(KVPOOL_MASTER=pool.addr), timeout=40 * SLOW)
    bad = [line for line in r.text.splitlines() if not line.startswith("ok ")]
    assert not bad and r.rc == 0, (bad, r.err[-2000:])
    assert len(r.text.splitlines()) > 140
    assert pool.nodes[0].is_running() and pool.put("still", b"here").rc == 0


# ---- Hello


@pytest.mark.pool(nodes=1)
@doors
@pytest.mark.parametrize("version,version_min", [(0, 0), (9, 9), (1, 2)])
def test_wrong_version(pool, served, door, version, version_min):
    """Fails if a Hello of a version out of reach is not refused with an error, a reason for a person, the end of the
    connection, and one line in the log.
    """
    door = Door(pool, door)
    known = door.lines()
    with door.connect() as raw:
        answer = raw.call(w.hello(version=version, version_min=version_min))
        assert answer is not None, "no answer to Hello"
        assert answer.err in (w.VERSION, w.INVALID) and (answer.err == w.VERSION or version < version_min)
        assert re.search(r"\w{3}", answer.detail), "a reason"
        assert raw.is_closed(), "refused, but not closed"
    lines = new_lines(door, known)
    assert len(lines) == 1, lines


@pytest.mark.pool(nodes=1)
def test_wrong_pool_and_role(pool, served):
    """Fails if a node lets in a client of another pool, or somebody who says to be a node; or a master a node without
    name or a role that does not exist.
    """
    standing, node, master = Standing(pool), Door(pool, "node-tcp"), Door(pool, "master-tcp")
    for door, data in [(node, w.hello(pool_id=bytes(16), incarnation=standing.incarnation)),
                       (node, w.hello(pool_id=standing.pool_id[:8], incarnation=standing.incarnation)),
                       (node, w.hello(incarnation=standing.incarnation)),
                       (node, w.hello(role=w.NODE, pool_id=standing.pool_id, incarnation=standing.incarnation)),
                       (node, w.hello(pool_id=standing.pool_id, incarnation=0)),
                       (master, w.hello(role=w.NODE, name="")), (master, w.hello(role=77)),
                       (master, w.hello(name="n" * 129)), (master, w.hello(host_id="h" * 129)),
                       (master, w.hello(pool_id=bytes(16)))]:
        with door.connect() as raw:
            answer = raw.call(data)
            assert answer is not None and answer.err < 0 and answer.detail, data
            assert raw.is_closed(), answer.detail


@pytest.mark.pool(nodes=1)
def test_pidfd_is_checked(pool, served):
    """Fails if the node's Unix socket lets in a client without its pidfd, or with that of another process: the end of a
    quarantine hangs on it.
    """
    standing, door = Standing(pool), Door(pool, "node-unix")
    other, plain = os.pidfd_open(pool.master.pid), os.open("/dev/null", os.O_RDONLY)
    mine = os.pidfd_open(os.getpid())
    for fds in ([], [other], [plain], [mine, mine]):
        with door.connect() as raw:
            socket.send_fds(raw.sock, [standing.node_hello()], fds)
            answer = raw.reply()
            assert answer is None or answer.err < 0, fds
            assert raw.is_closed()
    with standing.greet(door):
        pass
    for fd in (other, plain, mine):
        os.close(fd)


# ---- frames that are none


def storm_of_bytes(door, rng, n):
    for i in range(n):
        with door.connect() as raw:
            data = rng.randbytes(rng.choice([1, 15, 16, 17, 100, 5000]))
            if i % 3 == 0:  # a header that could be one
                data = w.HDR.pack(rng.choice([0, 8, 100, 4096]), rng.randrange(256), rng.randrange(4),
                                  rng.choice([0, 8, 100, 65535]), rng.randrange(1 << 64)) + data
            raw.send(data)
            raw.half_close()
            assert raw.is_closed(), f"not closed after {data[:64].hex()} and the end"


def requests_for(door, standing, rng):
    """Well-formed frames for what listens there, to be spoilt. Without REMOVE_MANY: with its pattern cut to "^" it is
    a legal order to remove everything.
    """
    digests = rng.randbytes(32)
    if door.is_node:
        uuid = rng.randbytes(16)
        return [w.frame(w.OPEN_CHUNK, w.pack((1, uuid), (2, 0), (3, 2), (4, "tcp"))),
                w.frame(w.OPEN_CHUNK, w.pack((1, uuid), (2, 7), (3, 1), (4, "shm"))),
                w.frame(w.DRAINED, w.pack((1, w.Fixed(standing.incarnation)))), standing.node_hello()]
    put = struct.pack("<16sQQII", digests[:16], 4096, rng.randrange(1, 1 << 60), 0, 5) + b"a key"
    return [w.hello(), w.frame(w.HEARTBEAT, w.pack((1, w.Fixed(standing.incarnation)), (2, 1))),
            w.frame(w.PUT_BEGIN, w.pack((1, 1), (2, 10)), put),
            w.frame(w.PUT_COMMIT, w.pack((1, 1)), struct.pack("<QQ", 5, 6)),
            w.frame(w.PUT_ABORT, w.pack((1, 2), (2, 1)), struct.pack("<QQ", 5, 6)),
            w.frame(w.GET, w.pack((1, 2)), digests), w.frame(w.EXISTS, w.pack((1, 2)), digests),
            w.frame(w.LOOKUP, w.pack((1, 2), (2, 1), (3, 100)), digests),
            w.frame(w.RELEASE, w.pack((1, 2)), struct.pack("<QQ", 1, 2)),
            w.frame(w.REMOVE, w.pack((1, 2)), digests),
            w.frame(w.LIST, w.pack((2, 100), (3, b"served/"))), w.frame(w.SEGMENTS, w.pack((1, 1))),
            w.frame(w.SEGMENTS), w.frame(w.STATUS), w.frame(w.BYE)]


def spoil(data, rng):
    data = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(data))
        what = rng.randrange(6)
        if what == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif what == 2:
            del data[at:at + rng.randrange(1, 9)]
        elif what == 3:
            data[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif what == 4:
            data[at:at + 8] = struct.pack("<Q", rng.choice([0, 1, 1 << 31, 1 << 32, 1 << 63, (1 << 64) - 1]))
        else:  # the head's length against the frame's
            data[6:8] = struct.pack("<H", rng.randrange(1 << 16))
        if not data:
            return b"\0"
    return bytes(data)


def storm_of_frames(door, standing, rng, n):
    for _ in range(n):
        good, *bad = rng.sample(requests_for(door, standing, rng), 3)
        data = b"".join(spoil(f, rng) for f in bad)
        with standing.greet(door) as raw:
            raw.send(good)
            raw.send(data)
            raw.half_close()
            assert raw.is_closed(), f"not closed after {data[:64].hex()} and the end"


def storm_and_judge(door, storm):
    """Two thirds of a storm must not take more memory than the first third did, nor leave descriptors open; and it may
    not fill the log.
    """
    descriptors = w.open_descriptors(door.daemon.pid)
    begun = time.monotonic()
    known = door.lines()
    storm(STORM // 3 + 1)
    before = w.rss_bytes(door.daemon.pid)
    storm(STORM - STORM // 3)
    wait_until(lambda: w.open_descriptors(door.daemon.pid) <= descriptors, 5, "its descriptors to be closed")
    growth = w.rss_bytes(door.daemon.pid) - before
    assert growth < GROWTH_MAX or SAN, f"{growth} bytes more"
    lines = len(new_lines(door, known))
    assert lines <= 15 + 2 * (time.monotonic() - begun), f"{lines} lines in the log"


@slow
@pytest.mark.pool(nodes=1)
@doors
def test_random_bytes(pool, served, door):
    """Fails if random bytes, or random bytes behind a plausible header, crash or hang a daemon, make it grow, keep a
    descriptor, or fill the log.
    """
    door, rng = Door(pool, door), random.Random(13)
    storm_and_judge(door, lambda n: storm_of_bytes(door, rng, n))


@slow
@pytest.mark.pool(nodes=1)
def test_random_bytes_to_http(pool, served):
    """Fails if random bytes, an endless request line or a giant body at the admin port make the master or its /health
    suffer.
    """
    rng = random.Random(19)
    before = w.rss_bytes(pool.master.pid)
    for data in [rng.randbytes(3000), b"GET /" + b"x" * 200000, b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 20000,
                 b"POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n" + bytes(5000),
                 b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", b"\r\n" * 1000, b"GET"] * 5:
        with w.Raw(pool.master.http) as raw:
            raw.send(data)
            raw.half_close()
            raw.is_closed(0.2)
    assert pool.master.http_get("/health")[0] == 200
    assert w.rss_bytes(pool.master.pid) - before < GROWTH_MAX or SAN


@slow
@pytest.mark.pool(nodes=1)
@doors
def test_mutated_frames(pool, served, door):
    """Fails if real frames with bits flipped, bytes lost or added, and lengths that lie, behind a good Hello, crash or
    hang a daemon, make it grow, keep a descriptor, or fill the log.
    """
    door, rng, standing = Door(pool, door), random.Random(17), Standing(pool)
    storm_and_judge(door, lambda n: storm_of_frames(door, standing, rng, n))


@slow
@pytest.mark.pool(nodes=1)
@doors
@pytest.mark.parametrize("length", [w.FRAME_MAX + 1, 0x7FFFFFFF, 0xFFFFFFFF])
def test_giant_length(pool, served, door, length):
    """Fails if a frame that says to be longer than frames may be does not close the connection at once, with one line.
    """
    door = Door(pool, door)
    for is_greeted in (False, True):
        known = door.lines()
        with Standing(pool).greet(door) if is_greeted else door.connect() as raw:
            raw.send(w.HDR.pack(length, w.GET, 0, 0, 1))
            assert raw.is_closed()
        assert len(new_lines(door, known)) == 1


@slow
@pytest.mark.pool(nodes=1)
@doors
def test_claims_cost_nothing(pool, served, door):
    """Fails if frames of the greatest length, of which only the last byte does not come, make a daemon take more memory than it may
    for all of them together; or if they keep others from being served.
    """
    door, standing = Door(pool, door), Standing(pool)
    # The master: its budget for frames, and the pages of the pieces that it moved, which the allocator keeps for 10 s.
    length, most = (w.FIRST_MAX, 0) if door.is_node else (w.FRAME_MAX, 64 * MIB + GROWTH_MAX)
    claim = w.HDR.pack(length, w.OPEN_CHUNK if door.is_node else w.GET, 0, 8, 1) + bytes(length - 1)
    raws = [standing.greet(door) for _ in range(100)]
    before = growth = w.rss_bytes(door.daemon.pid)

    def look():
        nonlocal growth
        growth = max(growth, w.rss_bytes(door.daemon.pid))

    w.push(raws, claim, 2, look)
    assert served("get served/1 100000")["intact"]
    growth -= before
    assert growth < most + GROWTH_MAX or SAN, f"{growth} bytes for 100 claims"
    for raw in raws:
        raw.half_close()
        assert raw.is_closed()
        raw.sock.close()


@slow
@pytest.mark.pool(nodes=1)
@pytest.mark.limit(90)
def test_slow_peers(pool, served):
    """Fails if a peer that says nothing, half a header, half a Hello, or byte after byte of one for ever, is not cut
    off within 12 s (5 s are a Hello's time); if one that stops in the middle of a frame after its Hello, drips it, or
    says nothing more, is kept by the master for more than 20 s; or if anybody else waits because of them.
    """
    standing = Standing(pool)
    soon, later, dripping = [], [], []
    for name in DOORS:
        door = Door(pool, name)
        hello = standing.node_hello() if door.is_node else w.hello()
        for part in (b"", hello[:7], hello[:16], hello[:30]):
            raw = door.connect()
            raw.send(part)
            soon.append((name, part, raw))
        raw = door.connect()
        dripping.append((raw, hello[:-1]))
        soon.append((name, "dripping", raw))
        if not door.is_node:
            raw = standing.greet(door)
            raw.send(w.frame(w.GET, w.pack((1, 2)), bytes(32))[:-5])
            later.append((name, "cut", raw))
            raw = standing.greet(door)
            dripping.append((raw, w.frame(w.GET, w.pack((1, 2)), bytes(32))[:-1]))
            later.append((name, "dripping after Hello", raw))
            later.append((name, "silent after Hello", standing.greet(door)))

    stop = threading.Event()

    def drip():
        for i in range(200):
            for raw, data in dripping:
                if i < len(data):
                    raw.send(data[i:i + 1])
            if stop.wait(0.3):
                return

    dripper = threading.Thread(target=drip)
    dripper.start()
    begun = time.monotonic()
    try:
        for group, limit in ((soon, 12), (later, 20)):
            for name, what, raw in group:
                left = max(0.1, begun + limit * SLOW - time.monotonic())
                assert raw.is_closed(left / SLOW), f"{name}, {what}: still open after {limit} s"
                got = served("get served/1 100000")
                assert got["intact"] and got["ms"] < 2500 * SLOW, got
    finally:
        stop.set()
        dripper.join()
    for _, _, raw in soon + later:
        raw.sock.close()


def test_many_that_ask_at_once(pool):
    """Fails if the master serves all of many connections in one turn of its loop, so that all others wait for them, or forgets one of them."""
    def turn_waits():
        return int(re.search(r"^kvpool_master_turn_waits_total (\d+)", pool.master.http_get("/metrics")[1], re.M)[1])

    raws = [w.Raw(pool.addr, timeout=20) for _ in range(400)]
    try:
        before = turn_waits()
        pool.master.freeze()
        for raw in raws:
            assert raw.send(w.hello())
        pool.master.thaw()
        assert [raw.reply().err for raw in raws] == [w.OK] * len(raws)
        assert turn_waits() > before
    finally:
        for raw in raws:
            raw.sock.close()


@pytest.fixture
def many_descriptors():
    """Room for thousands of sockets in this process and those that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192) if hard != resource.RLIM_INFINITY else 8192, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@slow
@pytest.mark.pool(nodes=1)
@doors
def test_thousand_idle_connections(many_descriptors, pool, served, door):
    """Fails if 1,000 connections that say nothing keep clients, old or new, from being served, cost more than 16 KiB
    each, or leave a descriptor or memory behind when they are gone.
    """
    door = Door(pool, door)
    descriptors, memory = w.open_descriptors(door.daemon.pid), w.rss_bytes(door.daemon.pid)
    raws = [door.connect() for _ in range(1000)]
    got = served("bget served/ 0 8 100000")
    assert got["results"] == {"OK": 8} and got["ms"] < 3000 * SLOW, got
    newcomer = Shell(pool.bench, pool.addr, "among-many")
    assert newcomer("get served/3 100000")["intact"]
    assert newcomer.finish() == 0
    assert w.rss_bytes(door.daemon.pid) - memory < 16 * MIB or SAN
    for raw in raws:
        raw.sock.close()
    wait_until(lambda: w.open_descriptors(door.daemon.pid) <= descriptors, 5, "their descriptors to be closed")
    assert w.rss_bytes(door.daemon.pid) - memory < GROWTH_MAX or SAN


# ---- messages in the wrong place


@pytest.mark.pool(nodes=1)
def test_orders_from_clients(pool, served):
    """Fails if a node obeys orders that only a master gives (RETIRE, FENCE), or a master those of a node, when a client
    sends them: the objects must stay readable, and nobody be fenced.
    """
    standing = Standing(pool)
    slots = b"".join(struct.pack("<IIQQ", 0, slot, 1 << 60, 0) for slot in range(64))
    fence = w.pack((1, 99), (2, w.Fixed(standing.incarnation)), (3, w.Fixed((1 << 64) - 1)))
    for data in (w.frame(w.RETIRE, w.pack((1, 64), (2, 1), (3, 1)), slots), w.frame(w.FENCE, fence)):
        for name in ("node-tcp", "node-unix"):
            with standing.greet(Door(pool, name)) as raw:
                answer = raw.call(data)
                assert answer is None or answer.err < 0
                got = served("bget served/ 0 8 100000")
                assert got["results"] == {"OK": 8} and got["wrong"] == 0, got
    mount = w.pack((1, "bogus"), (2, bytes(16)), (4, 1 << 30), (5, 1 << 28), (6, "127.0.0.1:1"))
    for data in (w.frame(w.MOUNT, mount), w.frame(w.UNMOUNT, w.pack((1, 1))),
                 w.frame(w.FREED, w.pack((1, 64), (2, 1)), slots, flags=w.ONEWAY), w.frame(200),
                 w.frame(w.GET, flags=w.REPLY)):
        raw, _ = w.session(pool.addr)
        raw.send(data)
        answer = raw.call(w.frame(w.STATUS, request_id=7))
        assert answer is None or answer.err < 0 or answer.request_id == 7, data
        raw.sock.close()
    assert figures(pool.master)["segments"] == 1
    assert served("bexist served/ 0 8")["exist"] == 8


@pytest.mark.pool(nodes=1)
def test_numbers_that_lie(pool, served):
    """Fails if counts in a head that do not match the tail, a batch over its limit, or keys outside the message are
    taken for more than a typed error or the end of the connection.
    """
    put = struct.Struct("<16sQQII")
    lies = [w.frame(w.GET, w.pack((1, 3)), bytes(32)), w.frame(w.GET, w.pack((1, 0xFFFFFFFF)), bytes(32)),
            w.frame(w.EXISTS, w.pack((1, 20000)), bytes(16 * 20000)), w.frame(w.GET, w.pack((1, 0))),
            w.frame(w.PUT_BEGIN, w.pack((1, 2)), put.pack(bytes(16), 10, 1, 0, 5) + b"a key"),
            w.frame(w.PUT_BEGIN, w.pack((1, 1)), put.pack(bytes(16), 10, 1, 0, 6) + b"a key"),
            w.frame(w.PUT_BEGIN, w.pack((1, 1)), put.pack(bytes(16), 10, 1, 0xFFFFFFFF, 5) + b"a key"),
            w.frame(w.PUT_BEGIN, w.pack((1, 1)), put.pack(bytes(16), 10, 1, 0, 0) + b"a key"),
            w.frame(w.PUT_BEGIN, w.pack((1, 1)), put.pack(bytes(16), 10, 1, 0, 1025) + b"k" * 1025),
            w.frame(w.PUT_BEGIN, w.pack((1, 1)), put.pack(bytes(16), (1 << 64) - 1, 1, 0, 5) + b"a key"),
            w.frame(w.PUT_BEGIN, w.pack((1, 1)), put.pack(bytes(16), 0, 1, 0, 5) + b"a key"),
            w.frame(w.PUT_COMMIT, w.pack((1, 1)), struct.pack("<QQ", 12345, 1)),
            w.frame(w.PUT_ABORT, w.pack((1, 1000)), struct.pack("<Q", 12345)),
            w.frame(w.LIST, w.pack((1, 0xFFFFFFFFFFFFFFFF), (2, 0xFFFFFFFF))),
            w.frame(w.REMOVE_MANY, w.pack((1, "(")),), w.frame(w.LOOKUP, w.pack((1, 2), (3, 0xFFFFFFFF)), bytes(32))]
    for data in lies:
        raw, _ = w.session(pool.addr)
        raw.send(data)
        answer = raw.reply()
        if answer is not None:
            assert answer.opcode == data[4] and answer.flags & w.REPLY
            raw.send(w.frame(w.STATUS, request_id=7))
            status = raw.reply()
            assert status is None or (status.request_id == 7 and status.err == w.OK)
        raw.sock.close()
    now = figures(pool.master)
    assert now["attempts"] == 0 and now["quarantine_bytes"] == 0, now


# ---- data over TCP


class DataDoor:
    """A client of a node's memory over TCP, by hand."""

    def __init__(self, pool):
        self.standing = Standing(pool)
        self.node = pool.nodes[0]
        self.at = self.node.listen
        answer = self.standing.raw.call(w.frame(w.SEGMENTS))
        self.uuid = w.unpack(answer.fields[4])[5]
        self.read_keys = self.open(1)
        self.write_keys = self.open(2)

    def open(self, role):
        """Keys (payload, metadata) and their lengths."""
        answer = self.ask_chunk(self.uuid, 0, role, "tcp")
        assert answer.err == w.OK, answer.detail
        f = answer.fields
        return [(struct.unpack("<Q", f[3])[0], f[5]), (struct.unpack("<Q", f[4])[0], f[6])]

    def ask_chunk(self, uuid, chunk, role, transport):
        with w.Raw(self.at) as raw:
            assert raw.call(self.standing.node_hello()).err == w.OK
            return raw.call(w.frame(w.OPEN_CHUNK, w.pack((1, uuid), (2, chunk), (3, role), (4, transport))))

    def connect(self):
        raw = w.Raw(self.at)
        answer = raw.call(w.data_hello(self.standing.pool_id, self.standing.incarnation))
        assert answer is not None and answer.err == w.OK
        return raw

    def run(self, raw, *ops, seq=1):
        """The statuses of a request's operations and the bytes that came, or None where the connection was closed."""
        raw.send(w.data_request(*ops, seq=seq))
        head = raw.exactly(w.DATA_REQ.size)
        if head is None:
            return None
        magic, n, got_seq, size = w.DATA_REQ.unpack(head)
        body = raw.exactly(size)
        assert (magic, n, got_seq) == (w.DATA_MAGIC, len(ops), seq) and body is not None
        return struct.unpack_from(f"<{n}i", body), body[(4 * n + 7) // 8 * 8:]


@pytest.fixture
def data(pool, served):
    return DataDoor(pool)


@pytest.mark.pool(nodes=1)
def test_data_hello(pool, data):
    """Fails if a data connection with a wrong pool, version, no incarnation or a garbled first frame is let in, is not
    closed, or leaves no line in the log; or if a good one is refused afterwards.
    """
    door = Door(pool, "node-tcp")
    s = data.standing
    known = door.lines()
    with w.Raw(data.at) as raw:
        answer = raw.call(w.frame(w.DATA_HELLO, b"\xff" * 40))
        assert answer is None or answer.err < 0
        assert raw.is_closed()
    assert len(new_lines(door, known)) == 1, "one line for it"
    for what, hello in [("pool", w.data_hello(bytes(16), s.incarnation)),
                        ("short pool", w.data_hello(s.pool_id[:3], s.incarnation)),
                        ("old", w.data_hello(s.pool_id, s.incarnation, 0, 0)),
                        ("new", w.data_hello(s.pool_id, s.incarnation, 9, 9)),
                        ("nobody", w.data_hello(s.pool_id, 0))]:
        with w.Raw(data.at) as raw:
            answer = raw.call(hello)
            assert answer is not None and answer.err < 0 and answer.detail, what
            assert raw.is_closed(), what
    assert 4 <= len(new_lines(door, known, 4)) <= 6, "a line each, up to the limit on lines"
    with w.Raw(data.at) as raw:
        raw.send(w.HDR.pack(100000, w.DATA_HELLO, 0, 65535, 1))
        assert raw.is_closed(), "a hello of 100 kB"
    for name in ("node-unix", "master-tcp", "master-unix"):
        with Door(pool, name).connect() as raw:
            raw.send(w.data_hello(s.pool_id, s.incarnation))
            assert raw.is_closed(), f"{name}: data is not spoken there"
    with data.connect():
        pass


@pytest.mark.pool(nodes=1)
def test_open_chunk(pool, data):
    """Fails if memory that does not exist, or in a way that does not, is opened."""
    good = (data.uuid, 0, 1, "tcp")
    assert data.ask_chunk(*good).err == w.OK
    for bad in [(bytes(16), 0, 1, "tcp"), (data.uuid[:4], 0, 1, "tcp"), (data.uuid, 9999, 1, "tcp"),
                (data.uuid, 0, 0, "tcp"), (data.uuid, 0, 7, "tcp"), (data.uuid, 0, 1, "pigeon"), (data.uuid, 0, 1, ""),
                (data.uuid, 0, 1, "shm")]:
        answer = data.ask_chunk(*bad)
        assert answer is not None and answer.err < 0 and answer.detail, bad
        assert 3 not in answer.fields, "and no token"


@pytest.mark.pool(nodes=1)
def test_data_requests_out_of_bounds(pool, data):
    """Fails if a read or write with a foreign key, outside of the memory, with a length or offset that overflows, or
    against its key's rights, is carried out or answered by anything but its own typed status; the operations beside it
    and the connection go on.
    """
    (key, size), (meta, meta_size) = data.read_keys
    (write_key, _), (write_meta, _) = data.write_keys
    huge = (1 << 64) - 64
    with data.connect() as raw:
        good = w.data_op(w.DATA_READ, key, 0, 64)
        statuses, body = data.run(raw, good)
        assert statuses == (w.OK,) and len(body) == 64
        for n, bad in enumerate([(key ^ 1, 0, 64), (0, 0, 64), (key, size, 1), (key, size - 63, 64), (key, 0, size + 1),
                                 (key, huge, 128), (key, huge, 64), (meta, meta_size, 8), (key, 64, huge)]):
            statuses, body = data.run(raw, good, w.data_op(w.DATA_READ, *bad), good, seq=n + 10)
            assert statuses[0] == statuses[2] == w.OK and len(body) == 128
            assert statuses[1] in (w.INVALID, w.NO_SEGMENT), (bad, statuses)

        before = data.run(raw, w.data_op(w.DATA_READ, key, 0, 4096))[1]
        word = struct.unpack("<Q", data.run(raw, w.data_op(w.DATA_READ, meta, 4096, 8))[1])[0]
        refused = [w.data_op(w.DATA_WRITE, key, 0, 64, body=b"x" * 64),  # a reader's key
                   w.data_op(w.DATA_WRITE, write_key, size - 8, 64, body=b"x" * 64),
                   w.data_op(w.DATA_WRITE, write_key, huge, 64, body=b"x" * 64),
                   w.data_op(w.DATA_WRITE, write_key, 0, 64, 2, (meta, 4096, word + 4), b"x" * 64),  # the guard
                   w.data_op(w.DATA_WRITE, write_key, 0, 64, 2, (meta, meta_size, 0), b"x" * 64),
                   w.data_op(w.DATA_WRITE, write_key, 0, 64, 2, (12345, 4096, 0), b"x" * 64),
                   w.data_op(w.DATA_PUBLISH, meta, 4096, 8, 0, (0, 0, (1 << 62) - 3)),  # a reader's key
                   w.data_op(w.DATA_PUBLISH, write_meta, meta_size, 8, 0, (0, 0, 5)),
                   w.data_op(w.DATA_PUBLISH, write_meta, 4096, 8, 0, (0, 0, word)),  # what is there already
                   w.data_op(w.DATA_PUBLISH, write_meta, 4096, 8, 0, (0, 0, word >> 2 << 2))]  # FREE is the node's
        for n, op in enumerate(refused):
            statuses, _ = data.run(raw, op, seq=n + 100)
            assert statuses[0] < 0, (n, statuses)
        assert data.run(raw, w.data_op(w.DATA_READ, key, 0, 4096))[1] == before, "nothing was written"
        assert struct.unpack("<Q", data.run(raw, w.data_op(w.DATA_READ, meta, 4096, 8))[1])[0] == word


@pytest.mark.pool(nodes=1)
def test_data_requests_malformed(pool, data):
    """Fails if a data request that breaks the format does not close its connection, or reaches the memory; with lines
    in the log, but not one for each of many.
    """
    door = Door(pool, "node-tcp")
    (key, size), (meta, _) = data.read_keys
    write_key = data.write_keys[0][0]
    read = w.data_op(w.DATA_READ, key, 0, 64)
    # What comes before a mistake takes effect, so this one has a guard that never holds.
    write = w.data_op(w.DATA_WRITE, write_key, 0, 64, 2, (meta, 4096, (1 << 64) - 1), b"x" * 64)
    publish = w.data_op(w.DATA_PUBLISH, write_key, 0, 16)
    bad = [b"\0" * 16 + read, w.data_request(n_ops=0), w.data_request(*[read] * 1025),
           w.data_request(read, size=63), w.data_request(read, size=65) + b"x", w.data_request(read, write),
           w.data_request(write, read), w.data_request(w.data_op(9, key, 0, 64)),
           w.data_request(w.data_op(0, key, 0, 64)),
           w.data_request(w.data_op(w.DATA_READ, key, 0, 0)), w.data_request(w.data_op(w.DATA_READ, key, 0, 64, 0x80)),
           w.data_request(read[:2] + b"\1" + read[3:]), w.data_request(publish),
           w.data_request(w.data_op(w.DATA_PUBLISH, write_key, 4, 8)),
           w.data_request(w.data_op(w.DATA_WRITE, write_key, 0, 64, 2, (meta, 4, 0), b"x" * 64)),
           w.data_request(w.data_op(w.DATA_WRITE, write_key, 0, 1 << 62), size=100),
           w.data_request(w.data_op(w.DATA_READ, key, 0, 64, 2, (meta, 0, 0)))]
    with data.connect() as raw:
        before = data.run(raw, w.data_op(w.DATA_READ, key, 0, 4096))[1]
    known = door.lines()
    for n, request in enumerate(bad):
        with data.connect() as raw:
            raw.send(request)
            assert raw.is_closed(), f"request {n} was let pass"
    lines = new_lines(door, known)
    assert 1 <= len(lines) <= 15, lines
    with data.connect() as raw:
        raw.send(w.data_request(w.data_op(w.DATA_WRITE, write_key, 0, 1 << 40), size=(1 << 40) + 64) + b"x" * 100)
        raw.half_close()
        assert raw.is_closed(), "cut in the middle of a body that is longer than the memory"
    with data.connect() as raw:
        assert data.run(raw, w.data_op(w.DATA_READ, key, 0, 4096))[1] == before, "something was written"


@pytest.mark.pool(nodes=1)
def test_bytes_that_changed_in_memory(pool):
    """Fails if bytes of a sealed object that were changed behind everybody's back are given to a reader over TCP, or to
    one that verifies its reads: CORRUPT it must be; the other objects of the batch are served.
    """
    assert Shell(pool.bench, pool.addr)("bput k/ 0 4 50000")["results"] == {"OK": 4}
    door = DataDoor(pool)
    key, write_key = door.read_keys[0][0], door.write_keys[0][0]
    with door.connect() as raw:
        byte = door.run(raw, w.data_op(w.DATA_READ, key, 20000, 1))[1]
        flipped = bytes([byte[0] ^ 4])
        assert door.run(raw, w.data_op(w.DATA_WRITE, write_key, 20000, 1, body=flipped))[0] == (w.OK,)
    for conf in ({"transports": "tcp"}, {"transports": "shm", "verify": 1}, {"transports": "tcp", "verify": 1}):
        got = Shell(pool.bench, pool.addr, **conf)("bget k/ 0 4 50000")
        assert got["results"] == {"OK": 3, "CORRUPT": 1} and got["wrong"] == 0, (conf, got)


@slow
@pytest.mark.pool(nodes=1)
def test_data_storm(pool, data):
    """Fails if mutated data requests crash or hang a node, make it grow, keep a descriptor, or change an object's
    bytes.
    """
    door, rng = Door(pool, "node-tcp"), random.Random(23)
    (key, _), (meta, _) = data.read_keys

    def storm(n):
        for _ in range(n):
            ops = [w.data_op(w.DATA_READ, rng.choice([key, meta]), rng.randrange(0, 1 << 16), rng.randrange(1, 5000),
                             rng.randrange(2)) for _ in range(rng.randrange(1, 5))]
            with data.connect() as raw:
                raw.send(w.data_request(*ops))
                raw.send(spoil(w.data_request(*ops), rng))
                raw.half_close()
                assert raw.is_closed()

    storm_and_judge(door, storm)


@slow
@pytest.mark.pool(nodes=1)
def test_reader_that_does_not_read(pool, data, served):
    """Fails if a client that asks for far more than it takes makes a node grow or keeps it from serving others, or if
    it can hold up the reuse of memory for much more than a second.
    """
    (key, size), _ = data.read_keys
    node = pool.nodes[0]
    before = w.rss_bytes(node.pid)
    raws = []
    for _ in range(8):
        raw = data.connect()
        request = w.data_request(*[w.data_op(w.DATA_READ, key, 0, 8 * MIB)] * 100)
        raw.sock.settimeout(0.2)
        raw.send(request)
        raws.append(raw)
    got = served("bget served/ 0 8 100000")
    assert got["results"] == {"OK": 8} and got["ms"] < 3000 * SLOW, got
    assert w.rss_bytes(node.pid) - before < GROWTH_MAX or SAN
    begun = time.monotonic()
    for i in range(100):
        got = served(f"put reuse/{i} {2 * MIB}")
        assert got["err"] == "OK", got
    assert time.monotonic() - begun < 15 * SLOW, "reuse waited for one that does not read"
    for raw in raws:
        raw.sock.close()


# ---- a master that is none, as clients see it


class Impostor:
    """Listens on a port and answers every connection with the same bytes; None: with silence, b"": by closing."""

    def __init__(self, answer, is_closing=False):
        self.sock = socket.socket()
        self.sock.bind(("127.0.0.1", 0))
        self.sock.listen(64)
        self.at = "127.0.0.1:%d" % self.sock.getsockname()[1]
        self.answer, self.is_closing, self.kept = answer, is_closing, []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                conn, _ = self.sock.accept()
                if self.answer:
                    conn.recv(4096)
                    conn.sendall(self.answer)
            except OSError:
                return
            if self.is_closing:
                conn.close()
            else:
                self.kept.append(conn)

    def close(self):
        self.sock.close()
        for conn in self.kept:
            conn.close()


def hello_reply(**fields):
    numbers = {"err": 1, "detail": 2, "version": 3, "term": 5, "incarnation": 6, "pool_id": 7}
    return w.frame(w.HELLO, w.pack(*((numbers[k], v) for k, v in fields.items())), flags=w.REPLY)


IMPOSTORS = {
    "version": (hello_reply(err=-2 * w.VERSION - 1, detail="peer is too old for this master"), True),
    "newer": (hello_reply(version=9, term=1, incarnation=w.Fixed(5), pool_id=bytes(16)), False),
    "noise": (random.Random(29).randbytes(4096), False),
    "giant": (w.HDR.pack(0xFFFFFFFF, w.HELLO, w.REPLY, 0, 1), False),
    "endless": (w.HDR.pack(w.FRAME_MAX, w.HELLO, w.REPLY, 65535, 1) + bytes(60000), False),
    "other": (w.frame(w.STATUS, flags=w.REPLY), False),
    "empty": (w.frame(w.HELLO, flags=w.REPLY), False),
    "closing": (b"", True),
    "silent": (None, False),
}


@slow
@pytest.mark.parametrize("kind", sorted(IMPOSTORS))
def test_impostor_master(bench, kind):
    """Fails if a client that meets something else than a master of its version crashes, hangs beyond its deadline, or
    has an exit code other than 3; or if the reason of a version refusal does not reach the user.
    """
    impostor = Impostor(*IMPOSTORS[kind])
    begun = time.monotonic()
    r = bench.run("kvpool", "get", "--master", impostor.at, "--deadline", "1s", "k", timeout=10 * SLOW)
    impostor.close()
    assert r.rc == 3, r
    assert time.monotonic() - begun < 6 * SLOW
    assert r.err and not r.out
    if kind == "version":
        assert "too old" in r.err or "version" in r.err.lower(), r.err
