# SPDX-License-Identifier: Apache-2.0
"""Engines' names at an HTTP metadata server: one engine's own entry, and where others are.

An entry is JSON under kvpool/rpc_meta/NAME: {"host": ..., "port": ..., "engine": ...}, the last of which is random and says whose it is.
A server takes no second one under such a key (_metadata.py, and the reference's), so that of two engines one has the name. A thread puts the entry back where the server has lost it. Nothing that the server says is trusted to be short, quick or sound.
"""
import http.client
import io
import json
import logging
import os
import re
import secrets
import socket
import threading
import time
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from . import _setup
from ._telling import shown

log = logging.getLogger("mooncake.engine")

_PATIENCE_S = 5  # for one answer, names of hosts left out
_REFRESH_S = 10
_TRIES = 3  # to take a name: others may come and go meanwhile
_TAKEN = 400  # what a server answers to a second entry of one key
_ANSWER_BYTES = 16384
_NAME_BYTES = 256
_CACHED = 4096
_TAG = re.compile(r'"[!#-~]{1,100}"')
_HOST = re.compile(r"[0-9A-Za-z.:%_-]{1,253}")


class NamesError(Exception):
    """What is wrong with a name or with the server, for a person."""


class _Said(NamedTuple):
    """A server's answer. tag: its ETag, which a DELETE can name, or ""."""

    status: int
    body: bytes
    tag: str = ""


class _Answer(io.RawIOBase):
    """A socket, for http.client.HTTPResponse, of which all reads together end at one time and after _ANSWER_BYTES."""

    def __init__(self, sock, end):
        self._sock, self._end, self._left = sock, end, _ANSWER_BYTES

    def makefile(self, mode):
        return io.BufferedReader(self)

    def readable(self):
        return True

    def readinto(self, buffer):
        seconds = self._end - time.monotonic()
        if seconds <= 0:
            raise socket.timeout("timed out")
        if self._left == 0:
            raise http.client.HTTPException("the answer is too long")
        self._sock.settimeout(seconds)
        n = self._sock.recv_into(buffer, min(len(buffer), self._left))
        self._left -= n
        return n


def _address(value):
    """"HOST:PORT" of an entry."""
    try:
        entry = json.loads(value)
        host, port = entry["host"], entry["port"]
        if type(port) is int and 0 < port < 65536 and _HOST.fullmatch(host):
            return _setup.join_host(host, port)
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    raise NamesError("the metadata server's entry under this name is not an engine's")


def _authorization(host):
    """The header with the token of KVPOOL_TOKEN_FILE. "" where there is none, and for other hosts, because HTTP is not encrypted, unless
    KVPOOL_INSECURE_TOKENS=yes."""
    path = os.environ.get("KVPOOL_TOKEN_FILE")
    is_near = host == "localhost" or host == "::1" or host.startswith("127.")
    if not path or not (is_near or os.environ.get("KVPOOL_INSECURE_TOKENS") == "yes"):
        return ""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_mode & 0o066:
            raise NamesError(f"KVPOOL_TOKEN_FILE: {path}: other users may read it: chmod 600")
        token = file.readline(65).decode("ascii", "replace").strip()
    if not re.fullmatch(r"kvp_[\w-]{43}", token, re.ASCII):
        raise NamesError(f"KVPOOL_TOKEN_FILE: {path}: its first line is not a token (kvp_ and 43 characters)")
    return f"Authorization: Bearer {token}\r\n"


class Names:
    """The names that the server at url knows. NamesError where url is none. Threads may call it as they like."""

    def __init__(self, url):
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as e:
            raise NamesError(f"{shown(url)!r} is no URL: {shown(str(e))}") from None
        if parts.scheme != "http" or not parts.hostname or parts.query or parts.username is not None:
            raise NamesError(f'a metadata server is "http://HOST:PORT/metadata", or "P2PHANDSHAKE" where there is none, not {shown(url)!r}')
        self._at = (parts.hostname, port or 80)
        self._path = quote(parts.path, safe="/%") or "/metadata"
        self._lock = threading.Lock()
        self._found = {}  # name: "HOST:PORT". Guarded by _lock
        self._own = None  # (name, entry)
        self._process = os.getpid()
        self._is_over = threading.Event()
        self._keeper = None

    # ---- the engine's own entry
    def publish(self, name, host, port, is_gone):
        """Takes name for the engine at host:port. NamesError where another one has it, unless is_gone("HOST:PORT") says that nobody is
        there any more, as where it was killed."""
        entry = json.dumps({"host": host, "port": port, "engine": secrets.token_hex(8)}).encode()
        try:
            for _ in range(_TRIES):
                said = self._ask("PUT", name, entry)
                if said.status != _TAKEN:
                    break
                self._make_way(name, _setup.join_host(host, port), is_gone)
        except NamesError:
            self._withdraw(name, entry)  # an answer that was late may have come after the deed
            raise
        self._check(name, said)
        self._own = name, entry
        self._keeper = threading.Thread(target=self._keep, name="kvpool-name", daemon=True)
        self._keeper.start()

    def _make_way(self, name, here, is_gone):
        """Removes the entry of an engine that is gone. here: its place is ours now."""
        said = self._ask("GET", name)
        if said.status == 404:  # it went meanwhile
            return
        self._check(name, said)
        address = _address(said.body)
        if address != here and not is_gone(address):
            raise NamesError(f"another engine has the name {name!r}, at {address}")
        self._remove(name, said.body)

    def _withdraw(self, name, entry):
        """Removes the entry, where it is there and this engine's."""
        try:
            self._remove(name, entry)
        except NamesError as e:
            log.warning("the name %r may stay at the metadata server: %s", name, e)

    def _remove(self, name, entry):
        """Removes that entry, where it is still there, and none that took its place meanwhile: two engines may find one of a third to be
        nobody's at a time, and the slower one would remove the other's. A server that knows no ETag does not keep it from that."""
        said = self._ask("GET", name)
        if (said.status, said.body) == (200, entry):
            self._ask("DELETE", name, tag=said.tag)

    @staticmethod
    def _check(name, said):
        if said.status != 200:
            raise NamesError(f"the metadata server answers {said.status} {said.body[:100]!r} to {name!r}")

    def _keep(self):
        """The entry is back soon after the server has lost it, as one that was restarted has."""
        (name, entry), told = self._own, ""
        while not self._is_over.wait(_REFRESH_S):
            now = ""
            try:
                said = self._ask("GET", name)
                if said.status == 404:
                    self._check(name, self._ask("PUT", name, entry))
                elif said.status == 200 and said.body != entry:
                    now = f"another engine has taken the name {name!r}"
            except NamesError as e:
                now = str(e)
            if now and now != told:
                log.warning("%s", now)
            told = now

    def close(self):
        """Removes the entry, where it is still this engine's. Ends within some seconds whatever the server does."""
        if self._own is None or os.getpid() != self._process:  # a forked child's copy: the entry is its parent's
            return
        self._is_over.set()
        if threading.current_thread() is not self._keeper:  # where the collector came by
            self._keeper.join(2 * _PATIENCE_S)
        (name, entry), self._own = self._own, None
        self._withdraw(name, entry)

    # ---- others'
    def find(self, name):
        """"HOST:PORT" of the engine of that name. NamesError."""
        with self._lock:
            known = self._found.get(name)
        if known is not None:
            return known
        said = self._ask("GET", name)
        if said.status != 200:
            raise NamesError("no engine of that name is known" if said.status == 404 else f"the metadata server answers {said.status}")
        address = _address(said.body)
        with self._lock:
            while len(self._found) >= _CACHED:
                del self._found[next(iter(self._found))]
            self._found[name] = address
        return address

    def forget(self, name):
        """The next find() asks again."""
        with self._lock:
            self._found.pop(name, None)

    # ---- the server
    def _ask(self, method, name, body=b"", tag=""):
        """A _Said. tag: of what a DELETE is to remove, and nothing else."""
        end = time.monotonic() + _PATIENCE_S
        try:
            if not 0 < len(name.encode()) <= _NAME_BYTES:
                raise NamesError(f"an engine's name has 1 to {_NAME_BYTES} bytes")
            head = (f"{method} {self._path}?key={quote(f'kvpool/rpc_meta/{name}', safe='')} HTTP/1.1\r\n"
                    f"Host: {_setup.join_host(*self._at)}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
                    + (f"If-Match: {tag}\r\n" if tag else "") + _authorization(self._at[0]) + "\r\n")
            with socket.create_connection(self._at, _PATIENCE_S) as sock:
                sock.settimeout(max(end - time.monotonic(), 0.001))
                sock.sendall(head.encode() + body)
                with http.client.HTTPResponse(_Answer(sock, end), method=method) as answer:
                    answer.begin()
                    tag = answer.headers.get("ETag", "")
                    return _Said(answer.status, answer.read(), tag if _TAG.fullmatch(tag) else "")
        except (OSError, http.client.HTTPException, ValueError) as e:
            raise NamesError(f"the metadata server at {_setup.join_host(*self._at)}: {e or type(e).__name__}") from None
