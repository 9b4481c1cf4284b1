# SPDX-License-Identifier: Apache-2.0
"""What a client reserved or looks at outlives the session in which it did: the master is killed and started again, or the
connection is cut, and then the pool is filled past its size.
"""
import socket
import threading
import time

import pytest

from clients import PATHS, Shell, figures
from conftest import SLOW, wait_until

BLOCK = 65536
POOL = 256  # blocks
KEPT = 8  # of them: within a client's share of reservations


@pytest.fixture
def full(make_pool, bench):
    """A pool of one node that is full, with the client of the test."""
    pool = make_pool(nodes=1, memory="16MiB", data_dir=f"{bench.home}/data")
    pool.client = Shell(bench, pool.addr, "client", **PATHS["shm"])
    pool.other = Shell(bench, pool.addr, "other", **PATHS["tcp"])
    for prefix in ("kept", "free"):
        assert pool.client(f"bput {prefix}/ 0 {KEPT} {BLOCK} version=7")["results"] == {"OK": KEPT}
    return pool


def fill(pool, prefix):
    """Twice the pool: whatever can be evicted is."""
    for i in range(0, 2 * POOL, 32):
        got = pool.other(f"bput {prefix}/ {i} 32 {BLOCK} deadline={10000 * SLOW}")
        assert got["results"] == {"OK": 32}, got


def restart(pool, node_away_s=0.0):
    listen, data_dir = pool.master.listen, pool.master.data
    pool.nodes[0].freeze()
    pool.master.kill9()
    time.sleep(0.05 * SLOW)
    pool.master = pool.bench.master(listen=listen, data_dir=data_dir, name="master2")
    time.sleep(node_away_s)
    pool.nodes[0].thaw()
    wait_until(lambda: figures(pool.master)["segments"] == 1, 20, "the node to have told what it holds")


class Relay:
    """Passes connections on to the master, until they are cut; later ones are passed on again."""

    def __init__(self, to):
        self.to = to
        self.socks = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.addr = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            near, _ = self.listener.accept()
            host, port = self.to.rsplit(":", 1)
            far = socket.create_connection((host, int(port)))
            self.socks += [near, far]
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self.copy, args=pair, daemon=True).start()

    @staticmethod
    def copy(source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass  # it was cut

    def cut(self):
        for sock in self.socks:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # its other end was first
        self.socks = []


def exist(pool, prefix):
    return pool.other(f"bexist {prefix}/ 0 {KEPT}")["exist"]


@pytest.mark.parametrize("node_away_s", [0.0, 2.0])
def test_reservation_outlives_the_master(full, node_away_s):
    """Fails if, after kill -9 of the master and a start with the same data directory, a put evicts what is reserved, or what
    is not stays; if giving the reservation back does not end it; or if the client loses it because it is back before the node.
    """
    got = full.client(f"lookup kept/ 0 {KEPT} ttl=60000")
    assert (got["found"], got["granted"]) == (KEPT, KEPT)
    begun = time.monotonic()
    restart(full, node_away_s)
    wait_until(lambda: figures(full.master)["presented"] >= KEPT, 10, "the reservation to be presented")
    fill(full, "fill")
    assert exist(full, "kept") == KEPT and exist(full, "free") == 0
    assert time.monotonic() - begun < got["ttl_ms"] / 1e3, "too slow to show anything: the reservation has run out"
    assert full.other("remove kept/0")["err"] == "HELD"
    assert full.client("release")["err"] == "OK"
    wait_until(lambda: figures(full.master)["reserved_bytes"] == 0, 5, "the reservation to end")
    assert full.other("remove kept/0")["err"] == "OK"


def test_view_outlives_the_master(full):
    """Fails if a view does not keep its object over kill -9 of the master, if its bytes change, or if it does not end with
    OK; or if it does after the object was removed by force.
    """
    assert full.client("view kept/0")["err"] == "OK"
    restart(full)
    wait_until(lambda: figures(full.master)["presented"] >= 1, 10, "the view to be presented")
    fill(full, "fill")
    got = full.client("look kept/0")
    assert (got["len"], got["version"], got["intact"]) == (BLOCK, 7, True)
    assert full.other("remove kept/0")["err"] == "HELD"
    assert full.client("unview")["err"] == "OK"
    assert full.client("view kept/0")["err"] == "OK"
    assert full.other("remove kept/0 force=1")["err"] == "OK"
    assert full.client("unview")["err"] == "STALE"


def test_reservation_outlives_a_cut(full):
    """Fails if a reservation ends with its connection, though its client is back at once."""
    relay = Relay(full.addr)
    client = Shell(full.bench, relay.addr, "far", **PATHS["tcp"])
    assert client(f"lookup kept/ 0 {KEPT} ttl=60000")["granted"] == KEPT
    relay.cut()
    wait_until(lambda: figures(full.master)["presented"] >= KEPT, 5, "the reservation to be presented")
    assert full.other("remove kept/0")["err"] == "HELD"
    assert client("release")["err"] == "OK"
    wait_until(lambda: figures(full.master)["reserved_bytes"] == 0, 5, "the reservation to end")
