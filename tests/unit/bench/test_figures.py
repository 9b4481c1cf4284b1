# SPDX-License-Identifier: Apache-2.0
"""Charts, paired turns, what is read out of the master's metrics, and the README's block: the pure parts of bench/."""
import importlib.util
import importlib.machinery
import pathlib
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml

BENCH = pathlib.Path(__file__).resolve().parents[3] / "bench"
sys.dont_write_bytecode = True
sys.path.insert(0, str(BENCH))
import measure  # noqa: E402
import svg  # noqa: E402

NS = "{http://www.w3.org/2000/svg}"


def load(name):
    """A program of bench/ as a module."""
    loader = importlib.machinery.SourceFileLoader(f"bench_{name}", str(BENCH / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def parts(text, name):
    return list(xml.fromstring(text).iter(NS + name))


class Bars(unittest.TestCase):
    def widths(self, *ratios):
        return [float(r.get("width")) for r in parts(svg.bars("t", [("l", ratio, "x") for ratio in ratios]), "rect")]

    def test_longer_is_better_and_twice_is_as_far_as_half(self):
        half, one, twice = self.widths(0.5, 1, 2)
        self.assertAlmostEqual(one - half, twice - one, delta=0.3)
        self.assertGreater(twice, one)

    def test_extremes_are_cut(self):
        low, eight, more = self.widths(0, 8, 1e9)
        self.assertEqual((low, eight), (0, more))

    def test_short_of_what_is_asked_looks_different(self):
        kinds = [r.get("class") for r in parts(svg.bars("t", [("a", 0.99, ""), ("b", 1, "")]), "rect")]
        self.assertEqual(kinds, ["short", "good"])

    def test_text_is_escaped(self):
        self.assertIn("a<b&c", [t.text for t in parts(svg.bars("t", [("a<b&c", 1, "")]), "text")])


class Lines(unittest.TestCase):
    def points(self, series):
        found = parts(svg.lines("t", "x", series), "polyline")
        return [[tuple(map(float, p.split(","))) for p in line.get("points").split()] for line in found]

    def test_x_is_logarithmic_and_y_begins_at_zero(self):
        (a, b, c), = self.points({"s": [(100, 0), (1, 10), (10, 5)]})
        self.assertAlmostEqual(b[0] - a[0], c[0] - b[0], delta=0.3)
        self.assertAlmostEqual(c[1] - b[1], b[1] - a[1], delta=0.3)
        self.assertAlmostEqual(c[1], 34 + 180, 1)

    def test_one_point_is_drawn(self):
        self.assertEqual(len(self.points({"s": [(5, 5)]})[0]), 1)

    def test_too_many_series_are_refused(self):
        with self.assertRaises(ValueError):
            svg.lines("t", "x", {str(i): [(1, 1)] for i in range(svg.SERIES_MAX + 1)})

    def test_numbers_are_short(self):
        self.assertEqual([svg.number(x) for x in (12, 1500, 2e6, 3.25e9)], ["12", "1.5 k", "2 M", "3.25 G"])


class Paired(unittest.TestCase):
    def run_turns(self, ours, limits, wanted):
        ours, limits = iter(ours), iter(limits)
        return measure.paired(lambda: next(ours), lambda: next(limits), wanted)

    def test_the_limit_is_the_mean_of_its_neighbours(self):
        turns, voided = self.run_turns([5, 6], [10, 12, 14], 2)
        self.assertEqual((turns, voided), ([(5, 11), (6, 13)], 0))

    def test_a_ratio_is_shown_with_its_own_pair(self):
        self.assertEqual(measure.median_turn([(5, 10), (90, 100), (1, 10)]), (0.5, 5, 10))
        self.assertEqual(measure.median_turn([(5, 10), (90, 100), (1, 10), (60, 100)]), (0.5, 5, 10))

    def test_seven_of_nine_have_to_be_valid(self):
        self.assertEqual(measure.counted([(1, 1)] * 7, 20, 9), "7 valid turns of 9, 20 void")
        with self.assertRaises(measure.Skip):
            measure.counted([(1, 1)] * 6, 30, 9)

    def test_a_turn_in_which_the_limit_moved_is_void(self):
        turns, voided = self.run_turns([5, 6], [10, 13, 13], 1)
        self.assertEqual((turns, voided), ([(6, 13)], 1))

    def test_turns_are_not_made_for_ever(self):
        turns, voided = self.run_turns([1] * 99, [10, 20] * 99, 2)
        self.assertEqual((turns, voided), ([], 2 * measure.TRIES))


class MasterTimes(unittest.TestCase):
    """What happened between two looks at the master's metrics."""

    def delta(self, before, after):
        """before and after: the steps up to 1 ms, 2 ms, 5 ms and all, and the longest for a frame in ns."""
        looks = []
        for counts, longest in (before, after):
            look = {f'kvpool_master_step_seconds_bucket{{le="{le}"}}': n
                    for le, n in zip(("0.001", "0.002", "0.005", "+Inf"), counts)}
            look |= {f"kvpool_master_step_{kind}_longest_ns": longest if kind == "frame" else 0
                     for kind in ("frame", "tick", "close")}
            look |= {f'kvpool_master_step_run_seconds_bucket{{le="{le}"}}': n
                     for le, n in zip(("0.001", "0.002", "0.005", "+Inf"), counts)}
            look |= {"kvpool_master_step_run_longest_ns": longest, "kvpool_master_pages_missed_total": counts[0],
                     "kvpool_master_pages_ready_total": counts[1]}
            looks.append(look)

        class Master:
            proc = type("Proc", (), {"pid": 0})

        class Pool:
            master = Master

            @staticmethod
            def metrics():
                return looks.pop(0)

        return load("scale").Delta(Pool).end()

    def test_only_what_came_between_the_looks_counts(self):
        delta = self.delta(([10, 12, 15, 16], 9e6), ([1010, 1012, 1016, 1017], 9e6))
        self.assertEqual(delta.above("step_seconds", 0.002), 1)
        self.assertEqual(delta.quantile("step_seconds", 0.99), 0.001)
        self.assertEqual(delta.quantile("step_seconds", 0.9999), 0.005)

    def test_the_longest_is_exact_where_it_is_the_longest_ever(self):
        self.assertEqual(self.delta(([10, 10, 10, 10], 1e5), ([10, 10, 11, 11], 3e6)).longest(), (0.003, "a frame"))

    def test_the_longest_run_is_of_the_time_that_the_thread_ran(self):
        delta = self.delta(([10, 10, 10, 10], 1e5), ([10, 10, 11, 11], 3e6))
        self.assertEqual(delta.longest_run(), (0.003, "a step"))

    def test_pieces_that_were_not_touched_ahead(self):
        self.assertEqual(self.delta(([10, 100, 0, 0], 0), ([12, 200, 0, 0], 0)).missed(), (2, 102))

    def test_the_longest_is_a_bound_where_an_earlier_one_was_longer(self):
        self.assertEqual(self.delta(([10, 10, 10, 11], 9e6), ([10, 11, 11, 12], 9e6)).longest(), (0.002, None))

    def test_a_longest_of_another_kind_does_not_hide_a_longer_step(self):
        self.assertEqual(self.delta(([0, 0, 0, 0], 0), ([5, 5, 6, 6], 4e5)).longest(), (0.005, None))


class Page(unittest.TestCase):
    def test_only_what_is_between_the_marks_is_replaced(self):
        begin, end = "<!-- a writes from here -->", "<!-- to here -->"
        other = f"<!-- b writes from here -->\nolder\n{end}\n"
        text = other + f"before\n{begin}\nold\n{end}\nafter\n"
        self.assertEqual(measure.replace_block(text, "a", ["new"]), other + f"before\n{begin}\nnew\n{end}\nafter\n")

    def test_figures_are_shown_as_they_are_asked_for(self):
        run = load("run")

        def shown(value, bound, asked=""):
            return run.shown(dict(value=value, bound=bound, asked=asked))
        self.assertEqual(shown("0.0482", "0.15", "<= 15 %"), "4.8 %")
        self.assertEqual(shown("701468.2", "300000"), "701,468")
        self.assertEqual(shown("0.99961", "0.997", "5 % held"), "0.9996")
        self.assertEqual(shown("1.0934", "0.9"), "1.09")
        self.assertEqual(shown("", "0.9"), "-")


class Saved(unittest.TestCase):
    """A run behind an earlier one of that day."""

    FIELDS = ["date", "machine", "line", "kind", "value", "bound", "asked", "verdict", "note"]

    def row(self, line, minute, load, value):
        return dict(date=f"2026-11-24 10:{minute} UTC", machine=f"a CPU, Linux, load {load} at the start", line=line, kind="result",
                    value=value, bound=0.9, asked=f"{line}, >= 0.9", verdict="pass", note="9 valid turns of 9, 0 void")

    def test_earlier_rows_stay_and_the_worst_load_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "day.csv"
            measure.append_rows(path, self.FIELDS, [self.row("a", 10, 0.1, 0.95), self.row("b", 10, 0.1, 0.96)])
            rows = measure.append_rows(path, self.FIELDS, [self.row("a", 50, 3.6, 0.91)])
        self.assertEqual([(r["line"], r["value"]) for r in rows], [("a", "0.95"), ("b", "0.96"), ("a", "0.91")])
        text = load("run").told(path, rows)
        self.assertIn("a CPU, Linux, load at most 3.6 at a start; 2026-11-24;", text[1])
        self.assertEqual([line for line in text if "| a," in line],
                         ["| a, >= 0.9 | 0.95 | pass | 9 valid turns of 9, 0 void; 10:10, load 0.1 |",
                          "| a, >= 0.9 | 0.91 | pass | 9 valid turns of 9, 0 void; 10:50, load 3.6 |"])
        self.assertIn("| b, >= 0.9 | 0.96 | pass | 9 valid turns of 9, 0 void |", text)


class TwoBuilds(unittest.TestCase):
    """What bench/run --against says of the turns of two builds."""

    def setUp(self):
        self.against = load("against.py")

    def test_interval_of_the_median(self):
        self.assertEqual(self.against.interval(list(range(1, 16))), (4, 12))  # 96.5 %, from tables of the sign test
        self.assertEqual(self.against.interval([3, 1, 2]), (1, 3))

    def test_worse_is_much_and_sure(self):
        self.assertTrue(self.against.is_worse([0.9] * 15))
        self.assertFalse(self.against.is_worse([0.96] * 15))  # sure, and not much
        self.assertFalse(self.against.is_worse([0.9] * 9 + [1.1] * 6))  # much, and not sure

    def test_who_is_first_alternates(self):
        told = []
        pairs = self.against.paired(lambda: told.append("new") or 1, lambda: told.append("old") or 2, 2)
        self.assertEqual((told, pairs), (["old", "new", "new", "old"], [(1, 2), (1, 2)]))


if __name__ == "__main__":
    unittest.main()
