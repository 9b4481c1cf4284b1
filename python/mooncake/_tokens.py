# SPDX-License-Identifier: Apache-2.0
"""Tokens of the HTTP ports of this package's programs, by the rules of kvpool's own daemons: the file that KVPOOL_TOKENS names has the
SHA-256 of each token, its id, role, tenant and end. Any thread."""
import calendar
import hashlib
import logging
import os
import re
import stat
import sys
import threading
import time

_ROLES = ("monitor", "reader", "writer", "admin")  # of clients; each may do what those before it may
_DAEMONS = ("node", "master", "conductor")  # beside them "engine": a writer, whose name is TENANT/NODE
_NAME = re.compile(r"[A-Za-z0-9.\-_~:@+]{1,128}")
_FILE_BYTES = 4 << 20
_TOKENS_MAX = 8192
_QUIET_S = 1  # a file counts when it has not changed for so long, so that no file counts that is half written
_AUDIT_MAX = 50  # lines at once, and a second

log = logging.getLogger("http")
_audit_log = logging.getLogger("audit")


def _row(line):
    """(SHA-256, (id, role, tenant, end in seconds or None)) of a line. ValueError."""
    fields = line.split()
    if len(fields) != 5:
        raise ValueError("a line has five fields: SHA256 ID ROLE NAME END")
    digest, ident, role, name, end = fields
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise ValueError("the first field is not a SHA-256 of 64 lower-case hex digits")
    tenant, slash, node = name.partition("/")
    is_name = _NAME.fullmatch(tenant) and (_NAME.fullmatch(node) if role == "engine" else not slash)
    if role not in (*_ROLES, *_DAEMONS, "engine") or not _NAME.fullmatch(ident) or not is_name:
        raise ValueError("the id, the role or the name is not valid")
    try:
        end_s = None if end == "never" else calendar.timegm(time.strptime(end, "%Y-%m-%dT%H:%M:%SZ"))
    except (ValueError, OverflowError):
        raise ValueError("the end is not a time such as 2027-01-31T12:00:00Z, or never") from None
    return digest, (ident, role, "" if tenant == "default" else tenant, end_s)


def _parse(data):
    rows = {}
    for number, line in enumerate(data.decode("ascii", "replace").split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            digest, who = _row(line)
            if digest in rows or len(rows) == _TOKENS_MAX:
                raise ValueError("the same token twice" if digest in rows else f"more than {_TOKENS_MAX} tokens")
        except ValueError as e:
            raise ValueError(f"line {number}: {e}") from None
        rows[digest] = who
    return rows


class Tokens:
    """The tokens of a file, which is read again when it changes. OSError and ValueError at the start."""

    def __init__(self, path):
        self._path, self._lock = path, threading.Lock()
        self._rows, self._stamp, self._looked = {}, None, 0.0
        self._lines, self._filled, self._missed = _AUDIT_MAX, time.monotonic(), 0
        self._look()

    def _look(self):
        """Reads the file if it has changed. A file that changed in the last second, by its own clock, is left for a later look."""
        self._looked = time.monotonic()
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            is_first, had = self._stamp is None, self._stamp
            state = os.fstat(fd)
            stamp = (state.st_ino, state.st_size, state.st_ctime_ns)
            if stamp == had or (not is_first and 0 <= time.time() - state.st_ctime < _QUIET_S):
                return
            self._stamp = stamp  # after a fault, too: the fault is logged once for each change of the file
            if not stat.S_ISREG(state.st_mode) or state.st_size > _FILE_BYTES:
                raise ValueError(f"not a file of at most {_FILE_BYTES} bytes")
            if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise ValueError("other users may write it: chmod go-w")
            rows = _parse(file.read(_FILE_BYTES + 1))
            if not is_first and os.fstat(fd).st_ctime_ns != state.st_ctime_ns:
                self._stamp = had
                return
            self._rows = rows

    def _find(self, text):
        """(id, role, tenant, None) of a token, or (id, "none", "", why it is refused)."""
        with self._lock:
            if time.monotonic() - self._looked >= _QUIET_S:
                try:
                    self._look()
                except (OSError, ValueError) as e:
                    log.error("the token file is not valid, the tokens read before stay in force: %s file=%s", getattr(e, "strerror", None) or e,
                              self._path)
            found = self._rows.get(hashlib.sha256(text.encode("latin-1", "replace")).hexdigest())
        if found is None:
            return "", "none", "", "the token is unknown, or was deleted"
        ident, role, tenant, end_s = found
        if end_s is not None and end_s <= time.time():
            return ident, "none", "", f"the token {ident} has ended"
        return ident, role, tenant, None

    def refusal(self, method, path, authorization, sender, role):
        """None if the request has a token that covers the role and is of the default tenant, else (401 or 403, the reason), after a line of
        the audit. authorization: the header's value, or None. sender: the peer's address. role "": everybody may ask."""
        if not role:
            return None
        ident, has, tenant, why = "", "none", "", "no token: send the header Authorization: Bearer TOKEN"
        if authorization is not None and authorization[:7].lower() == "bearer ":
            ident, has, tenant, why = self._find(authorization[7:])
        status = 401 if why else 403
        if not why and has in _DAEMONS:
            why = f"a token of the role {has} is not for HTTP"
        elif not why and _ROLES.index("writer" if has == "engine" else has) < _ROLES.index(role):
            why = f"the role {has} may not do this; it needs the role {role}"
        elif not why and tenant and has != "admin" and role != "monitor":
            why = f"this port serves the default tenant, not {tenant}"
        if not why:
            return None
        self._write_audit({"who": ident, "role": has, "tenant": tenant, "from": sender, "what": f"{method} {path[:120]}", "result": str(status),
                           "cause": why})
        return status, why

    def _write_audit(self, pairs):
        with self._lock:
            now = time.monotonic()
            self._lines = min(_AUDIT_MAX, self._lines + _AUDIT_MAX * (now - self._filled))
            self._filled = now
            if self._lines < 1:
                self._missed += 1
                return
            self._lines -= 1
            missed, self._missed = self._missed, 0
        _audit_log.warning("refused", extra={"pairs": {**pairs, "missed": str(missed)}})


def open_tokens(program):
    """The Tokens that the environment names, None without KVPOOL_TOKENS; a file that cannot be used ends the program."""
    path = os.environ.get("KVPOOL_TOKENS")
    try:
        return Tokens(path) if path else None
    except (OSError, ValueError) as e:
        sys.exit(f"{program}: KVPOOL_TOKENS: {path}: {getattr(e, 'strerror', None) or e}")
