# SPDX-License-Identifier: Apache-2.0
"""A mooncake.store of several masters, while the lead goes from one to the other."""
import threading
import time

import pytest

from conftest import SLOW, wait_until
from standby import Etcd, Masters, needs_etcd
from stores import make

pytestmark = needs_etcd
OWN_S = 5  # of a call that gives no deadline


@pytest.fixture(autouse=True)
def plain_wait(bench, monkeypatch):
    """Stores wait as they do where nobody says otherwise."""
    monkeypatch.delenv("KVPOOL_MASTER_WAIT")


class Load(threading.Thread):
    """Calls something until it is stopped, and notes what did not answer as expected."""

    def __init__(self, call, expected):
        super().__init__(daemon=True)
        self.call, self.expected, self.wrong, self.done, self.longest, self.is_over = call, expected, [], 0, 0.0, False

    def run(self):
        while not self.is_over:
            began = time.monotonic()
            got = self.call(self.done)
            took = time.monotonic() - began
            self.longest = max(self.longest, took)
            if not self.expected(got) and took < 0.9 * OWN_S:  # on a busy machine a switch may take all the time that a call has
                self.wrong.append((self.done, got, took))
            self.done += 1

    def end(self):
        self.is_over = True
        self.join(30)
        assert not self.is_alive()
        return self.wrong


@pytest.mark.limit(180)
def test_switches_fail_no_call_of_a_store(bench):
    """Fails if a put, get, exists, removal or removal by pattern fails, or misses what is there, while the lead is switched; also where etcd makes
    one switch last longer than the second for which a store waits for a master that is alone."""
    # A single member: the time without etcd is the time for which it is frozen, and not that of an election of its own as well.
    etcd = Etcd(bench, n=1)
    masters = Masters(bench, n=2, nodes=1, etcd=etcd)
    masters.wait_insync(2)
    stores = [make(masters.addr) for _ in range(2)]
    try:
        assert all(stores[0].put(f"kept/{i}", b"v" * 100) == 0 for i in range(50))
        loads = [Load(lambda n: stores[0].put(f"new/{n}", b"x" * 100), lambda got: got == 0),
                 Load(lambda n: stores[1].get(f"kept/{n % 50}"), lambda got: got == b"v" * 100),
                 Load(lambda n: stores[1].batch_is_exist([f"kept/{i}" for i in range(50)]), lambda got: got == [1] * 50),
                 Load(lambda n: stores[0].remove_by_regex("^none/", True), lambda got: got == 0)]
        for load in loads:
            load.start()
        for is_slow in (False, False, True):
            done = [load.done for load in loads]
            wait_until(lambda d=done: all(load.done > n + 20 for load, n in zip(loads, d)), 30, "calls to go on")
            asked = threading.Thread(target=masters.switch if not is_slow else lambda: masters.kvpool("master", "switch", "--deadline", "20s"))
            was = masters.wait_leader()
            if is_slow:
                etcd.members[0].freeze()
            asked.start()
            if is_slow:
                time.sleep(1.3)  # the lease of 2 s lasts, and no transaction is made
                etcd.members[0].thaw()
            asked.join()
            masters.wait_leader()
            assert is_slow or masters.leader() != was
            wait_until(lambda: masters.leader_status()["segments"] == 1, 10, "the node")
            masters.wait_insync(2)
        wrong = [load.end() for load in loads]
        print(f"longest calls {[round(load.longest, 2) for load in loads]} s")
        assert not any(wrong), [w[:5] for w in wrong]
        assert max(load.longest for load in loads) < (OWN_S + 3) * SLOW
    finally:
        for store in stores:
            store.close()
