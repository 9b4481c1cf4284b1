# SPDX-License-Identifier: Apache-2.0
"""Whether to load a hit from the pool or to compute it, and when a load has to end.

The scheduler owns one Cost and calls it in its own thread. Nothing here reads a clock, blocks, or knows vLLM. Times are
seconds of any clock that does not go back. A place says where a block lies: 0 memory of this host, 1 memory of another
host, 2 an SSD.

The rule. choose() takes the block boundary with the least sum of loading the blocks before it and computing the rest. The
load may last `patience` times the computing time of its tokens, plus the computing time of the blocks that have arrived,
so each arrived block moves the end, and a load that arrives whole has 1 + patience times the computing time of its tokens.
A load that fails at any moment has thus lost at most `patience` times that computing time, beyond what its arrived blocks
saved, so no request and no sum of requests takes longer than 1 + patience times computing, whatever the link does. A cut
load at least halves the measured rate, so a link that stays slow costs this a few times only; after that the loss against
the best choice is the error of the estimates, plus what a faster link would have saved before the next probe finds it.
"""
from __future__ import annotations

import math
import re
from collections import deque
from itertools import islice
from typing import Deque, Dict, Hashable, Iterable, List, NamedTuple, Optional, Sequence, Tuple

Bytes = Sequence[float]  # of each place

_STEPS = 32  # which the fit remembers: an engine that becomes faster or slower is known after half of them
_STEP_TOKENS = 32  # a step in which no request has so many is a decode step; its time depends on memory, not on tokens
_RIDGE = 0.3  # of a step: steps of about one size do not show the parts, and then the part of n is the likely one
_CANDIDATES = 64  # evenly spaced boundaries that are tried beside the ends of the first 4 times as many runs
_FIXED = (1e-3, 3e-3 ** -2)  # a fixed time before the first load, and its weight: an error of 3 ms
_NOISE = 1.2  # a load is begun only if it would be in time if it took longer by this
_RUN = re.compile(rb"\x00+|\x01+|\x02+")


def _solve(a: List[List[float]], v: List[float]) -> List[float]:
    """The x that solves a x = v. While an unknown is negative, the most negative one is set to 0 and the rest solved again."""
    free = [0, 1, 2]
    while True:
        rows = [[a[i][j] for j in free] + [v[i]] for i in free]
        for i, pivot in enumerate(rows):  # Gauss-Jordan; a is positive definite, so no pivot is 0
            for other in rows:
                if other is not pivot:
                    factor = other[i] / pivot[i]
                    other[:] = [x - factor * y for x, y in zip(other, pivot)]
        x = [0.0] * 3
        for column, (i, row) in enumerate(zip(free, rows)):
            x[i] = row[-1] / row[column]
        if min(x) >= 0:
            return x
        free.remove(x.index(min(x)))


class Computing:
    """The time of an engine's step: s + a n + b n c, for n tokens with a mean of c tokens before each.

    The fit is by least squares over the last 32 prefill steps, weighted again by the residuals of each round (iteratively
    reweighted least squares with Cauchy's weights, Holland and Welsch 1977). A step weighs by the inverse square of its time,
    and a step that took far longer than the others, such as one that compiled, has almost no weight."""

    def __init__(self) -> None:
        self._steps: Deque[Tuple[float, float, float]] = deque(maxlen=_STEPS)  # 1e-3 n, 1e-6 n c, seconds
        self._fit: Optional[Tuple[float, float, float]] = None
        self._is_stale = False

    def add(self, chunks: Iterable[Tuple[int, int]], seconds: float) -> None:
        """Counts a step. chunks: for each request in it, its new tokens and the tokens before them."""
        tokens, context, longest = 0.0, 0.0, 0
        for n, before in chunks:
            tokens += n
            context += n * (before + n / 2)
            longest = max(longest, n)
        if longest >= _STEP_TOKENS and seconds > 0:
            self._steps.append((tokens / 1e3, context / 1e6, seconds))
            self._is_stale = True

    def fit(self) -> Optional[Tuple[float, float, float]]:
        """s, a and b in seconds, or None before the third prefill step."""
        if self._is_stale and len(self._steps) >= 3:
            self._is_stale = False
            expected = [seconds for _, _, seconds in self._steps]
            for _ in range(3):
                m00 = m01 = m02 = m11 = m12 = m22 = v0 = v1 = v2 = 0.0
                for (n, c, seconds), e in zip(self._steps, expected):
                    w = 1 / (e * e + 10 * (seconds - e) ** 2)
                    wn, wc = w * n, w * c
                    m00, m01, m02, m11, m12, m22 = m00 + w, m01 + wn, m02 + wc, m11 + wn * n, m12 + wn * c, m22 + wc * c
                    v0, v1, v2 = v0 + w * seconds, v1 + wn * seconds, v2 + wc * seconds
                few = 1 + _RIDGE / len(self._steps)
                s, a, b = _solve([[m00 * few, m01, m02], [m01, m11 * (1 + 1e-9), m12], [m02, m12, m22 * few]], [v0, v1, v2])
                expected = [max(s + a * n + b * c, 1e-9) for n, c, _ in self._steps]
            self._fit = (s, a / 1e3, b / 1e6)
        return self._fit

    def seconds(self, tokens: int, context: int) -> Optional[float]:
        """The time of a step with this one request, or None before the third prefill step."""
        fit = self.fit()
        return None if fit is None else fit[0] + tokens * (fit[1] + fit[2] * (context + tokens / 2))


class Loading:
    """The time of a load: a fixed time, plus for each place its bytes by its rate.

    The fixed time is the intercept of the line through two loads of different size that follow each other: the mean of the
    last 16 such pairs and of 1 ms, each weighted by its inverse variance for a noise of 10 % in the times. A load multiplies
    the times a byte of its places by measured over expected time, to the power of their shares of the expected time
    (exponentiated gradient, Kivinen and Warmuth 1997). Of a factor within 2, which may be noise, the root is taken."""

    def __init__(self) -> None:
        self.fixed_s = _FIXED[0]
        self._per_byte: List[Optional[float]] = [None, None, None]
        self._last: Optional[Tuple[List[float], float]] = None  # bytes and seconds of the last load that was not cut
        self._pairs: Deque[Tuple[float, float]] = deque(maxlen=16)  # intercept, and its weight: 1 / (its error)²
        self._fixed_error_s = 0.0

    def per_byte(self) -> Optional[List[float]]:
        """Seconds a byte of each place, or None before the first load. A place without a load is as the nearest one with."""
        last = next((w for w in self._per_byte if w is not None), None)
        if last is None:
            return None
        known = []
        for w in self._per_byte:
            last = last if w is None else w
            known.append(last)
        return known

    def add(self, arrived: Bytes, seconds: float, cut: Optional[int] = None, block_bytes: float = 0,
            is_block: bool = False) -> None:
        """Counts a load, in the whole of whose time these bytes arrived. cut: the place of the block for which it waited when
        it was cut, whose rate is at least halved, or None. is_block: the load was of one block."""
        total = sum(arrived) + (0 if cut is None else block_bytes)
        if seconds <= 0 or total <= 0:
            return
        per_byte = self.per_byte()
        if per_byte is None:
            per_byte = [max(seconds - self.fixed_s, seconds / 10) / total] * 3
        parts = [w * n for w, n in zip(per_byte, arrived)]
        if cut is not None:  # the block had not arrived, so the rate is at most the one with it
            if not self._pairs:
                self._see_fixed(per_byte, [n + block_bytes * (place == cut) for place, n in enumerate(arrived)], seconds)
            others = self.fixed_s + sum(parts) - parts[cut]
            self._scale(cut, per_byte, max(2.0, (seconds - others) / (parts[cut] + per_byte[cut] * block_bytes)))
            return
        self._see_fixed(per_byte, list(arrived), seconds)
        self._last = (list(arrived), seconds)
        factor = max(seconds - self.fixed_s, seconds / 10) / sum(parts)
        if is_block or not 0.5 < factor < 2:
            # The link may have changed, and is taken for as good as it may be: if it is not, the next load is cut early.
            error = self._fixed_error_s if self._pairs else seconds if is_block else 0.0
            factor = max(seconds - self.fixed_s - 2 * error, seconds / 10) / sum(parts)
        else:
            factor **= 0.5
        for place, part in enumerate(parts):
            if part:
                self._scale(place, per_byte, factor ** (part / max(parts)))

    def _see_fixed(self, per_byte: List[float], arrived: List[float], seconds: float) -> None:
        if self._last is None:
            return
        pair = [(sum(w * n for w, n in zip(per_byte, of)), s) for of, s in (self._last, (arrived, seconds))]
        (x, small), (y, large) = sorted(pair)
        if y > 1.9 * x:
            fixed_s = min(max((small * y - large * x) / (y - x), 0.0), small)
            self._pairs.append((fixed_s, (0.1 * math.hypot(small * y, large * x) / (y - x)) ** -2))
            total = sum(weight for _, weight in [_FIXED, *self._pairs])
            self.fixed_s = sum(s * weight for s, weight in [_FIXED, *self._pairs]) / total
            self._fixed_error_s = total ** -0.5

    def _scale(self, place: int, per_byte: List[float], factor: float) -> None:
        self._per_byte[place] = min(max(per_byte[place] * factor, 1e-15), 1.0)


class Choice(NamedTuple):
    """How many blocks of a hit to load, and the end of the load. All times begin with the call of choose()."""

    blocks: int  # 0: compute all
    patience_s: float  # the end of a load of which no block has arrived
    block_s: float  # an arrived block moves the end by this, and the i-th block by (2i - 1) growth_s more
    growth_s: float
    max_s: float  # no end is later
    probe: Optional[int]  # the block of the hit to read in the background, so that its place is measured

    def end_s(self, arrived: int) -> float:
        """The end of the load while its first `arrived` blocks are there."""
        return min(self.max_s, self.patience_s + arrived * (self.block_s + arrived * self.growth_s))


class Cost:
    """The choice between loading and computing, and what it is made from.

    mode: "auto", or "always" (each hit is loaded until load_max_s) or "never". keeps_prefix: a load that ends early keeps
    what has arrived; with several cache groups it does not, and then arrived blocks do not move the end."""

    def __init__(self, mode: str = "auto", patience: float = 0.1, load_max_s: float = 5.0, min_tokens_unknown: int = 256,
                 probe_every_s: float = 5.0, keeps_prefix: bool = True) -> None:
        """Raises ValueError for another mode."""
        if mode not in ("auto", "always", "never"):
            raise ValueError(f"mode is {mode!r}, not auto, always or never")
        self.computing = Computing()
        self.loading = Loading()
        self._mode, self._patience, self._load_max_s = mode, patience, load_max_s
        self._min_tokens_unknown, self._probe_every_s, self._keeps_prefix = min_tokens_unknown, probe_every_s, keeps_prefix
        self._jobs: Dict[Hashable, Tuple[bytes, int]] = {}  # under way: places and block_bytes
        self._ended: Deque[Tuple[float, float, List[float]]] = deque(maxlen=32)  # end, seconds and bytes of the last loads
        self._guesses = 4  # loads to begin before the time of computing is known; then some have to be computed
        self._measured = [float("-inf")] * 3  # when a probe of the place last began, or a load brought blocks of it

    def choose(self, now: float, places: bytes, block_bytes: int, block_tokens: int, context: int) -> Choice:
        """The choice for a request. places: one byte for each block of the hit, in its order; context: tokens before them,
        which the engine has. Raises ValueError for a byte that is no place. It takes 0.5 ms for 8,192 blocks. It may be
        called again and again; only the probe changes, which is due once in probe_every_s for each place."""
        if places.translate(None, b"\0\1\2"):
            raise ValueError("a place is 0, 1 or 2")
        n = len(places)
        if n == 0 or self._mode != "auto":
            return Choice(n if self._mode == "always" else 0, self._load_max_s, 0.0, 0.0, self._load_max_s, None)
        fit, per_byte = self.computing.fit(), self.loading.per_byte()
        if fit is None or per_byte is None:
            k = n if n * block_tokens >= self._min_tokens_unknown and (fit or self._guesses) else 0
        else:
            k = self._best(places, block_bytes, block_tokens, context, fit, per_byte)
        probe = k if k < n and now - self._measured[places[k]] >= self._probe_every_s else None
        if probe is not None:
            self._measured[places[k]] = now
        if fit is None:
            return Choice(k, self._load_max_s, 0.0, 0.0, self._load_max_s, probe)
        block_s, growth_s = self._saves(fit, block_tokens, context)
        patience_s = self._patience * (fit[0] + k * (block_s + k * growth_s))
        moves = 1.0 if self._keeps_prefix else 0.0
        return Choice(k, patience_s, moves * block_s, moves * growth_s, self._load_max_s, probe)

    @staticmethod
    def _saves(fit: Tuple[float, float, float], block_tokens: int, context: int) -> Tuple[float, float]:
        """x and y: k blocks that are not computed save k x + k² y seconds."""
        return block_tokens * (fit[1] + fit[2] * context), fit[2] * block_tokens ** 2 / 2

    def _best(self, places: bytes, block_bytes: int, block_tokens: int, context: int, fit: Tuple[float, float, float],
              per_byte: List[float]) -> int:
        """The boundary with the least sum, of those that a load at the expected rate reaches before its end. In a run of
        blocks of one place loading grows evenly and computing falls faster and faster, so the least sum is at its ends."""
        n = len(places)
        step = -(-n // _CANDIDATES)
        ends = [run.end() for run in islice(_RUN.finditer(places), 4 * _CANDIDATES)]
        block_s, growth_s = self._saves(fit, block_tokens, context)
        loading = self.loading.fixed_s + sum(size * sum(w * of.count(place) for place, w in enumerate(per_byte))
                                             for of, size in self._jobs.values())
        best, least, worst, begin = 0, 0.0, 0.0, 0
        for k in sorted({1, *ends, *range(step, n, step), n}):
            part = places[begin:k]
            loading += block_bytes * sum(w * part.count(place) for place, w in enumerate(per_byte))
            saved = k * (block_s + k * growth_s)
            before = (k - 1) * (block_s + (k - 1) * growth_s) if self._keeps_prefix else 0.0  # while the last is waited for
            worst = max(worst, _NOISE * loading - before)
            is_in_time = worst <= self._patience * (fit[0] + saved) and loading <= self._load_max_s
            if is_in_time and loading - saved < least:
                best, least = k, loading - saved
            begin = k
        return best

    def began(self, job: Hashable, places: bytes, block_bytes: int) -> None:
        """A load of these blocks, or a probe, began."""
        if self._guesses and self.computing.fit() is None:
            self._guesses -= 1
        self._jobs[job] = (places, block_bytes)

    def ended(self, job: Hashable, now: float, seconds: float, arrived: int, is_cut: bool) -> None:
        """The load ended with its first `arrived` blocks, by the report of its slowest rank. is_cut: the time was over; False
        if the next block was not in the pool, or the request was aborted. Raises KeyError for a job that did not begin.

        The loads that ended meanwhile shared their links with this one. Their bytes count, too: those of the part of their
        time in which this one was under way."""
        places, block_bytes = self._jobs.pop(job)
        own = [float(block_bytes * places.count(place, 0, arrived)) for place in range(3)]
        moved = own
        for end, took, others in self._ended:
            part = min(max((end - now + seconds) / took, 0.0), 1.0)
            moved = [n + part * m for n, m in zip(moved, others)]
        if seconds > 0:
            self._ended.append((now, seconds, own))
        cut = places[arrived] if is_cut and arrived < len(places) else None
        self.loading.add(moved, seconds, cut, block_bytes, len(places) == 1)
        for place in {*places[:arrived]}:  # not of a cut load of which nothing arrived: that may have been the connecting
            self._measured[place] = now
        self._guesses = 0 if is_cut else self._guesses
