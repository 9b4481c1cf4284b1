# SPDX-License-Identifier: Apache-2.0
"""`kvpool bench`: every operation against a live pool, without an error and without a wrong byte, and leaving nothing."""
import re

import pytest

from conftest import SLOW

OPS = ["put", "upsert", "get", "view", "exists", "size", "remove", "batch_put", "batch_get", "known_get", "known_batch_get",
       "batch_is_exist", "lookup", "reserve", "longest_prefix"]
PERCENTILES = ("p50", "p90", "p99", "p99_9", "max")


def run(pool, *args, keys=200):
    r = pool.kvpool("bench", "--seconds", "100ms", "--size", "4KiB", "--keys", str(keys), "--json", *args,
                    timeout=60 * SLOW)
    assert r.rc == 0, r
    assert r.json["errors"] == 0 and r.json["wrong_bytes"] == 0 and r.json["calls"] > 0, r
    latencies = [r.json[f"call_{p}_us"] for p in PERCENTILES]
    assert latencies == sorted(latencies) and latencies[0] > 0, r
    return r.json


def objects(pool):
    return pool.kvpool("stat", "--json").json["pool"]["objects"]


def test_the_help_names_every_operation(pool):
    text = " ".join(pool.kvpool("bench", "--help").text.split())
    named = re.search(r"--op NAME ((?:\w+, )+\w+)", text).group(1).split(", ")
    assert set(OPS) <= set(named), "an operation is missing from the help"
    assert set(named) <= set(OPS), "an operation has no test here"


@pytest.mark.parametrize("op", OPS)
def test_operation(pool, op):
    """Fails if an operation of the bench fails, or leaves objects in a pool that is not its own."""
    assert run(pool, "--op", op)["op"] == op
    assert objects(pool) == 0


@pytest.mark.parametrize("op", ["batch_put", "batch_get"])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_pieces_by_each_transport(pool, op, transport):
    got = run(pool, "--op", op, "--size", "61KiB", "--pieces", "61", "--batch", "4", "--transports", transport, keys=16)
    assert got["pieces"] == 61


@pytest.mark.parametrize("op", ["batch_put", "batch_get"])
def test_cold_passes(pool, op):
    """More than one leg: each has a new handle. On a busy machine the first one may take all of a short round."""
    for seconds in ("100ms", "1s", "10s"):
        calls = run(pool, "--op", op, "--cold", "--batch", "50", "--seconds", seconds)["calls"]
        if calls > 4:
            break
    assert calls > 4


def test_processes_and_threads(pool):
    got = run(pool, "--op", "batch_put", "--processes", "3", "--threads", "2", "--batch", "4")
    assert got["processes"] == 3 and got["set_objects"] == 216, "rounded up to whole batches for each thread"
    assert objects(pool) == 0


def test_open_loop_keeps_its_rate(pool):
    """Fails if the rate is not kept by all together: 3 pacers and 600 calls a second."""
    got = run(pool, "--op", "exists", "--rate", "600", "--processes", "3", "--seconds", "500ms")
    assert got["calls"] == 300
    assert got["service_p50_us"] <= got["call_p50_us"], "counted from when a call was due"


def test_open_loop_keeps_its_rate_over_cold_passes(pool):
    """Fails if legs of four calls each, which a cold pass makes of a round, add up to more than the rate."""
    got = run(pool, "--op", "batch_put", "--cold", "--batch", "50", "--rate", "100", "--seconds", "2s")
    assert got["calls"] > 8, "more than two legs"
    assert got["calls_per_s"] < 101, got


@pytest.mark.pool(memory="64MiB")
def test_a_set_that_does_not_fit_is_explained(pool):
    """Fails if a set larger than the pool ends in a bare NOT_FOUND, or leaves something behind."""
    r = pool.kvpool("bench", "--op", "batch_get", "--size", "1MiB", "--keys", "256", "--seconds", "100ms")
    assert r.rc == 1 and "256 MiB" in r.err and "128 MiB" in r.err and "--set" in r.err, r
    assert objects(pool) == 0


def test_a_view_over_the_network_is_explained(pool):
    for how in ("--warm", "--cold"):
        r = pool.kvpool("bench", "--op", "view", "--transports", "tcp", "--keys", "10", "--seconds", "100ms", how)
        assert r.rc == 1 and "NOTSUP" in r.err + r.text and "this host shares with a node" in r.err, r
        assert objects(pool) == 0


def test_evicting_puts(pool):
    """A full pool: nothing is refused, and what was put before goes."""
    before = pool.kvpool("stat", "--json").json["pool"]["counters"]["evictions"]
    run(pool, "--op", "batch_put", "--size", "1MiB", "--evict", keys=110)
    assert pool.kvpool("stat", "--json").json["pool"]["counters"]["evictions"] > before


def test_absent_keys_are_answers(pool):
    assert run(pool, "--op", "batch_is_exist", "--absent", "0.5", keys=2000)["absent"] == 0.5
    assert run(pool, "--op", "size", "--absent", "0.5")["calls"] > 0


@pytest.mark.parametrize("args, says", [
    (["--op", "no-such"], "batch_is_exist"),
    (["--size", "much"], "from 1 B to 256 MiB"),
    (["--rate", "0"], "from 1 to 100000000"),
    (["--seconds", "0s"], "from 0.001 s to 3600 s"),
    (["--absent", "2"], "at most 1"),
    (["--key-bytes", "50"], "from 104 to 1024"),
    (["--op", "get", "--batch", "2"], "several objects a call"),
    (["--op", "batch_get", "--size", "100", "--pieces", "3"], "multiple of --pieces"),
    (["--op", "get", "--size", "4KiB", "--pieces", "2"], "batch_put and batch_get"),
    (["--op", "put", "--absent", "0.5"], "only ask"),
    (["--warm", "--cold"], "not both"),
    (["--op", "batch_get", "--evict"], "for puts"),
])
def test_bad_options_name_their_bounds(bench, args, says):
    r = bench.run("kvpool", "bench", *args)
    assert r.rc == 2 and says in r.err and not r.out, r
