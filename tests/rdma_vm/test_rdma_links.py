# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/test_rdma_links.py in a guest of its own: links that go down, and devices that are removed, under transfers by rdma."""
import inside
import pytest

import guest

CHOSEN = [f"test_rdma_links.py::{name}" for name in (
    "test_link_down_and_up",
    "test_ends_whose_packets_differ",
    "test_one_of_two_rails_loses_its_link",
    "test_one_of_two_devices_is_removed",
)]
LIMIT_S = {"quick": 600, "normal": 900, "long": 3600}[inside.TIER]


@pytest.fixture(scope="module")
def ran(guest_parts):
    with guest.Guest() as g:
        yield inside.run(g, CHOSEN, LIMIT_S)


@pytest.mark.parametrize("name", CHOSEN)
def test_in_the_guest(ran, name):
    inside.judge(ran, name)
