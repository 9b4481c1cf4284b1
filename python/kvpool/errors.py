# SPDX-License-Identifier: Apache-2.0
"""Errors of a pool. Each has a number, a stable name ("NOT_FOUND"), and the key if one key is concerned."""
from __future__ import annotations

from typing import Dict, Optional, Tuple, Type

from . import _kvpool
from ._typing import Key

_NAMES = {number: name for name, (number, _, _) in _kvpool.errors.items()}
_TEXTS = {number: text for number, _, text in _kvpool.errors.values()}


class Error(Exception):
    """An error of the pool.

    number: negative, as in kvpool.h. name: the name there. key: str, bytes or None. detail: more about the cause, or "".
    """

    def __init__(self, number: int, key: Optional[Key] = None, detail: str = "") -> None:
        self.number = number
        self.name = _NAMES.get(number, "INTERNAL")
        self.key = key
        self.detail = detail
        super().__init__(number, key, detail)

    def __repr__(self) -> str:
        told = [self.name] + [f"{what}={value!r}" for what, value in (("key", self.key), ("detail", self.detail)) if value not in (None, "")]
        return f"{type(self).__name__}({', '.join(told)})"

    def __str__(self) -> str:
        text = f"{self.name}: {_TEXTS.get(self.number, 'unknown error')}"
        if self.key is not None:
            shown = repr(self.key)
            text += f" (key {shown if len(shown) <= 200 else shown[:200] + '...'})"
        return f"{text}: {self.detail}" if self.detail else text


class NotFoundError(Error, KeyError):
    """The key is not present, or its bytes are lost (NOT_FOUND, STALE, NODE_LOST, CORRUPT)."""

    __str__ = Error.__str__


class NoSpaceError(Error):
    """The pool has no space now (NO_SPACE, RETRY_AFTER, EAGAIN), or the master cannot write its log (LOG_FAILED)."""


class HeldError(Error):
    """A reader or a reservation holds the object (HELD)."""


class DeadlineError(Error, TimeoutError):
    """The call's time is over (DEADLINE, CANCELLED)."""


class UnreachableError(Error, ConnectionError):
    """The peer cannot be reached, or refuses this client (UNREACHABLE, DISCONNECTED, BUSY, VERSION, FENCED)."""


class DeniedError(Error, PermissionError):
    """The identity is missing or unknown, has ended, or its role may not do this (DENIED, EXPIRED)."""


class InvalidError(Error, ValueError):
    """An argument is invalid (INVALID, BAD_KEY, TOO_LARGE, BUFFER_SMALL, NOT_REGISTERED, BAD_PATTERN)."""


class ClosedError(Error):
    """The pool was closed, or opened before a fork (CLOSED, FORKED)."""


_CLASSES: Dict[Type[Error], Tuple[str, ...]] = {
    NotFoundError: ("NOT_FOUND", "STALE", "NODE_LOST", "CORRUPT"),
    NoSpaceError: ("NO_SPACE", "RETRY_AFTER", "EAGAIN", "LOG_FAILED"),
    HeldError: ("HELD",),
    DeadlineError: ("DEADLINE", "CANCELLED"),
    UnreachableError: ("UNREACHABLE", "DISCONNECTED", "BUSY", "VERSION", "FENCED"),
    DeniedError: ("DENIED", "EXPIRED"),
    InvalidError: ("INVALID", "BAD_KEY", "TOO_LARGE", "BUFFER_SMALL", "NOT_REGISTERED", "BAD_PATTERN"),
    ClosedError: ("CLOSED", "FORKED"),
}
_CLASS_OF = {_kvpool.errors[name][0]: cls for cls, names in _CLASSES.items() for name in names}


def error(number: int, key: Optional[Key] = None, detail: str = "") -> Error:
    """Returns the error of a number, in its class."""
    return _CLASS_OF.get(number, Error)(number, key, detail)
