# SPDX-License-Identifier: Apache-2.0
"""Two builds beside each other: each line is measured of both in turns, and a line is worse if the median of new to old is below
WORSE_BELOW and its interval excludes 1. Such a line is measured once more; it is worse if it is so both times."""
import contextlib
import math
import statistics

from measure import Failed, say

WORSE_BELOW = 0.95
CONFIDENCE = 0.95


def interval(values):
    """(low, high): order statistics between which the median lies with CONFIDENCE (the sign test's interval; it has no
    assumption about the distribution). All there is where there are too few values for that."""
    values, n, rank, below = sorted(values), len(values), 0, 0.0
    while True:
        below += math.comb(n, rank) / 2 ** n
        if 2 * below > 1 - CONFIDENCE or rank >= n // 2:
            break
        rank += 1
    rank = max(rank - 1, 0)
    return values[rank], values[n - 1 - rank]


def is_worse(ratios):
    return statistics.median(ratios) < WORSE_BELOW and interval(ratios)[1] < 1


def paired(new, old, turns):
    """[(new, old)]: who is first alternates, so that neither is always the one after the other."""
    pairs = []
    for turn in range(turns):
        if turn % 2:
            of_new = new()
            pairs.append((of_new, old()))
        else:
            of_old = old()
            pairs.append((new(), of_old))
    return pairs


class Against:
    """rows: a dict a turn and a result a line, as a CSV has them."""

    def __init__(self, new, old, turns):
        self.builds, self.turns, self.rows, self.worse = (new, old), turns, [], 0

    def pairs(self, line):
        """Half of the turns with the new build's pool opened first, half with the old one's: two copies of one build differed by
        8 % where one was always the first, since the pools' memory is not the same."""
        turns = line.turns or self.turns
        new, old = self.builds
        return self.opened(line, new, old, turns - turns // 2) + [
            (of_new, of_old) for of_old, of_new in self.opened(line, old, new, turns // 2)]

    @staticmethod
    def opened(line, first, second, turns):
        if turns == 0:
            return []
        with contextlib.ExitStack() as stack:
            return paired(*[stack.enter_context(line.sampler(build)) for build in (first, second)], turns)

    def measure(self, line):
        for attempt in (1, 2):
            pairs = self.pairs(line)
            ratios = [new / old if line.better == "more" else old / new for new, old in pairs]
            for number, (new, old) in enumerate(pairs, 1):
                self.rows.append(dict(line=line.name, kind="turn", turn=number, ours=round(new, 4), limit=round(old, 4),
                                      value=round(ratios[number - 1], 4), note=f"run {attempt}"))
            low, high = interval(ratios)
            # A line of one turn has no noise to speak of: bytes and shares of a full pool.
            worse = is_worse(ratios) if len(pairs) > 1 else ratios[0] < 0.995
            verdict = "WORSE" if worse else "pass"
            news, olds = zip(*pairs)
            self.result(line, verdict, statistics.median(ratios),
                        f"{low:.3f} to {high:.3f}; {statistics.median(news):,.4g} now, {statistics.median(olds):,.4g} before; "
                        f"{len(pairs)} turns, run {attempt}")
            if not worse:
                return
        self.worse += 1

    def result(self, line, verdict, ratio, note):
        text = "-" if ratio is None else f"{ratio:.3f}"
        say(f"{line.name:<15} {'new to old' if line.better == 'more' else 'old to new':<11} {text:>7}  {verdict:<5}  {note}")
        self.rows.append(dict(line=line.name, kind="result", value=ratio, bound=WORSE_BELOW, better="more", asked=line.asked,
                              verdict=verdict, note=note))

    def run(self, lines):
        for line in lines:
            if line.sampler is None:
                continue
            try:
                self.measure(line)
            except (Failed, RuntimeError, OSError) as e:
                self.worse += 1
                self.result(line, "FAIL", None, str(e))
