# SPDX-License-Identifier: Apache-2.0
"""What tests of mooncake.store share."""
import os
import signal

import numpy as np

from mooncake.store import MooncakeDistributedStore

MIB = 1 << 20


def make(addr, memory=0, of=MooncakeDistributedStore, **kw):
    """A store of the pool at addr."""
    store = of()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", memory, 16 * MIB, "tcp", "", addr, **kw) == 0
    return store


def lasting_child():
    """The number of a child of this process, which is there by now and lives on when this one ends."""
    there, here = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(here, b".")
        signal.alarm(60)
        signal.pause()
    os.read(there, 1)
    return child


class Memory:
    """Registered bytes: `bytes`, an array, at address `at`."""

    def __init__(self, store, size, seed=None):
        self.bytes = np.zeros(size, np.uint8) if seed is None else np.random.default_rng(seed).integers(0, 256, size, np.uint8)
        self.at = self.bytes.ctypes.data
        assert store.register_buffer(self.at, size) == 0

    def part(self, start, size):
        return self.bytes[start:start + size].tobytes()
