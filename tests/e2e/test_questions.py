# SPDX-License-Identifier: Apache-2.0
"""What the command line asks and shows on a terminal: the question before many keys are removed, and progress."""
import re

import pytest

from conftest import wait_until
from test_top import Terminal


def on_terminal(bench, keys, *args):
    """Runs a verb on a terminal, types the keys at its question, and returns all that it printed and its exit code."""
    terminal = Terminal(bench, *args)
    if keys is not None:
        wait_until(lambda: "Type yes to go on" in terminal.plain(), 20, "the question")
        terminal.type(keys)
    wait_until(lambda: (terminal.plain(), terminal.proc.poll())[1] is not None, 60, "the end")
    return terminal.plain(), terminal.proc.returncode


def stored(pool):
    return pool.kvpool("stat", "--json").json["pool"]["objects"]


@pytest.fixture
def ten_keys(pool):
    for i in range(9):
        assert pool.put(f"a{i}", b"12345").rc == 0
    assert pool.put("b\x1b[1m", b"1234567890").rc == 0
    return pool


MANY = ((["rm", "--all"], 10, 55), (["rm", "--regex", "^a[0-3]"], 4, 20), (["rm", "--regex", "z"], 0, 0), (["bump"], 10, 55))


@pytest.mark.parametrize(("what", "n", "size"), MANY, ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_dry_runs_and_answers_but_yes_remove_nothing(ten_keys, what, n, size):
    shown = ten_keys.kvpool(*what, "--dry-run", "--json").json
    assert (shown["would_remove"], shown["size_bytes"], len(shown["examples"])) == (n, size, min(n, 5)), shown
    for keys in ("no\n", "y\n", "\n", "yes and no\n", "\x04"):
        said, code = on_terminal(ten_keys.bench, keys, *what, "--master", ten_keys.addr)
        assert code == 1 and "nothing was removed" in said, said
    assert stored(ten_keys) == 10


def test_dry_run_shows_names_safely_and_refuses_bad_patterns(ten_keys):
    text = ten_keys.kvpool("rm", "--regex", "^b", "--dry-run").text
    assert re.search(r"would be removed +1\n +bytes +10 B\n +such as b\\x1b\[1m\n", text), text
    assert ten_keys.put("a" * 100 + "b", b"1").rc == 0
    for pattern in ("(", "(a+)+$|((((.*)*)*)*)*z"):  # not a pattern, and one that takes too many steps
        dry, wet = (ten_keys.kvpool("rm", "--regex", pattern, *more) for more in (["--dry-run"], []))
        assert (dry.rc, "BAD_PATTERN" in dry.err) == (wet.rc, "BAD_PATTERN" in wet.err) and wet.rc != 0, (dry, wet)
    r = ten_keys.kvpool("rm", "a0", "--dry-run")
    assert r.rc == 2 and "--all and --regex" in r.err, r


def test_yes_removes_and_scripts_are_not_asked(ten_keys):
    pool = ten_keys
    said, code = on_terminal(pool.bench, "yes\n", "rm", "--regex", "^a0", "--master", pool.addr)
    assert code == 0 and "match ^a0" in said and re.search(r"removed +1\b", said), said
    said, code = on_terminal(pool.bench, "yes\n", "rm", "--all", "--master", pool.addr)
    assert code == 0 and "all 9 objects of tenant default" in said and re.search(r"removed +9\b", said), said
    for what in (["bump", "--yes"], ["rm", "--all", "--yes"]):
        assert pool.put("k", b"v").rc == 0
        said, code = on_terminal(pool.bench, None, *what, "--master", pool.addr)
        assert code == 0 and "Type yes" not in said and pool.exists("k").rc == 1, said
    for what in (["bump"], ["rm", "--all"], ["rm", "--regex", "k"]):
        assert pool.put("k", b"v").rc == 0
        r = pool.kvpool(*what)
        assert r.rc == 0 and "Type yes" not in r.err and pool.exists("k").rc == 1, r
    said, code = on_terminal(pool.bench, None, "rm", "--yes", "k", "--master", pool.addr)
    assert code == 1 and "Type yes" not in said, said
