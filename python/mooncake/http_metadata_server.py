# SPDX-License-Identifier: Apache-2.0
"""mooncake.http_metadata_server: engines find each other by name here. In Python, or as the program
mooncake_http_metadata_server (python -m mooncake.http_metadata_server)."""
import argparse
import logging
import signal
import sys
from enum import Enum

from . import _logfmt
from ._flags import check_open, version_of
from ._metadata import MetadataServer
from ._tokens import open_tokens

__all__ = ["KVBootstrapServer", "KVPoll", "main"]

log = logging.getLogger("mooncake.http_metadata_server")
_PROGRAM = "mooncake_http_metadata_server"


class KVPoll(Enum):
    Failed = 0
    Bootstrapping = 1
    WaitingForInput = 2
    Transferring = 3
    Success = 4


class KVBootstrapServer:
    """A metadata server in a thread of this process. Port 0 = any free port; `port` is known after run(). With KVPOOL_TOKENS in the
    environment it asks for tokens, as the program does."""

    def __init__(self, port, host="0.0.0.0"):
        self.port = port
        self.host = host
        self.thread = None
        self._server = None

    def run(self):
        """Starts the server, and returns its thread. If it cannot start, the log has the reason, and poll() is Failed."""
        try:
            tokens = open_tokens(_PROGRAM)
            check_open(_PROGRAM, tokens, (self.host, self.port))
        except SystemExit as e:  # the engine of this process goes on
            log.error("%s", e)
            return None
        self._server = MetadataServer(self.host, self.port, tokens)
        try:
            self._server.start()
        except OSError as e:
            log.error("%s:%s: %s", self.host, self.port, e.strerror or e)
        self.port, self.thread = self._server.port, self._server.thread
        return self.thread

    def close(self):
        """Ends the server and its connections. All entries are lost."""
        if self._server is not None:
            self._server.stop()

    def poll(self):
        """Success while it serves, else Failed."""
        return KVPoll.Success if self.thread is not None and self.thread.is_alive() else KVPoll.Failed


def main():
    parser = argparse.ArgumentParser(prog=_PROGRAM, description="Keeps where engines are, under their names.",
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--version", action="version", version=version_of(_PROGRAM))
    parser.add_argument("--port", type=int, default=8080, help="port to listen on, 0: any")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")
    parser.add_argument("--log-level", choices=["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], default="INFO")
    args = parser.parse_args()
    _logfmt.start(args.log_level)
    tokens = open_tokens(_PROGRAM)
    check_open(_PROGRAM, tokens, (args.host, args.port))
    # Blocked before the server's thread begins, which has them so too: sigwait takes them.
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    server = MetadataServer(args.host, args.port, tokens)
    try:
        server.start()
    except OSError as e:
        sys.exit(f"{_PROGRAM}: {args.host}:{args.port}: {e.strerror or e}")
    print(f"ready http={args.host}:{server.port}", flush=True)
    signal.sigwait(ends)
    server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
