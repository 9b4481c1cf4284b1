# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/test_rdma_links.py in the rough guest: links that go down, and devices that are removed, under transfers by rdma. The
normal tier removes one device of the clients and one of the node."""
import inside
import pytest

CHOSEN = [f"test_rdma_links.py::{name}" for name in (
    "test_link_down_and_up",
    "test_ends_whose_packets_differ",
    "test_one_of_two_rails_loses_its_link",
    *(["test_one_of_two_devices_is_removed"] if inside.TIER == "long" else
      ["test_one_of_two_devices_is_removed[rxe0]", "test_one_of_two_devices_is_removed[rxe3]"]),
)]
LIMIT_S = {"quick": 600, "normal": 900, "long": 3600}[inside.TIER]


@pytest.fixture(scope="module")
def ran(rough_vm):
    return inside.run(rough_vm, CHOSEN, LIMIT_S)


test_in_the_guest = inside.one_test_each(CHOSEN)
