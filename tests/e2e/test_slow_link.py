# SPDX-License-Identifier: Apache-2.0
"""Gets by TCP over a link that is slower than their deadline allows."""
import pytest

from clients import Shell
from standby import Net, why_no_namespaces

LINK = ["rate", "160mbit", "burst", "32kb", "latency", "500ms"]  # 2 MB in 100 ms


@pytest.mark.skipif(why_no_namespaces() != "", reason=why_no_namespaces())
@pytest.mark.parametrize("size", [64 << 10, 128 << 10])  # a sum is enough for the first, and not for the second
def test_batch_get_cut_at_its_deadline_has_what_arrived(bench, size):
    """Fails if a batch of gets that the deadline cuts loses objects that had arrived whole, returns wrong bytes with OK, or another
    error than DEADLINE for the rest."""
    n = (100 << 16) // size
    net = Net(bench, ["client", "node"])
    with net["client"]:
        master = bench.master(listen=f"{net['client'].address}:0")
    with net["node"]:
        bench.node(master, "n", "64MiB", "--keeper", "none", listen=f"{net['node'].address}:0")
    with net["client"]:
        client = Shell(bench, master.listen, transports="tcp")
    assert client(f"bput k 0 {n} {size}")["results"] == {"OK": n}
    assert client(f"bget k 0 {n} {size}")["results"] == {"OK": n}
    net["node"].run("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", *LINK)
    for deadline_ms, least in ((100, 0.15), (300, 0.6)):
        served = []
        while len(served) < 5 and max(served, default=0) < least * n:  # a client that stands still for a moment gets less
            got = client(f"bget k 0 {n} {size} deadline={deadline_ms}")
            assert got["wrong"] == 0 and set(got["results"]) <= {"OK", "DEADLINE"}, got
            served.append(got["results"].get("OK", 0))
            assert client(f"bget k 0 {n} {size}")["results"] == {"OK": n}  # and the link is idle again
        assert least * n <= max(served) < n, served
