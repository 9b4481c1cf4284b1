# SPDX-License-Identifier: Apache-2.0
"""mooncake.engine between processes: what connectors call, and peers that are killed, stopped, restarted, or take memory back
(stage `python` of tests/run)."""
import ctypes
import hashlib
import json
import mmap
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import kvpool
import stores
from conftest import own_s, wait_until
from kvpool import _kvpool
from mooncake import _setup
from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode
from test_python_setup import has_ipv6

MIB = 1 << 20
SIZE = 8 * MIB
PEER = Path(__file__).with_name("engine_peer.py")


class Peer:
    """engine_peer.py in a process of its own."""

    def __init__(self, host="127.0.0.1", size=SIZE, env=None, metadata="P2PHANDSHAKE"):
        self.process = subprocess.Popen([sys.executable, PEER, host, str(size), metadata], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, **(env or {})})
        said = json.loads(self.process.stdout.readline())
        self.port, self.address = said["port"], said["address"]
        self.name = f"127.0.0.1:{self.port}"

    def ask(self, *words):
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def bytes(self, offset, length):
        return bytes.fromhex(self.ask("bytes", offset, length))

    def stop(self):
        """SIGSTOP, and waits until every thread has stopped: one may be in the middle of a transfer."""
        self.process.send_signal(signal.SIGSTOP)
        tasks = pathlib.Path(f"/proc/{self.process.pid}/task")
        wait_until(lambda: all((t / "stat").read_text().rpartition(")")[2].split()[0] == "T" for t in tasks.iterdir()), what="it to stop",
                   timeout=5)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def pattern(n, seed):
    return np.random.default_rng(seed).integers(0, 256, n, dtype=np.uint8)


def engine_of(monkeypatch, paths):
    monkeypatch.setenv("KVPOOL_P2P_TRACEABLE", "1")
    monkeypatch.setenv("KVPOOL_P2P_TRANSPORTS", paths)
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    return engine


@pytest.fixture(params=["cma", "tcp"])
def engine(request, monkeypatch):
    """An engine whose peers are reached by that path alone."""
    return engine_of(monkeypatch, request.param)


@pytest.fixture
def peer(engine):
    """After engine: its process has the same path."""
    other = Peer()
    yield other
    other.kill()


def test_write_and_read(engine, peer):
    mine = pattern(SIZE, 1)
    assert engine.register_memory(mine.ctypes.data, SIZE) == 0
    assert engine.transfer_sync_write(peer.name, mine.ctypes.data, peer.address, SIZE) == 0
    assert hashlib.sha256(peer.bytes(0, SIZE)).digest() == hashlib.sha256(mine).digest()
    back = np.zeros(5000, dtype=np.uint8)
    assert engine.transfer_sync_read(peer.name, back.ctypes.data, peer.address + 12345, 5000) == 0
    assert back.tobytes() == mine[12345:17345].tobytes()
    path = os.environ["KVPOOL_P2P_TRANSPORTS"]
    assert engine.get_stat()[f"{path}_bytes"] == SIZE + 5000
    assert engine.get_stat()["connects"] == 1
    assert engine.unregister_memory(mine.ctypes.data) == 0
    assert engine.unregister_memory(mine.ctypes.data) == -3


def test_what_vllm_calls(engine, peer):
    """initialize, get_rpc_port, batch_register_memory, batch_transfer_sync_write from several threads."""
    assert 0 < engine.get_rpc_port() < 65536
    layers = [pattern(MIB, seed) for seed in range(4)]
    assert engine.batch_register_memory([a.ctypes.data for a in layers], [a.nbytes for a in layers]) == 0
    codes = []

    def send(i):
        a, block = layers[i], 4096
        offsets = np.random.default_rng(i).permutation(MIB // block) * block
        codes.append(engine.batch_transfer_sync_write(peer.name, [a.ctypes.data + int(o) for o in offsets],
                                                      [peer.address + i * MIB + int(o) for o in offsets], [block] * len(offsets)))

    threads = [threading.Thread(target=send, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert codes == [0] * 4
    assert peer.bytes(0, 4 * MIB) == b"".join(a.tobytes() for a in layers)
    assert engine.batch_unregister_memory([a.ctypes.data for a in layers]) == 0


def test_what_begins_in_registered_memory_ends_there(engine, peer):
    """Fails if a length that is too large is written over what lies behind the registered memory."""
    mine = np.zeros(4 * MIB, np.uint8)
    here = mine.ctypes.data
    assert peer.ask("fill", 7) == 0 and engine.register_memory(here, MIB) == 0
    for length in (4 * MIB, MIB + 1):
        assert engine.transfer_sync_read(peer.name, here, peer.address, length) == -1
        assert engine.transfer_sync_write(peer.name, here, peer.address, length) == -1
        assert engine.batch_transfer_sync_read(peer.name, [here, here], [peer.address] * 2, [16, length]) == -1
        assert engine.batch_transfer_async_read(peer.name, [here], [peer.address], [length]) == 0
    assert not mine.any() and peer.bytes(0, 4 * MIB) == b"\x07" * (4 * MIB)
    assert engine.register_memory(here + MIB, MIB) == 0
    assert engine.transfer_sync_read(peer.name, here + 5, peer.address, 2 * MIB - 5) == 0
    assert engine.transfer_sync_read(peer.name, here + 3 * MIB, peer.address, 16) == 0  # of nobody
    assert (mine == 7).sum() == 2 * MIB - 5 + 16 and not mine[2 * MIB:3 * MIB].any()


def test_out_of_range_is_refused(engine, peer):
    mine = pattern(8192, 3)
    assert peer.ask("fill", 7) == 0
    here = mine.ctypes.data
    for address in (peer.address + SIZE - 8191, peer.address - 1, peer.address + SIZE, 4096):
        assert engine.transfer_sync_write(peer.name, here, address, 8192) == -1
        assert engine.transfer_sync_read(peer.name, here, address, 8192) == -1
    # One piece of a batch is enough.
    assert engine.batch_transfer_sync_write(peer.name, [here, here], [peer.address, 4096], [16, 16]) == -1
    assert peer.bytes(SIZE - 8192, 8192) == b"\x07" * 8192
    assert engine.transfer_sync_write(peer.name, here, peer.address + SIZE - 8192, 8192) == 0


def test_peer_killed(engine, peer):
    mine = pattern(SIZE, 4)
    assert engine.transfer_sync_write(peer.name, mine.ctypes.data, peer.address, SIZE) == 0
    codes = []
    is_over = threading.Event()

    def load():
        while not is_over.is_set():
            codes.append(engine.transfer_sync_write(peer.name, mine.ctypes.data, peer.address, SIZE))

    thread = threading.Thread(target=load)
    thread.start()
    wait_until(lambda: len(codes) >= 3, what="transfers under way")
    peer.kill()
    wait_until(lambda: codes[-1] == -1, what="the peer's death")
    is_over.set()
    thread.join(timeout=20)
    assert not thread.is_alive()
    started = own_s()
    assert engine.transfer_sync_read(peer.name, mine.ctypes.data, peer.address, SIZE) == -1
    assert own_s() - started < 10


def test_peer_restarted_on_the_same_port(engine, peer):
    mine = pattern(MIB, 5)
    assert engine.transfer_sync_write(peer.name, mine.ctypes.data, peer.address, MIB) == 0
    peer.kill()
    again = Peer(host=f"127.0.0.1:{peer.port}")
    try:
        assert again.port == peer.port
        assert engine.transfer_sync_write(again.name, mine.ctypes.data, again.address, MIB) == 0
        assert engine.batch_transfer_sync_write(again.name, [mine.ctypes.data], [again.address] * 2, [1]) == -1
        assert again.bytes(0, MIB) == mine.tobytes()
    finally:
        again.kill()


@pytest.mark.parametrize("path", ["cma", "tcp"])
def test_peer_stopped(monkeypatch, path):
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", "5")
    engine = engine_of(monkeypatch, path)
    peer = Peer()
    try:
        mine = pattern(SIZE, 6)
        assert engine.transfer_sync_write(peer.name, mine.ctypes.data, peer.address, SIZE) == 0
        peer.stop()
        started, started_own = time.monotonic(), own_s()
        assert engine.transfer_sync_write(peer.name, mine.ctypes.data, peer.address, SIZE) == -1
        batch = engine.transfer_submit_write(peer.name, mine.ctypes.data, peer.address, SIZE)
        assert batch > 0
        assert time.monotonic() - started > 4.5 and own_s() - started_own < 12
        wait_until(lambda: engine.transfer_check_status(batch) == -2, what="the second to be late", timeout=15)
        os.kill(peer.process.pid, signal.SIGCONT)
        mine[:] = pattern(SIZE, 7)
        assert engine.transfer_sync_write(peer.name, mine.ctypes.data, peer.address, SIZE) == 0
        assert peer.bytes(0, SIZE) == mine.tobytes()  # and nothing of those that were late is behind it
        time.sleep(0.3)
        assert peer.bytes(0, SIZE) == mine.tobytes()
    finally:
        peer.kill()


def test_unregister_under_load(engine, peer):
    """What the owner writes after unregister_memory has returned stays."""
    mine = np.full(SIZE, 0x55, dtype=np.uint8)
    counts = {0: 0, -1: 0}
    is_over = threading.Event()

    def load():
        while not is_over.is_set():
            counts[engine.transfer_sync_write(peer.name, mine.ctypes.data, peer.address, SIZE)] += 1

    thread = threading.Thread(target=load)
    thread.start()
    try:
        for _ in range(3):
            done, refused = counts[0], counts[-1]
            wait_until(lambda: counts[0] > done + 1, what="transfers")
            assert peer.ask("unregister") == 0
            assert peer.ask("fill", 1) == 0
            wait_until(lambda: counts[-1] > refused + 2, what="refusals")
            assert peer.ask("is_all", 1)
            assert peer.ask("register") == 0
    finally:
        is_over.set()
        thread.join()


def test_managed_buffers_are_mapped(monkeypatch):
    """One copy by the caller: also to a process that is stopped, and again after another one came to its address."""
    engine = engine_of(monkeypatch, "cma")
    mine = engine.allocate_managed_buffer(SIZE)
    peer = Peer()
    try:
        for seed in (10, 11, 12):
            data = pattern(SIZE, seed).tobytes()
            assert engine.write_bytes_to_buffer(mine, data, SIZE) == 0
            if seed == 11:
                peer.stop()
            if seed == 12:
                peer.kill()
                peer = Peer(host=f"127.0.0.1:{peer.port}")
            before = engine.get_stat()["mapped_bytes"]
            assert engine.transfer_sync_write(peer.name, mine, peer.address, SIZE) == 0
            assert engine.get_stat()["mapped_bytes"] == before + SIZE
            os.kill(peer.process.pid, signal.SIGCONT)
            assert peer.bytes(0, SIZE) == data
        peer.kill()
        assert engine.transfer_sync_write(peer.name, mine, peer.address, SIZE) == -1
    finally:
        peer.kill()
    assert engine.free_managed_buffer(mine, SIZE) == 0


def test_background_transfers(engine, peer):
    mine = pattern(MIB, 8)
    batches = [engine.batch_transfer_async_write(peer.name, [mine.ctypes.data + o], [peer.address + o], [MIB // 4])
               for o in range(0, MIB, MIB // 4)]
    assert all(batches) and len(set(batches)) == 4
    assert engine.get_batch_transfer_status(batches) == 0
    assert peer.bytes(0, MIB) == mine.tobytes()
    bad = engine.batch_transfer_async_read(peer.name, [mine.ctypes.data], [64], [16])
    assert engine.get_batch_transfer_status([bad]) == -1
    batch = engine.transfer_submit_write(peer.name, mine.ctypes.data, peer.address, MIB)
    wait_until(lambda: engine.transfer_check_status(batch) == 1, what="the transfer")
    assert engine.transfer_check_status(batch) == -1  # told once


def test_notes_and_first_address(engine, peer):
    mine = pattern(4096, 9)
    assert engine.get_first_buffer_address(peer.name) == peer.address
    assert engine.send_probe(peer.name) == 0
    note = TransferNotify("request-7", "done")
    assert engine.transfer_sync(peer.name, mine.ctypes.data, peer.address, 4096, TransferOpcode.Write, note) == 0
    assert peer.ask("notifies") == [["request-7", "done"]]
    assert engine.batch_transfer_sync(peer.name, [mine.ctypes.data], [peer.address], [64], TransferOpcode.Read) == 0
    assert peer.ask("notifies") == []
    assert engine.get_notifies() == []


def test_memory_codes(engine):
    mine = np.zeros(4096, dtype=np.uint8)
    address = mine.ctypes.data
    assert engine.register_memory(address, 4096) == 0
    assert engine.register_memory(address + 100, 8) == -7
    assert engine.register_memory(0, 8) == -1 and engine.register_memory(address, 0) == -1
    assert engine.unregister_memory(address + 1) == -3
    assert engine.batch_register_memory([address + 8192, address], [64, 64]) == -7
    assert engine.unregister_memory(address + 8192) == -3  # none of them
    for bad, why in (("x", TypeError), (1.5, TypeError), (None, TypeError), (1 << 70, OverflowError), (-1, OverflowError)):
        with pytest.raises(why):
            engine.batch_register_memory([address + 8192, bad], [64, 64])
        with pytest.raises(why):
            engine.batch_register_memory([address + 8192, address + 16384], [64, bad])
        assert engine.unregister_memory(address + 8192) == -3  # none of them
    assert engine.register_memory(address + 8192, 64) == 0
    with pytest.raises(TypeError):
        engine.batch_unregister_memory([address + 8192, "x"])
    assert engine.batch_unregister_memory([address + 8192]) == 0  # it was all the time
    buffer = engine.allocate_managed_buffer(10000)
    assert buffer != 0
    assert engine.write_bytes_to_buffer(buffer + 5, b"hello", 5) == 0
    assert engine.write_bytes_to_buffer(buffer, b"short", 6) == -1
    assert engine.read_bytes_from_buffer(buffer, 10) == b"\0\0\0\0\0hello"
    assert engine.write_bytes_to_buffer(buffer, "h\u00e9", 3) == 0 and engine.read_bytes_from_buffer(buffer, 3) == b"h\xc3\xa9"
    for address in (None, "1", 1.5):
        with pytest.raises(TypeError):
            engine.write_bytes_to_buffer(address, b"x", 1)
        with pytest.raises(TypeError):
            engine.read_bytes_from_buffer(address, 1)
    assert engine.free_managed_buffer(buffer, 10000) == 0
    assert engine.free_managed_buffer(buffer, 10000) == -1
    assert engine.allocate_managed_buffer(0) == 0
    assert engine.allocate_managed_buffer(1 << 62) == 0


def test_memory_that_is_not_there_is_told(engine):
    """Unmapped since, read-only, or only at its beginning: a code, where it ended the process."""
    page = mmap.PAGESIZE
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes, libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t], [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    at = libc.mmap(None, 2 * page, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    assert engine.write_bytes_to_buffer(at + page - 3, b"abcdef", 6) == 0
    assert libc.munmap(at + page, page) == 0
    assert engine.read_bytes_from_buffer(at + page - 3, 3) == b"abc"
    for start, size in ((at + page, 1), (at + page - 3, 4), (at, 2 * page), (1, 1), ((1 << 64) - 1, 1)):
        assert engine.read_bytes_from_buffer(start, size) == b"", (start, size)
        assert engine.write_bytes_to_buffer(start, bytes(size), size) == -1, (start, size)
    assert libc.mprotect(at, page, mmap.PROT_READ) == 0
    assert engine.write_bytes_to_buffer(at, b"x", 1) == -1 and engine.read_bytes_from_buffer(at, 1) == b"\0"
    assert libc.munmap(at, page) == 0


def test_names_that_are_no_text(engine):
    new = TransferEngine()
    good = ["127.0.0.1", "P2PHANDSHAKE", "tcp", ""]
    for i in range(3):
        for bad in (7, None, b"127.0.0.1"):
            with pytest.raises(TypeError):
                new.initialize(*good[:i], bad, *good[i + 1:])
    assert new.initialize(*good) == 0
    for bad in (7, None, b"127.0.0.1:1"):
        for call in (lambda: engine.transfer_sync_read(bad, 4096, 4096, 1), lambda: engine.transfer_submit_write(bad, 4096, 4096, 1),
                     lambda: engine.send_probe(bad), lambda: engine.get_first_buffer_address(bad)):
            with pytest.raises(TypeError):
                call()


def test_devices_of_an_engine_that_did_not_begin(monkeypatch, caplog):
    """They are not left in the environment; those of others it takes, and says so."""
    monkeypatch.delenv("KVPOOL_P2P_TRANSPORTS", raising=False)
    monkeypatch.setenv("KVPOOL_RDMA_DEVICE", "")  # so that it is undone
    monkeypatch.delenv("KVPOOL_RDMA_DEVICE")
    devices = _setup.Devices()
    monkeypatch.setattr(_setup, "devices", devices)
    new = TransferEngine()
    assert new.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "none_0") == -1 and "RDMA device" in caplog.text
    assert "KVPOOL_RDMA_DEVICE" not in os.environ
    with pytest.raises(kvpool.UnreachableError):  # it gets as far as that; with the wish it has no device
        kvpool.Pool("127.0.0.1:1", deadline=0.5)
    assert devices.take("none_2")
    caplog.clear()
    assert new.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "none_3") == -1
    assert "here none_2 by an earlier call, and not none_3" in caplog.text and os.environ["KVPOOL_RDMA_DEVICE"] == "none_2"
    devices.give()
    assert "KVPOOL_RDMA_DEVICE" not in os.environ
    monkeypatch.setenv("KVPOOL_P2P_TRANSPORTS", "cma,rdma")
    assert new.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == -1  # the library keeps what it was last told
    monkeypatch.delenv("KVPOOL_P2P_TRANSPORTS")
    assert new.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "none_3") == 0 and "KVPOOL_RDMA_DEVICE" not in os.environ


def test_rdma_where_there_is_none(monkeypatch, caplog):
    """SGLang's engines say it where their user said nothing: they go by TCP, with one warning, unless its variable forbids that."""
    monkeypatch.setattr(_setup, "_warned", set())
    monkeypatch.setenv("KVPOOL_P2P_TRANSPORTS", "cma,rdma")
    assert TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == -1
    caplog.clear()
    monkeypatch.delenv("KVPOOL_P2P_TRANSPORTS")
    engines = [TransferEngine(), TransferEngine()]
    assert [one.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") for one in engines] == [0, 0]
    assert [(r.levelname, "KVPOOL_P2P_TRANSPORTS=cma,rdma" in r.getMessage()) for r in caplog.records] == [("WARNING", True)]
    at = engines[0].allocate_managed_buffer(4096)
    there = engines[1].allocate_managed_buffer(4096)
    assert engines[0].write_bytes_to_buffer(at, b"block", 5) == 0
    assert engines[0].transfer_sync_write(f"127.0.0.1:{engines[1].get_rpc_port()}", at, there, 5) == 0
    assert engines[1].read_bytes_from_buffer(there, 5) == b"block"


def test_store_behind_an_engine_that_did_not_begin(pool, monkeypatch):
    """The devices that it was told, and did not find, are no store's that is told none."""
    monkeypatch.delenv("KVPOOL_P2P_TRANSPORTS", raising=False)
    assert TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "none_0") == -1
    stores.make(pool.addr, 16 << 20).close()


def test_an_open_that_fails_ends_no_other():
    """Threads open one endpoint, all but one of them where nobody can listen."""
    for _ in range(200):
        raw, errors = _kvpool.Peer(), []
        start = threading.Barrier(8)

        def open_at(host):
            start.wait()
            errors.append(raw.open(f"{host}:0", "tcp", 0, 0)[0])

        threads = [threading.Thread(target=open_at, args=("127.0.0.1" if i == 0 else "203.0.113.1",)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert errors.count(0) == 1 and raw.port() > 0 and raw.stat()["failed"] == 0
        assert raw.close() == 0


def longest_pause(call):
    """How much of call another thread, which wants the interpreter at every turn, had to wait for it at one time: 0 to 1."""
    worst, is_over, is_running = 0.0, threading.Event(), threading.Event()

    def count():
        nonlocal worst
        last = time.monotonic()
        while not is_over.is_set():
            now = time.monotonic()
            worst = max(worst, now - last)
            last = now
            is_running.set()

    thread = threading.Thread(target=count)
    thread.start()
    is_running.wait()
    begin = time.monotonic()
    call()
    took = time.monotonic() - begin
    is_over.set()
    thread.join()
    return worst / took


@pytest.mark.parametrize("what", ["write", "write of text", "read"])
def test_other_threads_run_while_bytes_are_copied(what):
    """Fails if a copy of many bytes keeps the interpreter's lock: then another thread stands still for most of it."""
    engine, size = TransferEngine(), 128 * MIB
    target = np.ones(size, np.uint8)  # its pages are there
    source = "x" * size if what == "write of text" else bytes(size)
    shares = []

    def write():
        assert engine.write_bytes_to_buffer(target.ctypes.data, source, size) == 0

    def read():
        assert len(engine.read_bytes_from_buffer(target.ctypes.data, size)) == size

    for _ in range(10):  # of several, as the machine may have other things to do
        shares.append(longest_pause(read if what == "read" else write))
        if shares[-1] < 0.35:
            break
    assert shares[-1] < 0.35, shares
    if what != "read":
        assert target[0] == target[-1] == (ord("x") if isinstance(source, str) else 0)


def test_the_rest_of_the_reference_is_there(engine, caplog):
    """Names that its own wheel has, and what they give where there is neither a GPU nor EFA."""
    from mooncake import engine as module
    for name in ("EFA", "HIP", "MNNVL", "MUSA", "INTRA_NVLINK", "CUDA"):
        assert getattr(module, f"SUPPORT_{name}") is False
    assert module.Read is TransferOpcode.Read and TransferEngine.TransferOpcode.Write is module.Write
    new = TransferEngine()
    assert new.get_engine() is None and new.get_engine_ptr() == 0
    assert isinstance(engine.get_engine(), module.InnerTransferEngine)
    assert engine.get_engine_ptr() != 0
    assert engine.warmup_efa_segment("127.0.0.1:1") == 0
    assert engine.transfer_write_on_cuda("127.0.0.1:1", 4096, 4096, 1) == -303
    assert engine.transfer_read_on_cuda("127.0.0.1:1", 4096, 4096, 1, stream_ptr=7) == -303
    assert engine.batch_transfer_write_on_cuda("127.0.0.1:1", [4096], [4096], [1]) == -303
    assert engine.batch_transfer_read_on_cuda("127.0.0.1:1", [4096], [4096], [1], 7) == -303
    assert "GPU" in caplog.text


def test_ipv6_targets(engine):
    """Fails if a peer at an IPv6 address is reached with brackets only: the reference's programs name it "::1:PORT"."""
    if not has_ipv6():
        pytest.skip("no IPv6 here")
    other = Peer("::1")
    try:
        mine = pattern(4096, 11)
        for name in (f"::1:{other.port}", f"[::1]:{other.port}"):
            mine += 1
            assert engine.transfer_sync_write(name, mine.ctypes.data, other.address, 4096) == 0
            assert other.bytes(0, 4096) == mine.tobytes()
            assert engine.get_first_buffer_address(name) == other.address
        assert engine.transfer_sync_write(f"::1:{other.port}:x", mine.ctypes.data, other.address, 4096) == -1
    finally:
        other.kill()


CONNECTOR = "vllm/distributed/kv_transfer/kv_connector/v1"
IMPORT_CONNECTOR = "from mooncake.mooncake_connector_v1 import MooncakeConnector as c; import mooncake.mooncake_connector_v1 as m; " \
                   "print(c.__module__, m.MooncakeConnectorMetadata.__name__)"


@pytest.mark.parametrize("home, content, said", [
    ("mooncake/mooncake_connector", "class MooncakeConnector: pass\nclass MooncakeConnectorMetadata: pass\n", ""),
    ("mooncake_connector", "class MooncakeConnector: pass\nclass MooncakeConnectorMetadata: pass\n", ""),
    ("other", "", "leads to the MooncakeConnector of vLLM"),
    ("mooncake/mooncake_connector", "import of_no_package\n", "No module named 'of_no_package'"),
])
def test_module_of_the_connector(tmp_path, home, content, said):
    """Fails if mooncake.mooncake_connector_v1 does not lead to vLLM's own class at either of its places, or hides why there is none."""
    file = tmp_path / CONNECTOR / f"{home}.py"
    file.parent.mkdir(parents=True)
    for folder in file.relative_to(tmp_path).parents:
        if folder.name:
            (tmp_path / folder / "__init__.py").touch()
    file.write_text(content)
    done = subprocess.run([sys.executable, "-c", IMPORT_CONNECTOR], env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True,
                          text=True, check=False, timeout=60)
    if said:
        assert done.returncode == 1 and said in done.stderr.splitlines()[-1], done.stderr
    else:
        module = f"{CONNECTOR}/{home}".replace("/", ".")
        assert done.returncode == 0 and done.stdout.split() == [module, "MooncakeConnectorMetadata"], done.stderr


def test_initialize_says_what_is_wrong(monkeypatch, caplog):
    monkeypatch.delenv("KVPOOL_P2P_TRANSPORTS", raising=False)
    new = TransferEngine()
    assert new.get_rpc_port() == 0
    assert new.transfer_sync_write("127.0.0.1:1", 1, 1, 1) == -1
    assert new.register_memory(4096, 1) == -1
    assert new.initialize("127.0.0.1", "etcd://127.0.0.1:2379", "tcp", "") == -1
    assert new.initialize("127.0.0.1", "P2PHANDSHAKE", "cxl", "") == -1
    monkeypatch.setenv("KVPOOL_RDMA_DEVICE", "of-no-machine")
    assert new.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == -1
    assert "KVPOOL_P2P_TRANSPORTS" in caplog.text
    assert new.initialize("203.0.113.1", "P2PHANDSHAKE", "tcp", "") == -1  # an address of nobody here
    assert new.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    assert new.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == -1
    taken = TransferEngine()
    assert taken.initialize(f"127.0.0.1:{new.get_rpc_port()}", "P2PHANDSHAKE", "tcp", "") == -1
    # The operator's word goes before an engine's that cannot be told.
    monkeypatch.setenv("KVPOOL_P2P_TRANSPORTS", "tcp")
    assert taken.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == 0


def test_peers_without_copies_between_processes_use_tcp(monkeypatch):
    engine = engine_of(monkeypatch, "cma,tcp")
    peer = Peer(env={"KVPOOL_P2P_TRANSPORTS": "tcp"})
    try:
        mine = pattern(4096, 10)
        assert engine.transfer_sync_write(peer.name, mine.ctypes.data, peer.address, 4096) == 0
        assert peer.bytes(0, 4096) == mine.tobytes()
        assert engine.get_stat()["tcp_bytes"] == 4096
        alone = engine_of(monkeypatch, "cma")
        assert alone.transfer_sync_write(peer.name, mine.ctypes.data, peer.address, 4096) == -1
    finally:
        peer.kill()
