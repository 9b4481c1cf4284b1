# SPDX-License-Identifier: Apache-2.0
"""mooncake.store: what a ReplicateConfig asks for, and objects of many pieces."""
import json

import numpy as np
import pytest

import kvpool
from conftest import own_s
from mooncake.store import ReplicateConfig, SoftPinAction
from stores import Memory, make

SIZE = 256 << 10


def config(**fields):
    made = ReplicateConfig()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def is_there(store, *keys):
    """A look that protects nothing, unlike is_exist."""
    found = store.batch_get_replica_desc(list(keys))
    return [key in found for key in keys]


def fill(store, until):
    """Puts until that is so: a pool of 16 MiB has gone through all of its memory twice after 128."""
    for i in range(160):
        if until():
            return
        assert store.put(f"filler/{until.__name__}/{i}", bytes(SIZE)) == 0
    pytest.fail("nothing was evicted")


@pytest.mark.pool(nodes=0)
def test_more_copies_than_there_can_be(store, pool):
    for host in ("one", "two"):
        pool.add_node(host, "64MiB", "--host-id", host)
    memory = Memory(store, 100, 1)
    for replicas in (8, 9, 200, 1 << 40):
        made = config(replica_num=replicas)
        assert store.upsert("k", b"x", made) == 0 == store.upsert_parts("p", b"x", config=made)
        assert store.batch_upsert_from(["m"], [memory.at], [100], made) == [0]
        assert [len(store.get_replica_desc(key)) for key in "kpm"] == [2, 2, 2]


@pytest.mark.pool(nodes=1, memory="16MiB")
def test_a_hard_pin_beside_a_soft_one(store):
    """Fails if both are refused, or what is pinned so is evicted."""
    assert store.put("pinned", bytes(SIZE), config(with_hard_pin=True, soft_pin_action=SoftPinAction.ENABLE)) == 0
    assert store.put("plain", bytes(SIZE)) == 0

    def evicted():
        return not is_there(store, "plain")[0]

    fill(store, evicted)
    assert is_there(store, "pinned") == [True] and store.remove("pinned", True) == 0


def test_a_soft_pin_of_no_time(store):
    """0 ms is no pin; how long another one is meant to last changes nothing."""
    def pinned(ttl_ms):
        made = config(soft_pin_action=SoftPinAction.ENABLE, soft_pin_ttl_ms=ttl_ms)
        assert store.upsert("k", bytes(SIZE), made) == 0
        return sum(tenant["soft_pinned_bytes"] for tenant in json.loads(store._raw.stat(0))["tenants"])

    assert [pinned(ttl_ms) for ttl_ms in (0, 1, None)] == [0, SIZE, SIZE]


PUTS = {
    "put": lambda store, memory, key, made: store.put(key, memory.part(0, SIZE), made),
    "upsert": lambda store, memory, key, made: store.upsert(key, bytearray(memory.part(0, SIZE)), made),
    "put_parts": lambda store, memory, key, made: store.put_parts(key, memory.part(0, 1000), b"", memory.bytes[1000:SIZE], config=made),
    "upsert_parts": lambda store, memory, key, made: store.upsert_parts(key, memory.part(0, SIZE), config=made),
    "put_batch": lambda store, memory, key, made: store.put_batch([key], [memory.part(0, SIZE)], made),
    "put_from": lambda store, memory, key, made: store.put_from(key, memory.at, SIZE, made),
}


@pytest.mark.parametrize("how", PUTS)
@pytest.mark.pool(nodes=1, memory="16MiB")
def test_groups_are_evicted_together(store, how):
    """Of two that are put one after the other the second goes when the first does, where they are of one group, and only there."""
    memory = Memory(store, SIZE, 7)
    grouped = config(group_ids=["g"])
    for key, made in (("old", grouped), ("alone", config())):
        assert PUTS[how](store, memory, key, made) == 0
    for i in range(24):
        assert store.put(f"between/{i}", bytes(SIZE)) == 0
    for key, made in (("new", grouped), ("new alone", config())):
        assert PUTS[how](store, memory, key, made) == 0
        assert store.get(key) == memory.part(0, SIZE)

    def evicted():
        return not all(is_there(store, "old", "new"))

    fill(store, evicted)
    assert is_there(store, "old", "new", "new alone") == [False, False, True]


def test_groups_that_cannot_be(store):
    with pytest.raises(TypeError):
        store.put("k", b"x", config(group_ids=[7]))
    with pytest.raises(TypeError):
        store.put("k", "text", config(group_ids=["g"]))
    assert store.put("k", b"x", config(group_ids=[""])) == -600 == store.put("", b"x", config(group_ids=["g"]))
    assert store.put_parts("k", config=config(group_ids=["g"])) == 0 == store.put_parts("k", b"", config=config(group_ids=["g"]))
    assert store.put("k", b"", config(group_ids=["g"])) == store.put("k", b"")
    assert store.is_exist("k") == 0


class Given:
    """Memory that is given by DLPack alone."""

    def __init__(self, values):
        self.values = values

    def __dlpack__(self, **kw):
        return self.values.__dlpack__(**kw)


@pytest.mark.parametrize("is_registered", (False, True))
def test_groups_of_what_gives_dlpack(store, is_registered):
    memory = Memory(store, 4096, 7) if is_registered else None
    values = memory.bytes if memory else np.arange(4096, dtype=np.uint8)
    made = config(group_ids=["g"])
    assert store.put("k", Given(values), made) == 0 == store.upsert("k", Given(values[:100]), made)
    assert store.get("k") == values[:100].tobytes()
    assert store.put_batch(["b"], [Given(values)], made) == 0 == store.put_parts("p", Given(values), b"x", config=made)
    assert store.get("b") == values.tobytes() and store.get("p") == values.tobytes() + b"x"
    assert store.put_parts("q", Given(values), b"x") == 0 and store.get("q") == store.get("p")
    with pytest.raises(BufferError):
        store.put("k", Given(values[::2]), made)


def test_a_batch_with_one_that_cannot_be(store):
    for verb in (store.put_batch, store.upsert_batch):
        assert verb(["a", "b"], [b"1", b""]) == -600
        with pytest.raises(TypeError):
            verb(["a", "b"], [b"1", 7])
        assert store.batch_is_exist(["a", "b"]) == [0, 0]
    assert store.put_batch(["a", ""], [b"1", b"2"]) == -600 and store.batch_is_exist(["a", "b"]) == [1, 0]


def test_objects_of_many_pieces(store):
    n, step = 3000, 11
    source, target = Memory(store, n * step, 3), Memory(store, n * step)
    order = np.random.default_rng(4).permutation(n)
    sizes = [int(size) for size in np.random.default_rng(5).integers(1, step + 1, n)]
    rows = [[source.at + int(i) * step for i in order], [source.at, source.at + 1]]
    assert store.batch_put_from_multi_buffers(["many", "two"], rows, [sizes, [1, 2]]) == [0, 0]
    value = b"".join(source.part(int(i) * step, size) for i, size in zip(order, sizes))
    assert store.get("many") == value and store.get("two") == source.part(0, 1) + source.part(1, 2)
    into = [[target.at + i * step for i in range(n)], [target.at + n * step - 3, target.at + n * step - 2], [target.at]]
    got = store.batch_get_into_multi_buffers(["many", "two", "absent"], into, [sizes, [1, 2], [1]])
    assert got == [len(value), 3, -704]
    assert b"".join(target.part(i * step, size) for i, size in enumerate(sizes[:-1])) == value[:-sizes[-1]]
    # One that is shorter than its memory: what lies behind it is left alone.
    target.bytes[:] = 0
    assert store.batch_get_into_multi_buffers(["two"], into[:1], [sizes]) == [3] and target.bytes.any()
    assert target.bytes[:n * step].nonzero()[0].max() < 4 * step
    short = [1] * n
    assert store.batch_get_into_multi_buffers(["many", "two"], [into[0]] * 2, [short, short]) == [-600, 3]


def test_many_pieces_that_cannot_be(store):
    n = 2000
    memory, foreign = Memory(store, n), np.zeros(n, np.uint8)
    good, ones = [memory.at + i for i in range(n)], [1] * n
    for row, sizes, code in ((good[:-1] + [foreign.ctypes.data], ones, -600), (good, ones[:-1] + [0], -600), (good, ones[:-1] + [-1], -600),
                             (good, ones[:-1] + [2], -600), (good, ones[:-1] + [1 << 62], -200), (good, ones[:-1], -600)):
        assert store.batch_put_from_multi_buffers(["bad", "good"], [row, good], [sizes, ones])[0] == code
        assert store.batch_get_into_multi_buffers(["good"], [row], [sizes])[0] in (code, n)
        assert store.is_exist("bad") == 0
    assert store.get("good") == bytes(n)
    with pytest.raises(TypeError):
        store.batch_put_from_multi_buffers(["bad"], [good], [["1"] * n])


@pytest.mark.pool(nodes=1)
def test_many_pieces_of_a_group(store):
    memory = Memory(store, 2000, 9)
    rows = [[memory.at + i for i in range(2000)]] * 2
    assert store.batch_put_from_multi_buffers(["a", "b"], rows, [[1] * 2000] * 2, config(group_ids=["g", "g"])) == [0, 0]
    assert store.get("b") == memory.part(0, 2000)


PUTS_ONE = {
    **PUTS,
    "upsert_batch": lambda store, memory, key, made: store.upsert_batch([key], [memory.part(0, SIZE)], made),
    "upsert_from": lambda store, memory, key, made: store.upsert_from(key, memory.at, SIZE, made),
    "put_from_with_metadata": lambda store, memory, key, made: store.put_from_with_metadata(key, memory.at + 10, memory.at, SIZE - 10, 10, made),
    "batch_put_from": lambda store, memory, key, made: max(store.batch_put_from([key], [memory.at], [SIZE], made)),
    "multi_buffers": lambda store, memory, key, made: max(
        store.batch_put_from_multi_buffers([key], [[memory.at, memory.at + 100]], [[100, SIZE - 100]], made)),
    "many pieces": lambda store, memory, key, made: max(store.batch_put_from_multi_buffers(
        [key], [[memory.at + i for i in range(1100)]], [[1] * 1099 + [SIZE - 1099]], made)),
    "session": lambda store, memory, key, made: max(store.batch_put_session_start([key], [SIZE], made) + store.batch_put_session_end([key])),
}


def segments(pool):
    """Its nodes, as stat tells of them."""
    with kvpool.Pool(pool.addr) as asking:
        return asking.stat()["segments"]


def where(store, key):
    """The nodes of its copies."""
    return sorted(d.get_memory_descriptor().buffer_descriptor.transport_endpoint for d in store.get_replica_desc(key))


@pytest.mark.parametrize("how", PUTS_ONE)
@pytest.mark.pool(nodes=2)
def test_preferred_segments(store, pool, how):
    """Fails if any of the fields changes nothing: by chance all would lie so once in 64 runs of each."""
    memory = Memory(store, SIZE, 7)
    nodes = segments(pool)
    for i in range(2):
        at, other, name = nodes[i]["addr"], nodes[1 - i]["addr"], nodes[i]["node"]
        for k, fields in enumerate((
                {"preferred_segment": at}, {"preferred_segment": name}, {"preferred_segments": (at,)},
                {"preferred_segments": [at, other]}, {"preferred_segment": at, "preferred_segments": [other]},
                {"preferred_segments": ["nowhere:1", at]}, {"preferred_segment": "nowhere:1", "preferred_segments": [at]},
                {"preferred_segment": at, "group_ids": ["g"]}, {"preferred_segment": at, "with_hard_pin": True})):
            key = f"{i}/{k}"
            assert PUTS_ONE[how](store, memory, key, config(**fields)) == 0
            assert where(store, key) == [at], fields
            if how != "session":
                assert len(store.get(key)) == SIZE
    for fields in ({"preferred_segment": "nowhere:1"}, {"preferred_segments": ["nowhere:1", ""]}):
        assert PUTS_ONE[how](store, memory, str(fields), config(**fields)) == 0 and len(where(store, str(fields))) == 1


@pytest.mark.pool(nodes=0)
def test_preferred_segment_that_is_full(pool):
    """Gives way to one that has room, and is chosen again where none has."""
    stores = [make(pool.addr, 16 << 20) for _ in range(2)]
    store, first = stores[0], stores[0].get_hostname()
    made = config(preferred_segment=first)
    assert [node["addr"] for node in segments(pool)] == [s.get_hostname() for s in stores]
    lies = []
    for i in range(96):
        assert store.put(f"k{i}", bytes(SIZE), made) == 0
        lies.append(where(store, f"k{i}") == [first])
        store._known_nodes = 0.0, []  # what is known of nodes is a second old at most
    assert 48 < lies.index(False) <= 64
    assert all(is_there(store, *(f"k{i}" for i in range(96)))), "something was evicted while there was room"
    for i in range(96, 160):
        assert store.put(f"k{i}", bytes(SIZE), made) == 0
    store._known_nodes = 0.0, []
    assert store.put("last", bytes(SIZE), made) == 0 and where(store, "last") == [first]
    for s in stores:
        assert s.close() == 0


@pytest.mark.parametrize("how", ("put", "batch_put_from"))
@pytest.mark.pool(nodes=2)
def test_preferred_segment_that_hangs(store, pool, how):
    """What it does not take lies elsewhere when the put returns, which is in the time of a call."""
    memory = Memory(store, SIZE, 7)
    nodes = {node["node"]: node["addr"] for node in segments(pool)}
    made = config(preferred_segment=nodes["node2"])
    assert PUTS_ONE[how](store, memory, "before", made) == 0 and where(store, "before") == [nodes["node2"]]
    pool.nodes[1].freeze()
    try:
        begun = own_s()
        assert PUTS_ONE[how](store, memory, "k", made) == 0
        assert own_s() - begun < 9
        assert store.get("k") == memory.part(0, SIZE)
    finally:
        pool.nodes[1].thaw()


def test_preferred_segments_that_cannot_be():
    for value in (7, None, "text", [7], [b"x"]):
        with pytest.raises(TypeError):
            config(preferred_segments=value)
    assert config(preferred_segments=("a", "b")).preferred_segments == ["a", "b"]
