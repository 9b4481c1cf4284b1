# SPDX-License-Identifier: Apache-2.0
"""mooncake.store over a pool: what connectors call, with the reference's return codes (stage `python` of tests/run)."""
import contextlib
import functools
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import kvpool
from clients import free_ports
from conftest import ask_http, wait_until
from mooncake import _setup
from mooncake import store as store_module
from mooncake._admin import Admin
from mooncake.engine import TransferEngine
from mooncake.store import (BufferHandle, MooncakeDistributedStore, ObjectDataType, ReplicaStatus, ReplicateConfig, SoftPinAction,
                            TaskStatus, TaskType)
from stores import MIB, make

FOLDER = os.path.dirname(sys.executable)


def test_before_setup_and_after_close(pool):
    handle = MooncakeDistributedStore()
    for state in ("new", "closed"):
        assert handle.get("k") == b""
        assert handle.put("k", b"x") == -600
        assert handle.is_exist("k") == -600
        assert handle.batch_is_exist(["k", "l"]) == [-600, -600]
        assert handle.batch_get_into(["k"], [1], [1]) == [-600]
        assert handle.batch_put_from(["k"], [1], [1]) == [-600]
        assert handle.get_size("k") == -600 and handle.remove("k") == -600 and handle.remove_all() == -600
        assert handle.register_buffer(4096, 4096) == -600
        assert handle.put_parts("k", b"x") == handle.put_batch(["k"], [b"x"]) == handle.upsert_batch(["k"], [b"x"]) == -600
        assert handle.batch_get_buffer(["k"]) == [None] and handle.get_buffer("k") is None
        assert handle.get_replica_desc("k") == [] and handle.batch_replica_clear(["k"]) == []
        assert handle.create_copy_task("k", ["x"]) == ((0, 0), -600)
        assert handle.allocate_and_mount_segment(MIB)["ret"] == -1
        assert handle.health_check() == 1
        if state == "new":
            assert handle.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", pool.addr) == 0
            assert handle.health_check() == 0
        assert handle.close() == 0


def test_setup_again_after_close(pool):
    handle = MooncakeDistributedStore()
    for value in (b"one", b"two"):
        assert handle.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 * MIB, "tcp", "", pool.addr) == 0
        assert handle.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 * MIB, "tcp", "", pool.addr) == -600
        assert handle.upsert("k", value) == 0 and handle.get("k") == value
        assert handle.batch_put_session_start(["left open"], [1]) == [0]
        assert handle.close() == 0 and handle.get("k") == b"" and handle.health_check() == 1


@pytest.mark.pool(nodes=0)
def test_setup_beside_an_engine(pool):
    """SGLang names the port of its TransferEngine, which listens there."""
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    at = f"127.0.0.1:{engine.get_rpc_port()}"
    handle = MooncakeDistributedStore()
    assert handle.setup(at, "P2PHANDSHAKE", 16 * MIB, 16 * MIB, "tcp", "", pool.addr) < 0  # it is taken
    assert handle.setup(at, "P2PHANDSHAKE", 16 * MIB, 16 * MIB, "tcp", "", pool.addr, engine.get_engine()) == 0
    assert handle.get_hostname() != at and handle.put("k", b"x") == 0 and handle.get("k") == b"x"
    assert handle.close() == 0


def test_setup_by_several_threads(pool):
    """One of them has it, and close() does not wait for one that hangs."""
    handle, codes = MooncakeDistributedStore(), []

    def setup(at):
        codes.append(handle.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 * MIB, "tcp", "", at))

    threads = [threading.Thread(target=setup, args=(pool.addr,)) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(codes) == [-600] * 7 + [0] and handle.put("k", b"x") == 0
    assert handle.close() == 0
    codes.clear()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        thread = threading.Thread(target=setup, args=(f"127.0.0.1:{silent.getsockname()[1]}",))
        thread.start()
        with silent.accept()[0]:
            assert handle.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 * MIB, "tcp", "", pool.addr) == -600  # it is under way
            assert handle.close() == 0 and thread.is_alive()
            assert handle.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 * MIB, "tcp", "", pool.addr) == 0
            thread.join(20)
    assert codes[0] < 0 and handle.get("k") == b"x"
    assert handle.close() == 0


@pytest.mark.pool(nodes=0)
def test_setup_in_both_forms(pool):
    by_dict = MooncakeDistributedStore()
    assert by_dict.setup({"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "global_segment_size": "16 MB",
                          "local_buffer_size": "16MB", "protocol": "tcp", "rdma_devices": "", "master_server_addr": pool.addr}) == 0
    host, _, port = by_dict.get_hostname().rpartition(":")
    assert host == "127.0.0.1" and 12300 <= int(port) < 14300
    two = make(pool.addr, 16 * MIB)
    assert two.get_hostname() != by_dict.get_hostname()
    assert by_dict.put("k", b"value") == 0 and two.get("k") == b"value"
    assert pool.kvpool("stat", "--json").json["pool"]["size_bytes"] == 32 * MIB
    bad = MooncakeDistributedStore()
    assert bad.setup({"local_hostname": "127.0.0.1", "global_segment_size": "50%", "master_server_addr": pool.addr}) == -600
    assert bad.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", "127.0.0.1:1") < 0
    with pytest.raises(TypeError):
        bad.setup("127.0.0.1")
    assert two.close() == 0 and by_dict.close() == 0


@pytest.mark.pool(nodes=0)
def test_names_without_use_are_told(pool, monkeypatch, caplog):
    """Once in a process, and only where they ask for something; of setup()'s arguments as of its dict's."""
    monkeypatch.setattr(_setup, "_told_names", set())
    words = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "master_server_addr": pool.addr, "global_segment_size": "0"}
    asked = {"metadata_server": "http://127.0.0.1:1/metadata", "enable_client_http_server": "True", "client_http_port": "9301", "ipc_socket_path": "/run/x"}

    def told(*args, **kw):
        caplog.clear()
        handle = MooncakeDistributedStore()
        assert handle.setup(*args, **kw) == 0 and handle.close() == 0
        return [r.getMessage() for r in caplog.records]

    assert told({**words, "enable_ssd_offload": "False", "ssd_offload_path": "", "enable_client_http_server": "0", "client_http_port": "9300"}) == []
    lines = told({**words, **asked})
    assert sorted(re.match(r"setup: (\w+)=(\S+): \w", line).groups() for line in lines) == sorted(asked.items())
    assert told({**words, **asked}) == []
    monkeypatch.setattr(_setup, "_told_names", set())
    lines = told("127.0.0.1", asked["metadata_server"], 0, 0, "tcp", "", pool.addr, None, False, "", "default", True, 9301)
    assert len(lines) == 3 and all(line.startswith("setup: ") for line in lines)


@pytest.mark.pool(nodes=0)
def test_protocols_and_names_that_are_none(pool, monkeypatch, caplog):
    """A protocol is refused with the reference's code, and unknown names of a dict are told, and no more, as it takes them."""
    monkeypatch.delenv("KVPOOL_TRANSPORTS", raising=False)
    words = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "master_server_addr": pool.addr, "global_segment_size": "0"}
    handle = MooncakeDistributedStore()
    for protocol in ("bogus", "nvlink", "tcp,rdma", " "):
        caplog.clear()
        assert handle.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, protocol, "", pool.addr) == -1
        assert f'the protocol is "tcp" or "rdma", not {protocol!r}' in caplog.text
        assert handle.setup({**words, "protocol": protocol}) == -1 and handle.health_check() == 1
    caplog.clear()
    assert handle.setup({**words, "proto": "rdma", "segment_size": "1GB", "ssd_offload_path": "", "master_server_address": "127.0.0.1:1"}) == 0
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [
        "setup: master_server_addr is given as well, and differs: master_server_address is ignored",
        "setup: unknown settings are ignored: proto, segment_size"]
    assert handle.close() == 0
    caplog.clear()
    assert handle.setup({**words, "protocol": "TCP"}) == 0 and handle.close() == 0 and not caplog.records
    monkeypatch.setenv("KVPOOL_TRANSPORTS", "shm,tcp")  # the operator's word goes before a program's that cannot be told
    assert handle.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "bogus", "", pool.addr) == 0 and handle.close() == 0


def test_rdma_devices_are_the_process_s(pool, monkeypatch, caplog):
    """Another store cannot have others, and is told. What came to nothing leaves none behind."""
    def setup(protocol, devices):
        handle = MooncakeDistributedStore()
        try:
            return handle.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, protocol, devices, pool.addr)
        finally:
            handle.close()

    monkeypatch.delenv("KVPOOL_TRANSPORTS", raising=False)
    monkeypatch.setenv("KVPOOL_RDMA_DEVICE", "")  # so that it is undone
    monkeypatch.delenv("KVPOOL_RDMA_DEVICE")
    devices = _setup.Devices()
    monkeypatch.setattr(_setup, "devices", devices)
    assert setup("rdma", "none_0") < 0 and "KVPOOL_RDMA_DEVICE" not in os.environ  # there is no such device
    assert setup("tcp", "none_0") == 0 and "KVPOOL_RDMA_DEVICE" not in os.environ  # nobody asked for it
    assert devices.take("none_0,none_1")  # as a store that found its devices
    caplog.clear()
    assert setup("rdma", "none_2") == -600 and "here none_0,none_1 by an earlier call, and not none_2" in caplog.text
    caplog.clear()
    assert setup("rdma", "none_1, none_0") < 0 and "no RDMA device" in caplog.text  # it was let as far as that
    assert os.environ["KVPOOL_RDMA_DEVICE"] == "none_0,none_1"
    assert setup("tcp", "none_2") == 0
    with pytest.raises(TypeError):
        setup("rdma", 5)
    devices.give()
    assert "KVPOOL_RDMA_DEVICE" not in os.environ
    monkeypatch.setenv("KVPOOL_RDMA_DEVICE", "none_3")  # the operator's word
    assert devices.take("none_0") and devices.take("none_1")
    devices.give()
    devices.give()
    assert os.environ["KVPOOL_RDMA_DEVICE"] == "none_3"
    monkeypatch.delenv("KVPOOL_RDMA_DEVICE")
    setup("rdma", "")  # the library keeps what it was last told


def test_rdma_where_there_is_none(pool, monkeypatch, caplog):
    """SGLang says it where its user said nothing: TCP then, with one warning, unless its variable forbids that, or a device is named."""
    def setup(devices="", memory=16 * MIB):
        handle = MooncakeDistributedStore()
        code = handle.setup("127.0.0.1", "P2PHANDSHAKE", memory, 0, "rdma", devices, pool.addr)
        is_used = code == 0 and handle.put("k", b"x") == 0 and handle.get("k") == b"x" and \
            handle.allocate_and_mount_segment(16 * MIB)["ret"] == 0
        handle.close()
        return code, is_used

    monkeypatch.setattr(_setup, "_warned", set())
    monkeypatch.setenv("KVPOOL_TRANSPORTS", "shm,rdma")
    assert setup() == (-600, False) and "no RDMA device" in caplog.text
    monkeypatch.delenv("KVPOOL_TRANSPORTS")
    assert setup("none_0") == (-600, False)
    caplog.clear()
    assert setup() == (0, True) and setup(memory=0) == (0, True)
    assert [(r.levelname, "KVPOOL_TRANSPORTS=shm,rdma" in r.getMessage()) for r in caplog.records] == [("WARNING", True)]


def test_words_of_lmcache(pool, caplog):
    """Its dict has other names for two things; the reference's own name goes before."""
    words = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "global_segment_size": "0", "protocol": "tcp",
             "master_server_address": pool.addr, "device_name": ""}
    for more in ({}, {"master_server_addr": pool.addr}, {"master_server_addr": pool.addr, "master_server_address": "127.0.0.1:1"}):
        assert not caplog.records
        handle = MooncakeDistributedStore()
        assert handle.setup({**words, **more}) == 0 and handle.put("k", b"x") == 0 and handle.close() == 0
    assert "differs: master_server_address is ignored" in caplog.text


def test_get_batch_is_a_batch(pool, store):
    """By the calls that the master gets of a client that has never asked for these keys."""
    values = {f"k{i}": os.urandom(1 + 997 * i) for i in range(200)}
    assert store.put_batch(list(values), list(values.values())) == 0
    reader = make(pool.addr)
    before = json.loads(reader._raw.stat(0))["client"]["master_calls"]
    keys = [*values, "absent", "k7", "", b"k8"]
    assert reader.get_batch(keys) == [*values.values(), b"", values["k7"], b"", values["k8"]]
    assert json.loads(reader._raw.stat(0))["client"]["master_calls"] - before < 10
    assert reader.get_batch([]) == []
    for bad in ("k7", [5], [None]):
        with pytest.raises(TypeError):
            reader.get_batch(bad)
    assert reader.close() == 0 and reader.get_batch(["k7", "k8"]) == [b"", b""]


def test_tenants_are_apart(pool):
    one, other, plain = make(pool.addr, tenant_id="team-a"), make(pool.addr, tenant_id="team-b"), make(pool.addr)
    assert one.put("k", b"a") == 0 and other.put("k", b"b") == 0
    assert (one.get("k"), other.get("k"), plain.get("k")) == (b"a", b"b", b"")
    assert one.remove_all() == 1 and other.get("k") == b"b"
    for handle in (one, other, plain):
        handle.close()


def test_put_get_remove(store):
    assert store.put("k", b"abc") == 0
    assert store.put("k", b"other") == 0 and store.get("k") == b"abc"
    assert store.get("absent") == b"" and store.get_batch(["k", "absent"]) == [b"abc", b""]
    assert store.put("e", b"") == -600 and store.put("", b"x") < 0
    assert store.put_batch(["a", "b"], [b"1", b"22"]) == 0 and store.put_batch(["a", "b"], [b"1"]) == -600
    assert store.put_parts("parts", b"ab", bytearray(b"cd"), memoryview(b"e")) == 0 and store.get("parts") == b"abcde"
    assert store.put_parts("none") == 0 and store.put_parts("none", b"", b"") == 0 and store.is_exist("none") == 0
    assert store.upsert_parts("parts", b"x", b"yz") == 0 and store.get("parts") == b"xyz"
    assert store.upsert_batch(["a", "b"], [b"one", b"22"]) == 0 and store.get_batch(["a", "b"]) == [b"one", b"22"]
    assert store.upsert("k", b"new") == 0 and store.get("k") == b"new"
    assert store.get_size("b") == 2 and store.get_size("absent") == -704
    assert store.is_exist("k") == 1 and store.is_exist("absent") == 0
    assert store.remove("k") == -706  # it was asked for a moment ago
    assert store.remove("k", force=True) == 0 and store.remove("k") == -704
    assert store.batch_remove(["a", "absent"], force=True) == [0, -704]
    assert store.remove_by_regex("^pa", force=True) == 1 and store.remove_by_regex("(") == -600
    assert store.remove_all(force=True) == 1 and store.remove_all() == 0


def test_what_cannot_be(store, memory):
    """Keys, lists and configs that are wrong, with the reference's answers (test_python_reference.py asks it for them)."""
    at = memory[0].ctypes.data
    for key in ("", "L" * 2000):
        assert store.put(key, b"x") == -600 and store.put_from(key, at, 10) == -600
        assert store.is_exist(key) == 0 and store.get(key) == b"" and store.get_into(key, at, 10) == -704
        assert store.get_size(key) == -704 and store.remove(key) == -704
    assert store.batch_put_from(["k", ""], [at, at], [1, 1]) == [0, -600] and store.batch_is_exist(["k", ""]) == [1, 0]
    assert store.batch_get_into(["k", ""], [at, at], [1, 1]) == [1, -704]
    assert store.batch_put_from_multi_buffers(["m", "n"], [[at, at], [at]], [[1], [1]]) == [-600, -600]
    assert store.batch_get_into_multi_buffers(["k"], [[at, at]], [[1]]) == [-600]
    assert store.put_from_with_metadata("m", at, at + 100, 10, 0) == 0 and store.get_size("m") == 10
    for call in (store.get_batch, store.batch_get_buffer, store.batch_get_tensor, store.batch_remove, store.batch_is_exist,
                 store.batch_get_replica_desc, store.batch_get_session_start, store.batch_get_session_end, store.batch_put_session_end,
                 store.batch_put_session_revoke, store.unmount_segment):
        with pytest.raises(TypeError):
            call("text")
    for call in (lambda: store.put("k", b"x", 7), lambda: store.put_parts("k", b"x", config=7), lambda: store.pub_tensor("k", 7, 7),
                 lambda: store.batch_put_session_start(["k"], [1], 7), lambda: store.create_copy_task("k", "text"),
                 lambda: store.get_into_ranges([at], ["k"], [[[0]]], [[[0]]], [[[1]]])):
        with pytest.raises(TypeError):
            call()
    config = ReplicateConfig()
    for name, value in (("replica_num", "two"), ("with_hard_pin", []), ("group_ids", 7), ("preferred_segment", 7), ("soft_pin_ttl_ms", -1),
                        ("soft_pin_ttl_ms", 2**64), ("soft_pin_ttl_ms", "5"), ("soft_pin_ttl_ms", 1.5), ("soft_pin_action", 1),
                        ("nof_replica_num", None), ("dfs_replica_num", "1"), ("preferred_nof_segments", [1]), ("data_type", 1)):
        with pytest.raises(TypeError):
            setattr(config, name, value)
    config.replica_num = 0
    assert store.put("k", b"x", config) == store.put_parts("k", b"x", config=config) == -600
    assert store.batch_put_session_start(["s"], [1], config) == [-600]
    config.replica_num, config.soft_pin_ttl_ms = 1, True
    assert type(config.soft_pin_ttl_ms) is int and config.soft_pin_ttl_ms == 1
    assert store.put("k", b"x", config) == store.put_parts("k", b"x", config=config) == -600  # of what is not pinned
    config.soft_pin_action = SoftPinAction.ENABLE
    day_ms = 24 * 3600 * 1000
    for ttl_ms, code in ((0, 0), (1, 0), (day_ms, 0), (day_ms + 1, -600), (2**64 - 1, -600), (None, 0)):
        config.soft_pin_ttl_ms = ttl_ms
        assert store.upsert("k", b"x", config) == store.put_batch(["k2"], [b"x"], config) == code, ttl_ms
    config.group_ids = ["one"]
    assert store.put_batch(["a", "b"], [b"1", b"2"], config) == -600 and store.put_batch(["a"], [b"1"], config) == 0


def test_buffer_handles(store):
    assert store.put("k", b"abcd") == 0
    handle = store.get_buffer("k")
    assert isinstance(handle, BufferHandle) and handle.size() == len(handle) == 4 and handle.ptr() != 0
    assert bytes(memoryview(handle)) == b"abcd" and np.frombuffer(handle, np.uint8).tolist() == list(b"abcd")
    memoryview(handle)[0] = ord("z")  # its own, and nobody else's
    assert bytes(handle) == b"zbcd" and store.get("k") == b"abcd"
    assert store.get_buffer("absent") is None
    one, none, same = store.batch_get_buffer(["k", "absent", "k"])
    assert (bytes(one), none, bytes(same)) == (b"abcd", None, b"abcd") and store.batch_get_buffer([]) == []
    seen = memoryview(one)
    del one, same, store
    assert bytes(seen) == b"abcd"


@pytest.mark.pool(nodes=0)
def test_replica_descriptors(store, pool):
    for host in ("one", "two"):
        pool.add_node(host, "64MiB", "--host-id", host)
    config = ReplicateConfig()
    config.replica_num = 2
    assert store.put("k", b"12345", config) == 0
    one, two = store.get_replica_desc("k")
    assert one.is_memory_replica() and not one.is_disk_replica() and not one.is_local_disk_replica()
    assert one.status == ReplicaStatus.COMPLETE and one.get_memory_descriptor().buffer_descriptor.size == 5
    assert {d.get_memory_descriptor().buffer_descriptor.transport_endpoint for d in (one, two)} == {n.listen for n in pool.nodes}
    assert store.get_replica_desc("absent") == []
    found = store.batch_get_replica_desc(["k", "absent"])
    assert list(found) == ["k"] and len(found["k"]) == 2


@pytest.mark.pool(nodes=0)
@pytest.mark.parametrize("is_one_host", [False, True])
def test_clearing_copies(store, pool, is_one_host):
    """Of copies, on two hosts or on two nodes of one, the named one goes and the other is read."""
    for host in ("one", "two"):
        pool.add_node(host, "64MiB", *([] if is_one_host else ["--host-id", host]))
    both = ReplicateConfig()
    both.replica_num = 2
    assert store.put("one", b"1") == 0 and store.put("both", b"2", both) == 0 and store.put("more", b"3") == 0
    [at] = store.get_replica_desc("one")
    at = at.get_memory_descriptor().buffer_descriptor.transport_endpoint
    assert store.batch_replica_clear(["one", "both"], "nowhere:1") == []
    assert len(store.get_replica_desc("both")) == 2
    assert store.batch_replica_clear(["one", "both", "absent"], at) == ["one", "both"]
    assert store.get("one") == b"" and store.get("both") == b"2"
    [left] = store.get_replica_desc("both")
    left = left.get_memory_descriptor().buffer_descriptor.transport_endpoint
    assert left != at and store.batch_replica_clear(["both"], at) == [] and store.get("both") == b"2"
    assert store.is_exist("both") == 1 and store.batch_replica_clear(["both"], left) == []  # somebody has asked for it
    assert store.upsert("both", b"2", both) == 0 and len(store.get_replica_desc("both")) == 2
    assert store.batch_remove(["both"], True) == [0] and store.put("both", b"3", both) == 0
    assert store.batch_replica_clear(["both", "more"]) == ["both", "more"] and store.get("both") == b""


def nodes_of(store, key):
    return {d.get_memory_descriptor().buffer_descriptor.transport_endpoint for d in store.get_replica_desc(key)}


def finished(store, begun, what=TaskStatus.SUCCESS):
    """What query_task says of a task that was begun, at its end."""
    task, code = begun
    assert code == 0 and task != (0, 0), begun
    told = wait_until(lambda: next((t for t, _ in [store.query_task(task)] if t.status > TaskStatus.PROCESSING), None), 10, "a task's end")
    assert told.status == what and told.id == task and abs(told.created_at_ms_epoch / 1000 - time.time()) < 60, told.message
    return told


@pytest.mark.pool(nodes=3)
def test_objects_are_copied_and_moved(store, pool, caplog):
    """Fails if a copy is not where it was asked for, or not whole; if a move leaves the first one behind; if a wrong task is begun."""
    everywhere = {n.listen for n in pool.nodes}
    assert store.put("k", b"1" * 100_000) == 0
    (at,) = nodes_of(store, "k")
    other, third = everywhere - {at}
    assert finished(store, store.create_copy_task("k", [other])).type == TaskType.REPLICA_COPY
    assert nodes_of(store, "k") == {at, other}
    assert finished(store, store.create_move_task("k", at, third)).type == TaskType.REPLICA_MOVE
    assert wait_until(lambda: nodes_of(store, "k") == {other, third}, 5, "the first copy leaves")
    finished(store, store.create_copy_task("k", [at, other]))  # one of them is there
    assert nodes_of(store, "k") == everywhere
    for node in pool.nodes[:2]:
        node.kill9()
    assert store.get("k") == b"1" * 100_000

    assert store.create_copy_task("absent", [at]) == ((0, 0), -704)
    assert store.create_copy_task("k", []) == store.create_copy_task("k", ["nowhere:1"]) == ((0, 0), -600)
    assert store.create_move_task("k", "nowhere:1", at) == store.create_move_task("k", at, at) == ((0, 0), -600)
    assert f"no node of the pool has one of these addresses: nowhere:1, {at}" in caplog.text
    assert store.query_task((1, 2)) == store.query_task((1, 0)) == store.query_task((-1, 0)) == (None, -1400)


@pytest.mark.pool(nodes=2, memory="16MiB")
def test_a_copy_without_room_fails(store):
    """Fails if a task without free memory does not say so."""
    pinned = ReplicateConfig()
    pinned.with_hard_pin = True
    there = [key for key in (f"full/{i}" for i in range(100)) if store.put(key, b"2" * 400_000, pinned) == 0]
    assert 60 < len(there) < 100
    (other,) = {d for key in there for d in nodes_of(store, key)} - nodes_of(store, there[-1])
    told = finished(store, store.create_copy_task(there[-1], [other]), TaskStatus.FAILED)
    assert told.message.startswith("NO_SPACE"), told.message


@pytest.mark.pool(nodes=0)
def test_memory_that_is_given_later(store, pool):
    assert store.put("k", b"1") == -200
    one, two = store.allocate_and_mount_segment(16 * MIB), store.allocate_and_mount_segment(32 * MIB)
    assert (one["ret"], one["allocated_size"], two["ret"]) == (0, 16 * MIB, 0) and one["segment_ids"] != two["segment_ids"]
    assert pool.kvpool("stat", "--json").json["pool"]["size_bytes"] == 48 * MIB
    assert store.put("k", b"1") == 0
    assert store.unmount_segment(["nowhere:1"]) == -1
    assert store.unmount_and_free_segment(two["segment_ids"]) == 0 == store.unmount_segment([])
    assert store.unmount_segment(two["segment_ids"]) == -1
    wait_until(lambda: pool.kvpool("stat", "--json").json["pool"]["size_bytes"] == 16 * MIB, 10, "one segment to be left")
    for size in (0, -1, True, 1 << 60):
        assert store.allocate_and_mount_segment(size)["ret"] < 0
    with pytest.raises(TypeError):
        store.allocate_and_mount_segment("16MB")
    assert store.setup_dummy(1, 1, "127.0.0.1:1") == -1 and store.unmount_local_disk_segment() == 0
    assert store.alloc_from_mem_pool(4096) == 0 and store.get_offload_rpc_read_count() == 0
    assert store.close() == 0
    wait_until(lambda: pool.kvpool("stat", "--json").json["pool"]["size_bytes"] == 0, 10, "no segment to be left")


def test_mount_segment(store, bench, caplog):
    """As many bytes as that part of a file has, and the log says that they are no part of the file."""
    path = os.path.join(bench.home, "segment")
    with open(path, "wb") as file:
        file.truncate(32 * MIB)
    for bad in ((path, 33 * MIB), (path, 16 * MIB, 17 * MIB), (path, MIB, 100), (path, -1), ("/no/such/file", MIB), ("", 0), ("\0", 0)):
        assert store.mount_segment(*bad) == {"ret": -1, "segment_ids": []}, bad
    with pytest.raises(TypeError):
        store.mount_segment(0, 0)
    assert store.mount_segment(path, 0) == {"ret": 0, "segment_ids": []}
    caplog.clear()
    given = store.mount_segment(path, 16 * MIB, 16 * MIB, "tcp", "cpu:0")
    assert given["ret"] == 0 and len(given["segment_ids"]) == 1 and f"{16 * MIB} bytes of its own are given instead" in caplog.text
    assert store.unmount_segment(given["segment_ids"]) == 0 and store.unmount_segment(given["segment_ids"]) == -1


@pytest.fixture
def memory(store):
    """A megabyte of random bytes, and one of zeros, registered."""
    source = np.random.default_rng(3).integers(0, 256, MIB, np.uint8)
    target = np.zeros(MIB, np.uint8)
    for part in (source, target):
        assert store.register_buffer(part.ctypes.data, part.nbytes) == 0
    return source, target


def test_what_connectors_call(store, memory):
    """Layers: 61 pieces are one object."""
    source, target = memory
    piece, layers = 256, 61
    size = piece * layers
    keys = [f"block/{i}" for i in range(16)]
    pieces = [[i * size + layer * piece for layer in range(layers)] for i in range(16)]
    sizes = [[piece] * layers] * 16
    config = ReplicateConfig()
    config.preferred_segment, config.group_ids = "somewhere", ["group"] * 16
    at = source.ctypes.data
    assert store.batch_put_from_multi_buffers(keys, [[at + p for p in row] for row in pieces], sizes, config) == [0] * 16
    assert store.batch_is_exist([*keys, "absent"]) == [1] * 16 + [0]
    at = target.ctypes.data
    got = store.batch_get_into_multi_buffers([*keys, "absent"], [[at + p for p in row] for row in pieces] + [[at]],
                                             [*sizes, [1]])
    assert got == [size] * 16 + [-704] and all(type(n) is int for n in got)
    assert (source[:16 * size] == target[:16 * size]).all()


def test_pointers(store, memory):
    source, target = memory
    src, dst = source.ctypes.data, target.ctypes.data
    assert store.put_from("one", src, 1000) == 0
    assert store.batch_put_from(["two", "three"], [src, src + 7], [10, 20]) == [0, 0]
    assert store.batch_get_into(["one", "three"], [dst, dst + 2000], [1000, 999]) == [1000, 20]
    assert (target[:1000] == source[:1000]).all() and (target[2000:2020] == source[7:27]).all()
    assert store.get_into("one", dst, 999) == -600  # too small
    assert store.get_into("one", 64, 1000) == -600 and store.put_from("bad", 64, 10) == -600  # not registered
    assert store.put_from("bad", src + MIB - 5, 10) == -600  # past its end
    assert store.put_from("bad", src, 1 << 62) == -600
    assert store.put_from_with_metadata("meta", src, src + 100, 50, 8) == 0
    assert store.get("meta") == source[100:108].tobytes() + source[:50].tobytes()
    assert store.upsert_from("one", src + 1, 5) == 0 and store.get("one") == source[1:6].tobytes()
    assert store.batch_put_from(["a", "b"], [src], [1]) == [-600, -600]
    assert store.batch_get_into(["a"], [src, src], [1, 1]) == [-600]
    config = ReplicateConfig()
    config.group_ids = ["only one"]
    assert store.batch_put_from(["a", "b"], [src, src], [1, 1], config) == [-600, -600]
    assert store.unregister_buffer(src) == 0 and store.unregister_buffer(src) == -600
    assert store.put_from("bad", src, 10) == -600
    assert store.register_buffer(0, 0) == -600


def test_wrong_types(store):
    for call in (lambda: store.put(5, b"x"), lambda: store.put("k", "text"), lambda: store.batch_is_exist("abc"),
                 lambda: store.batch_is_exist([1]), lambda: store.batch_get_into(["a"], ["b"], [1]),
                 lambda: store.batch_get_into(["a"], [1.5], [1]), lambda: store.batch_get_into(["a"], [True], [1]),
                 lambda: store.batch_put_from(["a"], [None], [1]), lambda: store.register_buffer("a", 1)):
        with pytest.raises(TypeError):
            call()
    for call in (lambda: store.batch_get_into(["a"], [-1], [1]), lambda: store.batch_get_into(["a"], [1 << 64], [1])):
        with pytest.raises((TypeError, OverflowError)):
            call()
    with pytest.raises(UnicodeEncodeError):
        store.is_exist("\ud800")
    with pytest.raises(TypeError):
        store.put_parts("k", b"a", "b")
    with pytest.raises(BufferError):
        store.put_parts("k", np.arange(10)[::2])
    with pytest.raises(TypeError):
        store.query_task(5)


def test_keys_and_values_that_are_none(store):
    """Every form of a call says so, and none of them dies."""
    long = "k" * (10 << 20)
    assert store.put(long, b"x") == -600 and store.get(long) == b"" and store.is_exist(long) == 0
    assert store.batch_is_exist([long, "", "k"]) == [0, 0, 0] and store.get_size(long) == -704
    assert store.put_batch(["c", "b"], [b"", b"x" * 10]) == -600 and store.get("b") == b""
    assert store.remove(long) == -704 and store.get_buffer(long) is None
    assert store.batch_get_replica_desc([long]) == {}
    assert store.put(b"\xff\x00", b"bytes") == 0 and store.get(b"\xff\x00") == b"bytes"
    assert store.put("a\0b", b"1") == 0 and store.get("a\0b") == b"1" and store.is_exist("a") == 0


def test_what_is_no_pattern_removes_nothing(store):
    """Fails if None, for want of a pattern, removes all there is, or a text is taken for a list of keys."""
    assert store.put("a", b"x") == 0
    for none in (None, b"a", 5):
        with pytest.raises(TypeError):
            store.remove_by_regex(none, force=True)
    with pytest.raises(TypeError):
        store.batch_remove("a", force=True)
    assert store.get("a") == b"x"


def test_addresses_without_memory(store):
    """Fails if an address at which nothing is mapped is registered: a put from there ended the process."""
    assert store.register_buffer(0x10000, 4096) == -600
    assert store.put_from("unmapped", 0x10000, 4096) < 0 and store.is_exist("unmapped") == 0


def test_numbers_that_do_not_fit(store, memory, pool):
    """An address or length beyond 64 bits is not cut to one that fits."""
    at = memory[1].ctypes.data
    assert store.unregister_buffer(at) == 0
    for call in (lambda: store.register_buffer(at + 2**64, 4096), lambda: store.register_buffer(at, 2**64 + 4096),
                 lambda: store.unregister_buffer(at + 2**64), lambda: store.register_buffer(-at, 4096)):
        with pytest.raises(OverflowError):
            call()
    assert store.unregister_buffer(at) == -600  # nothing was registered
    other = MooncakeDistributedStore()
    for sizes in ((2**64, 0), (2**64 + 32 * MIB, 0), (0, 2**64)):
        with pytest.raises(OverflowError):
            other.setup("127.0.0.1", "P2PHANDSHAKE", *sizes, "tcp", "", pool.addr)
    assert other.setup({"local_hostname": "127.0.0.1", "global_segment_size": f"{2**24} TB", "master_server_addr": pool.addr}) == -600
    assert other.health_check() == 1


def test_names():
    config = ReplicateConfig()
    assert hasattr(ReplicateConfig, "group_ids") and config.group_ids is None and config.replica_num == 1
    config.data_type = ObjectDataType.TENSOR
    assert int(ObjectDataType.GENERAL) == 9 and SoftPinAction.ENABLE.value == 1 and "replica_num=1" in repr(config)
    with pytest.raises(AttributeError):
        config.no_such = 1


# ---- the programs under the reference's flags
@pytest.fixture
def programs(bench):
    """start(name, *flags) -> Popen, with what it prints in files; all end with the test."""
    started = []

    def start(name, *flags, env=None):
        with open(os.path.join(bench.home, f"{name}-{len(started)}.log"), "w") as log:
            p = subprocess.Popen([f"{FOLDER}/{name}", *flags], env=bench.env(**(env or {})), stdout=log, stderr=subprocess.STDOUT,
                                 cwd=bench.home)
        p.log = log.name
        started.append(p)
        return p

    yield start
    for p in reversed(started):
        if p.poll() is None:
            p.terminate()
            assert p.wait(20) in (0, 143)


def fetch(port, path, method="GET", body=None, **headers):
    """As ask_http; (None, "") where nothing answers."""
    try:
        return ask_http(f"127.0.0.1:{port}", path, body, method, headers, timeout=20)
    except OSError:
        return None, ""


def test_master_and_client_programs(programs):
    rpc, metrics, owner = free_ports(3)
    master = programs("mooncake_master", "--rpc_port", str(rpc), f"--metrics_port={metrics}", "-rpc_address=127.0.0.1",
                      "--eviction_ratio=0.1", "--default_kv_lease_ttl=2000")
    wait_until(lambda: fetch(metrics, "/health")[0] == 200, 20, "the master's health")
    programs("mooncake_client", "--master_server_address", f"127.0.0.1:{rpc}", "--host", "127.0.0.1", "--port", str(owner),
             "--http_port", "0", "--protocol", "tcp", "--metadata_server", "P2PHANDSHAKE", "--global_segment_size", "64MB",
             "--local_buffer_size", "64MB")
    wait_until(lambda: len(fetch(metrics, "/get_all_segments")[1].split()) == 1, 20, "the node")
    handle = make(f"127.0.0.1:{rpc}")
    assert fetch(metrics, "/get_all_keys") == (200, "")
    assert [handle.put(f"k{i}", b"abc") for i in range(2100)] == [0] * 2100
    assert sorted(fetch(metrics, "/get_all_keys")[1].split()) == sorted(f"k{i}" for i in range(2100))
    status, body = fetch(metrics, "/query_key?key=k7")
    assert status == 200 and json.loads(body)["data"][0]["size_"] == 3
    status, body = fetch(metrics, "/query_key?key=absent")
    assert status == 404 and json.loads(body)["error_code"] == -704
    found = json.loads(fetch(metrics, "/batch_query_keys?keys=k1,absent")[1])["data"]
    assert found["k1"]["ok"] and not found["absent"]["ok"]
    assert "kvpool_master" in fetch(metrics, "/metrics")[1]
    assert fetch(metrics, "/no/such/path")[0] == 404
    assert json.loads(fetch(metrics, "/api/v1/remove_all?force=true", "POST")[1])["removed_count"] == 2100
    assert fetch(metrics, "/get_all_keys") == (200, "")
    handle.close()
    master.send_signal(signal.SIGTERM)
    assert master.wait(20) == 0


@pytest.fixture
def admin(pool):
    """The admin paths, in this process."""
    server = Admin(("127.0.0.1", 0), pool.addr, "127.0.0.1:1")
    server.start()
    yield server
    server.shutdown()
    server.server_close()
    server.pool.close()


@pytest.mark.pool(nodes=1, memory="256MiB")
@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_keys_that_end_too_early(pool, admin, version):
    """An error in the middle of the answer: it does not look whole, and no second answer is in it."""
    n, more = 16384, "k" * 1000  # more than both sockets hold, so that it is still under way
    with kvpool.Pool(pool.addr) as handle:
        value = np.ones(1, np.uint8)
        handle.register(value)
        assert not any(handle.put_many([f"{i:06}{more}" for i in range(n)], [value] * n))
    for is_cut in (False, True):
        with socket.create_connection(admin.server_address, 10) as client:
            client.settimeout(20)
            client.sendall(f"GET /get_all_keys HTTP/{version}\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            got = [client.recv(100)]
            if is_cut:
                admin.pool.close()
            with pytest.raises(ConnectionResetError) if is_cut else contextlib.nullcontext():
                while got[-1]:
                    got.append(client.recv(1 << 20))
        head, _, text = b"".join(got).partition(b"\r\n\r\n")
        answers, keys, end = text.count(b"HTTP/1"), text.count(more.encode()), text[-7:]
        del text  # nobody wants to read it where an assertion fails
        assert head.startswith(b"HTTP/1.1 200 ") and (b"Transfer-Encoding: chunked" in head) == (version == "1.1")
        assert answers == 0 and (keys == n) != is_cut
        assert (end == b"\r\n0\r\n\r\n") == (version == "1.1" and not is_cut)


@pytest.mark.pool(nodes=1, memory="256MiB")
def test_who_reads_slowly_keeps_nobody_waiting(pool, admin):
    """More readers of a long answer than questions may be put at once, none of which reads it; and more connections than there are."""
    n, more = 8192, "k" * 1000
    with kvpool.Pool(pool.addr) as handle:
        value = np.ones(1, np.uint8)
        handle.register(value)
        assert not any(handle.put_many([f"{i:06}{more}" for i in range(n)], [value] * n))
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(admin.server_address, 10)) for _ in range(20)]
        for client in slow:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(b"GET /get_all_keys HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(9) == b"HTTP/1.1 "
        assert fetch(admin.server_address[1], "/health")[0] == 200
        idle = [stack.enter_context(socket.create_connection(admin.server_address, 10)) for _ in range(260)]
        idle[-1].settimeout(10)
        assert idle[-1].recv(1) == b"", "one above the number of those that are served is closed"
    wait_until(lambda: fetch(admin.server_address[1], "/health")[0] == 200, 20, "the rooms to be free again")


@pytest.mark.pool(nodes=0)
def test_admin_requests_that_are_wrong(admin):
    port = admin.server_address[1]
    for key in ("", "k" * 1025):
        status, body = fetch(port, f"/query_key?key={key}")
        assert status == 404 and json.loads(body)["error_code"] == -704
        assert json.loads(fetch(port, f"/batch_query_keys?keys={key}")[1])["data"] == {key: {
            "ok": False, "error": "OBJECT_NOT_FOUND", "values": None, "disk_values": None, "local_disk_values": None, "nof_values": None}}
    for length in ("-1", "1e3", "65537", "9" * 5000):
        with socket.create_connection(admin.server_address, 10) as client:
            client.sendall(f"POST /api/v1/remove_all HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode())
            assert client.recv(100).startswith(b"HTTP/1.1 400 ")
    for head in ("GET /health HTTP/1.1\r\nContent-Length: 60", "GET /health HTTP/1.1\r\nTransfer-Encoding: chunked",
                 "POST /api/v1/remove_all HTTP/1.1\r\nTransfer-Encoding: chunked"):
        with socket.create_connection(admin.server_address, 10) as client:
            client.sendall(f"{head}\r\nHost: x\r\n\r\nPOST /api/v1/remove_all?force=true HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            got = b""
            with contextlib.suppress(ConnectionResetError):
                while part := client.recv(4096):
                    got += part
        assert got.startswith(b"HTTP/1.1 400 ") and got.count(b"HTTP/1.1 ") == 1, "its body was taken for a request"
    assert fetch(port, "/metrics")[0] == 503


@pytest.mark.pool(nodes=1, memory="64MiB")
def test_what_is_refused_with_600_has_a_line(pool, caplog):
    """Fails if a call gives -600, and the log does not say why; or if the name that another node has is not named."""
    s = MooncakeDistributedStore()
    assert s.is_exist("k") == -600 and "is_exist is refused with -600: the store is not set up" in caplog.text
    assert s.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", pool.addr) == 0
    none = ReplicateConfig()
    none.replica_num, none.nof_replica_num = 0, 1
    for call, says in ((lambda: s.put("long", bytes(17 << 20)), "TOO_LARGE"), (lambda: s.put("nof", b"x", none), "NoF"),
                       (lambda: s.put_batch(["a", "b"], [b"x"]), "put_batch is refused"), (lambda: s.unregister_buffer(8), "NOT_REGISTERED")):
        caplog.clear()
        s._teller = type(s._teller)(logging.getLogger("mooncake.store"))  # which leaves out what comes too often
        s._raw.on_invalid(functools.partial(store_module._tell_invalid, s._teller))
        assert call() == -600 and says in caplog.text, says
    s.close()
    caplog.clear()
    name = f"127.0.0.1:{free_ports(1)[0]}"
    pool.add_node(name, "8MiB")
    assert s.setup(name, "P2PHANDSHAKE", 16 << 20, 16 << 20, "tcp", "", pool.addr) != 0
    assert f'node with the name "{name}"' in caplog.text
    config = ReplicateConfig()
    config.with_soft_pin = True
    assert config.soft_pin_action == SoftPinAction.ENABLE and config.with_soft_pin


@pytest.mark.pool(nodes=1)
def test_no_page_asks_the_admin_port(pool, admin):
    """Fails if a web page can empty the pool: by its own request, or under a name of its own that points here."""
    with kvpool.Pool(pool.addr) as handle:
        handle.put("k", b"v")
        for head in ("Host: 127.0.0.1\r\nSec-Fetch-Site: cross-site", "Host: 127.0.0.1\r\nOrigin: https://evil.example",
                     "Host: 127.0.0.1\r\nOrigin: null", "Host: evil.example", "Host: evil\r\nOrigin: http://evil"):
            with socket.create_connection(admin.server_address, 10) as client:
                client.sendall(f"POST /api/v1/remove_all?force=true HTTP/1.1\r\n{head}\r\nContent-Type: text/plain\r\n"
                               "Content-Length: 1\r\n\r\nx".encode())
                assert client.recv(100).startswith(b"HTTP/1.1 403 "), head
        assert handle.exists("k")
    port = admin.server_address[1]
    assert fetch(port, "/get_all_keys") == (200, "k\n")
    with socket.create_connection(admin.server_address, 10) as client:  # its own page, if it had one
        client.sendall(f"POST /api/v1/remove_all HTTP/1.1\r\nHost: localhost:{port}\r\nOrigin: http://localhost:{port}\r\n\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")


def test_a_killed_wrapper_takes_the_master_with_it(programs):
    rpc, metrics = free_ports(2)
    master = programs("mooncake_master", "--rpc_port", str(rpc), "--metrics_port", str(metrics), "--rpc_address", "127.0.0.1")
    wait_until(lambda: fetch(metrics, "/health")[0] == 200, 20, "the master's health")
    master.kill()
    master.wait()
    handle = MooncakeDistributedStore()
    wait_until(lambda: handle.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", f"127.0.0.1:{rpc}") != 0, 10, "the end")


@pytest.mark.parametrize("flags", [["--no_such_flag=1"], ["--rpc_port=99999"], ["--rpc_port"], ["word"],
                                   ["--default_kv_lease_ttl=soon"], ["--enable_metric_reporting=perhaps"]])
def test_bad_flags_end_the_program(programs, flags):
    p = programs("mooncake_master", *flags)
    assert p.wait(20) == 1
    with open(p.log) as log:
        text = log.read()
    assert text.startswith("mooncake_master: ") and text.count("\n") == 1
