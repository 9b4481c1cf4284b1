# SPDX-License-Identifier: Apache-2.0
"""Cases of vLLM with kvpool.vllm.KVPoolConnector; runs in vLLM's environment. An engine without a cache generates the wanted
tokens. The cases share engines, since the start of one takes 10 s or more; each has prompts of its own. Prints a line a case."""
import argparse
import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

from places import CALL_S, HERE, START_S, Place, Wrong, end_engine, free_ports, next_result
from prompts import BLOCK_TOKENS

FOUND_S = 30  # after which a fault of the pool must be over for an engine
LENGTHS = (150, 420, 810, 1500)


class Skipped(Exception):
    """A case that cannot run here, and why."""


def need(condition, text):
    if not condition:
        raise Wrong(text)


def until(holds, text):
    """Waits until holds() is true, and returns its answer."""
    end = time.monotonic() + FOUND_S
    while not (answer := holds()):
        need(time.monotonic() < end, f"not after {FOUND_S} s: {text}")
        time.sleep(0.05)
    return answer


def prompt(name, tokens):
    rng = random.Random(name)
    return [rng.randrange(3, 500) for _ in range(tokens)]


def prompts(name, lengths=LENGTHS):
    return [prompt(f"{name} {i}", n) for i, n in enumerate(lengths)]


def whole(tokens):
    return tokens // BLOCK_TOKENS * BLOCK_TOKENS


def has_all(found, asked):
    """Whether every full block came from the pool."""
    return found["cached"] == [whole(len(p)) for p in asked]


def counted(found, *names):
    """The figures whose names begin so; at least one is needed."""
    seen = [f"{name} {value:.0f}" for name, value in sorted(found["counts"].items()) if name.startswith(names)]
    need(seen, f"none of {names} is counted: {found['counts']}")
    return ", ".join(seen)


def kill(process):
    process.kill()
    process.wait()


class Engine:
    """A process of kvpool_once.py. ask() compares the tokens with those of an engine without a cache, or with `wanted`."""

    def __init__(self, run, name, model, extra, **engine):
        self.run, words = run, json.dumps({"engine": engine, "extra": extra})
        self.process = run.place.start(name, sys.executable, HERE / "kvpool_once.py", model, words, stdout=subprocess.PIPE)
        next_result(self.process, START_S)

    def do(self, what, **arguments):
        self.process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
        self.process.stdin.flush()
        return next_result(self.process, CALL_S)

    def ask(self, asked, tokens=16, wanted=None, **arguments):
        found = self.do("ask", prompts=asked, tokens=tokens, **arguments)
        for p, one, other in zip(asked, found["tokens"], wanted or self.run.wanted(asked, tokens)):
            need(one == other, f"a prompt of {len(p)} tokens generates {one}, not {other}; cached {found['cached']}, {found['counts']}")
        return found

    def ask_stored(self, asked, **arguments):
        found = self.ask(asked, **arguments)
        need(has_all(found, asked), f"{found['cached']} tokens came from the pool: {found['counts']}")
        return found

    def ask_until_stored(self, asked, **arguments):
        return until(lambda: has_all(found := self.ask(asked, **arguments), asked) and found, "every block comes from the pool")

    def attached(self):
        end = time.monotonic() + FOUND_S
        while (state := self.do("state")["state"]) != "ready":
            need(time.monotonic() < end, f"after {FOUND_S} s the engine's way to the pool is {state!r}")
        return self

    def alone(self, asked, save="prompt", **arguments):
        """The tokens with the pool switched off. save: what is stored afterwards."""
        self.do("set", cost="never", save="none")
        found = self.do("ask", prompts=asked, **arguments)
        need(not any(found["cached"]), f"the pool is not switched off: {found}")
        self.do("set", cost="always", save=save)
        return found["tokens"]


class Run:
    """The processes of the cases: a master at one address, a node, and engines by their names."""

    def __init__(self, place):
        self.place, self.engines, self.known, self.master, self.node, self.memory = place, {}, {}, None, None, ""
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        place.env["KVPOOL_TEST_FAULTS"] = str(place.folder / "faults.json")

    def model(self, kind):
        """The folder of a tiny model."""
        folder = self.place.model.parent / kind
        if not (folder / "model.safetensors").exists():
            words = ["tiny_model.py"] if kind == "model" else ["tiny_hybrid.py", kind]
            subprocess.run([sys.executable, HERE / words[0], *words[1:], folder], check=True, timeout=START_S, stderr=subprocess.DEVNULL)
        return folder

    def faults(self, **given):
        (self.place.folder / "faults.new").write_text(json.dumps(given))
        (self.place.folder / "faults.new").rename(self.place.folder / "faults.json")

    def daemon(self, program, *argv):
        process = self.place.start(program, self.place.programs / program, *argv, stdout=subprocess.PIPE)
        need(process.stdout.readline().startswith("ready"), f"{program} did not start")
        return process

    def begin(self, memory="256MiB"):
        """A pool without faults."""
        self.faults()
        if self.node and self.memory != memory:
            kill(self.node)
        if self.master is None or self.master.poll() is not None:
            self.master = self.daemon("kvpool-master", "--listen", self.address, "--http", "none", "--data-dir", "none")
        if self.node is None or self.node.poll() is not None:
            self.memory, name = memory, f"node-{time.monotonic_ns()}"
            self.node = self.daemon("kvpool-node", "--master", self.address, "--memory", memory, "--keeper", "none", "--name", name)

    def engine(self, name, extra=None, kind="model", **engine):
        """The engine of that name, which is started if it does not run."""
        if name not in self.engines or self.engines[name].process.poll() is not None:
            extra = extra if extra is None else {"master": self.address, "cost": "always", "lookup_ms": 500, "namespace": "model", **extra}
            self.engines[name] = Engine(self, name, self.model(kind), extra, **engine)
        return self.engines[name]

    @contextlib.contextmanager
    def environment(self, **more):
        """Of the engines that start meanwhile."""
        before = dict(self.place.env)
        self.place.env.update(more)
        try:
            yield
        finally:
            self.place.env = before

    def end(self, *names):
        for name in names:
            if name in self.engines:
                end_engine(self.engines.pop(name).process)

    def reader(self):
        """Over TCP, so that it depends on the node's process."""
        return self.engine("reader", {"transports": "tcp"}).attached()

    def small(self):
        return self.engine("small", {"save": "all"}, num_gpu_blocks_override=100)

    def wanted(self, asked, tokens):
        new = [p for p in asked if (str(p), tokens) not in self.known]
        answers = self.engine("without").do("ask", prompts=new, tokens=tokens)["tokens"] if new else []
        self.known |= {(str(p), tokens): answer for p, answer in zip(new, answers)}
        return [self.known[str(p), tokens] for p in asked]

    def pool(self, tenant="model"):
        import kvpool
        return kvpool.Pool(self.address, tenant=tenant, transports="tcp")


def plain(run):
    asked = prompts("plain")
    written = run.engine("writer", {}).ask(asked)
    run.end("writer")
    read = run.reader().ask_stored(asked)
    return f"{counted(written, 'saved_bytes')}; another engine: {counted(read, 'tokens_loaded')} of {sum(map(len, asked))}"


def flip(node, value):
    """Another bit in a value that the node's memory holds."""
    for descriptor in pathlib.Path(f"/proc/{node.pid}/fd").iterdir():
        if "memfd:" in os.readlink(descriptor):
            with open(descriptor, "r+b") as file:
                if (at := file.read().find(value)) >= 0:
                    file.seek(at + 5)
                    file.write(bytes([value[5] ^ 1]))
                    return
    raise Wrong("the bytes of the block are not found in the node's memory")


def byte_flipped(run):
    reader, asked = run.reader(), prompts("flipped", (420,))
    with run.pool() as pool:
        before = set(pool.list())
        reader.ask(asked)
        flip(run.node, pool.get(min(set(pool.list()) - before, key=lambda found: abs(pool.lineage(found[0])[2] - 3))[0]))
    found = reader.ask(asked)
    need(found["counts"].get("tokens_loaded") == 3 * BLOCK_TOKENS, f"not the blocks before it were loaded: {found['counts']}")
    reader.ask_until_stored(asked)
    return f"{counted(found, 'failed_', 'tokens_')}; stored again"


def first_block_fails(run):
    reader, asked = run.reader(), prompts("first", (800,))
    for _ in range(10):
        run.faults()
        reader.ask_until_stored(asked)
        run.faults(lost=0)
        found = reader.ask(asked)
        need(found["counts"].get("loads_failed") == 1, f"not one load: {found['counts']}")
    return f"ten times one load, {counted(found, 'failed_')}"


def load_1ms(run):
    reader, asked = run.reader(), prompts("1 ms")
    reader.ask_until_stored(asked)
    reader.do("set", load_ms=1)
    found = reader.ask(asked)
    reader.do("set", load_ms=5000)
    reader.ask_stored(asked)
    return f"{counted(found, 'loads_cut', 'failed_')}; {found['counts'].get('tokens_loaded', 0)} tokens arrived"


def abort_loading(run):
    reader, asked = run.reader(), prompts("abort", (1500,))
    reader.ask_until_stored(asked)
    run.node.send_signal(signal.SIGSTOP)
    try:
        found = reader.do("abort", prompt=asked[0])
    finally:
        run.node.send_signal(signal.SIGCONT)
    need(found["was_loading"] and not found["left"], f"{found}")
    reader.ask_until_stored(asked)
    return f"blocks are free {1e3 * found['seconds']:.0f} ms after the abort"


def killed(run, what, *figures):
    """Killed between requests, and twice while requests run; a new one is used each time."""
    reader, asked = run.reader(), prompts(what)
    reader.ask_until_stored(asked)
    kill(getattr(run, what))
    between, slowest = reader.ask(asked), 0.0
    for after_s in (0.02, 0.1):
        run.begin()
        reader.ask_until_stored(asked)
        timer = threading.Timer(after_s, getattr(run, what).kill)
        timer.start()
        slowest = max(slowest, reader.ask(asked + prompts(f"{what} {after_s}", (700,)), together=True, settle=False)["seconds"])
        timer.join()
        getattr(run, what).wait()
        reader.ask(asked, together=True)
    run.begin()
    reader.ask_until_stored(asked)
    return f"between requests {counted(between, *figures)}; while requests run they take {slowest:.1f} s"


def no_node(run):
    """Blocks of saves that no node takes do not hold up requests of an engine with few blocks."""
    small = run.small().attached()
    usual = small.ask(prompts("usual", [1500] * 10), settle=False)
    kill(run.node)
    found = small.ask(prompts("no node", [1500] * 10), settle=False)
    text = f"ten requests take {found['seconds']:.1f} s, and with a node {usual['seconds']:.1f} s"
    need(found["seconds"] < 2 * usual["seconds"] + 2, f"{text}: {found['counts']}")
    return text


def master_late(run):
    asked = prompts("late")
    run.end("small")
    kill(run.master)
    small = run.small()
    found = small.ask(asked)
    need(not any(found["cached"]) and "saved_bytes" not in found["counts"], f"{found}")
    log = (run.place.folder / "small.log").read_text()
    need("no cache until" in log and run.address in log, "no warning with the address")
    run.begin()
    begun = time.monotonic()
    small.attached().ask_until_stored(asked)
    return f"prefixes are found {time.monotonic() - begun:.1f} s after a master started"


def pool_full(run):
    run.begin("8MiB")
    small, asked = run.small().attached(), prompts("full", [1200] * 30)
    small.ask(asked)
    found = small.ask([asked[0], asked[-1]])
    with run.pool() as pool:
        evictions = pool.stat()["pool"]["counters"]["evictions"]
    return f"{evictions} evictions; the first and the last prompt: {counted(found, 'lookups_')}, {found['cached']} tokens"


def preemption(run):
    small, asked = run.small().attached(), prompts("preempted", [700] * 4)
    found = small.ask(asked, tokens=200, together=True)
    longer = [p + t + [7] * 40 for p, t in zip(asked, found["tokens"])]
    read = small.ask(longer)
    need(all(c >= whole(700 + 199) for c in read["cached"]), f"{read['cached']} tokens of 700 + 200 are found")  # the last is not computed
    return f"{counted(found, 'preemptions')}; longer prompts find {read['cached']} tokens"


def pd(run):
    prefill, decode, texts = run.small().attached(), run.reader(), []
    decode.ask_until_stored(prompts("reached", (150,)))  # the first look-up after a master was killed may fail
    run.faults(delay_s=0.3)
    for asked in prompts("pd", (810, 1500, 1024)):
        first = prefill.do("ask", prompts=[asked], tokens=1, params={"do_remote_decode": True}, settle=False)
        found = decode.ask([asked], params=first["params"])
        texts.append(f"{len(asked) - found['cached'][0]} of {len(asked)} in {found['seconds']:.2f} s")
        need(len(asked) - found["cached"][0] <= BLOCK_TOKENS, f"decode computes {texts[-1]}: {first}, {found['counts']}")
    return f"decode computes {'; '.join(texts)}"


def reset(run):
    one, two, without, asked = run.reader(), run.small().attached(), run.engine("without"), prompts("reset")
    old, other = one.ask(asked)["tokens"], str(run.model("other"))
    two.ask_stored(asked)
    try:
        without.do("weights", folder=other)
        new = without.do("ask", prompts=asked)["tokens"]
        need(not any(a == b for a, b in zip(old, new)), "the other weights generate the same tokens")
        two.do("weights", folder=other)
        found = two.ask(asked, wanted=new)
        behind = one.ask(asked, wanted=old)
        need(not any(found["cached"] + behind["cached"]), f"blocks of other weights were found: {found['cached']}, {behind['cached']}")
        two.ask_stored(asked, wanted=new)
        one.do("weights", folder=other)
        one.attached().ask_stored(asked, wanted=new)
    finally:
        run.end("reader", "small", "without")
    refused(run, "weights_id: here 'other', in the pool ''", weights_id="other")
    return f"no token of other weights; not yet reset: {counted(behind, 'lookups_')}; another weights_id is refused with both values"


def refused(run, text, **extra):
    """An engine that does not start, and says why."""
    try:
        run.engine("refused", extra)
    except Wrong:
        need(text in (log := (run.place.folder / "refused.log").read_text()), f"the log has no {text!r}: {log[-2000:]}")
        return
    raise Wrong(f"an engine with {extra} is not refused")


def policy_fail(run):
    """vLLM's default policy: a request whose load fails ends with an error, which a user has to want."""
    refused(run, 'add "kv_load_failure_policy": "recompute"', policy="fail")
    strict, asked = run.engine("strict", {"policy": "fail", "accept_failed_requests": True}).attached(), prompts("policy", (420, 810))
    strict.ask_until_stored(asked)
    run.faults(lost=2)
    found = strict.do("ask", prompts=asked)
    need(found["reasons"] == ["error"] * 2 and found["seconds"] < FOUND_S, f"the requests end otherwise: {found}")
    run.faults()
    strict.ask_until_stored(asked)
    run.end("strict")
    return f"refused by default; when accepted, {counted(found, 'loads_failed')} are requests that end with an error, and the engine goes on"


def own_process(run):
    """The scheduler in a process of its own, as servers have it; figures come by vLLM's metrics."""
    with run.environment(VLLM_ENABLE_V1_MULTIPROCESSING="1"):
        made = run.engine("own", {"transports": "tcp"})
    asked = prompts("own")
    made.ask(asked)
    made.ask_until_stored(asked)
    run.faults(lost=2)
    before = made.do("counts")
    made.ask(asked)
    run.faults()
    failed = until(lambda: (n := made.do("counts").get("loads_failed", 0) - before.get("loads_failed", 0)) >= len(asked) and n,
                   "each request counts a failed load")
    made.ask_until_stored(asked)
    figures = made.do("counts")
    run.end("own")
    return f"tokens_loaded {figures['tokens_loaded']:.0f}; loads_failed {failed:.0f}, computed"


def hybrid(run, kind, extra, **engine):
    """Stored, read, and loads of which one block is missing."""
    made, asked = run.engine(kind, {"namespace": kind, **extra}, kind, **engine).attached(), prompts(kind)
    wanted = made.alone(asked)
    made.ask(asked, wanted=wanted)
    read = made.ask_stored(asked, wanted=wanted)
    run.faults(lost=2)
    failed = made.ask(asked, wanted=wanted)
    run.faults()
    need(failed["counts"].get("loads_failed") == len(asked), f"not one failed load a request: {failed['counts']}")
    made.ask_stored(asked, wanted=wanted)
    return made, f"{counted(read, 'tokens_loaded')}; {counted(failed, 'loads_failed', 'failed_')}"


def window(run):
    made, text = hybrid(run, "window", {"windows": "all"})
    leaves = [p[:len(p) // 2] + prompt("elsewhere", 100) for p in prompts("window")]
    found = made.ask(leaves, wanted=made.alone(leaves))
    need(found["cached"] == [whole(n // 2) for n in LENGTHS], f"prompts that leave stored ones find {found['cached']} tokens: {found['counts']}")
    run.end("window")
    made = run.engine("window-small", {"namespace": "window", "windows": "all", "save": "all"}, "window", num_gpu_blocks_override=132).attached()
    asked = prompts("window preempted", [700] * 4)
    busy = made.ask(asked, tokens=200, together=True, wanted=made.alone(asked, "all", tokens=200))
    need(busy["counts"].get("preemptions"), f"no request was preempted: {busy['counts']}")
    read = made.ask(asked, tokens=200, wanted=busy["tokens"])
    need(any(read["cached"]), f"nothing is found: {read['counts']}")
    run.end("window-small")
    return (f"{text}; prompts that leave stored ones in the middle find {found['cached']} tokens; {counted(busy, 'preemptions')}, then "
            f"{read['cached']} of 700 tokens are found")


def conv(run):
    _, text = hybrid(run, "conv", {}, mamba_cache_mode="align", enable_prefix_caching=True)
    run.end("conv")
    return text


def tp2(run):
    if len(processors := sorted(os.sched_getaffinity(0))) < 2:
        raise Skipped("there is one processor")
    asked, extra = prompts("tp2"), {"store_tp": 2, "namespace": "tp"}
    run.engine("tp1", extra).ask(asked)
    run.end("tp1")
    with run.environment(VLLM_CPU_OMP_THREADS_BIND=f"{processors[0]}|{processors[1]}"):
        two = run.engine("tp2", extra, tensor_parallel_size=2, distributed_executor_backend="mp").attached()
    wanted, new, bad = two.alone(asked), prompts("tp2 apart", (420, 810)), prompts("tp2 refused", (420,))
    two.ask_stored(asked, wanted=wanted)
    with run.pool("tp") as pool:
        last = [(pool.lineage(key) or (0, 0, 0), key) for key, _ in pool.list() if b"tp_rank:1" in key]
        pool.remove_many([key for lineage, key in last if lineage[2] == 3], force=True)
        found = two.ask(asked, wanted=wanted)
        need(found["cached"] == [3 * BLOCK_TOKENS] * len(asked), f"without a member before the look-up {found['cached']} tokens are found")
        two.ask_until_stored(asked, wanted=wanted)
        run.faults(lost=2)
        found = two.ask(asked, wanted=wanted)
        need(found["counts"].get("tokens_loaded") == 2 * BLOCK_TOKENS * len(asked), f"without a member before the load: {found['counts']}")
        run.faults(rank_s=1)
        wanted = two.alone(new)
        two.ask(new, wanted=wanted)
        two.ask_stored(new, wanted=wanted)
        wanted, objects = two.alone(bad), pool.stat()["pool"]["objects"]
        run.faults(refused=1)
        found = two.ask(bad, wanted=wanted)
        until(lambda: (now := pool.stat()["pool"])["attempts"] == 0 and now["objects"] == objects, "no object of an incomplete block is left")
    need(two.ask(bad, wanted=wanted)["cached"] == [0], "an incomplete block was found")
    run.end("tp2")
    return f"store_tp 2 written by one rank and read by two, also a second apart; {counted(found, 'saves_failed')}, nothing hidden is left"


CASES = {
    "plain": plain, "byte-flipped": byte_flipped, "first-block-fails": first_block_fails, "load-1ms": load_1ms, "abort-loading": abort_loading,
    "node-killed": lambda run: killed(run, "node", "failed_", "lookups_miss"),
    "master-killed": lambda run: killed(run, "master", "lookups_failed", "lookups_late"), "no-node": no_node,
    "master-late": master_late, "pool-full": pool_full,
    "preemption": preemption, "pd": pd, "reset": reset, "window": window, "conv": conv, "tp2": tp2,
    "policy-fail": policy_fail, "own-process": own_process}


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--dir", type=pathlib.Path, required=True, help="where the models and the logs go")
    p.add_argument("--ours", type=pathlib.Path, nargs=2, required=True, metavar=("PACKAGES", "BIN"))
    p.add_argument("cases", nargs="*", metavar="CASE")
    args = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # through the end of `with`: no process is left
    sys.path.insert(0, str(args.ours[0]))

    verdicts = []
    with Place(args.dir / "logs" / "kvpool", args.dir / "model", *args.ours) as place:
        run = Run(place)
        for name in args.cases or CASES:
            begun, verdict = time.monotonic(), "passes"
            try:
                run.begin()
                text = CASES[name](run)
            except Skipped as e:
                verdict, text = "skipped", e
            except (Wrong, OSError, ValueError, KeyError, subprocess.SubprocessError) as e:
                verdict, text = "fails", f"{e or type(e).__name__}; logs in {place.folder}"
            verdicts.append(verdict)
            print(f"{name}: {verdict}, " + ("" if verdict == "skipped" else f"{time.monotonic() - begun:.0f} s; ") + str(text), flush=True)
    print(", ".join(f"{verdicts.count(v)} {v}" for v in ("passes", "fails", "skipped")))
    return 1 if "fails" in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
