# SPDX-License-Identifier: Apache-2.0
"""Load on one kvpool.Pool from many threads: the threads of test_python_load.py, and each of its processes, which is

    python_load.py MASTER SECONDS THREADS SEED

and prints what it did as a line of JSON. Bytes say of which key and version they are, over their whole length.
"""
import collections
import json
import random
import sys
import threading
import time

import numpy as np

import kvpool

KEYS = 300
SIZES = (16, 400, 4096, 65536, 262144)
CAP = max(SIZES)
BATCH = 4

# What a call may find while others put, upsert, remove and evict. Anything else is wrong.
EXPECTED = {"NOT_FOUND", "STALE", "IN_PROGRESS", "HELD", "NO_SPACE", "RETRY_AFTER", "EAGAIN"}


def fill(memory, key, version):
    """Writes a value over the beginning of memory, and returns that part."""
    value = memory[:SIZES[(key + version) % len(SIZES)]]
    value.view(np.uint64)[0::2] = key
    value.view(np.uint64)[1::2] = version
    return value


def is_whole(data, key):
    """Whether all of it is one version of the key."""
    words = np.frombuffer(data, np.uint64)
    version = int(words[1])
    return len(data) == SIZES[(key + version) % len(SIZES)] and bool((words[0::2] == key).all() and (words[1::2] == version).all())


class Load:
    """Threads on one pool, until stop(); what went wrong is in wrong. worker: of a pool of what kind."""

    def __init__(self, pool, threads, seed, worker=None, is_daemon=False):
        self.pool = pool
        self.worker = worker or PoolWorker
        self.counts = collections.Counter()
        self.wrong = []
        self.done = [0] * threads  # calls of each
        self.is_stopping = False
        self.may_close = False  # CLOSED is how a thread ends then
        self._lock = threading.Lock()
        self.threads = [threading.Thread(target=self._run, args=(i, seed * 1000 + i), daemon=is_daemon) for i in range(threads)]
        for thread in self.threads:
            thread.start()

    def stop(self, timeout):
        """Ends the threads, and returns the names of those that do not end in time."""
        self.is_stopping = True
        return self.join(timeout)

    def join(self, timeout):
        end = time.monotonic() + timeout
        for thread in self.threads:
            thread.join(max(0.0, end - time.monotonic()))
        return [t.name for t in self.threads if t.is_alive()]

    def _run(self, i, seed):
        try:
            self.worker(self, i, random.Random(seed)).run()
        except kvpool.ClosedError as e:
            if not self.may_close or e.name != "CLOSED":
                self.wrong.append(repr(e))
        except BaseException as e:
            self.wrong.append(repr(e))


class Worker:
    """What a thread does: CALLS, at random, with memory of its own."""

    CALLS = ()

    def __init__(self, load, i, rng):
        self.load, self.pool, self.i, self.rng = load, load.pool, i, rng
        self.memory = np.zeros((2 * BATCH, CAP), np.uint8)
        self.counts = collections.Counter()

    def run(self):
        try:
            self.register()
            while not self.load.is_stopping:
                call = self.rng.choice(self.CALLS)
                if self.turn(getattr(self, call), self.rng.randrange(KEYS)):
                    self.counts[call] += 1
                self.load.done[self.i] += 1
            self.unregister()
        finally:
            with self.load._lock:
                self.load.counts.update(self.counts)

    def turn(self, call, key):
        """Whether it did what it is for."""
        call(key)
        return True

    def check(self, data, key, how):
        if not is_whole(data, key):
            self.load.wrong.append(f"{how} of k{key}: wrong bytes, length {len(data)}, first {bytes(data[:16])!r}")

    def numbers(self, key):
        """A batch of keys."""
        return [(key + i) % KEYS for i in range(BATCH)]

    def value(self, key, slot=0):
        return fill(self.memory[slot], key, self.rng.randrange(1 << 40))


class PoolWorker(Worker):
    """On a kvpool.Pool."""

    CALLS = ("put", "upsert", "get", "get", "get_into", "put_many", "get_many", "get_many", "view", "look", "prefix", "remove")

    def register(self):
        self.pool.register(self.memory)

    def unregister(self):
        self.pool.unregister(self.memory)

    def turn(self, call, key):
        try:
            call(key)
            return True
        except kvpool.Error as e:
            self.expect(e)
            return False

    def expect(self, e):
        if isinstance(e, kvpool.ClosedError):
            raise e
        self.counts[e.name] += 1
        if e.name not in EXPECTED:
            self.load.wrong.append(str(e))

    def put(self, key):
        self.pool.put(f"k{key}", self.value(key))

    def upsert(self, key):
        self.pool.put(f"k{key}", self.value(key), upsert=True)

    def get(self, key):
        self.check(self.pool.get(f"k{key}"), key, "get")

    def get_into(self, key):
        n = self.pool.get_into(f"k{key}", self.memory[0])
        self.check(self.memory[0][:n], key, "get_into")

    def put_many(self, key):
        keys = self.numbers(key)
        for error in self.pool.put_many([f"k{k}" for k in keys], [self.value(k, slot) for slot, k in enumerate(keys)]):
            if error is not None:
                self.expect(error)

    def get_many(self, key):
        keys = self.numbers(key)
        slots = self.memory[BATCH:]
        for k, slot, n in zip(keys, slots, self.pool.get_many([f"k{k}" for k in keys], [[s[:CAP // 2], s[CAP // 2:]] for s in slots])):
            if isinstance(n, int):
                self.check(slot[:n], k, "get_many")
            else:
                self.expect(n)

    def view(self, key):
        with self.pool.view(f"k{key}") as memory:
            copy = bytes(memory)
        self.check(copy, key, "view")  # counts only now: it was not replaced meanwhile

    def look(self, key):
        with self.pool.lookup([f"k{key}", f"k{(key + 1) % KEYS}"]) as r:
            assert r.found == sum(r.present)
        self.pool.exists(f"k{key}")

    def prefix(self, key):
        with self.pool.longest_prefix([f"k{(key + i) % KEYS}" for i in range(10)], ttl=1) as r:
            assert 0 <= r.granted <= r.found <= 10

    def remove(self, key):
        self.pool.remove(f"k{key}")


def main():
    master, seconds, threads, seed = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    with kvpool.Pool(master, name=f"load{seed}") as pool:
        load = Load(pool, threads, seed)
        time.sleep(seconds)
        stuck = load.stop(30)
    print(json.dumps({"stuck": stuck, "wrong": load.wrong[:20], "least": min(load.done), "counts": load.counts}), flush=True)


if __name__ == "__main__":
    main()
