# SPDX-License-Identifier: Apache-2.0
"""mooncake_client: a node of the pool under the reference's flags. It becomes kvpool-node."""
import os
import sys

from kvpool._programs import FOLDER

from . import _setup
from ._flags import OFFLOAD, Flags, number

_PROGRAM = "mooncake_client"
_FLAGS = Flags(_PROGRAM, {
    "host": "0.0.0.0", "port": "50052", "master_server_address": "127.0.0.1:50051", "protocol": "tcp", "device_names": "",
    "global_segment_size": "4 GB", "enable_http_server": False, "http_port": "9300",
}, without_use=("metadata_server", "local_buffer_size", "threads", "tenant_id", "start_offload_rpc_server", "logtostderr",
                "v", "minloglevel"), instead=OFFLOAD)


def main():
    flags = _FLAGS.parse(sys.argv[1:])
    port = number(_PROGRAM, "port", flags["port"], 0, 65535)
    try:
        memory = _setup.parse_size(flags["global_segment_size"])
    except ValueError as e:
        sys.exit(f"{_PROGRAM}: --global_segment_size: {e}")
    words = [str(FOLDER / "kvpool-node"), "--master", flags["master_server_address"], "--listen", f"{flags['host']}:{port}",
             "--memory", f"{memory}B"]
    names = _setup.transports(flags["protocol"])
    if names is not None:
        words += ["--transports", names]
    if flags["device_names"]:
        words += ["--rdma-device", flags["device_names"]]
    if flags["enable_http_server"]:
        words += ["--http", f"{flags['host']}:{number(_PROGRAM, 'http_port', flags['http_port'], 0, 65535)}"]
    os.execv(words[0], words)
