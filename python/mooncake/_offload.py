# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
"""Where a node keeps what leaves its memory: a folder of its own below the path that the ranks of a host share.

The folder is the first of rank-0, rank-1, ... that no process has locked. In it are kvpool.tier, which is the SSD tier's, and node.json: the
node's name, by which the pool knows again what is in the tier after a restart with other ports, and the tier's size, which has to stay the
same as long as its content is to be kept."""
import contextlib
import fcntl
import json
import logging
import os
import socket
from pathlib import Path
from secrets import token_hex

from . import _setup
from ._telling import shown

log = logging.getLogger("mooncake.store")

_PREFIX = "MOONCAKE_OFFLOAD_"
_PATH = _PREFIX + "FILE_STORAGE_PATH"
_DEFAULT_PATH = "/data/file_storage"  # the reference's
_LIMITS = (_PREFIX + "TOTAL_SIZE_LIMIT_BYTES", _PREFIX + "BUCKET_MAX_TOTAL_SIZE", "MOONCAKE_BUCKET_MAX_TOTAL_SIZE",
           _PREFIX + "BUCKET_MAX_PHYSICAL_BYTES")
_WATERMARK = _PREFIX + "DISK_EVICTION_HIGH_WATERMARK_RATIO"
_HEEDED = {_PREFIX + "ENABLED", _PATH, _WATERMARK, *_LIMITS}  # the first by mooncake_config
_MEMORIES = 10  # a tier has that many times its node's memory, where nobody says how much
_SHARE = 4  # and of what its file system has free no more than one part of so many
_RANKS = 1024
_FILE_BYTES = 4096
_MIB = 1 << 20
_LEAST = 64 * _MIB
_held: "set[int]" = set()  # descriptors of locks, of this process
_told: "set[str]" = set()


class OffloadError(ValueError):
    """A path, or a variable, by which there can be no SSD tier."""


def _let_go_in_child():
    """A lock is the parent's: it ends with that, however long a child lives."""
    for fd in _held:
        with contextlib.suppress(OSError):
            os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_let_go_in_child)


class Folder:
    """name: the node's. device: what --ssd takes. It is locked until close()."""

    def __init__(self, name, device, lock):
        self.name = name
        self.device = device
        self._lock = lock

    def inherit(self):
        """The program that this process becomes has the lock."""
        os.set_inheritable(self._lock, True)

    def close(self):
        if self._lock in _held:  # else it is another process's
            _held.discard(self._lock)
            os.close(self._lock)

    __del__ = close


def take(path, memory):
    """The Folder of a node with so many bytes of memory. OffloadError, which is one line."""
    base = Path(path or os.environ.get(_PATH) or _DEFAULT_PATH)
    fd = -1
    try:
        folder, fd = _lock_first(base)
        known = _read(folder, fd)
        asked = _asked()
        is_kept = known is not None and known["asked"] == asked and (folder / "kvpool.tier").exists()
        new = {"name": known["name"] if known else f"{socket.gethostname()[:64]}-{token_hex(6)}", "asked": asked,
               "size": known["size"] if is_kept else _size(folder, asked, memory)}
        if new != known:
            _write(fd, new)
    except OSError as e:
        error = OffloadError(f"{shown(str(e.filename or base), 300)}: {e.strerror or e}")
    except ValueError as e:  # also of a path that is none
        error = OffloadError(str(e) if isinstance(e, OffloadError) else f"{shown(str(base), 300)}: {e}")
    else:
        _held.add(fd)
        return Folder(new["name"], f"{folder}:{new['size']}B", fd)
    if fd >= 0:
        os.close(fd)
    raise error


def tell_unused():
    """Logs which variables of the reference's offload are set, and change nothing, once in a process."""
    names = {name for name in os.environ if name.startswith((_PREFIX, "MOONCAKE_OFFSET_", "MOONCAKE_BUCKET_"))} - _HEEDED - _told
    _told.update(names)
    if names:
        log.warning("of no use to an SSD tier, which is one file that is written from its begin to its end, and again: %s",
                    ", ".join(sorted(names)))


def _lock_first(base):
    """The first folder that nobody has, and the lock on it. The path itself is not made: a disk that is not mounted would be one."""
    if not base.is_dir():
        raise OffloadError(f"{shown(str(base), 300)}: this directory does not exist")
    for rank in range(_RANKS):
        folder = base / f"rank-{rank}"
        folder.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(folder / "node.json", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return folder, fd
        except OSError as e:
            os.close(fd)
            if not isinstance(e, BlockingIOError):
                raise
    raise OffloadError(f"{shown(str(base), 300)}: {_RANKS} processes have a folder there")


def _read(folder, fd):
    """What node.json says; None where nothing was written yet."""
    text = os.pread(fd, _FILE_BYTES, 0)
    if not text and not (folder / "kvpool.tier").exists():
        return None
    try:
        known = json.loads(text)
        if isinstance(known["name"], str) and isinstance(known["size"], int) and "asked" in known:
            return known
    except (KeyError, TypeError, ValueError):
        pass
    raise OffloadError(f"{folder}/node.json is damaged: remove {folder}, with all files in it")


def _write(fd, new):
    text = json.dumps(new).encode()
    os.pwrite(fd, text, 0)
    os.ftruncate(fd, len(text))
    os.fsync(fd)


def _asked():
    """The least of the sizes that variables say; None where they say none."""
    sizes = []
    for name in _LIMITS:
        try:
            sizes.append(_setup.parse_size(os.environ.get(name) or 0))
        except (OverflowError, ValueError) as e:
            raise OffloadError(f"{name}: {e}") from None
    return min((size for size in sizes if size > 0), default=None)


def _watermark():
    text = os.environ.get(_WATERMARK) or "0.9"
    with contextlib.suppress(ValueError):
        if 0 < float(text) <= 1:
            return float(text)
    raise OffloadError(f"{_WATERMARK} is over 0 and at most 1, not {shown(text)!r}")


def _size(folder, asked, memory):
    """Of a new tier: what is asked for, where the file system stays below the watermark with it; else half of what is there, so that ranks that
    start later have some, too."""
    disk, old = os.statvfs(folder), 0  # of the file that is there: its space is given back
    with contextlib.suppress(FileNotFoundError):
        old = os.stat(folder / "kvpool.tier").st_blocks * 512
    room = int(_watermark() * disk.f_blocks * disk.f_frsize) - (disk.f_blocks - disk.f_bfree) * disk.f_frsize
    room = min(room, disk.f_bavail * disk.f_frsize) + old
    wanted = asked or max(_MEMORIES * memory, _LEAST)
    share = room // 2 if asked else min(wanted, room // _SHARE)
    size = wanted if asked and asked <= room else max(share, min(room, _LEAST))
    if asked and _LEAST <= size < asked:
        log.warning("%s: %d MiB are asked for, and %d are free below %s: the tier has %d", folder, asked // _MIB, room // _MIB, _WATERMARK,
                    size // _MIB)
    if size < _LEAST:
        raise OffloadError(f"{folder}: an SSD tier has 64 MiB at least; {max(room, 0) // _MIB} MiB are free below {_WATERMARK}"
                           f"{f', and {asked // _MIB} MiB are asked for' if asked else ''}")
    return size // _MIB * _MIB
