# SPDX-License-Identifier: Apache-2.0
"""Where the cases of vLLM run their processes, and how they talk to servers."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

from prompts import BLOCK_TOKENS

HERE = pathlib.Path(__file__).resolve().parent
# Limits of a machine with two processors and much else to do: an engine alone takes minutes there to import what it needs. None of
# them is waited for where all goes well.
START_S = 600
CALL_S = 120
STORED_S = 120
STOP_S = 240


class Wrong(Exception):
    """What a case found to be otherwise than it has to be."""


def free_ports(n):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(n)]
        return [s.getsockname()[1] for s in sockets]


class Place:
    """Where a case keeps its processes and logs. All of them have ended when it has. `packages` is a folder with the package
    `mooncake`, `programs` one with what it installs."""

    def __init__(self, folder, model, packages, programs):
        self.folder, self.model, self.programs = folder, model, programs
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.processes = []
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("KVPOOL_", "MOONCAKE_", "VLLM_"))}
        self.env.update(HF_HUB_OFFLINE="1", DO_NOT_TRACK="1", VLLM_NO_USAGE_STATS="1", VLLM_CPU_KVCACHE_SPACE="1",
                        VLLM_HOST_IP="127.0.0.1", MOONCAKE_REQUESTER_LOCAL_HOSTNAME="127.0.0.1", XDG_STATE_HOME=str(folder),
                        VLLM_MOONCAKE_CONNECTOR_TIMEOUT=str(CALL_S), PYTHONPATH=f"{packages}:{HERE}")

    def start(self, name, *argv, **kw):
        # A group of its own: an API server that has to be killed leaves its engines behind.
        log = (self.folder / f"{name}.log").open("a")
        process = subprocess.Popen([str(word) for word in argv], env=self.env, stdin=subprocess.PIPE, stderr=log, text=True,
                                   process_group=0, **{"stdout": log, **kw})
        log.close()
        self.processes.append(process)
        return process

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def await_http(url, *processes):
    """Until it answers, or one of the processes ends."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(url, timeout=5).read().decode()
        if any(process.poll() is not None for process in processes):
            raise Wrong(f"a process ended before {url} answered")
        time.sleep(0.2)
    raise Wrong(f"{url} did not answer in {START_S} s")


def post(port, body):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=CALL_S))


def counters(port, start):
    """name with labels -> value, of metrics that begin so."""
    lines = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=CALL_S).read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line.startswith(start))}


def next_result(process, limit_s):
    """The next result that an engine prints."""
    watchdog = threading.Timer(limit_s, process.kill)
    watchdog.start()
    try:
        for line in process.stdout:
            if line.startswith("result "):
                return json.loads(line.removeprefix("result "))
    finally:
        watchdog.cancel()
    raise Wrong(f"an engine ended with {process.wait()}")


def end_engine(process):
    """An engine that ends is to do so by itself."""
    process.stdin.close()
    if process.wait(STOP_S) != 0:
        raise Wrong(f"an engine ended with {process.returncode}")


# ---- a pool, with upstream's MooncakeStoreConnector


class Master:
    """One, under the reference's flags."""

    def __init__(self, place, name, *flags):
        self.port, self.http = free_ports(2)
        self.address = f"127.0.0.1:{self.port}"
        self.start = lambda: place.start(
            name, place.programs / "mooncake_master", "--rpc_address=127.0.0.1", f"--rpc_port={self.port}", "--metrics_host=127.0.0.1",
            f"--metrics_port={self.http}", *flags)
        self.begin()

    def begin(self):
        self.process = self.start()
        await_http(f"http://127.0.0.1:{self.http}/health", self.process)

    def kill(self):
        """The daemon first: mooncake_master is a parent of it, and would end it gently."""
        pid = self.process.pid
        for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
        self.process.kill()

    def role(self):
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"http://127.0.0.1:{self.http}/role", timeout=1).read().decode()
        return ""


class Store:
    """A pool, and engines that use it."""

    def __init__(self, place, mode, segment, *flags):
        self.place, self.flags = place, flags
        self.begin()
        conf = place.folder / f"{mode}.json"
        conf.write_text(json.dumps({
            "metadata_server": "P2PHANDSHAKE", "master_server_address": self.address, "protocol": "tcp",
            "device_name": "", "mode": mode, "global_segment_size": segment, "local_buffer_size": "64MB"}))
        place.env["MOONCAKE_CONFIG_PATH"] = str(conf)

    def begin(self):
        master = Master(self.place, "master", *self.flags)
        self.address, self.http = master.address, master.http

    def owner(self, segment="512MB", *flags):
        """A process that holds the memory, for engines that hold none."""
        port, http = free_ports(2)
        owner = self.place.start(
            "owner", self.place.programs / "mooncake_client", f"--master_server_address={self.address}", "--host=127.0.0.1",
            f"--port={port}", f"--http_port={http}", "--enable_http_server", "--protocol=tcp", "--metadata_server=P2PHANDSHAKE",
            f"--global_segment_size={segment}", "--local_buffer_size=64MB", *flags)
        await_http(f"http://127.0.0.1:{http}/health", owner)

    def keys(self):
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.http}/get_all_keys", timeout=CALL_S).read().decode()
        return text.split()

    def stored(self, found):
        """The keys, when there is one for each full block of what a writer was asked, or what there is after a while."""
        wanted = sum(r["prompt"] // BLOCK_TOKENS for r in found["results"])
        end = time.monotonic() + STORED_S
        while len(keys := self.keys()) < wanted and time.monotonic() < end:
            time.sleep(0.2)
        if len(keys) != wanted or any(r["cached"] for r in found["results"]):
            raise Wrong(f"{len(keys)} keys, not {wanted}; the first engine had {found}")
        return keys

    def engine(self, name):
        """What it generated, and the process, which waits."""
        process = self.place.start(name, sys.executable, HERE / "vllm_once.py", self.place.model, stdout=subprocess.PIPE)
        return next_result(process, START_S), process

    def writer(self):
        """What the first engine generated, and the keys that it stored; it is gone."""
        found, process = self.engine("writer")
        keys = self.stored(found)
        end_engine(process)
        return found, keys

    def reader(self):
        found, process = self.engine("reader")
        end_engine(process)
        return found
