# SPDX-License-Identifier: Apache-2.0
"""Links and devices that go under transfers by rdma, and come back. Every call comes back by its deadline with a result for each
key, no byte is wrong, and what is whole again is used again. Needs root, and the cable of tests/rdma_vm.
"""
import functools
import pathlib
import random
import subprocess
import time

import pytest

from clients import Shell
from conftest import TIER, wait_until
from test_rdma_failures import DEADLINE_MS, ELSEWHERE, GRACE_MS, KIB, TYPED, Loads

ROUNDS = {"quick": 1, "normal": 2, "long": 30}[TIER]
ENDS = ("eth1", "eth2")  # of the first cable, which are at
FIRST = ("10.99.0.1", "10.99.0.2")
SECOND = ("10.99.1.1", "10.99.1.2")  # eth3 with rxe2, eth4 with rxe3
NETDEVS = {"rxe0": "eth1", "rxe1": "eth2", "rxe2": "eth3", "rxe3": "eth4"}
WIDE = 512 * KIB  # so large objects go over all rails

# As tests/rdma_vm/agent.py does with the first one. The kernel forgets the routes with the link.
ROUTES = f"""
ip route replace {SECOND[1]} dev eth3 src {SECOND[0]} table 103
ip route replace {SECOND[0]} dev eth4 src {SECOND[1]} table 104
"""
CABLE = f"""
set -e
ip link add eth3 mtu 4200 type veth peer name eth4 mtu 4200
ip addr add {SECOND[0]}/24 dev eth3
ip addr add {SECOND[1]}/24 dev eth4
ip link set eth3 up
ip link set eth4 up
ip rule add pref 10 iif lo from {SECOND[0]} to {SECOND[0]} lookup local
ip rule add pref 10 iif lo from {SECOND[1]} to {SECOND[1]} lookup local
ip rule add pref 20 iif lo to {SECOND[1]} lookup 103
ip rule add pref 20 iif lo to {SECOND[0]} lookup 104
ip route add unreachable default table 103
ip route add unreachable default table 104
{ROUTES}
rdma link add rxe2 type rxe netdev eth3
rdma link add rxe3 type rxe netdev eth4
until grep -q 0a63:0101 /sys/class/infiniband/rxe2/ports/1/gids/1; do sleep 0.1; done
until grep -q 0a63:0102 /sys/class/infiniband/rxe3/ports/1/gids/1; do sleep 0.1; done
"""


def shell(script):
    subprocess.run(["sh", "-c", script], check=True)


def set_link(end, state):
    subprocess.run(["ip", "link", "set", end, state], check=True)


@pytest.fixture
def links():
    """Takes links of the first cable down; they are up again in the end."""
    yield set_link
    for end in ENDS:
        set_link(end, "up")


class Device:
    """A device that is taken away under those who use it, and given back."""

    def __init__(self, name):
        self.name, self.netdev = name, NETDEVS[name]
        self.deleting = None

    def delete(self):
        """The kernel waits for those who have it open; so does not this."""
        self.deleting = subprocess.Popen(["rdma", "link", "delete", self.name])

    def check_let_go(self, seconds=5):
        wait_until(lambda: self.deleting.poll() is not None, seconds, f"{self.name} to be let go by all that had it open")
        assert self.deleting.returncode == 0

    def add(self):
        subprocess.run(["rdma", "link", "add", self.name, "type", "rxe", "netdev", self.netdev], check=True)
        wait_until(lambda: "ACTIVE" in (self.port() / "state").read_text(), 10, f"{self.name} to be active")

    def port(self):
        return pathlib.Path(f"/sys/class/infiniband/{self.name}/ports/1")

    def packets(self):
        return int((self.port() / "hw_counters" / "sent_pkts").read_text())


@pytest.fixture
def lend_device():
    """Gives devices out by name; all are there again in the end."""
    lent = []

    def lend(name):
        lent.append(Device(name))
        return lent[-1]

    yield lend
    for device in lent:
        if not device.port().exists():
            device.add()


@pytest.fixture(scope="module")
def second_cable():
    """A cable beside the first one, with a device on each end: for as long as the guest is there."""
    shell(CABLE)


def use_devices(bench, *names):
    """What is started from here on uses these devices."""
    bench.env = functools.partial(type(bench).env, bench, KVPOOL_RDMA_DEVICE=",".join(names))


@pytest.mark.limit(300)
@pytest.mark.pool(nodes=0)
def test_link_down_and_up(pool, bench, links):
    """Fails if, with the clients' link to the only node down in the middle of transfers, a call outlives its deadline or a byte is
    wrong; or if clients that knew the node do not use it again, and nothing fails any more, soon after the link is up. Moments,
    and a time that is longer than adapters try.

    All works again before the link goes down the next time. A link that goes down while a connection is made would break the
    device for good on Linux 6.1, because the kernel then sends a message of its connection manager over a link that is down
    (tests/rdma_vm/README.md)."""
    use_devices(bench, "rxe1")
    pool.nodes.append(bench.node(pool.master, "far", "32MiB", listen=f"{FIRST[1]}:0"))
    use_devices(bench, "rxe0")
    loads = Loads(pool)
    rng = random.Random(3)
    for _ in range(ROUNDS):
        links("eth1", "down")
        time.sleep(rng.uniform(0.05, 0.5))
        links("eth1", "up")
        loads.check_hurt("after a moment without a link")
        loads.check_whole("after a moment without a link")
    links("eth1", "down")
    time.sleep(3)
    loads.check_hurt("without a link")
    links("eth1", "up")
    loads.check_whole("with the link up")
    loads.end()


@pytest.mark.limit(120)
@pytest.mark.pool(nodes=0)
def test_ends_whose_packets_differ(pool, bench):
    """Fails if a client whose port sends larger packets than the node's takes does not put and get by smaller ones, or the bytes
    are not those."""
    value = random.Random(5).randbytes(1_000_001)
    subprocess.run(["ip", "link", "set", "eth2", "mtu", "1500"], check=True)
    try:
        use_devices(bench, "rxe1")
        pool.nodes.append(bench.node(pool.master, "far", "32MiB", listen=f"{FIRST[1]}:0"))
        use_devices(bench, "rxe0")
        assert pool.put("key", value).rc == 0
        got = pool.get("key")
        assert got.rc == 0 and got.out == value
    finally:
        subprocess.run(["ip", "link", "set", "eth2", "mtu", "4200"], check=True)


@pytest.mark.limit(300)
@pytest.mark.pool(nodes=0)
def test_one_of_two_rails_loses_its_link(pool, bench, second_cable):
    """Fails if, with the link of one of the two rails to the only node down under transfers, nothing is got or put over the other
    one, a call outlives its deadline, or a byte is wrong; or if anything fails once the link is back."""
    use_devices(bench, "rxe1", "rxe3")
    pool.nodes.append(bench.node(pool.master, "far", "64MiB", listen=f"{FIRST[1]}:0"))
    use_devices(bench, "rxe0", "rxe2")
    loads = Loads(pool)
    set_link("eth3", "down")
    loads.check_hurt("over the first cable", floor=20)
    set_link("eth3", "up")
    shell(ROUTES)
    loads.check_whole("with both cables")
    loads.end()


@pytest.mark.limit(200)
@pytest.mark.pool(nodes=0)
@pytest.mark.parametrize("name", ["rxe2", "rxe0", "rxe3", "rxe1"])
def test_one_of_two_devices_is_removed(pool, bench, second_cable, lend_device, name):
    """Fails if, with one of two devices of the clients (rxe0, rxe2) or of the only node (rxe1, rxe3) deleted under transfers over
    both, nothing is got or put over the other one, a call outlives its deadline, or a byte is wrong; if somebody keeps it, a client
    that does nothing among them, and one that never did anything, so that the kernel does not come to an end with it; or if it is
    not used again once it was added again, or anything fails then.
    """
    use_devices(bench, "rxe1", "rxe3")
    pool.nodes.append(bench.node(pool.master, "far", "64MiB", listen=f"{FIRST[1]}:0"))
    use_devices(bench, "rxe0", "rxe2")
    device = lend_device(name)
    idle = Shell(pool.bench, pool.addr, "idle", **ELSEWHERE)
    assert idle(f"bput idle/ 0 4 {WIDE}")["results"] == {"OK": 4}
    for _ in range(3):  # over both: the second one is connected under the first of these
        assert idle(f"bget idle/ 0 4 {WIDE}")["results"] == {"OK": 4}
    fresh = Shell(pool.bench, pool.addr, "fresh", **ELSEWHERE)  # it has the devices open, and is attached nowhere
    loads = Loads(pool, max_bytes=WIDE)
    wait_until(lambda: device.packets() > 100, 20, f"{name} to carry something")
    device.delete()
    loads.check_hurt(f"without {name}", floor=20)
    device.check_let_go()
    device.add()
    wait_until(lambda: device.packets() > 100, 20, f"{name} to carry something again")
    loads.check_whole(f"with {name} again")
    loads.end()

    def is_served():
        """It looks for its way anew: the first one may be over a device that is not ready. What it put may have been evicted."""
        got = idle(f"bget idle/ 0 4 {WIDE} deadline={DEADLINE_MS}")
        assert got["wrong"] == 0 and set(got["results"]) <= TYPED and got["ms"] < DEADLINE_MS + GRACE_MS, got
        return set(got["results"]) <= {"OK", "NOT_FOUND"}

    wait_until(is_served, 5, "the client that did nothing to be served")
    # The same of one that comes now: it, too, may first take a device that is not ready.
    wait_until(lambda: fresh(f"bput fresh/ 0 4 {WIDE} deadline={DEADLINE_MS}")["results"].keys() <= {"OK", "ALREADY"}, 5, "a fresh client to be served")
