# SPDX-License-Identifier: Apache-2.0
"""The calls of test_python_reference.py, as expressions that reference_peer.py evaluates on both sides: good ones by chance from a
seed, odd ones from reference_odd.py, each of them several times and in between. Names in them: s the store, A its registered memory of N
bytes, C memory that is not registered, c the module, got(get, ...) and got_ranges(...) the result of a get into memory with the
bytes it brought. A session is one expression, from its start to its end."""
import random

from reference_odd import ODD

_NAMES = [f"k{i}" for i in range(10)] + ["é/ключ", "a\0b", "K" * 300]
_SIZES = [1, 7, 64, 4096, 16384]
_ODD_TURNS = 3


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
    for text in ODD * _ODD_TURNS:
        calls.append(Call(rng.randrange(clients), text.format(k=repr(rng.choice(_NAMES[:10]))), None))
    rng.shuffle(calls)
    return calls
