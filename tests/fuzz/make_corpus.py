#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the seed inputs of fuzz_answer, fuzz_frame, fuzz_journal, fuzz_peer, fuzz_segfmt, fuzz_tier and fuzz_master under tests/fuzz/corpus/. Run it after a change of the
wire format; what is committed is its output. Nothing but the standard library; the golden files give the checksums."""
import pathlib
import struct

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE.parent / "data"
CORPUS = HERE / "corpus"


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def pb(*fields):
    """A message: (number, value), an int as varint, bytes as bytes, ("fixed64", n) as that."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        elif isinstance(value, bytes):
            out += varint(number << 3 | 2) + varint(len(value)) + value
        else:
            out += varint(number << 3 | 1) + struct.pack("<Q", value[1])
    return out


def frame(opcode, head=b"", tail=b"", flags=0, request_id=1):
    body = head
    if tail:
        body += bytes(-len(head) % 8) + tail
    return struct.pack("<IBBHQ", len(body), opcode, flags, len(head), request_id) + body


def write(target, name, data):
    path = CORPUS / target
    path.mkdir(parents=True, exist_ok=True)
    (path / name).write_bytes(data)


def peers():
    fixed = ("fixed64", 1 << 40 | 1)
    proc = [(5, ("fixed64", 4096)), (6, bytes(range(16)))]
    at = struct.pack("<QQQ", 4096, 100, 7)
    piece = struct.pack("<QQQQ", 7, 4096, 100, 8192)
    found = struct.pack("<iIQQQ", 0, 8, 4096, 1 << 20, 7) + bytes(range(64))
    gone = struct.pack("<iIQQQ", -11, 0, 0, 0, 0) + bytes(64)
    all_of_them = {
        "hello": frame(80, pb((1, 1), (2, 1), (3, fixed), (4, b"host"), *proc)),
        "hello_unread": frame(80, pb((1, 1), (2, 1), (3, fixed), (4, b"host"))),
        "hello_short_nonce": frame(80, pb((1, 1), (2, 1), (3, fixed), (6, b"abc"))),
        "hello_reply": frame(80, pb((3, 1), (4, fixed), (5, b"tcp"), (6, b"@name"), (7, ("fixed64", 4096)), (8, bytes(16)), (9, 1)), flags=1),
        "hello_refused": frame(80, pb((1, 61), (2, b"no")), flags=1),
        "find": frame(81, pb((1, 2)), at + bytes(24)),
        "find_by_rdma": frame(81, pb((1, 1), (2, 1)), at),
        "hello_reply_rdma": frame(80, pb((3, 1), (4, fixed), (5, b"tcp"), (10, 18515)), flags=1),
        "hello_reply_no_port": frame(80, pb((3, 1), (4, fixed), (5, b"tcp"), (10, 65536)), flags=1),
        "rdma": frame(86, pb((1, fixed))),
        "rdma_nobody": frame(86, pb((1, ("fixed64", 0)))),
        "find_more_than_there_is": frame(81, pb((1, 3)), at),
        "found": frame(81, pb((3, 1)), found, flags=1),
        "not_found": frame(81, pb((3, 1)), gone, flags=1),
        "pull": frame(82, pb((1, 1), (2, 1), (3, fixed)), piece),
        "sum": frame(82, pb((1, 1), (2, 2)), piece[:24] + bytes(8)),
        "check_with_from": frame(82, pb((1, 1), (2, 3)), piece),
        "pull_wraps": frame(82, pb((1, 1), (2, 1)), struct.pack("<QQQQ", 7, 2**64 - 8, 100, 0)),
        "moved": frame(82, pb((3, 2)), struct.pack("<iIQ", 0, 0, 5) + struct.pack("<iIQ", -11, 0, 0), flags=1),
        "notify": frame(83, pb((1, b"name"), (2, b"message"))),
        "notify_long_name": frame(83, pb((1, b"n" * 300))),
        "cut": frame(84, pb((1, 2)), struct.pack("<QQ", 4711, 1 << 40)),
        "cut_nobody": frame(84, pb((1, 2)), struct.pack("<QQ", 4711, 0)),
    }
    for name, data in all_of_them.items():
        write("fuzz_peer", name, data)
    write("fuzz_peer", "stream", b"".join(all_of_them.values()))


def frames():
    digest = bytes(range(16))
    put = digest + struct.pack("<QQII", 4096, 1, 0, 5)
    slot = struct.pack("<IIQQ", 0, 3, 1 << 42 | 9, 0)
    fixed = ("fixed64", 1 << 40 | 1)
    hello = pb((1, 1), (2, 1), (4, 1), (5, b"engine"), (6, b"host"), (8, fixed), (9, bytes(16)))
    segment = pb((1, 1), (2, b"node"), (3, b"host"), (4, fixed), (5, bytes(16)), (6, b"127.0.0.1:1"), (8, 1 << 30))
    mount = pb((1, b"node"), (2, bytes(16)), (3, fixed), (4, 1 << 20), (5, 1 << 16), (6, b"127.0.0.1:1"), (9, 1))
    all_of_them = {
        "hello": frame(1, hello),
        "hello_known": frame(1, hello + pb((11, pb((1, bytes(16)), (2, fixed), (3, 1))))),
        "hello_reply": frame(1, pb((2, b"no"), (3, 1), (5, 1), (6, fixed), (7, bytes(16)), (8, fixed)), flags=1),
        "bye": frame(2),
        "heartbeat": frame(3, pb((1, fixed), (2, 1))),
        "put_begin": frame(16, pb((1, 1), (2, 100)), put + b"a key"),
        "places": frame(16, pb((3, 1), (4, 1), (5, fixed)), bytes(32) + bytes(32), flags=1),
        "put_commit": frame(17, pb((1, 1)), struct.pack("<QQ", 1, 7)),
        "put_abort": frame(18, pb((1, 1), (2, 1)), struct.pack("<Q", 1)),
        "get": frame(19, pb((1, 1), (2, 1)), digest),
        "exists": frame(20, pb((1, 2)), digest * 2),
        "lookup": frame(21, pb((1, 2), (2, 1), (3, 500)), digest * 2),
        "release": frame(22, pb((1, 1)), struct.pack("<Q", 5), flags=2),
        "release_unreadable": frame(22, pb((2, 1)), digest + struct.pack("<Q", 1 << 42 | 9), flags=2),
        "present": frame(30, pb((1, 2)), (digest + struct.pack("<QIIII", 1 << 42 | 9, 1, 0, 1, 0)) +
                         digest + struct.pack("<QIIII", 0, 2, 900, 2, 0)),
        "presented": frame(30, pb((3, 2), (4, 100)), struct.pack("<QiIQiI", 5, 0, 0, 0, -7, 0), flags=1),
        "remove_many": frame(24, pb((1, b"^a.*z$"), (2, 1))),
        "list": frame(25, pb((1, 7), (2, 100), (3, b"prefix"))),
        "segments_reply": frame(26, pb((3, 1), (4, segment), (4, segment), (5, 9)), flags=1),
        "status_reply": frame(27, pb((13, pb((1, b"objects"), (2, 4))), (14, b"kvpool"), (15, bytes(16))), flags=1),
        "mount": frame(48, mount),
        "retire": frame(51, pb((1, 1), (2, 1), (3, 1)), slot),
        "check": frame(55, pb((1, 1), (2, 1), (3, 1)), slot[:16] + bytes(40)),
        "fence": frame(52, pb((1, 1), (2, fixed), (3, fixed))),
        "open_chunk": frame(64, pb((1, bytes(16)), (2, 3), (3, 2), (4, b"shm"))),
        "data_hello": frame(66, pb((1, 1), (2, bytes(16)), (3, fixed), (4, 1))),
    }
    for name, data in all_of_them.items():
        write("fuzz_frame", name, data)
    write("fuzz_frame", "stream", b"".join(all_of_them.values()))
    write("fuzz_frame", "golden", (GOLDEN / "golden_frame.bin").read_bytes())
    write("fuzz_frame", "too_long", struct.pack("<IBBHQ", 0xFFFFFFFF, 1, 0, 0, 1))
    write("fuzz_frame", "head_over_length", struct.pack("<IBBHQ", 4, 1, 0, 9, 1) + bytes(16))
    write("fuzz_frame", "many_small", frame(26, pb(*[(4, b"")] * 3000), flags=1))


def segfmt():
    superblock = (GOLDEN / "golden_superblock.bin").read_bytes()
    descriptor = (GOLDEN / "golden_descriptor.bin").read_bytes()
    chunk = struct.pack("<Q", 1 << 20)
    word, version, lo, hi, hash2, offset, length = struct.unpack_from("<7Q", descriptor)
    told = struct.pack("<QQQQQQQ", word >> 2, version, lo, hi, hash2, offset, length)
    write("fuzz_segfmt", "superblock", b"\x00" + superblock)
    write("fuzz_segfmt", "superblock_sealed", b"\x01" + superblock)
    write("fuzz_segfmt", "descriptor", b"\x02" + chunk + descriptor)
    write("fuzz_segfmt", "descriptor_sealed", b"\x03" + chunk + descriptor)
    write("fuzz_segfmt", "accept", b"\x04" + descriptor[:64] + told)


# Steps of fuzz_master; the peer is in the two highest bits.
RAW, TIME, OPEN, CLOSE, PUT, COMMIT, ABORT = 0, 1, 2, 3, 4, 7, 9
GET, EXISTS, LOOKUP, REMOVE, RELEASE, REMOVE_MANY, LIST = 10, 11, 12, 13, 14, 15, 16
RETIRED, FREED, MOUNT, UNMOUNT = 17, 19, 20, 21
HEARTBEAT, USED, BUMP, PUT_MORE, COMMIT_MORE, FAR_MOUNT, FAR_NODE, DISK, PRESENT = 22, 23, 24, 25, 27, 28, 29, 30, 31
SOFT, HARD, UPSERT, GROUPED, TWICE, WITH_LINEAGE = 1, 2, 4, 8, 32, 64  # how PUT_MORE keeps what it puts


def put(which, length, peer=0, wait=200):
    return bytes([peer << 6 | PUT, 0, wait, which]) + struct.pack("<H", length)


def commit(at, peer=0):
    return bytes([peer << 6 | COMMIT, 0, at])


def ask(what, which, how=0, peer=0):
    return bytes([peer << 6 | what, how, 0, which])


def put_more(how, which, length, group=None, peer=0, wait=200):
    """group: the byte that fuzz_master makes a group, or a lineage, of."""
    return (bytes([peer << 6 | PUT_MORE, how, 0, wait, which]) + struct.pack("<H", length) +
            (b"" if group is None else bytes([group])))


def group(which, member, is_sized=True):
    return (member or 16) << 4 & 0xF0 | (8 if is_sized else 0) | which


def master_kept():
    """Groups, pins, copies, upserts, leases and bumps."""
    free = bytes([RETIRED, 0, 3, 3, 3, 3])
    fill = b"".join(put(k % 24, 15000) + commit(k % 16) for k in range(20))
    members = b"".join(put_more(GROUPED, k, 900, group(0, k + 1)) + commit(k) for k in range(2))
    write("fuzz_master", "group_whole",
          members + ask(GET, 0) + bytes([LOOKUP, 200, 0, 0]) + ask(REMOVE, 1) + ask(REMOVE, 1, 1) + fill + free * 4)
    write("fuzz_master", "group_left",
          put_more(GROUPED, 1, 900, group(2, 1)) + commit(0) + put_more(GROUPED, 2, 900, group(2, 2), 1) +
          bytes([CLOSE, TIME, 9]) + put(1, 900, 1) + bytes([1 << 6 | CLOSE, TIME, 9]) + free)
    write("fuzz_master", "group_unit",
          b"".join(put_more(GROUPED, k, 9000, group(3, 1, False)) + commit(k) for k in range(6)) + ask(EXISTS, 3) + fill +
          free * 6 + bytes([TIME, 20]) + fill)
    write("fuzz_master", "group_upsert",
          members + put_more(GROUPED | UPSERT, 0, 950, group(0, 1)) + commit(2) + put_more(UPSERT, 1, 950) + commit(3) +
          free + ask(GET, 0) + ask(GET, 1))
    pinned = b"".join(put_more(SOFT if k % 2 else HARD, k, 9000) + commit(k) for k in range(8))
    write("fuzz_master", "pins", pinned + (fill + free * 4 + bytes([TIME, 4])) * 2 + ask(REMOVE, 0) + free)
    far = bytes([FAR_NODE, 0, FAR_MOUNT, 1])
    write("fuzz_master", "copies",
          far + b"".join(put_more(TWICE, k, 3000) + bytes([COMMIT_MORE, 3, 0, k]) for k in range(6)) + ask(GET, 2, 2) +
          bytes([FAR_NODE, 1, TIME, 30]) + ask(GET, 3) + bytes([FAR_MOUNT, 0]) + ask(GET, 3) + free)
    write("fuzz_master", "leases",
          bytes([HEARTBEAT]) + put(1, 3000) + commit(0) + ask(GET, 1, 2) + bytes([USED, 1, 1, 1]) + ask(REMOVE, 1, 4) + free +
          bytes([TIME, 3, HEARTBEAT, HEARTBEAT, TIME, 60]))
    write("fuzz_master", "presented",
          members + b"".join(put(k, 2000) + commit(k) for k in range(6)) + bytes([OPEN, PRESENT, 0xF0, 3, 1, 2, 130, 9]) +
          bytes([PRESENT, 0xF7, 7]) + bytes(range(8)) + bytes([PRESENT, 0xF8, 0, 0, PRESENT, 0x0C, 1, 1, 2]) + ask(REMOVE, 1) +
          bytes([RELEASE, 3, 0, 1, 2, 3]) + fill + free * 4 + bytes([TIME, 120]) + fill)
    write("fuzz_master", "bump",
          members + put_more(GROUPED, 7, 900, group(2, 1)) + bytes([BUMP, 50]) + commit(2) + members + ask(GET, 0) +
          bytes([TIME, 9]) + free * 3)


def master_journal():
    free = bytes([RETIRED, 0, 3, 3, 3, 3])
    some, all_of_it = bytes([DISK, 100]), bytes([DISK, 255])
    write("fuzz_master", "journal_promises",
          all_of_it + put(1, 1000) + commit(0) + put(1, 900) + some + all_of_it + put(1, 900) + ask(REMOVE, 1) + free +
          bytes([TIME, 9]) + all_of_it + bytes([BUMP, 5]) + some + bytes([TIME, 9]) + all_of_it)
    write("fuzz_master", "journal_upserts",
          all_of_it + put(1, 1000) + commit(0) + put_more(UPSERT, 1, 900) + commit(1) + bytes([TIME, 9]) + some + free +
          bytes([3]) + all_of_it + free * 2)
    told, new, none, bad = 0x15, 0x29, 0, 0x13
    write("fuzz_master", "lineages",
          all_of_it + put_more(WITH_LINEAGE, 1, 900, told) + commit(0) + ask(GET, 1, 4) + put_more(WITH_LINEAGE | UPSERT, 1, 900, new) +
          commit(1) + all_of_it + ask(GET, 1, 4) + put_more(WITH_LINEAGE, 2, 900, none) + put_more(WITH_LINEAGE, 3, 900, bad) + free)
    fill = b"".join(put(k % 24, 15000) + commit(k % 16) for k in range(20))
    write("fuzz_master", "journal_full_pool", all_of_it + fill + some + (free + bytes([TIME, 5])) * 4 + fill + all_of_it + fill)


def master():
    free = bytes([RETIRED, 0, 3, 3, 3, 3])
    dead = bytes([RETIRED, 0, 1, 1, 1, 1])
    write("fuzz_master", "put_get_remove",
          put(1, 1000) + commit(0) + ask(GET, 1) + bytes([RELEASE, 0, 0]) + ask(REMOVE, 1) + free + ask(EXISTS, 1))
    fill = b"".join(put(k % 24, 15000) + commit(k % 16) for k in range(20))
    write("fuzz_master", "full_pool", fill + (free + bytes([TIME, 5])) * 4 + fill)
    write("fuzz_master", "waiting_put", fill + put(23, 60000, 1, 255) + dead + bytes([FREED, 3, 0, 1, 2, 3]) + bytes([TIME, 20]))
    write("fuzz_master", "writer_dies",
          put(1, 9000) + put(2, 9000, 1) + bytes([CLOSE, TIME, 3]) + dead + put(1, 9000, 1) +
          bytes([FREED, 0, 0]) + bytes([OPEN]) + put(3, 9000) + bytes([ABORT, 0, 0, 0]) + free)
    write("fuzz_master", "node_returns",
          put(1, 5000) + commit(0) + bytes([2 << 6 | CLOSE]) + ask(GET, 1) + bytes([2 << 6 | OPEN, MOUNT, 0]) + ask(GET, 1) +
          bytes([MOUNT, 1]) + ask(GET, 1) + put(1, 5000))
    write("fuzz_master", "lookup_holds",
          b"".join(put(k, 2000) + commit(k) for k in range(8)) + bytes([LOOKUP, 1, 7]) + bytes(range(8)) +
          ask(REMOVE, 1) + ask(REMOVE, 1, 1) + bytes([TIME, 120]) + free + ask(REMOVE, 2) + free)
    write("fuzz_master", "walks", fill + bytes([LIST, 0, 50, 3, REMOVE_MANY, 3]) + b"k.*" + bytes([REMOVE_MANY, 128, TIME, 9]) + free)
    write("fuzz_master", "unmount", fill + ask(GET, 1) + bytes([UNMOUNT, 40, TIME, 7, TIME, 9]) + fill + bytes([MOUNT, 1]) + fill)
    stranger = frame(20, pb((1, 1)), bytes(16))
    raw = bytes([3 << 6 | RAW, 1, 0, 4, 0]) + pb((1, 1), (4, 2)) + bytes([3 << 6 | RAW, 20, 0, 2, 16]) + pb((1, 1)) + bytes(16)
    write("fuzz_master", "stranger", raw + stranger)


def answers():
    """First byte: get or put; then for each step a byte of time and what the step takes."""
    def step(*more):
        return bytes([1, *more])

    def reply(opcode, head, tail):
        f = frame(opcode, head, tail + bytes(-len(tail) % 8), flags=1)
        f += bytes(-len(f) % 4)
        return step(len(f) // 4) + f

    obj = struct.pack("<iIQQQ", 0, 1, 5, 64, 0)
    loc = struct.pack("<IIIIQQ", 1, 0, 3, 2048, 1 << 42 | 9, 4096)
    places = pb((3, 4), (4, 4), (5, ("fixed64", 77)))
    miss = struct.pack("<iIQQQ", -2, 0, 0, 0, 0)
    moved = step(*[0, 1, 1, 9] * 2)
    write("fuzz_answer", "get", bytes([1, 1]) + step(0) + reply(19, places, obj * 4 + loc * 4) + (step(*[0, 1, 1, 9, 0] * 2)) * 2 +
          reply(19, pb((3, 4)), miss * 4))
    write("fuzz_answer", "get_misses", bytes([1, 0]) + step(0) + reply(19, pb((3, 4)), miss * 4))
    write("fuzz_answer", "get_lineages", bytes([1, 1]) + step(0) + reply(19, pb((3, 4), (4, 4), (10, 1)), obj * 4 + loc * 4 + bytes(96)))
    write("fuzz_answer", "get_tiers", bytes([1, 1]) + step(0) + reply(19, pb((3, 4), (4, 4), (11, 1)), obj * 4 + loc * 4 + struct.pack("<4I", 0, 7, 0, 7)))
    write("fuzz_answer", "put", bytes([0]) + step(0) + reply(16, places, obj * 4 + loc * 4) + moved * 4 +
          reply(17, pb((3, 4)), struct.pack("<4i", 0, 0, -14, 0)))
    write("fuzz_answer", "put_refused", bytes([0]) + step(0) + reply(16, pb((3, 4), (6, 10)), struct.pack("<iIQQQ", -7, 0, 0, 0, 0) * 4))


def journals():
    """Records, whose checks the target puts right: kind - 1, then what it takes."""
    base, whole, term, commit, gone, bump, segment = range(7)
    first = bytes([base, 1, 0, whole])
    some = bytes([commit, 1, 1, 5, commit, 2, 1, 6, commit, 1, 1, 7, gone, 1, 1, 5, gone, 2, 1, 6])
    write("fuzz_journal", "first_master", b"\x00" + first + some)
    write("fuzz_journal", "masters", b"\x06" + first + some + bytes([term, 2, commit, 3, 2, 1, bump, 0, 1, 2, 1, term, 9]) + some)
    write("fuzz_journal", "snapshot", b"\x20" + first + some + bytes([base, 1, 0]) + some + bytes([whole]) + some)
    write("fuzz_journal", "begun_anew", b"\x40" + first + some + bytes([base, 4, 1]) + some)
    write("fuzz_journal", "term_falls", b"\x10" + first + bytes([term, 7, term, 7]) + some)
    write("fuzz_journal", "no_base", b"\x10" + some)
    write("fuzz_journal", "version_of_a_later_term", b"\x10" + first + bytes([commit, 1, 2, 5]) + some)
    lineage = bytes([commit, 1, 0, 5, 10, 0, 4, 0, 0, 1, 0, 3, 1, 9])  # of a sequence 9; a byte behind it says whether it is told
    write("fuzz_journal", "lineages", b"\x20" + first[:3] + bytes([segment, 1, 15]) + lineage + b"\1" + bytes([whole]) + lineage + b"\2")
    write("fuzz_journal", "raw", b"\x11" + struct.pack("<QII", 1, 40, 4) + bytes(24) + struct.pack("<QII", 1, 7, 4))


def tiers():
    """First byte: what it is; then it, with its check put right by the target."""
    name = b"node-1" + bytes(130)
    pages, room = 48, (64 << 20) - 16384
    page_bytes = (room // pages - 8192) // 4096 * 4096
    write("fuzz_tier", "superblock", b"\1" + struct.pack("<QIIIIQQQ", 0, 1, 0, 1, pages, page_bytes, 64 << 20, 7) + bytes(range(32)) + name)
    header = struct.pack("<QQQQQIIIIII", 0, 99, 50, 1000, 49, 4096, 2, 128, 192, 4096, 0) + struct.pack("<32I", 0, 8192, *[0] * 30)
    write("fuzz_tier", "header", b"\3" + header)
    write("fuzz_tier", "header_of_no_run", b"\3" + header[:44] + bytes(4) + header[48:])
    record = struct.pack("<QIHHQQQQQQQ", 99, 0, 1, 0, 5, 6, 7, 1, 100, 1, 2) + bytes(24) + struct.pack("<IIIHHQ", 0, 0, 1, 3, 0, 0)
    write("fuzz_tier", "record", b"\5" + record + bytes(8) + b"key" + bytes(200))
    write("fuzz_tier", "device", b"\6")
    write("fuzz_tier", "device_damaged", b"\6" + b"".join(struct.pack("5B", i % 3, i * 37 % 256, i * 91 % 256, i % 5, i) for i in range(100)))


answers()
frames()
journals()
peers()
segfmt()
tiers()
master()
master_journal()
master_kept()
