# SPDX-License-Identifier: Apache-2.0
"""How figures are taken: limits of the machine, a bench that makes a round when asked, paired turns, daemons whose process
ids are known, and what the master says of itself."""
import contextlib
import csv
import datetime
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import tempfile
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
VOID_ABOVE = 0.25
TRIES = 4  # turns that may be made for each that is wanted
PROGRAMS = ("bin/kvpool-master", "bin/kvpool-node", "bin/kvpool", "bin/kvpool-conductor", "bench/kvpool-copy-cost", "bench/alloc_bench", "bench/http_load")


class Skip(Exception):
    """Why a line cannot be measured here."""


class Failed(Exception):
    """A line that should have given a figure and did not."""


def say(text=""):
    print(text, flush=True)


def clean_env():
    """No option of kvpool comes from the caller's environment, but for how reads are verified. Nodes have no keepers: what they had is gone with them."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("KVPOOL_") or k == "KVPOOL_VERIFY"}
    return {**kept, "KVPOOL_KEEPER": "none"}


def program(build, name):
    """The path of a program in a build folder. Builds of older trees have a folder for each component instead of bin/."""
    folders = ("bin", "client", "master", "conductor")
    return next((build / folder / name for folder in folders if (build / folder / name).is_file()), build / "bin" / name)


def build_tools(build):
    """Builds what is measured; ninja does nothing where all is built."""
    quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    steps = [] if (build / "build.ninja").is_file() else [["meson", "setup", str(build), str(ROOT), "--buildtype=release"]]
    steps.append(["ninja", "-C", str(build), *PROGRAMS])
    for step in steps:
        done = subprocess.run(step, **quiet)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(step)} failed:\n" + "\n".join(done.stdout.splitlines()[-30:]))


def replace_block(text, writer, lines):
    """The text with what stands between the marks of that writer replaced by lines."""
    begin, end = f"<!-- {writer} writes from here -->", "<!-- to here -->"
    start = text.index(begin) + len(begin)
    return text[:start] + "\n" + "\n".join(lines) + "\n" + text[text.index(end, start):]


def write_readme(writer, lines):
    path = ROOT / "bench" / "README.md"
    path.write_text(replace_block(path.read_text(), writer, lines))


def append_rows(path, fields, rows):
    """Writes them behind those of earlier runs of that day, each of which stays with its time and load. All rows, as text."""
    path.parent.mkdir(exist_ok=True)
    is_new = not path.exists()
    with path.open("a", newline="") as f:
        writer = csv.DictWriter(f, fields)
        if is_new:
            writer.writeheader()
        writer.writerows(rows)
    say(f"saved {path}")
    with path.open(newline="") as f:
        return list(csv.DictReader(f))


def measured_on(rows):
    """The machine and the day of rows, with the worst load of them all."""
    loads = [float(re.search(r"load ([\d.]+)", row["machine"]).group(1)) for row in rows]
    return f"{rows[0]['machine'].rpartition(', load')[0]}, load at most {max(loads):.1f} at a start; {rows[0]['date'].split()[0]}"


def when(row, rows):
    """For a result that is not the only one of its line: when it was, under which load."""
    several = sum(r["line"] == row["line"] and r["kind"] == "result" for r in rows) > 1
    return f"; {row['date'].split()[1]}, load {row['machine'].rpartition('load ')[2].split()[0]}" if several else ""


class Machine:
    def __init__(self):
        cpu = "unknown CPU"
        with contextlib.suppress(OSError, AttributeError):
            cpu = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M).group(1)
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
        self.text = f"{cpu}, {os.cpu_count()} CPUs, {memory} GiB, {platform.system()} {platform.release()}, " \
                    f"load {os.getloadavg()[0]:.1f} at the start"
        self.host = platform.node() or "host"
        self.now = datetime.datetime.now(datetime.timezone.utc)

    def sign(self, rows):
        """The rows of a CSV, each with when and where it was measured."""
        return [dict(row, date=f"{self.now:%Y-%m-%d %H:%M} UTC", machine=self.text) for row in rows]

    def path(self, suffix=""):
        return ROOT / "bench" / "results" / f"{self.now:%Y-%m-%d}-{self.host}{suffix}.csv"


# ---- limits and turns


class Limits:
    """The limits program: one name a call, the figure back."""

    def __init__(self, source, folder):
        self.why = None
        self.program = folder / "limits"
        if not source.is_file():
            self.why = f"no {source} (KVPOOL_LIMITS_C names another)"
            return
        done = subprocess.run(["cc", "-O2", "-w", "-o", str(self.program), str(source), "-lpthread"], capture_output=True,
                              text=True)
        if done.returncode != 0:
            self.why = f"{source} does not compile: {done.stderr.strip()[:200]}"

    def take(self, names, pattern):
        """The greatest figure that the pattern's group matches in the output."""
        if self.why:
            raise Skip(self.why)
        done = subprocess.run([str(self.program), *names], capture_output=True, text=True, timeout=120)
        found = [float(x) for x in re.findall(pattern, done.stdout)]
        if not found:
            raise Failed(f"the limits program printed no {pattern!r}: {done.stdout.strip()[:200]}")
        return max(found)


class Stepped:
    """A `kvpool bench` that makes one round whenever it is asked. Without a master it has a pool of its own."""

    def __init__(self, tool, args, env, master=None):
        self.log = tempfile.TemporaryFile("w+")
        named = ["--master", master] if master else []
        self.proc = subprocess.Popen([str(tool), "bench", *named, "--json", "--step", "--rounds", "100000", *args],
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=env)

    def round(self):
        with contextlib.suppress(BrokenPipeError):
            self.proc.stdin.write("\n")
            self.proc.stdin.flush()
        line = self.proc.stdout.readline()
        if not line:
            self.log.seek(0)
            raise Failed(f"kvpool bench ended: {self.log.read().strip()[-300:]}")
        figures = json.loads(line)
        if figures["errors"] or figures["wrong_bytes"]:
            raise Failed(f"kvpool bench: {figures['errors']} errors ({figures.get('first_error')}), "
                         f"{figures['wrong_bytes']} wrong bytes")
        return figures

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.proc.stdin.close()
        try:
            self.proc.wait(120)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()
        self.log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def paired(ours, limit, wanted):
    """(turns, voided): turns of (ours, limit), interleaved. The limit of a turn is the mean of the one before and the one
    after it; a turn between two that differ by more than VOID_ABOVE is void and made again."""
    turns, voided = [], 0
    before = limit()
    while len(turns) < wanted and len(turns) + voided < TRIES * wanted:
        value = ours()
        after = limit()
        if abs(after - before) > VOID_ABOVE * min(after, before):
            voided += 1
        else:
            turns.append((value, (before + after) / 2))
        before = after
    return turns, voided


def median_turn(turns):
    """(ratio, ours, limit) of the turn whose ratio is the median; of an even number, of the lower of the two."""
    return statistics.median_low((ours / limit, ours, limit) for ours, limit in turns)


def counted(turns, voided, wanted):
    """How many turns were valid, in words. Skips the line where it is fewer than 7 of 9 that were wanted."""
    if 9 * len(turns) < 7 * wanted:
        raise Skip(f"the limit moved too much: {voided} of {voided + len(turns)} turns void")
    return f"{len(turns)} valid turns of {wanted}, {voided} void"


# ---- daemons


class Daemon:
    """A daemon, with its process id and what its ready line says."""

    def __init__(self, program, args, env):
        self.proc = subprocess.Popen([str(program), *args], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                     env=env)
        words = self.proc.stdout.readline().split()
        if words[:1] != ["ready"]:
            self.proc.kill()
            self.proc.wait()
            raise Failed(f"{program} did not come up")
        self.at = dict(word.split("=", 1) for word in words[1:])

    def memory_bytes(self):
        """Resident memory that is its own."""
        status = pathlib.Path(f"/proc/{self.proc.pid}/status").read_text()
        return int(re.search(r"^RssAnon:\s+(\d+) kB$", status, re.M).group(1)) * 1024

    def kill(self):
        self.proc.kill()
        self.proc.wait()

    def stop(self):
        self.proc.terminate()
        try:
            self.proc.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()


class Pool:
    """A master and a node as processes of their own."""

    def __init__(self, build, memory, data_dir="none", node_args=()):
        self.build, self.env, self.node_args = build, clean_env(), node_args
        self.tool = program(build, "kvpool")
        self.master = Daemon(program(build, "kvpool-master"),
                             ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data-dir", str(data_dir), "--log-level", "warn"],
                             self.env)
        self.node = None
        self.start_node(memory)

    @property
    def address(self):
        return self.master.at["listen"]

    def start_node(self, memory):
        self.node = Daemon(program(self.build, "kvpool-node"),
                           ["--master", self.address, "--name", "bench", "--memory", memory, "--listen", "127.0.0.1:0",
                            "--http", "127.0.0.1:0", "--keeper", "none", "--log-level", "warn", *self.node_args], self.env)

    def bench(self, *args):
        return Stepped(self.tool, args, self.env, self.address)

    def run(self, *args):
        done = subprocess.run([str(self.tool), args[0], "--master", self.address, "--deadline", "600s", *args[1:]],
                              capture_output=True, text=True, env=self.env)
        if done.returncode not in (0, 1):
            raise Failed(f"kvpool {' '.join(args)}: {done.stderr.strip()[-300:]}")
        return done.stdout

    def stat(self):
        return json.loads(self.run("stat", "--json"))["pool"]

    def metrics(self, of=None):
        """The metrics of the master, or of another daemon: name, with labels, to value."""
        with urllib.request.urlopen(f"http://{(of or self.master).at['http']}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}

    def close(self):
        for daemon in (self.node, self.master):
            if daemon is not None:
                daemon.stop()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
