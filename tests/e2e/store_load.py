# SPDX-License-Identifier: Apache-2.0
"""Load on one mooncake.store of the wheel from many threads, for test_python_store_load.py:

    store_load.py MASTER SECONDS THREADS SEED MEMORY END

It prints what it did as a line of JSON, waits for the end of its input, and ends as END says: by close(), as "left" (neither closed
nor dropped), or "calling" (its threads are in calls then). Values as in python_load.py.
"""
import json
import random
import sys
import time

import numpy as np

from kvpool import _kvpool
from mooncake.store import MooncakeDistributedStore, ReplicateConfig
from python_load import BATCH, CAP, EXPECTED, SIZES, Load, Worker

CALLS_LEAST = 100  # of each thread, however little of the processors it gets
PIECES = 1100  # of an object: more than the library takes in one call
CODES = {_kvpool.errors[name][1] for name in EXPECTED}

READS = ("get", "get_batch", "get_buffer", "batch_get_buffer", "get_into", "batch_get_into", "batch_get_into_multi_buffers")


def cut(rng, address, size, pieces):
    """So many pieces of size bytes, none of which is empty: (addresses, sizes)."""
    ends = sorted(rng.sample(range(1, size), pieces - 1)) + [size]
    starts = [0] + ends[:-1]
    return [address + start for start in starts], [end - start for start, end in zip(starts, ends)]


class StoreWorker(Worker):
    CALLS = ("put", "upsert", "put_parts", "upsert_parts", "put_batch", "upsert_batch", "put_from", "upsert_from", "batch_put_from",
             "batch_upsert_from", "batch_put_from_multi_buffers", *READS, "look", "remove", "batch_remove", "remove_by_regex")

    def register(self):
        self.expect(self.pool.register_buffer(self.memory.ctypes.data, self.memory.nbytes), ())

    def unregister(self):
        self.expect(self.pool.unregister_buffer(self.memory.ctypes.data), ())

    def expect(self, number, codes=CODES):
        """Of a put or a removal."""
        if number != 0:
            self.counts[str(number)] += 1
        if number != 0 and number not in codes:
            self.load.wrong.append(f"code {number}")

    def expect_all(self, numbers):
        for number in numbers:
            self.expect(number)

    def batch(self, key):
        """(keys, numbers of keys)"""
        numbers = self.numbers(key)
        return [f"k{n}" for n in numbers], numbers

    def values(self, numbers):
        return [self.value(n, slot) for slot, n in enumerate(numbers)]

    def targets(self):
        """Memory for a batch, in which nothing is whole."""
        slots = self.memory[BATCH:]
        slots[:] = 0xEE
        return slots

    # ---- puts
    def put(self, key):
        self.expect(self.pool.put(f"k{key}", self.value(key)))

    def upsert(self, key):
        self.expect(self.pool.upsert(f"k{key}", self.value(key).tobytes()))

    def parts(self, call, key):
        value = self.value(key)
        at = self.rng.randrange(1, len(value))
        self.expect(call(f"k{key}", value[:at], value[at:].tobytes()))

    def put_parts(self, key):
        self.parts(self.pool.put_parts, key)

    def upsert_parts(self, key):
        self.parts(self.pool.upsert_parts, key)

    def put_batch(self, key):
        keys, numbers = self.batch(key)
        self.expect(self.pool.put_batch(keys, self.values(numbers)))

    def upsert_batch(self, key):
        keys, numbers = self.batch(key)
        self.expect(self.pool.upsert_batch(keys, [value.tobytes() for value in self.values(numbers)]))

    def put_from(self, key):
        value = self.value(key)
        self.expect(self.pool.put_from(f"k{key}", value.ctypes.data, len(value)))

    def upsert_from(self, key):
        value = self.value(key)
        self.expect(self.pool.upsert_from(f"k{key}", value.ctypes.data, len(value)))

    def from_memory(self, call, key):
        keys, numbers = self.batch(key)
        values = self.values(numbers)
        self.expect_all(call(keys, [value.ctypes.data for value in values], [len(value) for value in values]))

    def batch_put_from(self, key):
        config = ReplicateConfig()
        config.replica_num = 2
        self.from_memory(lambda *lists: self.pool.batch_put_from(*lists, config), key)

    def batch_upsert_from(self, key):
        self.from_memory(self.pool.batch_upsert_from, key)

    def batch_put_from_multi_buffers(self, key):
        keys, numbers = self.batch(key)
        rows = []
        for value in self.values(numbers):
            pieces = PIECES if len(value) > PIECES and self.rng.random() < 0.1 else self.rng.randint(1, 8)
            rows.append(cut(self.rng, value.ctypes.data, len(value), pieces))
        self.expect_all(self.pool.batch_put_from_multi_buffers(keys, [row[0] for row in rows], [row[1] for row in rows]))

    # ---- reads
    def read(self, how, data, key):
        """data has the buffer protocol; None or empty: there was nothing, whatever the reason."""
        if data is not None and len(data) > 0:
            self.check(data, key, how)
            self.counts[f"{how} found"] += 1

    def landed(self, how, slot, n, key):
        if n < 0:
            self.expect(n)
        else:
            self.read(how, slot[:n], key)

    def get(self, key):
        self.read("get", self.pool.get(f"k{key}"), key)

    def get_batch(self, key):
        keys, numbers = self.batch(key)
        for number, data in zip(numbers, self.pool.get_batch(keys)):
            self.read("get_batch", data, number)

    def get_buffer(self, key):
        handle = self.pool.get_buffer(f"k{key}")
        self.read("get_buffer", handle and memoryview(handle), key)

    def batch_get_buffer(self, key):
        keys, numbers = self.batch(key)
        for number, handle in zip(numbers, self.pool.batch_get_buffer(keys)):
            self.read("batch_get_buffer", handle and memoryview(handle), number)

    def get_into(self, key):
        slot = self.targets()[0]
        self.landed("get_into", slot, self.pool.get_into(f"k{key}", slot.ctypes.data, CAP), key)

    def batch_get_into(self, key):
        (keys, numbers), slots = self.batch(key), self.targets()
        got = self.pool.batch_get_into(keys, [slot.ctypes.data for slot in slots], [CAP] * BATCH)
        for slot, n, number in zip(slots, got, numbers):
            self.landed("batch_get_into", slot, n, number)

    def batch_get_into_multi_buffers(self, key):
        (keys, numbers), slots = self.batch(key), self.targets()
        rows = [cut(self.rng, slot.ctypes.data, CAP, PIECES if self.rng.random() < 0.1 else self.rng.randint(1, 8)) for slot in slots]
        got = self.pool.batch_get_into_multi_buffers(keys, [row[0] for row in rows], [row[1] for row in rows])
        for slot, n, number in zip(slots, got, numbers):
            self.landed("batch_get_into_multi_buffers", slot, n, number)

    # ---- the rest
    def look(self, key):
        keys, _ = self.batch(key)
        for there in (self.pool.is_exist(f"k{key}"), *self.pool.batch_is_exist(keys)):
            if there not in (0, 1):
                self.expect(there)
        size = self.pool.get_size(f"k{key}")
        if size not in SIZES:
            self.expect(size)

    def remove(self, key):
        self.expect(self.pool.remove(f"k{key}", force=self.rng.random() < 0.5))

    def batch_remove(self, key):
        keys, _ = self.batch(key)
        self.expect_all(self.pool.batch_remove(keys[:2]))

    def remove_by_regex(self, key):
        went = self.pool.remove_by_regex(f"^k{key}$")
        if went < 0:  # more than one: others put it again meanwhile
            self.expect(went)


def main():
    master, seconds, threads, seed = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    memory, end = int(sys.argv[5]), sys.argv[6]
    store = MooncakeDistributedStore()
    code = store.setup("127.0.0.1", "P2PHANDSHAKE", memory, 16 << 20, "tcp", "", master)
    assert code == 0, code
    load = Load(store, threads, seed, StoreWorker, is_daemon=end == "calling")
    begin = time.monotonic()
    while time.monotonic() - begin < seconds or (min(load.done) < CALLS_LEAST and time.monotonic() - begin < seconds + 60):
        time.sleep(0.1)
    stuck = load.stop(30) if end != "calling" else []
    print(json.dumps({"stuck": stuck, "wrong": load.wrong[:20], "least": min(load.done), "counts": load.counts}), flush=True)
    sys.stdin.read()  # whatever memory it has given stays as long as others read it
    if end == "close":
        assert store.close() == 0
    return store


if __name__ == "__main__":
    kept = main()
