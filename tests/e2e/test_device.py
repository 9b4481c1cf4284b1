# SPDX-License-Identifier: Apache-2.0
"""Memory of devices, with a CUDA driver that has none: what is staged arrives whole, by every transport."""
import pytest

from conftest import BUILD, SLOW, run_program

E2E = BUILD / "tests" / "e2e"


def run_device(pool, *args, **env):
    r = run_program([E2E / "e2e_device", *args], pool.bench.env(KVPOOL_MASTER=pool.addr, **env), timeout=40 * SLOW)
    bad = [line for line in r.text.splitlines() if not line.startswith("ok ")]
    assert not bad and r.rc == 0, (bad, r.rc, r.err[-2000:])
    assert len(r.text.splitlines()) > 55


@pytest.mark.parametrize("verify", ["auto", "payload"])
@pytest.mark.parametrize("transports", ["shm", "tcp"])
def test_device_memory(make_pool, transports, verify):
    """Fails if bytes put from device memory or got into it are wrong at any size, alone, in pieces beside the host's
    memory, in batches or from several threads; if a processor touches them; if a copy is still under way when its call
    has returned; if a driver's failure costs more than the call; or if more memory is pinned than a handle may.
    """
    pool = make_pool(nodes=1, memory="256MiB", node_args=("--chunk-bytes", "16MiB"))
    run_device(pool, 1, KVPOOL_TRANSPORTS=transports, KVPOOL_VERIFY=verify)


def test_device_memory_in_copies(make_pool):
    """The same with copies on two hosts, one by shared memory and one by TCP: both are whole."""
    pool = make_pool(nodes=0)
    for i in (1, 2):
        pool.add_node(f"node{i}", "256MiB", "--chunk-bytes", "16MiB", "--host-id", f"host-{i}")
    run_device(pool, 2, "host-1", KVPOOL_TRANSPORTS="shm,tcp")
