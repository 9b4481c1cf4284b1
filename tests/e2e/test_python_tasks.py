# SPDX-License-Identifier: Apache-2.0
"""Copy and move tasks of mooncake.store among three processes that lend memory, each under the name that it gave to setup(): what the
reference's own suite of copies and moves asks for."""
import json
import pathlib
import random
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from clients import Talker, free_ports
from conftest import wait_until
from mooncake.store import MooncakeDistributedStore, ReplicateConfig, TaskStatus
from stores import MIB

RANK = pathlib.Path(__file__).with_name("store_rank.py")
KEYS = 100  # of tasks at once


@pytest.fixture
def segments(bench, pool):
    """The names of three stores with memory, each in its own process."""
    names = [f"localhost:{port}" for port in free_ports(3)]
    ranks = [Talker(bench, f"rank{i}", [sys.executable, RANK, json.dumps({
        "local_hostname": name, "metadata_server": "P2PHANDSHAKE", "global_segment_size": 16 * MIB, "local_buffer_size": 32 * MIB,
        "protocol": "tcp", "master_server_addr": pool.addr})]) for i, name in enumerate(names)]
    assert [rank.hear(60) for rank in ranks] == [0, 0, 0]
    return names


@pytest.fixture
def store(pool, segments):
    it = MooncakeDistributedStore()
    assert it.setup("localhost", "P2PHANDSHAKE", 0, 32 * MIB, "tcp", "", pool.addr) == 0
    yield it
    it.close()


def put(store, key, *at, size=2048):
    config = ReplicateConfig()
    config.replica_num, config.preferred_segments = len(at), list(at)
    value = random.Random(key).randbytes(size)
    assert store.put(key, value, config) == 0
    assert places(store, key) == sorted(at)
    return value


def places(store, key):
    return sorted(d.get_memory_descriptor().buffer_descriptor.transport_endpoint for d in store.get_replica_desc(key))


def succeeds(store, begun):
    task, code = begun
    assert code == 0
    told = wait_until(lambda: next((t for t, _ in [store.query_task(task)] if t.status in (TaskStatus.SUCCESS, TaskStatus.FAILED)), None), 30, "a task's end")
    assert told.status == TaskStatus.SUCCESS, told.message


pytestmark = pytest.mark.pool(nodes=0)


def test_a_copy_is_at_all_its_targets(store, segments):
    value = put(store, "k", segments[0], size=2 * MIB)
    succeeds(store, store.create_copy_task("k", segments[1:]))
    assert places(store, "k") == sorted(segments) and store.get("k") == value


def test_a_move_leaves_nothing_behind(store, segments):
    value = put(store, "k", segments[0], size=2 * MIB)
    succeeds(store, store.create_move_task("k", segments[0], segments[1]))
    assert places(store, "k") == segments[1:2] and store.get("k") == value


def test_a_copy_to_where_one_is_changes_nothing(store, segments):
    value = put(store, "k", *segments[:2])
    succeeds(store, store.create_copy_task("k", segments[1:2]))
    assert places(store, "k") == sorted(segments[:2]) and store.get("k") == value


def test_tasks_that_cannot_be(store, segments):
    assert store.create_copy_task("absent", segments[1:])[1] == store.create_move_task("absent", *segments[:2])[1] == -704
    put(store, "k", segments[0])
    assert store.create_copy_task("k", ["unknown_1", "unknown_2"])[1] == -600
    assert store.create_move_task("k", "unknown_1", segments[1])[1] == store.create_move_task("k", segments[0], "unknown_1")[1] == -600
    assert store.create_move_task("k", segments[0], segments[0])[1] == -600
    assert places(store, "k") == segments[:1]


@pytest.mark.parametrize("is_move", [False, True], ids=["copies", "moves"])
def test_many_tasks_at_once(store, segments, is_move):
    at = {f"k{i}": random.sample(segments, 2) for i in range(KEYS)}
    values = {key: put(store, key, source) for key, (source, _) in at.items()}
    with ThreadPoolExecutor(8) as threads:
        begun = list(threads.map(lambda k: store.create_move_task(k, *at[k]) if is_move else store.create_copy_task(k, [s for s in segments if s != at[k][0]]), at))
        list(threads.map(lambda task: succeeds(store, task), begun))
    for key, (_, target) in at.items():
        assert places(store, key) == ([target] if is_move else sorted(segments)) and store.get(key) == values[key], key
