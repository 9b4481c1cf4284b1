# SPDX-License-Identifier: Apache-2.0
"""The live view on a pseudo terminal, and the lines of `kvpool stat --watch`: what they show of a real pool, keys, sizes, a master that
is away, names that would move the cursor, and the terminal as it was before."""
import contextlib
import fcntl
import json
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import termios

import pytest

from conftest import PROGRAMS, SLOW, _Loose, wait_until

ESCAPES = re.compile(r"\x1b\[(?:\d+;1H|0?m|[17]m|\?1049[hl]|\?25[hl])")  # all that the view may send
HOSTILE = "\x1b[31m<b>\u009b2J"


class Terminal:
    """A pseudo terminal with a program in front, and the rows that it shows."""

    def __init__(self, bench, *args, columns=80, rows=24):
        self.fd, slave = pty.openpty()
        os.set_blocking(self.fd, False)
        self.raw, self.rows = "", {}
        self.resize(columns, rows)
        self.slave, self.before = slave, termios.tcgetattr(slave)

        def own_terminal():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.proc = subprocess.Popen([str(PROGRAMS["kvpool"]), *args], env=bench.env(TERM="xterm"), preexec_fn=own_terminal,
                                     stdin=slave, stdout=slave, stderr=slave)
        bench.daemons.append(_Loose(self.proc, "kvpool"))

    def resize(self, columns, rows):
        self.columns, self.rows = columns, {}
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys):
        os.write(self.fd, keys.encode())

    def text(self):
        """The rows as they are now. Fails if anything but the view's own sequences and printable ASCII has arrived."""
        with contextlib.suppress(OSError):  # no data; or the program has ended
            while part := os.read(self.fd, 65536):
                self.raw += part.decode("latin-1")
        whole = re.sub(r"\x1b[^a-zA-Z]*$", "", self.raw)  # the end of what arrived may be half of a sequence
        for number, text in re.findall(r"\x1b\[(\d+);1H(?:\x1b\[[17]m)?([^\x1b]*)", whole):
            self.rows[int(number)] = text
        assert not re.search(r"[^\x20-\x7e\r\n]", ESCAPES.sub("", whole)), "a byte of a name reached the terminal"
        self.raw = self.raw[max(0, self.raw.rfind("\x1b[1;1H")):]
        assert all(len(t) <= max(self.columns, 80) for t in self.rows.values())
        return "\n".join(self.rows[n].rstrip() for n in sorted(self.rows))

    def plain(self):
        """All that a program without a view has printed so far."""
        with contextlib.suppress(OSError):
            while part := os.read(self.fd, 65536):
                self.raw += part.decode("latin-1")
        return self.raw.replace("\r\n", "\n")

    def shows(self, *wanted, timeout=10):
        """Waits until the view has all of these patterns, and returns its text."""
        try:
            return wait_until(lambda: (t := self.text()) and all(re.search(w, t, re.M) for w in wanted) and t, timeout, f"{wanted} in the view")
        except pytest.fail.Exception:
            print(self.text())
            raise

    def ended(self):
        """Waits for the program's end, checks that the terminal is as before, and returns the exit code."""
        code = wait_until(lambda: (self.text(), self.proc.poll())[1] is not None and [self.proc.returncode], 10, "the end")[0]
        self.text()
        assert termios.tcgetattr(self.slave) == self.before
        assert self.raw.rstrip().endswith("\x1b[?1049l"), self.raw[-200:]
        return code


def start_top(pool, *args, **size):
    return Terminal(pool.bench, "top", "--master", pool.addr, "--interval", "200ms", *args, **size)


def test_a_pool_keys_sizes_and_a_killed_master(bench, make_pool):
    pool = make_pool(nodes=2, data_dir=os.path.join(bench.home, "data"))
    assert pool.put("k", b"value", "--tenant", HOSTILE + "t" * 100).rc == 0
    top = start_top(pool)
    top.shows(r"kvpool top .*127", r"2 nodes up of 2", r"wrong +nothing", r"node1 +up", r"^ +\\x1b\[31m<b>\\xc2\\x9b")
    assert max(map(len, top.rows.values())) == 80
    load = bench.popen("kvpool", "bench", "--op", "batch_get", "--size", "4KiB", "--set", "4MiB", "--seconds", "600s",
                       "--master", pool.addr, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    top.shows(r"gets [1-9]\d*/s [\d.]+ [KMG]iB/s", r"now 100.0 %")
    top.type("c")
    top.shows(r"^calls", r"^ +get +[1-9]\d*/s +\d+\.\d")  # messages a second, and their median
    top.type("n>>>")
    top.shows(r"^nodes", r"fullv")
    top.type("/node2\r")
    assert not re.search(r"^ +node1 ", top.shows(r"1 of 2 match"), re.M)
    top.type("\x1b")
    top.resize(200, 50)
    top.shows(r"^ +node1 .*up.*\d+\.\d %.*[0-9a-f]{32}$", r"transport +nodes", timeout=5)
    wait_until(lambda: len(top.text().splitlines()) == 50, 5, "a view of 50 lines")
    top.type("p")
    frozen = top.shows("PAUSED")
    load.send_signal(signal.SIGKILL)
    load.wait()
    assert top.shows(r"PAUSED").splitlines()[3] == frozen.splitlines()[3]
    top.type("p")
    pool.master.kill9()
    top.shows(r"^no answer +for", r"Asking again", timeout=20)
    pool.master = bench.master(data_dir=pool.master.data, listen=pool.master.listen, name="master2")
    wait_until(lambda: (top.type("p"), "no answer" not in top.text())[1], 20, "the answers to return")
    top.type("q")
    assert top.ended() == 0


@pytest.mark.parametrize("end", ["ctrl-c", "sigterm", "sighup", "hidden by ctrl-z"])
def test_the_terminal_is_as_before(pool, end):
    top = start_top(pool)
    top.shows("2 nodes up of 2")
    if end == "ctrl-c":
        top.type("\x03")
    elif end == "hidden by ctrl-z":
        top.type("\x1a")
        wait_until(lambda: (top.text(), top.raw.rstrip().endswith("\x1b[?1049l"))[1], 10, "the view to stop")
        wait_until(lambda: termios.tcgetattr(top.slave) == top.before, 5, "the terminal to be as before")
        top.raw, top.rows = "", {}
        top.proc.send_signal(signal.SIGCONT)
        top.shows("2 nodes up of 2")
        top.type("q")
    else:
        top.proc.send_signal(signal.SIGTERM if end == "sigterm" else signal.SIGHUP)
    assert top.ended() == 0


def test_a_frozen_master_holds_up_no_key(pool):
    top = start_top(pool)
    top.shows("2 nodes up of 2")
    pool.master.freeze()
    top.shows(r"^no answer +for [2-9]", timeout=10)
    top.type("h")
    top.shows("this text")
    top.type("q")
    assert top.ended() == 0
    pool.master.thaw()


def test_forty_nodes(make_pool):
    pool = make_pool(nodes=40, memory="1MiB")
    top = start_top(pool)
    assert "40 nodes up of 40" in top.shows(r"^nodes: 1 to \d+ of 40")
    for _ in range(6):
        top.type("\x1b[6~")
    top.shows(r"^nodes: \d+ to 40 of 40")
    pool.nodes[7].kill9()
    top.shows(r"wrong +node node8 is lost", r"39 nodes up of 40", timeout=20)
    top.type("q")
    assert top.ended() == 0


def test_where_top_cannot_run(pool, bench):
    """Fails if top runs without a terminal, or with figures of another pool."""
    r = pool.kvpool("top")
    assert r.rc == 2 and "kvpool stat --watch" in r.err and not r.out, r
    r = pool.kvpool("top", "--http", "nowhere")
    assert r.rc == 2 and "HOST:PORT" in r.err, r
    away = Terminal(bench, "top", "--master", "127.0.0.1:1")
    assert wait_until(lambda: away.proc.poll(), 10, "the end") == 3 and "1049" not in away.text()
    other = bench.master(name="other")
    top = Terminal(bench, "top", "--master", pool.addr, "--http", other.http, columns=120, rows=40)
    top.shows(r"calls: none. No metrics from http://127.* another pool")
    top.type("q")
    assert top.ended() == 0


def test_lines_for_pipes(bench, make_pool):
    pool = make_pool(nodes=1, data_dir=os.path.join(bench.home, "data"))
    watch = bench.popen("kvpool", "stat", "--watch=100ms", "--master", pool.addr, "--deadline", "1s", stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE, text=True)

    def line():
        return dict(pair.split("=", 1) for pair in shlex.split(watch.stdout.readline()))

    first = line()
    assert first["status"] == "ok" and first["nodes_up"] == "1" and float(first["puts_per_s"]) == 0 and "hit_ratio" not in first
    assert pool.put("k", b"value").rc == 0
    assert wait_until(lambda: float(line().get("puts_per_s", 0)) > 0, 5, "the put") and pool.get("k").rc == 0
    pool.master.kill9()
    assert wait_until(lambda: (found := line()).get("error") and found, 10 * SLOW, "the error")["detail"]
    pool.master = bench.master(data_dir=pool.master.data, listen=pool.master.listen, name="master2")
    wait_until(lambda: "puts_per_s" in line(), 20, "the master to be back")
    watch.stdout.close()
    assert watch.wait(10) == 0 and "standard output" not in watch.stderr.read()
    watch = bench.popen("kvpool", "stat", "--watch", "--json", "--master", pool.addr, stdout=subprocess.PIPE)
    assert json.loads(watch.stdout.readline())["role"] == "leader"
    assert pool.kvpool("stat", "--watch", "--all").rc == 2 and pool.kvpool("stat", "--watch=0").rc == 2
    assert pool.kvpool("stat", "--watch", "5s").rc == 2
