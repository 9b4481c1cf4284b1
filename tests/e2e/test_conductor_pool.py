# SPDX-License-Identifier: Apache-2.0
"""The conductor and a real pool: objects under keys of upstream's connector count for the engines that store there, once engines' events have told which hash
stands where, and all ranks' parts are there; on memory, on SSD; over the ends of master and conductor.
"""
import hashlib
import os
import pathlib
import struct

import pytest

from conftest import wait_until
from kvevents import pack
from standby import Masters, needs_etcd
from test_conductor import BLOCK, Conductor, Publisher, publishers, subscribed  # noqa: F401: the fixture
from test_pool_events import endpoints, options
from test_tier import MEMORY, SSD, ssd_of, written
from clients import figures

PREFIX = "run@tiny"


def tokens_of(prompt, blocks):
    return [1000 * prompt + i for i in range(blocks * BLOCK)]


def hex_of(prompt, i):
    return hashlib.sha256(f"{prompt}/{i}".encode()).hexdigest()


def key(prompt, i, rank=0, prefix=PREFIX, group=0):
    return f"{prefix}@tp_rank:{rank}@pcp0@dcp0@pp_rank:0@group:{group}@{hex_of(prompt, i)}"


def stored(prompt, blocks, medium="GPU", first=0, **more):
    """A payload in which an engine tells its blocks of a prompt."""
    hashes = [int(hex_of(prompt, i)[-16:], 16) for i in range(blocks)]
    return pack([0, [{"type": "BlockStored", "block_hashes": hashes[first:], "parent_block_hash": hashes[first - 1] if first else None,
                      "token_ids": tokens_of(prompt, blocks)[first * BLOCK:], "block_size": BLOCK, "medium": medium, **more}]])


def removed(prompt, blocks):
    return pack([0, [{"type": "BlockRemoved", "block_hashes": [int(hex_of(prompt, i)[-16:], 16) for i in range(blocks)], "medium": "GPU"}]])


def register_pool(conductor, at, name="pool"):
    status, answer = conductor.ask("/register", {"endpoint": at[0], "replay_endpoint": at[1], "type": "Mooncake", "instance_id": name, "shared": True})
    assert status == 200, answer


def joined(conductor, instance="i"):
    return next(s for s in conductor.ask("/services")[1] if s["instance_id"] == instance)["joins"][0]


def wait_match(conductor, prompt, blocks, timeout=10, **want):
    """Until the longest match, and those of these media, are so many blocks."""
    want = {name: n * BLOCK for name, n in want.items()}

    def holds():
        got = conductor.matched(tokens_of(prompt, blocks))
        return all(got.get(name, 0) == n for name, n in want.items()) and got["longest_matched"] == got["DP"]["0"]

    try:
        wait_until(holds, timeout, "the match")
    except AssertionError:
        raise AssertionError((want, conductor.matched(tokens_of(prompt, blocks)), conductor.ask("/services"))) from None


@pytest.fixture
def site(make_pool, bench, publishers):  # noqa: F811
    """A pool that publishes, an engine of two ranks that stores there, and a conductor that follows both."""
    at = endpoints()
    pool = make_pool(nodes=1, data_dir=f"{bench.home}/data", master_args=options(at))
    conductor, engine = Conductor(bench), publishers()
    register_pool(conductor, at)
    conductor.register(engine, backends=[{"backend_id": "kvpool", "key_prefix": PREFIX, "ranks": 2}])
    subscribed(conductor, engine)
    return pool, conductor, engine, at


def test_all_parts_have_to_be_there(site):
    """Fails if a block counts before both ranks have stored it, or while one is gone, or if what comes first, the objects or the engine's event, matters."""
    pool, conductor, engine, at = site
    engine.publish(stored(1, 3))
    engine.publish(removed(1, 3))
    for i in range(3):
        pool.put(key(1, i), b"x" * 100)
    wait_until(lambda: conductor.ask("/services")[1][0]["stored"] >= 3, 5, "the events")
    assert conductor.matched(tokens_of(1, 3))["longest_matched"] == 0
    for i in (1, 0):
        pool.put(key(1, i, rank=1), b"x" * 100)
    wait_match(conductor, 1, 3, longest_matched=2, CPU=2, GPU=0)
    pool.rm(key(1, 1))
    wait_match(conductor, 1, 3, longest_matched=1, CPU=1)
    for i in range(2):
        for rank in (0, 1):
            pool.put(key(2, i, rank), b"x" * 100)
    pool.put(key(3, 0, prefix="other@tiny"), b"x")
    wait_until(lambda: joined(conductor)["blocks"] == 3, 5, "the events")
    assert (joined(conductor)["joined"], joined(conductor)["unjoined"]) == (1, 2), joined(conductor)
    assert conductor.matched(tokens_of(2, 2))["longest_matched"] == 0
    engine.publish(stored(2, 2))
    wait_match(conductor, 2, 2, longest_matched=2, CPU=2, GPU=2)
    assert joined(conductor)["unjoined"] == 0
    assert pool.kvpool("rm", "--all").rc == 0
    wait_match(conductor, 2, 2, longest_matched=2, CPU=0, GPU=2)
    wait_until(lambda: conductor.ask("/services")[1][0]["digests"] > 0, 15, "digests")
    service = conductor.ask("/services")[1][0]
    assert service["drifts"] == 0 and service["ignored"] > 0, service


def test_connectors_own_events(site, publishers):  # noqa: F811
    """Fails if upstream's connector's events count beside a pool that tells itself, or do not where none does; or if they do not tell places."""
    pool, conductor, engine, at = site
    alone = publishers()
    conductor.register(alone, instance_id="alone")
    subscribed(conductor, alone)
    for publisher in (engine, alone):
        publisher.publish(stored(4, 2, medium="cpu"))
    wait_until(lambda: conductor.matched(tokens_of(4, 2), instance="alone").get("CPU") == 2 * BLOCK, 5, "the event")
    assert conductor.matched(tokens_of(4, 2))["longest_matched"] == 0
    for i in range(2):
        for rank in (0, 1):
            pool.put(key(4, i, rank), b"x" * 100)
    wait_match(conductor, 4, 2, longest_matched=2, CPU=2)


def test_over_the_end_of_the_conductor(make_pool, bench, publishers):  # noqa: F811
    """Fails if a conductor that is started again has forgotten which hash stands where: the engine's events are not there any more."""
    at = endpoints()
    pool = make_pool(nodes=1, data_dir=f"{bench.home}/data", master_args=options(at))
    data = ("--data-dir", f"{bench.home}/conductor")
    conductor, engine = Conductor(bench, *data), publishers(replays=False)
    register_pool(conductor, at)
    conductor.register(engine, backends=[{"key_prefix": PREFIX}], additionalsalt="s")
    subscribed(conductor, engine)
    engine.publish(stored(1, 4))
    for i in range(4):
        pool.put(key(1, i), b"x" * 100)
    wait_until(lambda: conductor.matched(tokens_of(1, 4), "s").get("CPU") == 4 * BLOCK, 10, "the match")

    def places():
        """How many the file has: its third kind of records."""
        data, at, n = pathlib.Path(f"{bench.home}/conductor/joins").read_bytes(), 0, 0
        while at < len(data):
            length, kind = struct.unpack_from("<II", data.ljust(at + 8, b"\0"), at)
            at += 16 + length
            n += kind == 3 and at <= len(data)
        return n

    wait_until(lambda: places() == 4, 10, "the places to be on the disk")
    for how in ("terminate", "kill9", "publishers", "torn"):
        (conductor.daemon.terminate if how == "terminate" else conductor.daemon.kill9)()
        if how == "torn":
            with open(f"{bench.home}/conductor/joins", "r+b") as f:
                f.truncate(f.seek(0, 2) - 10)
        if how == "publishers":
            os.rename(f"{bench.home}/conductor/registrations.json", f"{bench.home}/publishers.json")
            data = (*data, "--publishers", f"{bench.home}/publishers.json")
        conductor = Conductor(bench, *data)
        want = 3 if how == "torn" else 4
        wait_until(lambda: conductor.matched(tokens_of(1, 4), "s").get("CPU") == want * BLOCK, 10, f"the match after {how}")


def test_over_the_end_of_the_master(site, bench):
    """Fails if blocks count while no master tells of them, or do not come back with the next one."""
    pool, conductor, engine, at = site
    engine.publish(stored(1, 2))
    engine.publish(removed(1, 2))
    for i in range(2):
        for rank in (0, 1):
            pool.put(key(1, i, rank), b"x" * 100)
    wait_match(conductor, 1, 2, longest_matched=2)
    pool.master.kill9()
    wait_match(conductor, 1, 2, timeout=20, longest_matched=0)
    pool.master = bench.master(*options(at), data_dir=f"{bench.home}/data", listen=pool.addr, name="master2")
    wait_match(conductor, 1, 2, timeout=20, longest_matched=2, CPU=2)


class Telling(Masters):
    """Masters that publish, each at its own place."""

    def __init__(self, bench):
        self.at = [endpoints() for _ in range(3)]
        super().__init__(bench, nodes=1)

    def start(self, i, *args, **kw):
        self.args = options(self.at[i])
        return super().start(i, *args, **kw)


@needs_etcd
def test_over_the_end_of_the_leader(bench, publishers):  # noqa: F811
    """Fails if what the pool has does not count again when another master leads, counts where only standbys tell, or a leader that hands over goes on counting."""
    pool = Telling(bench)
    pool.wait_insync(3)
    conductor, engine = Conductor(bench), publishers()
    for i, at in enumerate(pool.at):
        register_pool(conductor, at, f"master-{i}")
    conductor.register(engine, backends=[{"key_prefix": PREFIX}])
    subscribed(conductor, engine)
    engine.publish(stored(1, 4))
    engine.publish(removed(1, 4))

    def kvpool(*words, stdin=b""):
        assert pool.kvpool(*words, "--deadline", "20s", stdin=stdin).rc == 0

    for i in range(3):
        kvpool("put", key(1, i), stdin=b"x" * 100)
    wait_match(conductor, 1, 4, longest_matched=3, CPU=3)
    first = pool.wait_leader()
    pool.masters[first].kill9()
    pool.wait_leader()
    kvpool("put", key(1, 3), stdin=b"x" * 100)
    wait_match(conductor, 1, 4, timeout=30, longest_matched=4, CPU=4)
    kvpool("rm", key(1, 1))
    wait_match(conductor, 1, 4, timeout=5, longest_matched=1)
    pool.again(first)
    pool.wait_insync(3)
    pool.switch()
    kvpool("put", key(1, 1), stdin=b"x" * 100)
    wait_match(conductor, 1, 4, timeout=30, longest_matched=4)


def test_on_ssd(make_pool, bench, publishers):  # noqa: F811
    """Fails if what left memory for the SSD does not count as DISK, or counts as CPU still."""
    at = endpoints()
    pool = make_pool(nodes=1, memory=MEMORY, data_dir=f"{bench.home}/data", node_args=("--ssd", f"{ssd_of(bench)}:{SSD}"),
                     master_args=options(at))
    wait_until(lambda: figures(pool.master)["tier_size_bytes"] > 0, 20, "the tier to be mounted")
    conductor, engine = Conductor(bench), publishers()
    register_pool(conductor, at)
    conductor.register(engine, backends=[{"key_prefix": PREFIX}])
    engine.publish(stored(1, 8))
    engine.publish(removed(1, 8))
    for i in range(8):
        pool.put(key(1, i), b"x" * (1 << 20))
    wait_match(conductor, 1, 8, longest_matched=8, CPU=8)
    for n in range(24):
        pool.put(f"more/{n}", b"y" * (1 << 20))
        wait_until(lambda: written(pool), 10, "the SSD to have what leaves memory")
    wait_match(conductor, 1, 8, timeout=20, longest_matched=8, DISK=8)
    assert conductor.matched(tokens_of(1, 8))["CPU"] < 8 * BLOCK


def test_drift_and_another_source(conductor_alone, publishers):  # noqa: F811
    """Fails if a digest that is other than what is known changes nothing; if a backend's former publisher goes on counting when another one has begun, or takes that one's with it when it goes."""
    conductor = conductor_alone
    a, b, engine = publishers(), publishers(), publishers()

    def pool_event(kind, n, **more):
        return pack([0, [{"event_id": n, "event_type": kind, "tenant_id": "default", "backend_id": "kvpool", "medium": "cpu", "dp_rank": 0,
                          "seq_hashes": [], **more}], 0])

    conductor.register(engine, backends=[{"key_prefix": PREFIX}])  # first: it has all publishers of pools replayed, the former one, too
    for name, publisher in (("a", a), ("b", b)):
        register_pool(conductor, (publisher.pub.endpoint, publisher.router.endpoint), name)
    subscribed(conductor, a, b, engine)
    engine.publish(stored(1, 2))
    engine.publish(removed(1, 2))
    a.publish(pool_event("stored", 1, object_key=key(1, 0)))
    wait_match(conductor, 1, 2, longest_matched=1)
    b.publish(pool_event("stored", 1, object_key=key(1, 0)))
    b.publish(pool_event("stored", 2, object_key=key(1, 1)))
    wait_match(conductor, 1, 2, longest_matched=2)
    a.publish(pool_event("removed", 2, object_key=key(1, 0)))
    wait_until(lambda: conductor.service(1)["last_sequence"] == 1, 5, "the event")
    assert conductor.matched(tokens_of(1, 2))["longest_matched"] == 2 * BLOCK
    conductor.ask("/unregister", {"instance_id": "a", "dp_rank": 0})
    wait_match(conductor, 1, 2, longest_matched=2)  # the other publisher is replayed
    asked = b.asked
    b.digests = pool_event("digest", 0, key_prefix=PREFIX, counts=[9] * 16, sums=[0] * 16)
    b.publish(pool_event("stored", 3, object_key="of nobody"))
    wait_until(lambda: conductor.service(1)["drifts"] > 0 and b.asked > asked, 30, "the replay")
    wait_match(conductor, 1, 2, longest_matched=2)


@pytest.fixture
def conductor_alone(bench):
    return Conductor(bench)


@pytest.mark.parametrize("what", [{"backends": 1}, {"backends": [1]}, {"backends": [{}]}, {"backends": [{"key_prefix": "p", "ranks": 0}]},
                                  {"backends": [{"key_prefix": "p", "ranks": 65}]}, {"backends": [{"key_prefix": "p"}] * 5}, {"shared": 1},
                                  {"shared": True, "backends": [{"key_prefix": "p"}]}])
def test_registrations_that_are_none(conductor_alone, what):
    status, answer = conductor_alone.ask("/register", {"endpoint": "tcp://127.0.0.1:9", "type": "x", "modelname": "m", "instance_id": "i", "block_size": 1,
                                                        "dp_rank": 0, **what})
    assert status == 400 and answer, answer
