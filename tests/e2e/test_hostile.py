# SPDX-License-Identifier: Apache-2.0
"""What a hostile or careless neighbour can do (docs/adr/0026-strangers.md): a case for each way, from a raw socket, with what the
others lived through meanwhile: longest wait, failed calls, memory of the daemons.
"""
import struct
import threading
import time

import rawwire as w
from conftest import SLOW, wait_until


class Bystander:
    """Another client that asks EXISTS for one digest again and again, over its own connection. .waits_s has how long each answer took,
    .failed how many calls got no answer."""

    def __init__(self, master):
        self.waits_s, self.failed = [], 0
        self._raw, _ = w.session(master, name="bystander")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        ask = w.frame(w.EXISTS, w.pack((1, 1)), bytes(16))
        while not self._over.is_set():
            began = time.monotonic()
            answer = self._raw.call(ask)
            if answer is None:
                self.failed += 1
                return
            self.waits_s.append(time.monotonic() - began)
            time.sleep(0.001)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._over.set()
        self._thread.join(30 * SLOW)

    def p99_s(self):
        return sorted(self.waits_s)[int(len(self.waits_s) * 0.99)]


# ---- 1. terms
# ---- 2. hash flooding
CRAFTED = 98304  # digests of 16 bytes
A_MESSAGE = 512


def crafted(i):
    """Digests of which each table that takes a part of a digest as it is would make one row: they share the lower half of either
    word."""
    return struct.pack("<QQ", i << 32 | 5, i << 32 | 5)


def test_crafted_removals_while_the_master_rebuilds(bench, tmp_path):
    """A stranger sends 1.5 MB of removals of keys that never were, while the master and the node hold removals against what may
    still be reported. Nobody waits for the walks through their tables."""
    data = tmp_path / "data"
    master = bench.master(data_dir=data)
    node = bench.node(master, "n0")
    at = master.listen

    def kvpool(verb, key, stdin=b""):
        return bench.run("kvpool", verb, key, "--master", at, "--deadline", f"{5 * SLOW}s", stdin=stdin)

    assert kvpool("put", "kept", b"x" * 4096).rc == 0
    master.kill9()
    master = bench.master(data_dir=data, listen=at, name="master2")
    wait_until(lambda: kvpool("get", "kept").out == b"x" * 4096, 20, "the node is back")
    before = [w.rss_bytes(d.pid) for d in (master, node)]
    stranger, _ = w.session(at, name="stranger")
    with stranger, Bystander(at) as other:
        began = time.monotonic()
        for first in range(0, CRAFTED, A_MESSAGE):
            tail = b"".join(crafted(i) for i in range(first, first + A_MESSAGE))
            assert stranger.send(w.frame(w.REMOVE, w.pack((1, A_MESSAGE)), tail, flags=w.ONEWAY))
        answer = stranger.call(w.frame(w.EXISTS, w.pack((1, 1)), crafted(0)))
        took = time.monotonic() - began
        got = kvpool("get", "kept")
    more = [w.rss_bytes(d.pid) - was >> 20 for d, was in zip((master, node), before)]
    print(f"{CRAFTED} removals: {took:.2f} s, the longest wait of another {max(other.waits_s) * 1000:.0f} ms of "
          f"{len(other.waits_s)}, master +{more[0]} MiB, node +{more[1]} MiB")
    assert answer is not None and answer.err == w.OK
    assert other.failed == 0 and got.out == b"x" * 4096, got
    assert took < 5 * SLOW and max(other.waits_s) < 0.5 * SLOW
    wait_until(lambda: kvpool("put", "later", b"y").rc == 0, 5, "the node obeys")


# ---- 3. turns of the master
# ---- 4. empty messages
# ---- 5. tenants
# ---- 6. descriptors of a large node
# ---- 7. big frames
# ---- 8. Unix paths
