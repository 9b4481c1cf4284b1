# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
"""A store that names a process of this host instead of the master: SGLang's standalone storage beside a mooncake_client. In a
pool each process is a client, so the name only leads to the master. Bytes go between this process and the nodes, by shared
memory for nodes of this host."""
from __future__ import annotations

import ipaddress
import logging
import operator
import os
import socket

from . import _setup
from ._hostmem import MemPool

log = logging.getLogger("mooncake.store")

_UNREACHED = -1
_CONNECT_S = 5
_LISTENS = "0A"
_NODE = b"kvpool-node"


def _connect(host, port):
    """Connects, and returns whether the peer is of this host. OSError."""
    with socket.create_connection((host, port), _CONNECT_S) as sock:
        there, here = sock.getpeername()[0], sock.getsockname()[0]
    return there == here or ipaddress.ip_address(there.partition("%")[0]).is_loopback


def _sockets(port):
    """The kernel's numbers of sockets that listen at a port of this host."""
    found = set()
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/net/{name}", encoding="ascii") as table:
                rows = [line.split() for line in table]
        except OSError:
            continue
        found |= {f"socket:[{row[9]}]" for row in rows[1:] if row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port}
    return found


def _holds(process, sockets):
    folder = f"/proc/{process}/fd"
    for name in os.listdir(folder):
        try:
            if os.readlink(f"{folder}/{name}") in sockets:
                return True
        except FileNotFoundError:  # closed meanwhile
            pass
    return False


def _told(port):
    """The --master of the kvpool-node that listens at a port of this host, or None, also if it is of another user or container."""
    sockets = _sockets(port)
    for process in filter(str.isdigit, os.listdir("/proc") if sockets else ()):
        try:
            with open(f"/proc/{process}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            if os.path.basename(words[0]) == _NODE and _holds(process, sockets):
                return next((os.fsdecode(after) for word, after in zip(words, words[1:]) if word == b"--master"), None)
        except OSError:  # gone, or somebody else's
            pass
    return None


def master_of(address):
    """The master of the node at "HOST:PORT", or None after a line in the log."""
    try:
        host, port = _setup.split_host(address)
        if not 0 < port < 65536:
            raise OSError("that is no HOST:PORT")
        master = _told(port) if _connect(host, port) else None
    except (OSError, UnicodeError) as e:
        log.error("setup_dummy(%r): %s", address, e)
        return None
    master = master or os.environ.get("KVPOOL_MASTER") or os.environ.get("MOONCAKE_MASTER")
    if not master:
        log.error("setup_dummy(%r): it is not to be seen which master the process there has; set $MOONCAKE_MASTER", address)
    return master


class Dummy:
    """A part of MooncakeDistributedStore."""

    def setup_dummy(self, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int:
        """Joins the pool of the mooncake_client, or kvpool-node, at server_address ("HOST:PORT"), and gives it no memory. The master
        is read from the process's command line if that is visible, else from $KVPOOL_MASTER or $MOONCAKE_MASTER.
        mem_pool_size: bytes for alloc_from_mem_pool(). Returns 0; -1 if no process is reached, or no master is known; else a
        code, as setup()."""
        mem_pool_size, local_buffer_size = operator.index(mem_pool_size), operator.index(local_buffer_size)
        if mem_pool_size < 0 or local_buffer_size < 0:
            raise ValueError("sizes are not below 0")
        master = master_of(server_address)
        if not master:
            return _UNREACHED
        err = self.setup("127.0.0.1", "P2PHANDSHAKE", 0, local_buffer_size, os.environ.get("MOONCAKE_PROTOCOL", ""), "", master)
        if err == 0:
            self._mem_pool = MemPool(self._raw, mem_pool_size)
        return err

    def alloc_from_mem_pool(self, size: int) -> int:
        """Returns the address of size bytes of registered memory, valid until close(); 0 if there is none, or before setup_dummy()."""
        size, pool = operator.index(size), self._mem_pool
        return pool.alloc(size) if pool is not None else 0
