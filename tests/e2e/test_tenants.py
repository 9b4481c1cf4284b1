# SPDX-License-Identifier: Apache-2.0
"""Tenants: equal keys of two tenants are two objects, and nothing that one does to its own touches the other's."""
import json
import re

import pytest

from clients import PATHS, Shell, figures, settled
from conftest import PROGRAMS, run_program

SIZE = 100_000

# A chunk belongs to one tenant: there must be some for each.
pytestmark = pytest.mark.pool(node_args=("--chunk-bytes", "8MiB"))


@pytest.fixture(params=sorted(PATHS))
def tenants(request, pool):
    return [Shell(pool.bench, pool.addr, f"tenant{t}", tenant=t, **PATHS[request.param]) for t in (1, 2)]


def read(client, key):
    got = client(f"get {key} {SIZE}")
    return got["err"] if got["err"] != "OK" else (got["version"], got["intact"])


def test_equal_keys_are_two_objects(tenants):
    """Fails if a tenant sees another's value, or no value of its own; or if removing and replacing its own changes the
    other's.
    """
    one, two = tenants
    assert one(f"put k {SIZE} version=1")["err"] == "OK"
    assert two("exists k")["exists"] == 0 and read(two, "k") == "NOT_FOUND"
    assert two(f"put k {SIZE} version=2")["err"] == "OK"
    assert (read(one, "k"), read(two, "k")) == ((1, True), (2, True))
    assert one(f"put k {SIZE} version=3 upsert=1")["err"] == "OK"
    assert (read(one, "k"), read(two, "k")) == ((3, True), (2, True))
    assert one("remove k")["err"] == "OK"
    assert (read(one, "k"), read(two, "k")) == ("NOT_FOUND", (2, True))


def test_sweeping_verbs_stay_at_home(pool, tenants):
    """Fails if a pattern, "all", or a listing of one tenant reaches what is another's."""
    one, two = tenants
    for client in tenants:
        assert client("bput k/ 0 20 1000")["results"] == {"OK": 20}
    listed = f"{pool.bench.home}/list"
    assert one(f"list {listed} 100")["err"] == "OK"
    assert len(open(listed, encoding="ascii").readlines()) == 20
    assert one("regex k/1")["removed"] == 11
    assert two("bexist k/ 0 20")["exist"] == 20
    assert one("all")["removed"] == 9
    assert two("bexist k/ 0 20")["exist"] == 20
    assert one("bexist k/ 0 20")["exist"] == 0


def test_bump_leaves_the_other_alone(pool, tenants):
    """Fails if anything that a tenant had put is found after its bump, if anything of the other's is not, or if the
    space does not come back.
    """
    one, two = tenants
    for client in tenants:
        assert client("bput k/ 0 100 50000")["results"] == {"OK": 100}
        assert client("bget k/ 0 100 50000")["results"] == {"OK": 100}
    used = figures(pool.master)["used_bytes"]
    assert one("bump deadline=8000")["err"] == "OK"
    assert one("bget k/ 0 100 50000")["results"] == {"NOT_FOUND": 100}
    got = two("bget k/ 0 100 50000")
    assert got["results"] == {"OK": 100} and got["wrong"] == 0, got
    settled(pool.master, used_bytes=used // 2)
    assert one("bput k/ 0 100 50000 version=5")["results"] == {"OK": 100}
    assert read(one, "k/7") == (5, True) and read(two, "k/7") == (0, True)


@pytest.mark.pool(nodes=1, memory="16MiB", node_args=("--chunk-bytes", "1MiB"))
def test_newcomer_gets_the_room_of_an_idle_tenant(pool):
    """Fails if a tenant that has filled the pool and does nothing keeps a newcomer from the hits that the room gives, if
    it loses what it pinned, or if stat does not tell how much each of them has.
    """
    def stat(tenant):
        return pool.kvpool("stat", "--json", "--tenant", str(tenant)).json["tenants"][0]

    size, keys, batch = 65536, 192, 8
    pinned = pool.put("pinned", bytes(size), "--pin", "hard", "--tenant", "1")
    assert pinned.rc == 0, pinned.err
    idle, newcomer = (Shell(pool.bench, pool.addr, f"tenant{t}", tenant=t) for t in (1, 2))
    for i in range(0, 232, batch):
        assert idle(f"bput idle/ {i} {batch} {size}")["results"] == {"OK": batch}
    had = stat(1)
    assert (had["chunks"], had["hard_pinned_bytes"], had["soft_pinned_bytes"]) == (15, size, 0), had
    hits = 0
    for _ in range(6):
        hits = 0
        for i in range(0, keys, batch):
            got = newcomer(f"bget k/ {i} {batch} {size}")
            assert got["wrong"] == 0, got
            hits += got["results"].get("OK", 0)
            assert newcomer(f"bput k/ {i} {batch} {size}")["results"] == {"OK": batch}
    assert hits >= 0.9 * keys, (hits, stat(1), stat(2))
    has, left = stat(2), stat(1)
    assert has["chunks"] >= 11 and has["chunk_bytes"] == has["chunks"] << 20, has
    assert has["used_bytes"] <= has["chunk_bytes"] and left["chunks"] >= 1, (has, left)
    assert figures(pool.master)["chunks_taken"] == had["chunks"] - left["chunks"]
    assert pool.get("pinned", "--tenant", "1").out == bytes(size)


def test_status_tells_a_tenant_of_itself(tenants):
    """Fails if a tenant's figures are another's, or if it is shown another's."""
    one, two = tenants
    assert one("bput k/ 0 10 1000")["results"] == {"OK": 10}
    assert two("bput k/ 0 3 1000")["results"] == {"OK": 3}
    for client, tenant, objects in ((one, 1, 10), (two, 2, 3)):
        shown = client("stat")["stat"]["tenants"]
        assert [(t["tenant"], t["objects"]) for t in shown] == [(str(tenant), objects)], shown


@pytest.mark.pool(nodes=2, memory="256MiB", node_args=("--populate", "no"))
def test_sixteen_tenants_fit_in_the_pool_of_kvpool_up(pool):
    """Fails if one of sixteen tenants is refused, or loses an object, where each puts 4 MiB into a pool of the size that `kvpool up`
    makes; or if the largest value there is not the 16 MiB that the manual says.
    """
    n, size = 64, 65536
    tenants = [Shell(pool.bench, pool.addr, f"tenant{t}", tenant=t) for t in range(16)]
    for first in range(0, n, 8):
        for tenant in tenants:
            assert tenant(f"bput k/ {first} 8 {size}")["results"] == {"OK": 8}
    for tenant in tenants:
        got = tenant(f"bget k/ 0 {n} {size}")
        assert (got["results"], got["wrong"]) == ({"OK": n}, 0), got
    assert figures(pool.master)["evictions"] == 0
    assert tenants[0](f"put big {16 << 20}")["err"] == "OK"
    assert tenants[0](f"put big2 {(16 << 20) + 1}")["err"] == "TOO_LARGE"


@pytest.mark.pool(nodes=1, memory="16MiB", node_args=("--chunk-bytes", "1MiB"))
def test_evictions_beside_the_free_memory_of_other_tenants_are_explained(pool):
    """Fails if a pool that evicts though much of its memory is free does not say, in each of its views, that the free memory lies in
    chunks of other tenants, or if a pool of one tenant says so.
    """
    assert pool.put("k", b"x", "--tenant", "small0").rc == 0
    assert "free in the chunks" not in pool.kvpool("stat").text
    for i in range(12):
        assert pool.put("k", bytes(20_000), "--tenant", f"small{i}").rc == 0
    busy = Shell(pool.bench, pool.addr, "busy", tenant="busy")
    for i in range(0, 128, 8):
        assert busy(f"bput b/ {i} 8 65536")["results"] == {"OK": 8}
    shown, page = pool.kvpool("stat"), json.loads(pool.master.http_get("/overview")[1])
    counts = pool.kvpool("stat", "--json").json["pool"]["counters"]
    assert counts["owners"] == 13 and counts["owned_free_bytes"] > 11 << 20 and counts["unowned_bytes"] == 0, counts
    assert counts["evict_beside_free"] == counts["evictions"] > 0
    assert re.search(r"^memory .*\n {11}1[12]\.\d+ MiB are free in the chunks of 13 tenants, each for its tenant only; 0 B for any tenant$",
                     shown.text, re.M), shown.text
    why = pool.kvpool("why", "b/0", "--tenant", "busy")
    assert "evicted from memory" in why.text and "although at least 5/8 of the memory was free in chunks of other tenants" in why.text
    assert "smaller --chunk-bytes" in why.text, why.text
    assert page["pool"]["owned_free_bytes"] == counts["owned_free_bytes"] and page["pool"]["owners"] == 13
    assert {t["tenant"]: t["chunk_bytes"] for t in page["tenants"]}["small3"] == 1 << 20
    metrics = pool.master.http_get("/metrics")[1]
    assert 'kvpool_master_tenant_chunk_bytes{tenant="small3"} 1048576' in metrics and "kvpool_master_owners 13" in metrics
    assert f'kvpool_master_node_evictions_total{{node="node1",tier="memory"}} {counts["evictions"]}\n' in metrics
    assert f'owned_free_bytes={counts["owned_free_bytes"]} ' in run_program(
        ["sh", "-c", f"{PROGRAMS['kvpool']} stat --watch=100ms --master {pool.addr} | head -1"], pool.bench.env()).text
