# SPDX-License-Identifier: Apache-2.0
"""Pool and what it returns. The extension _kvpool returns numbers; this module makes values and exceptions of them."""
from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Type, TypeVar, Union, cast

from . import _kvpool
from ._typing import Group, Key, Lineage, Memory, Parts, Pin
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
    """An object that keeps the memory in place: its buffer, which cannot be resized or closed meanwhile, or itself."""
    try:
        return memoryview(memory)
    except (TypeError, ValueError):  # DLPack alone; an array of dates, which has no format
        return memory


def _ms(seconds: Optional[float]) -> int:
    """A time in milliseconds. None is the pool's default, which the library takes as 0. ValueError below 0."""
    if seconds is None:
        return 0
    if not seconds >= 0:  # nan, too
        raise ValueError(f"a time is seconds, 0 or more, not {seconds!r}")
    return max(1, round(min(seconds * 1000, _MS_MAX)))


def _of_epoch(epoch: Optional[int]) -> int:
    return 0 if epoch is None else _kvpool.EPOCH


class Reservation:
    """The result of a look-up. The objects stay readable until release(), the end of a `with`, or for ttl seconds.

    found: number of present keys; of a prefix, its length. granted: number of reserved keys; a limit on reservations may
    make it smaller than found. present: for each key whether it is present; None for a prefix. on_ssd: number of reserved
    keys that are only on SSDs, so a get of them takes longer. epoch: the tenant's epoch at the moment of the answer. places:
    None, or for each key a byte with the bits kvpool.PRESENT, ON_SSD (only there) and ON_HOST (in memory of this host); 0
    after the end of a prefix.
    """

    __slots__ = ("_raw", "_ticket", "found", "granted", "ttl", "present", "on_ssd", "epoch", "places")

    def __init__(self, raw: _kvpool.Pool, reservation: Tuple[int, int, int, int, int, int], present: Optional[List[bool]],
                 places: Optional[bytes]) -> None:
        self._raw = raw
        self._ticket, self.found, self.granted, ttl_ms, self.on_ssd, self.epoch = reservation
        self.ttl = ttl_ms / 1000
        self.present = present
        self.places = places

    def release(self) -> None:
        """Ends the reservation. After the end it has no effect."""
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
    """An object's bytes in place, in memory that a node of this host shares. len() is their number, and `memory` gives
    read-only access by the buffer protocol. Nothing is copied, and the object is not evicted while the view exists.

        with pool.view("a") as memory:
            use(memory)

    The bytes are valid only if release() returns without an error; the end of `with` calls it. NotFoundError: the object
    was replaced or removed while it was read. BufferError: a buffer of the view is still in use.
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
        """Ends the view. After the end it has no effect."""
        self.memory.release()
        err = self._raw.release()
        if err:
            raise error(err, self._key)

    def __enter__(self) -> memoryview:
        return self.memory

    def __exit__(self, kind: Optional[Type[BaseException]], *exc: object) -> None:
        if kind is None:
            self.release()
        else:  # the caller's exception matters more, and the bytes that were read do not count
            self.memory.release()
            self._raw.release()


class Pool:
    """A pool of blocks: bytes under keys. A block does not change after its put.

        with kvpool.Pool() as pool:
            pool.put("a", b"block")
            assert pool.get("a") == b"block"

    A key is a str (encoded as UTF-8) or bytes, 1 to 1024 bytes long. A value is a contiguous object with the buffer
    protocol (bytes, numpy arrays) or DLPack (torch tensors; also of a GPU, if registered). Its length is 1 byte to a
    chunk, which is 256 MiB in a pool of large nodes.

    master: "HOST:PORT[,HOST:PORT]", or "etcd://HOST:PORT[;HOST:PORT]", in which the masters are registered. Default:
        $KVPOOL_MASTER, else 127.0.0.1:50051.
    cluster: the cluster's name in etcd. Default: $KVPOOL_CLUSTER, else $MC_STORE_CLUSTER_ID, else kvpool.
    name: the name of this client in logs.
    transports: "shm,rdma,tcp" in the order of preference. Default: all that work here.
    deadline: seconds for calls without their own deadline (5).
    verify: check the sum of every object that is read, on every transport.
    memory: bytes, or text like "4GiB", that this process gives to the pool while the pool is open.
    listen: "HOST:PORT" at which others reach this memory. Default: 127.0.0.1.
    ssd: "DIR:SIZE", or several. Objects that leave the memory are kept there. The next process that opens a pool with the
        same name finds them again, so name is needed.
    ssd_writes: the most bytes a day that are written to the SSDs.
    tenant: a name of at most 128 bytes. Each tenant has its own keys.
    master_wait: seconds that calls wait, all together, for a master that is away or silent. After a wait in vain, later calls
        raise at once until a master is found. Calls with their own deadline wait as long as that. Default:
        $KVPOOL_MASTER_WAIT, else every call waits.

    Epochs. bump() begins a new epoch of the tenant. A call with epoch is for this epoch only: if the tenant has another one,
    it does nothing, and raises or returns an Error with the name "STALE".

    All methods may be called by many threads at once; they release the interpreter's lock. They raise kvpool.Error or one
    of its subclasses (errors.py), with name, number and key.
    After a fork the child has to open its own pool: calls on the parent's pool raise ClosedError.
    """

    def __init__(self, master: Optional[str] = None, *, name: Optional[str] = None, host_id: Optional[str] = None,
                 transports: Optional[str] = None, deadline: Optional[float] = None, verify: bool = False,
                 memory: Union[int, str] = 0, listen: Optional[str] = None, chunk: Union[int, str] = 0, tenant: Optional[str] = None,
                 locations: int = 0, ssd: Union[str, Sequence[str]] = (), ssd_writes: Union[int, str] = 0,
                 cluster: Optional[str] = None, master_wait: Optional[float] = None) -> None:
        if not 0 <= locations < 2**32:
            raise ValueError(f"locations: {locations} does not fit in 32 bits")
        self._raw = _kvpool.Pool()
        self._held: Dict[int, Memory] = {}  # address: object, so that registered memory outlives its registration
        err, detail = self._raw.open(master, name, host_id, transports, _ms(deadline), int(verify), _size(memory), listen,
                                     _size(chunk), tenant, locations, _ms(master_wait), (ssd,) if isinstance(ssd, str) else tuple(ssd),
                                     _size(ssd_writes), cluster)
        if err:
            raise error(err, None, detail)

    def close(self) -> None:
        """Ends the session. Calls of other threads raise ClosedError. The memory that this process gave leaves the pool. After
        the first call it has no effect. BufferError while a buffer of a view is still in use."""
        self._raw.close()
        self._held.clear()

    def unmount_ssd(self, *, deadline: Optional[float] = None) -> None:
        """Takes this process's SSDs out of the pool until the pool is closed. The next process that opens them finds their
        objects again. Without SSDs it has no effect."""
        self._check(self._raw.unmount_ssd(_ms(deadline)))

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- memory
    def register(self, memory: Memory) -> None:
        """Makes memory usable by put_many and get_many, and pins it if an RDMA device is used.

        memory: an object as for put. It is kept alive until unregister or close. InvalidError if it is registered already.
        """
        address, length = _kvpool.memory_of(memory, False)
        held = _held(memory)
        err = self._raw.register(address, length)
        if err:
            why = "it is empty" if length == 0 else "it, or a part of it, is registered already"
            raise error(err, None, why if err == _INVALID else "")
        self._held[address] = held

    def unregister(self, memory: Memory) -> None:
        """Ends register(memory), after the calls that use the memory. InvalidError if it is not registered."""
        address, _ = _kvpool.memory_of(memory, False)
        self._check(self._raw.unregister(address))
        self._held.pop(address, None)

    # ---- one key
    def put(self, key: Key, value: Memory, *, replicas: int = 1, pin: Pin = None, upsert: bool = False, wait: bool = False,
            lineage: Optional[Lineage] = None, epoch: Optional[int] = None, deadline: Optional[float] = None) -> None:
        """Stores value under key. A present key keeps its value, unless upsert is set.

        replicas: number of copies, on different hosts, or on different nodes if there are fewer hosts.
        pin: None, "soft" (evicted last) or "hard" (never evicted).
        wait: with upsert, return when no client can read the old value any more.
        lineage: (sequence, parent, depth), two hashes of 64 bits and a number of 32 bits: the place of the block in a
            sequence of blocks. It is stored with the block.
        epoch: the tenant's epoch, or None for any.
        deadline: seconds.

        If another client is putting the key, the call waits for up to a quarter of a second. Then it raises an Error with
        the name "IN_PROGRESS"; the key may be put again.
        """
        flags = self._put_flags(pin, upsert, wait) | _of_epoch(epoch)
        err = self._raw.put(key, value, _ms(deadline), flags, replicas, (), lineage, epoch or 0)
        if err:
            raise self._put_error(err, key, value)

    def get(self, key: Key, *, fresh: bool = False, epoch: Optional[int] = None, keep_here: bool = False,
            deadline: Optional[float] = None) -> bytes:
        """Returns the value as bytes. NotFoundError. fresh: ask the master, even if the place is known. epoch: as for put, and
        the master is asked. keep_here: as fresh, and the pool makes a copy on a node of this host, if one has room."""
        return self._found(self._raw.get(key, _ms(deadline), self._get_flags(fresh, epoch, keep_here), epoch or 0), key)

    def get_into(self, key: Key, target: Memory, *, fresh: bool = False, epoch: Optional[int] = None, keep_here: bool = False,
                 deadline: Optional[float] = None) -> int:
        """Copies the value into target, a writable object as for put, at least as long. Returns the length in bytes."""
        return self._number(self._raw.get_into(key, target, _ms(deadline), self._get_flags(fresh, epoch, keep_here), epoch or 0), key)

    def view(self, key: Key, *, deadline: Optional[float] = None) -> View:
        """Returns a View of the bytes. kvpool.Error NOTSUP if no copy is in this host's shared memory."""
        return View(self._found(self._raw.view(key, _ms(deadline)), key), key)

    def exists(self, key: Key, *, deadline: Optional[float] = None) -> bool:
        """Returns whether the key is present. A present key is evicted later than others for a while."""
        return bool(self._number(self._raw.exists(key, _ms(deadline)), key))

    def __contains__(self, key: Key) -> bool:
        return self.exists(key)

    def size(self, key: Key, *, deadline: Optional[float] = None) -> int:
        """Returns the length in bytes. NotFoundError."""
        return self._number(self._raw.size(key, _ms(deadline)), key)

    def lineage(self, key: Key, *, deadline: Optional[float] = None) -> Optional[Lineage]:
        """Returns the lineage of its put, or None. NotFoundError. A master that restarted without its log has no lineages."""
        told: Optional[Lineage] = self._found(self._raw.batch_locate([key], _ms(deadline), _kvpool.LINEAGES)[0], key)[3]
        return told

    def remove(self, key: Key, *, force: bool = False, wait: bool = False, deadline: Optional[float] = None) -> None:
        """Removes the key. NotFoundError. HeldError if a reader or a reservation holds the object, unless force is set. wait:
        return when no client can read it any more."""
        err = self._raw.remove(key, _ms(deadline), self._remove_flags(force, wait))
        if err:
            raise self._error(err, key)

    # ---- many keys
    def put_many(self, keys: Sequence[Key], values: Sequence[Parts], *, replicas: int = 1, pin: Pin = None, upsert: bool = False,
                 wait: bool = False, groups: Optional[Sequence[Optional[Group]]] = None,
                 lineages: Optional[Sequence[Optional[Lineage]]] = None, epoch: Optional[int] = None,
                 deadline: Optional[float] = None) -> List[Optional[Error]]:
        """Stores many objects in one call, from registered memory.

        values: for each key an object as for put, or a list of objects, which are its parts in order (as 61 layers).
        groups: for each key None, an id, or (id, members, member). Objects with the same id are evicted together. With members,
            the size of the group, they are also hidden until all are put; member is the number of this one, below members.
        lineages: for each key a lineage as for put, or None.
        epoch: as for put. If it ends meanwhile, the keys of a large call may be stored in part.

        Returns for each key None or an Error.
        """
        flags = self._put_flags(pin, upsert, wait) | _of_epoch(epoch)
        results = self._raw.batch_put(keys, values, None, _ms(deadline), flags, replicas, (), groups, lineages, epoch or 0)
        return [None if r == 0 else self._put_error(r, k, v) for r, k, v in zip(results, keys, values)]

    def get_many(self, keys: Sequence[Key], targets: Sequence[Parts], *, fresh: bool = False, epoch: Optional[int] = None,
                 keep_here: bool = False, deadline: Optional[float] = None) -> List[Union[int, Error]]:
        """Copies many objects into registered memory in one call. targets: as values of put_many, writable. Returns for each
        key the length in bytes or an Error."""
        lengths = self._raw.batch_get(keys, targets, None, _ms(deadline), self._get_flags(fresh, epoch, keep_here), epoch or 0)
        return [n if n >= 0 else self._error(n, k) for n, k in zip(lengths, keys)]

    def exists_many(self, keys: Sequence[Key], *, deadline: Optional[float] = None) -> List[bool]:
        """Returns for each key whether it is present, as exists. The first error is raised."""
        results = self._raw.batch_is_exist(keys, _ms(deadline), 0)
        for key, result in zip(keys, results):
            if result < 0:
                raise self._error(result, key)
        return [bool(r) for r in results]

    def remove_many(self, keys: Sequence[Key], *, force: bool = False, wait: bool = False,
                    deadline: Optional[float] = None) -> List[Optional[Error]]:
        """Removes many keys in one call, as remove. Returns for each key None or an Error."""
        return self._errors(self._raw.batch_remove(keys, _ms(deadline), self._remove_flags(force, wait), 0), keys)

    def longest_prefix(self, keys: Sequence[Key], *, ttl: Optional[float] = None, prefetch: bool = False, groups: bool = False,
                       epoch: Optional[int] = None, places: bool = False, deadline: Optional[float] = None) -> Reservation:
        """Finds how many of the keys are present, from the first key to the first missing one, and reserves them for ttl
        seconds (default and maximum: the pool's lease time). prefetch: objects that are only on SSDs are read into memory
        meanwhile. groups: the keys are ids of groups. epoch: as for put. places: the Reservation has places. Returns a
        Reservation."""
        flags = self._lookup_flags(prefetch, groups, epoch, places)
        reservation, where = self._found(self._raw.longest_prefix(keys, _ms(ttl), _ms(deadline), flags, epoch or 0))
        return Reservation(self._raw, reservation, None, where)

    def lookup(self, keys: Sequence[Key], *, ttl: Optional[float] = None, prefetch: bool = False, groups: bool = False,
               epoch: Optional[int] = None, places: bool = False, deadline: Optional[float] = None) -> Reservation:
        """Finds which of the keys are present, and reserves them; prefetch, groups, epoch and places as in longest_prefix.
        Returns a Reservation with present."""
        flags = self._lookup_flags(prefetch, groups, epoch, places)
        reservation, present, where = self._found(self._raw.lookup(keys, _ms(ttl), _ms(deadline), flags, epoch or 0))
        return Reservation(self._raw, reservation, present, where)

    # ---- the whole
    def remove_matching(self, pattern: str, *, force: bool = False, deadline: Optional[float] = None) -> Tuple[int, int]:
        """Removes the keys in which the regular expression (PCRE2) finds a match. Returns (number removed, number held)."""
        if not isinstance(pattern, str):
            raise TypeError(f"a pattern is a str, not {type(pattern).__name__}")
        return self._found(self._raw.remove_many(pattern, _ms(deadline), _kvpool.FORCE if force else 0))

    def remove_all(self, *, force: bool = False, deadline: Optional[float] = None) -> Tuple[int, int]:
        """Removes all objects of the tenant. Returns (number removed, number held)."""
        return self._found(self._raw.remove_many(None, _ms(deadline), _kvpool.FORCE if force else 0))

    def bump(self, *, epoch: Optional[int] = None, deadline: Optional[float] = None) -> int:
        """Makes all present objects of the tenant unfindable in one step, as needed for new weights. Returns the number of the
        bump, the new epoch, which rises with each bump. epoch: only if the tenant has this epoch."""
        return self._number(self._raw.bump(_ms(deadline), _of_epoch(epoch), epoch or 0))

    def list(self, prefix: Key = b"", *, page: int = 1000, deadline: Optional[float] = None) -> Iterator[Tuple[bytes, int]]:
        """Iterates over (key: bytes, length) of the keys that begin with prefix. It is not a snapshot."""
        cursor = 0
        while True:
            cursor, entries = self._list_page(prefix, cursor, page=page, deadline=deadline)
            yield from entries
            if cursor == 0:
                return

    def _list_page(self, prefix: Key, cursor: int, *, page: int,
                   deadline: Optional[float]) -> Tuple[int, List[Tuple[bytes, int]]]:
        """Returns (cursor of the next page, or 0; entries)."""
        prefix = prefix.encode() if isinstance(prefix, str) else prefix
        return self._found(self._raw.list(prefix, page, cursor, _ms(deadline)))

    def stat(self, *, deadline: Optional[float] = None) -> Dict[str, Any]:
        """Returns figures of the pool and of this client: docs/operations/metrics.md."""
        figures: Dict[str, Any] = json.loads(self._found(self._raw.stat(_ms(deadline))))
        return figures

    def where(self, key: Key, *, deadline: Optional[float] = None) -> Optional[Dict[str, Any]]:
        """Returns where the key's object is: its copies with node, tier and transport, its size, age, pin and group
        (docs/operations/why.md). None if it has no copy: `why` then has the cause."""
        found = self._explain(key, deadline, 0)[0]
        return found if "copies" in found else None

    def why(self, key: Key, *, all_tenants: bool = False, deadline: Optional[float] = None) -> Dict[str, Any]:
        """Returns why the key is not there: the cause ("evicted", "removed", ...; "present" if it is there), a sentence ("text"), what
        helps ("help"), and how long ago. all_tenants: the list "others" has the tenants that have the key, or a trace of it."""
        found, *others = self._explain(key, deadline, _kvpool.ALL_TENANTS if all_tenants else 0)
        return {**found, "others": others} if all_tenants else found

    def _explain(self, key: Key, deadline: Optional[float], flags: int) -> List[Dict[str, Any]]:
        answer: List[Dict[str, Any]] = json.loads(self._found(self._raw.explain(key, _ms(deadline), flags), key))["found"]
        return answer

    # ---- numbers into values
    def _error(self, number: int, key: Optional[Key] = None) -> Error:
        """An error. If no master is reachable, it has the reason."""
        return error(number, key, self._raw.why_unreachable() if number == _UNREACHABLE else "")

    def _put_error(self, number: int, key: Key, value: Parts) -> Error:
        """The error of a put, with a detail if the value is empty."""
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
        """For calls that return an int only if they failed."""
        if isinstance(answer, int):
            raise self._error(answer, key)
        return answer

    def _errors(self, results: List[int], keys: Sequence[Key]) -> List[Optional[Error]]:
        return [None if r == 0 else self._error(r, k) for r, k in zip(results, keys)]

    @staticmethod
    def _remove_flags(force: bool, wait: bool) -> int:
        return (_kvpool.FORCE if force else 0) | (_kvpool.WAIT if wait else 0)

    @staticmethod
    def _get_flags(fresh: bool, epoch: Optional[int], keep_here: bool) -> int:
        return (_kvpool.FRESH if fresh else 0) | (_kvpool.KEEP_HERE if keep_here else 0) | _of_epoch(epoch)

    @staticmethod
    def _lookup_flags(prefetch: bool, groups: bool, epoch: Optional[int], places: bool) -> int:
        return ((_kvpool.PREFETCH if prefetch else 0) | (_kvpool.GROUPS if groups else 0) | _of_epoch(epoch) |
                (_kvpool.PLACES if places else 0))

    @staticmethod
    def _put_flags(pin: Pin, upsert: bool, wait: bool) -> int:
        pins = {None: 0, "soft": _kvpool.PIN_SOFT, "hard": _kvpool.PIN_HARD}
        if pin not in pins:
            raise ValueError(f'pin is None, "soft" or "hard", not {pin!r}')
        return pins[pin] | (_kvpool.UPSERT if upsert else 0) | (_kvpool.WAIT if wait else 0)
