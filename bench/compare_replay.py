#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Replays the same trace through kvpool and through Mooncake's store, turn by turn, and compares blocks per second.

Both do the same for a request: look up the longest prefix, load it into registered memory, store the rest; node and
client are different processes; pools of equal size. kvpool verifies every byte, the reference's driver one word at each
end of a block.

The reference is the wheel mooncake-transfer-engine-non-cuda, in a virtual environment named by KVPOOL_REFERENCE_VENV, or
importable by this interpreter:
    python3 -m venv VENV && VENV/bin/pip install mooncake-transfer-engine-non-cuda numpy    (needs libibverbs1)
Its side is the kinds `holder` and `replay` of compare_worker.py.

With --wheel PYTHON, an interpreter that has kvpool's wheel, nothing is compared: the trace goes through our mooncake.store at 5, 10 and
20 %, and the figures are hits to LRU's, and how much of the pool held committed blocks; --save adds them to results/DATE-HOST-replay.csv.
"""
import argparse
import collections
import contextlib
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import measure  # noqa: E402
from compare_worker import read_trace  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[1]
WORKER = ROOT / "bench" / "compare_worker.py"
MIB = 1 << 20
READY_S = 60
STOP_S = 20


def reference_python():
    """(interpreter, None) of the reference, or (None, why it is not here)."""
    venv = os.environ.get("KVPOOL_REFERENCE_VENV")
    python = str(pathlib.Path(venv) / "bin" / "python3") if venv else sys.executable
    if not os.access(python, os.X_OK):
        return None, f"no interpreter {python}"
    try:
        probe = subprocess.run([python, "-c", "import mooncake.store, numpy"], capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return None, f"{python}: importing mooncake.store took too long"
    if probe.returncode == 0:
        return python, None
    why = (probe.stderr.strip().splitlines() or ["no reason given"])[-1]
    return None, f"{python} cannot import mooncake.store ({why}); KVPOOL_REFERENCE_VENV names a virtual environment with it"


def free_ports(n):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


@contextlib.contextmanager
def child(argv, log, **kw):
    """A process that is gone afterwards."""
    p = subprocess.Popen(argv, stderr=log, **kw)
    try:
        yield p
    finally:
        if p.stdin:
            p.stdin.close()
        else:
            p.terminate()
        try:
            p.wait(STOP_S)
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()


def await_port(port, proc):
    end = time.monotonic() + READY_S
    while time.monotonic() < end and proc.poll() is None:
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError("the reference's master did not come up")


def run_reference(python, trace, block_bytes, blocks, limit=0):
    """One replay through the reference in a fresh pool of that many blocks (its segment is rounded up to 1 MiB)."""
    rpc, metrics = free_ports(2)
    told = {"master": f"127.0.0.1:{rpc}", "segment": (blocks * block_bytes + MIB - 1) // MIB * MIB, "trace": str(trace),
            "block_bytes": block_bytes, "limit": limit}
    master = [str(pathlib.Path(python).parent / "mooncake_master"), f"--rpc_port={rpc}", f"--metrics_port={metrics}"]
    with tempfile.TemporaryFile("w+") as log, child(master, log, stdout=log) as m:
        await_port(rpc, m)
        with child([python, WORKER, "holder", json.dumps(told)], log, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                   text=True) as holder:
            if not any(line.startswith("ready") for line in iter(holder.stdout.readline, "")):
                raise RuntimeError(f"the reference's holder did not come up: {tail(log)}")
            done = subprocess.run([python, WORKER, "replay", json.dumps(told)], stdout=subprocess.PIPE, stderr=log, text=True)
        for line in done.stdout.splitlines():
            if line.startswith("result "):
                return json.loads(line[len("result "):])
        raise RuntimeError(f"the reference's replay gave no result: {tail(log)}")


def tail(log):
    log.seek(0)
    return " | ".join(log.read().splitlines()[-5:])


def run_kvpool(tool, trace, block_bytes, capacity, limit=0, transports=None):
    argv = [str(tool), "replay", "--trace", str(trace), "--block-bytes", str(block_bytes), "--capacity", str(capacity),
            "--json"]
    if limit:
        argv += ["--limit", str(limit)]
    if transports:
        argv += ["--transports", transports]
    env = {k: v for k, v in os.environ.items() if k != "KVPOOL_MASTER"}
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    if not done.stdout.strip():
        raise RuntimeError(f"kvpool replay gave no result: {done.stderr.strip()[-400:]}")
    return json.loads(done.stdout)


def turns(tool, python, trace, block_bytes, capacity, n, limit=0, say=lambda text: None):
    """[(ours, reference)] of n turns, each a fresh pool."""
    distinct = len({i for ids in read_trace(trace, limit) for i in ids})
    pairs = []
    for i in range(n):
        ours = run_kvpool(tool, trace, block_bytes, capacity, limit)
        theirs = run_reference(python, trace, block_bytes, int(distinct * capacity), limit)
        pairs.append((ours, theirs))
        say(f"turn {i + 1}: kvpool {ours['blocks_per_s']:,} blocks/s, hit ratio {ours['hit_ratio']}; reference "
            f"{theirs['blocks_per_s']:,} blocks/s, hit ratio {theirs['hit_ratio']}, {theirs['puts_refused']:,} puts refused")
    return pairs


FIELDS = ["date", "machine", "line", "kind", "value", "bound", "asked", "verdict", "note"]


def lru_hits(requests, blocks):
    cache, hits = collections.OrderedDict(), 0
    for ids in requests:
        hits += next((n for n, block in enumerate(ids) if block not in cache), len(ids))
        for block in ids:
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > blocks:
            cache.popitem(last=False)
    return hits


def through_wheel(python, build, trace, block_bytes, capacity, limit):
    """(result, LRU's hits, the part of the pool that committed blocks had, on the mean of the second half of the commits)."""
    requests = read_trace(trace, limit)
    memory = (int(len({i for ids in requests for i in ids}) * capacity) * block_bytes + MIB - 1) // MIB * MIB
    with measure.Pool(build, str(memory)) as pool, tempfile.TemporaryFile("w+") as log:
        told = {"master": pool.address, "trace": str(trace), "block_bytes": block_bytes, "limit": limit}
        replay = subprocess.Popen([str(python), WORKER, "replay", json.dumps(told)], stdout=subprocess.PIPE, stderr=log, text=True)
        seen = []
        while replay.poll() is None:
            now = pool.stat()
            seen.append((now["counters"]["commits"], now["objects"] * block_bytes / memory))
        line = next((line for line in replay.stdout if line.startswith("result ")), None)
        if line is None:
            raise RuntimeError(f"the replay gave no result: {tail(log)}")
    half = [part for commits, part in seen if commits > seen[-1][0] / 2]
    return json.loads(line[len("result "):]), lru_hits(requests, memory // block_bytes), sum(half) / len(half)


def measure_wheel(args):
    machine, rows = measure.Machine(), []
    print(f"{machine.text}; {machine.now:%Y-%m-%d %H:%M} UTC")
    for capacity in (0.05, 0.1, 0.2):
        got, lru, part = through_wheel(args.wheel, args.build.resolve(), args.trace, args.block_bytes, capacity, args.limit)
        faults = got["get_failed_after_lookup"] + got["puts_refused"] + got["wrong_blocks"]
        note = f"{got['hits']:,} hits of {lru:,}; {faults} gets or puts failed or wrong; {got['blocks_per_s']:,} blocks/s"
        for line, asked, value, bound in (("hits", "hits to LRU's", got["hits"] / lru, 0.997), ("full", "committed of the pool", part, 0.99)):
            verdict = "pass" if value >= bound and faults == 0 else "SHORT"
            asked = f"mooncake.store, blocks of {args.block_bytes >> 10} KiB, {100 * capacity:.0f} % held, {asked} >= {bound}"
            rows.append(dict(line=f"wheel-{line}-{100 * capacity:.0f}", kind="result", value=round(value, 5), bound=bound, asked=asked,
                             verdict=verdict, note=note))
            print(f"{asked}: {value:.4f} {verdict}; {note}")
    if args.save:
        measure.append_rows(machine.path("-replay"), FIELDS, machine.sign(rows))
    return any(row["verdict"] != "pass" for row in rows)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--trace", required=True)
    p.add_argument("--block-bytes", type=int, default=8192)
    p.add_argument("--capacity", type=float, default=0.1)
    p.add_argument("--turns", type=int, default=3)
    p.add_argument("--limit", type=int, default=0, help="first requests only")
    p.add_argument("--kvpool", default=str(ROOT / "build" / "bin" / "kvpool"))
    p.add_argument("--wheel", type=pathlib.Path, metavar="PYTHON", help="measure our own wheel alone")
    p.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="of the pool for --wheel")
    p.add_argument("--save", action="store_true", help="with --wheel: add to results/DATE-HOST-replay.csv")
    args = p.parse_args()
    if args.wheel:
        return measure_wheel(args)
    python, why = reference_python()
    if python is None:
        print(f"skipped: {why}")
        return 0
    pairs = turns(args.kvpool, python, args.trace, args.block_bytes, args.capacity, args.turns, args.limit, print)
    ratio = statistics.median(ours["blocks_per_s"] / theirs["blocks_per_s"] for ours, theirs in pairs)
    print(f"kvpool / reference, median of {len(pairs)}: {ratio:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
