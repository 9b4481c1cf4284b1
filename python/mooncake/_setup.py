# SPDX-License-Identifier: Apache-2.0
"""What setup() is told, in the words of a pool."""
import hashlib
import os
import socket

PORTS = range(12300, 14300)  # of those an embedded node takes one where none is named
_DEFAULT_SIZE = 16 << 20
_UNITS = {"": 1, "B": 1, "K": 1 << 10, "KB": 1 << 10, "M": 1 << 20, "MB": 1 << 20, "G": 1 << 30, "GB": 1 << 30, "T": 1 << 40,
          "TB": 1 << 40}


def parse_size(value):
    """Bytes of an int or of text ("16MB", "16 MB": powers of 1024). ValueError; OverflowError of what 64 bits do not hold."""
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        text = str(value).strip()
        digits = text.rstrip("BbKkMmGgTt ")
        unit = text[len(digits):].strip().upper()
        if unit not in _UNITS or not digits.isdigit():
            raise ValueError(f"not a size: {value!r}")
        size = int(digits) * _UNITS[unit]
    if size < 0:
        raise ValueError(f"not a size: {value}")
    if size >= 2**64:
        raise OverflowError(f"a size does not fit in 64 bits: {value}")
    return size


def transports(protocol):
    """Which transports a protocol stands for, in order. $KVPOOL_TRANSPORTS comes first: None leaves it to the library."""
    if "KVPOOL_TRANSPORTS" in os.environ:
        return None
    return {"tcp": "shm,tcp", "rdma": "shm,rdma"}.get(protocol.lower())


def tenant_number(name):
    """A pool's tenants are numbers: 0 is the default one, others are 32 bits of their name's SHA-256."""
    if name in ("", "default"):
        return 0
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") or 1


def free_port(host, start):
    """A port of host that nobody listens at, from start on in PORTS, or 0."""
    for i in range(len(PORTS)):
        port = PORTS[(start + i) % len(PORTS)]
        try:
            with socket.create_server((host, port)):
                return port
        except socket.gaierror:
            return 0
        except OSError:
            continue
    return 0


def split_host(hostname):
    """("host", port or 0) of "host", "host:port" or "[v6]:port"."""
    host, colon, port = hostname.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        return hostname, 0
    return host.strip("[]"), int(port) if port.isdigit() else 0


def join_host(host, port):
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def from_dict(config):
    """The arguments of setup() from its form with one dict, whose values may all be text."""
    text = {str(k): str(v) for k, v in config.items()}
    return dict(local_hostname=text.get("local_hostname", ""), metadata_server=text.get("metadata_server", ""),
                global_segment_size=parse_size(text.get("global_segment_size", _DEFAULT_SIZE)),
                local_buffer_size=parse_size(text.get("local_buffer_size", _DEFAULT_SIZE)),
                protocol=text.get("protocol", "tcp"), rdma_devices=text.get("rdma_devices", ""),
                master_server_addr=text.get("master_server_addr", "127.0.0.1:50051"),
                tenant_id=text.get("tenant_id", "default"))
