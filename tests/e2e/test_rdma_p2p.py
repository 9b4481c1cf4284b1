# SPDX-License-Identifier: Apache-2.0
"""Peer-to-peer transfers by rdma between processes, on a machine with devices: peers that are killed, stopped, restarted, or take memory
back under a writer. What the library does above a model of an adapter: tests/transport/p2p_rdma_test.c."""
import time

import pytest

from clients import E2E, Talker
from conftest import RDMA, SLOW, TIER

DEADLINE_MS = 10000
ROUNDS = {"quick": 2, "normal": 5, "long": 50}[TIER]
MIB = 1 << 20


class Peer(Talker):
    def __init__(self, bench, at, transports="rdma", host_id="-", port=0, verify="auto"):
        super().__init__(bench, f"peer-{at}", ["env", f"KVPOOL_VERIFY={verify}", E2E / "e2e_p2p"])
        self.at = at
        self.opened = self.ask(f"open {at}:{port} {transports} {host_id}", timeout=60)
        self.port, self.addr, self.name = self.opened["port"], self.opened["addr"], f"{at}:{self.opened['port']}"

    def move(self, kind, to, length, pieces=1, deadline_ms=DEADLINE_MS):
        return self.ask(f"move {kind} {to.name} {to.addr} {length} {pieces} {deadline_ms}", timeout=60)

    def is_all(self, value, length, offset=0):
        return self.ask(f"is {offset} {length} {value}")["wrong"] == 0


@pytest.fixture
def ends(bench):
    """One that asks, and another at the other device."""
    found = [Peer(bench, at) for at in RDMA[:2]]
    assert [end.opened["err"] for end in found] == ["OK", "OK"], found[0].opened
    return found


def test_write_and_read(ends):
    """In one piece, in many, and small."""
    a, b = ends
    for value, (length, pieces) in enumerate([(8 * MIB, 1), (1000, 4096), (7, 3)], 1):
        a.ask(f"fill {value}")
        assert a.move("write", b, length, pieces)["err"] == "OK", a.log()
        assert b.is_all(value, length * pieces)
        b.ask(f"fill {value + 100}")
        assert a.move("read", b, length, pieces)["err"] == "OK", a.log()
        assert a.is_all(value + 100, length * pieces)
    stat = a.ask("stat")
    assert stat["rdma"] == 2 * (8 * MIB + 4096000 + 21) and stat["tcp"] == stat["cma"] == 0, stat


def test_hosts_that_say_nothing_of_transports(bench):
    """By default it goes by rdma between hosts, within one as before, and by tcp where one of them has no rdma."""
    a = Peer(bench, RDMA[0], "-", "host-a")
    b = Peer(bench, RDMA[1], "-", "host-b")
    same = Peer(bench, RDMA[1], "-", "host-a")
    plain = Peer(bench, RDMA[1], "tcp", "host-b")
    for to in (b, same, plain):
        assert a.move("write", to, MIB)["err"] == "OK", a.log()
    assert {way: a.ask("stat")[way] for way in ("rdma", "cma", "tcp")} == {"rdma": MIB, "cma": MIB, "tcp": MIB}
    assert Peer(bench, RDMA[0], "cma,rdma", "host-a").move("write", plain, MIB)["err"] == "NOTSUP"


def test_unregister_under_a_writer(ends):
    """Fails if a byte lands once unregister has returned."""
    a, b = ends
    for value in range(1, ROUNDS + 1):
        a.ask(f"fill {value}")
        assert a.move("write", b, MIB)["err"] == "OK", a.log()
        assert a.ask(f"load {b.name} {b.addr} {8 * MIB} {DEADLINE_MS}")["err"] == "OK"
        time.sleep(0.2)
        assert b.ask("unregister")["err"] == "OK"
        b.ask("fill 255")
        assert a.hear(60)["err"] == "NOT_REGISTERED", a.log()
        assert b.is_all(255, 8 * MIB)
        assert b.ask("register", timeout=60)["err"] == "OK"


def test_peer_is_killed_under_load_and_comes_back(bench, ends):
    a, b = ends
    for value in range(1, ROUNDS + 1):
        a.ask(f"fill {value}")
        assert a.ask(f"load {b.name} {b.addr} {4 * MIB} {DEADLINE_MS}")["err"] == "OK"
        time.sleep(0.3)
        b.kill9()
        lost = a.hear(60)
        assert lost["err"] in ("DISCONNECTED", "UNREACHABLE") and lost["ms"] < DEADLINE_MS + 200 * SLOW, (lost, a.log())
        b = Peer(bench, b.at, port=b.port)
        assert b.opened["err"] == "OK", b.opened
        assert a.move("write", b, MIB)["err"] == "OK", a.log()
        assert b.is_all(value, MIB) and b.is_all(0, MIB, offset=MIB)


def test_stopped_peer_is_written(bench):
    """Its adapter goes on. Where the kernel plays that, one has to believe it: a peer that is stopped sums nothing."""
    a, b = [Peer(bench, at, verify="adapters") for at in RDMA[:2]]
    a.ask("fill 9")
    assert a.move("write", b, 1000)["err"] == "OK", a.log()
    a.ask("fill 10")
    b.freeze()
    assert a.move("write", b, MIB)["err"] == "OK", a.log()
    b.thaw()
    assert b.is_all(10, MIB)


def test_what_is_not_there(ends):
    """Too long, elsewhere: an error, nothing is written, and the next one is well."""
    a, b = ends
    a.ask("fill 1")
    assert a.ask(f"move write {b.name} {b.addr + 4096} {8 * MIB} 1 {DEADLINE_MS}")["err"] == "NOT_REGISTERED"
    assert a.ask(f"move read {b.name} 4096 100 1 {DEADLINE_MS}")["err"] == "NOT_REGISTERED"
    assert b.is_all(0, 8 * MIB)
    assert a.move("write", b, 100)["err"] == "OK", a.log()
    assert b.is_all(1, 100) and b.is_all(0, 8 * MIB - 100, offset=100)
