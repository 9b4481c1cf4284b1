#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Requests that find their prompt in a pool behind a slow link, each beside one of equal length that finds nothing, in one engine
(vLLM on the CPU, tiny model). A pool must not make requests slower, however slow the link is.

    PYTHON tests/engines/never_slower.py --model DIR [--pairs 200] [--connector KVPoolConnector] [RATE ...]

PYTHON: vLLM's environment, with this tree's wheel found by PYTHONPATH. Needs root: the node runs in a network namespace, and `tc tbf` limits
what leaves it, so the master's messages are not limited. RATE: shares of the rate at which loading takes as long as computing, which is
measured first ("1/16"), "full", or "drop" (full, and 1/16 from the middle on); default: all of 1/4 1/16 1/64 drop full. Prints for each the
sum of the first tokens' times divided by that of the requests without the pool, and the 95th percentile of the pairs' ratios."""
import argparse
import fractions
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
OURS, THEIRS = "10.77.0.1", "10.77.0.2"
TOKEN_BYTES = 1024  # of the tiny model
LENGTHS = (1024, 1536, 2048, 2560, 3072)
START_S, CALL_S = 600, 1200


# ---- the engine's process


def engine(model, transfer):
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams

    llm = LLM(model=model, enforce_eager=True, dtype="bfloat16", max_model_len=4096, max_num_seqs=2, max_num_batched_tokens=4096, block_size=32,
              seed=0, distributed_executor_backend="uni", prefix_caching_hash_algo="sha256_cbor", kv_transfer_config=json.loads(transfer))
    one = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    print("result ready", flush=True)
    for line in sys.stdin:
        seconds, cached = [], []
        for tokens in json.loads(line):
            llm.reset_prefix_cache()
            begun = time.monotonic()
            answer = llm.generate([{"prompt_token_ids": tokens}], one, use_tqdm=False)[0]
            seconds.append(time.monotonic() - begun)
            cached.append(answer.num_cached_tokens)
        connector = llm.llm_engine.engine_core.engine_core.scheduler.connector
        counts = dict(connector.scheduler.requests.counts) if hasattr(connector, "scheduler") else {}
        print("result " + json.dumps([seconds, cached, counts]), flush=True)


class Engine:
    def __init__(self, model, transfer, log):
        environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_HOST_IP": OURS, "VLLM_NO_USAGE_STATS": "1"}
        self.process = subprocess.Popen([sys.executable, __file__, "--engine", model, json.dumps(transfer)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        self.read()

    def read(self):
        for line in self.process.stdout:
            if line.startswith("result "):
                return line.removeprefix("result ")
        raise SystemExit("an engine ended; see the log")

    def ask(self, prompts):
        """([seconds], [cached tokens], figures of the connector so far)"""
        self.process.stdin.write(json.dumps(prompts) + "\n")
        self.process.stdin.flush()
        return json.loads(self.read())

    def end(self):
        self.process.stdin.close()
        self.process.wait()


# ---- the pool and its link


class Pool:
    def __init__(self, bin_folder, memory):
        self.far = subprocess.Popen(["unshare", "-n", "sleep", "infinity"])
        while os.readlink(f"/proc/{self.far.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            time.sleep(0.01)
        for command in ("ip link set lo up", f"ip link add near type veth peer name far netns {self.far.pid}", f"ip addr add {OURS}/24 dev near",
                        "ip link set near up"):
            subprocess.run(command.split(), check=True)
        for command in ("ip link set lo up", f"ip addr add {THEIRS}/24 dev far", "ip link set far up"):
            self.there(*command.split())
        self.master = f"{OURS}:50051"
        quiet = dict(stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.daemons = [subprocess.Popen([bin_folder / "kvpool-master", "--listen", self.master, "--http", "none", "--data-dir", "none"], **quiet)]
        self.daemons[0].stdout.readline()
        self.daemons.append(subprocess.Popen(
            ["nsenter", "-n", "-t", str(self.far.pid), bin_folder / "kvpool-node", "--master", self.master, "--listen", f"{THEIRS}:0", "--name", "far",
             "--host-id", "far", "--memory", memory, "--keeper", "none"], **quiet))
        self.daemons[1].stdout.readline()

    def there(self, *command, check=True):
        subprocess.run(["nsenter", "-n", "-t", str(self.far.pid), *command], check=check, stderr=None if check else subprocess.DEVNULL)

    def limit(self, bytes_a_second):
        """None: no limit."""
        self.there("tc", "qdisc", "del", "dev", "far", "root", check=False)
        if bytes_a_second:
            self.there("tc", "qdisc", "add", "dev", "far", "root", "tbf", "rate", f"{int(8 * bytes_a_second)}bit", "burst", "32kb", "latency", "50ms")

    def end(self):
        for process in [*reversed(self.daemons), self.far]:
            process.kill()
            process.wait()


def prompt(number, length):
    """Tokens that begin otherwise for each number."""
    return [(number * 7919 + i * 31 + i * i * (number % 13 + 1)) % 500 + 1 for i in range(length)]


def measure(running, pool, full, rate, pairs, numbers):
    """Ratios of the pairs. The one without the pool has a prompt that nobody has asked before."""
    base = pool_rate = None
    if rate not in ("full", "drop"):
        pool_rate = float(fractions.Fraction(rate)) * full
    pool.limit(pool_rate)
    ours, alone, ratios, found = 0.0, 0.0, [], 0
    for i in range(pairs):
        if rate == "drop" and i == pairs // 2:
            pool.limit(full / 16)
        length = LENGTHS[i % len(LENGTHS)]
        order = [prompt(i, length), prompt(next(numbers), length)]
        seconds, cached, counts = running.ask(order if i % 2 else order[::-1])
        base, mine = (seconds[1], seconds[0]) if i % 2 else (seconds[0], seconds[1])
        found += cached[0 if i % 2 else 1]
        ours, alone = ours + mine, alone + base
        ratios.append(mine / base)
    return ours / alone, statistics.quantiles(ratios, n=20)[-1], max(ratios), found, counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("rates", nargs="*", default=[])
    given = parser.parse_args()
    if os.environ.get("KVPOOL_OWN_NETWORK") != "1":  # a namespace of its own for the engine and the master
        os.execvpe("unshare", ["unshare", "-n", sys.executable, __file__, *sys.argv[1:]], {**os.environ, "KVPOOL_OWN_NETWORK": "1"})
    import itertools

    import kvpool
    numbers = itertools.count(100000)
    log = tempfile.NamedTemporaryFile("w", prefix="never-slower-", suffix=".log", delete=False)
    pool = Pool(pathlib.Path(kvpool.__file__).parent / "bin", "1GiB")
    try:
        extra = {"master": pool.master, "transports": "tcp"}
        transfer = {"kv_connector": "KVPoolConnector", "kv_connector_module_path": "kvpool.vllm", "kv_role": "kv_both",
                    "kv_load_failure_policy": "recompute"}
        writer = Engine(given.model, transfer | {"kv_connector_extra_config": extra | {"cost": "never"}}, log)
        writer.ask([prompt(1, 512)])
        seconds, _, counts = writer.ask([prompt(i, LENGTHS[i % len(LENGTHS)]) for i in range(given.pairs)])
        lengths = [LENGTHS[i % len(LENGTHS)] for i in range(given.pairs)]
        full = sum(lengths) * TOKEN_BYTES / sum(seconds)
        print(f"computing: {sum(lengths) / sum(seconds):.0f} tokens/s; break-even at {full / 1e6:.1f} MB/s; {given.pairs} pairs a line; log {log.name}",
              flush=True)
        time.sleep(2)
        writer.end()
        for rate in given.rates or ["1/4", "1/16", "1/64", "drop", "full"]:
            reader = Engine(given.model, transfer | {"kv_connector_extra_config": extra | {"save": "none"}}, log)
            reader.ask([prompt(next(numbers), length) for length in LENGTHS[:3]])  # what is compiled at first use
            total, p95, worst, found, counts = measure(reader, pool, full, rate, given.pairs, numbers)
            print(f"{rate}: sum {total:.2f}, p95 {p95:.2f}, worst {worst:.2f}, {found} tokens from the pool; {counts}", flush=True)
            reader.end()
    finally:
        pool.end()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--engine"]:
        engine(*sys.argv[2:])
    else:
        main()
