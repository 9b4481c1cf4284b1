# SPDX-License-Identifier: Apache-2.0
"""KV events on the wire: msgpack of what they have, and a subscriber that follows a publisher as the conductor does."""
import ctypes
import struct
import time

from zmqsock import DEALER, SUB, Socket

END = 2**64 - 1


def pack(value):
    """msgpack, of what events have."""
    if value is None:
        return b"\xc0"
    if isinstance(value, int):
        return bytes([value]) if 0 <= value < 128 else b"\xcf" + struct.pack(">Q", value % 2**64)
    if isinstance(value, str):
        return b"\xda" + struct.pack(">H", len(value.encode())) + value.encode()
    if isinstance(value, list):
        return b"\xdc" + struct.pack(">H", len(value)) + b"".join(map(pack, value))
    return b"\xde" + struct.pack(">H", len(value)) + b"".join(pack(k) + pack(v) for k, v in value.items())


def _unpack(data, at):
    tag, at = data[at], at + 1
    sizes = {0xcc: ">B", 0xcd: ">H", 0xce: ">I", 0xcf: ">Q", 0xd9: ">B", 0xda: ">H", 0xdb: ">I", 0xc4: ">B", 0xc5: ">H", 0xc6: ">I",
             0xdc: ">H", 0xdd: ">I", 0xde: ">H", 0xdf: ">I"}
    if tag == 0xc0:
        return None, at
    if tag < 0x80:
        return tag, at
    if tag in sizes:
        n, at = struct.unpack_from(sizes[tag], data, at)[0], at + struct.calcsize(sizes[tag])
    else:
        n = tag & (0x1f if 0xa0 <= tag < 0xc0 else 0x0f)
    if 0xcc <= tag <= 0xcf:
        return n, at
    if 0xa0 <= tag < 0xc0 or tag in (0xd9, 0xda, 0xdb):
        return data[at:at + n].decode(), at + n
    if tag in (0xc4, 0xc5, 0xc6):
        return data[at:at + n], at + n
    items = []
    for _ in range(n * (2 if tag & 0xf0 == 0x80 or tag in (0xde, 0xdf) else 1)):
        item, at = _unpack(data, at)
        items.append(item)
    return (dict(zip(items[::2], items[1::2])) if tag & 0xf0 == 0x80 or tag in (0xde, 0xdf) else items), at


def unpack(data):
    value, at = _unpack(data, 0)
    assert at == len(data)
    return value


def chain(tokens, block_size):
    """The standard's rolling hashes of a prompt's whole blocks, with seed 0."""
    hash64 = ctypes.CDLL("libxxhash.so.0").XXH3_64bits_withSeed
    hash64.restype, hash64.argtypes = ctypes.c_uint64, [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64]
    hashes = []
    for at in range(0, len(tokens) - block_size + 1, block_size):
        local = hash64(struct.pack(f"<{block_size}I", *tokens[at:at + block_size]), 4 * block_size, 0)
        hashes.append(hash64(struct.pack("<2Q", hashes[-1], local), 16, 0) if hashes else local)
    return hashes


class Follower:
    """What is where by the pool's events: {(tenant, key): {media}}. It follows from a replay on, and asks again at a gap."""

    def __init__(self, endpoint, replay=None, waiting=100000):
        self.sub, self.replay = Socket(SUB, endpoint, True, waiting), replay
        self.held, self.last, self.events, self.gaps, self.snapshots = {}, None, [], 0, 0
        if replay:
            self.ask(0)

    def ask(self, start):
        dealer = Socket(DEALER, self.replay, True)
        dealer.send(b"", struct.pack(">Q", start))
        is_snapshot = False
        while True:
            frames = dealer.receive(10000)
            assert frames is not None, "no end of a replay"
            seq = struct.unpack(">Q", frames[-2])[0]
            if seq == END:
                break
            if frames[1] == b"snapshot" and not is_snapshot:
                self.held, is_snapshot = {}, True
                self.snapshots += 1
            self.take(unpack(frames[-1])[1])
            self.last = seq - (frames[1] == b"snapshot")
        dealer.close()

    def ask_digests(self):
        """Sums over all that was said up to the last message."""
        dealer = Socket(DEALER, self.replay, True)
        dealer.send(b"", b"digests")
        frames = dealer.receive(10000)
        dealer.close()
        assert frames[1] == b"digests" and struct.unpack(">Q", frames[2])[0] == self.last, frames
        return unpack(frames[3])[1]

    def take(self, events):
        for e in events:
            self.events.append(e)
            if e["event_type"] == "cleared":
                for at, media in self.held.items():
                    if at[0] == e["tenant_id"]:
                        media.discard(e["medium"])
                self.held = {at: media for at, media in self.held.items() if media}
            else:
                at = e["tenant_id"], e["object_key"]
                media = self.held.setdefault(at, set())
                (media.add if e["event_type"] == "stored" else media.discard)(e["medium"])
                if not media:
                    del self.held[at]

    def run(self, wait_ms=200):
        """Takes what comes, until nothing does for so long."""
        while (frames := self.sub.receive(wait_ms)) is not None:
            seq = struct.unpack(">Q", frames[1])[0]
            if self.last is not None and seq <= self.last:
                continue
            if self.last is None and self.replay:  # the master did not lead yet when it was asked; what it had before this message it tells now
                self.ask(0)
                continue
            if self.last is not None and seq != self.last + 1:
                self.gaps += 1
                if self.replay:
                    self.ask(self.last)
                    continue
            self.take(unpack(frames[2])[1])
            self.last = seq

    def until(self, condition, timeout=10):
        end = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < end, self.held
            self.run(50)

    def close(self):
        self.sub.close()
