#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts four blocks into a pool, asks which of five keys exist, and reads the four blocks back. Each step is one batch.

    python put_get.py 127.0.0.1:50051     # the address of the master; $KVPOOL_MASTER if there is none
"""
import sys

import kvpool

BLOCKS = 4
BLOCK_BYTES = 256 << 10


def main():
    keys = [f"example/put_get/{i}" for i in range(BLOCKS + 1)]
    source, target = bytearray(BLOCKS * BLOCK_BYTES), bytearray(BLOCKS * BLOCK_BYTES)
    blocks = [slice(i * BLOCK_BYTES, (i + 1) * BLOCK_BYTES) for i in range(BLOCKS)]
    for i, block in enumerate(blocks):
        source[block] = bytes([ord("a") + i]) * BLOCK_BYTES

    with kvpool.Pool(sys.argv[1] if len(sys.argv) > 1 else None) as pool:
        # Batches move bytes from and to registered memory, without a copy in between.
        pool.register(source)
        pool.register(target)

        for failed in filter(None, pool.put_many(keys[:BLOCKS], [memoryview(source)[block] for block in blocks])):
            raise failed

        for key, is_there in zip(keys, pool.exists_many(keys)):  # the last key was never put
            print(f"{key}: {'exists' if is_there else 'does not exist'}")

        for key, got in zip(keys, pool.get_many(keys[:BLOCKS], [memoryview(target)[block] for block in blocks])):
            if isinstance(got, kvpool.Error):
                raise got
            print(f"{key}: {got} bytes")
        print(f"the bytes are {'equal' if source == target else 'DIFFERENT'}")
        pool.remove_many(keys[:BLOCKS])


if __name__ == "__main__":
    main()
