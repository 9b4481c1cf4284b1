# SPDX-License-Identifier: Apache-2.0
"""The calls of test_python_engine_reference.py, as expressions that reference_engine_peer.py evaluates on both sides: good ones by
chance from a seed, odd ones from a list, each of them several times and in between. Names in them: e an engine, P its peer's name, A
registered memory of N bytes, B the peer's, C and D memory of each that is not registered, R and W the opcodes, m the module,
wait(submit, ...) and poll(submit, ...) a transfer that is begun and waited for, managed(size, work) work on a managed buffer, notes()
the messages that came, refill(seed)."""
import random

_MEMORY_BYTES = 256 << 10
_SIZES = [0, 1, 7, 64, 4096, 16384, 65536]
_PIECE = 8192
_ODD_TURNS = 3

# Peers that are not there, wrong types, numbers out of range, lists that do not match, memory that is registered twice or not.
_ODD = """
e.transfer_sync_write(P, A, B, N)
e.transfer_sync_write(P, A, B, -1)
e.transfer_sync_write(P, A, B, 'text')
e.transfer_sync_write(P, A, B)
e.transfer_sync_write(P, C, B, 10)
e.transfer_sync_read(P, C, B, 10)
e.transfer_sync_write(P, A, B, 10, 'hint')
e.transfer_sync_write(P, A, B, 10, transport_hint='tcp')
e.transfer_sync(P, A, B, 300, 1)
e.transfer_sync(P, A, B, 300, 7)
e.transfer_sync_write('127.0.0.1:1', A, B, 10)
e.transfer_sync_read('nowhere', A, B, 10)
e.transfer_sync_write('', A, B, 10)
e.transfer_sync_write('127.0.0.1:99999', A, B, 10)
e.transfer_sync_write(7, A, B, 10)
e.batch_transfer_sync_read('127.0.0.1:1', [A], [B], [10])
wait(e.batch_transfer_async_write, '127.0.0.1:1', [A], [B], [10])
poll(e.transfer_submit_write, '127.0.0.1:1', A, B, 10)
e.batch_transfer_sync_write(P, [], [], [])
e.batch_transfer_sync_write(P, [A], [B, B], [1])
e.batch_transfer_sync_read(P, [A], [B], [])
e.batch_transfer_sync(P, [], [B], [1], W)
e.batch_transfer_sync_write(P, 'text', [B], [1])
e.batch_transfer_sync_write(P, ['text'], [B], [1])
wait(e.batch_transfer_async_write, P, [], [], [])
wait(e.batch_transfer_async_write, P, [A], [B], [])
wait(e.batch_transfer_async, P, [A], [B, B], [1], R)
e.get_batch_transfer_status([])
e.get_batch_transfer_status('text')
e.transfer_check_status('text')
e.send_probe(P)
e.send_probe('127.0.0.1:1')
e.send_probe('')
e.send_probe(7)
e.warmup_efa_segment(P)
e.get_first_buffer_address(P) == B
e.get_first_buffer_address('127.0.0.1:1')
e.get_first_buffer_address('nowhere')
notes()
e.register_memory(A, N)
e.register_memory(A + 4096, 4096)
e.register_memory(C, 0)
e.register_memory(-1, 10)
e.register_memory(C, -5)
e.register_memory('text', 10)
(e.register_memory(0, 10), e.unregister_memory(0))
e.unregister_memory(A + 64)
e.unregister_memory(C)
e.unregister_memory(None)
(e.register_memory(C, N), e.transfer_sync_write(P, C, B, 500), e.unregister_memory(C), e.unregister_memory(C))
(e.register_memory(C, 4096, 'cpu:0'), e.unregister_memory(C))
(e.batch_register_memory([C, C + 4096], [4096, 4096]), e.transfer_sync_read(P, C + 4096, B, 500), e.batch_unregister_memory([C, C + 4096]))
(e.batch_register_memory([C, A], [4096, 4096]), e.unregister_memory(C))
(e.batch_register_memory([C, C], [4096, 4096]), e.unregister_memory(C))
e.batch_register_memory([C, C + 4096], [4096])
e.batch_register_memory([], [])
e.batch_register_memory('text', [1])
e.batch_unregister_memory([])
e.batch_unregister_memory([C])
e.batch_unregister_memory([C + 64, C])
(e.unregister_memory(A), e.transfer_sync_write(P, A, B, 10), e.register_memory(A, N), e.transfer_sync_read(P, A, B, 99))
managed(8192, lambda at: (e.write_bytes_to_buffer(at, 'hello', 5), e.read_bytes_from_buffer(at, 5)))
managed(100, lambda at: (e.write_bytes_to_buffer(at, 'abc', 3), e.transfer_sync_write(P, at, B + 64, 3)))
managed(1 << 20, lambda at: (e.transfer_sync_read(P, at, B + 64, 1000), e.read_bytes_from_buffer(at, 1000)))
managed(65536, lambda at: (e.register_memory(at, 100), e.unregister_memory(at + 64)))
managed(1 << 28, lambda at: at > 0)
managed((1 << 28) + 1, lambda at: at > 0)
managed(1 << 40, lambda at: at > 0)
managed(0, lambda at: at > 0)
managed(-1, lambda at: at > 0)
managed('text', lambda at: at > 0)
e.write_bytes_to_buffer(A, b'bytes', 5)
e.write_bytes_to_buffer(A, 'text', 4)
e.write_bytes_to_buffer(A, bytearray(b'bytes'), 5)
e.write_bytes_to_buffer(A, 7, 5)
e.write_bytes_to_buffer(A, 'text', 0)
e.read_bytes_from_buffer(A, 0)
e.read_bytes_from_buffer(A, 64)
e.read_bytes_from_buffer(A, 'text')
e.get_rpc_port() > 0
e.get_engine_ptr() > 0
e.get_engine() is None
type(e.get_local_topology()).__name__
[int(m.TransferOpcode.Read), int(m.TransferOpcode.Write), int(m.Read), int(m.Write), int(e.TransferOpcode.Write)]
[[n, getattr(m, n)] for n in dir(m) if n.startswith('SUPPORT_')]
e.no_such_method()
""".strip().splitlines()

# Each by the first engine of a fresh pair: what may end the process, or leaves it unfit for more.
FRESH = """
e.transfer_sync_write(P, A, D, 10)
e.transfer_sync_read(P, A, D, 10)
e.transfer_sync_write(P, A, B + N - 5, 10)
e.transfer_sync_read(P, A, B + N - 5, 10)
e.transfer_sync_read(P, A, 4096, 10)
e.transfer_sync_write(P, A, 0, 10)
e.transfer_sync_write(P, 0, B, 10)
e.transfer_sync_write(P, A, B, 1 << 40)
e.transfer_sync_read(P, A, B, 1 << 62)
e.batch_transfer_sync_write(P, [A, A], [B, D], [10, 10])
(e.register_memory(C, 4096), e.transfer_sync_read(P, C, B, 8192), e.unregister_memory(C))
(e.register_memory(C, 4096), e.transfer_sync_write(P, C + 64, B, 4096), e.unregister_memory(C))
wait(e.batch_transfer_async_write, P, [A], [D], [10])
poll(e.transfer_submit_write, P, A, D, 10)
e.transfer_check_status(0)
e.transfer_check_status(12345)
e.get_batch_transfer_status([0])
e.get_batch_transfer_status([12345])
e.get_batch_transfer_status([-1])
e.free_managed_buffer(0, 10)
e.free_managed_buffer(A, 10)
(lambda at: (e.free_managed_buffer(at, 8192), e.free_managed_buffer(at, 8192)))(e.allocate_managed_buffer(8192))
e.write_bytes_to_buffer(0, 'text', 4)
e.write_bytes_to_buffer(A, 'text', -1)
e.write_bytes_to_buffer(A, 'text', 40)
e.write_bytes_to_buffer(4096, 'text', 4)
e.read_bytes_from_buffer(A, -1)
e.read_bytes_from_buffer(4096, 10)
e.initialize('127.0.0.1', 'P2PHANDSHAKE', 'tcp', '')
""".strip().splitlines()

# On an engine that was not initialized.
UNSET = """
e.transfer_sync_write('127.0.0.1:1', A, B, 10)
wait(e.batch_transfer_async_write, '127.0.0.1:1', [A], [B], [10])
e.register_memory(A, N)
e.unregister_memory(A)
e.batch_register_memory([A], [N])
e.batch_unregister_memory([A])
e.get_rpc_port()
e.get_notifies()
e.send_probe('127.0.0.1:1')
e.get_first_buffer_address('127.0.0.1:1')
e.allocate_managed_buffer(8192)
e.get_batch_transfer_status([1])
e.transfer_check_status(1)
e.get_engine()
e.get_engine_ptr()
e.write_bytes_to_buffer(A, 'text', 4)
e.warmup_efa_segment('nowhere')
e.initialize('127.0.0.1', 'P2PHANDSHAKE', 'no such', '')
e.initialize('127.0.0.1', 'http://127.0.0.1:1/metadata', 'tcp', '')
e.initialize('127.0.0.1:18500', 'P2PHANDSHAKE', 'tcp', '')
e.initialize_ext('127.0.0.1', 'P2PHANDSHAKE', 'tcp', '', 'P2PHANDSHAKE')
e.initialize(7, 'P2PHANDSHAKE', 'tcp', '')
e.initialize('127.0.0.1')
""".strip().splitlines()


class Maker:
    """Good calls by chance."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def at(self, name, size):
        return f"{name} + {self.rng.randrange(_MEMORY_BYTES - size + 1)}"

    def lists(self):
        """Buffers at places of their own on both sides, as text: transfers of one batch have no order."""
        rng = self.rng
        n = rng.randint(1, 8)
        sizes = [rng.choice([0, 1, 100, _PIECE]) for _ in range(n)]
        mine, theirs = (rng.sample(range(_MEMORY_BYTES // _PIECE), n) for _ in range(2))
        return ", ".join([*(f"[{', '.join(f'{name} + {place * _PIECE}' for place in places)}]" for name, places in (("A", mine), ("B", theirs))),
                          str(sizes)])

    def good(self):
        rng = self.rng
        size = rng.choice(_SIZES)
        one = f"P, {self.at('A', size)}, {self.at('B', size)}, {size}"
        notify = rng.choice(["", f", m.TransferNotify('n{rng.randrange(9)}', 'é' * {rng.choice([0, 1, 300])})"])
        return rng.choice([
            lambda: f"e.transfer_sync_write({one})",
            lambda: f"e.transfer_sync_read({one})",
            lambda: f"e.transfer_sync({one}, {rng.choice('RW')}{notify})",
            lambda: f"e.batch_transfer_sync_write(P, {self.lists()})",
            lambda: f"e.batch_transfer_sync_read(P, {self.lists()})",
            lambda: f"e.batch_transfer_sync(P, {self.lists()}, {rng.choice('RW')}{notify})",
            lambda: f"wait(e.batch_transfer_async_write, P, {self.lists()})",
            lambda: f"wait(e.batch_transfer_async_read, P, {self.lists()})",
            lambda: f"wait(e.batch_transfer_async, P, {self.lists()}, {rng.choice('RW')})",
            lambda: f"poll(e.transfer_submit_write, {one})",
            lambda: f"refill({rng.randrange(1 << 30)})",
            lambda: "notes()",
        ])()


def make(seed, n):
    """n good calls and the odd ones, in an order of that seed: (engine, text)."""
    maker = Maker(seed)
    texts = [maker.good() for _ in range(n)] + _ODD * _ODD_TURNS
    maker.rng.shuffle(texts)
    return [(maker.rng.randrange(2), text) for text in texts]
