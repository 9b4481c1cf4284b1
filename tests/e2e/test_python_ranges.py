# SPDX-License-Identifier: Apache-2.0
"""mooncake.store: ranges of objects, in one call and in sessions (stage `python` of tests/run)."""
import gc
import threading

import numpy as np
import pytest

from mooncake import _staging
from mooncake.store import MooncakeDistributedStore, ReplicateConfig
from stores import MIB, Memory, make

pytestmark = pytest.mark.pool(nodes=1, memory="256MiB")


@pytest.fixture
def target(store):
    return Memory(store, MIB)


def test_ranges_in_one_call(store, target):
    a, b, at = bytes(range(200)), b"0123456789", target.at
    assert store.put("a", a) == 0 and store.put("b", b) == 0
    assert store.get_into_ranges([at, at + 4096], [["a", "b"], ["a"]], [[[0, 10], [20]], [[5]]], [[[5, 100], [2]], [[199]]],
                                 [[[5, 10], [3]], [[1]]]) == [[[5, 10], [3]], [[1]]]
    assert target.part(0, 23) == a[5:10] + bytes(5) + a[100:110] + b[2:5] and target.part(4101, 1) == a[199:]
    # what is wrong with one costs that one
    assert store.get_into_ranges([at], [["b", "absent", "b"]], [[[0, 10], [0], [30]]], [[[5, 0], [0], [9]]],
                                 [[[6, 4], [1], [1]]]) == [[[-600, 4], [-704], [1]]]
    assert target.part(10, 4) == b"0123" and target.part(30, 1) == b"9"
    for dst, src, size, want in ((0, 5, 0, 0), (0, 10, 0, 0), (0, 11, 0, -600), (MIB, 0, 1, -600), (MIB - 1, 0, 2, -600),
                                 (0, 1 << 63, 1, -600), (0, 1, 1 << 63, -600), (0, 9, (1 << 64) - 9, -600), (-1, 0, 1, -600)):
        assert store.get_into_ranges([at], [["b"]], [[[dst]]], [[[src]]], [[[size]]]) == [[[want]]], (dst, src, size)
    assert store.get_into_ranges([4096], [["b"]], [[[0]]], [[[0]]], [[[1]]]) == [[[-600]]]
    assert store.get_into_ranges([0], [["b"]], [[[0]]], [[[0]]], [[[1]]]) == [[[-600]]]


def test_lists_that_do_not_fit_together(store, target):
    at = target.at
    assert store.put("b", b"0123456789") == 0
    assert store.get_into_ranges([], [], [], [], []) == []
    assert store.get_into_ranges([at], [[]], [[]], [[]], [[]]) == [[]]
    assert store.get_into_ranges([at], [["b"]], [[[]]], [[[]]], [[[]]]) == [[[]]]
    assert store.get_into_ranges([at], [["b"]], [[[0, 1]]], [[[5]]], [[[1]]]) == [[[-600, -600]]]
    assert store.get_into_ranges([at], [["b", "a"]], [[[0]]], [[[5]]], [[[1]]]) == [[[-600], [-600]]]
    assert store.get_into_ranges([at, at], [["b"]], [[[0]]], [[[5]]], [[[1]]]) == [[[-600]], [[-600]]]
    for bad in ([[[-1]]], [[["0"]]], [[[1.5]]], [[[None]]], [[5]], [["5"]]):
        with pytest.raises((TypeError, OverflowError)):
            store.get_into_ranges([at], [["b"]], [[[0]]], bad, [[[1]]])
    for keys in (["b"], [[5]], [[None]]):
        with pytest.raises(TypeError):
            store.get_into_ranges([at], keys, [[[0]]], [[[0]]], [[[1]]])
    with pytest.raises(UnicodeEncodeError):
        store.get_into_ranges([at], [["\ud800"]], [[[0]]], [[[0]]], [[[1]]])
    assert store.get_into_ranges([at], [["k" * 2000]], [[[0]]], [[[0]]], [[[1]]]) == [[[-704]]]
    assert store.get("b") == b"0123456789"


def test_ranges_of_more_than_a_window(store, target):
    """Objects of 96 MiB together go through 64 MiB at a time; a range of each is right, and bytes around it are left alone."""
    source = Memory(store, 8 * MIB, seed=5)
    for i in range(12):
        assert store.put_from(f"big/{i}", source.at + i, 8 * MIB - 64) == 0
    keys = [f"big/{i}" for i in range(12)]
    target.bytes[:] = 7
    assert store.get_into_ranges([target.at], [keys], [[[i * 100] for i in range(12)]], [[[5 * MIB]] * 12],
                                 [[[90]] * 12]) == [[[90]] * 12]
    for i in range(12):
        assert target.part(i * 100, 100) == source.part(5 * MIB + i, 90) + b"\x07" * 10


def test_a_get_session(store, target):
    at = target.at
    assert store.put("a", bytes(range(200))) == 0 and store.put("b", b"0123456789") == 0
    assert store.batch_get_session_start(["a", "b", "absent", "a"]) == [0, 0, -704, 0] and store.batch_get_session_start([]) == []
    read = store.batch_get_into_multi_buffer_ranges
    assert read(["a", "b", "absent"], [[at, at + 100], [at + 200], [at]], [[10, 5], [3], [1]], [[0, 50], [2], [0]]) == [15, 3, -600]
    assert target.part(0, 10) == bytes(range(10)) and target.part(100, 5) == bytes(range(50, 55)) and target.part(200, 3) == b"234"
    assert read(["b", "b"], [[at], [at + 1]], [[1], [1]], [[8], [9]]) == [1, 1] and target.part(0, 2) == b"89"
    for size, offset in ((11, 0), (5, 6), (1, 10), (1, 1 << 63), ((1 << 64) - 1, 1)):
        assert read(["b"], [[at]], [[size]], [[offset]]) == [-600]
    assert read(["b"], [[at]], [[0]], [[6]]) == [0] and read(["b"], [[]], [[]], [[]]) == [0]
    assert read(["b", "a"], [[at]], [[5]], [[6]]) == [-600, -600] and read(["b"], [[at, at]], [[5]], [[5]]) == [-600]
    assert read(["b"], [[64]], [[5]], [[5]]) == [-600] and read(["b"], [[at + MIB - 1]], [[2]], [[0]]) == [-600]
    for bad in ([["0"]], [[-1]], [5], [[1.0]], [[True]]):
        with pytest.raises((TypeError, OverflowError)):
            read(["b"], [[at]], bad, [[0]])
    # What a session has read stays, whatever becomes of the object.
    assert store.remove("b", force=True) == 0
    assert read(["b"], [[at]], [[10]], [[0]]) == [10] and target.part(0, 10) == b"0123456789"
    assert store.batch_get_session_end(["a", "absent", "b"]) == 0 == store.batch_get_session_end([])
    assert read(["a"], [[at]], [[1]], [[0]]) == [-600]
    with pytest.raises(TypeError):
        store.batch_get_session_start([5])


def test_a_put_session(store):
    source = Memory(store, MIB, seed=7)
    at, write = source.at, store.batch_put_from_multi_buffer_ranges
    assert store.put("there", b"x") == 0
    assert store.batch_put_session_start(["p", "q", "there", "p"], [100, 10, 5, 3]) == [0, 0, -705, -705]
    assert store.batch_put_session_start(["p"], [100]) == [-600] and store.batch_is_exist(["p", "q"]) == [0, 0]
    assert store.batch_put_session_start(["z"], [0]) == store.batch_put_session_start(["z"], [1, 2]) == [-600]
    assert store.batch_put_session_start(["z"], [1 << 40]) == [-200] and store.batch_put_session_start([""], [1]) == [-600]
    assert store.batch_put_session_start(["z"], [1 << 62]) == [-200] and store.batch_put_session_start([], []) == []
    for size in (-1, "1", 1.5, None):
        with pytest.raises((TypeError, ValueError)):
            store.batch_put_session_start(["z"], [size])
    assert write(["p", "q"], [[at, at + 50], [at + 3]], [[50, 50], [10]], [[50, 0], [0]]) == [100, 10]
    source.bytes[:1000] ^= 0xff  # it was copied
    assert write(["there"], [[at]], [[1]], [[0]]) == write(["z"], [[at]], [[1]], [[0]]) == [-600]
    assert write(["q"], [[at]], [[11]], [[0]]) == write(["q"], [[at]], [[2]], [[9]]) == [-600]
    assert write(["q"], [[64]], [[1]], [[0]]) == write(["q"], [[0]], [[1]], [[0]]) == [-600]
    assert write(["q"], [[at]], [[0]], [[0]]) == [0] and write(["q"], [[at]], [[1]], [[0, 1]]) == [-600]
    assert store.get("p") == b""
    assert store.batch_put_session_end(["p", "q", "z", "there"]) == [0, 0, -600, -600]
    source.bytes[:1000] ^= 0xff
    assert store.get("p") == source.part(50, 50) + source.part(0, 50) and store.get("q") == source.part(3, 10)
    assert store.batch_put_session_end(["p"]) == [-600]
    assert store.batch_put_session_start(["there"], [1]) == [-705] and store.remove("there") == 0  # to ask protects nothing
    # What was not written is zeros; what is revoked is not put.
    assert store.batch_put_session_start(["part", "gone"], [100, 100]) == [0, 0] and write(["part"], [[at]], [[50]], [[10]]) == [50]
    assert store.batch_put_session_revoke(["gone", "absent"]) == [0, -600]
    assert store.batch_put_session_end(["part", "gone"]) == [0, -600]
    assert store.get("part") == bytes(10) + source.part(0, 50) + bytes(40) and store.is_exist("gone") == 0


def test_sessions_of_several_configs_and_groups(store, pool):
    source = Memory(store, 4096, seed=9)
    pinned, grouped = ReplicateConfig(), ReplicateConfig()
    pinned.with_hard_pin = True
    grouped.group_ids = ["g", "g"]
    assert store.batch_put_session_start(["a"], [8], pinned) == [0]
    assert store.batch_put_session_start(["b", "c"], [8, 8], grouped) == [0, 0]
    assert store.batch_put_session_start(["d"], [8], grouped) == [-600]
    assert store.batch_put_from_multi_buffer_ranges(["c", "a", "b"], [[source.at]] * 3, [[8]] * 3, [[0]] * 3) == [8] * 3
    assert store.batch_put_session_end(["b", "a", "c"]) == [0, 0, 0]
    assert store.get_batch(["a", "b", "c"]) == [source.part(0, 8)] * 3


class _Collecting:
    """A lock. Whoever has it collects garbage, as Python may do wherever it allocates."""

    def __init__(self, lock):
        self._lock = lock

    def __enter__(self):
        self._lock.acquire()
        gc.collect()

    def __exit__(self, *exc):
        self._lock.release()


def test_a_slab_that_is_collected_inside_the_budgets_lock(store):
    budget = _staging.Budget(MIB)
    budget._lock = _Collecting(budget._lock)
    took = []

    def take_twice():
        for _ in range(2):
            slab = _staging.Slab(store._raw, [MIB], budget)
            slab.circle = slab  # only the collector frees it
            del slab
        gc.collect()
        took.append(budget.take(MIB))

    thread = threading.Thread(target=take_twice, daemon=True)
    gc.disable()  # at no other place
    try:
        thread.start()
        thread.join(20)
    finally:
        gc.enable()
    assert not thread.is_alive() and took == [True]


def test_staged_memory_is_bounded_and_comes_back(store):
    """More than a session may stage: -200, until sessions end, revoked or not."""
    keys = [f"k{i}" for i in range(5)]
    for _ in range(2):
        assert store.batch_put_session_start(keys[:4], [255 * MIB] * 4) == [0] * 4
        assert store.batch_put_session_start(keys[4:], [255 * MIB]) == [-200]
        assert store.batch_put_session_revoke(keys) == [0] * 4 + [-600]
    assert store.batch_put_session_start(keys[:4], [255 * MIB] * 4) == [0] * 4


def test_sessions_of_a_closed_store(pool, store):
    other = MooncakeDistributedStore()
    for state in ("new", "closed"):
        assert other.batch_get_session_start(["a"]) == other.batch_put_session_start(["a"], [1]) == [-600]
        assert other.batch_get_into_multi_buffer_ranges(["a"], [[1]], [[1]], [[0]]) == [-600]
        assert other.batch_put_from_multi_buffer_ranges(["a"], [[1]], [[1]], [[0]]) == [-600]
        assert other.batch_put_session_end(["a"]) == other.batch_put_session_revoke(["a"]) == [-600]
        assert other.get_into_ranges([1], [["a"]], [[[0]]], [[[0]]], [[[1]]]) == [[[-600]]]
        assert other.batch_get_session_end(["a"]) == (-600 if state == "new" else 0)
        if state == "new":
            assert other.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", pool.addr) == 0
            assert other.batch_put_session_start(["left open"], [1]) == [0]
        assert other.close() == 0
    assert store.is_exist("left open") == 0


def test_memory_that_a_closed_pool_does_not_take(pool, store):
    """What is staged says why there is no room for it: the store may be closed meanwhile."""
    raw = make(pool.addr)._raw
    assert raw.close() == 0
    for budget in (None, store._staged):
        with pytest.raises(_staging.Refused) as e:
            _staging.Slab(raw, [8], budget)
        assert e.value.code == -600
    assert _staging._read(raw, [("k", 8)], None) == {"k": -600}
    with pytest.raises(_staging.Refused) as e:
        _staging.Slab(store._raw, [store._staged.limit + 1], store._staged)
    assert e.value.code == -200
    del e
    gc.collect()
    assert store._staged.take(store._staged.limit)  # nothing of it is lost


def test_layers_of_many_blocks(store):
    """As connectors do it: 200 blocks of 32 layers, a layer a call, in both directions."""
    blocks, layers, piece = 200, 32, 512
    source, target = Memory(store, blocks * layers * piece, seed=11), Memory(store, blocks * layers * piece)
    keys = [f"block/{i}" for i in range(blocks)]

    def row(memory, layer):  # memory holds a layer after the other
        return [[memory.at + (layer * blocks + i) * piece] for i in range(blocks)]

    assert store.batch_put_session_start(keys, [layers * piece] * blocks) == [0] * blocks
    for layer in range(layers):
        assert store.batch_put_from_multi_buffer_ranges(keys, row(source, layer), [[piece]] * blocks,
                                                        [[layer * piece]] * blocks) == [piece] * blocks
    assert store.batch_put_session_end(keys) == [0] * blocks
    assert store.get("block/3")[piece:2 * piece] == source.part((blocks + 3) * piece, piece)
    assert store.batch_get_session_start(keys) == [0] * blocks
    for layer in range(layers):
        assert store.batch_get_into_multi_buffer_ranges(keys, row(target, layer), [[piece]] * blocks,
                                                        [[layer * piece]] * blocks) == [piece] * blocks
    assert store.batch_get_session_end(keys) == 0 and (source.bytes == target.bytes).all()


def test_threads_that_end_each_others_sessions(store, scaled):
    """Memory of a session that ends during a copy lives as long as that: what is copied is right, or there is none."""
    target = Memory(store, MIB)
    source = np.random.default_rng(1).integers(0, 256, MIB, np.uint8).tobytes()
    assert store.put("k", source) == 0
    wrong, stop = [], threading.Event()

    def end():
        while not stop.is_set():
            store.batch_get_session_end(["k"])

    thread = threading.Thread(target=end)
    thread.start()
    copied = 0
    for _ in range(scaled(2000)):
        store.batch_get_session_start(["k"])
        [n] = store.batch_get_into_multi_buffer_ranges(["k"], [[target.at, target.at + MIB // 2]], [[MIB // 2, MIB // 2]],
                                                       [[0, MIB // 2]])
        copied += n > 0
        if n not in (MIB, -600) or (n == MIB and target.part(0, MIB) != source):
            wrong.append(n)
    stop.set()
    thread.join(20)
    assert wrong == [] and copied > 0
