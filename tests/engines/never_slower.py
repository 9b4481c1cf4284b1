#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Requests that find their prompt in a pool behind a slow link, each beside one of equal length that finds nothing, in one engine
(vLLM on the CPU, tiny model). A pool must not make requests slower, however slow the link is.

    PYTHON tests/engines/never_slower.py --model DIR [--pairs 200] [--with WAY] [--reference PACKAGES BIN] [RATE ...]

PYTHON: vLLM's environment, with this tree's wheel found by PYTHONPATH. Needs root: the node runs in a network namespace, and `tc tbf` limits
what leaves it, so the master's messages are not limited. RATE: shares of the rate at which loading takes as long as computing, which is
measured first ("1/16"), "full", or "drop" (full, and 1/16 from the middle on); default: all of 1/4 1/16 1/64 drop full. WAY: "ours" is
KVPoolConnector, "upstream" is MooncakeStoreConnector on this tree's wheel, or with --reference on the reference's, whose package and programs
lie in these folders. "none" is an engine without a pool. Prints for each rate the sum of the first tokens' times divided by that of the requests
without a hit, and the 95th percentile of the pairs' ratios."""
import argparse
import fractions
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from places import await_http

HERE = pathlib.Path(__file__).resolve().parent
OURS, THEIRS = "10.77.0.1", "10.77.0.2"
TOKEN_BYTES = 1024  # of the tiny model
LENGTHS = (1024, 1536, 2048, 2560, 3072)
START_S, CALL_S = 600, 1200


# ---- the engine's process


def engine(model, transfer):
    from vllm import LLM, SamplingParams

    more = {} if transfer == "null" else {"kv_transfer_config": json.loads(transfer)}
    llm = LLM(model=model, enforce_eager=True, dtype="bfloat16", max_model_len=4096, max_num_seqs=2, max_num_batched_tokens=4096, block_size=32,
              seed=0, disable_log_stats=False, prefix_caching_hash_algo="sha256_cbor", distributed_executor_backend="mp", **more)
    one = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    print("result ready", flush=True)
    for line in sys.stdin:
        seconds, cached = [], []
        for tokens in json.loads(line):
            while not llm.reset_prefix_cache():
                time.sleep(0.001)
            begun = time.monotonic()
            answer = llm.generate([{"prompt_token_ids": tokens}], one, use_tqdm=False)[0]
            seconds.append(time.monotonic() - begun)
            cached.append(answer.num_cached_tokens)
        counts = {m.name.removeprefix("vllm:kvpool_"): round(m.value, 3) for m in llm.get_metrics()
                  if m.name.startswith("vllm:kvpool_") and hasattr(m, "value") and m.value}
        print("result " + json.dumps([seconds, cached, counts]), flush=True)


class Engine:
    def __init__(self, model, transfer, log):
        environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_HOST_IP": OURS, "VLLM_NO_USAGE_STATS": "1",
                       "MOONCAKE_REQUESTER_LOCAL_HOSTNAME": OURS}
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
    def __init__(self, programs, is_reference):
        self.far = subprocess.Popen(["unshare", "-n", "sleep", "infinity"])
        while os.readlink(f"/proc/{self.far.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            time.sleep(0.01)
        for command in ("ip link set lo up", f"ip link add near type veth peer name far netns {self.far.pid}", f"ip addr add {OURS}/24 dev near",
                        "ip link set near up"):
            subprocess.run(command.split(), check=True)
        for command in ("ip link set lo up", f"ip addr add {THEIRS}/24 dev far", "ip link set far up"):
            self.there(*command.split())
        self.daemons, self.master = [], f"{OURS}:50051"
        there = ["nsenter", "-n", "-t", str(self.far.pid)]
        if is_reference:
            self.start(programs / "mooncake_master", f"--rpc_address={OURS}", "--rpc_port=50051", f"--metrics_host={OURS}", "--metrics_port=9003")
            await_http(f"http://{OURS}:9003/health")
            self.start(*there, programs / "mooncake_client", f"--master_server_address={self.master}", f"--host={THEIRS}", "--port=50052",
                       "--http_port=9300", "--enable_http_server", "--protocol=tcp", "--metadata_server=P2PHANDSHAKE", "--global_segment_size=1GB",
                       "--local_buffer_size=64MB")
            await_http(f"http://{THEIRS}:9300/health")
        else:
            self.start(programs / "kvpool-master", "--listen", self.master, "--insecure", "--http", "none", "--data-dir", "none").stdout.readline()
            self.start(*there, programs / "kvpool-node", "--master", self.master, "--listen", f"{THEIRS}:0", "--insecure", "--name", "far", "--host-id", "far",
                       "--memory", "1GiB", "--keeper", "none").stdout.readline()

    def start(self, *argv):
        self.daemons.append(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
        return self.daemons[-1]

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
    """The line of a rate. The request without a hit has a prompt that nobody has asked before."""
    pool.limit(None if rate in ("full", "drop") else float(fractions.Fraction(rate)) * full)
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
    return (f"{rate}: sum {ours / alone:.2f}, p95 {statistics.quantiles(ratios, n=20)[-1]:.2f}, worst {max(ratios):.2f}, {1e3 * ours / pairs:.0f} ms with a "
            f"hit, {1e3 * alone / pairs:.0f} ms without; {found} tokens from the pool; {counts}")


def connector(way, pool, folder):
    """The kv_transfer_config of an engine that only stores, and that of one that only loads."""
    if way == "none":
        return None, None
    if way == "ours":
        made = {"kv_connector": "KVPoolConnector", "kv_connector_module_path": "kvpool.vllm", "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute"}
        extra = {"master": pool.master, "transports": "tcp"}
        return (made | {"kv_connector_extra_config": extra | more} for more in ({"cost": "never"}, {"save": "none"}))
    conf = pathlib.Path(folder) / "mooncake.json"
    conf.write_text(json.dumps({"metadata_server": "P2PHANDSHAKE", "master_server_address": pool.master, "protocol": "tcp", "device_name": "",
                                "mode": "standalone-store", "global_segment_size": 0, "local_buffer_size": "64MB"}))
    os.environ["MOONCAKE_CONFIG_PATH"] = str(conf)
    made = {"kv_connector": "MooncakeStoreConnector", "kv_load_failure_policy": "recompute"}
    return made | {"kv_role": "kv_producer"}, made | {"kv_role": "kv_consumer"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--with", dest="way", choices=("ours", "upstream", "none"), default="ours")
    parser.add_argument("--reference", type=pathlib.Path, nargs=2, metavar=("PACKAGES", "BIN"))
    parser.add_argument("rates", nargs="*", default=[])
    given = parser.parse_args()
    if os.environ.get("KVPOOL_OWN_NETWORK") != "1":  # a namespace of its own for the engine and the master
        os.execvpe("unshare", ["unshare", "-n", sys.executable, __file__, *sys.argv[1:]], {**os.environ, "KVPOOL_OWN_NETWORK": "1"})
    if given.reference:
        os.environ["PYTHONPATH"] = str(given.reference[0])
        programs = given.reference[1]
    else:
        import kvpool
        programs = pathlib.Path(kvpool.__file__).parent / "bin"
    numbers = itertools.count(100000)
    folder = tempfile.mkdtemp(prefix="never-slower-")
    log = open(f"{folder}/log", "w")
    pool = Pool(programs, given.reference is not None)
    try:
        writer_config, reader_config = connector(given.way, pool, folder)
        writer = Engine(given.model, writer_config, log)
        writer.ask([prompt(next(numbers), length) for length in LENGTHS])
        lengths = [LENGTHS[i % len(LENGTHS)] for i in range(given.pairs)]
        seconds, _, _ = writer.ask([prompt(i, length) for i, length in enumerate(lengths)])
        full = sum(lengths) * TOKEN_BYTES / sum(seconds)
        print(f"{given.way}: computing {sum(lengths) / sum(seconds):.0f} tokens/s; break-even at {full / 1e6:.1f} MB/s; {given.pairs} pairs a line; "
              f"log {log.name}", flush=True)
        time.sleep(2)
        writer.end()
        for rate in given.rates or ["1/4", "1/16", "1/64", "drop", "full"]:
            reader = Engine(given.model, reader_config, log)
            reader.ask([prompt(next(numbers), length) for length in LENGTHS])  # what is compiled at first use
            print(measure(reader, pool, full, rate, given.pairs, numbers), flush=True)
            reader.end()
    finally:
        pool.end()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--engine"]:
        engine(*sys.argv[2:])
    else:
        main()
