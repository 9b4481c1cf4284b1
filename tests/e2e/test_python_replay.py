# SPDX-License-Identifier: Apache-2.0
"""A trace through mooncake.store, in a pool that holds a part of it: look up a prompt, load the prefix that is there, store the rest."""
import json
import sys

import pytest

from clients import slow
from conftest import ROOT, SLOW, TIER, chat_trace
from replays import MIB, lru_hits, requests_of, watched

BLOCK = 65536
LRU_SHARE = 0.997
REQUESTS = 6000 if TIER == "long" else 2000


def replay(make_pool, path, part, requests):
    blocks = int(len({block for ids in requests for block in ids}) * part)
    memory = (blocks * BLOCK + MIB - 1) // MIB * MIB
    pool = make_pool(nodes=1, memory=str(memory))
    told = {"master": pool.addr, "trace": str(path), "block_bytes": BLOCK, "limit": len(requests)}
    out, full = watched(pool, BLOCK, [sys.executable, ROOT / "bench" / "compare_worker.py", "replay", json.dumps(told)])
    got = json.loads(next(line for line in out.splitlines() if line.startswith("result "))[len("result "):])
    assert (got["get_failed_after_lookup"], got["puts_refused"], got["wrong_blocks"]) == (0, 0, 0), got
    assert got["hits"] >= LRU_SHARE * lru_hits(requests, memory // BLOCK), got
    return memory, full


@slow
@pytest.mark.limit(120 * SLOW)
@pytest.mark.parametrize("part", [0.05, 0.1, 0.2])
def test_replays_hit_like_lru(bench, make_pool, part):
    """Fails if probes keep what nobody reads any more, so that the hits are fewer than LRU's; or if a get fails whose block a look-up
    found. The lease time is the default, so many times longer than what is in the pool stays."""
    path = chat_trace(bench, REQUESTS)
    replay(make_pool, path, part, requests_of(path))


@pytest.mark.skipif(TIER != "long", reason="only in the long tier")
@pytest.mark.limit(600 * SLOW)
@pytest.mark.parametrize("part", [0.05, 0.1, 0.2])
def test_published_trace_hits_like_lru(make_pool, trace_file, part):
    """The same with the published trace, in a pool of 571 MiB to 2.2 GiB, which is full all the while."""
    memory, full = replay(make_pool, trace_file, part, requests_of(trace_file))
    assert full >= 0.99, (memory, full)
