# SPDX-License-Identifier: Apache-2.0
"""Fixtures for the end-to-end tests: real daemons on loopback ports that the kernel chooses, the command line, and the
ways to hurt a process. Everything is awaited on a condition with a bound, and every daemon must stop cleanly at the end
of its test unless the test killed it.

Environment: KVPOOL_BUILD (build directory, default build/), KVPOOL_TEST_TIER (quick, normal, long), KVPOOL_TEST_SAN
(address, thread: bounds are stretched) and KVPOOL_TEST_RDMA (addresses of RDMA devices, separated by commas: nodes listen
there, one after the other, and bytes move by rdma alone; set in the guest of tests/rdma_vm, whose processors are emulated),
KVPOOL_TEST_TLS (1: masters and nodes have TLS, and clients the certificate of an admin).
"""
import contextlib
import ctypes
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("KVPOOL_BUILD", ROOT / "build")).resolve()
TIER = os.environ.get("KVPOOL_TEST_TIER", "normal")
SAN = os.environ.get("KVPOOL_TEST_SAN", "")
RDMA = [at for at in os.environ.get("KVPOOL_TEST_RDMA", "").split(",") if at]
TLS = os.environ.get("KVPOOL_TEST_TLS") == "1"
SLOW = 4 if SAN or RDMA else 1  # how much longer everything may take
MASTER_WAIT = "20s"  # of mooncake.store, which gives up a master that stands still for 1 s otherwise
PAUSES_S = 5  # what wait_until adds: on a busy machine any process may stand still for a second, more than once
MEMORY = "16MiB" if RDMA else "64MiB"  # of a node; to register it is most of what its start takes in the guest

# What needs the devices, and the links under them; and what needs the wheel in this interpreter.
collect_ignore_glob = ([] if RDMA else ["test_rdma_*.py"]) + ([] if importlib.util.find_spec("kvpool") else ["test_python_*.py"])

PROGRAMS = {
    "kvpool-master": BUILD / "bin" / "kvpool-master",
    "kvpool-node": BUILD / "bin" / "kvpool-node",
    "kvpool-keeper": BUILD / "bin" / "kvpool-keeper",
    "kvpool": BUILD / "bin" / "kvpool",
    "kvpool-conductor": BUILD / "bin" / "kvpool-conductor",
    "kvpool-master-next": BUILD / "tests" / "e2e" / "kvpool-master-next",
}

READY_S = 20 * SLOW
STOP_S = 10 * SLOW
CLI_S = 30 * SLOW
TEST_S = 60 * SLOW

READY_RE = re.compile(r"^ready(?: listen=(?P<listen>\S+))?(?: unix=(?P<unix>\S+))?(?: http=(?P<http>\S+))?(?: data=(?P<data>\S+))?$")
SANITIZER_RE = re.compile(
    r"^.*(?:ERROR: (?:Address|Leak)Sanitizer|WARNING: ThreadSanitizer|runtime error: |SUMMARY: \w+Sanitizer).*$", re.M)

LOG_PAIR_RE = re.compile(r'([a-z0-9_]+)=("(?:[^"\\\x00-\x1f\x7f]|\\["\\nt]|\\u[0-9a-f]{4})*"|[^\x00-\x20\x7f"=\\]+)(?: |$)')

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def _die_with_parent():
    """Runs in the child: a test run that is killed leaves no daemon behind."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def read_log_line(line):
    """The pairs of a line of logfmt or JSON in their order; None if the line is neither, lacks what each has, or has a key twice."""
    if line.startswith("{"):
        with contextlib.suppress(ValueError):
            pairs = json.loads(line)
            return pairs if list(pairs)[:4] == ["time", "level", "part", "msg"] else None
        return None
    pairs, at = {}, 0
    while at < len(line):
        m = LOG_PAIR_RE.match(line, at)
        if m is None or m.group(1) in pairs:
            return None
        pairs[m.group(1)] = json.loads(m.group(2)) if m.group(2)[0] == '"' else m.group(2)
        at = m.end()
    return pairs if list(pairs)[:4] == ["time", "level", "part", "msg"] else None


def wait_until(condition, timeout=10.0, what="condition"):
    """Polls condition until it returns something true, which is returned; fails after timeout seconds and PAUSES_S."""
    end = time.monotonic() + timeout * SLOW + PAUSES_S
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            pytest.fail(f"timed out after {timeout * SLOW:g} s: {what}")
        time.sleep(0.02)


def own_s():
    """A clock in seconds for how long calls of this process take: time.monotonic() less the time in which its threads were ready to run
    and others had the processor, so a busy machine does not make a difference longer. It is the plain clock where the kernel does not
    tell. What others than this process wait for is not taken off."""
    waited_ns = 0
    for task in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError, IndexError, ValueError):  # the thread has just ended, or the kernel does not tell
            waited_ns += int((task / "schedstat").read_text().split()[1])
    return time.monotonic() - waited_ns / 1e9


def clean_env(home, **extra):
    """The environment for a program under test: no option of ours comes from the caller's. A keeper would outlive the test that does not
    know of it (test_keeper.py does)."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("KVPOOL_")}
    env.update(HOME=str(home), XDG_STATE_HOME=f"{home}/state", XDG_RUNTIME_DIR=str(home), TMPDIR=str(home), KVPOOL_KEEPER="none",
               KVPOOL_MASTER_WAIT=MASTER_WAIT)
    if RDMA:
        env["KVPOOL_TRANSPORTS"] = "rdma"
    env.update(extra)
    return env


def ask_http(at, path, body=None, method=None, headers=(), timeout=5 * SLOW):
    """(status, body as text) of one request to HOST:PORT, a POST if it has a body and no other method is named."""
    request = urllib.request.Request(f"http://{at}{path}", body.encode() if isinstance(body, str) else body, dict(headers), method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as r:
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


class Daemon:
    """One daemon process. Its output is kept; `listen`, `unix`, `http` and `data` come from its ready line."""

    def __init__(self, name, argv, env, cwd):
        self.name = name
        self.argv = [str(a) for a in argv]
        self.env = env
        self.cwd = cwd
        self.out = []
        self.err = []
        self.ready_line = None
        self.listen = self.unix = self.http = self.data = None
        self.killed = False  # by the test, on purpose
        self._cond = threading.Condition()
        self.proc = subprocess.Popen(
            self.argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True, preexec_fn=_die_with_parent, text=True, errors="replace", bufsize=1)
        self._threads = [
            threading.Thread(target=self._drain, args=(self.proc.stdout, self.out), daemon=True),
            threading.Thread(target=self._drain, args=(self.proc.stderr, self.err), daemon=True),
        ]
        for t in self._threads:
            t.start()

    def _drain(self, pipe, lines):
        with pipe:
            for line in pipe:
                with self._cond:
                    lines.append(line.rstrip("\n"))
                    self._cond.notify_all()
        with self._cond:
            lines.append(None)  # end of file
            self._cond.notify_all()

    @property
    def pid(self):
        return self.proc.pid

    def is_running(self):
        return self.proc.poll() is None

    def log(self):
        with self._cond:
            return "\n".join(line for line in self.err if line is not None)

    def stdout(self):
        with self._cond:
            return "\n".join(line for line in self.out if line is not None)

    def wait_ready(self, timeout=READY_S):
        def first():
            return next((line for line in self.out if line is not None and line.startswith("ready")), None)

        with self._cond:
            self._cond.wait_for(lambda: first() or None in self.out, timeout)
            line = first()
        if line is None:
            state = "is still running" if self.is_running() else f"ended with {self.proc.wait()}"
            pytest.fail(f"{self.name} printed no ready line within {timeout} s ({state}); log:\n{self.log()}")
        m = READY_RE.match(line)
        assert m, f"{self.name}: malformed ready line {line!r}"
        self.ready_line = line
        self.listen, self.unix, self.http, self.data = m.group("listen", "unix", "http", "data")
        return self

    def wait_log(self, pattern, timeout=10.0):
        """Waits for a log line that matches the pattern and returns the match."""
        return wait_until(lambda: re.search(pattern, self.log(), re.M), timeout, f"{self.name} to log {pattern!r}")

    def signal(self, sig):
        os.kill(self.pid, sig)

    def freeze(self):
        """SIGSTOP, and waits until the kernel has stopped it."""
        self.signal(signal.SIGSTOP)
        wait_until(lambda: proc_state(self.pid) == "T", 5, f"{self.name} to stop")

    def thaw(self):
        self.signal(signal.SIGCONT)

    def kill9(self):
        """kill -9; the end of the test does not ask for a clean exit then."""
        self.killed = True
        if self.is_running():
            self.signal(signal.SIGKILL)
        self.proc.wait()
        for t in self._threads:
            t.join(5)

    def terminate(self, timeout=STOP_S):
        """SIGTERM; returns the exit code, or fails (and kills) when it takes longer than timeout."""
        if self.is_running():
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
        try:
            rc = self.proc.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill9()
            pytest.fail(f"{self.name} did not stop within {timeout} s of SIGTERM")
        for t in self._threads:
            t.join(5)
        return rc

    def problems(self):
        """Stops the daemon and returns what was wrong with it, a list of sentences."""
        found = []
        if not self.killed:
            early = not self.is_running()
            try:
                rc = self.terminate()
                if rc != 0:
                    found.append(f"{self.name} {'had ended by itself' if early else 'stopped'} with exit code {rc}")
            except pytest.fail.Exception as e:
                found.append(str(e))
        report = SANITIZER_RE.search(self.log())
        if report:
            found.append(f"{self.name}: {report.group(0).strip()}")
        else:
            found += [f"{self.name} logged a line that is neither logfmt nor JSON: {line!r}" for line in self.log().split("\n") if not self.is_log_line(line)]
        return found

    def is_log_line(self, line):
        """Whether standard error may have the line. Complaints about options (exit code 2) come before the options of the log are known."""
        is_ours = any(str(path) in self.argv for path in PROGRAMS.values())
        return not is_ours or line == "" or self.proc.poll() == 2 or (SAN and line.startswith("==")) or read_log_line(line) is not None

    def http_get(self, path, timeout=5 * SLOW):
        """(status, body as text) of the admin HTTP server."""
        return ask_http(self.http, path, timeout=timeout)


def close_pipes(proc):
    """Closes what a process that is over was spoken to by: a test's processes are remembered to the end of the run."""
    for pipe in (proc.stdin, proc.stdout, proc.stderr):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def proc_state(pid):
    """The state letter of /proc/PID/stat, '' when there is no such process."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


class Result:
    """What a command did: rc, out (bytes), err (text), and json (parsed standard output)."""

    def __init__(self, argv, rc, out, err):
        self.argv, self.rc, self.out, self.err = argv, rc, out, err

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def docs(self):
        """All JSON documents on standard output: one, or one a line."""
        text, at, found = self.out.decode(), 0, []
        while text[at:].strip():
            at += len(text[at:]) - len(text[at:].lstrip())
            doc, at = json.JSONDecoder().raw_decode(text, at)
            found.append(doc)
        return found

    @property
    def text(self):
        return self.out.decode(errors="replace")

    def __repr__(self):
        return f"<{' '.join(self.argv[1:])}: rc {self.rc}, {len(self.out)} bytes out {self.out[:200]!r}, err {self.err[:2000]!r}>"


def run_program(argv, env, stdin=b"", timeout=CLI_S):
    argv = [str(a) for a in argv]
    p = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         preexec_fn=_die_with_parent)
    try:
        out, err = p.communicate(stdin, timeout)
    except subprocess.TimeoutExpired:
        p.kill()
        out, err = p.communicate()
        pytest.fail(f"{' '.join(argv)} took longer than {timeout} s; err:\n{err.decode(errors='replace')}")
    result = Result(argv, p.returncode, out, err.decode(errors="replace"))
    report = SANITIZER_RE.search(result.err)
    if report:
        pytest.fail(f"{' '.join(argv)}: {report.group(0).strip()}\n{result.err}")
    if p.returncode < 0:
        pytest.fail(f"{' '.join(argv)} died of signal {-p.returncode}; err:\n{result.err}")
    return result


def insecure(listen):
    """The flag of a daemon at that address, which a namespace or a cable of the test has."""
    return [] if listen.startswith(("127.", "[::1]")) else ["--insecure"]


class Bench:
    """Where one test keeps its processes: starts daemons, runs commands, cleans up."""

    def __init__(self, home):
        self.home = home
        self.daemons = []
        self.nodes_n = 0
        self.certs = None  # secured.Certs: masters and nodes then have TLS, and commands a certificate
        if TLS:
            from secured import Certs
            self.certs = Certs(self, own=("admin", "default"))

    def env(self, **extra):
        return clean_env(self.home, **{**(self.certs.env() if self.certs else {}), **extra})

    def start(self, name, program, *args, ready=True, env=None, files=None):
        """files: how many descriptors the daemon may have."""
        limit = [] if files is None else ["prlimit", f"--nofile={files}"]
        if self.certs:
            args = (*args, *self.certs.flags(program, args))
        d = Daemon(name, [*limit, PROGRAMS[program], *args], self.env(**(env or {})), self.home)
        self.daemons.append(d)
        if ready:
            d.wait_ready()
        return d

    def master(self, *args, data_dir="none", listen="127.0.0.1:0", name="master", **kw):
        return self.start(name, "kvpool-master", "--listen", listen, "--http", "127.0.0.1:0",
                          "--data-dir", data_dir, *insecure(listen), *args, **kw)

    def node(self, master, name, memory=MEMORY, *args, listen=None, **kw):
        """master is a Daemon, HOST:PORT, or a list of them. Where there are devices, nodes listen at them in turn."""
        if listen is None:
            listen = f"{RDMA[self.nodes_n % len(RDMA)]}:0" if RDMA else "127.0.0.1:0"
        self.nodes_n += 1
        masters = master if isinstance(master, (list, tuple)) else [master]
        at = ",".join(m.listen if isinstance(m, Daemon) else m for m in masters)
        return self.start(name, "kvpool-node", "--master", at, "--name", name, "--memory", memory,
                          "--listen", listen, *insecure(listen), *args, **kw)

    def run(self, program, *args, stdin=b"", timeout=CLI_S, env=None):
        return run_program([PROGRAMS[program], *args], self.env(**(env or {})), stdin, timeout)

    def popen(self, program, *args, env=None, **kw):
        """A command left running (to be killed in the middle, say). The test waits for it; it dies with the test."""
        p = subprocess.Popen([str(PROGRAMS[program]), *map(str, args)], env=self.env(**(env or {})),
                             preexec_fn=_die_with_parent, **kw)
        self.daemons.append(_Loose(p, program))
        return p

    def stop(self):
        """Stops everything, the youngest first, and returns what was wrong."""
        found = []
        for d in reversed(self.daemons):
            found += d.problems()
        return found


class _Loose:
    """A command started with popen: ended without questions."""

    def __init__(self, proc, name):
        self.proc, self.name = proc, name

    def problems(self):
        if self.proc.poll() is None:
            self.proc.kill()
            self.proc.wait()
        close_pipes(self.proc)
        return []

    def log(self):
        return ""

    stdout = log


class Pool:
    """A master and nodes, and the command line that talks to them."""

    def __init__(self, bench, nodes=2, memory=MEMORY, master_args=(), node_args=(), data_dir="none"):
        self.bench = bench
        self.master = bench.master(*master_args, data_dir=data_dir)
        self.nodes = [bench.node(self.master, f"node{i + 1}", memory, *node_args) for i in range(nodes)]

    @property
    def addr(self):
        return self.master.listen

    def kvpool(self, verb, *args, stdin=b"", timeout=CLI_S, env=None):
        """Runs `kvpool VERB --master ADDR ARGS...` and returns a Result."""
        return self.bench.run("kvpool", verb, "--master", self.addr, *args, stdin=stdin, timeout=timeout, env=env)

    def put(self, key, value, *args):
        return self.kvpool("put", *args, key, stdin=value)

    def get(self, key, *args):
        return self.kvpool("get", *args, key)

    def exists(self, key, *args):
        return self.kvpool("exists", *args, key)

    def rm(self, key, *args):
        return self.kvpool("rm", *args, key)

    def add_node(self, name=None, memory=MEMORY, *args):
        node = self.bench.node(self.master, name or f"node{len(self.nodes) + 1}", memory, *args)
        self.nodes.append(node)
        return node


def pytest_collection_modifyitems(items):
    if not TLS:
        return
    from secured import why_left_out
    for item in items:
        why = why_left_out(item.nodeid.rpartition("/")[2])
        if why:
            item.add_marker(pytest.mark.skip(reason=f"not with TLS: {why}"))


def pytest_sessionstart(session):
    if session.config.option.collectonly:
        return
    absent = [str(p) for p in PROGRAMS.values() if not os.access(p, os.X_OK)]
    if absent:
        pytest.exit(f"not built: {', '.join(absent)}", returncode=3)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """Bounds each test, fixtures included: a hang becomes a failure with logs, not a stuck run."""
    marker = item.get_closest_marker("limit")
    seconds = (marker.args[0] * SLOW) if marker else TEST_S

    def on_alarm(signum, frame):
        pytest.fail(f"the test took longer than {seconds} s")

    old = signal.signal(signal.SIGALRM, on_alarm)
    signal.alarm(int(seconds))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    """On a failure, the end of the log of every daemon and client goes into the report. The alarm waits meanwhile: outside of a
    test it would end the whole run."""
    seconds_left = signal.alarm(0)
    report = (yield).get_result()
    signal.alarm(seconds_left)
    if report.failed:
        for bench in getattr(item, "kvp_benches", []):
            for d in bench.daemons:
                text = d.stdout() + "\n" + "\n".join(d.log().splitlines()[-200:])
                if text.strip():
                    report.sections.append((f"{d.name} (pid {d.pid}, {' '.join(d.argv)})", text))


@pytest.fixture
def bench(request, monkeypatch):
    """Processes of one test; stopped and judged at its end. The directory is short: sockets may lie in it, where clients of this
    process look for them, too."""
    home = tempfile.mkdtemp(prefix="kvp-", dir="/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", home)
    monkeypatch.setenv("KVPOOL_MASTER_WAIT", MASTER_WAIT)
    b = Bench(home)
    request.node.kvp_benches = getattr(request.node, "kvp_benches", []) + [b]
    try:
        yield b
    finally:
        found = b.stop()
        shutil.rmtree(home, ignore_errors=True)
        if found:
            pytest.fail("; ".join(found))


@pytest.fixture
def pool(request, bench):
    """A master and two nodes of MEMORY; @pytest.mark.pool(nodes=1, memory="32MiB", ...) for another one."""
    marker = request.node.get_closest_marker("pool")
    return Pool(bench, **(marker.kwargs if marker else {}))


@pytest.fixture
def make_pool(bench):
    """make_pool(nodes=2, memory=MEMORY, master_args=(), node_args=(), data_dir="none") for more than one, or later."""
    return lambda **kw: Pool(bench, **kw)


@pytest.fixture
def store(pool):
    """A mooncake.store of the pool; for test_python_*.py."""
    from stores import make  # in an interpreter that has the wheel
    handle = make(pool.addr)
    yield handle
    assert handle.close() == 0


@pytest.fixture
def scaled():
    """scaled(n) is the tier's share of the full count n: all of it in the long tier, a tenth, or a hundredth."""
    share = {"quick": 100, "normal": 10, "long": 1}[TIER] * (2 if SAN else 1)
    return lambda n: max(1, n // share)


def chat_trace(bench, requests):
    """The path of a generated trace."""
    path = os.path.join(bench.home, "chat.jsonl")
    with open(path, "wb") as to:
        subprocess.run([ROOT / "deploy" / "chat_trace", "1", str(requests)], check=True, stdout=to)
    return path


@pytest.fixture
def trace_file():
    """The published conversation trace, where it is; it is not part of the repository."""
    path = pathlib.Path(os.environ.get("KVP_TRACE", ROOT.parent / "shared" / "traces" / "conversation_trace.jsonl"))
    if not path.is_file():
        pytest.skip("conversation_trace.jsonl is not here (set KVP_TRACE)")
    return path
