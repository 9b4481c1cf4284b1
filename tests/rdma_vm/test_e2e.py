# SPDX-License-Identifier: Apache-2.0
"""The end-to-end tests in the guest: their daemons and clients are on both devices, and bytes move by rdma alone. What needs the
devices is tests/e2e/test_rdma_*.py, which runs nowhere else (test_rdma_failures.py of this directory has what fails). Each test in
there is a test out here. The normal tier has PART, which is about the way that bytes take; `--long` has all of them but what LEFT_OUT
names.
"""
import guest
import inside
import pytest

# Of tests for each path, that of a client elsewhere is run: here both lead over the devices.
PART = [
    "test_smoke.py::test_put_get_exists_rm",
    "test_smoke.py::test_sizes_round_trip",
    "test_copies.py::test_upsert_of_copies",
    "test_drain.py::test_drained_node_may_be_killed[tcp]",
    "test_put_killed.py::test_killed_at_this_byte[3158073-tcp]",
    "test_known.py::test_removal_is_seen[tcp]",
    "test_known.py::test_bump_is_never_read_after",
    "test_rdma_reads.py::test_known_get_has_no_part_of_the_nodes_in_it",
    "test_rdma_reads.py::test_stopped_node_is_read_from",
    "test_rdma_reads.py::test_nodes_serve_by_rdma_without_being_told",
    "test_rdma_reads.py::test_memory_of_a_process_is_served_by_rdma_where_that_is_named",
    "test_rdma_reads.py::test_clients_that_end_leave_nothing_registered",
    "test_rdma_reads.py::test_replay",
]
# What is not run in there for good: why, and how the names begin. It is counted as skipped.
LEFT_OUT = {
    "test_rdma_failures.py, test_rdma_links.py or test_rdma_p2p.py of this directory does it": (
        "test_rdma_failures.py::", "test_rdma_links.py::", "test_rdma_p2p.py::"),
    "it is about shared memory": (
        "test_view.py::test_view_shows", "test_view.py::test_view_holds", "test_view.py::test_ended_holds",
        "test_view.py::test_view_is_stale", "test_view.py::test_view_ends", "test_view.py::test_view_of_a_lost_session",
        "test_bench.py::test_operation[view]", "test_presented.py::test_view_outlives", "test_full_pool.py::test_everything_held",
        "test_failures.py::test_stopped_writer_under_pressure", "test_put_killed.py::test_stopped_writer_with_a_view",
        "test_put_killed.py::test_stopped_writer_closes_without_a_master"),
    "it goes by tcp, by name": (
        "test_bad_input.py::test_data_", "test_bad_input.py::test_open_chunk", "test_bad_input.py::test_bytes_that_changed_in_memory",
        "test_bad_input.py::test_reader_that_does_not_read", "test_bench.py::test_pieces_by_each_transport",
        "test_bench.py::test_a_view_over_the_network", "test_device.py::test_device_memory[",
        "test_failures.py::test_no_descriptor_left", "test_lifecycle.py::test_close_under_stuck_calls",
        "test_device.py::test_device_memory_in_copies", "test_lifecycle.py::test_embedded_node", "test_smoke.py::test_transports_round_trip"),
    "a node that is stopped is read from by rdma all the same": (
        "test_failures.py::test_node_stands_still_in_an_answer", "test_failures.py::test_many_silent_nodes_do_not_add_up",
        "test_lifecycle.py::test_deadline_of_a_get[tcp-attached]"),
    "it is about addresses that lead nowhere else, and devices have others": (
        "test_cli.py::test_name_of_a_node_that_is_taken", "test_cli.py::test_open_doors", "test_cli.py::test_interrupted_replay"),
    "tests/rdma_vm/test_doctor.py is about a machine with devices": ("test_doctor.py::", "test_json_keys.py::test_doctor"),
    "a forked child cannot use rdma": ("test_lifecycle.py::test_fork",),
    "it takes an hour, by shm and tcp": ("test_histories.py::",),
}
CHOSEN = inside.every_test() if inside.TIER == "long" else PART
LIMIT_S = {"quick": 300, "normal": 900, "long": 2400}[inside.TIER]  # of a run of pytest


def why_left_out(name):
    """None if it is not."""
    why = next((why for why, starts in LEFT_OUT.items() if name.startswith(starts)), None)
    twin = name.replace("shm", "tcp")
    if why is None and twin != name and twin in CHOSEN:
        why = f"{twin} is the same: both ways lead over the devices"
    return why


def runs():
    """What each run of pytest does: PART in one; of all, a file, so that a guest that hangs costs no more than that."""
    names = [name for name in CHOSEN if not why_left_out(name)]
    if CHOSEN is PART:
        return [names]
    files = {}
    for name in names:
        files.setdefault(name.partition("::")[0], []).append(name)
    return list(files.values())


RUNS = runs()


@pytest.fixture(scope="module")
def ran(vm):
    """A function: what became of the run that a test is in. Each run is made when it is first asked for."""
    in_run = {name: i for i, names in enumerate(RUNS) for name in names}
    done = {}

    def of(name):
        i = in_run[name]
        if i not in done:
            try:
                done[i] = inside.run(vm, RUNS[i], LIMIT_S)
            except (guest.TimeLimit, AssertionError) as e:  # once for all: it is not run again for each
                done[i] = {name: ("failure", str(e)) for name in RUNS[i]}
        return done[i]

    return of


@pytest.mark.parametrize("name", CHOSEN)
def test_in_the_guest(name, request):
    why = why_left_out(name)
    if why:
        pytest.skip(f"not in the guest: {why}")
    inside.judge(request.getfixturevalue("ran")(name), name)
