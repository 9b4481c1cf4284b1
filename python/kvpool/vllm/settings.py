# SPDX-License-Identifier: Apache-2.0
"""The settings of the connector, `kv_connector_extra_config`. Nothing here knows vLLM."""
from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass, fields
from typing import Any, Dict, Optional

_NAMESPACE = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_CHOICES = {"cost": ("auto", "always", "never"), "save": ("prompt", "all", "none"), "windows": ("tails", "all"),
            "on_mismatch": ("refuse", "no cache")}
POLICY_LINE = '"kv_load_failure_policy": "recompute"'


@dataclass(frozen=True)
class Settings:
    """master, transports, memory: as of kvpool.Pool. memory is given to the pool by the worker of rank 0.
    namespace: the tenant of the blocks. weights_id: part of the fingerprint. verify: check the sum of all that is read.
    lookup_ms, load_ms, handover_ms: the longest wait for a look-up, the hard end of a load, and the longest wait of decode for
    the puts of prefill, in milliseconds. cost, patience: see cost.py. save, save_bytes: which blocks are stored, and how many
    bytes a rank may have on their way to the pool. windows: which blocks of sliding windows are stored. store_tp: the number
    of shards of the heads, 0 = the engine's. on_mismatch: what happens if the fingerprint is another.
    """

    master: Optional[str] = None
    transports: Optional[str] = None
    memory: Any = 0
    namespace: str = ""
    weights_id: str = ""
    verify: bool = True
    lookup_ms: float = 2
    load_ms: float = 5000
    handover_ms: float = 2000
    cost: str = "auto"
    patience: float = 0.1
    save: str = "prompt"
    save_bytes: int = 256 << 20
    windows: str = "tails"
    store_tp: int = 0
    on_mismatch: str = "refuse"
    accept_failed_requests: bool = False


def read(extra: Dict[str, Any], model: str, policy: str) -> Settings:
    """The settings of an engine. model: its name, of which the last part is the default namespace. policy: vLLM's
    kv_load_failure_policy. ValueError says what to change."""
    known = {f.name: f for f in fields(Settings)}
    for name in extra:
        if name not in known:
            raise ValueError(f"kv_connector_extra_config has no setting {name!r}: it has {', '.join(sorted(known))}")
    values = dict(extra)
    values.setdefault("namespace", re.sub(r"[^A-Za-z0-9._-]", "-", model.rstrip("/").rsplit("/", 1)[-1])[:64])
    settings = Settings(**values)
    _check(settings)
    if policy != "recompute" and not settings.accept_failed_requests:
        raise ValueError(f"with kv_load_failure_policy {policy!r} a request fails whose load fails: add {POLICY_LINE} to the "
                         'kv_transfer_config, or "accept_failed_requests": true to the kv_connector_extra_config')
    return settings


def _check(s: Settings) -> None:
    if not isinstance(s.namespace, str) or not _NAMESPACE.match(s.namespace):
        raise ValueError(f"namespace: letters, digits and ._- are allowed, at most 64, not {s.namespace!r}")
    for name, choices in _CHOICES.items():
        if getattr(s, name) not in choices:
            raise ValueError(f"{name}: {' or '.join(repr(c) for c in choices)} is expected, not {getattr(s, name)!r}")
    for name, kind in (("verify", bool), ("accept_failed_requests", bool), ("weights_id", str), ("store_tp", int), ("save_bytes", int)):
        if type(getattr(s, name)) is not kind:
            raise ValueError(f"{name}: {kind.__name__} is expected, not {getattr(s, name)!r}")
    for name in ("master", "transports"):
        if not isinstance(getattr(s, name), (str, type(None))):
            raise ValueError(f"{name}: a text is expected, not {getattr(s, name)!r}")
    for name in ("lookup_ms", "load_ms", "handover_ms", "patience", "save_bytes", "store_tp"):
        value = getattr(s, name)
        most = 2**50 if name == "save_bytes" else 3.6e6  # an hour
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
            raise ValueError(f"{name}: a number from 0 to {most:g} is expected, not {value!r}")


def check_masters(master: Optional[str]) -> None:
    """Refuses an address that no master can have: ValueError. A master that does not answer is no error."""
    text = master or os.environ.get("KVPOOL_MASTER") or "127.0.0.1:50051"
    hosts = text.split("://", 1)[1].split(";") if text.startswith("etcd://") else text.split(",")
    for at in hosts:
        host, colon, port = at.strip().rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"master: HOST:PORT is expected, not {at!r}")
        try:
            socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        except socket.gaierror as e:
            raise ValueError(f"master: {host!r} does not resolve: {e.strerror}") from None
