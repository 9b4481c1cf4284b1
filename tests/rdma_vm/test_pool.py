# SPDX-License-Identifier: Apache-2.0
"""A pool whose node serves by rdma alone, at one device, and a client that reaches it by rdma alone, from the other."""
import random

import guest
import pytest

MASTER = f"{guest.ADDRESSES[0]}:50051"
CLIENT = {"KVPOOL_MASTER": MASTER, "KVPOOL_TRANSPORTS": "rdma"}
DAEMONS = [
    ["master/kvpool-master", "--listen", MASTER, "--http", f"{guest.ADDRESSES[0]}:9003", "--data-dir", "none"],
    ["client/kvpool-node", "--master", MASTER, "--listen", f"{guest.ADDRESSES[1]}:0", "--memory", "64MiB", "--transports",
     "rdma", "--name", "far"],
]


@pytest.fixture
def pool(lent_vm):
    """A guest with a master and a node; what they print is theirs."""
    for argv in DAEMONS:
        lent_vm.start([str(guest.BUILD / argv[0]), *argv[1:]])
    yield lent_vm


def kvpool(vm, *args, stdin=b""):
    return vm.run([str(guest.BUILD / "client" / "kvpool"), *args, "--deadline", "30s"], stdin=stdin, env=CLIENT, timeout=60)


def wait_for_node(vm):
    for _ in range(60):
        r = kvpool(vm, "stat", "--json")
        if r.rc == 0 and b'"far"' in r.out:
            return
        vm.run(["sleep", "0.5"])
    pytest.fail("the node did not come")


def test_what_is_put_by_rdma_is_got_by_rdma(pool):
    value = random.Random(7).randbytes(3_000_001)
    wait_for_node(pool)
    assert kvpool(pool, "put", "key", stdin=value).rc == 0
    got = kvpool(pool, "get", "key")
    assert got.rc == 0, got.text
    assert got.out == value
    assert kvpool(pool, "get", "another").rc == 1
    # It went over the cable: the serving device took the bytes in and gave them out again.
    r = pool.run(["sh", "-c", "cat /sys/class/infiniband/rxe1/ports/1/hw_counters/rcvd_pkts"])
    assert int(r.out) > len(value) / 4096
    assert kvpool(pool, "rm", "key").rc == 0
    assert kvpool(pool, "get", "key").rc == 1
