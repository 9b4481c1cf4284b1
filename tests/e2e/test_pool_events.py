# SPDX-License-Identifier: Apache-2.0
"""The pool's own KV events: what kvpool-master publishes of what is put, leaves memory, or goes; and what a subscriber knows that came late, was
slow, or saw the master die.
"""
import contextlib
import json
import pathlib
import re
import socket
import time

import pytest

from clients import Shell, figures, free_ports
from conftest import SLOW, wait_until
from kvevents import Follower
from test_tier import MEMORY, SSD, put_all, ssd_of



def endpoints():
    return [f"tcp://127.0.0.1:{port}" for port in free_ports(2)]


def options(at):
    return ("--events", at[0], "--events-replay", at[1])


def keys_of(follower, tenant="default"):
    return sorted(key for t, key in follower.held if t == tenant)


def status(master):
    return json.loads(master.http_get("/kv_events/status")[1])


def test_put_removed_and_cleared(make_pool, bench):
    at = endpoints()
    pool = make_pool(nodes=1, data_dir=f"{bench.home}/data", master_args=options(at))
    f = Follower(*at)
    key = "p@tiny@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@" + "ab" * 32
    for k in ("a", "b", key):
        pool.put(k, b"x" * 1000)
    f.until(lambda: keys_of(f) == sorted(["a", "b", key]))
    stored = next(e for e in f.events if e["event_type"] == "stored" and e["object_key"] == key)
    assert stored["connector_block_hash"] == "ab" * 32 and stored["medium"] == "cpu" and stored["backend_id"] == "kvpool", stored
    assert stored["model_name"] == "tiny" and stored["cache_prefix"] == "p" and stored["block_size"] is None and "type" not in stored, stored
    assert stored["seq_hashes"] == [0xabababababababab] and stored["tp_rank"] == stored["pcp_rank"] == stored["dcp_rank"] == stored["pp_rank"] == 0, stored
    plain = next(e for e in f.events if e["object_key"] == "a")
    assert plain["model_name"] is None and plain["seq_hashes"] == [] and "tp_rank" not in plain, plain
    ids = [e["event_id"] for e in f.events if e["event_type"] == "stored"]
    assert ids == sorted(ids)
    pool.rm("a")
    f.until(lambda: keys_of(f) == sorted(["b", key]))
    late = Follower(*at)
    assert late.held == f.held and late.snapshots == 1
    assert status(pool.master)["enabled"] and status(pool.master)["objects"] == 2


def test_keys_of_vllm_ascend_and_digests(make_pool, bench):
    """Fails if an event of a key of vllm-ascend lacks its model, ranks or hash, in what is stored or removed; if a subscriber gets an event without a key that it did not ask for; or if
    who asks for digests gets none."""
    at = endpoints()
    pool = make_pool(nodes=1, master_args=options(at))
    f = Follower(*at)
    keys = {"m@pcp0@dcp1@head_or_tp_rank:2@pp_rank:3@" + "cd" * 32: {"pcp_rank": 0, "dcp_rank": 1, "head_or_tp_rank": 2, "pp_rank": 3},
            "m@pcp0@dcp1@head_or_tp_rank:2@group:1@cache_role:kv@cache_family:c4@layer_id:5@" + "cd" * 32:
                {"pcp_rank": 0, "dcp_rank": 1, "head_or_tp_rank": 2, "layer_id": 5}}
    for key in keys:
        pool.put(key, b"x")
    f.until(lambda: len(f.held) == 2)
    digests = f.ask_digests()
    assert [(d["event_type"], d["key_prefix"], sum(d["counts"])) for d in digests] == [("digest", "m", 2)]
    for key in keys:
        pool.rm(key)
    f.until(lambda: not f.held)
    f.run(500)
    assert {e["event_type"] for e in f.events} == {"stored", "removed"}
    for e in f.events:
        ranks = {k: v for k, v in e.items() if k.endswith("_rank") and k != "dp_rank" or k == "layer_id"}
        assert ranks == keys[e["object_key"]] and e["model_name"] == "m" and e["seq_hashes"] == [0xcdcdcdcdcdcdcdcd], e
        assert e["connector_block_hash"] == "cd" * 32 and "cache_prefix" not in e, e


def test_tenants_and_bumps(make_pool, bench):
    """Fails if a tenant's objects outlive its bump, others go with it, or what is put anew is not told."""
    at = endpoints()
    pool = make_pool(nodes=1, data_dir=f"{bench.home}/data", master_args=options(at))
    f = Follower(*at)
    for k in ("a", "b"):
        pool.put(k, b"x" * 1000)
        pool.put(k, b"x" * 1000, "--tenant", "team")
    f.until(lambda: len(f.held) == 4)
    assert keys_of(f, "team") == ["a", "b"]
    assert pool.kvpool("rm", "--tenant", "team", "--all").rc == 0
    f.until(lambda: len(f.held) == 2)
    pool.put("a", b"y" * 1000, "--tenant", "team")
    f.until(lambda: keys_of(f, "team") == ["a"])
    f.run(300)
    assert f.held == Follower(*at).held and keys_of(f) == ["a", "b"]


def test_from_memory_to_ssd_and_back(make_pool, bench):
    """Fails if a tier change is not told: an object that left memory and is on the SSD is `disk` alone, one that was read is both."""
    at = endpoints()
    pool = make_pool(nodes=1, memory=MEMORY, data_dir=f"{bench.home}/data", node_args=("--ssd", f"{ssd_of(bench)}:{SSD}"),
                     master_args=options(at))
    wait_until(lambda: figures(pool.master)["tier_size_bytes"] > 0, 20, "the tier to be mounted")
    f = Follower(*at)
    client = Shell(bench, pool.addr)
    put_all(pool, client, 512)
    f.until(lambda: len(f.held) == 512 and {"disk"} in f.held.values(), 20)
    one = next(key for (_, key), media in f.held.items() if media == {"disk"})
    assert pool.get(one).rc == 0
    f.until(lambda: f.held["default", one] == {"cpu", "disk"})
    f.run(500)
    assert Follower(*at).held == f.held


def test_who_came_late_was_slow_or_saw_the_master_die(make_pool, bench):
    """Fails if a subscriber that missed more than is kept, or that another master follows, ends up with another picture than one that comes now."""
    at = endpoints()
    pool = make_pool(nodes=1, data_dir=f"{bench.home}/data", master_args=(*options(at), "--events-kept", "1024"))
    f = Follower(*at)
    client = Shell(bench, pool.addr)
    assert client("bput k/ 0 1500 64")["results"] == {"OK": 1500}
    f.until(lambda: len(f.held) == 1500)
    before, f.last = f.snapshots, 1  # as if all since had been lost
    assert client("bput k/ 1500 200 64")["results"] == {"OK": 200}
    f.until(lambda: len(f.held) == 1700)
    assert f.snapshots == before + 1 and f.gaps == 1, (f.snapshots, f.gaps)
    pool.master.kill9()
    pool.master = bench.master(*options(at), "--events-kept", "1024", data_dir=f"{bench.home}/data", listen=pool.addr, name="master2")
    wait_until(lambda: pool.exists("k/3").rc == 0, 20, "the node to be back")
    pool.rm("k/3")
    now = Follower(*at)
    now.until(lambda: len(now.held) == 1699)
    f.ask(f.last)  # as after the reconnection
    assert f.held == now.held and f.snapshots == before + 2


def test_without_a_data_directory(make_pool):
    """Fails if events want files of a log."""
    at = endpoints()
    pool = make_pool(nodes=1, master_args=options(at))
    f = Follower(*at)
    pool.put("a", b"x")
    f.until(lambda: keys_of(f) == ["a"])
    pool.rm("a")
    f.until(lambda: not f.held)


def test_options_that_are_none(bench):
    for args, why in ((("--events", "tcp://192.0.2.1:1", "--insecure"), "cannot publish"), (("--events", "nonsense"), "are tcp://"), (("--events", "tcp://127.0.0.1:99999"), "are tcp://"), (("--events", "tcp://127.0.0.1:0", "--events-backend-id", ""), "is empty"),
                      (("--events-replay", "tcp://127.0.0.1:0"), "goes with --events")):
        r = bench.run("kvpool-master", "--listen", "127.0.0.1:0", "--http", "none", "--data-dir", f"{bench.home}/d", *args)
        assert r.rc == 1 and why in r.err, r


@pytest.mark.limit(180)
def test_a_subscriber_that_stands_still(make_pool, bench):
    """Fails if the master waits for one that does not read, keeps all that it does not read, or that one is not told that it missed something, or cannot
    catch up."""
    at = endpoints()
    pool = make_pool(nodes=1, data_dir=f"{bench.home}/data", master_args=options(at))
    f = Follower(*at, waiting=10)
    pool.put("first", b"x")
    f.until(lambda: keys_of(f) == ["first"])
    client = Shell(bench, pool.addr)
    took_s = []
    for i in range(2000):
        call = time.monotonic()
        assert client(f"bput k/{i}/ 0 64 64")["results"] == {"OK": 64}
        took_s.append(time.monotonic() - call)
    rss = int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pool.master.pid}/status").read_text())[1])
    assert sorted(took_s)[-3] < 1 * SLOW, sorted(took_s)[-5:]  # the machine may have stood still
    assert rss < (200 << 10) * SLOW, rss
    f.run(300)
    assert client("put one-more 64")["err"] == "OK"
    f.until(lambda: f.gaps > 0 and ("default", "one-more") in f.held, 20)
    assert f.held == Follower(*at).held


def test_a_subscriber_to_a_million_things(make_pool, bench):
    """Fails if the master ends when a client has subscribed to more than fits on its way, and goes away: libzmq does not survive that where nobody takes subscriptions in."""
    at = endpoints()
    pool = make_pool(nodes=1, master_args=options(at))
    pool.put("a", b"x")
    for n in range(6):
        with socket.create_connection(("127.0.0.1", int(at[0].rpartition(":")[2]))) as s:
            s.settimeout(0.5)
            s.sendall(b"\xff\0\0\0\0\0\0\0\1\x7f\x03\x01NULL" + b"\0" * 48 + b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB")
            time.sleep(0.1)
            with contextlib.suppress(OSError):
                for k in range(300):
                    s.sendall(b"".join(b"\x00\x09\x01" + i.to_bytes(8, "little") for i in range(1000 * k, 1000 * k + 1000)))
            if n % 2:
                assert pool.put(f"b/{n % 3}", b"x").rc == 0
        if n % 3 == 1:
            assert pool.put(f"b/{n % 3}", b"x").rc == 0
        time.sleep(0.3)
    f = Follower(*at)
    assert "a" in keys_of(f) and pool.master.is_running()
