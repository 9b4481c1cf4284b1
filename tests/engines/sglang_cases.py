# SPDX-License-Identifier: Apache-2.0
"""SGLang's parts that use mooncake.store and mooncake.engine, as released, on the CPU. `python sglang_cases.py PROGRAMS FOLDER [CASE ...]`;
PROGRAMS is the folder of what the wheel under test installs."""
import os
import subprocess
import sys
import time
import uuid

import torch

from pools import Pool, free_ports, lose_master, run

PROGRAMS, FOLDER = sys.argv[1:3]
STORE = "sglang.srt.mem_cache.storage.mooncake_store"
SEGMENT = "64mb"


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


CASES = {"own test": own_test, "own test, metadata server as a module": lambda: own_test("module"), "rdma by default": rdma_by_default,
         "master killed": master_killed}

if __name__ == "__main__":
    began = time.monotonic()
    __import__(f"{STORE}.mooncake_store")
    print(f"SGLang is imported after {time.monotonic() - began:.0f} s", flush=True)
    run(CASES, sys.argv[3:])
