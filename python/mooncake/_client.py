# SPDX-License-Identifier: Apache-2.0
"""mooncake_client: a node of the pool with the reference's flags. The process becomes kvpool-node. --rest differs from the
reference: it serves objects over HTTP to every host that reaches it, with the paths of mc_store_rest_server. Without it there
are /health and /metrics, as in the reference. --enable_offload keeps objects that leave memory below
$MOONCAKE_OFFLOAD_FILE_STORAGE_PATH (_offload.py)."""
import logging
import os
import sys

from kvpool import _kvpool
from kvpool._programs import FOLDER

from . import _logfmt, _offload, _setup
from ._flags import Flags, number

log = logging.getLogger("mooncake.client")
_PROGRAM = "mooncake_client"
_FLAGS = Flags(_PROGRAM, {
    "host": "0.0.0.0", "port": "50052", "master_server_address": "127.0.0.1:50051", "protocol": "tcp", "device_names": "",
    "global_segment_size": "4 GB", "enable_http_server": False, "http_port": "9300", "rest": False, "enable_offload": False,
}, without_use=("metadata_server", "local_buffer_size", "threads", "tenant_id", "start_offload_rpc_server"))


def _lacks_rdma():
    """Returns whether TCP replaces RDMA on this host, as in a store. It asks the library for an endpoint that only uses RDMA."""
    peer = _kvpool.Peer()
    _, detail = peer.open("127.0.0.1:0", "rdma", 1000, 0)
    peer.close()
    return _setup.may_do_without_rdma(log, "KVPOOL_TRANSPORTS", _setup.PROTOCOLS["rdma"], detail)


def main(words=None):
    """Becomes a node with these words of a command line, or with the program's own."""
    _logfmt.start()
    flags = _FLAGS.parse(sys.argv[1:] if words is None else words)
    port = number(_PROGRAM, "port", flags["port"], 0, 65535)
    try:
        memory = _setup.parse_size(flags["global_segment_size"])
    except (OverflowError, ValueError) as e:
        sys.exit(f"{_PROGRAM}: --global_segment_size: {e}")
    words = [str(FOLDER / "kvpool-node"), "--master", _setup.masters(flags["master_server_address"]), "--listen", _setup.join_host(flags["host"], port),
             "--memory", f"{memory}B", "--cluster", _setup.cluster(), "--insecure"]
    if _setup.chunk_bytes(memory) > 0:
        words += ["--chunk-bytes", f"{_setup.chunk_bytes(memory)}B"]
    try:
        names = _setup.transports(flags["protocol"])
    except _setup.ProtocolError as e:
        sys.exit(f"{_PROGRAM}: --protocol: {e}")
    if names == _setup.PROTOCOLS["rdma"] and not flags["device_names"] and _lacks_rdma():
        names = _setup.PROTOCOLS["tcp"]
    if flags["rest"] and not flags["enable_http_server"]:
        sys.exit(f"{_PROGRAM}: --rest wants --enable_http_server")
    if names is not None:
        words += ["--transports", names]
    if flags["device_names"]:
        words += ["--rdma-device", flags["device_names"]]
    if flags["enable_http_server"]:
        words += ["--http", _setup.join_host(flags["host"], number(_PROGRAM, "http_port", flags["http_port"], 0, 65535))]
    if flags["rest"]:
        words += ["--rest", "yes"]
    if flags["enable_offload"]:
        _offload.tell_unused()
        try:
            folder = _offload.take("", memory)
        except _offload.OffloadError as e:
            sys.exit(f"{_PROGRAM}: --enable_offload: {e}")
        folder.inherit()
        words += ["--ssd", folder.device]
        words += [] if os.environ.get("KVPOOL_TLS_CERT") else ["--name", folder.name]  # else it is that of the certificate
    if not os.environ.get("KVPOOL_KEEPER"):
        words += ["--keeper", "until-stop"]  # who stops it wants the memory back, as with the reference's
    os.execv(words[0], words)
