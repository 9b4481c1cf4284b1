# SPDX-License-Identifier: Apache-2.0
"""What setup() is told, in the words of a pool."""
import errno
import logging
import os
import re
import socket
import threading
from fractions import Fraction

from ._telling import shown

log = logging.getLogger("mooncake.store")

PORTS = range(12300, 14300)  # of those an embedded node takes one where none is named
PROTOCOLS = {"tcp": "shm,tcp", "rdma": "shm,rdma"}
_DEFAULT_SIZE = 16 << 20
_CHUNK_BYTES = 256 << 20
CLUSTER = "mooncake_cluster"
_MASTER_WAIT_MS = 1000
UNITS = {"": 1, "B": 1, "K": 1 << 10, "KB": 1 << 10, "M": 1 << 20, "MB": 1 << 20, "G": 1 << 30, "GB": 1 << 30, "T": 1 << 40,
         "TB": 1 << 40}
_NAMES = {"local_hostname", "metadata_server", "global_segment_size", "local_buffer_size", "protocol", "rdma_devices", "master_server_addr",
          "tenant_id", "enable_ssd_offload", "ssd_offload_path"}  # of a dict
# What the reference's setup() knows and a pool has no use for: what is done instead.
_INSTEAD = {
    "metadata_server": "no server is asked: the master knows its nodes",
    "enable_client_http_server": "a store serves no HTTP; mooncake_client, kvpool-node and the master do",
    "client_http_port": "nothing listens there",
    "ipc_socket_path": "processes of a host find one another through the pool's master",
}
_OFF = {"", "0", "false", "no", "off", "p2phandshake", "9300"}  # values that say what is done anyway
_told_names: "set[str]" = set()  # of these, in this process
_ALIASES = {"master_server_address": "master_server_addr", "device_name": "rdma_devices"}  # which LMCache says

_SIZE = re.compile(r"([0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})\s*([BKMGT]{0,2})", re.ASCII)
_HOST_LONGEST = 253  # of DNS
_warned: set[str] = set()  # of what TCP stands in for: variables


class ProtocolError(ValueError):
    """A protocol that is none."""


class HostError(ValueError):
    """A host at which nothing can listen."""


def chunk_bytes(memory):
    """Of a node with so much memory; 0 is kvpool's choice. A Mooncake value may be as large as a small node's memory."""
    return _CHUNK_BYTES if memory < 16 * _CHUNK_BYTES else 0


def parse_size(value):
    """Bytes of an int or of text ("16MB", "1.5 GB": powers of 1024). ValueError; OverflowError of what 64 bits do not hold; TypeError for
    a float."""
    if isinstance(value, float):
        raise TypeError("a size is an int, or text with a unit, not float")
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        parts = _SIZE.fullmatch(str(value).strip().upper())
        if parts is None or parts[2] not in UNITS:
            raise ValueError(f"not a size: {shown(str(value))!r} (as in 512MB or 1.5 GB)")
        size = int(Fraction(parts[1].rstrip(".")) * UNITS[parts[2]])
    if size < 0:
        raise ValueError(f"not a size: {value}")
    if size >= 2**64:
        raise OverflowError(f"a size does not fit in 64 bits: {value}")
    return size


def transports(protocol):
    """Which transports a protocol stands for, in order. None leaves it to the library: $KVPOOL_TRANSPORTS goes before any protocol, and
    "" names none. ProtocolError."""
    if "KVPOOL_TRANSPORTS" in os.environ or protocol == "":
        return None
    if protocol.lower() not in PROTOCOLS:
        raise ProtocolError(f'the protocol is "tcp" or "rdma", not {shown(protocol)!r}')
    return PROTOCOLS[protocol.lower()]


def may_do_without_rdma(log, variable, value, detail):
    """Does TCP stand in for the RDMA of a protocol, which cannot be had as the library's `detail` says? Where somebody named devices, or
    transports by the variable, it does not: SGLang says "rdma" where its user said nothing. The log tells so once a process."""
    if "rdma cannot be used here" not in detail or {variable, Devices.VARIABLE} & os.environ.keys():
        return False
    if variable not in _warned:
        log.warning('%s: the protocol "rdma" goes by TCP then, unless %s=%s forbids it', detail, variable, value)
        _warned.add(variable)
    return True


def cluster():
    """Whose masters "etcd://..." stands for."""
    return os.environ.get("KVPOOL_CLUSTER") or os.environ.get("MC_STORE_CLUSTER_ID") or CLUSTER


def master_wait_ms():
    """How long calls wait together for a master that is away. 0 leaves it to the library, which reads $KVPOOL_MASTER_WAIT."""
    return 0 if os.environ.get("KVPOOL_MASTER_WAIT") else _MASTER_WAIT_MS


class Devices:
    """Which RDMA devices stores and engines have named: the library has one choice for all of a process ($KVPOOL_RDMA_DEVICE)."""

    VARIABLE = "KVPOOL_RDMA_DEVICE"

    def __init__(self):
        self._lock = threading.Lock()
        self._names = frozenset()  # guarded by _lock, as the next one
        self._users_n = 0  # who named them, but those that came to nothing
        self._is_ours = False  # the variable is not the operator's

    def take(self, text):
        """Makes the devices in text ("mlx5_0,mlx5_1") the process's. False where somebody has named others. What the environment says
        beforehand is the operator's word, and stays."""
        if not isinstance(text, str):
            raise TypeError(f"devices are named by a str, not {type(text).__name__}")
        names = frozenset(name.strip() for name in text.split(","))
        with self._lock:
            if self._users_n == 0:
                self._names, self._is_ours = names, self.VARIABLE not in os.environ
                os.environ.setdefault(self.VARIABLE, text)
            elif self._is_ours and names != self._names:
                return False
            self._users_n += 1
            return True

    def give(self):
        """Of who took them, and came to nothing."""
        with self._lock:
            self._users_n -= 1
            if self._users_n == 0 and self._is_ours:
                os.environ.pop(self.VARIABLE, None)

    def __str__(self):
        return ",".join(sorted(self._names))


devices = Devices()


def _listening_at(host):
    """(family, address) of host that a node would listen at: the first one that the system names. HostError."""
    if len(host) > _HOST_LONGEST:
        raise HostError(f"a host's name has {_HOST_LONGEST} characters at most, not {len(host)}")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, PORTS[0], type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, ValueError) as e:  # the latter: what is no name
        raise HostError(f"the host {host!r} is not known: {e}") from None
    return family, address


def free_port(host, start):
    """A port of host that nobody listens at, from start on in PORTS. HostError where it has none, or none can be had there. The system is
    asked for the name once: it may take its time."""
    family, address = _listening_at(host)
    for i in range(len(PORTS)):
        port = PORTS[(start + i) % len(PORTS)]
        try:
            with socket.create_server((address[0], port, *address[2:]), family=family):
                return port
        except OSError as e:
            if e.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise HostError(f"nothing can listen at {host!r}: {e.strerror or e}") from None
    raise HostError(f"{host!r} has no port from {PORTS[0]} to {PORTS[-1]} that is free")


def _is_ipv6(text):
    """Is it an IPv6 address, without brackets? It may have a zone: "fe80::1%eth0"."""
    address, _, zone = text.partition("%")
    try:
        return ":" not in zone and bool(socket.inet_pton(socket.AF_INET6, address))
    except (OSError, ValueError):
        return False


def split_host(hostname):
    """("host", port or 0) of "host", "host:port", "[v6]", "[v6]:port", "v6" or "v6:port". "::1:7" is an address without a port."""
    if hostname.startswith("[") and hostname.endswith("]"):
        return hostname[1:-1], 0
    host, colon, port = hostname.rpartition(":")
    if not colon or _is_ipv6(hostname) or (":" in host and not host.startswith("[") and not _is_ipv6(host)):
        return hostname, 0
    return host.strip("[]"), int(port) if port.isdigit() else 0


def join_host(host, port):
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def has_identity():
    """Whether this process has a certificate or a token, which has the names that its node may have."""
    return bool(os.environ.get("KVPOOL_TLS_CERT") or os.environ.get("KVPOOL_TOKEN_FILE"))


def node_name(name, host):
    """The name of a node with an SSD tier, which has no port in it. An identity has the host's name in it."""
    return join_host(host, name) if has_identity() else name


def with_brackets(address):
    """"[::1]:PORT" for "::1:PORT", as the reference's programs write it; other addresses as they are."""
    host, _, port = address.rpartition(":")
    return join_host(host, port) if _is_ipv6(host) else address


def masters(text):
    """A list of masters, as kvpool takes it: "HOST:PORT,HOST:PORT", or "etcd://...", which is not looked into."""
    return text if "://" in text else ",".join(map(with_brackets, text.split(",")))


def tell_unused(given):
    """Logs of each of these names, once in a process, what is done instead of what it asks for."""
    for name, value in given.items():
        if name in _INSTEAD and name not in _told_names and str(value).lower() not in _OFF:
            _told_names.add(name)
            log.warning("setup: %s=%s: %s", name, shown(str(value)), _INSTEAD[name])


def from_dict(config):
    """The arguments of setup() from its form with one dict, whose values may all be text. Names that nobody knows are told in the log:
    the reference takes them, too, and a size that is misspelt is 16 MB. A value that is None is refused there, too: ValueError."""
    for name, value in config.items():
        if value is None:
            raise ValueError(f"{shown(str(name))} is None")
    text = {str(k): str(v) for k, v in config.items()}
    for alias, name in _ALIASES.items():
        if alias in text and text.setdefault(name, text[alias]) != text.pop(alias):
            log.warning("setup: %s is given as well, and differs: %s is ignored", name, alias)
    tell_unused(text)
    unknown = sorted(text.keys() - _NAMES - _INSTEAD.keys())
    if unknown:
        log.warning("setup: unknown settings are ignored: %s", ", ".join(name[:100] for name in unknown[:20]))
    return dict(local_hostname=text.get("local_hostname", ""), metadata_server=text.get("metadata_server", ""),
                global_segment_size=parse_size(text.get("global_segment_size", _DEFAULT_SIZE)),
                local_buffer_size=parse_size(text.get("local_buffer_size", _DEFAULT_SIZE)),
                protocol=text.get("protocol", "tcp"), rdma_devices=text.get("rdma_devices", ""),
                master_server_addr=text.get("master_server_addr", "127.0.0.1:50051"),
                tenant_id=text.get("tenant_id", "default"),
                enable_ssd_offload=text.get("enable_ssd_offload", "").strip().lower() in ("true", "1", "yes", "on"),
                ssd_offload_path=text.get("ssd_offload_path", ""))
