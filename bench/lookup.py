#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The look-up of the vLLM connector (one message that finds and reserves a prefix for all ranks and cache groups) beside one
batch_is_exist of all keys, which is what upstream's connector sends. Both ask the same pool by turns.

    PYTHON bench/lookup.py [--ranks 8] [--groups 3] [--blocks 1000] [--turns 300]    PYTHON has the wheel installed

Prints both medians and 90th percentiles in milliseconds, and the share of the names that the look-up reserved."""
import argparse
import hashlib
import pathlib
import socket
import statistics
import struct
import subprocess
import time

import kvpool
from kvpool import _kvpool
from kvpool.vllm.names import Group, names_of

OBJECT_BYTES = 4096


def start(program, *arguments):
    where = pathlib.Path(kvpool.__file__).parent / "bin" / program
    process = subprocess.Popen([where, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout.readline().startswith("ready"), f"{program} did not start"
    return process


def fill(pool, names, groups, hashes):
    """What so many ranks put."""
    memory = bytearray(OBJECT_BYTES)
    pool.register(memory)
    layout = struct.pack("=QQQ", _kvpool.memory_of(memory, False)[0], 0, OBJECT_BYTES)
    for group in groups:
        for shard in range(group.shards):
            grouped = (names.group_prefix(group), names.members(group), shard) if names.is_grouped else None
            job = _kvpool.Job(pool._raw, layout, names.object_prefix(group, shard, 0), hashes, [0] * len(hashes), grouped)
            assert job.put(time.monotonic() + 60, 0, 0)[0] == 0 and not any(job.results())


def look_up(asker, names, groups, hashes, number):
    """Seconds in the asker's thread, and the answer."""
    parts = [(names.lookup_prefix(g), hashes) for g in groups]
    assert asker.ask(number, parts, True, 2000, 5000, _kvpool.GROUPS | _kvpool.PLACES, 0)
    while (answer := asker.take(number)) is None:
        time.sleep(1e-4)
    return answer


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("ranks", 8), ("groups", 3), ("blocks", 1000), ("turns", 300)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    size = 4 * given.ranks * given.groups * given.blocks * OBJECT_BYTES
    daemons = [start("kvpool-master", "--listen", address, "--http", "none", "--data-dir", "none"),
               start("kvpool-node", "--master", address, "--memory", str(max(size, 1 << 28)), "--name", "n", "--keeper", "none")]
    try:
        pool = kvpool.Pool(address)
        groups = [Group(i, "full", 16, given.ranks) for i in range(given.groups)]
        names = names_of("bench", 1, groups)
        hashes = [hashlib.sha256(str(i).encode()).digest() for i in range(given.blocks)]
        fill(pool, names, groups, hashes)
        keys = [names.object_prefix(g, s, 0) + h.hex().encode() for h in hashes for g in groups for s in range(g.shards)]
        asker = _kvpool.Asker(pool._raw)
        ours, theirs, granted = [], [], 0
        for turn in range(given.turns):
            err, _, tickets, _, seconds = look_up(asker, names, groups, hashes, turn)
            assert err == 0 and sum(found for _, found, _ in tickets) == given.groups * given.blocks
            granted = sum(n for _, _, n in tickets)
            ours.append(1e3 * seconds)
            for ticket in tickets:
                pool._raw.lookup_release(*ticket)
            began = time.perf_counter()
            assert all(pool._raw.batch_is_exist(keys, 5000, 0))
            theirs.append(1e3 * (time.perf_counter() - began))
        for name, times in ((f"look-up of {given.groups * given.blocks} names, reserving", ours), (f"batch_is_exist of {len(keys)} keys", theirs)):
            print(f"{name}: median {statistics.median(times):.3f} ms, p90 {statistics.quantiles(times, n=10)[-1]:.3f} ms")
        print(f"reserved: {granted} of {given.groups * given.blocks} names")
        asker.close()
        pool.close()
    finally:
        for daemon in reversed(daemons):
            daemon.kill()
            daemon.wait()


if __name__ == "__main__":
    main()
