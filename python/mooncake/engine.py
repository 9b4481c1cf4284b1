# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
"""mooncake.engine over a kvpool's endpoints: transfers between the memory of processes, with the reference's names and codes.

Calls return 0 (or a port, an address, an id) on success. Arguments of a wrong type raise TypeError. initialize and transfers
return -1 after any error, and the log has the reason (for repeated failures of transfers once a second). Memory calls return
-1 invalid, -3 not registered, -7 overlaps registered memory, -302 no memory, -303 not possible.

Names. With "P2PHANDSHAKE" a peer's name is its HOST:PORT. With an HTTP metadata server ("http://HOST:PORT/metadata") it is
the local_hostname of the peer's initialize. The place of an engine is asked for once, and again after the engine could not be
reached. A second engine cannot take the name of a living one: -1, as in the reference. The name of a killed engine, at whose
place no engine answers, can be taken. The entries are this package's own: engines of the reference do not see them.

Differences to the reference:
- There are no other metadata servers.
- Both protocols copy between processes of one host if the system allows it. Between hosts "tcp" uses TCP, and "rdma" only
  RDMA. On a host without a device "rdma" means "tcp", and the log says so; but if devices are named, or
  $KVPOOL_P2P_TRANSPORTS is "cma,rdma", initialize fails there.
- device_name chooses devices; $KVPOOL_RDMA_DEVICE overrides it. $KVPOOL_P2P_TRANSPORTS (a list of cma, rdma, tcp; the first
  that reaches a peer is used) overrides the protocol, for engines that cannot be configured.
- Bytes that came over TCP are verified.
- GPU memory is moved through pinned host memory, and waits for no stream: SUPPORT_CUDA is False, and the calls with a stream
  return -303 and begin nothing.
- A transfer may use local memory that is not registered, as in the reference. It reads or writes the given number of bytes at
  the given address; -1 if there is no memory. If it begins in registered memory, it must end in memory registered without a
  gap; otherwise -1, and nothing moves. (The reference writes beyond the end.)
- get_engine() returns the class under this module, not the reference's. get_engine_ptr() is the address of a kvpool_p2p_t.
"""
from __future__ import annotations

import logging
import operator
import os
import weakref
from enum import IntEnum
from typing import Dict, List, NamedTuple, Optional, Sequence

from kvpool import _kvpool

from . import _setup
from ._names import Names, NamesError
from ._telling import Teller, shown

__all__ = ["InnerTransferEngine", "Read", "TransferEngine", "TransferNotify", "TransferOpcode", "Write"]

log = logging.getLogger("mooncake.engine")

SUPPORT_CUDA = SUPPORT_EFA = SUPPORT_HIP = SUPPORT_INTRA_NVLINK = SUPPORT_MNNVL = SUPPORT_MUSA = False
InnerTransferEngine = _kvpool.Peer

_FAILED = -1
_NOT_IMPLEMENTED = -303
_NUMBER = {name: entry[0] for name, entry in _kvpool.errors.items()}
_TEXT = {entry[0]: entry[2] for entry in _kvpool.errors.values()}
_MEMORY_CODES = {_NUMBER["NOT_REGISTERED"]: -3, _NUMBER["INVALID"]: -7, _NUMBER["NOMEM"]: -302, _NUMBER["NOTSUP"]: _NOT_IMPLEMENTED}
# After these a peer may be at another place; NOT_REGISTERED: another engine is at its old place.
_LOST = frozenset(_NUMBER[name] for name in ("UNREACHABLE", "DISCONNECTED", "DEADLINE", "VERSION", "PROTO", "NOT_REGISTERED"))
# After these no engine listens at the place. A silent engine may be stopped, and continue later.
_GONE = frozenset(_NUMBER[name] for name in ("UNREACHABLE", "DISCONNECTED", "VERSION", "PROTO"))
_PROBE_MS = 5000
_MET_MOST = 4096
_MEET_MS = 1000
_POLL_MS = 1000  # of get_batch_transfer_status, between looks at signals


class TransferOpcode(IntEnum):
    Read = 0
    Write = 1


_TransferOpcode = TransferOpcode  # which TransferEngine has by the same name
Read, Write = TransferOpcode.Read, TransferOpcode.Write


class TransferNotify(NamedTuple):
    name: str
    msg: str


def _transports(protocol):
    """The transports of a protocol, or None."""
    return os.environ.get("KVPOOL_P2P_TRANSPORTS") or {"tcp": "cma,tcp", "rdma": "cma,rdma"}.get(protocol.lower())


def _name(word):
    if not isinstance(word, str):
        raise TypeError(f"a host, a server, a protocol and a peer are named by a str, not {type(word).__name__}")


def _deadline_ms(lengths=()):
    """$MC_TRANSFER_TIMEOUT in seconds (30), at least 5, and one more nanosecond for each byte."""
    text = os.environ.get("MC_TRANSFER_TIMEOUT", "")
    seconds = max(5, min(int(text), 86400)) if text.isdecimal() else 30
    return min(seconds * 1000 + sum(lengths) // 10**6, 2**32 - 1)


class TransferEngine:
    """An endpoint. Any thread may call it; no call holds the interpreter's lock while it waits."""

    TransferOpcode = _TransferOpcode

    def __init__(self) -> None:
        self._raw = _kvpool.Peer()
        self._teller = Teller(log)
        self._is_open = False
        self._names = None  # with a metadata server
        self._targets = {}  # id of a transfer under way: name of its peer
        self._met = set()  # names of peers that have answered, and were not lost after that
        self._farewell = None

    def __del__(self) -> None:
        if self._farewell is not None:
            self._farewell()
        self._raw.close()

    # ---- life
    def initialize(self, local_hostname: str, metadata_server: str, protocol: str, device_name: str) -> int:
        """Listens at local_hostname, "HOST" (any free port: get_rpc_port) or "HOST:PORT", and publishes the address at the
        metadata server, if one is named. Returns 0 or -1."""
        for word in (local_hostname, metadata_server, protocol):
            _name(word)
        host, port = _setup.split_host(local_hostname)
        names = None
        if metadata_server != "P2PHANDSHAKE":
            try:
                names = Names(metadata_server)
            except NamesError as e:
                return self._fail("initialize", e)
            if host in ("", "0.0.0.0", "::"):
                return self._fail("initialize", f"with a metadata server, local_hostname is an address that peers can connect to, not {shown(local_hostname)!r}")
        transports = _transports(protocol)
        if transports is None:
            return self._fail("initialize", f'the protocol is "tcp" or "rdma", not {shown(protocol)!r}')
        has_devices = bool(device_name) and "rdma" in transports.split(",") and self._takes(device_name)
        code = _FAILED
        try:
            code = self._begin(local_hostname, host, port, protocol, transports, names)
        finally:
            if has_devices and code != 0:
                _setup.devices.give()  # not left in the environment of this process
        return code

    @staticmethod
    def _takes(device_name):
        """Makes these the devices of the process. If it has others already, the engine uses those. Returns whether it could."""
        is_taken = _setup.devices.take(device_name)
        if not is_taken:
            log.warning("initialize: a process uses one set of RDMA devices, here %s by an earlier call, and not %s", _setup.devices,
                        device_name)
        return is_taken

    def _begin(self, local_hostname, host, port, protocol, transports, names):
        flags = _kvpool.P2P_TRACEABLE if os.environ.get("KVPOOL_P2P_TRACEABLE") == "1" else 0
        err, detail = self._raw.open(_setup.join_host(host, port), transports, _deadline_ms(), flags)
        if err == _NUMBER["NOTSUP"] and protocol.lower() == "rdma":
            if _setup.may_do_without_rdma(log, "KVPOOL_P2P_TRANSPORTS", transports, detail):
                err, detail = self._raw.open(_setup.join_host(host, port), _transports("tcp"), _deadline_ms(), flags)
            else:
                detail += '; use the protocol "tcp", or set KVPOOL_P2P_TRANSPORTS=cma,tcp'
        if err != 0:
            return self._fail("initialize", detail or _TEXT[err])
        if names is not None:
            try:
                names.publish(local_hostname, host, self._raw.port(), lambda at: self._raw.first_range(at, _PROBE_MS)[0] in _GONE)
            except NamesError as e:
                self._raw.close()
                self._raw = _kvpool.Peer()
                return self._fail("initialize", e)
            self._names, self._farewell = names, weakref.finalize(self, names.close)
        self._is_open = True
        return 0

    def initialize_ext(self, local_hostname: str, metadata_server: str, protocol: str, device_name: str, metadata_type: str) -> int:
        """As initialize. If metadata_server has no scheme, metadata_type is the scheme."""
        if metadata_server != "P2PHANDSHAKE" and "://" not in metadata_server:
            metadata_server = f"{metadata_type}://{metadata_server}"
        return self.initialize(local_hostname, metadata_server, protocol, device_name)

    def get_rpc_port(self) -> int:
        return self._raw.port()

    def get_engine(self) -> Optional[InnerTransferEngine]:
        """The engine for other modules of this package; None until it is initialized."""
        return self._raw if self._is_open else None

    def get_engine_ptr(self) -> int:
        """The address of its kvpool_p2p_t, for code in C, as long as this object lives; 0 until it is initialized."""
        return self._raw.pointer()

    def get_local_topology(self, device_name: Optional[str] = None) -> str:
        """JSON: no adapters are used."""
        return "{}"

    # ---- memory
    def register_memory(self, buffer_addr: int, capacity: int, location: str = "*") -> int:
        if not self._is_open or buffer_addr == 0 or capacity == 0:
            return _FAILED
        return self._memory_code(self._raw.register(buffer_addr, capacity)[0])

    def unregister_memory(self, buffer_addr: int) -> int:
        return self._memory_code(self._raw.unregister(buffer_addr)) if self._is_open else _FAILED

    def batch_register_memory(self, buffer_addresses: Sequence[int], capacities: Sequence[int], location: str = "*") -> int:
        """Registers all or none, also if an address or a length is invalid (TypeError, OverflowError)."""
        if len(buffer_addresses) != len(capacities):
            return _FAILED
        done = []
        try:
            for addr, capacity in zip(buffer_addresses, capacities):
                code = self.register_memory(addr, capacity, location)
                if code != 0:
                    return code
                done.append(addr)
            return 0
        finally:
            if len(done) < len(buffer_addresses):
                for addr in done:
                    self.unregister_memory(addr)

    def batch_unregister_memory(self, buffer_addresses: Sequence[int]) -> int:
        """Unregisters all that are registered, and returns the first code that is not 0. TypeError, and no effect, if one is not
        an address."""
        codes = [self.unregister_memory(addr) for addr in [operator.index(addr) for addr in buffer_addresses]]
        return next((code for code in codes if code != 0), 0)

    def allocate_managed_buffer(self, length: int) -> int:
        """Returns the address of new memory, zeroed and registered; 0 if there is none. Peers of this host map it. It is freed with
        the engine."""
        if not self._is_open or length <= 0:
            return 0
        try:
            return self._raw.alloc(length)[1]
        except OverflowError:
            return 0

    def free_managed_buffer(self, buffer_addr: int, length: int) -> int:
        return 0 if self._is_open and self._raw.dealloc(buffer_addr) == 0 else _FAILED

    def write_bytes_to_buffer(self, dest_address: int, src_ptr: bytes, length: int) -> int:
        """Copies the first length bytes of src_ptr (str, or an object with the buffer protocol) to an address of this process. -1
        if it has fewer, or if the memory cannot be written (then some bytes may be written)."""
        dest_address, length = operator.index(dest_address), operator.index(length)
        if dest_address <= 0 or length < 0:
            return _FAILED
        return 0 if _kvpool.write_bytes(dest_address, src_ptr, length, True) else _FAILED

    def read_bytes_from_buffer(self, source_address: int, length: int) -> bytes:
        """Returns b"" also if the memory does not exist, or not all of it."""
        source_address, length = operator.index(source_address), operator.index(length)
        return _kvpool.read_bytes(source_address, length, True) or b"" if source_address > 0 and length >= 0 else b""

    # ---- transfers
    def transfer_sync_write(self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int,
                            transport_hint: str = "") -> int:
        return self._sync(target_hostname, TransferOpcode.Write, [buffer], [peer_buffer_address], [length])

    def transfer_sync_read(self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = "") -> int:
        return self._sync(target_hostname, TransferOpcode.Read, [buffer], [peer_buffer_address], [length])

    def transfer_sync(self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, opcode: _TransferOpcode,
                      notify: Optional[TransferNotify] = None, transport_hint: str = "") -> int:
        return self._sync(target_hostname, opcode, [buffer], [peer_buffer_address], [length], notify)

    def batch_transfer_sync_write(self, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int],
                                  lengths: Sequence[int], transport_hint: str = "") -> int:
        return self._sync(target_hostname, TransferOpcode.Write, buffers, peer_buffer_addresses, lengths)

    def batch_transfer_sync_read(self, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int],
                                 lengths: Sequence[int], transport_hint: str = "") -> int:
        return self._sync(target_hostname, TransferOpcode.Read, buffers, peer_buffer_addresses, lengths)

    def batch_transfer_sync(self, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int],
                            lengths: Sequence[int], opcode: _TransferOpcode, notify: Optional[TransferNotify] = None,
                            transport_hint: str = "") -> int:
        return self._sync(target_hostname, opcode, buffers, peer_buffer_addresses, lengths, notify)

    def batch_transfer_async_write(self, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int],
                                   lengths: Sequence[int], transport_hint: str = "") -> int:
        return self._submit(target_hostname, TransferOpcode.Write, buffers, peer_buffer_addresses, lengths)

    def batch_transfer_async_read(self, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int],
                                  lengths: Sequence[int], transport_hint: str = "") -> int:
        return self._submit(target_hostname, TransferOpcode.Read, buffers, peer_buffer_addresses, lengths)

    def batch_transfer_async(self, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int],
                             lengths: Sequence[int], opcode: _TransferOpcode, transport_hint: str = "") -> int:
        return self._submit(target_hostname, opcode, buffers, peer_buffer_addresses, lengths)

    def transfer_submit_write(self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int,
                              transport_hint: str = "") -> int:
        """Returns an id for transfer_check_status; 0 if no transfer was begun."""
        return self.batch_transfer_async_write(target_hostname, [buffer], [peer_buffer_address], [length])

    def transfer_check_status(self, batch_id: int) -> int:
        """Returns 1 done, 0 under way, -1 failed, -2 deadline exceeded. The end of a transfer is returned once."""
        if not self._is_open or batch_id <= 0:
            return _FAILED
        err, result = self._poll(batch_id, 0)
        if err == _NUMBER["EAGAIN"]:
            return 0
        if err == 0 and result == _NUMBER["DEADLINE"]:
            return -2
        return 1 if err == 0 and result == 0 else _FAILED

    # With a CUDA stream: transfers follow no stream's order, so these calls only report that.
    def transfer_write_on_cuda(self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, stream_ptr: int = 0) -> int:
        return self._no_streams()

    def transfer_read_on_cuda(self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, stream_ptr: int = 0) -> int:
        return self._no_streams()

    def batch_transfer_write_on_cuda(self, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int],
                                     lengths: Sequence[int], stream_ptr: int = 0) -> int:
        return self._no_streams()

    def batch_transfer_read_on_cuda(self, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int],
                                    lengths: Sequence[int], stream_ptr: int = 0) -> int:
        return self._no_streams()

    def get_batch_transfer_status(self, batch_ids: Sequence[int]) -> int:
        """Waits for all of them. Returns 0, or -1 if one failed."""
        if not self._is_open:
            return _FAILED
        code = 0
        for batch_id in batch_ids:
            err, result = _NUMBER["EAGAIN"], 0
            while err == _NUMBER["EAGAIN"]:
                err, result = self._poll(batch_id, _POLL_MS)
            if err != 0 or result != 0:
                code = self._fail_again(("batch", err or result), f"batch {batch_id}", _TEXT[err or result])
        return code

    # ---- peers
    def get_first_buffer_address(self, segment_name: str) -> int:
        """Returns the lowest address that the peer has registered; 0 if there is none."""
        return self._first_range(segment_name)[1] if self._is_open else 0

    def send_probe(self, peer_server_name: str) -> int:
        """Returns 0 if the peer answers."""
        if not self._is_open:
            return _FAILED
        return 0 if self._first_range(peer_server_name)[0] in (0, _NUMBER["NOT_REGISTERED"]) else _FAILED

    def warmup_efa_segment(self, segment_name: str) -> int:
        """Returns 0: without an EFA adapter there is nothing to prepare, as in the reference."""
        return 0

    def get_notifies(self) -> List[TransferNotify]:
        """Returns the messages that came since the last call."""
        notes = []
        while self._is_open:
            note = self._raw.take_notify()
            if note is None:
                break
            notes.append(TransferNotify(*note))
        return notes

    def get_stat(self) -> Dict[str, int]:
        """Returns transfers and bytes of this engine by path. (Not in the reference.)"""
        return self._raw.stat() if self._is_open else {}

    # ---- inside
    @staticmethod
    def _fail(what, why):
        log.error("%s: %s", what, why)
        return _FAILED

    def _fail_again(self, kind, what, why):
        """For calls that programs repeat often, also after failures: logs at a limited rate."""
        self._teller.error(kind, "%s: %s", what, why)
        return _FAILED

    def _fail_transfer(self, target, err):
        return self._fail_again(("transfer", err), f"transfer with {shown(target)}", _TEXT[err])

    def _fail_lists(self, target):
        _name(target)
        return self._fail_again("lists", f"transfer with {shown(target)}", "the lists are not of one length")

    def _no_streams(self):
        self._fail_again("stream", "transfer on a stream", "memory of a GPU is moved in no stream's order: synchronize, and transfer it without one")
        return _NOT_IMPLEMENTED

    @staticmethod
    def _memory_code(err):
        return _MEMORY_CODES.get(err, _FAILED) if err != 0 else 0

    def _sync(self, target, opcode, buffers, addresses, lengths, notify=None):
        if not self._is_open:
            return _FAILED
        if not len(buffers) == len(addresses) == len(lengths):
            return self._fail_lists(target)
        address = self._find(target)
        if address is None:
            return _FAILED
        err = self._raw.transfer(address, int(opcode), buffers, addresses, lengths, _deadline_ms(lengths))
        if err == 0 and notify is not None:
            err = self._raw.notify(address, notify.name, notify.msg, 0)
        self._note(target, err)
        return 0 if err == 0 else self._fail_transfer(target, err)

    def _submit(self, target, opcode, buffers, addresses, lengths):
        if not self._is_open:
            return 0
        if not len(buffers) == len(addresses) == len(lengths):
            self._fail_lists(target)
            return 0
        address = self._meet(target)
        if address is None:
            return 0
        err, batch_id = self._raw.submit(address, int(opcode), buffers, addresses, lengths, _deadline_ms(lengths))
        if err != 0:
            self._fail_transfer(target, err)
        elif self._names is not None:
            self._targets[batch_id] = target
        return batch_id

    def _meet(self, target):
        """As _find, and None also for a new peer that does not answer, so that the failure is returned at once."""
        address = self._find(target)
        if address is None or target in self._met:
            return address
        err = self._raw.first_range(address, _MEET_MS)[0]
        self._note(target, err)
        if err in _GONE:
            self._fail_transfer(target, err)
            return None
        if err in (0, _NUMBER["NOT_REGISTERED"]):
            if len(self._met) >= _MET_MOST:
                self._met.clear()
            self._met.add(target)
        return address

    # ---- names
    def _find(self, target):
        """"HOST:PORT" of the peer with the name, or None after a line in the log. TypeError for an invalid name."""
        _name(target)
        if self._names is None:
            return _setup.with_brackets(target)
        try:
            return self._names.find(target)
        except NamesError as e:
            self._fail_again("peer", f"peer {shown(target)}", e)
            return None

    def _note(self, target, err):
        """Notes the result of a call that has ended: the place of an unreachable peer is asked for again the next time."""
        if err in _LOST:
            self._met.discard(target)
            if self._names is not None:
                self._names.forget(target)

    def _poll(self, batch_id, timeout_ms):
        err, result = self._raw.poll(batch_id, timeout_ms)
        if err != _NUMBER["EAGAIN"] and self._names is not None:
            self._note(self._targets.pop(batch_id, ""), result)
        return err, result

    def _first_range(self, target):
        address = self._find(target)
        if address is None:
            return _FAILED, 0
        found = self._raw.first_range(address, 0)
        self._note(target, found[0])
        return found
