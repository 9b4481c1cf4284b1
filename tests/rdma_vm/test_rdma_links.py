# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/test_rdma_links.py in a guest of its own: links that go down, and devices that are removed, under transfers by rdma."""
import inside

CHOSEN = [f"test_rdma_links.py::{name}" for name in (
    "test_link_down_and_up",
    "test_ends_whose_packets_differ",
    "test_one_of_two_rails_loses_its_link",
    "test_one_of_two_devices_is_removed",
)]
LIMIT_S = {"quick": 600, "normal": 900, "long": 3600}[inside.TIER]

ran = inside.ran_alone(CHOSEN, LIMIT_S)
test_in_the_guest = inside.one_test_each(CHOSEN)
