# SPDX-License-Identifier: Apache-2.0
"""Epochs, places of look-ups and groups of the package kvpool (stage `python` of tests/run)."""
import time

import numpy as np
import pytest

import kvpool

HERE = kvpool.PRESENT | kvpool.ON_HOST


@pytest.fixture
def pool_here(pool):
    with kvpool.Pool(pool.addr) as handle:
        yield handle


def is_stale(call, **kw):
    with pytest.raises(kvpool.Error) as e:
        call(**kw)
    return e.value.name == "STALE"


@pytest.mark.pool(nodes=1)
def test_calls_of_another_epoch(pool, pool_here):
    """Another client bumps: all that is asked for the epoch before is STALE, and changes nothing."""
    value = np.ones(100, np.uint8)
    back = np.zeros(100, np.uint8)
    pool_here.register(value)
    pool_here.register(back)
    pool_here.put("k", value, epoch=0)
    assert pool_here.get("k", epoch=0) == value.tobytes() and pool_here.get("k") == value.tobytes()
    with kvpool.Pool(pool.addr) as other:
        assert other.bump(epoch=0) == 1
        assert is_stale(other.bump, epoch=0)
        other.put("k", b"new", epoch=1)
    begun = time.monotonic()
    assert is_stale(pool_here.put, key="k2", value=value, epoch=0)
    assert is_stale(pool_here.put, key="k", value=value, upsert=True, epoch=0)
    assert is_stale(pool_here.get, key="k", epoch=0)
    assert is_stale(pool_here.get_into, key="k", target=back, epoch=0)
    assert is_stale(pool_here.lookup, keys=["k"], epoch=0)
    assert is_stale(pool_here.longest_prefix, keys=["k"], epoch=0)
    assert [e.name for e in pool_here.put_many(["k2", "k3"], [value, value], epoch=0)] == ["STALE"] * 2
    assert [e.name for e in pool_here.get_many(["k"], [back], epoch=0)] == ["STALE"]
    assert time.monotonic() - begun < 4.5  # of 5 each: none is asked again and again
    assert not back.any() and "k2" not in pool_here and pool_here.get("k", epoch=1) == b"new"
    with pool_here.lookup(["k"], epoch=1) as r:
        assert r.epoch == 1 and r.present == [True] and r.places is None
    with pytest.raises(OverflowError):
        pool_here.get("k", epoch=2**32)


@pytest.mark.pool(nodes=1)
def test_places(pool, pool_here):
    pool_here.put("a", b"1")
    pool_here.put("b", b"2")
    with pool_here.lookup(["a", "none", "b"], places=True) as r:
        assert r.places == bytes([HERE, 0, HERE]) and r.present == [True, False, True]
    with pool_here.longest_prefix(["a", "b", "none", "a"], places=True) as r:
        assert r.places == bytes([HERE, HERE, 0, 0]) and r.found == 2 and r.epoch == 0
    with kvpool.Pool(pool.addr, host_id="elsewhere") as far, far.lookup(["a"], places=True) as r:
        assert r.places == bytes([kvpool.PRESENT])
    assert pool_here.lookup([], places=True).places == b""


@pytest.mark.pool(nodes=1)
def test_groups(pool_here):
    """Hidden until all are put, and found by their ids."""
    blocks = np.arange(400, dtype=np.uint8).reshape(4, 100)
    pool_here.register(blocks)
    groups = [("g", 2, 0), None, "loose"]
    assert pool_here.put_many(["g0", "plain", "l0"], list(blocks[:3]), groups=groups) == [None] * 3
    assert [k in pool_here for k in ("g0", "plain", "l0")] == [False, True, True]
    with pool_here.longest_prefix(["g", "loose"], groups=True) as r:
        assert r.found == 0
    assert pool_here.put_many(["g1"], [blocks[3]], groups=[("g", 2, 1)]) == [None]
    with pool_here.longest_prefix(["g", "loose", "none"], groups=True, places=True) as r:
        assert r.found == 2 and r.places == bytes([HERE, HERE, 0])
    assert pool_here.lookup(["none", "g"], groups=True).present == [False, True]
    assert pool_here.get("g0") == blocks[0].tobytes()
    [wrong] = pool_here.put_many(["g2"], [blocks[0]], groups=[("g", 2, 2)])
    assert isinstance(wrong, kvpool.InvalidError)
    for bad, kind in (([5], TypeError), ([("g", 2)], TypeError), (["g", "g"], ValueError), ([("g", -1, 0)], OverflowError)):
        with pytest.raises(kind):
            pool_here.put_many(["g2"], [blocks[0]], groups=bad)


@pytest.mark.pool(nodes=1)
def test_master_wait(pool):
    """Calls wait once for a master that is away."""
    with kvpool.Pool(pool.addr, master_wait=0.2, deadline=30) as p:
        p.put("a", b"1")
        pool.master.kill9()
        begun = time.monotonic()
        for _ in range(3):
            with pytest.raises(kvpool.Error):
                p.exists("a")
        assert time.monotonic() - begun < 10  # of 30 each
