# SPDX-License-Identifier: Apache-2.0
"""SGLang's parts that use mooncake.store and mooncake.engine, as released, on the CPU. `python sglang_cases.py PROGRAMS FOLDER [CASE ...]`;
PROGRAMS is the folder of what the wheel under test installs."""
import json
import os
import subprocess
import sys
import threading
import time
import types
import uuid

import torch

from pools import Pool, await_http, free_ports, lose_master, run

PROGRAMS, FOLDER = sys.argv[1:3]
STORE = "sglang.srt.mem_cache.storage.mooncake_store"
TOKENS, PAGE, LAYERS, LINKER_PAGE = 256, 16, 2, 64


def pool():
    for name in [name for name in os.environ if name.startswith(("MOONCAKE_", "KVPOOL_"))]:
        del os.environ[name]
    made = Pool(PROGRAMS, FOLDER)
    os.environ.update(MOONCAKE_MASTER=made.address, MOONCAKE_LOCAL_HOSTNAME="127.0.0.1", MOONCAKE_GLOBAL_SEGMENT_SIZE=str(256 << 20))
    return made


def config(**kw):
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
    return HiCacheStorageConfig(**{**dict(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, is_mla_model=False,
                                          enable_storage_metrics=False, is_page_first_layout=True, model_name="model"), **kw})


def store_of(**kw):
    from sglang.srt.mem_cache.storage.mooncake_store.mooncake_store import MooncakeStore
    return MooncakeStore(config(**kw))


def own_test(server=None):
    """SGLang's own test of its back end."""
    with pool() as p:
        port = free_ports(1)[0]
        words = {"program": [p.programs / "mooncake_http_metadata_server"], "module": [sys.executable, "-m", "mooncake.http_metadata_server"]}
        metadata = p.start("metadata", *words[server or "program"], "--port", port)
        os.environ.update(MOONCAKE_PROTOCOL="tcp", MOONCAKE_TE_META_DATA_SERVER=f"http://127.0.0.1:{port}/metadata")
        done = subprocess.run([sys.executable, "-m", f"{STORE}.test_mooncake_store"], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0 and "All tests passed" in done.stderr, done.stderr[-2000:]
        assert metadata.poll() is None


class Pages:
    """A host pool of pages, with SGLang's own test's shape."""

    def __init__(self, store, n=16, elements=1024):
        self.kv_buffer = torch.randn(2 * n * elements)
        self.layout, self.page_size, self.elements = "page_first", 1, elements
        store.register_mem_pool_host(self)

    def get_page_buffer_meta(self, indices):
        at = [self.kv_buffer[(2 * int(i) + part) * self.elements:].data_ptr() for i in indices for part in range(2)]
        return at, [4 * self.elements] * len(at)

    def get_ksize_per_token(self):
        return 8 * self.elements


def rdma_by_default():
    """The protocol that SGLang names where its user named none."""
    with pool():
        store = store_of()
        assert store.config.protocol == "rdma"
        Pages(store)
        keys = [uuid.uuid4().hex for _ in range(4)]
        assert all(store.batch_set_v1(keys, torch.arange(4))) and store.batch_exists(keys) == 4
        assert all(store.batch_get_v1(keys, torch.arange(4, 8)))
        store.close()


def master_killed():
    with pool() as p:
        os.environ["MOONCAKE_PROTOCOL"] = "tcp"
        store = store_of()
        pages = Pages(store)
        size = 4 * pages.elements

        def works():
            keys = [uuid.uuid4().hex for _ in range(4)]
            return all(store.batch_set_v1(keys, torch.arange(4))) and all(store.batch_get_v1(keys, torch.arange(4, 8)))

        at = pages.kv_buffer.data_ptr()
        return lose_master(p, {
            "batch_exists": lambda: store.batch_exists([uuid.uuid4().hex for _ in range(4)]),
            "batch_set_v1": lambda: store.batch_set_v1([uuid.uuid4().hex for _ in range(4)], torch.arange(4)),
            "batch_get_v1": lambda: store.batch_get_v1([uuid.uuid4().hex for _ in range(4)], torch.arange(4)),
            "exists": lambda: store.exists(uuid.uuid4().hex),
            "set": lambda: store.set(uuid.uuid4().hex, target_location=at, target_sizes=size),
            "get": lambda: store.get(uuid.uuid4().hex, target_location=at, target_sizes=size),
        }, works)


def device_pool(is_mla):
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
    if is_mla:
        made = MLATokenToKVPool(TOKENS, PAGE, torch.bfloat16, 32, 16, LAYERS, "cpu", False)
    else:
        made = MHATokenToKVPool(TOKENS, PAGE, torch.bfloat16, 2, 16, LAYERS, "cpu", False)
    return made


def host_pool(is_mla, layout="page_first", allocator="mooncake"):
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
    device = device_pool(is_mla)
    # Pinning is for a device's transfers: there is none here.
    made = (MLATokenToKVPoolHost if is_mla else MHATokenToKVPoolHost)(
        device.get_device_pool_infos()[0].buffer_info, 2.0, 0, PAGE, layout, pin_memory=False, allocator_type=allocator,
        device_capacity_tokens=TOKENS, start_layer=0, end_layer=LAYERS, **({"target_layer_num": LAYERS} if is_mla else {}))
    made.kv_buffer.copy_(torch.randn(made.kv_buffer.shape))
    return made


def same(host, one, other):
    """Have two ranges of tokens the same bytes?"""
    return all(torch.equal(host.get_data_page(a), host.get_data_page(b)) for a, b in zip(one[::PAGE], other[::PAGE]))


def host_pools():
    """Host pools of both kinds, in memory of MooncakeHostMemAllocator, stored and got elsewhere."""
    with pool():
        os.environ["MOONCAKE_PROTOCOL"] = "tcp"
        for is_mla in (False, True):
            for layout in ("page_first", "page_first_direct") + (("layer_first",) if is_mla else ()):
                store, host = store_of(is_mla_model=is_mla), host_pool(is_mla, layout)
                store.register_mem_pool_host(host)
                keys = [uuid.uuid4().hex for _ in range(4)]
                put, got = torch.arange(4 * PAGE), torch.arange(4 * PAGE, 8 * PAGE)
                assert not same(host, put, got) and store.batch_exists(keys) == 0
                assert all(store.batch_set_v1(keys, put)) and store.batch_exists(keys) == 4
                assert all(store.batch_get_v1(keys, got)) and same(host, put, got), (is_mla, layout)
                assert not any(store.batch_get_v1([uuid.uuid4().hex], got[:PAGE]))


def controller():
    """HiCacheController writes pages and prefetches them, on threads of its own."""
    from sglang.srt.managers.cache_controller import HiCacheController
    from sglang.srt.mem_cache.utils import get_hash_str
    with pool():
        os.environ["MOONCAKE_PROTOCOL"] = "tcp"
        host, device = host_pool(False), device_pool(False)
        made = HiCacheController(types.SimpleNamespace(get_kvcache=lambda: device), host, PAGE, None, threading.Event(),
                                 write_policy="write_through", io_backend="direct", storage_backend="mooncake", prefetch_threshold=PAGE,
                                 model_name="model")
        tokens, hashes, last = list(range(4 * PAGE)), [], None
        for i in range(4):
            last = get_hash_str(tokens[i * PAGE:(i + 1) * PAGE], last)
            hashes.append(last)
        put = host.alloc(4 * PAGE)
        made.write_storage(put, tokens, hashes)
        assert made.ack_backup_queue.get(timeout=20).completed_tokens == 4 * PAGE
        asked = made.prefetch("request", tokens + [7] * PAGE)
        assert made.prefetch_hit_queue.get(timeout=20) is asked and asked.storage_hit_count == 4 * PAGE
        asked.host_indices = host.alloc(4 * PAGE)
        made.prefetch_buffer.put(asked)
        acks = [made.ack_prefetch_queue.get(timeout=20) for _ in range(2)]
        assert acks[0].completed_tokens == 4 * PAGE and acks[1].completed_req
        assert same(host, put, asked.host_indices)
        made.detach_storage_backend()


def linker():
    """MooncakeDirectLinker: pages of a device's pool, stored whole and loaded layer by layer by sessions."""
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer
    from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool
    from sglang.srt.mem_cache.storage.mooncake_store.mooncake_direct_linker import MooncakeDirectLinker
    from sglang.srt.mem_cache.unified_cache.components import ComponentType
    with pool():
        os.environ["MOONCAKE_PROTOCOL"] = "tcp"
        device = DSATokenToKVPool(8 * LINKER_PAGE, LINKER_PAGE, 128, torch.bfloat16, 64, LAYERS, "cpu", 128, False, 192)
        for buffer in device.kv_buffer:
            buffer.copy_(torch.randn(buffer.shape))
        params = CacheInitParams(False, None, types.SimpleNamespace(get_kvcache=lambda: device), LINKER_PAGE)
        made = MooncakeDirectLinker(types.SimpleNamespace(enable_linker_mla_dedup=False), params, components={ComponentType.FULL})
        keys = [uuid.uuid4().hex for _ in range(3)]
        put, got = torch.arange(LINKER_PAGE, 4 * LINKER_PAGE), torch.arange(4 * LINKER_PAGE, 7 * LINKER_PAGE)

        def transfer(at):
            return [PoolTransfer(name=PoolName.KV, host_indices=at, device_indices=at, keys=keys)]

        assert made.lookup("request", transfer(put)) == [] and made.offload(transfer(put))
        assert made.offload_results.get(timeout=20) is True
        assert made.lookup("request", transfer(got)) == [1, 2, 3] and made.load("request", transfer(got))
        index = made.start_layer_wise_loading()
        made.load_queue.join()
        assert made.finish_layer_wise_loading(index)
        assert all(torch.equal(buffer[put], buffer[got]) for buffer in device.kv_buffer)
        made.close()


def embeddings():
    from sglang.srt.mem_cache.storage.mooncake_store.mooncake_embedding_store import MooncakeEmbeddingStore
    with pool():
        store, memory = MooncakeEmbeddingStore(), torch.randn(8, 1024)
        store.register_buffer(memory)
        at = [row.data_ptr() for row in memory]
        names = [uuid.uuid4().hex for _ in range(2)]
        assert store.batch_is_exist(names) == [False, False] and store.batch_put(names, at[:2], [4096] * 2) == [True, True]
        assert store.batch_put(names, at[:2], [4096] * 2) == store.batch_is_exist(names) == [True, True]
        assert store.batch_get(names, at[2:4], [4096] * 2) == [True, True] and torch.equal(memory[:2], memory[2:4])
        wide = [uuid.uuid4().hex]
        assert store.batch_put_from_multi_buffers(wide, [at[:2]], [[4096] * 2]) == [True]
        assert store.batch_get_into_multi_buffers(wide, [at[4:6]], [[4096] * 2]) == [True] and torch.equal(memory[:2], memory[4:6])


def engine_of(memory):
    from sglang.srt.distributed.device_communicators.mooncake_transfer_engine import MooncakeTransferEngine
    made = MooncakeTransferEngine("127.0.0.1", 0, None)
    assert made.batch_register([memory.data_ptr()], [memory.nbytes]) == 0
    return made


def peer():
    """The other process of transfer_engine()."""
    memory = torch.zeros(1 << 20, dtype=torch.uint8)
    made = engine_of(memory)
    print(f"peer {made.session_id} {memory.data_ptr()}", flush=True)
    for line in sys.stdin:
        print("sum", int(memory.to(torch.int64).sum()), flush=True)


def transfer_engine():
    """The shared engine, with the protocol that it names where its user named none, to another process."""
    with pool():
        other = subprocess.Popen([sys.executable, __file__, PROGRAMS, FOLDER, "--peer"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            _, session, at = next(line for line in other.stdout if line.startswith("peer ")).split()
            memory = torch.randint(0, 255, (1 << 20,), dtype=torch.uint8)
            made, half = engine_of(memory), memory.nbytes // 2
            assert made.transfer_sync(session, memory.data_ptr(), int(at), half) == 0
            assert made.batch_transfer_sync(session, [memory.data_ptr() + half], [int(at) + half], [half]) == 0
            other.stdin.write("sum\n")
            other.stdin.flush()
            found = next(line for line in other.stdout if line.startswith("sum "))
            assert int(found.split()[1]) == int(memory.to(torch.int64).sum())
            made.deregister(memory.data_ptr())
        finally:
            other.kill()


def standalone():
    """The memory is a mooncake_client's, and the back end knows that one alone."""
    with pool() as p:
        port, http = free_ports(2)
        client = p.program("mooncake_client", f"--master_server_address={p.address}", "--host=127.0.0.1", f"--port={port}", f"--http_port={http}",
                           "--enable_http_server", "--protocol=tcp", "--global_segment_size=256MB")
        await_http(f"http://127.0.0.1:{http}/health", client)
        os.environ.update(MOONCAKE_STANDALONE_STORAGE="true", MOONCAKE_CLIENT=f"127.0.0.1:{port}", MOONCAKE_PROTOCOL="tcp")
        from sglang.srt.mem_cache.storage.mooncake_store.mooncake_store import MooncakeStore
        host = host_pool(False)
        store = MooncakeStore(config(), mem_pool=host)
        store.register_mem_pool_host(host)
        keys, put, got = [uuid.uuid4().hex for _ in range(4)], torch.arange(4 * PAGE), torch.arange(4 * PAGE, 8 * PAGE)
        assert all(store.batch_set_v1(keys, put)) and all(store.batch_get_v1(keys, got)) and same(host, put, got)


def rest_server(*words):
    """The memory is a store service's, whose command SGLang's guide tells."""
    with pool() as p:
        port = free_ports(1)[0]
        file = p.folder / "service.json"
        file.write_text(json.dumps({"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "master_server_address": p.address,
                                    "protocol": "rdma", "device_name": "", "global_segment_size": 256 << 20, "local_buffer_size": 0}))
        service = p.start("service", *(words or [p.programs / "mc_store_rest_server"]), f"--config={file}", f"--port={port}")
        await_http(f"http://127.0.0.1:{p.http}/get_all_segments", service, lambda text: text.strip())
        os.environ["MOONCAKE_GLOBAL_SEGMENT_SIZE"] = "0"
        store = store_of()
        Pages(store)
        keys = [uuid.uuid4().hex for _ in range(4)]
        assert all(store.batch_set_v1(keys, torch.arange(4))) and store.batch_exists(keys) == 4


CASES = {"own test": own_test, "own test, metadata server as a module": lambda: own_test("module"), "rdma by default": rdma_by_default,
         "host pools": host_pools, "controller": controller, "direct linker": linker, "embeddings": embeddings,
         "transfer engine": transfer_engine, "standalone": standalone, "rest server": rest_server,
         "rest server as a module": lambda: rest_server(sys.executable, "-m", "mooncake.mooncake_store_service"), "master killed": master_killed}

if __name__ == "__main__":
    began = time.monotonic()
    if sys.argv[3:] == ["--peer"]:
        peer()
        sys.exit()
    __import__(f"{STORE}.mooncake_store")
    print(f"SGLang is imported after {time.monotonic() - began:.0f} s", flush=True)
    from sglang.srt.runtime_context import get_context, get_parallel
    get_context().override_server_args().install()
    get_parallel().override_permanently(tp_rank=0, pp_rank=0, attn_dcp_rank=0)
    run(CASES, sys.argv[3:])
