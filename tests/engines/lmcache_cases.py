# SPDX-License-Identifier: Apache-2.0
"""LMCache's parts that use mooncake.store and mooncake.engine, as released, on the CPU. `python lmcache_cases.py PROGRAMS FOLDER [CASE ...]`;
PROGRAMS is the folder of what the wheel under test installs."""
import asyncio
import os
import random
import subprocess
import sys
import threading
import time

import torch

from pools import Pool, free_ports, lose_master, run

PROGRAMS, FOLDER = sys.argv[1:3]
CHUNK = 256
SHAPE = 2, 2, CHUNK, 4, 16  # layers, K and V, tokens, heads, size of a head


def pool():
    for name in [name for name in os.environ if name.startswith(("MOONCAKE_", "KVPOOL_"))]:
        del os.environ[name]
    return Pool(PROGRAMS, FOLDER)


def words(p, prefix="", **kw):
    """extra_config: names with the prefix "mooncake_" and LMCache's older ones without are handed to setup()."""
    return {"local_cpu": False, "remote_url": f"mooncakestore://{p.address}/", "remote_serde": "naive", "max_local_cpu_size": 0.25,
            "chunk_size": CHUNK, "extra_config": {
                f"{prefix}local_hostname": "127.0.0.1", f"{prefix}metadata_server": "P2PHANDSHAKE", f"{prefix}master_server_address": p.address,
                f"{prefix}global_segment_size": 256 << 20, f"{prefix}local_buffer_size": 64 << 20, f"{prefix}protocol": "tcp", **kw}}


def metadata():
    from lmcache.v1.metadata import LMCacheMetadata
    return LMCacheMetadata("model", 1, 1, 0, 0, torch.bfloat16, SHAPE, chunk_size=CHUNK)


class Backend:
    """RemoteBackend over its connector, as an engine has it."""

    def __init__(self, config):
        from lmcache.v1.config import LMCacheEngineConfig
        from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
        from lmcache.v1.storage_backend.remote_backend import RemoteBackend
        self.config = LMCacheEngineConfig.from_dict(config)
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.local = LocalCPUBackend(self.config, metadata(), "cpu")
        self.remote = RemoteBackend(self.config, metadata(), self.loop, self.local, "cpu")
        assert self.remote.connection is not None, "there is no connection"

    def keys(self, n):
        from lmcache.utils import CacheEngineKey
        return [CacheEngineKey("model", 1, 0, random.getrandbits(62), torch.bfloat16) for _ in range(n)]

    def blocks(self, n):
        from lmcache.v1.memory_management import MemoryFormat
        made = [self.local.allocate(torch.Size([2, SHAPE[0], CHUNK, 64]), torch.bfloat16, MemoryFormat.KV_2LTD) for _ in range(n)]
        for block in made:
            block.tensor.copy_(torch.randn(block.tensor.shape))
        return made

    def put(self, keys, blocks):
        done = threading.Semaphore(0)
        self.remote.batched_submit_put_task(keys, blocks, on_complete_callback=lambda key: done.release())
        assert all(done.acquire(timeout=20) for _ in keys), "a put does not end"

    def works(self, n=4):
        keys, blocks = self.keys(n), self.blocks(n)
        self.put(keys, blocks)
        if not all(self.remote.contains(key) == 1 for key in keys):
            return False
        got = self.remote.batched_get_blocking(keys)
        return all(one is not None and torch.equal(one.tensor, block.tensor) for one, block in zip(got, blocks))

    def close(self):
        self.remote.close()


def connector(prefix="", **kw):
    with pool() as p:
        backend = Backend(words(p, prefix, **kw))
        assert backend.works(), "what was put is not got"
        assert not backend.remote.contains(backend.keys(1)[0])
        backend.close()


def lookup_of(p):
    from lmcache.v1.config import LMCacheEngineConfig
    from lmcache.v1.lookup_client.mooncake_lookup_client import MooncakeLookupClient
    return MooncakeLookupClient(LMCacheEngineConfig.from_dict(words(p)), metadata(), p.address)


def lookup_client():
    """It names no memory, and finds what another process has put: by the keys of whole chunks of tokens."""
    with pool() as p:
        backend, client = Backend(words(p)), lookup_of(p)
        tokens = list(range(4 * CHUNK))
        keys = [key for _, _, key in client.token_database.process_tokens(tokens)]
        assert len(keys) == 4 and client.lookup(tokens) == 0
        backend.put(keys[:3], backend.blocks(3))
        assert client.lookup(tokens) == 3 * CHUNK
        backend.close()


def master_killed():
    with pool() as p:
        backend = Backend(words(p, use_exists_sync=True))
        blocks = backend.blocks(2)
        return lose_master(p, {
            "contains": lambda: backend.remote.contains(backend.keys(1)[0]),
            "batched_get": lambda: backend.remote.batched_get_blocking(backend.keys(2)),
            "put": lambda: backend.put(backend.keys(2), blocks),
        }, backend.works)


def master_killed_lookups():
    with pool() as p:
        backend, client = Backend(words(p)), lookup_of(p)
        tokens = [random.getrandbits(30) for _ in range(4 * CHUNK)]
        backend.put([key for _, _, key in client.token_database.process_tokens(tokens)], backend.blocks(4))

        def works():
            return client.lookup(tokens) == 4 * CHUNK or (backend.works() and client.lookup(tokens) >= 0)

        return lose_master(p, {f"look-up {i}": lambda: client.lookup(tokens) for i in range(6)}, works)


def channel(port):
    """A transfer channel by mooncake_te at that port, over memory of its own."""
    from lmcache.v1.distributed.internal_api import L1MemoryDesc
    from lmcache.v1.distributed.transfer_channel.impl.mooncake_te_impl import create_mooncake_te_transfer_channel_context
    memory, at = torch.zeros(1 << 20, dtype=torch.uint8), f"127.0.0.1:{port}"
    return memory, create_mooncake_te_transfer_channel_context(L1MemoryDesc(memory.data_ptr(), memory.nbytes, 4096), at, at)


def peer(port):
    """The other process of peer_channel()."""
    memory, made = channel(port)
    memory.copy_(torch.arange(1 << 20).to(torch.uint8))
    print("peer is there", made.mooncake_te_port, flush=True)
    sys.stdin.read()


def peer_channel():
    """Reads what another process has."""
    with pool():
        ports = free_ports(2)
        other = subprocess.Popen([sys.executable, __file__, PROGRAMS, FOLDER, "--peer", str(ports[1])], stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, text=True)
        try:
            assert any(line.startswith("peer is there") for line in other.stdout), "the peer ended"
            memory, made = channel(ports[0])
            client = made.get_transfer_channel_client(f"127.0.0.1:{ports[1]}")
            local, remote = [(0, 4096), (8192, 65536)], [(65536, 4096), (131072, 65536)]
            task = client.submit_read(made.get_transfer_channel_address(local), made.get_transfer_channel_address(remote))
            end = time.monotonic() + 20
            while not (status := client.query_read_status(task)).finished:
                assert time.monotonic() < end, "it does not end"
                time.sleep(0.001)
            assert status.succeeded_mask == [True, True]
            for (to, n), (at, _) in zip(local, remote):
                assert torch.equal(memory[to:to + n], torch.arange(at, at + n).to(torch.uint8))
            made.close()
        finally:
            other.kill()


CASES = {"connector": connector, "connector, mooncake_ names": lambda: connector("mooncake_"),
         "connector, metadata at hand": lambda: connector(save_chunk_meta=False), "connector, rdma": lambda: connector(protocol="rdma"),
         "look-up client": lookup_client, "peer channel": peer_channel, "master killed": master_killed, "master killed, look-ups": master_killed_lookups}

if __name__ == "__main__":
    if sys.argv[3:4] == ["--peer"]:
        peer(int(sys.argv[4]))
    else:
        run(CASES, sys.argv[3:])
