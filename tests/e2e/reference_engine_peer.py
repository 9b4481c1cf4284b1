# SPDX-License-Identifier: Apache-2.0
"""Two engines under one `mooncake.engine`, ours or the reference's, for test_python_engine_reference.py, that evaluate expressions.
Runs in the interpreter that has the wheel, in a network namespace of its own, as reference_peer.py.

A line in is [engine, expression], engine -1 being the first one of a fresh pair for that expression alone, -2 one that was not
initialized; a line out is its outcome, with what the memory of both engines holds after it and, of a pair, how the other one is. Ends
with its input, or with whoever started it.
"""
import ctypes
import json
import mmap
import sys
import zlib

from mooncake import engine as module
from reference_process import Process, answer, data, die_with_parent, evaluate, loopback_up

MEMORY_BYTES = 256 << 10


class Region:
    """Memory that all processes share that are forked after it, so that nobody has to be asked what it holds."""

    def __init__(self):
        self.map = mmap.mmap(-1, MEMORY_BYTES)
        self.at = ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    def fill(self, seed):
        self.map[:] = data(MEMORY_BYTES, seed)

    def sum(self):
        return zlib.crc32(self.map)


def run_engine(pipe, mine, theirs, is_initialized):
    """Of each (registered, not registered). Says its port, hears the other's name, answers."""
    engine = module.TransferEngine()
    if is_initialized:
        began = engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), engine.register_memory(mine[0].at, MEMORY_BYTES)
        pipe.send([*began, engine.get_rpc_port()])
    else:
        pipe.send([0, 0, 0])
    peer = pipe.recv()

    def refill(seed):
        for region in (*mine, *theirs):
            region.fill(seed)
            seed += 1

    def wait(submit, *args):
        """What became of a batch that was begun, or that it was not."""
        batch = submit(*args)
        return engine.get_batch_transfer_status([batch]) if batch else "not begun"

    def poll(submit, *args):
        """The same by transfer_check_status: its last word."""
        batch, status = submit(*args), 0
        while batch > 0 and status == 0:
            status = engine.transfer_check_status(batch)
        return status if batch > 0 else batch

    def managed(size, work):
        """work(address) on a managed buffer, and whether it was taken back."""
        at = engine.allocate_managed_buffer(size)
        return (work(at), engine.free_managed_buffer(at, size)) if at else "no memory"

    def notes():
        return [(note.name, note.msg) for note in engine.get_notifies()]

    names = dict(e=engine, P=peer, A=mine[0].at, C=mine[1].at, B=theirs[0].at, D=theirs[1].at, N=MEMORY_BYTES, m=module, data=data,
                 R=module.TransferOpcode.Read, W=module.TransferOpcode.Write, wait=wait, poll=poll, managed=managed, notes=notes,
                 refill=refill)
    answer(pipe, lambda expression: evaluate(expression, names))


class Pair:
    """Two engines that know one another."""

    def __init__(self, is_initialized=True):
        self.memory = [(Region(), Region()) for _ in range(2)]
        for seed, region in enumerate(r for both in self.memory for r in both):
            region.fill(seed)
        self.engines = [Process(run_engine, *memory, is_initialized) for memory in (self.memory, self.memory[::-1])]
        self.began = [engine.answer() for engine in self.engines]
        for engine, other in zip(self.engines, self.began[::-1]):
            engine.pipe.send(f"127.0.0.1:{other[2]}")

    def outcome(self, number, expression):
        found = self.engines[number].ask(expression)
        if self.engines[1 - number].ask("None") != {"value": None}:
            found["other"] = "gone"
        return {**found, "memory": [region.sum() for both in self.memory for region in both]}

    def close(self):
        for engine in self.engines:
            engine.end()
        for engine in self.engines:
            engine.wait_ended()


def once(expression, is_initialized):
    pair = Pair(is_initialized)
    found = pair.outcome(0, expression)
    pair.close()
    return found


def main():
    die_with_parent()
    loopback_up()
    pair = Pair()
    print(json.dumps([began[:2] for began in pair.began]), flush=True)
    for line in sys.stdin:
        number, expression = json.loads(line)
        print(json.dumps(pair.outcome(number, expression) if number >= 0 else once(expression, number == -1)), flush=True)
    pair.close()


if __name__ == "__main__":
    main()
