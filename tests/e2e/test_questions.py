# SPDX-License-Identifier: Apache-2.0
"""What the command line asks and shows on a terminal: the question before many keys are removed, and progress."""
import re
import time

import pytest

from clients import PATHS, Shell
from conftest import TIER, wait_until
from test_top import Terminal


def on_terminal(bench, keys, *args, slowly=None):
    """Runs a verb on a terminal, types the keys at its question, and returns all that it printed and its exit code.

    slowly: a daemon that runs for about a millisecond in twenty meanwhile, for two seconds at most."""
    terminal = Terminal(bench, *args)
    if keys is not None:
        wait_until(lambda: "Type yes to go on" in terminal.plain(), 20, "the question")
        terminal.type(keys)
    end = time.monotonic() + 2
    while slowly and terminal.proc.poll() is None and time.monotonic() < end:
        slowly.freeze()
        terminal.plain()
        time.sleep(0.02)
        slowly.thaw()
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


def test_preparation_of_bench_is_bounded_and_shows_progress(bench):
    """Fails if puts of small objects prepare for minutes, or if a person sees nothing meanwhile."""
    terminal = Terminal(bench, "bench", "--op", "put", "--size", "64", "--keys", "1000000", "--seconds", "1s")
    wait_until(lambda: re.search(r"\d %, \d+ of 1000000 calls of the first pass, \d+ s left", terminal.plain()), 30, "the progress")
    wait_until(lambda: (terminal.plain(), terminal.proc.poll())[1] is not None, 60, "the end")
    said = terminal.plain()
    assert terminal.proc.returncode == 0 and re.search(r"wrong bytes +0", said), said
    assert re.search(r"stopped at \d+ of 1000000 calls, after 2.0 s", said), said


@pytest.mark.skipif(TIER == "quick", reason="the filling has 20 s, and the test waits for their end")
@pytest.mark.pool(memory="256MiB")
def test_filling_of_bench_stops_at_its_limit(pool):
    """Fails if bench fills a set without end at a master that is slow, or does not say how far it came, and what to change."""
    terminal = Terminal(pool.bench, "bench", "--master", pool.addr, "--op", "exists", "--keys", "1500000", "--seconds", "1s")
    shown = r"\d %, (\d+) of 1500000 objects put, \d+ s left"
    stopped = r"stopped after 20 s, at \d+ of 1500000 objects: give fewer --keys, a smaller --set, or more --seconds\n"
    seen = 0

    def has_moved():
        return len(re.findall(shown, terminal.plain())) > seen or re.search(stopped, terminal.plain())

    while not re.search(stopped, terminal.plain()):
        wait_until(has_moved, 30, "progress, or the limit")
        seen = len(re.findall(shown, terminal.plain()))
        pool.master.freeze()
        time.sleep(2)  # a master that answers nothing
        pool.master.thaw()
    wait_until(lambda: (terminal.plain(), terminal.proc.poll())[1] is not None, 60, "the end")
    assert terminal.proc.returncode == 1 and "(DEADLINE)" in terminal.plain(), terminal.plain()
    assert stored(pool) == 0


@pytest.mark.limit(180)
def test_fsck_and_snapshot_show_progress(make_pool, bench):
    """Fails if a person who waits for them sees nothing, or a line of progress stays, or stands in output for a program."""
    pool = make_pool(nodes=2, memory="64MiB", data_dir=f"{bench.home}/data")
    client = Shell(bench, pool.addr, "client", **PATHS["shm"])
    for n, verb, shown, end in ((50000, "fsck", "keys", r"  verdict +clean\n.*\n  node\d +\d+ "),
                                (200000, "snapshot", "objects written", r"\n  objects +200000\n")):
        assert client(f"bput {verb}/ 0 {n - stored(pool)} 64")["results"].keys() == {"OK"}
        line = rf"\d %, \d+ of {n} {shown}, \d+ s left"
        for _ in range(8):  # where this process had to wait for a processor, the master was fast, and there was nothing to show
            said, code = on_terminal(bench, None, verb, "--master", pool.addr, slowly=pool.master)
            if code != 0 or re.search(line, said):
                break
        assert code == 0 and re.search(line, said) and re.search(end, said, re.S), said[-2000:]
        assert "left" not in said[said.rindex("\x1b[K"):], said[-2000:]
        r = pool.kvpool(verb, "--json", timeout=90)
        assert r.rc == 0 and r.err == "" and r.json["objects"] == n, r
