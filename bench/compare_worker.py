# SPDX-License-Identifier: Apache-2.0
"""One process of compare.py, in the interpreter of the system that it drives: compare_worker.py KIND JSON. Prints a line when it is
ready; then a line in is JSON [operation, seconds], a line out the figure of that round: objects, keys or calls a second. Ends with
its input.

Kinds: holder (owns memory), store and replay (mooncake.store), target and engine (mooncake.engine), redis, nixl_target and nixl.
"""
import base64
import ctypes
import json
import os
import sys
import time

MIB = 1 << 20
SET_BYTES = 64 * MIB  # of source, and of destination; above the last-level cache
LOCAL_BYTES = 512 * MIB
LAYERS, LAYER_BYTES, BLOCKS = 61, 16384, 32
SHAPES = {"get_2m": (2 * MIB, 32), "get_4k": (4096, 64)}
WRITES = {"write_16k": (16384, 512), "write_64k": (65536, 256), "write_1m": (MIB, 64), "write_4m": (4 * MIB, 32)}
KEYS = 1000
ENGINE_BYTES = 128 * MIB


def pool_key(i):
    return f"deepseek-ai/DeepSeek-V3.1@tp_rank:{i % 8}@pcp0@dcp0@pp_rank:0@group:0@{i:064x}"


class Memory:
    """Bytes that do not repeat, and room for them."""

    def __init__(self, size, is_random=True):
        self.buffer = ctypes.create_string_buffer(size)
        self.at = ctypes.addressof(self.buffer)
        if is_random:
            piece = os.urandom(MIB)
            for i in range(size // MIB):
                ctypes.memmove(self.at + i * MIB, piece[i:] + piece[:i], MIB)

    def places(self, size, n):
        return [self.at + i * size for i in range(n)]


def rate(call, per_call, seconds):
    call()
    begun, calls = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        call()
        calls += 1
    return calls * per_call / (time.perf_counter() - begun)


def check(is_so, what):
    if not is_so:
        sys.exit(f"wrong: {what}")


def serve(operations):
    print("ready", flush=True)
    for line in sys.stdin:
        operation, seconds = json.loads(line)
        print(json.dumps(operations[operation](seconds)), flush=True)


# ---- mooncake.store


def open_store(told, segment, local):
    from mooncake.store import MooncakeDistributedStore
    store = MooncakeDistributedStore()
    check(store.setup("127.0.0.1", "P2PHANDSHAKE", segment, local, "tcp", "", told["master"]) == 0, "setup")
    return store


def holder(told):
    store = open_store(told, told["segment"], 16 * MIB)
    serve({})
    store.close()


class Store:
    def __init__(self, told):
        self.store = open_store(told, told["segment"], LOCAL_BYTES)
        self.source, self.target = Memory(SET_BYTES), Memory(SET_BYTES, False)
        for memory in (self.source, self.target):
            check(self.store.register_buffer(memory.at, SET_BYTES) == 0, "register_buffer")
        self.gets = {name: self.prepare(name, *shape) for name, shape in SHAPES.items()}
        self.gets["get_layers"] = self.prepare_layers()
        check(self.store.put("one", os.urandom(4096)) == 0, "put")
        self.keys = [pool_key(i) for i in range(KEYS)]
        for key in self.keys[:KEYS // 2]:
            check(self.store.put(key, b"x" * 64) == 0, "put")

    def prepare(self, name, size, n):
        """Puts a set, and returns (get of all of it, how many, their bytes)."""
        keys, sizes = [f"{name}/{i}" for i in range(n)], [size] * n
        results = self.store.batch_put_from(keys, self.source.places(size, n), sizes)
        check(results == [0] * n, f"batch_put_from: {results[:4]}")
        places = self.target.places(size, n)
        return lambda: check(self.store.batch_get_into(keys, places, sizes) == sizes, "batch_get_into"), n, size * n

    def prepare_layers(self):
        def rows(at):
            return [[at + (block * LAYERS + layer) * LAYER_BYTES for layer in range(LAYERS)] for block in range(BLOCKS)]

        keys, sizes = [f"layers/{i}" for i in range(BLOCKS)], [[LAYER_BYTES] * LAYERS] * BLOCKS
        results = self.store.batch_put_from_multi_buffers(keys, rows(self.source.at), sizes)
        check(results == [0] * BLOCKS, f"batch_put_from_multi_buffers: {results[:4]}")
        places, whole = rows(self.target.at), [LAYERS * LAYER_BYTES] * BLOCKS
        return (lambda: check(self.store.batch_get_into_multi_buffers(keys, places, sizes) == whole, "multi_buffers")), BLOCKS, \
            BLOCKS * LAYERS * LAYER_BYTES

    def get(self, name):
        call, n, size = self.gets[name]

        def measure(seconds):
            ctypes.memset(self.target.at, 0, size)
            figure = rate(call, n, seconds)
            same = ctypes.string_at(self.target.at, size) == ctypes.string_at(self.source.at, size)
            check(same, f"other bytes came ({name})")
            return figure

        return measure

    def operations(self):
        wanted = [1] * (KEYS // 2) + [0] * (KEYS - KEYS // 2)
        return {
            **{name: self.get(name) for name in self.gets},
            "batch_is_exist": lambda s: rate(lambda: check(self.store.batch_is_exist(self.keys) == wanted, "exist"), KEYS, s),
            "is_exist": lambda s: rate(lambda: check(self.store.is_exist("one") == 1, "is_exist"), 1, s),
            "get_one": lambda s: rate(lambda: check(self.store.get_into("one", self.target.at, 4096) == 4096, "get_into"), 1, s),
        }


def store(told):
    opened = Store(told)
    serve(opened.operations())
    opened.store.close()


def read_trace(path, limit=0):
    with open(path) as f:
        requests = [json.loads(line)["hash_ids"] for line in f if line.strip()]
    return requests[:limit] if limit else requests


class Replay:
    """Plays a trace as `kvpool replay` does. A block carries its id in its first and last eight bytes."""

    def __init__(self, told, requests):
        import numpy
        self.store = open_store(told, 0, 256 * MIB)
        self.block = told["block_bytes"]
        longest = max(len(ids) for ids in requests)
        self.memory = numpy.zeros(longest * self.block, dtype=numpy.uint8)
        self.words = self.memory.view(numpy.uint64)
        self.store.register_buffer(self.memory.ctypes.data, self.memory.nbytes)
        self.counts = dict(blocks=0, hits=0, get_failed_after_lookup=0, puts_refused=0, wrong_blocks=0)

    def places(self, n):
        return [self.memory.ctypes.data + i * self.block for i in range(n)], [self.block] * n

    def ends(self, i):
        first = i * self.block // 8
        return first, first + self.block // 8 - 1

    def load(self, keys, ids):
        for i, result in enumerate(self.store.batch_get_into(keys, *self.places(len(keys)))):
            first, last = self.ends(i)
            if result != self.block:
                self.counts["get_failed_after_lookup"] += 1
            elif self.words[first] != ids[i] or self.words[last] != ids[i]:
                self.counts["wrong_blocks"] += 1
            else:
                self.counts["hits"] += 1

    def save(self, keys, ids):
        for i, block_id in enumerate(ids):
            for end in self.ends(i):
                self.words[end] = block_id
        results = self.store.batch_put_from(keys, *self.places(len(keys)))
        self.counts["puts_refused"] += sum(1 for result in results if result != 0)

    def request(self, ids):
        keys = [f"deepseek-ai/DeepSeek-V3.1@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{i:064x}" for i in ids]
        present = self.store.batch_is_exist(keys)
        prefix = next((i for i, found in enumerate(present) if found != 1), len(keys))
        self.counts["blocks"] += len(keys)
        if prefix > 0:
            self.load(keys[:prefix], ids[:prefix])
        if prefix < len(keys):
            self.save(keys[prefix:], ids[prefix:])


def replay(told):
    requests = read_trace(told["trace"], told["limit"])
    played = Replay(told, requests)
    begun = time.perf_counter()
    for ids in requests:
        played.request(ids)
    elapsed = time.perf_counter() - begun
    counts = played.counts
    print("result " + json.dumps(dict(counts, elapsed_s=round(elapsed, 3), blocks_per_s=round(counts["blocks"] / elapsed),
                                      hit_ratio=round(counts["hits"] / counts["blocks"], 4))), flush=True)
    played.store.close()


# ---- mooncake.engine


def open_engine(is_random):
    from mooncake.engine import TransferEngine
    engine = TransferEngine()
    check(engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0, "initialize")
    memory = Memory(ENGINE_BYTES, is_random)
    check(engine.register_memory(memory.at, ENGINE_BYTES) == 0, "register_memory")
    return engine, memory


def target(told):
    engine, memory = open_engine(False)
    print("at " + json.dumps([engine.get_rpc_port(), memory.at]), flush=True)
    sys.stdin.read()


def engine(told):
    opened, memory = open_engine(True)
    port, at = told["target"]

    def write(size, n):
        sources, targets, sizes = memory.places(size, n), [at + i * size for i in range(n)], [size] * n
        return lambda seconds: rate(lambda: check(opened.batch_transfer_sync_write(
            f"127.0.0.1:{port}", sources, targets, sizes) == 0, "batch_transfer_sync_write"), n, seconds)

    serve({name: write(*shape) for name, shape in WRITES.items()})


# ---- peers with calls of their own


def redis(told):
    import redis as module
    client = module.Redis(port=told["port"])

    def get(size, n):
        keys, value = [f"{size}/{i}" for i in range(n)], os.urandom(size)
        for key in keys:
            client.set(key, value)
        return lambda seconds: rate(lambda: check(client.mget(keys) == [value] * n, "mget"), n, seconds)

    keys = [pool_key(i) for i in range(KEYS)]
    for key in keys[:KEYS // 2]:
        client.set(key, b"x" * 64)
    serve({**{name: get(*shape) for name, shape in SHAPES.items()},
           "batch_is_exist": lambda s: rate(lambda: check(client.exists(*keys) == KEYS // 2, "exists"), KEYS, s),
           "is_exist": lambda s: rate(lambda: check(client.exists(keys[0]) == 1, "exists"), 1, s)})


def open_nixl(name, is_random):
    from nixl._api import nixl_agent, nixl_agent_config
    agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
    memory = Memory(ENGINE_BYTES, is_random)
    agent.register_memory([(memory.at, ENGINE_BYTES, 0, "")], mem_type="DRAM")
    return agent, memory


def nixl_target(told):
    agent, memory = open_nixl("target", False)
    print("at " + json.dumps([base64.b64encode(agent.get_agent_metadata()).decode(), memory.at]), flush=True)
    sys.stdin.read()


def nixl(told):
    agent, memory = open_nixl("initiator", True)
    metadata, at = told["target"]
    peer = agent.add_remote_agent(base64.b64decode(metadata))

    def write(size, n):
        here = agent.get_xfer_descs([(place, size, 0) for place in memory.places(size, n)], mem_type="DRAM")
        there = agent.get_xfer_descs([(at + i * size, size, 0) for i in range(n)], mem_type="DRAM")
        handle = agent.initialize_xfer("WRITE", here, there, peer)

        def once():
            state = agent.transfer(handle)
            while state == "PROC":
                state = agent.check_xfer_state(handle)
            check(state == "DONE", f"transfer: {state}")

        return lambda seconds: rate(once, n, seconds)

    serve({name: write(*shape) for name, shape in WRITES.items()})


if __name__ == "__main__":
    {f.__name__: f for f in (holder, store, replay, target, engine, redis, nixl_target, nixl)}[sys.argv[1]](json.loads(sys.argv[2]))
