# SPDX-License-Identifier: Apache-2.0
"""What reference_peer.py and reference_engine_peer.py share: processes that evaluate expressions, and outcomes that tell how."""
import ctypes
import fcntl
import multiprocessing
import random
import signal
import socket
import struct
import zlib

CALL_S = 30
_PR_SET_PDEATHSIG = 1


def die_with_parent():
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def loopback_up():
    """SIOCGIFFLAGS, then SIOCSIFFLAGS with IFF_UP."""
    with socket.socket() as s:
        name, flags = struct.unpack("16sh", fcntl.ioctl(s, 0x8913, struct.pack("16sh", b"lo", 0)))
        fcntl.ioctl(s, 0x8914, struct.pack("16sh", name, flags | 1))


def data(size, seed):
    return random.Random(seed).randbytes(size)


def digest(held):
    return held.hex() if len(held) <= 16 else f"{len(held)} bytes, {zlib.crc32(held):08x}"


def plain(value, special):
    """A result as JSON that tells types apart; special(value): the same of what a module brings of its own, else None."""
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, bytes):
        return {"bytes": digest(value)}
    found = special(value)
    if found is not None:
        return found
    if isinstance(value, (list, tuple)):
        return [plain(v, special) for v in value]
    if isinstance(value, dict):
        return [[plain(k, special), plain(value[k], special)] for k in sorted(value)]
    return {type(value).__name__: str(value)}


def evaluate(expression, names, special=lambda value: None):
    """{"value"} or {"raised", "text"}."""
    try:
        return {"value": plain(eval(expression, dict(names)), special)}
    except Exception as e:  # whatever it is, it is the outcome
        return {"raised": type(e).__name__, "text": str(e)[:200]}


def answer(pipe, outcome):
    """Answers with the outcome of each expression that comes, until None does."""
    for expression in iter(pipe.recv, None):
        pipe.send(outcome(expression))


def _run(pipe, work, args):
    die_with_parent()
    work(pipe, *args)


class Process:
    """A process of its own for work(pipe, *args), which answers."""

    def __init__(self, work, *args):
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("fork").Process(target=_run, args=(theirs, work, args), daemon=True)
        self.process.start()
        theirs.close()

    def answer(self):
        """What it says, or how it ended, or that it says nothing."""
        if not self.pipe.poll(CALL_S):
            self.process.kill()
            return {"hung": CALL_S}
        try:
            return self.pipe.recv()
        except EOFError:
            self.process.join()
            return {"died": signal.Signals(-self.process.exitcode).name if self.process.exitcode < 0 else self.process.exitcode}

    def ask(self, expression):
        try:
            self.pipe.send(expression)
        except BrokenPipeError:  # it has ended, and answer() says how
            pass
        return self.answer()

    def end(self):
        if self.process.is_alive():
            self.pipe.send(None)

    def wait_ended(self):
        self.process.join(CALL_S)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
