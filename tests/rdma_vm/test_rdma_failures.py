# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/test_rdma_failures.py in the guest: processes that die, stop and come back under transfers by rdma. Beside it the rows
of the failure table that end-to-end tests of other paths hold as well.
"""
import inside
import pytest

OWN = [f"test_rdma_failures.py::{name}" for name in (
    *(["test_node_killed_under_load[1]"] if inside.TIER == "long" else []),
    "test_node_killed_under_load[2]",
    "test_node_comes_back_with_new_keys",
    "test_memory_goes_under_readers",
    "test_extents_are_retired_under_readers",
    "test_node_stands_still",
    "test_master_killed_under_load",
    "test_writer_stops_in_the_middle_of_writes",
    "test_writer_stops_before_its_first_write",
    "test_killed_clients_leave_nothing",
    "test_forked_child",
)]
SHARED = [
    "test_put_killed.py::test_stopped_writer_comes_back[tcp]",
    "test_put_killed.py::test_killed_at_any_time[empty-tcp]",
    "test_failures.py::test_cut_gets_leave_their_buffer_alone[tcp]",
    "test_race_reuse.py::test_readers_race_reuse",
    "test_master_killed.py::test_master_killed[kept]",
    "test_master_killed.py::test_master_killed[gone]",
]
CHOSEN = OWN + (SHARED if inside.TIER == "long" else [])
LIMIT_S = {"quick": 300, "normal": 600, "long": 3600}[inside.TIER]


@pytest.fixture(scope="module")
def ran(vm):
    return inside.run(vm, CHOSEN, LIMIT_S)


test_in_the_guest = inside.one_test_each(CHOSEN)
