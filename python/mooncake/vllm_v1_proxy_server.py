# SPDX-License-Identifier: Apache-2.0
"""python -m mooncake.vllm_v1_proxy_server: kvpool-conductor as the proxy before prefill and decode servers of vLLM, with the
reference's flags. The process becomes that program, so signals and exit codes are those of kvpool-conductor."""
import argparse
import os
import sys

from kvpool._programs import become

from ._flags import version_of

_PROGRAM = "vllm_v1_proxy_server"
_BOOTSTRAP = "VLLM_MOONCAKE_BOOTSTRAP_PORT"


def _port(text):
    port = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port")
    return port


def _bootstrap(text):
    """PORT, or HOST:PORT of a bootstrap server on another host than its prefill server."""
    host, _, port = text.rpartition(":")
    _port(port)
    return text if host else int(port)


def _address(host, port):
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def _servers(parser, what, hosts, ports):
    """The URLs of the servers. One host may have several ports, and one port several hosts."""
    n = max(len(hosts), len(ports))
    hosts, ports = (values * n if len(values) == 1 else values for values in (hosts, ports))
    if len(hosts) != len(ports):
        parser.error(f"{len(hosts)} hosts of {what}s, but {len(ports)} ports")
    return [f"http://{_address(host, port)}" for host, port in zip(hosts, ports)]


def _bootstrap_ports(parser, given, n):
    """A bootstrap server for each of n prefill servers, or none: then the servers' answers have the engines' ids."""
    if given is None:
        told = os.environ.get(_BOOTSTRAP, "")
        try:
            given = [_bootstrap(told)] if told else []
        except argparse.ArgumentTypeError as e:
            parser.error(f"${_BOOTSTRAP}: {e}")
    if len(given) not in (0, 1, n):
        parser.error(f"{n} prefill servers, but {len(given)} bootstrap ports")
    return given * n if len(given) == 1 else given


def arguments(argv=None):
    """The arguments for kvpool-conductor. SystemExit 2 if they are invalid."""
    parser = argparse.ArgumentParser(prog=_PROGRAM, description="An OpenAI-compatible proxy before prefill and decode servers.",
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--version", action="version", version=version_of(_PROGRAM))
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=_port, default=8000, help="port to listen on, 0: any")
    for what, port in (("prefiller", 8100), ("decoder", 8200)):
        parser.add_argument(f"--{what}-hosts", f"--{what}-host", nargs="+", default=["localhost"], metavar="HOST")
        parser.add_argument(f"--{what}-ports", f"--{what}-port", nargs="+", type=_port, default=[port], metavar="PORT")
    parser.add_argument("--prefiller-bootstrap-ports", "--prefiller-bootstrap-port", nargs="+", type=_bootstrap, default=None, metavar="[HOST:]PORT",
                        help=f"of the servers that tell the engines' ids, where the answers don't (default: ${_BOOTSTRAP})")
    parser.add_argument("--admin-port", type=_port, default=0, help="port of 127.0.0.1 for /servers and for the conductor's paths, 0: any")
    args = parser.parse_args(argv)
    prefill = _servers(parser, "prefiller", args.prefiller_hosts, args.prefiller_ports)
    bootstrap = _bootstrap_ports(parser, args.prefiller_bootstrap_ports, len(prefill))
    out = ["--proxy", _address(args.host, args.port), "--http", f"127.0.0.1:{args.admin_port}"]
    for i, url in enumerate(prefill):
        out += ["--prefill", f"{url},{bootstrap[i]}" if bootstrap else url]
    for url in _servers(parser, "decoder", args.decoder_hosts, args.decoder_ports):
        out += ["--decode", url]
    return out


def main():
    become("kvpool-conductor", arguments())


if __name__ == "__main__":
    sys.exit(main())
