# SPDX-License-Identifier: Apache-2.0
"""Lineages by Python: what is put is told, also after the master was killed."""
import asyncio

import pytest

import kvpool
from conftest import wait_until

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
