# SPDX-License-Identifier: Apache-2.0
"""A node that rdma does not reach, though tcp does: what goes by UDP, and so by RoCE, is lost on the way. Who named no transport
goes by tcp, is told so once, and goes by rdma again later; who named rdma gets an error."""
import json

import guest
from test_doctor import BIN, MASTER, kvpool
import pytest

CUT = "ip rule add pref 1 iif eth2 ipproto 17 blackhole"  # UDP, by its number: names of protocols are in a package of their own
MEND = "ip rule del pref 1"
SAID = "is not reached by rdma"

# One process throughout: a round by rdma, one during which the way is lost, one behind it, then rounds until rdma is back.
ROUNDS = f"""
cd $(mktemp -d)
mkfifo in
KVPOOL_RDMA_DEVICE=rxe0 {BIN["kvpool"]} bench --op batch_get --size 64KiB --batch 4 --set 1MiB --seconds 1s --rounds 40 --step --json --master {MASTER} \\
    --deadline 10s < in > out 2> err &
exec 3> in
round() {{
    echo >&3
    until [ $(wc -l < out) -ge $1 ]; do sleep 0.1; kill -0 $! || break; done
}}
round 1
{CUT}
round 2
round 3
{MEND}
for i in $(seq 4 40); do
    round $i
    tail -n 1 out | grep -q work_requests && break
done
exec 3>&-
wait
cat out
cat err >&2
"""


@pytest.fixture
def pool(lent_vm):
    """A master, and a node that serves by rdma and tcp, by the second device alone: so there is one way between the devices."""
    lent_vm.start([BIN["kvpool-master"], "--listen", MASTER, "--http", "none", "--data-dir", "none"])
    lent_vm.start([BIN["kvpool-node"], "--master", MASTER, "--listen", f"{guest.ADDRESSES[1]}:0", "--memory", "16MiB", "--transports",
                   "rdma,tcp", "--rdma-device", "rxe1", "--name", "far"])
    for _ in range(60):
        r = kvpool(lent_vm, "stat", "--json")
        if r.rc == 0 and b'"far"' in r.out:
            return lent_vm
        lent_vm.run(["sleep", "0.5"])
    pytest.fail("the node did not come")


@pytest.fixture
def cut(pool):
    """The way is lost for RoCE alone."""
    assert pool.run(["sh", "-c", CUT]).rc == 0
    yield pool
    assert pool.run(["sh", "-c", MEND]).rc == 0


def test_who_named_no_transport_goes_the_other_way(cut):
    """Fails if what could go by tcp fails, or by whose fault it did not go by rdma is not said, and just once."""
    assert kvpool(cut, "put", "k", "--file", guest.__file__).rc == 0
    with open(guest.__file__, "rb") as f:
        value = f.read()
    for env in ({}, {"KVPOOL_TRANSPORTS": "rdma,tcp"}):
        r = kvpool(cut, "get", "k", **env)
        assert r.rc == 0 and r.out == value and r.err.count(SAID) == 1, r


def test_who_named_rdma_gets_rdma_or_an_error(cut):
    """Fails if rdma that was named is replaced by tcp, or the error does not name the node and the transport."""
    r = kvpool(cut, "put", "k", "--file", guest.__file__, KVPOOL_TRANSPORTS="rdma")
    assert r.rc == 1 and "NODE_LOST" in r.err and SAID not in r.err, r
    assert "by rdma, and no other transport was named" in r.err and "kvpool doctor" in r.err, r.err
    assert kvpool(cut, "get", "k").rc == 1


def test_way_that_is_back_is_taken_again(pool):
    """Fails if a process stays with tcp, or a call fails: also one that is under way when the way is lost, or lost again, ends by
    tcp. Soft RoCE may lose a connection that stands, so the way may be left and taken again more than once."""
    r = pool.run(["sh", "-c", ROUNDS], timeout=180)
    rounds = [json.loads(line) for line in r.out.splitlines()]
    assert len(rounds) >= 4, r
    assert rounds[0]["work_requests"] > 0, rounds[0]
    assert "work_requests" not in rounds[2] and rounds[2]["calls"] > 0, rounds[2]
    assert rounds[-1]["work_requests"] > 0, rounds[-1]
    assert all(n["errors"] == n["wrong_bytes"] == 0 for n in rounds), r
    assert r.err.count(SAID) == 1 and "can be reached by rdma again" in r.err, r.err
