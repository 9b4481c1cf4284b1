# SPDX-License-Identifier: Apache-2.0
"""Several rails between a client and a node: a second cable beside the guest's first, a device of each side on both."""
import guest
import inside
import pytest

pytestmark = inside.long  # tests/e2e/test_rdma_links.py takes links of two rails away under loads

MASTER = "127.0.0.1:50051"
FIRST, SECOND = ("10.99.1.1", "10.99.1.2")  # the second cable's ends: eth3 with rxe2, eth4 with rxe3
CLIENT = {"KVPOOL_MASTER": MASTER, "KVPOOL_TRANSPORTS": "rdma", "KVPOOL_RDMA_DEVICE": "rxe0,rxe2"}
DAEMONS = [
    ["bin/kvpool-master", "--listen", MASTER, "--http", "127.0.0.1:9003", "--data-dir", "none"],
    ["bin/kvpool-node", "--master", MASTER, "--listen", f"{guest.ADDRESSES[1]}:0", "--memory", "160MiB", "--chunk-bytes",
     "160MiB", "--transports", "rdma", "--name", "far", "--rdma-device", "rxe1,rxe3"],
]

CABLE = f"""
set -e
ip link add eth3 mtu 4200 type veth peer name eth4 mtu 4200
ip addr add {FIRST}/24 dev eth3
ip addr add {SECOND}/24 dev eth4
ip link set eth3 up
ip link set eth4 up
ip rule add pref 10 iif lo from {FIRST} to {FIRST} lookup local
ip rule add pref 10 iif lo from {SECOND} to {SECOND} lookup local
ip rule add pref 20 iif lo to {SECOND} lookup 103
ip rule add pref 20 iif lo to {FIRST} lookup 104
ip route add {SECOND} dev eth3 src {FIRST} table 103
ip route add {FIRST} dev eth4 src {SECOND} table 104
rdma link add rxe2 type rxe netdev eth3
rdma link add rxe3 type rxe netdev eth4
until grep -q 0a63:0101 /sys/class/infiniband/rxe2/ports/1/gids/1; do sleep 0.1; done
until grep -q 0a63:0102 /sys/class/infiniband/rxe3/ports/1/gids/1; do sleep 0.1; done
"""

# A get that loses one of its two rails while that one carries bytes.
LOSE = """
counter=/sys/class/infiniband/rxe2/ports/1/hw_counters/rcvd_pkts
before=$(cat $counter)
"$KVPOOL" get value --deadline 40s > /tmp/got &
while [ $(cat $counter) -lt $((before + 200)) ] && kill -0 $!; do :; done
ip link set eth3 down
kill -0 $! && echo in the middle
wait $! && cmp /tmp/value /tmp/got && echo same
"""


@pytest.fixture
def pool(guest_parts):
    """A guest of its own, whose second cable is not there yet."""
    with guest.Guest() as g:
        r = g.run(["sh", "-c", CABLE])
        assert r.rc == 0, r
        for argv in DAEMONS:
            g.start([str(guest.BUILD / argv[0]), *argv[1:]])
        yield g


def shell(vm, script, timeout=90):
    return vm.run(["sh", "-c", script], timeout=timeout,
                  env={**CLIENT, "KVPOOL": str(guest.BUILD / "bin" / "kvpool")})


def test_get_whose_rail_loses_its_link_is_completed_by_the_other(pool):
    r = shell(pool, 'until "$KVPOOL" stat --json | grep -q far; do sleep 0.3; done; head -c 120M /dev/urandom > /tmp/value')
    assert r.rc == 0, r
    r = shell(pool, '"$KVPOOL" put value --deadline 40s < /tmp/value')
    assert r.rc == 0, r
    r = shell(pool, LOSE)
    assert r.rc == 0 and b"in the middle" in r.out and b"same" in r.out, r
