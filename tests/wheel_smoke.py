# SPDX-License-Identifier: Apache-2.0
"""What somebody does first with the wheel: starts its programs and moves some bytes by each of its packages. Run by an interpreter that
has the wheel installed (tests/clean_chroot makes one); needs nothing but the wheel, and takes numpy where it is. Ends with 0 and
one line of what was used, or with a traceback."""
import asyncio
import contextlib
import ctypes
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
from pathlib import Path

import kvpool
from mooncake.engine import TransferEngine
from mooncake.store import MooncakeDistributedStore

try:
    import numpy
except ImportError:
    numpy = None

MIB = 1 << 20
PEER = Path(__file__).parent / "e2e" / "engine_peer.py"
START_S = STOP_S = 60


def check(is_right, what):
    """Unlike assert not left out under -O."""
    if not is_right:
        raise SystemExit(f"wheel_smoke: {what}")


@contextlib.contextmanager
def bounded(process, seconds):
    """Kills the process if the block takes longer, so that nothing is read from it for ever."""
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def daemon(name, *flags):
    """A program of the wheel, by its console script; gives the address at which it listens, and has to end cleanly."""
    process = subprocess.Popen([Path(sys.executable).parent / name, *flags], stdout=subprocess.PIPE, text=True)
    try:
        with bounded(process, START_S):
            ready = process.stdout.readline().split()
        check(ready[:1] == ["ready"], f"{name} is not ready")
        yield dict(word.split("=", 1) for word in ready[1:])["listen"]
        process.send_signal(signal.SIGTERM)
        check(process.wait(STOP_S) == 0, f"{name} ended with {process.returncode}")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def wheel():
    """The wheel is the one installed here, and says no more than it keeps: it links what this system has, and this Python's own ABI."""
    check(Path(kvpool.__file__).is_relative_to(sys.prefix), f"imports {kvpool.__file__}")
    tags = [line.partition(": ")[2] for line in importlib.metadata.distribution("kvpool").read_text("WHEEL").splitlines()
            if line.startswith("Tag: ")]
    abi = "cp" + sysconfig.get_config_var("SOABI").split("-")[1]
    check(tags == [f"cp{sys.version_info[0]}{sys.version_info[1]}-{abi}-{sysconfig.get_platform().replace('-', '_')}"], f"its tags are {tags}")
    return tags[0]


def pool(master, value):
    with kvpool.Pool(master) as here:
        here.put("a", value)
        check(here.get("a") == value, "Pool.get")
        target = bytearray(len(value))
        check(here.get_into("a", target) == len(value) and target == value, "Pool.get_into")
        with here.view("a") as memory:
            check(memory == value, "Pool.view")
        try:
            here.get("absent")
            check(False, "Pool.get of what is not there")
        except kvpool.NotFoundError:
            pass


async def pool_async(master, value):
    keys = [f"b{i}" for i in range(16)]
    async with kvpool.AsyncPool(master) as here:
        await asyncio.gather(*(here.put(key, value) for key in keys))
        check(await asyncio.gather(*(here.get(key) for key in keys)) == [value] * len(keys), "AsyncPool.get")


def store(master, value):
    here = MooncakeDistributedStore()
    check(here.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 * MIB, "tcp", "", master) == 0, "store.setup")
    check(here.get("a") == value, "store.get of what kvpool put")
    check(here.put("c", value) == 0 and here.is_exist("c") == 1, "store.put")
    n = len(value)
    if numpy is None:
        memory = (ctypes.c_char * (2 * n)).from_buffer(bytearray(2 * n))
        at = ctypes.addressof(memory)
    else:
        memory = numpy.zeros(2 * n, numpy.uint8)
        at = memory.ctypes.data
    check(here.register_buffer(at, 2 * n) == 0, "store.register_buffer")
    check(here.get_into("c", at, n) == n, "store.get_into")
    check(here.put_from("d", at, n) == 0 and here.get_into("d", at + n, n) == n, "store.put_from")
    check(bytes(memory) == 2 * value, "what store.get_into brought")
    check(here.unregister_buffer(at) == 0 and here.close() == 0, "store.close")


def engine(value):
    """Writes into the memory of another process, and reads it back."""
    n = len(value)
    here = TransferEngine()
    check(here.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0, "engine.initialize")
    peer = subprocess.Popen([sys.executable, PEER, "127.0.0.1", str(n), "P2PHANDSHAKE"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        with bounded(peer, START_S):
            there = json.loads(peer.stdout.readline())
            name = f"127.0.0.1:{there['port']}"
            source, target = ctypes.create_string_buffer(value, n), ctypes.create_string_buffer(n)
            check(here.transfer_sync_write(name, ctypes.addressof(source), there["address"], n) == 0, "engine.transfer_sync_write")
            print(json.dumps(["bytes", 0, n]), file=peer.stdin, flush=True)
            check(bytes.fromhex(json.loads(peer.stdout.readline())) == value, "what the other process has")
            check(here.transfer_sync_read(name, ctypes.addressof(target), there["address"], n) == 0, "engine.transfer_sync_read")
            check(target.raw == value, "what engine.transfer_sync_read brought")
    finally:
        peer.kill()
        peer.wait()
        peer.stdin.close()
        peer.stdout.close()


def main():
    tag = wheel()
    value = os.urandom(300_001)
    with tempfile.TemporaryDirectory() as home:
        os.environ.update(HOME=home, XDG_STATE_HOME=home, XDG_RUNTIME_DIR=home)
        with daemon("kvpool-master", "--listen", "127.0.0.1:0", "--data-dir", "none") as master, \
                daemon("kvpool-node", "--master", master, "--memory", "64MiB", "--listen", "127.0.0.1:0"):
            pool(master, value)
            asyncio.run(pool_async(master, value))
            store(master, value)
    engine(value)
    print(f"wheel_smoke: right with Python {sys.version.split()[0]}, {tag}, {f'numpy {numpy.__version__}' if numpy else 'no numpy'}")


if __name__ == "__main__":
    main()
