#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Replays the same trace through kvpool and through Mooncake's store, turn by turn, and compares blocks per second.

Both do the same for a request: look up the longest prefix, load it into registered memory, store the rest; node and
client are different processes; pools of equal size. kvpool verifies every byte, the reference's driver one word at each
end of a block.

The reference is the wheel mooncake-transfer-engine-non-cuda, in a virtual environment named by KVPOOL_REFERENCE_VENV, or
importable by this interpreter:
    python3 -m venv VENV && VENV/bin/pip install mooncake-transfer-engine-non-cuda numpy    (needs libibverbs1)
Its master is started with its own metadata server, on free loopback ports; this is the same by hand:
    VENV/bin/mooncake_master --rpc_port=50051 --enable_http_metadata_server=true --http_metadata_server_port=8081
"""
import argparse
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

ROOT = pathlib.Path(__file__).resolve().parents[1]
MIB = 1 << 20
READY_S = 60
STOP_S = 20


# ---- the reference's side: runs in its own interpreter


def ref_store(args, segment_bytes, buffer_bytes):
    from mooncake.store import MooncakeDistributedStore
    store = MooncakeDistributedStore()
    rc = store.setup("127.0.0.1", args.metadata, segment_bytes, buffer_bytes, "tcp", "", args.master)
    if rc != 0:
        sys.exit(f"setup of the reference's store failed: {rc}")
    return store


def ref_holder(args):
    """Owns the memory of the pool until standard input ends."""
    store = ref_store(args, args.segment_bytes, 16 * MIB)
    print("ready", flush=True)
    sys.stdin.read()
    store.close()


class RefReplay:
    """The reference's client. A block carries its id in its first and last eight bytes."""

    def __init__(self, args, requests):
        import numpy
        self.store = ref_store(args, 0, 256 * MIB)
        self.block = args.block_bytes
        longest = max(len(ids) for ids in requests)
        self.memory = numpy.zeros(longest * self.block, dtype=numpy.uint8)
        self.words = self.memory.view(numpy.uint64)
        self.store.register_buffer(self.memory.ctypes.data, self.memory.nbytes)
        self.counts = dict(blocks=0, hits=0, get_failed_after_lookup=0, puts_refused=0, wrong_blocks=0)

    def places(self, n):
        return [self.memory.ctypes.data + i * self.block for i in range(n)], [self.block] * n

    def ends(self, i):
        first = i * self.block // 8
        return first, first + self.block // 8 - 1

    def load(self, keys, ids):
        for i, result in enumerate(self.store.batch_get_into(keys, *self.places(len(keys)))):
            first, last = self.ends(i)
            if result != self.block:
                self.counts["get_failed_after_lookup"] += 1
            elif self.words[first] != ids[i] or self.words[last] != ids[i]:
                self.counts["wrong_blocks"] += 1
            else:
                self.counts["hits"] += 1

    def save(self, keys, ids):
        for i, block_id in enumerate(ids):
            for end in self.ends(i):
                self.words[end] = block_id
        results = self.store.batch_put_from(keys, *self.places(len(keys)))
        self.counts["puts_refused"] += sum(1 for result in results if result != 0)

    def request(self, ids):
        keys = [f"deepseek-ai/DeepSeek-V3.1@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{i:064x}" for i in ids]
        present = self.store.batch_is_exist(keys)
        prefix = next((i for i, found in enumerate(present) if found != 1), len(keys))
        self.counts["blocks"] += len(keys)
        if prefix > 0:
            self.load(keys[:prefix], ids[:prefix])
        if prefix < len(keys):
            self.save(keys[prefix:], ids[prefix:])


def ref_replay(args):
    requests = read_trace(args.trace, args.limit)
    replay = RefReplay(args, requests)
    begun = time.perf_counter()
    for ids in requests:
        replay.request(ids)
    elapsed = time.perf_counter() - begun
    counts = replay.counts
    print("result " + json.dumps(dict(counts, elapsed_s=round(elapsed, 3), blocks_per_s=round(counts["blocks"] / elapsed),
                                      hit_ratio=round(counts["hits"] / counts["blocks"], 4))), flush=True)
    replay.store.close()


# ---- this side


def read_trace(path, limit=0):
    with open(path) as f:
        requests = [json.loads(line)["hash_ids"] for line in f if line.strip()]
    return requests[:limit] if limit else requests


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
    rpc, metadata, metrics = free_ports(3)
    segment = (blocks * block_bytes + MIB - 1) // MIB * MIB
    common = [python, __file__, "--trace", str(trace), "--block-bytes", str(block_bytes), "--limit", str(limit),
              "--master", f"127.0.0.1:{rpc}", "--metadata", f"http://127.0.0.1:{metadata}/metadata"]
    master = [str(pathlib.Path(python).parent / "mooncake_master"), f"--rpc_port={rpc}", f"--metrics_port={metrics}",
              "--enable_http_metadata_server=true", "--http_metadata_server_host=127.0.0.1",
              f"--http_metadata_server_port={metadata}"]
    with tempfile.TemporaryFile("w+") as log, child(master, log, stdout=log) as m:
        await_port(rpc, m)
        await_port(metadata, m)
        with child(common + ["--role", "holder", "--segment-bytes", str(segment)], log, stdin=subprocess.PIPE,
                   stdout=subprocess.PIPE, text=True) as holder:
            if not any(line.startswith("ready") for line in iter(holder.stdout.readline, "")):
                raise RuntimeError(f"the reference's holder did not come up: {tail(log)}")
            done = subprocess.run(common + ["--role", "replay"], stdout=subprocess.PIPE, stderr=log, text=True)
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


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--trace", required=True)
    p.add_argument("--block-bytes", type=int, default=8192)
    p.add_argument("--capacity", type=float, default=0.1)
    p.add_argument("--turns", type=int, default=3)
    p.add_argument("--limit", type=int, default=0, help="first requests only")
    p.add_argument("--kvpool", default=str(ROOT / "build" / "client" / "kvpool"))
    for hidden, kind in (("role", str), ("master", str), ("metadata", str), ("segment-bytes", int)):
        p.add_argument(f"--{hidden}", type=kind, help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.role == "holder":
        return ref_holder(args)
    if args.role == "replay":
        return ref_replay(args)
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
