#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does what an engine's connector does for one request, twice. The first request finds nothing, computes all of its blocks
and puts them. The second request finds them, reserves them and loads them.

    python connector_step.py 127.0.0.1:50051
"""
import sys

import kvpool

BLOCKS = 8
BLOCK_BYTES = 128 << 10
KEYS = [f"example/step/block-{i}" for i in range(BLOCKS)]  # an engine takes them from the hashes of the tokens


def serve_request(pool, memory):
    """Returns the number of blocks that were loaded."""
    blocks = [memoryview(memory)[i * BLOCK_BYTES:(i + 1) * BLOCK_BYTES] for i in range(BLOCKS)]
    loaded = 0
    # The reservation keeps the blocks of the prefix in the pool until they are loaded, for 5 s at most.
    with pool.longest_prefix(KEYS, ttl=5, deadline=0.1) as found:
        for got in pool.get_many(KEYS[:found.granted], blocks[:found.granted], deadline=0.5):
            if isinstance(got, kvpool.Error):  # a block that is not there in time only shortens the prefix
                break
            loaded += 1
    for block in blocks[loaded:]:
        block[:] = b"\1" * BLOCK_BYTES  # stands for the computation
    # All blocks of the request are one group: the pool evicts them together.
    for failed in filter(None, pool.put_many(KEYS[loaded:], blocks[loaded:], groups=["example/step"] * (BLOCKS - loaded))):
        print(f"put: {failed}", file=sys.stderr)  # costs a later request the computation, and nothing else
    print(f"loaded {loaded} blocks, computed {BLOCKS - loaded}")
    return loaded


def main():
    memory = bytearray(BLOCKS * BLOCK_BYTES)
    with kvpool.Pool(sys.argv[1] if len(sys.argv) > 1 else None) as pool:
        pool.register(memory)
        serve_request(pool, memory)
        memory[:] = bytes(len(memory))
        loaded = serve_request(pool, memory)
        pool.remove_many(KEYS, force=True)
    return 0 if loaded == BLOCKS else 1


if __name__ == "__main__":
    sys.exit(main())
