# SPDX-License-Identifier: Apache-2.0
"""What `--json` prints has the keys that docs/operations lists, each of them and no other: scripts read them."""
import json
import re

import pytest

from conftest import ROOT, chat_trace

PAGE = "\n".join(path.read_text() for path in sorted((ROOT / "docs" / "operations").glob("*.md")))


def section(title):
    """The text below a heading, up to the next one of its rank or a higher one."""
    level, found, inside = 0, [], False
    for line in PAGE.splitlines():
        heading = re.match(r"(#+) (.*)", line)
        if heading and inside and len(heading[1]) <= level:
            break
        if inside:
            found.append(line)
        if heading and heading[2] == title:
            inside, level = True, len(heading[1])
    assert found, f"docs/operations has no section {title}"
    return "\n".join(found)


def rows(title):
    """The cells of the rows of tables in a section."""
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in section(title).splitlines()
            if line.startswith("|")]


def words(cell):
    """Names in backticks that may be keys; what stands in brackets explains."""
    while "(" in cell:
        cell = re.sub(r"\([^()]*\)", "", cell)
    return re.findall(r"`([a-z0-9_…]+)`", cell)


def expand(cell):
    """`get_…` with `p50_us` stands for get_p50_us."""
    head, _, tail = cell.partition(" with ")
    names = words(head)
    return {n.replace("…", end) for n in names for end in words(tail)} if tail else set(names)


def listed(title, column=0):
    return set().union(*(expand(row[column]) for row in rows(title)[2:]))


def of_verb(verb):
    for row in rows("JSON")[2:]:
        if f"`{verb}`" in row[0]:
            return row[1]
    raise AssertionError(f"docs/operations lists no keys of {verb}")


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_verbs_of_keys(pool):
    """Fails if a key of what a verb prints is not listed, or a listed one is not printed."""
    shown = pool.kvpool("put", "--json", "a/k", stdin=b"value").json
    failure = json.loads(pool.get("nothing", "--json").err.splitlines()[0])
    refused = pool.kvpool("put", "--json", "k", "--replicas", "2", stdin=b"x" * (300 << 20))
    assert refused.rc == 1
    told = set(shown) | set(failure) | set(refused.json)
    assert told | {"detail"} == set(words(of_verb("put"))) - {"get"}, told
    assert lines(pool.exists("a/k", "--json").out.decode()) == [{"key": "a/k", "exists": True}]
    assert {"key", "exists"} <= set(words(of_verb("exists")))
    assert set(pool.kvpool("ls", "--json").json) == set(words(of_verb("ls")))
    assert set(pool.rm("a/k", "--json").json) == {"key", "removed"} <= set(words(of_verb("rm KEY...")))
    assert set(pool.kvpool("rm", "--all", "--json").json) == set(words(of_verb("rm --all")))
    assert set(pool.kvpool("bump", "--json").json) == set(words(of_verb("bump")))


def test_stat(pool):
    """Fails if a key of any part of stat is not listed, or a listed one is not there; counters are those of metrics."""
    assert pool.put("k", b"value").rc == 0
    stat = pool.kvpool("stat", "--json").json
    told = {row[0].strip("`"): set(words(row[1])) - {"up", "draining", "lost"} - ({"evictions", "leases"} if "pool" in row[0] else set())
            for row in rows("stat")[2:]}
    assert set(stat) == set(told)
    assert set(stat["pool"]) == told["pool"]
    assert set(stat["tenants"][0]) == told["tenants"]
    assert set(stat["segments"][0]) == told["segments"]
    transports = stat["client"]["transports"][0]
    assert set(stat["client"]) | set(transports) | set(stat["client"]["calls"][0]) == told["client"]
    metrics = {name.removesuffix("_total") for row in rows("Metrics") for name in words(row[0])}
    counters = {re.sub("_[nm]s$", "_seconds", name) for name in stat["pool"]["counters"]}
    assert counters <= metrics, counters - metrics


def test_doctor(pool):
    """Fails if a key of any part is not listed, or a listed one is not there (of ports only where there is one)."""
    got = pool.kvpool("doctor", "--json").json
    told = {row[0].strip("`"): row[1] for row in rows("doctor") if row[0].startswith("`")}
    parts = {name: set(words(cell)) - {"OK"} for name, cell in told.items() if name in got}
    assert set(got) == set(parts)
    for name in ("findings", "transports"):
        assert all(set(it) == parts[name] for it in got[name]), name
    for name in ("limits", "pool"):
        assert set(got[name]) == parts[name], name
    assert set(got["nodes"][0]) == parts["nodes"]
    assert "(a list: `transport`, `result`, `size_bytes`, `put_us`, `get_us`)" in told["nodes"]
    assert set(got["nodes"][0]["probes"][0]) == {"transport", "result", "size_bytes", "put_us", "get_us"}
    for port in got["rdma_ports"]:
        assert set(port) == parts["rdma_ports"], port


@pytest.mark.pool(nodes=1, memory="64MiB")
@pytest.mark.parametrize("op, only", [("batch_get", set()), ("known_get", {"known_objects"})])
def test_bench(pool, op, only):
    """Fails if a key of a round is not listed, or a listed one that this operation has is not there."""
    got = pool.kvpool("bench", "--op", op, "--size", "4KiB", "--set", "1MiB", "--seconds", "50ms", "--rounds", "1",
                      "--rate", "100", "--json")
    assert got.rc == 0, got
    costs = {"work_requests", "doorbells", "signaled_completions", "system_calls"}
    told = listed("bench") - {"known_objects", "first_error"} | only
    if "rdma" not in got.json["transports"]:
        assert costs < told
        told -= costs
    assert set(got.json) == told, set(got.json) ^ told


@pytest.mark.pool(nodes=1, memory="64MiB")
def test_replay(pool):
    """Fails if a key of the figures is not listed, or a listed one is not there."""
    got = pool.kvpool("replay", "--trace", chat_trace(pool.bench, 10), "--block-bytes", "4096", "--json")
    assert got.rc == 0, got
    told = listed("replay") - {"first_get_error", "first_put_error"}
    assert set(got.json) == told, set(got.json) ^ told
