# SPDX-License-Identifier: Apache-2.0
"""`kvpool where` and `kvpool why`: each cause is provoked with real processes, and found by the tool, in the metric and in Python."""
import pathlib
import re
import time

import pytest

import kvpool
from clients import Shell, figures
from conftest import SLOW, wait_until
from standby import Etcd, Masters, needs_etcd

KIB, MIB = 1 << 10, 1 << 20


def causes_counted(master, kind="lookup_misses"):
    _, body = master.http_get("/metrics")
    return {name: int(float(n)) for name, n in re.findall(rf'^kvpool_master_{kind}_total{{reason="(\w+)"}} (\S+)$', body, re.M)}


def assert_why(pool, key, cause, *says, master=None):
    """The tool, Python and both metrics have this cause for the key."""
    master = master or pool.master
    before = causes_counted(master), causes_counted(master, "get_misses_by_reason")
    told = pool.bench.run("kvpool", "why", "--json", "--master", master.listen, key).json["found"][0]
    assert told["cause"] == cause, told
    for text in says:
        assert text in told["text"], told
    with kvpool.Pool(master.listen) as handle:
        found = handle.why(key)
        fluid = {"ago_ms": 0, "age_ms": 0, "used_ms": 0, "text": ""}  # what time changes
        assert {**found, **fluid} == {**told, **fluid}
        is_there = cause in ("present", "loading")
        assert handle.exists(key) is is_there and (handle.where(key) is not None) == ("copies" in told)
        if is_there:
            return told
        assert handle.longest_prefix([key]).found == 0
        with pytest.raises(kvpool.Error):
            handle.get(key, fresh=True)
    after = causes_counted(master), causes_counted(master, "get_misses_by_reason")
    assert after[0][cause] == before[0][cause] + 2 and sum(after[0].values()) == sum(before[0].values()) + 2
    assert after[1][cause] >= before[1][cause] + 1
    assert sum(after[1].values()) == figures(master)["get_misses"]
    return told


def fill(pool, n=64, size=MIB, first=0, **conf):
    """Puts so many objects, which pushes out what was there."""
    with kvpool.Pool(pool.addr, **conf) as handle:
        for i in range(n):
            handle.put(f"fill/{first + i}", bytes(size))


def test_not_known_present_removed_bumped(pool):
    assert_why(pool, "never", "not_known", "the master remembers")
    pool.put("a", b"x" * 100)
    pool.put("b", b"x" * 100)
    told = assert_why(pool, "a", "present")
    assert told["copies"][0]["node"].startswith("node") and told["copies"][0]["tier"] == "memory" and told["size_bytes"] == 100
    assert told["copies"][0]["transport"] == "shm" and told["age_ms"] < 60_000 * SLOW
    text = pool.kvpool("where", "a").text
    assert "copy        node node" in text and "last use    about " in text and "read from here by shm" in text and "pin         none" in text
    pool.rm("a")
    assert_why(pool, "a", "removed", "a client removed it", " ago, on node node", "after its put")
    pool.kvpool("bump")
    assert_why(pool, "b", "bumped")
    pool.put("a", b"y")
    assert_why(pool, "a", "present")
    r = pool.kvpool("where", "never")
    assert r.rc == 1 and "not known" in r.text and "--all-tenants" in r.text


@pytest.mark.pool(nodes=1, memory="32MiB")
def test_evicted_without_an_ssd(pool):
    with kvpool.Pool(pool.addr) as handle:
        for key in ("read", "unread"):
            handle.put(key, bytes(MIB))
        handle.get("read", fresh=True)
    fill(pool)
    assert_why(pool, "unread", "evicted", "its node has no SSD", "on node node1", "never read")
    assert_why(pool, "read", "evicted", "after reads")
    assert_why(pool, "fill/63", "present")


def node_with_ssd(bench, master, size="64MiB", name="node1", memory="32MiB", *args):
    folder = pathlib.Path(bench.home, f"ssd-{name}")
    folder.mkdir(exist_ok=True)
    return bench.node(master, name, memory, "--ssd", f"{folder}:{size}", *args)


@pytest.mark.pool(nodes=0)
def test_evicted_around_an_ssd(pool):
    """From the SSD itself; before it was written; because of its kind. And a load from the SSD is no absence."""
    node_with_ssd(pool.bench, pool.master)
    with kvpool.Pool(pool.addr) as handle:
        handle.put("old", bytes(512 * KIB))
        pool.put("member", bytes(512 * KIB), "--group", "solo/0/0")
        for i in range(300):  # paced, so that the SSD keeps up
            handle.put(f"paced/{i}", bytes(512 * KIB))
            wait_until(lambda: i % 10 or (lambda f: f["demoted"] + f["demotes_refused"] == f["demotes"])(figures(pool.master)), 10, "the SSD")
        assert_why(pool, "old", "evicted_from_ssd", "SSD")
    told = [pool.kvpool("why", "--json", f"paced/{i}").json["found"][0] for i in range(0, 300, 10)]
    on_ssd = [t for t in told if t.get("copies") and all(c["tier"] == "ssd" for c in t["copies"])]
    assert on_ssd and on_ssd[0]["cause"] in ("present", "loading")
    assert_why(pool, "member", "evicted_memory_only", "objects of its kind are not written to SSDs")


@pytest.mark.pool(nodes=0, master_args=("--ssd-admission", "used"))
def test_evicted_because_nobody_asked(pool):
    node_with_ssd(pool.bench, pool.master)
    fill(pool, 64)
    assert_why(pool, "fill/0", "evicted_unused", "no client had asked for it")


@pytest.mark.pool(nodes=2, memory="32MiB", node_args=("--keeper", "none"), master_args=("--node-forget", "10s"))
def test_node_that_is_away_and_lost(pool):
    with kvpool.Pool(pool.addr) as handle:
        for i in range(16):
            handle.put(f"k{i}", bytes(KIB))
        key = next(f"k{i}" for i in range(16) if handle.where(f"k{i}")["copies"][0]["node"] == "node2")
    pool.nodes[1].kill9()
    wait_until(lambda: pool.kvpool("why", "--json", key).json["found"][0]["cause"] == "node_away", 5, "the node to be away")
    told = assert_why(pool, key, "node_away", "not connected: node2")
    text = pool.kvpool("where", key).text
    assert "copy        node node2, memory, lost\n" in text and "last use    n" in text and told["used_ms"] <= told["age_ms"]
    assert re.search(r"^  node2 +lost +- ", pool.kvpool("node", "ls").text, re.M)
    wait_until(lambda: pool.kvpool("why", "--json", key).json["found"][0]["cause"] == "lost_node", 20, "the node to be forgotten")
    assert_why(pool, key, "lost_node", "on node node2")


@pytest.mark.pool(nodes=1, memory="32MiB")
def test_puts_that_do_not_end(pool):
    writer = Shell(pool.bench, pool.addr, "writer")
    writer.stuck(f"put half {MIB} stuck_at={64 * KIB}")
    assert_why(pool, "half", "being_put")
    writer.kill9()
    wait_until(lambda: pool.kvpool("why", "--json", "half").json["found"][0]["cause"] != "being_put", 5, "the put to be given up")
    assert_why(pool, "half", "given_up", "its writer gave the put up")
    client = Shell(pool.bench, pool.addr, "client")
    assert client(f"put large {64 * MIB}")["err"] == "TOO_LARGE"
    told = assert_why(pool, "large", "refused", "the master refused the put")
    assert told["error"] == "TOO_LARGE"


@pytest.mark.pool(nodes=1, memory="32MiB")
def test_groups(pool):
    writer, other = Shell(pool.bench, pool.addr, "writer"), Shell(pool.bench, pool.addr, "other")
    assert writer(f"bput g/ 0 5 {KIB} group=g members=8")["results"] == {"OK": 5}
    assert_why(pool, "g/0", "group_incomplete", "5 of 8 members")
    writer.kill9()
    wait_until(lambda: pool.kvpool("why", "--json", "g/0").json["found"][0]["cause"] == "group_ended", 10 * SLOW, "the group to end")
    assert other(f"bput g/ 0 8 {KIB} group=g members=8")["results"] == {"OK": 8}
    told = assert_why(pool, "g/0", "present")
    assert told["group"]["committed"] == 8 and {"key": "g/7"} in told["group"]["keys"]


def test_other_tenants(pool):
    with kvpool.Pool(pool.addr, tenant="blue") as handle:
        handle.put("k", b"blue")
    assert_why(pool, "k", "not_known")
    found = pool.kvpool("why", "--json", "--all-tenants", "k").json["found"]
    assert [(f["tenant"], f["cause"]) for f in found] == [("default", "not_known"), ("blue", "present")]
    with kvpool.Pool(pool.addr) as handle:
        assert [o["tenant"] for o in handle.why("k", all_tenants=True)["others"]] == ["blue"]
        assert handle.why(b"\xff\x00")["cause"] == "not_known"


@pytest.mark.pool(nodes=1, memory="32MiB", master_args=("--why-memory", "1KiB"))
def test_full_table_forgets_and_never_lies(pool):
    """1 KiB is 64 departures, and up to 16 are on their way there: of 600 most are not known any more, the rest is right, and the answer says how far back it reaches."""
    with kvpool.Pool(pool.addr) as handle:
        for i in range(600):
            handle.put(f"k{i}", b"x")
            if i % 2:
                handle.remove(f"k{i}")
        handle.remove_many([f"k{i}" for i in range(0, 600, 2)])
        causes = [handle.why(f"k{i}")["cause"] for i in range(600)]
        assert set(causes) == {"removed", "not_known"} and 30 <= causes.count("removed") <= 64 + 16
        handle.put("k0", b"x")
        assert handle.why("k0")["cause"] == "present"


@pytest.mark.pool(nodes=1, memory="32MiB", master_args=("--why-memory", "0"))
def test_without_a_table(pool):
    pool.put("a", b"x")
    pool.rm("a")
    told = pool.kvpool("why", "--json", "a").json["found"][0]
    assert told["cause"] == "not_known" and told["ago_ms"] == 0


def test_restarted_master_knows_its_log(bench, tmp_path):
    """Causes from the log of an earlier master have no time of their own: they lie before this master listened."""
    master = bench.master(data_dir=str(tmp_path))
    node = bench.node(master, "node1", "32MiB")
    with kvpool.Pool(master.listen) as handle:
        handle.put("removed", b"x")
        handle.put("stays", b"x")
        handle.remove("removed")
    master.kill9()
    again = bench.master(data_dir=str(tmp_path), listen=master.listen, name="master2")
    with kvpool.Pool(again.listen) as handle:
        wait_until(lambda: handle.exists("stays"), 10, "the node to be back")
        told = handle.why("removed")
        assert told["cause"] == "removed" and told["is_before"] and told["text"].startswith("a client removed it, more than ")
    assert node.is_running()


@needs_etcd
def test_causes_outlive_a_fail_over(bench):
    """A standby fills its table from the log that it follows: the next leader knows causes, times and nodes."""
    masters = Masters(bench, n=2, nodes=1, memory="32MiB", etcd=Etcd(bench, 1))
    masters.wait_insync(2)
    with kvpool.Pool(masters.addr) as handle:
        handle.put("removed", b"x")
        handle.put("evicted", bytes(MIB))
        handle.remove("removed")
        for i in range(64):
            handle.put(f"fill/{i}", bytes(MIB))
        old = handle.why("evicted")
        assert old["cause"] == "evicted"
        leader = masters.wait_leader()
        masters.masters[leader].kill9()
        masters.wait_leader(other_than=leader)
        for key, cause in (("removed", "removed"), ("evicted", "evicted")):
            told = handle.why(key)
            assert told["cause"] == cause and told["node"] == "node1" and not told["is_before"], told
            assert 0 < told["ago_ms"] < 60_000 * SLOW


def test_last_use_is_right_while_the_clock_of_uses_runs_ahead(pool):
    """Fails if thousands of uses a second change what `where` says of an object's last use, or if one that nobody has read is said to
    be used.
    """
    def load(handle, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for i in range(100):
                handle.put(f"hot/{i}", b"x")  # the second put of a key is a use

    with kvpool.Pool(pool.addr, locations=2**32 - 1) as handle:
        handle.put("unread", b"x")
        handle.put("read", b"x")
        load(handle, 1)
        before = time.monotonic()
        assert bytes(handle.get("read")) == b"x"
        after = time.monotonic()
        load(handle, 3)
        asked = time.monotonic()
        told = pool.kvpool("where", "--json", "read").json["found"][0]
        now = time.monotonic()
        assert (asked - after - 1.1) * 1000 <= told["used_ms"] <= (now - before) * 1000 + 50, (told, asked - after, now - before)
        told = pool.kvpool("where", "--json", "unread").json["found"][0]
        assert told["is_unread"] and not told["was_read"] and "last use    never read\n" in pool.kvpool("where", "unread").text


@pytest.mark.pool(nodes=1)
def test_each_value_of_any_length_is_one_get(pool):
    """Fails if a get of a value that is longer than the first guess counts as two gets, or one that misses does not count."""
    pool.put("long", bytes(100_000))
    pool.put("short", b"x")
    with kvpool.Pool(pool.addr, locations=2**32 - 1) as handle:
        assert [len(handle.get(key)) for key in ("long", "short", "long")] == [100_000, 1, 100_000]
        with pytest.raises(kvpool.Error):
            handle.get("absent")
    assert (figures(pool.master)["gets"], figures(pool.master)["get_misses"]) == (4, 1)


@pytest.mark.pool(nodes=1)
def test_a_lookup_does_not_hide_gets_that_miss(pool):
    """Fails if a tenant that has looked up once has a hit ratio without its gets that missed."""
    pool.put("k", b"x")
    assert pool.exists("k").rc == 0
    for i in range(20):
        assert pool.get(f"absent/{i}").rc == 1
    asked = pool.kvpool("stat", "--json").json["pool"]
    assert asked["asked_minute"] == 21 and asked["hit_ratio_minute"] == pytest.approx(1 / 21, abs=1e-5), asked
