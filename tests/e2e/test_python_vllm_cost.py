# SPDX-License-Identifier: Apache-2.0
"""kvpool.vllm.cost against a simulated engine and link, whose times have 10 % noise. Rates are multiples of break-even, at
which loading a block takes as long as computing it. A profile gives the rate at a request's number, with the part of the
load that is done as its fraction."""
import random
import timeit

import pytest

from kvpool.vllm.cost import Computing, Cost

TOKENS, BYTES, REQUESTS, PATIENCE = 32, 32768, 300, 0.1
S, A, B = 0.005, 1 / 7000, 2e-8
BREAK_EVEN = BYTES / (TOKENS * (A + B * 1000))


def compute_s(n, before):
    return S + n * (A + B * (before + n / 2)) if n else 0.0


def noise(r):
    return min(max(r.gauss(1, 0.1), 0.7), 1.3)


class Result:
    """Of each request: its time, that of computing all, that of the better choice for a known rate, its time over that of
    computing all without the engine's noise, the blocks that arrived, its begin, and whether its load was cut."""

    def __init__(self, rows):
        self.ours, self.computing, self.better, self.sure, self.arrived, self.at, self.cut = zip(*rows)
        self.to_computing = sum(self.ours) / sum(self.computing)
        self.to_better = sum(self.ours[20:]) / sum(self.better[20:])
        self.p95 = sorted(a / b for a, b in zip(self.ours, self.computing))[int(len(rows) * 0.95)]


def simulate(rate, seed=1, is_whole=True, fixed_s=0.002):
    """Requests one after the other; is_whole: all of a prompt but its end is a hit. A load is cut at its end."""
    r, cost, now, rows = random.Random(seed), Cost(patience=PATIENCE), 0.0, []
    for i in range(6):  # the first step compiles
        n = r.randrange(256, 2048)
        cost.computing.add([(n, 0)], compute_s(n, 0) * noise(r) * (1 if i else 30))
    for i in range(REQUESTS):
        total = r.randrange(1024, 3073)
        hit = (total - 1) // TOKENS if is_whole else r.randrange((total - 1) // TOKENS + 1)
        slow, late, arrived, is_cut = noise(r), noise(r), 0, False
        choice = cost.choose(now, b"\1" * hit, BYTES, TOKENS, 0)
        spent = fixed_s * late if choice.blocks else 0.0
        cost.began(i, b"\1" * choice.blocks, BYTES)
        while arrived < choice.blocks and not is_cut:
            spent += BYTES / BREAK_EVEN / rate(i + arrived / choice.blocks) * late
            is_cut = spent > choice.end_s(arrived)
            spent, arrived = (choice.end_s(arrived), arrived) if is_cut else (spent, arrived + 1)
        cost.ended(i, now + spent, spent, arrived, is_cut)
        rest = compute_s(total - arrived * TOKENS, arrived * TOKENS)
        cost.computing.add([(total - arrived * TOKENS, arrived * TOKENS)], rest * slow)
        end = now + spent + rest * slow
        if choice.probe is not None:  # in the background
            cost.began("probe", b"\1", BYTES)
            cost.ended("probe", end, fixed_s + BYTES / BREAK_EVEN / rate(i) * noise(r), 1, False)
        all_s = compute_s(total, 0)
        loaded = (fixed_s + hit * BYTES / BREAK_EVEN / rate(i)) * late + compute_s(total - hit * TOKENS, hit * TOKENS) * slow
        rows.append((end - now, all_s * slow, min(all_s * slow, loaded), (spent + rest) / all_s, arrived, now, is_cut))
        now = end + 0.05
    return Result(rows)


# The bound of the sum over that of the better choice for each request. A wave that is shorter than the 5 s (about 15
# requests) between two probes cannot be followed; then the bound of computing is the one that counts.
PROFILES = {**{f"constant at {x:g}": (lambda _, x=x: x, 1.08) for x in (64, 4, 2, 1.3, 1, 1 / 4, 1 / 16, 1 / 64)},
            **{f"falls to {x:g}": (lambda i, x=x: 64 if i < 150.5 else x, 1.03) for x in (1 / 4, 1 / 16, 1 / 64)},
            **{f"rises from {x:g}": (lambda i, x=x: x if i < 150 else 64, 1.12) for x in (1 / 4, 1 / 16, 1 / 64)},
            "falls slowly": (lambda i: 2 ** (6 - i / 25), 1.03), "rises slowly": (lambda i: 2 ** (i / 25 - 6), 1.12),
            "a rate for each block": (lambda i: 2 ** random.Random(i).uniform(-9, 7), 1.8),
            **{f"wave of {n}": (lambda i, n=n: 64 if i % n < n / 2 else 1 / 16, bound)
               for n, bound in ((5, 2.5), (10, 1.9), (20, 1.5), (40, 1.5))}}


@pytest.mark.parametrize("name", PROFILES)
def test_regret_is_within_patience(name):
    """Fails if loading costs more than computing all, in sum or in a request, or far more than the better choice."""
    rate, bound = PROFILES[name]
    for seed, is_whole in ((1, True), (2, False)):
        done = simulate(rate, seed, is_whole)
        assert done.to_computing <= 1.02 and done.p95 <= 1.25, (is_whole, done.to_computing, done.p95)
        assert max(done.sure) <= 1 + PATIENCE + 0.1, (is_whole, max(done.sure))
        assert done.to_better <= bound, (is_whole, done.to_better)


def test_a_fast_link_is_used_and_a_rise_is_found():
    assert simulate(lambda _: 64).to_computing <= 0.1
    done = simulate(lambda i: 64 if i >= 150 else 1 / 64)
    assert sum(done.cut[20:]) <= 1 and not any(done.arrived[20:150])
    assert min(at for at, n in zip(done.at, done.arrived) if at > done.at[150] and n) - done.at[150] <= 10
    # Here the fixed time is longer than the computing of a block, so a probe shows the rise only if the fixed time is known.
    done = simulate(lambda i: 64 if i >= 150 or i < 50 else 1 / 64, fixed_s=0.008)
    assert all(done.arrived[200:]) and not any(done.arrived[70:150])
    # Here the first load is cut in its fixed time, so no two loads show it.
    assert all(simulate(lambda _: 64, seed, False, 0.012).to_computing < 0.9 for seed in (1, 2, 3, 4))


def known(**settings):
    """A Cost that knows this engine, 1 ms and a rate of 64 for another host, and that an SSD has a rate of 1/2."""
    cost = Cost(**settings)
    for n in range(256, 2048, 64):
        cost.computing.add([(n, 0), (64, 512)], compute_s(n, 0) + compute_s(64, 512) - S)
    for i, (places, rate) in enumerate([(b"\1" * 64, 64), (b"\2" * 64, 1 / 2)]):
        cost.began(i, places, BYTES)
        cost.ended(i, i - 1.0, 0.001 + 64 * BYTES / BREAK_EVEN / rate, 64, False)
    return cost


def test_what_is_chosen():
    """Fails if a mode, the first load, an SSD in a hit, loads under way or several cache groups are not respected."""
    assert [Cost("never").choose(0, b"\1" * n, BYTES, TOKENS, 0).blocks for n in (0, 99)] == [0, 0]
    always = Cost("always", load_max_s=3).choose(0, b"\2", BYTES, TOKENS, 0)
    assert always.blocks == 1 and always.end_s(0) == always.end_s(1) == 3
    assert [Cost().choose(0, b"\1" * n, BYTES, TOKENS, 0).blocks for n in (7, 8)] == [0, 8]
    cost = Cost()
    for i in range(5):  # without a step of computing, the fifth hit is computed
        assert cost.choose(0, b"\1" * 8, BYTES, TOKENS, 0).blocks == (8 if i < 4 else 0)
        cost.began(i, b"\1" * 8, BYTES)
    for wrong in (lambda: Cost("sometimes"), lambda: known().choose(0, b"\1\3", BYTES, TOKENS, 0)):
        with pytest.raises(ValueError):
            wrong()
    cost, hit = known(), b"\1" * 64 + b"\2" * 32
    assert [cost.choose(t, hit, BYTES, TOKENS, 0)[::5] for t in (1, 5, 6)] == [(64, None), (64, 64), (64, None)]
    choice = cost.choose(7, b"\1" * 64, BYTES, TOKENS, 1024)
    assert choice.end_s(64) == pytest.approx(compute_s(2048, 1024) * (1 + PATIENCE) - S, rel=0.1)
    assert choice.end_s(0) == pytest.approx(compute_s(2048, 1024) * PATIENCE, rel=0.1)
    whole = known(keeps_prefix=False).choose(7, b"\1" * 64, BYTES, TOKENS, 1024)
    assert whole.blocks == 64 and whole.end_s(64) == whole.end_s(0) == choice.end_s(0)
    cost.began("another", b"\1" * 8192, BYTES)
    assert cost.choose(7, b"\1" * 64, BYTES, TOKENS, 0).blocks == 0


def test_loads_at_a_time_share_a_link():
    """Fails if the bytes of a load do not count for another one, or all those of a long load count for a short one."""
    for others, own, took, per_block_s in ((64, 64, 1.0, 1 / 128), (64, 1, 0.05, 0.05 / 4.2)):
        cost = known()
        for blocks, seconds in ((others, 1.0), (own, took)):
            cost.began("load", b"\1" * blocks, BYTES)
            cost.ended("load", 10.0, seconds, blocks, False)
        assert cost.loading.per_byte()[1] * BYTES == pytest.approx(per_block_s, rel=0.45)


def test_a_compilation_moves_little_and_a_choice_is_fast():
    r, computing = random.Random(5), Computing()
    for i in range(6):
        n = r.randrange(256, 2048)
        computing.add([(n, 0)], compute_s(n, 0) * noise(r) * (1 if i else 100))
        assert (computing.seconds(1000, 0) is None) == (i < 2)
    assert computing.seconds(1000, 0) == pytest.approx(compute_s(1000, 0), rel=0.2)
    computing = Computing()
    for _ in range(3):  # of one size: the time is taken to be that of its tokens
        computing.add([(1000, 0)], 0.2)
    assert computing.seconds(500, 0) == pytest.approx(0.1, rel=0.15)
    cost, places = known(), bytes(r.randrange(3) for _ in range(8192))
    assert min(timeit.repeat(lambda: cost.choose(0, places, BYTES, TOKENS, 0), number=1, repeat=20)) < 0.003  # 0.5 ms if idle
