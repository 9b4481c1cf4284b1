# SPDX-License-Identifier: Apache-2.0
"""SGLang's standalone storage: memory of MooncakeHostMemAllocator, and a store that knows a mooncake_client of its host alone."""
import ctypes
import os
import socket

import numpy as np
import pytest

from clients import free_ports
from conftest import wait_until
from mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator, bind_to_numa_node
from stores import MIB, make
from test_python_store import programs  # noqa: F401: a fixture


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("KVPOOL_MASTER", "MOONCAKE_MASTER", "MOONCAKE_PROTOCOL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def beside(pool, programs):  # noqa: F811
    """The address of a mooncake_client."""
    port, http = free_ports(2)
    programs("mooncake_client", "--master_server_address", pool.addr, "--host", "127.0.0.1", "--port", str(port), "--protocol", "tcp",
             "--global_segment_size", "64MB", "--enable_http_server", "--http_port", str(http))
    wait_until(lambda: pool.kvpool("stat", "--json").json["pool"]["size_bytes"] == 64 * MIB, 20, "its memory")
    return f"127.0.0.1:{port}"


def over(allocator, size):
    """(address, bytes) of new memory, as SGLang makes its tensors."""
    at = allocator.alloc(size)
    return at, np.frombuffer((ctypes.c_byte * size).from_address(at), np.uint8)


@pytest.mark.pool(nodes=0)
def test_what_sglang_calls(beside, pool):
    """Fails if the store does not find the pool by the client's address alone, or bytes go wrong to and from memory that was made before."""
    allocator = MooncakeHostMemAllocator()
    at, memory = over(allocator, 4 * MIB)
    assert at % 4096 == 0 and not memory.any()
    memory[:MIB] = np.random.default_rng(5).integers(0, 256, MIB, np.uint8)
    store = MooncakeDistributedStore()
    assert store.setup_dummy(4 * MIB, 16 * MIB, beside) == 0
    assert store.health_check() == 0 and store.setup_dummy(4 * MIB, 16 * MIB, beside) == -600
    assert store.put("warmup", bytes(4096)) == 0 and store.is_exist("warmup") == 1 and store.get("warmup") == bytes(4096)
    assert store.register_buffer(at, 4 * MIB) == 0
    pages = [at + i * 65536 for i in range(16)]
    keys = [f"page/{i}" for i in range(16)]
    assert store.batch_put_from(keys, pages, [65536] * 16) == [0] * 16
    assert store.batch_get_into(keys, [page + 2 * MIB for page in pages], [65536] * 16) == [65536] * 16
    assert (memory[:MIB] == memory[2 * MIB:3 * MIB]).all()
    other = make(pool.addr)
    assert other.get("page/3") == memory[3 * 65536:4 * 65536].tobytes()
    [copy] = other.get_replica_desc("page/3")
    assert copy.get_memory_descriptor().buffer_descriptor.transport_endpoint == beside
    assert other.close() == 0 == store.unregister_buffer(at) == store.close()
    assert pool.kvpool("stat", "--json").json["pool"]["size_bytes"] == 64 * MIB  # the store gave none
    del memory
    assert allocator.free(at) == 0 and allocator.free(at) == -1


@pytest.mark.pool(nodes=0)
def test_its_memory_pool(beside):
    store = MooncakeDistributedStore()
    assert store.alloc_from_mem_pool(4096) == 0
    assert store.setup_dummy(MIB, 16 * MIB, beside) == 0
    one, two = store.alloc_from_mem_pool(100), store.alloc_from_mem_pool(MIB - 4096)
    assert two - one == 4096
    for size in (0, -1, 1, 1 << 70):
        assert store.alloc_from_mem_pool(size) == 0
    assert store.register_buffer(one, 100) == 0 == store.unregister_buffer(one)  # it is registered all the time
    assert store.register_buffer(two, MIB) != 0
    ctypes.memmove(one, b"value", 5)
    assert store.put_from("k", one, 5) == 0 and store.get_into("k", two, 5) == 5 and ctypes.string_at(two, 5) == b"value"
    assert store.close() == 0 and store.alloc_from_mem_pool(1) == 0
    assert store.setup_dummy(0, 16 * MIB, beside) == 0 and store.alloc_from_mem_pool(1) == 0
    assert store.close() == 0


@pytest.mark.pool(nodes=1)
def test_who_is_no_client(pool, caplog, monkeypatch):
    store = MooncakeDistributedStore()
    for address in ("127.0.0.1:1", "nonsense", "", "127.0.0.1:0", "127.0.0.1:99999", "no.such.host.invalid:1", "é" * 70 + ":5"):
        caplog.clear()
        assert store.setup_dummy(MIB, MIB, address) == -1 and "setup_dummy" in caplog.text, address
    with socket.create_server(("127.0.0.1", 0)) as other:  # somebody else
        address = "127.0.0.1:%d" % other.getsockname()[1]
        assert store.setup_dummy(MIB, MIB, address) == -1 and "MOONCAKE_MASTER" in caplog.text
        monkeypatch.setenv("MOONCAKE_MASTER", pool.addr)
        assert store.setup_dummy(MIB, MIB, address) == 0 and store.put("k", b"x") == 0 and store.close() == 0
    monkeypatch.setenv("MOONCAKE_MASTER", "127.0.0.1:1")
    assert store.setup_dummy(MIB, MIB, pool.nodes[0].listen) == 0  # what the process says goes before it
    assert store.close() == 0
    for sizes in ((-1, 0), (0, -1)):
        with pytest.raises(ValueError):
            store.setup_dummy(*sizes, "127.0.0.1:1")


def test_memory_that_is_not_there():
    allocator = MooncakeHostMemAllocator()
    for size in (0, -1, 1 << 50, 1 << 70):
        with pytest.raises(RuntimeError):
            allocator.alloc(size)
    for size in (1.5, "1", None):
        with pytest.raises(TypeError):
            allocator.alloc(size)
    assert allocator.free(12345) == -1
    at, memory = over(allocator, 5000)
    memory[:] = 7
    del allocator
    assert memory.sum() == 35000  # it stays
    child = os.fork()
    if child == 0:
        memory[0] = 9
        os._exit(0)
    os.waitpid(child, 0)
    assert memory[0] == 9  # and is one with a child's
    del memory
    assert MooncakeHostMemAllocator().free(at) == 0


def test_numa_nodes():
    before = os.sched_getaffinity(0)
    try:
        assert bind_to_numa_node(99999) is None is bind_to_numa_node(-1) and os.sched_getaffinity(0) == before
        assert bind_to_numa_node(0) is None and os.sched_getaffinity(0)
    finally:
        os.sched_setaffinity(0, before)
