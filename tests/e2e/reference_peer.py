# SPDX-License-Identifier: Apache-2.0
"""A pool under one `mooncake.store`, ours or the reference's, for test_python_reference.py: a master and clients that evaluate
expressions. Runs in the interpreter that has the wheel, in a network namespace of its own, whose loopback it brings up: the
reference listens on all addresses whatever it is told, and here nobody else is reached or in the way.

argv: JSON {"master": [words], "clients": n, "memory": bytes of each}. Then a line in is [client, expression], client -1 being a
fresh process for that expression alone, whose store was not set up; a line out is its outcome (see Client.outcome). Ends with its
input, or with whoever started it.
"""
import array
import ctypes
import json
import socket
import struct
import subprocess
import sys
import time
import zlib

from reference_process import Process, answer, data, die_with_parent, digest, evaluate, loopback_up

sys.modules["torch"] = None  # neither side is to find one: whether a machine has it must not decide what is compared
from mooncake import store as module  # noqa: E402

MASTER = ("127.0.0.1", 50051)
MEMORY_BYTES = 256 << 10  # registered, of each client
READY_S = 30
LOCAL_BYTES = 16 << 20


def config(**fields):
    made = module.ReplicateConfig()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def pieces(length, places, sizes):
    """So many bytes, from one buffer or several."""
    if isinstance(places, int):
        places, sizes = [places], [sizes]
    return b"".join(ctypes.string_at(at, size) for at, size in zip(places, sizes))[:length]


def plain_of_store(value):
    """What only this module has; else None."""
    if isinstance(value, module.BufferHandle):
        return {"BufferHandle": digest(bytes(value))}
    if isinstance(value, module.ReplicaDescriptor):
        size = value.get_memory_descriptor().buffer_descriptor.size
        return {"replica": [value.status.name, value.is_memory_replica(), value.is_disk_replica(), size]}
    return None


class Client:
    """A store, a registered buffer at A, and one at C that is not."""

    def __init__(self, number):
        self.store = module.MooncakeDistributedStore()
        self.memory, other = (ctypes.create_string_buffer(MEMORY_BYTES) for _ in range(2))
        self.names = dict(s=self.store, A=ctypes.addressof(self.memory), C=ctypes.addressof(other), N=MEMORY_BYTES, array=array,
                          c=module, data=data, config=config, refill=self.refill, head=self.head, given=self.given, got=self.got,
                          got_ranges=self.got_ranges, leased=self.leased, setup=self.setup, other=other)
        self.refill(number)

    def refill(self, seed):
        ctypes.memmove(self.memory, data(MEMORY_BYTES, seed), MEMORY_BYTES)

    def got(self, get, keys, places, sizes, *more):
        """The result of a get into memory and, for each object that came, its bytes. What lies beyond them, and where nothing
        came, is undefined: the memory is filled anew."""
        found = get(keys, places, sizes, *more)
        if isinstance(keys, str):
            results, places, sizes = [found], [places], [sizes]
        else:
            results = found
        came = [pieces(*args) if args[0] > 0 else None for args in zip(results, places, sizes)]
        self.refill(1)
        return found, came

    def got_ranges(self, keys, dst, src, sizes):
        """The same of get_into_ranges, into A."""
        at = self.names["A"]
        found = self.store.get_into_ranges([at], [keys], [dst], [src], [sizes])
        came = [[ctypes.string_at(at + offset, n) if n > 0 else None for offset, n in zip(*row)] for row in zip(dst, found[0])]
        self.refill(1)
        return found, came

    def leased(self, max_bytes, size):
        """What is to be had of a lease of a BufferPool: its size, and whether the store takes its memory as registered."""
        pool = module.BufferPool(self.store, max_bytes=max_bytes)
        with pool.acquire(size) as lease:
            found = lease.size, self.store.upsert_from("leased", lease.ptr, size)
        pool.close()
        return (*found, self.store.remove("leased", True))

    def given(self, unmount):
        """What allocate_and_mount_segment says, and unmount of what it gave, twice."""
        told = self.store.allocate_and_mount_segment(16 << 20)
        return told["ret"], told["allocated_size"], len(told["segment_ids"]), *(unmount(told["segment_ids"]) for _ in range(2))

    def head(self, at, shape, size):
        """Writes the header of an int32 tensor of that shape and so many bytes: what the reference wrote of one (magic, version and
        length of the header, type, dimensions, ..., lengths; -1 for what is not used)."""
        words = [0x4d4f4f4e, 0x01300001, 6, len(shape)] + [0] * 6 + [-1] * 32 + [0] * 34
        words[6], words[8] = 4 * len(words), size
        for i, length in enumerate(shape):
            words[10 + 2 * i:12 + 2 * i] = words[26 + 2 * i:28 + 2 * i] = struct.unpack("<ii", struct.pack("<q", length))
        ctypes.memmove(at, struct.pack(f"<{len(words)}i", *words), 4 * len(words))

    def setup(self, memory):
        return self.store.setup("127.0.0.1", "P2PHANDSHAKE", memory, LOCAL_BYTES, "tcp", "", "%s:%d" % MASTER)

    def outcome(self, expression):
        """What came of it, and what the registered memory holds after it."""
        return {**evaluate(expression, self.names, plain_of_store), "memory": zlib.crc32(self.memory)}


def run_client(pipe, number, memory=0):
    client = Client(number)
    if number >= 0:
        pipe.send([client.setup(memory), client.store.register_buffer(client.names["A"], MEMORY_BYTES)])
    answer(pipe, client.outcome)
    client.store.close()


def once(expression):
    process = Process(run_client, -1)
    found = process.ask(expression)
    process.end()
    process.wait_ended()
    return found


def await_master(proc):
    end = time.monotonic() + READY_S
    while time.monotonic() < end and proc.poll() is None:
        with socket.socket() as s:
            if s.connect_ex(MASTER) == 0:
                return
        time.sleep(0.05)
    sys.exit("the master did not come up")


def main():
    die_with_parent()
    told = json.loads(sys.argv[1])
    loopback_up()
    master = subprocess.Popen(told["master"], stdin=subprocess.DEVNULL, stdout=sys.stderr, preexec_fn=die_with_parent)
    await_master(master)
    clients = [Process(run_client, number, told["memory"]) for number in range(told["clients"])]
    print(json.dumps([c.answer() for c in clients]), flush=True)
    for line in sys.stdin:
        number, expression = json.loads(line)
        print(json.dumps(clients[number].ask(expression) if number >= 0 else once(expression)), flush=True)
    for client in clients:  # the reference takes a second to close
        client.end()
    for client in clients:
        client.wait_ended()
    master.terminate()
    sys.exit(master.wait(READY_S))


if __name__ == "__main__":
    main()
