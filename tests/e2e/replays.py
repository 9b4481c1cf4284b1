# SPDX-License-Identifier: Apache-2.0
"""A trace that is replayed against a pool of a test, and what LRU would have hit; for test_full_pool.py and test_python_replay.py."""
import collections
import json
import pathlib
import subprocess

from conftest import _die_with_parent

MIB = 1 << 20


def watched(pool, block_bytes, argv):
    """Runs a replay, and looks at the pool meanwhile. What it printed, and the part of the pool's bytes that committed blocks had, on the
    mean of the second half, by commits."""
    err = pathlib.Path(pool.bench.home) / "replay.err"
    seen = []
    with err.open("w") as to:
        proc = subprocess.Popen([str(a) for a in argv], env=pool.bench.env(), text=True, stdout=subprocess.PIPE, stderr=to,
                                preexec_fn=_die_with_parent)
    while proc.poll() is None:
        now = pool.kvpool("stat", "--json").json["pool"]
        seen.append((now["counters"]["commits"], now["objects"] * block_bytes / now["size_bytes"]))
    with proc.stdout:
        out = proc.stdout.read()
    assert proc.returncode == 0, (out, err.read_text())
    half = [part for commits, part in seen if commits > seen[-1][0] / 2]
    assert half, f"seen {len(seen)} times"
    return out, sum(half) / len(half)


def requests_of(path):
    return [json.loads(line)["hash_ids"] for line in pathlib.Path(path).read_text().splitlines()]


def lru_hits(requests, *sizes):
    """Blocks of the prefixes that an LRU cache has. sizes: its size in blocks, or pairs: after so many blocks were asked for, that size."""
    cache, hits, asked = collections.OrderedDict(), 0, 0
    sizes = [(0, size) if isinstance(size, int) else size for size in sizes]
    for ids in requests:
        while len(sizes) > 1 and sizes[1][0] <= asked:
            sizes.pop(0)
        asked += len(ids)
        hits += next((n for n, block in enumerate(ids) if block not in cache), len(ids))
        for block in ids:
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > sizes[0][1]:
            cache.popitem(last=False)
    return hits
