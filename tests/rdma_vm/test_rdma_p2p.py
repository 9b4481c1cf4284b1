# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/test_rdma_p2p.py in the guest: peer-to-peer transfers by rdma between processes that are killed, stopped and started again."""
import inside
import pytest

CHOSEN = [f"test_rdma_p2p.py::{name}" for name in (
    "test_write_and_read",
    "test_hosts_that_say_nothing_of_transports",
    "test_unregister_under_a_writer",
    "test_peer_is_killed_under_load_and_comes_back",
    "test_stopped_peer_is_written",
    "test_what_is_not_there",
)]
LIMIT_S = {"quick": 300, "normal": 600, "long": 2400}[inside.TIER]


@pytest.fixture(scope="module")
def ran(vm):
    return inside.run(vm, CHOSEN, LIMIT_S)


test_in_the_guest = inside.one_test_each(CHOSEN)
