# SPDX-License-Identifier: Apache-2.0
"""mooncake_master: a pool's master under the reference's flags, and its admin paths over HTTP.

Starts kvpool-master and ends with it, whichever ends first. The paths are answered here, by a client of the pool like others, so
that a list of all keys costs the master no long step. So is the HTTP metadata server, which has nothing to do with the pool.
"""
import ctypes
import fcntl
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

from kvpool._programs import FOLDER

from . import _logfmt
from ._admin import Admin
from ._flags import Flags, check_open, number
from ._metadata import MetadataServer
from ._setup import CLUSTER, join_host
from ._tokens import open_tokens

_PROGRAM = "mooncake_master"
_DURATION = re.compile(r"(\d+)(ms|s|m|h)?")
_PR_SET_PDEATHSIG = 1
_SIOCGIFADDR = 0x8915
_FLAGS = Flags(_PROGRAM, {
    "port": "50051", "rpc_port": "0", "rpc_address": "0.0.0.0", "rpc_interface": "", "enable_metric_reporting": True,
    "metrics_port": "9003", "metrics_host": "0.0.0.0", "default_kv_lease_ttl": "10000", "enable_http_metadata_server": False,
    "http_metadata_server_port": "8080", "http_metadata_server_host": "0.0.0.0", "config_path": "", "log_dir": "",
    "enable_ha": False, "enable_oplog": False, "ha_backend_type": "etcd", "ha_backend_connstring": "", "etcd_endpoints": "",
    "cluster_id": CLUSTER,
    "enable_kv_events": False, "kv_events_bind_endpoint": "", "kv_events_replay_endpoint": "", "kv_events_backend_id": "",
    "kv_events_emit_legacy_compat": True, "kv_events_queue_capacity": "65536",
}, without_use=(
    "rpc_thread_num", "max_threads", "rpc_conn_timeout_seconds", "rpc_enable_tcp_no_delay", "default_kv_soft_pin_ttl",
    "max_kv_soft_pin_ttl", "allow_evict_soft_pinned_objects", "eviction_ratio", "eviction_high_watermark_ratio", "nof_eviction_ratio",
    "nof_eviction_high_watermark_ratio", "nof_heartbeat_interval_sec", "nof_heartbeat_probe_timeout_ms",
    "nof_heartbeat_failures_threshold", "put_start_discard_timeout_sec", "put_start_release_timeout_sec", "client_ttl",
    "memory_allocator", "allocation_strategy", "cxl_path", "cxl_size", "offload_force_evict", "offloading_queue_limit",
    "offload_cap_ratio", "promotion_admission_threshold", "promotion_queue_limit",
    "promotion_max_per_heartbeat", "enable_disk_eviction", "quota_bytes", "global_file_segment_size",
    "dynamic_replication_heat_window_seconds", "dynamic_replication_admission_qps_threshold",
    "dynamic_replication_max_memory_replicas", "kv_events_emit_object_key", "kv_events_model_name", "kv_events_tenant_id",
    "kv_events_additional_salt", "kv_events_lora_name", "kv_events_block_size", "kv_events_dp_rank",
    "pod_name", "pod_namespace", "oplog_poll_interval_ms", "oplog_batch_max_entries",
    "batch_oplog_retry_timeout_sec", "tenant_quota_connector_type", "snapshot_backup_dir", "snapshot_interval_seconds",
    "snapshot_child_timeout_seconds", "snapshot_retention_count", "snapshot_object_store_type", "snapshot_catalog_store_type",
    "snapshot_catalog_store_connstring", "snapshot_payload_store_type", "snapshot_payload_backend_type",
    "snapshot_catalog_backend_type", "snapshot_catalog_backend_connstring", "max_total_finished_tasks", "max_total_pending_tasks",
    "max_total_processing_tasks", "pending_task_timeout_sec", "processing_task_timeout_sec", "max_retry_attempts"),
instead={
    "enable_offload": "a node with an SSD directory writes objects there when they leave its memory, without a question to the master",
    "offload_on_evict": "objects are written shortly before they are evicted, and never when they are put",
    "promotion_on_hit": "an object that is read from an SSD is in memory after its first read",
    "root_fs_dir": "no object is written to files: they end with the nodes that hold them",
    "enable_snapshot": "nodes report their objects to a restarted master, without a snapshot",
    "enable_snapshot_restore": "nodes report their objects to a restarted master, without a snapshot",
    "enable_multi_tenants": "tenants are always apart, and share the space by use, without quotas",
    "dynamic_replication_mode": "objects have the copies that their put asked for, however often they are read",
    "enable_metadata_cleanup_on_timeout": "an engine's entry stays until it ends, or one of its name takes its place",
}, refused={
    "tenant_quota_connector_uri": "there are no quotas, and the file's quotas would have no effect; leave it out",
    "enable_cxl": "no node serves CXL memory; leave it out, and start mooncake_client where there is memory",
})



def _duration(text):
    match = _DURATION.fullmatch(text)
    if not match:
        sys.exit(f"{_PROGRAM}: --default_kv_lease_ttl is a number of ms, or with ms, s, m or h, not {text!r}")
    return f"{match[1]}{match[2] or 'ms'}"


def _address_of(interface):
    """The IPv4 address of one of this host's."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            answer = fcntl.ioctl(sock, _SIOCGIFADDR, struct.pack("16s240x", os.fsencode(interface)[:15]))
        return socket.inet_ntoa(answer[20:24])
    except OSError as e:
        sys.exit(f"{_PROGRAM}: --rpc_interface {interface!r}: {e.strerror}")


def _log_in(folder):
    """The file there that the master's log goes to; None for standard error."""
    path = Path(folder) / f"{_PROGRAM}.log"
    try:
        return open(path, "ab") if folder else None
    except (OSError, ValueError) as e:
        sys.exit(f"{_PROGRAM}: --log_dir: {path}: {getattr(e, 'strerror', e)}")


def _etcd(flags):
    """The members of etcd that --enable_ha names, with commas between; "" where one master is alone."""
    if flags["enable_oplog"] and not flags["enable_ha"]:
        sys.exit(f"{_PROGRAM}: --enable_oplog: it goes with --enable_ha, where standbys follow the log in any case; leave it out")
    if not flags["enable_ha"]:
        return ""
    if flags["ha_backend_type"] != "etcd":
        sys.exit(f"{_PROGRAM}: --ha_backend_type is etcd, not {flags['ha_backend_type']!r}: masters are elected by nothing else")
    named = flags["ha_backend_connstring"] or flags["etcd_endpoints"]
    members = ",".join(word.strip() for word in named.replace("etcd://", "").replace(";", ",").split(",") if word.strip())
    if not members:
        sys.exit(f"{_PROGRAM}: --enable_ha: it wants the members of etcd, --etcd_endpoints='host:2379;host:2379'; or leave it out")
    if "/" in flags["cluster_id"]:
        sys.exit(f"{_PROGRAM}: --cluster_id is a name without slashes, not {flags['cluster_id']!r}")
    return members


def _events(flags):
    """What kvpool-master is told of KV events."""
    if not flags["enable_kv_events"]:
        return []
    if not flags["kv_events_bind_endpoint"]:
        print(f"{_PROGRAM}: --enable_kv_events: no events are published without --kv_events_bind_endpoint", file=sys.stderr)
        return []
    kept = number(_PROGRAM, "kv_events_queue_capacity", flags["kv_events_queue_capacity"], 0, 2**32 - 1) or 2**24
    words = ["--events", flags["kv_events_bind_endpoint"], "--events-kept", str(min(max(kept, 1024), 2**24))]
    if flags["kv_events_replay_endpoint"]:
        words += ["--events-replay", flags["kv_events_replay_endpoint"]]
    if flags["kv_events_backend_id"]:
        words += ["--events-backend-id", flags["kv_events_backend_id"]]
    return words + (["--events-legacy"] if flags["kv_events_emit_legacy_compat"] else [])


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


def _starts(at, make):
    """Whether what make() makes serves there; where not, it is told."""
    try:
        make().start()
        return True
    except OSError as e:
        print(f"{_PROGRAM}: {at[0]}:{at[1]}: {e.strerror or e}", file=sys.stderr)
        return False


def main():
    _logfmt.start()
    flags = _FLAGS.parse(sys.argv[1:])
    port = number(_PROGRAM, "rpc_port", flags["rpc_port"], 0, 65535) or number(_PROGRAM, "port", flags["port"], 0, 65535)
    host = _address_of(flags["rpc_interface"]) if flags["rpc_interface"] else flags["rpc_address"]
    http_port = number(_PROGRAM, "metrics_port", flags["metrics_port"], 0, 65535)
    metadata_port = number(_PROGRAM, "http_metadata_server_port", flags["http_metadata_server_port"], 0, 65535)
    etcd, cluster = _etcd(flags), flags["cluster_id"] or CLUSTER
    more = ["--lease-ttl", _duration(flags["default_kv_lease_ttl"]), *(["--etcd", etcd, "--cluster", cluster] if etcd else []), *_events(flags)]
    log = _log_in(flags["log_dir"])
    at_http, at_metadata = (flags["metrics_host"], http_port), (flags["http_metadata_server_host"], metadata_port)
    tokens = open_tokens(_PROGRAM)
    check_open(_PROGRAM, tokens, *[at_http] * flags["enable_metric_reporting"], *[at_metadata] * flags["enable_http_metadata_server"])
    parent = os.getpid()
    child = subprocess.Popen(
        [str(FOLDER / "kvpool-master"), "--listen", join_host(host, port), "--insecure", "--http", "127.0.0.1:0", "--http-tls=no", "--data-dir",
         _state_folder(f"{port}-{cluster}" if etcd else port), *more],
        stdout=subprocess.PIPE, stderr=log, text=True, preexec_fn=lambda: _die_with(parent))
    for sig in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sig, lambda *_: child.terminate())
    ready = child.stdout.readline()
    print(ready, end="", flush=True)
    said = dict(word.split("=", 1) for word in ready.split()[1:] if "=" in word)
    is_whole = True
    if "listen" in said:
        threading.Thread(target=lambda: sys.stdout.writelines(child.stdout), daemon=True).start()
        if flags["enable_metric_reporting"]:
            is_whole = _starts(at_http, lambda: Admin(at_http, said["listen"], said["http"], etcd, cluster, tokens))
        if is_whole and flags["enable_http_metadata_server"]:
            is_whole = _starts(at_metadata, lambda: MetadataServer(*at_metadata, tokens))
        if not is_whole:
            child.terminate()
    code = child.wait()
    sys.exit((code if code >= 0 else 128 - code) if is_whole else 1)
