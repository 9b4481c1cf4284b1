# SPDX-License-Identifier: Apache-2.0
"""A part of the end-to-end tests, in the guest: their daemons and clients are on both devices, and bytes move by rdma alone.
What needs the devices is tests/e2e/test_rdma_*.py, which runs nowhere else. One run of pytest in there does
all of it, and each line below is a test out here. The normal tier has PART; `--long` has MORE as well.

Left out for good: what is about shared memory or tcp (views, raw wire, mappings), about the master or the command line alone,
and what judges by deadlines that emulated processors do not keep.
"""
import os
import sys
import xml.etree.ElementTree

import guest
import pytest

TIER = os.environ.get("KVPOOL_TEST_TIER", "normal")
E2E = guest.ROOT / "tests" / "e2e"

# Of tests for each path, that of a client elsewhere is run: here both lead over the devices.
PART = [
    "test_smoke.py::test_put_get_exists_rm",
    "test_smoke.py::test_sizes_round_trip[65537]",
    "test_smoke.py::test_sizes_round_trip[3145745]",
    "test_copies.py::test_copies_lie_on_different_hosts",
    "test_copies.py::test_upsert_of_copies",
    "test_put_killed.py::test_killed_at_this_byte[3158073-tcp]",
    "test_put_killed.py::test_space_of_many_dead_writers",
    "test_node_killed.py::test_other_nodes_keys_are_served[tcp]",
    "test_known.py::test_removal_is_seen[tcp]",
    "test_known.py::test_bump_is_never_read_after",
    "test_groups_pins.py::test_group_is_seen_when_it_is_whole[tcp]",
    "test_rdma_reads.py::test_known_get_has_no_part_of_the_nodes_in_it",
    "test_rdma_reads.py::test_stopped_node_is_read_from",
    "test_rdma_reads.py::test_nodes_serve_by_rdma_without_being_told",
    "test_rdma_reads.py::test_replay",
]
MORE = [
    "test_smoke.py::test_sizes_round_trip",
    "test_smoke.py::test_replay_of_a_small_trace",
    "test_smoke.py::test_node_killed_leaves_the_pool_answering",
    "test_smoke.py::test_client_killed_while_it_waits_for_input",
    "test_copies.py::test_lost_host_costs_no_hit",
    "test_copies.py::test_silent_host_holds_up_no_put",
    "test_copies.py::test_host_lost_under_puts",
    "test_put_killed.py::test_killed_at_this_byte[0-tcp]",
    "test_put_killed.py::test_killed_at_this_byte[8388607-tcp]",
    "test_node_killed.py::test_node_out_of_reach_fails_no_put[tcp]",
    "test_node_killed.py::test_restarted_node_starts_empty",
    "test_node_killed.py::test_last_node_killed",
    "test_known.py::test_repeated_get_sends_nothing[tcp]",
    "test_known.py::test_fresh_asks_the_master[tcp]",
    "test_known.py::test_removal_that_nobody_keeps_in_mind",
    "test_known.py::test_removal_that_waits_is_never_read_after",
    "test_known.py::test_node_that_dies_is_a_miss_at_known_locations[tcp]",
    "test_groups_pins.py::test_groups_are_found_by_prefix",
    "test_groups_pins.py::test_group_is_evicted_as_one",
    "test_groups_pins.py::test_incomplete_group_goes_with_its_writer",
    "test_groups_pins.py::test_soft_pins_outlive_pressure_within_their_budget",
    "test_groups_pins.py::test_hard_pins_stay_and_fill_a_pool",
    "test_full_pool.py::test_everything_held",
    "test_full_pool.py::test_a_batch_larger_than_the_pool",
    "test_rdma_reads.py::test_replay_of_the_published_trace",
]
CHOSEN = PART + (MORE if TIER == "long" else [])
LIMIT_S = {"quick": 300, "normal": 900, "long": 5400}[TIER]


@pytest.fixture(scope="module")
def ran(vm, tmp_path_factory):
    """What became of each test: {name: (how, text)}."""
    report = "/run/kvpool-vm/share/e2e.xml"
    env = {"KVPOOL_BUILD": str(guest.BUILD), "KVPOOL_TEST_RDMA": ",".join(reversed(guest.ADDRESSES)),
           "KVPOOL_TEST_TIER": TIER, "PYTHONDONTWRITEBYTECODE": "1"}
    r = vm.run([sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", f"--junitxml={report}",
                *(E2E / name for name in CHOSEN)], env=env, cwd=str(guest.ROOT), timeout=LIMIT_S)
    assert r.rc in (0, 1), r  # else it is not about tests that failed
    found = {}
    for case in xml.etree.ElementTree.parse(vm.share / "e2e.xml").iter("testcase"):
        what = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        name = f"{case.get('classname').rpartition('.')[2]}.py::{case.get('name')}"
        found[name] = ("passed", "") if what is None else (what.tag, f"{what.get('message')}\n{what.text}")
    return found


@pytest.mark.parametrize("name", CHOSEN)
def test_in_the_guest(ran, name):
    mine = {test: how for test, how in ran.items() if test == name or test.startswith((f"{name}[", f"{name}::"))}
    assert mine, f"there is no such test: {name}"
    bad = {test: text for test, (how, text) in mine.items() if how in ("failure", "error")}
    assert not bad, "\n".join(f"{test}: {text}" for test, text in bad.items())
    if all(how == "skipped" for how, _ in mine.values()):
        pytest.skip("; ".join(text.strip().splitlines()[0] for _, text in mine.values()))
