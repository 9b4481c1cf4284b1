# SPDX-License-Identifier: Apache-2.0
"""A rank with an SSD tier, for test_python_ssd.py: a process with a mooncake.store, which answers each line, an expression, with its value as JSON.

    store_rank.py '{arguments of setup()}'
"""
import json
import logging
import sys

from mooncake.store import MooncakeDistributedStore
from stores import lasting_child  # noqa: F401: for the lines

LEN = 256 << 10


def value(i):
    return b"%08d" % i * (LEN // 8)


def put_all(first, n):
    return sum(store.put(f"k{i}", value(i)) for i in range(first, first + n))


def get_all(first, n):
    """[how many are found, how many are wrong]"""
    got = [store.get(f"k{i}") for i in range(first, first + n)]
    return [sum(1 for g in got if g), sum(1 for i, g in enumerate(got, first) if g not in (b"", value(i)))]


def kinds(key):
    return [[d.is_memory_replica(), d.is_disk_replica(), d.is_local_disk_replica()] for d in store.get_replica_desc(key)]


logging.basicConfig(level=logging.WARNING)
store = MooncakeDistributedStore()
print(json.dumps(store.setup(json.loads(sys.argv[1]))), flush=True)
for line in sys.stdin:
    print(json.dumps(eval(line)), flush=True)
store.close()
