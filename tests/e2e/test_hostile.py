# SPDX-License-Identifier: Apache-2.0
"""What a hostile or careless neighbour can do (docs/adr/0026-strangers.md): a case for each way, from a raw socket, with what the
others lived through meanwhile: longest wait, failed calls, memory of the daemons.
"""
import json
import os
import threading
import time

import pytest
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
TERM_MAX = 1048575


def term_of(master):
    return json.loads(master.http_get("/health")[1])["term"]


def as_stranger(master, ask):
    """What ask(term) is answered, from a node without a segment that was just greeted; None where everybody is sent away."""
    raw, greeted = w.session(master.listen, role=w.NODE, name="stranger", host_id="stranger")
    with raw:
        return raw.call(ask(greeted[5], greeted[6]))


def test_a_term_of_a_stranger_is_not_for_ever(make_pool, bench):
    """Fails if one heartbeat, or memory of a twin, uses up the pool's terms, or sends anybody away for it; if the refusal does not name
    what the operator can do, or fills the log; or if the next master does not start, in the next term."""
    pool = make_pool(nodes=1, data_dir=f"{bench.home}/data")
    assert pool.put("kept", b"kept").rc == 0
    first = term_of(pool.master)
    with Bystander(pool.addr) as other:
        for _ in range(20):
            answer = as_stranger(pool.master, lambda _, me: w.frame(w.HEARTBEAT, w.pack((1, w.Fixed(me)), (2, TERM_MAX - 1))))
            assert answer is not None and answer.err == w.LIMIT and "--term" in answer.detail
        assert pool.get("kept").out == b"kept"
    assert term_of(pool.master) == first and other.failed == 0
    assert pool.master.log().count(f"term {TERM_MAX - 1}") == 1

    for i in range(100):
        as_stranger(pool.master, lambda term, _: w.frame(w.MOUNT, w.pack(
            (1, f"twin{i}"), (2, os.urandom(16)), (3, w.Fixed(1)), (4, 1 << 20), (5, 1 << 20), (6, "h:1"), (10, term), (11, term))))
    risen = term_of(pool.master)
    assert first < risen <= first + 8

    listen = pool.master.listen
    assert pool.master.terminate() == 0
    pool.master = bench.master(listen=listen, data_dir=f"{bench.home}/data", name="master2")
    assert term_of(pool.master) == risen + 1
    wait_until(lambda: pool.get("kept").out == b"kept", what="the object of before")


def test_terms_that_are_used_up_begin_a_new_pool(make_pool, bench):
    """Fails if a master whose terms are used up does not start, keeps the pool's name, or is not given memory by nodes of the pool before;
    and if --term does not set the term."""
    pool = make_pool(nodes=1, data_dir=f"{bench.home}/data", master_args=("--term", str(TERM_MAX)))
    assert term_of(pool.master) == TERM_MAX and pool.put("old", b"old").rc == 0
    listen = pool.master.listen
    for term in (1, 2):  # and what begins is kept
        assert pool.master.terminate() == 0
        pool.master = bench.master(listen=listen, data_dir=f"{bench.home}/data", name=f"master{term}")
        assert term_of(pool.master) == term
        wait_until(lambda: pool.put(f"new{term}", b"new").rc == 0, what="a put")
        assert pool.get("new1").out == b"new" and pool.get("old").rc == 1
    pool.nodes[0].wait_log("serves another pool")


# ---- 2. hash flooding
# ---- 3. turns of the master
# ---- 4. empty messages
def test_nothing_is_lost_by_messages_that_say_nothing(pool):
    """Fails if an object goes, or the epoch rises, by any message of zero bytes, or by one of REMOVE_MANY or BUMP that is cut short or has
    a wrong bit; or if REMOVE_MANY and BUMP are not refused as INVALID then."""
    assert pool.put("kept", b"kept").rc == 0
    for role in (w.CLIENT, w.NODE):
        for opcode in range(2, 64):
            raw, _ = w.session(pool.addr, role=role)
            with raw:
                raw.send(w.frame(opcode) + w.frame(w.STATUS, request_id=7))
                answer = raw.reply()
                if role == w.CLIENT and opcode in (w.REMOVE_MANY, w.BUMP):
                    assert answer.err == w.INVALID
    heads = [w.pack((1, "nothing"), (2, 1)), w.pack((1, 1000))]
    for opcode, head in zip((w.REMOVE_MANY, w.BUMP), heads):
        spoilt = [head[:at] for at in range(len(head))]
        spoilt += [head[:at] + bytes([head[at] ^ 1 << bit]) + head[at + 1:] for at in (0, len(head) - 1) for bit in range(8)]
        for one in spoilt:
            raw, _ = w.session(pool.addr)
            with raw:
                raw.call(w.frame(opcode, one))
    assert pool.get("kept").out == b"kept" and pool.kvpool("bump", "--json").json["epoch"] == 1
    assert pool.get("kept").rc == 1


# ---- 5. tenants
MANY_TENANTS = 4095  # so many may be bumped and not forgotten


def bump_new_tenants(master, first, n=MANY_TENANTS):
    """How many of so many new tenants were greeted, and bumped."""
    bumped = 0
    for tenant in range(first, first + n):
        with w.Raw(master.unix or master.listen) as raw:
            head = w.pack((1, 1), (2, 1), (4, w.CLIENT), (5, "stranger"), (6, "stranger"), (10, tenant))
            if raw.call(w.frame(w.HELLO, head)).err == w.OK:
                bumped += raw.call(w.frame(w.BUMP, w.pack((2, 1)))).err == w.OK
    return bumped


@pytest.mark.limit(180)
def test_tenants_of_a_stranger_are_not_for_ever(make_pool, bench):
    """Fails if tenants that are bumped and own nothing keep a new one out; or if, kept in mind because some node is away, they take the
    place of a tenant whose objects a node reports to the next master, or keep a new one out of that one."""
    pool = make_pool(nodes=1, data_dir=f"{bench.home}/data", node_args=("--chunk-bytes", "2MiB"))
    for tenant in ("5", "6", "7"):
        assert pool.put("kept", tenant.encode(), "--tenant", tenant).rc == 0
    assert bump_new_tenants(pool.master, 1000) == MANY_TENANTS
    wait_until(lambda: pool.put("new", b"new", "--tenant", "8").rc == 0, what="a put of a new tenant")
    wait_until(lambda: pool.kvpool("bump", "--tenant", "9").rc == 0, what="a bump of a new tenant")

    away = w.MountedNode(pool.addr, "away", "127.0.0.1:1")
    away.end()
    assert bump_new_tenants(pool.master, 10000) > MANY_TENANTS - 10
    assert pool.put("new", b"new", "--tenant", "10").rc == 0
    listen = pool.master.listen
    pool.master.kill9()
    pool.master = bench.master(listen=listen, data_dir=f"{bench.home}/data", name="master2")
    wait_until(lambda: pool.put("new", b"new", "--tenant", "11").rc == 0, what="a put of a new tenant")
    for tenant in ("5", "6", "7"):
        assert pool.get("kept", "--tenant", tenant).out == tenant.encode()


# ---- 6. descriptors of a large node
# ---- 7. big frames
# ---- 8. Unix paths
