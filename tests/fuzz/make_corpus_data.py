#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes corpus/fuzz_data: request streams of the data protocol (proto/wire.h), good ones and near misses."""
import pathlib
import struct

READ, WRITE, PUBLISH = 1, 2, 3
AFTER_PRIOR, GUARDED = 1, 2
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

if __name__ == "__main__":
    folder = pathlib.Path(__file__).parent / "corpus" / "fuzz_data"
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in streams.items():
        (folder / name).write_bytes(data)
