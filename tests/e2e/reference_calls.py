# SPDX-License-Identifier: Apache-2.0
"""The calls of test_python_reference.py, as expressions that reference_peer.py evaluates on both sides: good ones by chance from a
seed, odd ones from lists, each of them several times and in between. Names in them: s the store, A its registered memory of N
bytes, C memory that is not registered, c the module, got(get, ...) and got_ranges(...) the result of a get into memory with the
bytes it brought. A session is one expression, from its start to its end."""
import random

_NAMES = [f"k{i}" for i in range(10)] + ["é/ключ", "a\0b", "K" * 300]
_SIZES = [1, 7, 64, 4096, 16384]
_ODD_TURNS = 3

# {k}: a key. One key that is not text, values that are not memory, lists that are not lists, numbers out of range, ...
# None that finds no space: the reference's master would evict something, and which is chance.
_ODD = """
s.put({k}, 'text')
s.put({k}, 7)
s.put({k}, None)
s.put(7, b'x')
s.put(None, b'x')
s.put({k}, b'')
s.put('', b'x')
s.put('L' * 5000, b'x')
s.put('\\udc80', b'x')
s.put({k}.encode(), b'from bytes')
s.put({k})
s.put()
s.put({k}, b'x', None)
s.put({k}, b'x', 7)
s.put({k}, bytearray(b'array of bytes'))
s.put({k}, memoryview(b'a view of bytes'))
(s.remove({k}, True), s.put({k}, memoryview(b'abcdef')[::2]))
(s.remove({k}, True), s.put({k}, array.array('i', [1, 2, 3])), s.get({k}), s.remove({k}, True))[2]
s.put({k}, b'x', config(prefer_alloc_in_same_node=True))
s.put({k}, bytes(20 << 20))
s.put({k}, bytes(100 << 20))
s.put({k}, b'x', config(replica_num=0))
(s.remove({k}, True), s.put({k}, b'twice', config=config(replica_num=2)), s.get_replica_desc({k}), s.remove({k}, True))[1:3]
s.put({k}, b'grouped', config(group_ids=['g']))
s.put({k}, b'grouped', config(group_ids=['g', 'h']))
s.put_batch([{k}, 'k1'], [b'1', b'2'], config(group_ids=['g']))
s.put_batch([], [])
s.put_batch([{k}], [])
s.put_batch([{k}], 7)
s.put_batch(({k},), (b'in tuples',))
s.put_batch([{k}, ''], [b'1', b'2'])
(s.remove({k}, True), s.put_batch([{k}, 'k1'], [b'1', b'']), s.is_exist({k}))[1:]
(s.remove({k}, True), s.put_parts({k}), s.is_exist({k}))[1:]
(s.remove({k}, True), s.put_parts({k}, b''), s.is_exist({k}))[1:]
s.put_parts({k}, b'', b'x')
s.put_parts({k}, 'text')
s.put_parts({k}, b'a', bytearray(b'b'), memoryview(b'c'))
s.upsert({k}, b'')
s.upsert('', b'x')
s.upsert({k}, 7)
s.upsert_parts({k}, 7)
s.upsert_batch([{k}], [])
s.get('')
s.get('L' * 5000)
s.get(None)
s.get(7)
s.get()
s.get('\\udc80')
s.get(key={k})
s.get_batch([])
s.get_batch('text')
s.get_batch(['absent', '', {k}])
s.get_buffer(7)
s.get_buffer('')
s.batch_get_buffer([])
s.batch_get_buffer(None)
s.is_exist('')
s.is_exist('L' * 5000)
s.is_exist(7)
s.is_exist()
s.batch_is_exist([])
s.batch_is_exist(['', {k}, 'absent'])
s.batch_is_exist('text')
s.batch_is_exist(None)
s.batch_is_exist([{k}, 7])
s.batch_is_exist(({k}, 'absent'))
s.batch_is_exist({{{k}}})
s.get_size('')
s.get_size('absent')
s.get_size(7)
s.get_replica_desc('')
s.get_replica_desc(7)
s.batch_get_replica_desc([])
s.batch_get_replica_desc(7)
s.remove('')
s.remove('L' * 5000, True)
s.remove(7)
s.remove({k}, 1)
s.remove({k}, 'yes')
s.batch_remove([])
s.batch_remove([''], True)
s.batch_remove('text')
s.remove_by_regex('(')
s.remove_by_regex('[')
s.remove_by_regex('', True)
s.remove_by_regex('nobody', True)
s.remove_by_regex(7)
s.remove_all(None)
s.register_buffer(A, N)
s.register_buffer(A + 4096, 4096)
s.register_buffer(0, 10)
s.register_buffer(C, 0)
s.register_buffer(-1, 5)
s.register_buffer(C, -5)
s.register_buffer('text', 5)
s.register_buffer(C)
s.unregister_buffer(C)
s.unregister_buffer(A + 64)
s.unregister_buffer(-1)
s.unregister_buffer(None)
(s.register_buffer(C, N), s.unregister_buffer(C), s.unregister_buffer(C))
s.put_from({k}, C, 100)
(s.remove({k}, True), s.put_from({k}, A, 0), s.is_exist({k}))[1:]
s.put_from({k}, A + N - 10, 100)
s.put_from({k}, A, -1)
s.put_from({k}, A, 1 << 64)
s.put_from({k}, 1.5, 10)
s.put_from('', A, 10)
s.put_from('L' * 5000, A, 10)
s.upsert_from({k}, C, 10)
s.get_into({k}, C, 100)
s.get_into('absent', C, 100)
s.get_into('absent', A, 100)
s.get_into({k}, A, -1)
s.get_into({k}, 1 << 64, 1)
s.get_into({k}, 1.5, 1)
s.get_into('', A, 10)
s.batch_put_from([], [], [])
s.batch_put_from([{k}], [A], [])
s.batch_put_from([{k}], [], [10])
s.batch_put_from([{k}, 'k1'], [A], [10])
(s.batch_put_from(['twice', 'twice'], [A, A], [10, 20]), s.get_size('twice'), s.remove('twice', True))
s.batch_put_from([{k}, ''], [A, A], [10, 20])
s.batch_put_from([{k}, 'k1'], [A, A], [10, 20], config(group_ids=['g']))
s.batch_put_from([{k}], ['text'], [10])
s.batch_put_from({k}, [A], [10])
s.batch_get_into([], [], [])
s.batch_get_into([{k}], [A], [])
s.batch_get_into([{k}], ['text'], [10])
s.batch_get_into(['absent', {k}], [A, A], [10, 0])
s.batch_put_from_multi_buffers([{k}], [[A, A + 100]], [[10]])
s.batch_put_from_multi_buffers(['absent', {k}], [[A], [A, A + 100]], [[10], [10]])
s.batch_put_from_multi_buffers([{k}], [[]], [[]])
s.batch_put_from_multi_buffers([{k}], [[A, A]], [[0, 5]])
s.batch_put_from_multi_buffers([{k}], [A], [10])
s.batch_get_into_multi_buffers([{k}], [[A, A + 100]], [[10]])
s.batch_get_into_multi_buffers([{k}], [[]], [[]])
got(s.batch_get_into_multi_buffers, [{k}], [[A, A + 65536]], [[65536, 65536]])
s.batch_get_into_multi_buffers([{k}], [A], [10])
s.put_from_with_metadata({k}, A, A + 500, 100, 0)
(s.remove({k}, True), s.put_from_with_metadata({k}, A, A + 500, 0, 10), s.is_exist({k}))[1:]
s.put_from_with_metadata({k}, C, C, 100, 10)
s.put_from_with_metadata('', A, A + 500, 100, 10)
s.get_into_ranges([], [], [], [], [])
s.get_into_ranges([A], [[]], [[]], [[]], [[]])
s.get_into_ranges([A], [['']], [[[0]]], [[[0]]], [[[1]]])
s.get_into_ranges([A], [['L' * 5000]], [[[0]]], [[[0]]], [[[1]]])
s.get_into_ranges([A], [['absent']], [[[0]]], [[[0]]], [[[1]]])
s.get_into_ranges([A], [[{k}]], [[[]]], [[[]]], [[[]]])
s.get_into_ranges([A], [[{k}]], [[[0, 1]]], [[[5]]], [[[1]]])
s.get_into_ranges([A], [[{k}, 'k1']], [[[0]]], [[[5]]], [[[1]]])
s.get_into_ranges([A, A], [[{k}]], [[[0]]], [[[5]]], [[[1]]])
s.get_into_ranges([A], [[{k}]], [[[N]]], [[[0]]], [[[1]]])
s.get_into_ranges([A], [[{k}]], [[[0]]], [[[1 << 40]]], [[[1]]])
s.get_into_ranges([A], [[{k}]], [[[0]]], [[[0]]], [[[0]]])
s.get_into_ranges([C], [[{k}]], [[[0]]], [[[0]]], [[[1]]])
s.get_into_ranges([C], [['absent']], [[[0]]], [[[0]]], [[[1]]])
s.get_into_ranges([A], [['absent']], [[[0]]], [[[-1]]], [[[1]]])
s.get_into_ranges([A], [{k}], [[[0]]], [[[0]]], [[[1]]])
s.get_into_ranges([A], [[7]], [[[0]]], [[[0]]], [[[1]]])
s.get_into_ranges([A], [[{k}]], [[[0]]], [[[-1]]], [[[1]]])
s.batch_get_session_start([])
s.batch_get_session_start(['', 'L' * 5000, 'absent'])
s.batch_get_session_start('text')
s.batch_get_session_start([7])
s.batch_get_session_end([])
s.batch_get_session_end(['absent'])
s.batch_get_session_end('text')
(s.batch_get_session_start([{k}, {k}]), s.batch_get_session_end([{k}]))
(s.batch_get_session_start([{k}]), s.batch_get_into_multi_buffer_ranges([{k}], [[C]], [[1]], [[0]]), s.batch_get_session_end([{k}]))
(s.batch_get_session_start([{k}]), s.batch_get_into_multi_buffer_ranges([{k}], [[]], [[]], [[]]), s.batch_get_session_end([{k}]))
(s.batch_get_session_start([{k}]), s.batch_get_into_multi_buffer_ranges([{k}], [[A]], [[0]], [[0]]), s.batch_get_session_end([{k}]))
s.batch_get_into_multi_buffer_ranges([], [], [], [])
s.batch_get_into_multi_buffer_ranges([{k}], [[A]], [[1]], [[0]])
s.batch_get_into_multi_buffer_ranges([{k}, 'k1'], [[A]], [[1]], [[0]])
s.batch_put_session_start([], [])
s.batch_put_session_start(['new'], [0])
s.batch_put_session_start(['new'], [1, 2])
s.batch_put_session_start([''], [1])
(s.batch_put_session_start(['L' * 5000], [1]), s.batch_put_session_revoke(['L' * 5000]))
s.batch_put_session_start(['new'], [-1])
s.batch_put_session_start(['new'], ['1'])
s.batch_put_session_start('n', [1])
s.batch_put_session_start(['new'], [1], 7)
(s.batch_put_session_start(['new'], [1], None), s.batch_put_session_revoke(['new']))
s.batch_put_session_start(['new'], [1], config(replica_num=0))
s.batch_put_session_start(['new'], [1], config(group_ids=['g', 'h']))
(s.batch_put_session_start(['new', 'new'], [1, 2]), s.batch_put_session_start(['new'], [1]), s.batch_put_session_revoke(['new']))
(s.batch_put_session_start(['new'], [9]), s.is_exist('new'), s.get('new'), s.batch_put_session_revoke(['new']))
(s.batch_put_session_start(['new'], [9]), s.batch_put_from_multi_buffer_ranges(['new'], [[C]], [[1]], [[0]]),\
 s.batch_put_session_revoke(['new']))
(s.batch_put_session_start(['new'], [9]), s.batch_put_from_multi_buffer_ranges(['new'], [[A, A]], [[9, 1], [0]], [[0, 9]]),\
 s.batch_put_from_multi_buffer_ranges(['new'], [[A]], [[10]], [[0]]), s.batch_put_from_multi_buffer_ranges(['new'], [[A]], [[0]], [[9]]),\
 s.batch_put_session_revoke(['new']), s.batch_put_session_end(['new']))
s.batch_put_from_multi_buffer_ranges(['new'], [[A]], [[1]], [[0]])
s.batch_put_session_end([])
s.batch_put_session_end(['new'])
s.batch_put_session_end('text')
s.batch_put_session_revoke(['new'])
s.batch_put_session_revoke(7)
s.create_copy_task('absent', ['nowhere:1'])
s.create_copy_task('', ['nowhere:1'])
s.create_copy_task({k}, [])
s.create_copy_task({k}, ['nowhere:1'])
s.create_copy_task({k}, 'text')
s.create_copy_task(7, ['nowhere:1'])
s.create_move_task('absent', 'nowhere:1', 'nowhere:2')
s.create_move_task({k}, 'nowhere:1', 'nowhere:2')
s.query_task((1, 2))
s.query_task(5)
s.batch_replica_clear([], '')
s.batch_replica_clear(['', 'absent'], '')
s.batch_replica_clear([{k}], 'nowhere:1')
s.batch_replica_clear('text', '')
s.allocate_and_mount_segment(0)
s.allocate_and_mount_segment('16MB')
s.unmount_segment([])
s.unmount_segment(['nowhere:1'])
s.unmount_segment('text')
s.unmount_local_disk_segment()
s.alloc_from_mem_pool(4096)
s.get_offload_rpc_read_count()
s.get_tensor('absent')
(s.upsert('plain', b'no tensor'), s.get_tensor('plain'), s.get_tensor_into('plain', A, 400), s.remove('plain', True))[1:3]
s.get_tensor('')
s.get_tensor(7)
s.get_tensor_into('absent', A, 400)
s.get_tensor_with_tp('absent', 0, 2)
s.batch_get_tensor(['absent', ''])
s.batch_get_tensor('text')
s.put_tensor({k}, 7)
s.put_tensor({k}, None)
s.put_tensor_with_tp({k}, 7, 0, 2, 0)
s.put_tensor_from({k}, A, 1)
s.put_tensor_from({k}, A, 400)
s.batch_put_tensor([{k}], [7])
s.batch_put_tensor([{k}], [])
s.pub_tensor({k}, 7, config())
s.pub_tensor({k}, 7, 7)
leased(16 << 20, 10)
leased(1 << 20, 1 << 21)
leased(1 << 20, -1)
leased(1 << 20, 'text')
leased(-1, 10)
c.BufferPool(None)
c.BufferPool(7)
c.BufferPool(s, max_bytes=1 << 20, min_size_class=0)
c.BufferPool(s, max_bytes=1 << 20, alignment=3)
s.health_check()
s.health_check(1)
s.get_hostname().partition(':')[0]
s.no_such_method()
config(no_such_field=1)
config(replica_num='two')
config(with_hard_pin=[])
config(group_ids=7)
config(preferred_segment=7)
[int(getattr(c.ReplicaStatus, n)) for n in ('UNDEFINED', 'INITIALIZED', 'PROCESSING', 'COMPLETE', 'REMOVED', 'FAILED')]
[int(getattr(c.SoftPinAction, n)) for n in ('PRESERVE', 'ENABLE', 'DISABLE')]
[getattr(config(), n) for n in ('replica_num', 'with_hard_pin', 'preferred_segment', 'preferred_segments', 'group_ids')]
""".strip().splitlines()

# On a store that was not set up, or was closed, each in a process of its own.
FRESH = """
s.get('k')
s.get_batch(['k'])
s.get_buffer('k')
s.put('k', b'x')
s.put_from('k', A, 10)
s.batch_put_from(['k'], [A], [10])
s.upsert('k', b'x')
s.is_exist('k')
s.batch_is_exist(['k'])
s.get_into('k', A, 10)
s.get_size('k')
s.get_replica_desc('k')
s.remove('k')
s.remove_all()
s.register_buffer(A, N)
s.unregister_buffer(A)
s.put_parts('k', b'x')
s.put_batch(['k'], [b'x'])
s.batch_get_buffer(['k'])
s.get_into_ranges([A], [['k']], [[[0]]], [[[0]]], [[[1]]])
s.batch_get_session_start(['k'])
s.batch_get_session_end(['k'])
s.batch_put_session_start(['k'], [1])
s.batch_put_session_end(['k'])
s.batch_put_session_revoke(['k'])
s.create_copy_task('k', ['nowhere:1'])
s.query_task((1, 2))
s.batch_replica_clear(['k'], '')
s.allocate_and_mount_segment(1 << 24)
s.get_tensor('k')
s.put_tensor('k', 7)
s.get_tensor_into('k', A, 400)
c.BufferPool(s)
s.get_hostname()
s.health_check()
s.close()
(setup(0), s.close(), s.close())
(setup(0), setup(0))
(setup(0), s.close(), s.get('k'))
(setup(0), s.close(), s.health_check())
(setup(0), s.close(), s.put('k', b'x'))
(setup(0), s.health_check(), s.get('absent'))
s.setup('127.0.0.1')
s.setup({'local_hostname': '127.0.0.1', 'global_segment_size': '50%', 'master_server_addr': '127.0.0.1:50051'})
s.setup({'local_hostname': '127.0.0.1', 'metadata_server': 'P2PHANDSHAKE', 'global_segment_size': '16 MB',\
 'local_buffer_size': '16MB', 'protocol': 'tcp', 'rdma_devices': '', 'master_server_addr': '127.0.0.1:50051'})
""".strip().splitlines()


class Call:
    """An expression, the client that does it, and the keys that it is about (None: all)."""

    def __init__(self, client, text, keys):
        self.client, self.text, self.keys = client, text, keys


class Maker:
    """Good calls by chance."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def keys(self, most=6):
        return self.rng.sample(_NAMES, self.rng.randint(1, most))

    def size(self):
        return self.rng.choice(_SIZES)

    def at(self, size):
        return f"A + {64 * self.rng.randrange((256 * 1024 - size) // 64)}"

    def value(self):
        return f"data({self.size()}, {self.rng.randrange(1 << 30)})"

    def config(self):
        field = self.rng.choice(["", "", "with_hard_pin=True", "soft_pin_action=c.SoftPinAction.ENABLE", "replica_num=1",
                                 "preferred_segment='elsewhere'"])
        return f", config({field})" if field else ""

    def force(self):
        return self.rng.choice(["", ", True", ", True"])

    def memory(self, keys, sizes):
        return f"[{', '.join(self.at(s) for s in sizes)}], {sizes}"

    def rows(self, n):
        """Rows of buffers, as text, their sizes, of one of _SIZES in all, and what lies before each; at places of their own."""
        rng, step = self.rng, _SIZES[-1]
        buffers, sizes, before = [], [], []
        for place in rng.sample(range(16), n):
            size = self.size()
            cuts = sorted({0, size, *(rng.randrange(size) for _ in range(rng.randint(0, 4)))})
            sizes.append([b - a for a, b in zip(cuts, cuts[1:])])
            before.append(cuts[:-1])
            buffers.append(f"[{', '.join(f'A + {place * step + a}' for a in cuts[:-1])}]")
        return f"[{', '.join(buffers)}]", sizes, before

    def pieces(self, n):
        return "{}, {}".format(*self.rows(n))

    def shifted(self, rows):
        """Offsets in objects that may be shorter."""
        return [[at + self.rng.choice([0, 0, 3]) for at in row] for row in rows]

    def get_session(self, keys):
        buffers, sizes, before = self.rows(len(keys))
        return (f"(s.batch_get_session_start({keys}), got(s.batch_get_into_multi_buffer_ranges, {keys}, {buffers}, {sizes}, "
                f"{self.shifted(before)}), s.batch_get_session_end({keys}))")

    def put_session(self, keys):
        buffers, sizes, before = self.rows(len(keys))
        return (f"(s.batch_put_session_start({keys}, {[sum(row) for row in sizes]}{self.config()}), "
                f"s.batch_put_from_multi_buffer_ranges({keys}, {buffers}, {sizes}, {before}), "
                f"s.batch_put_session_{self.rng.choice(['end', 'end', 'revoke'])}({keys}))")

    def ranges(self, keys):
        _, sizes, before = self.rows(len(keys))
        places = self.rng.sample(range(16), len(keys))
        dst = [[place * _SIZES[-1] + at for at in row] for place, row in zip(places, before)]
        return f"got_ranges({keys}, {dst}, {self.shifted(before)}, {sizes})"

    def into(self, keys):
        """Distinct places for a batch_get_into, most large enough."""
        step = 16384
        sizes = [self.rng.choice([step, step, step, 64, 1]) for _ in keys]
        places = self.rng.sample(range(16), len(keys))
        return f"[{', '.join(f'A + {p * step}' for p in places)}], {sizes}"

    def good(self):
        rng, keys = self.rng, self.keys()
        one = repr(keys[0])
        size = self.size()
        verb, alone = rng.choice([
            (lambda: f"s.put({one}, {self.value()}{self.config()})", True),
            (lambda: f"s.put({one}, {self.value()})", True),
            (lambda: f"s.put_parts({one}, {self.value()}, {self.value()})", True),
            (lambda: f"s.upsert({one}, {self.value()}{self.config()})", True),
            (lambda: f"s.upsert_parts({one}, {self.value()}, {self.value()})", True),
            (lambda: f"s.put_batch({keys}, [{', '.join(self.value() for _ in keys)}]{self.config()})", False),
            (lambda: f"s.upsert_batch({keys}, [{', '.join(self.value() for _ in keys)}])", False),
            (lambda: f"s.put_from({one}, {self.at(size)}, {size}{self.config()})", True),
            (lambda: f"s.upsert_from({one}, {self.at(size)}, {size})", True),
            (lambda: f"s.put_from_with_metadata({one}, {self.at(size)}, {self.at(100)}, {size}, 100)", True),
            (lambda: f"s.batch_put_from({keys}, {self.memory(keys, [self.size() for _ in keys])}{self.config()})", False),
            (lambda: f"s.batch_upsert_from({keys}, {self.memory(keys, [self.size() for _ in keys])})", False),
            (lambda: f"s.batch_put_from_multi_buffers({keys}, {self.pieces(len(keys))}{self.config()})", False),
            (lambda: f"s.get({one})", True),
            (lambda: f"s.get_batch({keys})", False),
            (lambda: f"s.get_buffer({one})", True),
            (lambda: f"s.batch_get_buffer({keys})", False),
            (lambda: f"got(s.get_into, {one}, A + {rng.randrange(8) * 16384}, {rng.choice([1, 64, 16384, 65536])})", True),
            (lambda: f"got(s.batch_get_into, {keys}, {self.into(keys)})", False),
            (lambda: f"got(s.batch_get_into_multi_buffers, {keys}, {self.pieces(len(keys))})", False),
            (lambda: self.ranges(keys), False),
            (lambda: self.get_session(keys), False),
            (lambda: self.put_session(keys), False),
            (lambda: f"s.batch_replica_clear({keys}, '')", False),
            (lambda: f"s.is_exist({one})", True),
            (lambda: f"s.batch_is_exist({keys + ['absent']})", False),
            (lambda: f"s.get_size({one})", True),
            (lambda: f"s.get_replica_desc({one})", True),
            (lambda: f"s.batch_get_replica_desc({keys})", False),
            (lambda: f"s.remove({one}{self.force()})", True),
            (lambda: f"s.batch_remove({keys}{self.force()})", False),
        ])
        return verb(), keys[:1] if alone else keys

    def wide(self):
        return self.rng.choice([f"s.remove_by_regex('^k[{self.rng.randrange(10)}-9]$'{self.force()})",
                                f"s.remove_by_regex('{self.rng.randrange(10)}'{self.force()})", f"s.remove_all({self.force()[2:]})"])


def make(seed, n, clients):
    """n good calls, the odd ones, and some that are about all keys, in an order of that seed."""
    maker = Maker(seed)
    rng = maker.rng
    calls = [Call(rng.randrange(clients), *maker.good()) for _ in range(n)]
    calls += [Call(rng.randrange(clients), maker.wide(), None) for _ in range(n // 40)]
    for text in _ODD * _ODD_TURNS:
        calls.append(Call(rng.randrange(clients), text.format(k=repr(rng.choice(_NAMES[:10]))), None))
    rng.shuffle(calls)
    return calls
