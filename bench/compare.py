#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""This tree's Python wheel beside its peers, through the same calls, on one machine in one run: the reference's wheel (between two
processes, and in one, where it copies), Redis and NIXL, and this machine's memcpy and TCP stream. Each figure is the median of
turns interleaved with the peer's (measure.py says how, and which are void). Lines that ask for something print pass or SHORT;
the others tell. What a peer needs and is not here is skipped, with the reason.

  --python      an interpreter with this tree's wheel (default: the one of tests/run, build/venv/bin/python3)
  --peers       an interpreter with the reference's wheel and, for their lines, redis and nixl (default: KVPOOL_REFERENCE_VENV)
Redis also needs redis-server.

Exit code: 0 nothing short, 1 something short or failed, 2 usage.
"""
import argparse
import contextlib
import json
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
import compare_replay  # noqa: E402
import svg  # noqa: E402
from compare_worker import BLOCKS, LAYER_BYTES, LAYERS, SHAPES, WRITES  # noqa: E402
from measure import (ROOT, Daemon, Failed, Limits, Machine, Skip, append_rows, clean_env, counted, measured_on, median_turn, paired, say,  # noqa: E402
                     when, write_readme)

WORKER = pathlib.Path(__file__).with_name("compare_worker.py")
SEGMENT = 512 << 20
ROUND_S = 60  # beyond what a round is told to take
READY_S = 120
FIELDS = ["date", "machine", "line", "kind", "turn", "ours", "peer", "unit", "value", "bound", "better", "asked", "verdict", "note"]
GB = {"get_2m": SHAPES["get_2m"][0] / 1e9, "get_layers": LAYERS * LAYER_BYTES / 1e9,
      **{name: size / 1e9 for name, (size, _) in WRITES.items()}}  # of an object


class Worker:
    """A process of compare_worker.py."""

    def __init__(self, python, kind, told, env, log):
        self.kind, self.log = kind, log
        self.proc = subprocess.Popen([str(python), str(WORKER), kind, json.dumps(told)], stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, stderr=log, text=True, env=env)
        self.lines = queue.Queue()
        threading.Thread(target=self.drain, daemon=True).start()
        try:
            self.first = self.wait_for(("ready", "at "), READY_S)
        except Failed:
            self.close()
            raise

    def drain(self):
        for line in self.proc.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def line(self, seconds):
        with contextlib.suppress(queue.Empty):
            line = self.lines.get(timeout=seconds)
            if line is not None:
                return line
        raise Failed(f"{self.kind} ended, or said nothing for {seconds:g} s: {compare_replay.tail(self.log)[-300:]}")

    def wait_for(self, starts, seconds):
        end = time.monotonic() + seconds
        while True:
            line = self.line(max(end - time.monotonic(), 0))
            if line.startswith(starts):
                return line

    @property
    def at(self):
        return json.loads(self.first.removeprefix("at "))

    def round(self, operation, seconds):
        self.proc.stdin.write(json.dumps([operation, seconds]) + "\n")
        self.proc.stdin.flush()
        end = time.monotonic() + seconds + ROUND_S
        while True:  # the reference writes lines of its own to standard output
            with contextlib.suppress(ValueError):
                return float(self.line(max(end - time.monotonic(), 0)))

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.proc.stdin.close()
        try:
            self.proc.wait(30)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()


class Asleep:
    """Workers that are stopped but for their rounds, the last of which makes these: their threads poll all the time, and would take a
    processor from whom they are compared with."""

    def __init__(self, workers):
        self.workers = workers

    def signal(self, number):
        for worker in self.workers:
            worker.proc.send_signal(number)

    def round(self, operation, seconds):
        self.signal(signal.SIGCONT)
        try:
            return self.workers[-1].round(operation, seconds)
        finally:
            self.signal(signal.SIGSTOP)


class Systems:
    """What is compared, each started when a line first asks for it, and kept: a function (operation) -> figure of one round."""

    def __init__(self, args, build, stack):
        self.args, self.build, self.stack = args, build, stack
        self.log = stack.enter_context(tempfile.TemporaryFile("w+"))
        self.env = clean_env()
        self.started = {}

    def get(self, name):
        if name not in self.started:
            try:
                self.started[name] = getattr(self, name)()
            except (Skip, Failed) as e:
                self.started[name] = e
        if isinstance(self.started[name], Exception):
            raise self.started[name]
        return lambda operation: self.started[name].round(operation, self.args.seconds)

    def worker(self, python, kind, told, env=None):
        worker = Worker(python, kind, told, env or self.env, self.log)
        self.stack.callback(worker.close)
        return worker

    def need(self, python, module):
        if python is None or not os.access(python, os.X_OK):
            raise Skip(f"no interpreter {python}")
        done = subprocess.run([str(python), "-c", f"import {module}"], capture_output=True, text=True, timeout=READY_S, env=self.env)
        if done.returncode != 0:
            raise Skip(f"{python}: {(done.stderr.strip().splitlines() or ['cannot import ' + module])[-1]}")

    # -- ours

    def store(self, transports=None, one=False):
        self.need(self.args.python, "kvpool, mooncake.store")
        env = dict(self.env, KVPOOL_TRANSPORTS=transports) if transports else self.env
        master = Daemon(self.build / "bin" / "kvpool-master",
                        ["--listen", "127.0.0.1:0", "--http", "none", "--data-dir", "none", "--log-level", "warn"], self.env)
        self.stack.callback(master.stop)
        return self.stores(self.args.python, master.at["listen"], env, one)

    def stores(self, python, master, env, one):
        """A worker whose memory is in another process, or, with one, its own."""
        if not one:
            self.worker(python, "holder", {"master": master, "segment": SEGMENT}, env)
        return self.worker(python, "store", {"master": master, "segment": SEGMENT if one else 0}, env)

    def ours(self):
        return self.store()

    def ours_tcp(self):
        return self.store("tcp")

    def engines(self, python, target, kind, env=None):
        return self.worker(python, kind, {"target": self.worker(python, target, {}, env).at}, env)

    def ours_engine(self):
        self.need(self.args.python, "kvpool, mooncake.engine")
        return self.engines(self.args.python, "target", "engine")

    # -- peers

    def reference_store(self, one):
        self.need(self.args.peers, "mooncake.store")
        rpc, metrics = compare_replay.free_ports(2)
        master = self.stack.enter_context(compare_replay.child(
            [str(self.args.peers.with_name("mooncake_master")), "--rpc_address=127.0.0.1", f"--rpc_port={rpc}",
             "--metrics_host=127.0.0.1", f"--metrics_port={metrics}"], self.log, stdout=self.log))
        compare_replay.await_port(rpc, master)
        return self.stores(self.args.peers, f"127.0.0.1:{rpc}", self.env, one)

    def reference(self):
        return self.reference_store(False)

    def reference_one(self):
        return self.reference_store(True)

    def reference_engine(self):
        self.need(self.args.peers, "mooncake.engine")
        return self.engines(self.args.peers, "target", "engine")

    def redis(self):
        self.need(self.args.peers, "redis")
        server = shutil.which("redis-server")
        if server is None:
            raise Skip("no redis-server")
        port = compare_replay.free_ports(1)[0]
        process = self.stack.enter_context(compare_replay.child(
            [server, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"], self.log, stdout=self.log))
        compare_replay.await_port(port, process)
        return self.worker(self.args.peers, "redis", {"port": port})

    def nixl(self):
        self.need(self.args.peers, "nixl._api")
        target = self.worker(self.args.peers, "nixl_target", {})
        system = Asleep([target, self.worker(self.args.peers, "nixl", {"target": target.at})])
        self.stack.callback(system.signal, signal.SIGCONT)
        system.signal(signal.SIGSTOP)
        return system


class Line:
    """One line: an operation of one of ours against a peer (a system, or a limit of the machine), and what is asked of the ratio."""

    def __init__(self, name, text, operation, ours, peer, bound=None, unit=None):
        self.name, self.text, self.operation, self.ours, self.peer, self.bound = name, text, operation, ours, peer, bound
        self.is_latency = unit == "us"
        self.unit = unit or ("GB/s" if operation in GB else "keys/s" if "exist" in operation else "objects/s")

    @property
    def asked(self):
        of = self.peer.replace("_", " ")
        return f"{self.text}, of {of}" + (f", {'<=' if self.is_latency else '>='} {self.bound:g}" if self.bound else "")

    @property
    def better(self):
        return "less" if self.is_latency else "more"

    def figure(self, rate):
        return 1e6 / rate if self.is_latency else rate * GB.get(self.operation, 1)

    def holds(self, ratio):
        return ratio <= self.bound if self.is_latency else ratio >= self.bound


def lines():
    two = "batch_get_into 2 MiB x 32"
    small = "batch_get_into 4 KiB x 64"
    table = [
        Line("get-2m", two, "get_2m", "ours", "memcpy", 0.85),
        Line("get-2m-reference", two, "get_2m", "ours", "reference"),
        Line("get-2m-one", two, "get_2m", "ours", "reference_one"),
        Line("get-2m-redis", f"{two} (mget)", "get_2m", "ours", "redis"),
        Line("get-4k", small, "get_4k", "ours", "reference", 8),
        Line("get-4k-one", small, "get_4k", "ours", "reference_one"),
        Line("get-4k-redis", f"{small} (mget)", "get_4k", "ours", "redis"),
        Line("get-layers", f"batch_get_into_multi_buffers {LAYERS} x 16 KiB x {BLOCKS}", "get_layers", "ours", "reference", 5),
        Line("batch-exist", "batch_is_exist of 1,000 keys", "batch_is_exist", "ours", "reference", 3),
        Line("batch-exist-redis", "batch_is_exist of 1,000 keys (exists)", "batch_is_exist", "ours", "redis"),
        Line("exist", "is_exist, latency", "is_exist", "ours", "reference", 0.5, "us"),
        Line("get-one", "get_into of one 4 KiB object again and again, latency", "get_one", "ours", "reference", 0.1, "us"),
        Line("tcp-get-2m", f"{two} by TCP", "get_2m", "ours_tcp", "reference", 1.3),
        Line("tcp-get-2m-raw", f"{two} by TCP", "get_2m", "ours_tcp", "stream", 0.7),
    ]
    for operation, (size, n) in WRITES.items():
        length = f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
        text = f"batch_transfer_sync_write {length} x {n}"
        name = operation.replace("_", "-")
        table += [Line(name, text, operation, "ours_engine", "reference_engine", 1.5),
                  Line(f"{name}-nixl", text, operation, "ours_engine", "nixl", 1.1)]
    return table


class Comparison:
    def __init__(self, args, systems, limits):
        self.args, self.systems = args, systems
        self.limits = {"memcpy": lambda: limits.take(["memcpy", "nt"], r"2MiB \D+([\d.]+) GB/s"),
                       "stream": lambda: limits.take(["tcp"], r"1 stream ([\d.]+) GB/s")}
        self.rows = []
        self.short = 0

    def measure(self, line):
        ours = self.systems.get(line.ours)
        if line.peer in self.limits:
            peer = self.limits[line.peer]
        else:
            run = self.systems.get(line.peer)
            peer = lambda: line.figure(run(line.operation))  # noqa: E731
        ours(line.operation)
        turns, voided = paired(lambda: line.figure(ours(line.operation)), peer, self.args.turns)
        for number, (value, against) in enumerate(turns, 1):
            self.rows.append(dict(line=line.name, kind="turn", turn=number, ours=round(value, 4), peer=round(against, 4),
                                  unit=line.unit, value=round(value / against, 4)))
        count = counted(turns, voided, self.args.turns)
        ratio, value, against = median_turn(turns)
        verdict = "" if line.bound is None else "pass" if line.holds(ratio) else "SHORT"
        self.result(line, verdict, ratio, f"{value:,.4g} to {against:,.4g} {line.unit} in the median turn; {count}")

    def result(self, line, verdict, ratio, note):
        self.short += verdict in ("SHORT", "FAIL")
        text = "-" if ratio is None else f"{ratio:.3g}"
        say(f"{line.name:<18} {line.asked:<78} {text:>7}  {verdict:<5}  {note}")
        self.rows.append(dict(line=line.name, kind="result", value=None if ratio is None else round(ratio, 4), bound=line.bound,
                              better=line.better, asked=line.asked, verdict=verdict, note=note))

    def run(self, wanted):
        for line in lines():
            if wanted and line.name not in wanted:
                continue
            try:
                self.measure(line)
            except Skip as e:
                self.result(line, "skip", None, str(e))
            except (Failed, RuntimeError, OSError, subprocess.SubprocessError) as e:
                self.result(line, "FAIL", None, str(e))

    def save(self, machine):
        path = machine.path("-compare")
        rows = append_rows(path, FIELDS, machine.sign(self.rows))
        results = [row for row in self.rows if row["kind"] == "result" and row["value"]]
        path.with_suffix(".svg").write_text(svg.bars("The Python wheel against its peers, of what is asked (longer is better)", [
            (row["line"], goodness(row), f"{row['value']:.3g}, asked {row['bound']:g}") for row in results if row["bound"]]))
        write_readme("bench/compare.py", self.text(path, rows))

    @staticmethod
    def text(path, rows):
        results = [row for row in rows if row["kind"] == "result"]
        out = [f"`bench/compare.py` runs the wheel and its peers through the same Python calls, in turns. {measured_on(rows)};",
               f"every turn is in [its CSV](results/{path.name}).", "",
               f"![the wheel against its peers](results/{path.stem}.svg)", "",
               "| line, and what is asked | ratio | | ours, peer |", "|---|---|---|---|"]
        out += [f"| {row['asked']} | {float(row['value']):.3g} | {row['verdict']} | {row['note']}{when(row, rows)} |"
                for row in results if row["value"]]
        absent = [row["line"] for row in results if not row["value"]]
        return out + (["", f"Not measured in that run: {', '.join(absent)}."] if absent else [])


def goodness(row):
    """How many times as good as asked."""
    return row["value"] / row["bound"] if row["better"] == "more" else row["bound"] / max(row["value"], 1e-9)


def main():
    venv = os.environ.get("KVPOOL_REFERENCE_VENV")
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    p.add_argument("--python", type=pathlib.Path)
    p.add_argument("--peers", type=pathlib.Path, default=pathlib.Path(venv) / "bin" / "python3" if venv else None)
    p.add_argument("--turns", type=int, default=9, help="valid turns a line (default 9)")
    p.add_argument("--seconds", type=float, default=1.0, help="of a round (default 1)")
    p.add_argument("--lines", help="only these, with commas between")
    p.add_argument("--limits", type=pathlib.Path,
                   default=os.environ.get("KVPOOL_LIMITS_C", ROOT.parent / "shared" / "peers" / "limits.c"))
    p.add_argument("--save", action="store_true", help="add to bench/results/DATE-HOST-compare.csv, and write its chart and bench/README.md")
    args = p.parse_args()
    build = args.build.resolve()
    args.python = args.python or build / "venv" / "bin" / "python3"
    wanted = set(args.lines.split(",")) if args.lines else set()
    unknown = wanted - {line.name for line in lines()}
    if unknown:
        p.error(f"no line {', '.join(sorted(unknown))}")
    if args.save and wanted:
        p.error("--save takes all lines")
    machine = Machine()
    say(f"{machine.text}; {machine.now:%Y-%m-%d %H:%M} UTC")
    with tempfile.TemporaryDirectory(prefix="kvpool-bench-") as folder, contextlib.ExitStack() as stack:
        comparison = Comparison(args, Systems(args, build, stack), Limits(pathlib.Path(args.limits), pathlib.Path(folder)))
        comparison.run(wanted)
    if args.save:
        comparison.save(machine)
    return 1 if comparison.short else 0


if __name__ == "__main__":
    sys.exit(main())
