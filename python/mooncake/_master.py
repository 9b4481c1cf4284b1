# SPDX-License-Identifier: Apache-2.0
"""mooncake_master: a pool's master under the reference's flags, and its admin paths over HTTP.

Starts kvpool-master and ends with it, whichever ends first. The paths are answered here, by a client of the pool like others, so
that a list of all keys costs the master no long step.
"""
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

from kvpool._programs import FOLDER

from ._admin import Admin
from ._flags import Flags, number

_PROGRAM = "mooncake_master"
_DURATION = re.compile(r"(\d+)(ms|s|m|h)?")
_PR_SET_PDEATHSIG = 1
_FLAGS = Flags(_PROGRAM, {
    "port": "50051", "rpc_port": "0", "rpc_address": "0.0.0.0", "enable_metric_reporting": True, "metrics_port": "9003",
    "metrics_host": "0.0.0.0", "default_kv_lease_ttl": "10000",
}, without_use=(
    "rpc_thread_num", "max_threads", "rpc_conn_timeout_seconds", "rpc_enable_tcp_no_delay", "default_kv_soft_pin_ttl",
    "max_kv_soft_pin_ttl", "allow_evict_soft_pinned_objects", "eviction_ratio", "eviction_high_watermark_ratio",
    "put_start_discard_timeout_sec", "put_start_release_timeout_sec", "client_ttl", "memory_allocator", "allocation_strategy",
    "enable_http_metadata_server", "http_metadata_server_port", "http_metadata_server_host", "logtostderr", "v", "minloglevel",
    "cluster_id"))


def _duration(text):
    match = _DURATION.fullmatch(text)
    if not match:
        sys.exit(f"{_PROGRAM}: --default_kv_lease_ttl is a number of ms, or with ms, s, m or h, not {text!r}")
    return f"{match[1]}{match[2] or 'ms'}"


def _state_folder(port):
    """Where this master's identity is kept, so that nodes know the pool again after a restart."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    folder = Path(base) / "kvpool" / f"mooncake-{port}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        print(f"{_PROGRAM}: {folder}: {e.strerror}; nothing is kept over a restart", file=sys.stderr)
        return "none"
    return str(folder)


def _die_with(parent):
    """In the child: it is told to end when the parent does, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)


def main():
    flags = _FLAGS.parse(sys.argv[1:])
    port = number(_PROGRAM, "rpc_port", flags["rpc_port"], 0, 65535) or number(_PROGRAM, "port", flags["port"], 0, 65535)
    http_port = number(_PROGRAM, "metrics_port", flags["metrics_port"], 0, 65535)
    parent = os.getpid()
    child = subprocess.Popen(
        [str(FOLDER / "kvpool-master"), "--listen", f"{flags['rpc_address']}:{port}", "--http", "127.0.0.1:0", "--data-dir",
         _state_folder(port), "--lease-ttl", _duration(flags["default_kv_lease_ttl"])],
        stdout=subprocess.PIPE, text=True, preexec_fn=lambda: _die_with(parent))
    for sig in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sig, lambda *_: child.terminate())
    ready = child.stdout.readline()
    print(ready, end="", flush=True)
    said = dict(word.split("=", 1) for word in ready.split()[1:] if "=" in word)
    if "listen" in said and flags["enable_metric_reporting"]:
        threading.Thread(target=lambda: sys.stdout.writelines(child.stdout), daemon=True).start()
        try:
            Admin((flags["metrics_host"], http_port), said["listen"], said["http"]).start()
        except OSError as e:
            child.terminate()
            print(f"{_PROGRAM}: {flags['metrics_host']}:{http_port}: {e.strerror}", file=sys.stderr)
    code = child.wait()
    sys.exit(code if code >= 0 else 128 - code)
