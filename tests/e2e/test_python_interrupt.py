# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in a call that waits for somebody who is stopped: KeyboardInterrupt when the call returns, by its deadline, with nothing that
touches its memory any more; the handle can go on; and another Ctrl-C ends the process as it ends any (stage `python` of tests/run)."""
import os
import signal
import subprocess
import sys
import time

import pytest

from conftest import SLOW, proc_state, wait_until
from test_python_engine import Peer

CHILD = """
import signal, sys, time
import numpy as np
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a script starts in the background inherits that it is ignored
{begin}
{call}  # connections are there
print("ready", flush=True)
sys.stdin.readline()
began = time.monotonic()
print("calling", flush=True)
try:
    {call}
    print("returned", flush=True)
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - began, flush=True)
sys.stdin.readline()
print({again}, flush=True)
sys.stdin.readline()
print("calling", flush=True)
{call}
"""

POOL = "import kvpool; handle = kvpool.Pool({addr!r}{deadline}); handle.put('k', b'x')"
STORE = """
from mooncake.store import MooncakeDistributedStore
handle, target = MooncakeDistributedStore(), np.zeros(8, np.uint8)
assert handle.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", {addr!r}) == 0
assert handle.register_buffer(target.ctypes.data, 8) == 0 == handle.put("k", b"x")

def get_again():
    # after a master was silent, calls answer at once with an error until the background has heard from it
    end = time.monotonic() + 5
    while not (got := handle.get("k")) and time.monotonic() < end:
        time.sleep(0.01)
    return got
"""
ENGINE = """
from mooncake.engine import TransferEngine
handle, target = TransferEngine(), np.zeros(8, np.uint8)
assert handle.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
"""


class Child:
    def __init__(self, begin, call, again, env=None):
        self.process = subprocess.Popen([sys.executable, "-c", CHILD.format(begin=begin, call=call, again=again)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})

    def hear(self, word):
        line = self.process.stdout.readline()
        assert line.startswith(word), line + (self.process.stderr.read() if not line else "")
        return line

    def go(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def ctrl_c(self):
        wait_until(lambda: proc_state(self.process.pid) == "S", 5 * SLOW, "the call to wait")
        self.process.send_signal(signal.SIGINT)

    def run(self, freeze, thaw, most_s, again):
        """Two Ctrl-C in one call; then a call that has its answer; then Ctrl-C again and again."""
        self.hear("ready")
        freeze()
        self.go()
        self.hear("calling")
        for _ in range(2):
            self.ctrl_c()
        took = float(self.hear("interrupted").split()[1])
        thaw()
        self.go()
        self.hear(again)
        freeze()
        self.go()
        self.hear("calling")
        began = time.monotonic()
        while self.process.poll() is None and time.monotonic() < began + 2 * most_s + 10 * SLOW:
            self.process.send_signal(signal.SIGINT)
            time.sleep(0.05)
        assert self.process.poll() in (-signal.SIGINT, 128 + signal.SIGINT), self.process.stderr.read()
        assert "KeyboardInterrupt" in self.process.stderr.read()
        return took

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.mark.parametrize("begin, call, again, deadline_s", [
    (POOL, "'absent' in handle", "handle.get('k')", 5), (POOL, "'absent' in handle", "handle.get('k')", 1),
    (STORE, "handle.get_into('absent', target.ctypes.data, 8)", "get_again()", 5)], ids=["pool", "pool's own deadline", "store"])
@pytest.mark.pool(nodes=1)
def test_a_master_that_is_stopped(pool, begin, call, again, deadline_s):
    """Fails if the call lasts longer than it may: 5 s where nobody said otherwise."""
    child = Child(begin.format(addr=pool.addr, deadline=f", deadline={deadline_s}" if deadline_s != 5 else ""), call, again)
    try:
        took = child.run(pool.master.freeze, pool.master.thaw, deadline_s, "b'x'")
        assert took < deadline_s + 4 * SLOW
    finally:
        pool.master.thaw()
        child.close()


@pytest.mark.parametrize("call, most_s", [
    ("handle.transfer_sync_read({name!r}, target.ctypes.data, {address}, 8)", 5),
    ("handle.get_batch_transfer_status([handle.batch_transfer_async_read({name!r}, [target.ctypes.data], [{address}], [8])])", 1)],
    ids=["transfer", "status"])
def test_a_peer_that_is_stopped(call, most_s):
    """A transfer ends by $MC_TRANSFER_TIMEOUT; who waits for one that was begun is told within a second, and it goes on."""
    env = {"KVPOOL_P2P_TRANSPORTS": "tcp", "MC_TRANSFER_TIMEOUT": "5"}
    peer = Peer(env=env)
    call = call.format(name=peer.name, address=peer.address)
    child = Child(ENGINE, call, f"handle.transfer_sync_read({peer.name!r}, target.ctypes.data, {peer.address}, 8)", env)
    try:
        took = child.run(peer.stop, lambda: peer.process.send_signal(signal.SIGCONT), 5, "0")
        assert took < most_s + 3 * SLOW
    finally:
        child.close()
        peer.kill()
