# SPDX-License-Identifier: Apache-2.0
"""Lineages by Python: what is put is told, also after the master was killed."""
import asyncio

import pytest

import kvpool
from conftest import wait_until
from kvevents import chain
from test_conductor import BLOCK, Conductor, publishers  # noqa: F401: the fixture
from test_conductor_pool import register_pool, tokens_of
from test_pool_events import endpoints, options

FIRST = (2**64 - 1, 0, 0)
SECOND = (5, 2**64 - 1, 2**32 - 1)


@pytest.mark.limit(120)
def test_lineage_outlives_the_master(make_pool, bench):
    """Fails if a lineage is lost or changed when the master is killed and started again, or without its log the bytes are."""
    pool = make_pool(nodes=1, data_dir=f"{bench.home}/data")
    value = bytearray(b"value")
    with kvpool.Pool(pool.addr) as handle:
        handle.register(value)
        assert handle.put_many(["a", "b"], [value, value], lineages=[FIRST, None]) == [None, None]
        handle.put("new", b"old", lineage=FIRST)
        handle.put("new", b"new", lineage=SECOND, upsert=True)
    expected = {"a": FIRST, "b": None, "new": SECOND}
    for name in ("data", "other"):
        pool.master.kill9()
        pool.master = bench.master(listen=pool.master.listen, data_dir=f"{bench.home}/{name}", name=f"with-{name}")
        with kvpool.Pool(pool.addr) as handle:
            wait_until(lambda: all(handle.exists_many(list(expected))), 30, "the node to be back")
            assert {key: handle.get(key) for key in expected} == {"a": b"value", "b": b"value", "new": b"new"}
            told = {key: handle.lineage(key) for key in expected}
            assert told == (expected if name == "data" else dict.fromkeys(expected))


@pytest.mark.pool(nodes=1)
def test_lineage_that_is_none(pool):
    """Fails if what is no lineage is put, if an absent key has one, or asyncio says something else."""
    async def by_asyncio():
        async with kvpool.AsyncPool(pool.addr) as handle:
            await handle.put("async", b"x", lineage=SECOND)
            return await handle.lineage("async")

    bad = [(one, TypeError) for one in ("text", [1, 2, 3], (1, 2), (1, 2, 3, 4), (1, 2, "3"), (1.0, 2, 3), (None, 2, 3))]
    bad += [(one, OverflowError) for one in ((2**64, 0, 0), (0, 2**64, 0), (0, 0, 2**32), (-1, 0, 0))]
    with kvpool.Pool(pool.addr) as handle:
        for one, error in bad:
            with pytest.raises(error):
                handle.put("bad", b"x", lineage=one)
            with pytest.raises(error):
                handle.put_many(["bad"], [b"x"], lineages=[one])
        for lineages, error in (([], ValueError), (5, TypeError), ("x", TypeError)):
            with pytest.raises(error):
                handle.put_many(["bad"], [b"x"], lineages=lineages)
        with pytest.raises(kvpool.NotFoundError):
            handle.lineage("bad")
        assert asyncio.run(by_asyncio()) == handle.lineage("async") == SECOND


def test_lineage_counts_at_the_conductor(make_pool, bench, publishers):  # noqa: F811
    """Fails if an object whose put told its place in a prompt does not count for the engines that share the pool, without any event of theirs, or goes on counting when
    it is gone; also where it was put before anybody asked for it."""
    at = endpoints()
    pool = make_pool(nodes=1, data_dir=f"{bench.home}/data", master_args=options(at))
    conductor, engine, tokens = Conductor(bench), publishers(), tokens_of(1, 3)
    hashes = chain(tokens, BLOCK)
    with kvpool.Pool(pool.addr) as handle:
        for i in range(2):
            handle.put(f"app/{i}", b"x", lineage=(hashes[i], hashes[i - 1] if i else 0, i))
        register_pool(conductor, at)
        wait_until(lambda: conductor.service()["state"] == "live", 5, "the subscription")
        conductor.register(engine, backends=[{"key_prefix": "app/"}])
        wait_until(lambda: conductor.matched(tokens).get("CPU") == 2 * BLOCK, 10, "what was there")
        handle.put("app/2", b"x", lineage=(hashes[2], hashes[1], 2))
        wait_until(lambda: conductor.matched(tokens)["longest_matched"] == 3 * BLOCK, 5, "the third block")
        handle.remove("app/1")
        wait_until(lambda: conductor.matched(tokens)["longest_matched"] == BLOCK, 5, "the end of the second")
