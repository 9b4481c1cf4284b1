# SPDX-License-Identifier: Apache-2.0
"""Puts other bytes of the same length under keys of a pool: overwrite.py HOST:PORT, keys on standard input, one a line. They are
bfloat16 numbers of the size of real ones: what reads them computes with them. Exit code 0 when each key was read back."""
import random
import struct
import sys

from mooncake.store import MooncakeDistributedStore


def main():
    store = MooncakeDistributedStore()
    if store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", sys.argv[1]) != 0:
        sys.exit(f"no pool at {sys.argv[1]}")
    rng = random.Random(7)
    for key in sys.stdin.read().split():
        value = b"".join(struct.pack("<f", rng.gauss(0, 1))[2:] for _ in range(store.get_size(key) // 2))
        code = store.upsert(key, value)
        if code != 0 or store.get(key) != value:
            sys.exit(f"{key} was not overwritten: {code}")
    store.close()


if __name__ == "__main__":
    main()
