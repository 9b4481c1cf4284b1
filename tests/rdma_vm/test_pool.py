# SPDX-License-Identifier: Apache-2.0
"""A pool whose node serves by rdma alone, at one device, and a client that reaches it by rdma alone, from the other; and a node
whose devices do not take all of its memory."""
import random

import guest
import pytest

MASTER = f"{guest.ADDRESSES[0]}:50051"
CLIENT = {"KVPOOL_MASTER": MASTER, "KVPOOL_TRANSPORTS": "rdma"}
DAEMONS = [
    ["bin/kvpool-master", "--listen", MASTER, "--http", f"{guest.ADDRESSES[0]}:9003", "--data-dir", "none"],
    ["bin/kvpool-node", "--master", MASTER, "--listen", f"{guest.ADDRESSES[1]}:0", "--memory", "64MiB", "--transports",
     "rdma", "--name", "far"],
]


@pytest.fixture
def pool(lent_vm):
    """A guest with a master and a node; what they print is theirs."""
    for argv in DAEMONS:
        lent_vm.start([str(guest.BUILD / argv[0]), *argv[1:]])
    yield lent_vm


def kvpool(vm, *args, stdin=b"", transports="rdma"):
    return vm.run([str(guest.BUILD / "bin" / "kvpool"), *args, "--deadline", "30s"], stdin=stdin,
                  env={**CLIENT, "KVPOOL_TRANSPORTS": transports}, timeout=60)


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


def metric(vm, name):
    """One of the node's figures; None where nobody answers."""
    ask = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9004/metrics').read().decode())"
    lines = [line for line in vm.run(["python3", "-c", ask]).text.splitlines() if line.startswith(name + " ")]
    return int(float(lines[0].split()[1])) if lines else None


def test_what_cannot_be_registered_goes_by_the_next_transport(lent_vm):
    """A node that may lock a part of its memory serves that part by rdma, and all of it by tcp."""
    size = 32 << 20
    lent_vm.start([str(guest.BUILD / DAEMONS[0][0]), *DAEMONS[0][1:]])
    lent_vm.start(["prlimit", f"--memlock={64 << 20}:{64 << 20}", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
                   "env", "XDG_RUNTIME_DIR=/tmp", lent_vm.for_everybody(guest.BUILD / "bin/kvpool-node"), "--master", MASTER, "--listen",
                   f"{guest.ADDRESSES[1]}:0", "--memory", str(size), "--chunk-bytes", "4MiB", "--transports", "rdma,tcp",
                   "--http", "127.0.0.1:9004", "--name", "far"])
    wait_for_node(lent_vm)
    registered = refused = None
    for _ in range(60):
        registered, refused = (metric(lent_vm, f"kvpool_node_{what}registered_bytes") for what in ("", "un"))
        if registered is not None and registered + refused == size:
            break
        lent_vm.run(["sleep", "0.5"])
    assert 0 < registered < size and registered + refused == size == metric(lent_vm, "kvpool_node_to_register_bytes")

    values = {f"key{i}": random.Random(i).randbytes(3 << 20) for i in range(8)}  # one a chunk
    for key, value in values.items():
        r = kvpool(lent_vm, "put", key, stdin=value, transports="")
        assert r.rc == 0, r
    for key, value in values.items():
        r = kvpool(lent_vm, "get", key, transports="")
        assert r.rc == 0 and r.out == value, r
    # who names rdma is not served by another one
    answers = {key: kvpool(lent_vm, "get", key) for key in values}
    assert {r.rc for r in answers.values()} == {0, 1}, answers
    for key, r in answers.items():
        assert r.out == values[key] if r.rc == 0 else "not supported here" in r.err, r
