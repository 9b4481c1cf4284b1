# SPDX-License-Identifier: Apache-2.0
"""`kvpool curve` against what the pool does, the hit ratios of `kvpool stat`, and the lists of nodes and masters."""
import pytest

from conftest import run_program, PROGRAMS


def curve(pool, *args):
    answer = pool.kvpool("curve", "--json", *args).json
    return answer["memory_bytes"], {c.get("tenant", ""): c for c in answer["curves"]}


@pytest.mark.pool(nodes=2, memory="144MiB")
@pytest.mark.limit(120)
def test_estimate_is_what_the_pool_measures(pool, trace_file):
    """A replay of a real trace: the curve at the pool's own size differs by at most 3 points from the measured hit ratio."""
    r = pool.kvpool("replay", "--trace", str(trace_file), "--block-bytes", "16KiB", "--json", timeout=100)
    measured, blocks = r.json["hit_ratio"], r.json["blocks"]
    memory, curves = curve(pool, "--ssd", "1GiB")
    stat = pool.kvpool("stat", "--json").json["pool"]
    at = curves[""]["at"]
    assert memory == 288 << 20 and set(curves) == {""} and curves[""]["asked"] == pytest.approx(blocks, rel=0.01)
    assert [a["times"] for a in at] == [0.25, 0.5, 1, 2, 4, 8, None] and at[-1]["size_bytes"] == memory + (1 << 30)
    ratios = [a["hit_ratio"] for a in at[:-1]]
    assert ratios == sorted(ratios) and abs(ratios[2] - measured) <= 0.03
    assert stat["asked_hour"] == stat["asked_minute"] == blocks and stat["hit_ratio_hour"] == pytest.approx(measured, abs=1e-4)
    text = pool.kvpool("curve").text
    assert "x 0.25" in text and "measured in the last hour" in text


def test_tenants_have_curves_and_ratios_of_their_own(pool):
    assert "no key was asked for yet" in pool.kvpool("curve").text
    assert pool.kvpool("stat", "--json").json["pool"]["hit_ratio_minute"] is None
    for tenant, key in (("red", "there"), ("blue", "missing")):
        pool.kvpool("put", "there", "--tenant", tenant, stdin=b"x")
        for _ in range(3):
            pool.kvpool("exists", key, "--tenant", tenant)
    _, curves = curve(pool, "--all-tenants")
    assert curves[""]["asked"] == 6 and curves["blue"]["asked"] == 3
    assert curves["blue"]["at"][5]["hit_ratio"] == pytest.approx(2 / 3, abs=0.01)  # asked for once before it could be there
    for tenant, ratio in (("red", 1), ("blue", 0)):
        told = pool.kvpool("stat", "--json", "--tenant", tenant).json
        assert told["pool"]["hit_ratio_minute"] == 0.5 and told["tenants"][0]["hit_ratio_hour"] == ratio
    assert "last minute: 50.0 % (" in pool.kvpool("stat").text
    assert pool.kvpool("curve", "--all-tenants").text.count("if all this memory were the tenant's") == len(curves) - 1


def test_nodes_and_masters_are_listed(pool):
    nodes = pool.kvpool("node", "ls", "--json").json
    assert [n["node"] for n in nodes] == ["node1", "node2"] and {n["state"] for n in nodes} == {"up"}
    assert "node1" in pool.kvpool("node", "ls").text
    assert pool.kvpool("master", "ls", "--json").json[0]["state"] == "leader"
    for words in (["node"], ["node", "frobnicate"], ["master"]):
        r = run_program([PROGRAMS["kvpool"], *words], pool.bench.env())
        assert r.rc == 2 and "say what" in r.err
