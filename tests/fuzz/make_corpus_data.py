#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes corpus/fuzz_data: request streams of the data protocol (proto/wire.h), good ones and near misses; and
corpus/fuzz_rdma: what RDMA peers tell each other."""
import pathlib
import struct

READ, WRITE, PUBLISH = 1, 2, 3
AFTER_PRIOR, GUARDED, SUM = 1, 2, 4
WRITING, SEALED, DEAD = 1, 2, 3


def op(kind, key=2, off=0, length=8, flags=0, guard=(0, 0, 0), body=b""):
    return struct.pack("<BBHIQQQQQQQ", kind, flags, 0, 0, key, off, length, *guard, 0) + body


def request(ops, seq=0, n=None, more=0):
    body = b"".join(ops)
    return struct.pack("<HHIQ", 0x4B56, len(ops) if n is None else n, seq, len(body) + more) + body


def word(generation, state):
    return generation << 2 | state


publish = [op(PUBLISH, guard=(0, 0, word(7, WRITING)))]
seal = [op(PUBLISH, guard=(0, 0, word(7, SEALED)))]
streams = {
    "read": request([op(READ, key=1, off=64, length=900), op(READ, key=1, flags=AFTER_PRIOR, length=64)]),
    "read_with_sums": request([op(READ, key=1, off=64, length=900, flags=SUM), op(READ, key=1, flags=SUM, length=64)]),
    "write_with_sum": request([op(WRITE, length=4, flags=SUM, body=b"abcd")]),
    "read_out_of_range": request([op(READ, key=1, off=900, length=101), op(READ, key=1, off=2**64 - 8, length=16)]),
    "unknown_key": request([op(READ, key=99)]),
    "write": request([op(WRITE, off=100, length=300, body=bytes(range(100)) * 3), op(WRITE, length=5, body=b"words")]),
    "write_by_reader": request([op(WRITE, key=1, length=16, body=b"x" * 16)]),
    "put": request(publish, 1)
    + request([op(WRITE, off=128, length=200, flags=GUARDED, guard=(2, 0, word(7, WRITING)), body=b"y" * 200)], 2)
    + request([op(WRITE, off=8, length=56, flags=GUARDED, guard=(1, 0, word(7, WRITING)), body=b"d" * 56)] + seal, 3),
    "late_writer": request(publish + seal + publish, 1)
    + request([op(WRITE, off=128, length=20, flags=GUARDED, guard=(2, 0, word(7, WRITING)), body=b"z" * 20)], 2),
    "mixed_kinds": request([op(READ), op(WRITE, length=4, body=b"abcd")]),
    "body_too_long": request([op(WRITE, length=64, body=b"abcd")]),
    "bytes_left_over": request([op(WRITE, length=4, body=b"abcd")], more=10) + b"0123456789",
    "no_ops": request([], n=0),
    "more_ops_than_bytes": request([op(READ)], n=1000),
    "unaligned_publish": request([op(PUBLISH, off=4)]),
}

head = struct.pack("<IHH", 0x5250564B, 1, 0)
rail = bytes(10) + b"\xff\xff" + bytes([10, 99, 0, 1]) + struct.pack("<H", 4711)
rdma = {
    "ask": b"\0" + head + struct.pack("<QQ", 5, 1000) + b"sixteen bytes id" + bytes(16),
    "ask_cut": b"\0" + head + bytes(20),
    "consent": b"\1" + head + struct.pack("<QQBB6x", 5, 77, 1, 2) + rail * 2,
    "refusal": b"\1" + struct.pack("<IHH", 0x5250564B, 1, 8) + struct.pack("<QQBB6x", 5, 77, 0, 0) + bytes(60),
    "too_many_rails": b"\1" + head + struct.pack("<QQBB6x", 5, 77, 1, 7) + rail * 7,
    "token": b"\2" + struct.pack("<QQQBBxxII", 77, 1 << 40, 1 << 26, 2, 1, 0x100, 0x200),
    "token_cut": b"\2" + struct.pack("<QQQBBxxI", 77, 1 << 40, 1 << 26, 2, 1, 0x100),
}

if __name__ == "__main__":
    for target, inputs in (("fuzz_data", streams), ("fuzz_rdma", rdma)):
        folder = pathlib.Path(__file__).parent / "corpus" / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in inputs.items():
            (folder / name).write_bytes(data)
