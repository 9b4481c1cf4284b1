# SPDX-License-Identifier: Apache-2.0
"""The extension's Asker (look-ups in a thread of its own) and Job (blocks of an engine's cache), which the vLLM connector is made of."""
import hashlib
import os
import struct
import threading
import time

import pytest

import kvpool
from kvpool import _kvpool

LEN, BLOCKS = 4096, 64
ERR = {name: number for name, (number, _, _) in _kvpool.errors.items()}
HASHES = [hashlib.sha256(str(i).encode()).digest() for i in range(BLOCKS)]


@pytest.fixture
def cache(pool):
    """(an open pool, memory of BLOCKS blocks in two layers of half a block each, its layout)"""
    with kvpool.Pool(pool.addr) as opened:
        memory = bytearray(BLOCKS * LEN)
        opened.register(memory)
        base = _kvpool.memory_of(memory, True)[0]
        yield opened, memory, struct.pack("=6Q", base, LEN // 2, LEN // 2, base + BLOCKS * LEN // 2, LEN // 2, LEN // 2)


def fill(memory, seed):
    memory[:] = hashlib.shake_128(str(seed).encode()).digest(len(memory))
    return bytes(memory)


def get(job, seconds=5.0, ends=True, flags=0, epoch=0):
    return job.get(time.monotonic(), seconds, 0.0, 0.0, seconds, 0.0, ends, flags, epoch)


def put_all(opened, layout, **more):
    job = _kvpool.Job(opened._raw, layout, b"x@", HASHES, list(range(BLOCKS)), more.get("group"), more.get("lineage"))
    assert job.put(time.monotonic() + 5, 0, 0)[0] == 0
    assert job.results() == [0] * BLOCKS
    return job


def test_blocks_come_back_and_two_threads_share_a_job(cache):
    opened, memory, layout = cache
    wanted = fill(memory, 1)
    job = put_all(opened, layout, lineage=(7, 3))
    assert opened.lineage(job.key(1)) == (int.from_bytes(HASHES[1][-8:], "big"), int.from_bytes(HASHES[0][-8:], "big"), 4)
    assert opened.lineage(job.key(0))[1] == 7
    fill(memory, 2)
    back = _kvpool.Job(opened._raw, layout, b"x@", HASHES, list(range(BLOCKS)))
    threads = [threading.Thread(target=get, args=(back,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert back.results() == [0] * BLOCKS and memory == wanted and back.block_bytes == LEN and len(back) == BLOCKS


def test_a_failure_ends_the_prefix(cache):
    opened, memory, layout = cache
    job = put_all(opened, layout)
    opened.remove(job.key(5), force=True)
    opened.put(job.key(9), b"short", upsert=True)
    for ends in (True, False):
        back = _kvpool.Job(opened._raw, layout, b"x@", HASHES, list(range(BLOCKS)))
        get(back, ends=ends)
        results = back.results()
        assert results[:6] == [0] * 5 + [ERR["NOT_FOUND"]]
        assert ends or results[9] == ERR["BUFFER_SMALL"] and results.count(0) == BLOCKS - 2
    stopped = _kvpool.Job(opened._raw, layout, b"x@", HASHES, list(range(BLOCKS)))
    stopped.stop()
    get(stopped)
    assert stopped.results() == [ERR["CANCELLED"]] * BLOCKS
    late = _kvpool.Job(opened._raw, layout, b"x@", HASHES, list(range(BLOCKS)))
    assert get(late, seconds=0.0)[0] == 0 and late.results() == [ERR["CANCELLED"]] * BLOCKS


def test_groups_and_look_ups(cache):
    opened, memory, layout = cache
    asker, parts = _kvpool.Asker(opened._raw), [(b"g@", HASHES)]

    def ask(number, flags=_kvpool.GROUPS, **given):
        assert asker.ask(number, given.get("parts", parts), True, 0, 5000, flags, given.get("epoch", 0))
        while (answer := asker.take(number)) is None:
            time.sleep(0.001)
        return answer

    _kvpool.Job(opened._raw, layout, b"m0@", HASHES, range(BLOCKS), (b"g@", 2, 0)).put(time.monotonic() + 5, 0, 0)
    err, _, tickets, _, _ = ask(1)
    assert err == 0 and tickets[0][1:] == (0, 0)
    _kvpool.Job(opened._raw, layout, b"m1@", HASHES, range(BLOCKS), (b"g@", 2, 1)).put(time.monotonic() + 5, 0, 0)
    err, _, tickets, present, _ = ask(2, _kvpool.GROUPS | _kvpool.PLACES)
    assert err == 0 and len(tickets) == 1 and tickets[0][1] == BLOCKS and 0 < tickets[0][2] <= BLOCKS
    assert all(flag & _kvpool.PRESENT for flag in present)
    assert opened._raw.lookup_release(*tickets[0]) == 0
    both = ask(3, 0, parts=[(b"m0@", HASHES), (b"m1@", HASHES[:5]), (b"no@", HASHES[:1])])
    assert both[2][0][1] == 2 and both[3][:4] == b"\1\1\0\0"  # the first of each part, then the second of each part
    assert ask(4, _kvpool.GROUPS | _kvpool.EPOCH, epoch=9)[0] == ERR["STALE"]
    with pytest.raises(KeyError):
        asker.take(4)
    for number in range(100, 5000):
        if not asker.ask(number, parts, True, 0, 5000, _kvpool.GROUPS, 0):
            break
        asker.drop(number)
    for bad in ([(b"g@", ["x"])], [(b"g@", [b""])], [(b"g@", [b"1", b"22"])], [b"g@"], [("g@", HASHES)], 5, [(b"x" * 2000, HASHES)]):
        with pytest.raises((TypeError, ValueError)):
            asker.ask(1, bad, True, 0, 5000, 0, 0)
    if (child := os.fork()) == 0:
        os._exit(0 if not asker.ask(7, parts, True, 0, 5000, 0, 0) else 1)
    assert os.waitpid(child, 0)[1] == 0
    asker.close()
    assert not asker.ask(8, parts, True, 0, 5000, 0, 0)
    assert opened.stat()["pool"]["reserved_bytes"] <= BLOCKS * 2 * LEN


@pytest.mark.parametrize("wrong", [dict(layout=b""), dict(layout=b"1234"), dict(layout=struct.pack("=3Q", 0, 0, 0)), dict(prefix=b"x" * 1024),
                                   dict(blocks=[1]), dict(blocks=[-1] * BLOCKS), dict(blocks=["a"] * BLOCKS), dict(hashes=[1]), dict(group=5),
                                   dict(group=(b"g",)), dict(lineage=3)])
def test_wrong_arguments_of_a_job(cache, wrong):
    opened, _, layout = cache
    given = {"layout": layout, "prefix": b"x", "hashes": HASHES, "blocks": list(range(BLOCKS)), "group": None, "lineage": None} | wrong
    with pytest.raises((TypeError, ValueError)):
        _kvpool.Job(opened._raw, *given.values())
