# SPDX-License-Identifier: Apache-2.0
"""mooncake.mooncake_store_service: a process that gives memory to the pool, for engines that give none, and serves objects over
HTTP. It becomes mooncake_client with --rest, configured by a file of mooncake_config or by the environment. Its HTTP listens
at local_hostname only. The reference's paths that mount and unmount memory answer 404."""
import argparse
import os
import sys

from . import _client, _logfmt, _setup
from ._flags import version_of
from .mooncake_config import MooncakeConfig

_PROGRAM = "mooncake_store_service"


def _config(path, defined):
    """A MooncakeConfig of the file or of the environment, with the fields of -D. ValueError, OSError."""
    config = MooncakeConfig.from_file(path) if path else MooncakeConfig.load_from_env()
    for word in defined:
        name, equals, value = word.partition("=")
        if not equals or not hasattr(config, name):
            raise ValueError(f"-D {word}: FIELD=VALUE of the configuration is expected")
        setattr(config, name, value)
    return config


def main():
    parser = argparse.ArgumentParser(prog=_PROGRAM, description="Gives memory to the pool, and serves objects over HTTP.")
    parser.add_argument("--version", action="version", version=version_of(_PROGRAM))
    parser.add_argument("--config", help="file of JSON; default: the environment, as MooncakeConfig reads it")
    parser.add_argument("-D", "--define", action="append", default=[], metavar="FIELD=VALUE", help="instead of the file's value")
    parser.add_argument("--port", type=int, default=8080, help="of the HTTP server, at local_hostname (8080)")
    parser.add_argument("--max-wait-time", type=float, help="of no use: it waits for the master as long as it takes")
    args = parser.parse_args()
    _logfmt.start()
    try:
        config = _config(args.config, args.define)
        host, port = _setup.split_host(config.local_hostname)
        port = port or _setup.free_port(host, os.getpid())
        if _setup.parse_size(config.global_segment_size) == 0:
            raise ValueError("global_segment_size is 0: there is no memory to give")
        if config.tenant_id not in ("", "default"):
            raise ValueError("its HTTP serves the default tenant alone; a node's memory serves all")
    except (OSError, OverflowError, ValueError) as e:
        sys.exit(f"{_PROGRAM}: {e}")
    names = ("metadata_server", "enable_client_http_server", "client_http_port")
    _setup.tell_unused({name: getattr(config, name) for name in names})
    if config.ssd_offload_path:
        os.environ["MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"] = config.ssd_offload_path
    _client.main([
        f"--host={host}", f"--port={port}", f"--master_server_address={config.master_server_address}", f"--protocol={config.protocol}",
        f"--device_names={config.device_name or ''}", f"--global_segment_size={config.global_segment_size}", "--enable_http_server",
        f"--http_port={args.port}", "--rest", f"--enable_offload={str(config.enable_ssd_offload).lower()}"])


if __name__ == "__main__":
    main()
