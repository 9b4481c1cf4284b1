# SPDX-License-Identifier: Apache-2.0
"""Pool: the pool as Python sees it. What is a number in _kvpool becomes a value or an exception here."""
from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Type, TypeVar, Union, cast

from . import _kvpool
from ._typing import Key, Lineage, Memory, Parts, Pin
from .errors import Error, error

_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40, "KB": 10**3, "MB": 10**6,
          "GB": 10**9, "TB": 10**12}


T = TypeVar("T")
_CLOSED = _kvpool.errors["CLOSED"][0]
_INVALID = _kvpool.errors["INVALID"][0]
_UNREACHABLE = _kvpool.errors["UNREACHABLE"][0]


def _size(value: Union[int, str]) -> int:
    """Bytes: an int, or text like "4GiB"."""
    if isinstance(value, int):
        return value
    text = value.strip()
    digits = text.rstrip("BIKMGTbikmgt ")
    unit = text[len(digits):].strip().upper()
    if unit not in _UNITS or not digits.isdecimal():
        raise ValueError(f"not a size: {value!r} (as in 512MiB)")
    return int(digits) * _UNITS[unit]


_MS_MAX = 2**32 - 1


def _held(memory: Any) -> Any:
    """What keeps memory where it is: its buffer, which cannot be resized or closed meanwhile, or the object."""
    try:
        return memoryview(memory)
    except (TypeError, ValueError):  # DLPack alone; an array of dates, which has no format
        return memory


def _ms(seconds: Optional[float]) -> int:
    """A time in milliseconds; None is the pool's own, which is 0 to the library. ValueError below 0."""
    if seconds is None:
        return 0
    if not seconds >= 0:  # nan, too
        raise ValueError(f"a time is seconds, 0 or more, not {seconds!r}")
    return max(1, round(min(seconds * 1000, _MS_MAX)))


class Reservation:
    """What a look-up found, kept readable until release(), the end of a `with`, or ttl seconds.

    found: how many keys are there (of a prefix: its length). granted: how many of these are reserved, which a bound on
    reservations may cut. present: for each key whether it is there; None for a prefix. on_ssd: how many of those reserved are on SSDs
    alone, so that a get takes longer.
    """

    __slots__ = ("_raw", "_ticket", "found", "granted", "ttl", "present", "on_ssd")

    def __init__(self, raw: _kvpool.Pool, reservation: Tuple[int, int, int, int, int], present: Optional[List[bool]] = None) -> None:
        self._raw = raw
        self._ticket, self.found, self.granted, ttl_ms, self.on_ssd = reservation
        self.ttl = ttl_ms / 1000
        self.present = present

    def release(self) -> None:
        """Ends it. Again, or after its time, does nothing."""
        if self._ticket:
            self._raw.lookup_release(self._ticket, self.found, self.granted)
            self._ticket = 0

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<Reservation found={self.found} granted={self.granted} ttl={self.ttl:g} s>"


class View:
    """An object's bytes where they lie, in memory that a node of this host shares: len(), and read-only memory by the buffer
    protocol through `memory`. Nothing is copied, and it is not evicted meanwhile.

        with pool.view("a") as memory:
            use(memory)

    What was read counts only once release(), which the end of `with` calls, has returned: NotFoundError says that the
    object was replaced or removed meanwhile. BufferError where somebody still has a buffer of it.
    """

    __slots__ = ("_raw", "_key", "memory")

    def __init__(self, raw: _kvpool.View, key: Key) -> None:
        self._raw = raw
        self._key = key
        try:
            self.memory = memoryview(raw)
        except BufferError:  # the pool was closed since
            raise error(_CLOSED, key) from None

    def __len__(self) -> int:
        return len(self._raw)

    def release(self) -> None:
        """Ends it. Again does nothing."""
        self.memory.release()
        err = self._raw.release()
        if err:
            raise error(err, self._key)

    def __enter__(self) -> memoryview:
        return self.memory

    def __exit__(self, kind: Optional[Type[BaseException]], *exc: object) -> None:
        if kind is None:
            self.release()
        else:  # what went wrong comes first, and nothing that was read counts
            self.memory.release()
            self._raw.release()


class Pool:
    """A pool of blocks: bytes under keys, which do not change once they are put.

        with kvpool.Pool() as pool:
            pool.put("a", b"block")
            assert pool.get("a") == b"block"

    Keys are str (taken as UTF-8) or bytes, 1 to 1024 bytes. A value is any object with the buffer protocol (bytes, numpy
    arrays) or DLPack (torch tensors, also a GPU's, if it is registered), contiguous, 1 byte to a chunk (256 MiB in a pool of large nodes).

    master: "HOST:PORT[,HOST:PORT]", or "etcd://HOST:PORT[;HOST:PORT]", which knows the masters of that cluster (default $KVPOOL_CLUSTER, else
    $MC_STORE_CLUSTER_ID, else kvpool); default $KVPOOL_MASTER, else 127.0.0.1:50051.
    name: this client's in logs. transports: "shm,rdma,tcp" in order of preference; default all there are.
    deadline: seconds for a call that gives none (5). verify: check the sum of all that is got, on every transport.
    memory: bytes, or text like "4GiB", that this process gives to the pool while it is open; listen: "HOST:PORT" where others
    reach it (127.0.0.1 by default). ssd: "DIR:SIZE", or several: what leaves that memory is kept there, and found again by the next process
    that opens a pool with that name, which is needed then; ssd_writes: bytes a day that are written there at most. tenant: a name of at most 128 bytes; keys are the tenant's own.

    Any thread may call, many at once; the interpreter's lock is released meanwhile. Raises kvpool.Error or one of its subclasses
    (errors.py): its name, number and key say what and of which.
    A child of fork has to open a pool of its own; calls on its parent's raise ClosedError.
    """

    def __init__(self, master: Optional[str] = None, *, name: Optional[str] = None, host_id: Optional[str] = None,
                 transports: Optional[str] = None, deadline: Optional[float] = None, verify: bool = False,
                 memory: Union[int, str] = 0, listen: Optional[str] = None, chunk: Union[int, str] = 0, tenant: Optional[str] = None,
                 locations: int = 0, ssd: Union[str, Sequence[str]] = (), ssd_writes: Union[int, str] = 0,
                 cluster: Optional[str] = None) -> None:
        if not 0 <= locations < 2**32:
            raise ValueError(f"locations: {locations} does not fit in 32 bits")
        self._raw = _kvpool.Pool()
        self._held: Dict[int, Memory] = {}  # address: object, so that registered memory outlives its registration
        err, detail = self._raw.open(master, name, host_id, transports, _ms(deadline), int(verify), _size(memory), listen,
                                     _size(chunk), tenant, locations, 0, (ssd,) if isinstance(ssd, str) else tuple(ssd),
                                     _size(ssd_writes), cluster)
        if err:
            raise error(err, None, detail)

    def close(self) -> None:
        """Ends the session; calls of other threads raise ClosedError. What it gave to the pool is gone. Again does nothing.
        BufferError while a buffer of a view is still in use, whose memory would go."""
        self._raw.close()
        self._held.clear()

    def unmount_ssd(self, *, deadline: Optional[float] = None) -> None:
        """Takes this process's SSDs out of the pool, until it is closed: what they alone have is found again by the next process that opens
        them. Without any it does nothing."""
        self._check(self._raw.unmount_ssd(_ms(deadline)))

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- memory
    def register(self, memory: Memory) -> None:
        """Makes memory usable by put_many and get_many, and pins it where an RDMA device is used.

        memory: an object as for put. It is kept alive until unregister or close. Not twice: InvalidError.
        """
        address, length = _kvpool.memory_of(memory, False)
        held = _held(memory)
        err = self._raw.register(address, length)
        if err:
            why = "it is empty" if length == 0 else "it, or a part of it, is registered already"
            raise error(err, None, why if err == _INVALID else "")
        self._held[address] = held

    def unregister(self, memory: Memory) -> None:
        """Ends register(memory), after the calls that use it. InvalidError where it is not registered."""
        address, _ = _kvpool.memory_of(memory, False)
        self._check(self._raw.unregister(address))
        self._held.pop(address, None)

    # ---- one key
    def put(self, key: Key, value: Memory, *, replicas: int = 1, pin: Pin = None, upsert: bool = False, wait: bool = False,
            lineage: Optional[Lineage] = None, deadline: Optional[float] = None) -> None:
        """Stores value under key. A key that is there keeps what it has; with upsert it gets the new value.

        replicas: copies on as many hosts, or nodes where hosts are fewer. pin: None, "soft" (evicted last) or "hard" (never evicted). wait: with upsert, until
        nobody can get the old value any more. lineage: (sequence, parent, depth), two hashes of 64 bits and a number of 32: where the
        block stands in a sequence of blocks; kept beside it. deadline: seconds.

        A key that others are putting is waited for, for a quarter of a second in all: then it is an Error whose name is
        "IN_PROGRESS", and may be put again.
        """
        err = self._raw.put(key, value, _ms(deadline), self._put_flags(pin, upsert, wait), replicas, 0, lineage)
        if err:
            raise self._put_error(err, key, value)

    def get(self, key: Key, *, fresh: bool = False, deadline: Optional[float] = None) -> bytes:
        """The value as bytes. NotFoundError. fresh: ask the master, wherever it was before."""
        return self._found(self._raw.get(key, _ms(deadline), _kvpool.FRESH if fresh else 0), key)

    def get_into(self, key: Key, target: Memory, *, fresh: bool = False, deadline: Optional[float] = None) -> int:
        """Copies the value into target, which is an object as for put, writable, at least as long. Returns its length in bytes."""
        return self._number(self._raw.get_into(key, target, _ms(deadline), _kvpool.FRESH if fresh else 0), key)

    def view(self, key: Key, *, deadline: Optional[float] = None) -> View:
        """A View of its bytes. kvpool.Error NOTSUP where no copy lies in this host's shared memory."""
        return View(self._found(self._raw.view(key, _ms(deadline)), key), key)

    def exists(self, key: Key, *, deadline: Optional[float] = None) -> bool:
        """Whether it is there. For a while it is evicted after others then."""
        return bool(self._number(self._raw.exists(key, _ms(deadline)), key))

    def __contains__(self, key: Key) -> bool:
        return self.exists(key)

    def size(self, key: Key, *, deadline: Optional[float] = None) -> int:
        """Its length in bytes. NotFoundError."""
        return self._number(self._raw.size(key, _ms(deadline)), key)

    def lineage(self, key: Key, *, deadline: Optional[float] = None) -> Optional[Lineage]:
        """What it was put with, or None. NotFoundError. A master that was restarted without its log knows none."""
        told: Optional[Lineage] = self._found(self._raw.batch_locate([key], _ms(deadline), _kvpool.LINEAGES)[0], key)[3]
        return told

    def remove(self, key: Key, *, force: bool = False, wait: bool = False, deadline: Optional[float] = None) -> None:
        """Removes it. NotFoundError; HeldError where somebody holds it, unless force. wait: until nobody can get it any more."""
        err = self._raw.remove(key, _ms(deadline), self._remove_flags(force, wait))
        if err:
            raise self._error(err, key)

    # ---- many keys
    def put_many(self, keys: Sequence[Key], values: Sequence[Parts], *, replicas: int = 1, pin: Pin = None, upsert: bool = False,
                 wait: bool = False, groups: Optional[Sequence[Key]] = None,
                 lineages: Optional[Sequence[Optional[Lineage]]] = None,
                 deadline: Optional[float] = None) -> List[Optional[Error]]:
        """Stores many in one call, from registered memory. values: for each key an object as for put, or a list of such, which
        are its parts in order (61 layers are one object). groups: for each key an id; what has the same is evicted together.
        lineages: for each key one as for put, or None.

        Returns a list: None, or the Error of that key.
        """
        flags = self._put_flags(pin, upsert, wait)
        results = self._raw.batch_put(keys, values, None, _ms(deadline), flags, replicas, 0, groups, lineages)
        return [None if r == 0 else self._put_error(r, k, v) for r, k, v in zip(results, keys, values)]

    def get_many(self, keys: Sequence[Key], targets: Sequence[Parts], *, fresh: bool = False,
                 deadline: Optional[float] = None) -> List[Union[int, Error]]:
        """Copies many in one call into registered memory. targets: as values of put_many, writable. Returns a list: the length in
        bytes, or the Error of that key."""
        flags = _kvpool.FRESH if fresh else 0
        lengths = self._raw.batch_get(keys, targets, None, _ms(deadline), flags)
        return [n if n >= 0 else self._error(n, k) for n, k in zip(lengths, keys)]

    def exists_many(self, keys: Sequence[Key], *, deadline: Optional[float] = None) -> List[bool]:
        """For each key whether it is there, as exists. An error of one is raised."""
        results = self._raw.batch_is_exist(keys, _ms(deadline), 0)
        for key, result in zip(keys, results):
            if result < 0:
                raise self._error(result, key)
        return [bool(r) for r in results]

    def remove_many(self, keys: Sequence[Key], *, force: bool = False, wait: bool = False,
                    deadline: Optional[float] = None) -> List[Optional[Error]]:
        """Removes many in one call, as remove. Returns a list: None, or the Error of that key."""
        return self._errors(self._raw.batch_remove(keys, _ms(deadline), self._remove_flags(force, wait), 0), keys)

    def longest_prefix(self, keys: Sequence[Key], *, ttl: Optional[float] = None, prefetch: bool = False,
                       deadline: Optional[float] = None) -> Reservation:
        """How many of the keys, from the first on, are there, and reserves them for ttl seconds (the pool's lease time, which
        is also the most). prefetch: what of it is on SSDs alone is read into memory meanwhile. A Reservation."""
        answer = self._found(self._raw.longest_prefix(keys, _ms(ttl), _ms(deadline), _kvpool.PREFETCH if prefetch else 0))
        return Reservation(self._raw, answer)

    def lookup(self, keys: Sequence[Key], *, ttl: Optional[float] = None, prefetch: bool = False,
               deadline: Optional[float] = None) -> Reservation:
        """Which of the keys are there, and reserves those; prefetch as in longest_prefix. A Reservation, with present."""
        flags = _kvpool.PREFETCH if prefetch else 0
        reservation, present = self._found(self._raw.lookup(keys, _ms(ttl), _ms(deadline), flags))
        return Reservation(self._raw, reservation, present)

    # ---- the whole
    def remove_matching(self, pattern: str, *, force: bool = False, deadline: Optional[float] = None) -> Tuple[int, int]:
        """Removes what the regular expression (PCRE2) finds in its key. Returns (how many went, how many are held)."""
        if not isinstance(pattern, str):
            raise TypeError(f"a pattern is a str, not {type(pattern).__name__}")
        return self._found(self._raw.remove_many(pattern, _ms(deadline), _kvpool.FORCE if force else 0))

    def remove_all(self, *, force: bool = False, deadline: Optional[float] = None) -> Tuple[int, int]:
        """Removes all of the tenant. Returns (how many went, how many are held)."""
        return self._found(self._raw.remove_many(None, _ms(deadline), _kvpool.FORCE if force else 0))

    def bump(self, *, deadline: Optional[float] = None) -> int:
        """Makes all that the tenant has put so far unfindable, in one step: for new weights. Returns the number of
        the bump, which rises with each."""
        return self._number(self._raw.bump(_ms(deadline)))

    def list(self, prefix: Key = b"", *, page: int = 1000, deadline: Optional[float] = None) -> Iterator[Tuple[bytes, int]]:
        """Iterates over (key: bytes, length) of what begins with prefix; no snapshot."""
        cursor = 0
        while True:
            cursor, entries = self._list_page(prefix, cursor, page=page, deadline=deadline)
            yield from entries
            if cursor == 0:
                return

    def _list_page(self, prefix: Key, cursor: int, *, page: int,
                   deadline: Optional[float]) -> Tuple[int, List[Tuple[bytes, int]]]:
        """(where the next page begins or 0, entries)"""
        prefix = prefix.encode() if isinstance(prefix, str) else prefix
        return self._found(self._raw.list(prefix, page, cursor, _ms(deadline)))

    def stat(self, *, deadline: Optional[float] = None) -> Dict[str, Any]:
        """The pool's and this client's figures, as docs/operations/metrics.md has them."""
        figures: Dict[str, Any] = json.loads(self._found(self._raw.stat(_ms(deadline))))
        return figures

    # ---- numbers into values
    def _error(self, number: int, key: Optional[Key] = None) -> Error:
        """An error with the reason, where no master is reached."""
        return error(number, key, self._raw.why_unreachable() if number == _UNREACHABLE else "")

    def _put_error(self, number: int, key: Key, value: Parts) -> Error:
        """The error of a put, which says so where there is nothing in the value."""
        parts = value if isinstance(value, (list, tuple)) else [cast(Memory, value)]
        is_empty = number == _INVALID and not any(_kvpool.memory_of(part, False)[1] for part in parts)
        return error(number, key, "the value is empty, and an object has a byte at least") if is_empty else self._error(number, key)

    def _check(self, err: int) -> None:
        if err:
            raise self._error(err)

    def _number(self, answer: int, key: Optional[Key] = None) -> int:
        if answer < 0:
            raise self._error(answer, key)
        return answer

    def _found(self, answer: Union[int, T], key: Optional[Key] = None) -> T:
        """For calls that answer with an int only where they failed."""
        if isinstance(answer, int):
            raise self._error(answer, key)
        return answer

    def _errors(self, results: List[int], keys: Sequence[Key]) -> List[Optional[Error]]:
        return [None if r == 0 else self._error(r, k) for r, k in zip(results, keys)]

    @staticmethod
    def _remove_flags(force: bool, wait: bool) -> int:
        return (_kvpool.FORCE if force else 0) | (_kvpool.WAIT if wait else 0)

    @staticmethod
    def _put_flags(pin: Pin, upsert: bool, wait: bool) -> int:
        pins = {None: 0, "soft": _kvpool.PIN_SOFT, "hard": _kvpool.PIN_HARD}
        if pin not in pins:
            raise ValueError(f'pin is None, "soft" or "hard", not {pin!r}')
        return pins[pin] | (_kvpool.UPSERT if upsert else 0) | (_kvpool.WAIT if wait else 0)
