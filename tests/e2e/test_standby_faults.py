# SPDX-License-Identifier: Apache-2.0
"""Three masters and three members of a real etcd, of which some die, stop, or are cut off: etcd, standbys, hosts and nodes. What is
bounded here is printed, too.
"""
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import threading
import time

import pytest

from clients import E2E, Shell, check_versions, settled, work
from conftest import SLOW, TIER, wait_until
from standby import TTL_S, Masters, MastersApart, has_leader, needs_etcd, why_no_namespaces
from test_master_killed import DOWN, LEN, Worker

pytestmark = needs_etcd

FAIL_OVER_S = (2 * TTL_S + 5) * SLOW  # etcd elects its own leader first, and that gives each lease its TTL and a second; 2 s are for pauses
LONG = TIER == "long"


@pytest.fixture
def masters(request, bench):
    """@pytest.mark.pool(args=...) for other masters than the usual."""
    marker = request.node.get_closest_marker("pool")
    pool = Masters(bench, **(marker.kwargs if marker else {}))
    pool.wait_insync(len(pool.masters))
    pool.is_whole = False  # a removal that was carried out and not answered finds nothing when it is asked again
    return pool


@pytest.fixture
def apart(bench):
    """The test's own thread is at the host of the clients."""
    why = why_no_namespaces()
    if why:
        pytest.skip(why)
    pool = MastersApart(bench)
    pool.is_whole = False
    with pool.net["c"]:
        pool.wait_insync(3)
        yield pool
        pool.net.heal()


class Calls(threading.Thread):
    """Makes one call after another, with a number each, and knows when each of them began and ended, and how."""

    def __init__(self, pool, line="put calls/{} 100", name="calls", deadline_ms=20000):
        super().__init__(daemon=True)
        self.shell = Shell(pool.bench, pool.addr, name)
        self.line, self.deadline_s = f"{line} deadline={deadline_ms * SLOW}", deadline_ms * SLOW / 1e3
        self.calls, self.is_over, self.broke = [], False, None
        self.start()

    def run(self):
        try:
            while not self.is_over:
                begun = time.monotonic()
                err = self.shell(self.line.format(len(self.calls)), timeout=self.deadline_s + 5)["err"]
                self.calls.append((begun, time.monotonic(), err))
                time.sleep(0.001)  # the processors are others', too
        except BaseException as e:  # pytest.fail, most of all
            self.broke = e

    @property
    def ok(self):
        return [i for i, call in enumerate(self.calls) if call[2] == "OK"]

    @property
    def errors(self):
        return [call[2] for call in self.calls if call[2] != "OK"]

    def done(self):
        assert self.broke is None, self.broke
        return len(self.ok)

    def go_on(self, n=20, timeout=20):
        """Until so many more are done."""
        done = self.done()
        wait_until(lambda: self.done() >= done + n, timeout, f"{n} more calls to be done")

    def gap(self, since):
        """The longest time between two that ended well, or since that moment."""
        ends = [since] + [call[1] for call in list(self.calls) if call[2] == "OK" and call[1] > since]
        return max(b - a for a, b in zip(ends, ends[1:])) if len(ends) > 1 else float("inf")

    def longest(self, since=0):
        return max((end - begun for begun, end, _ in self.calls if begun > since), default=0)

    def end(self):
        self.is_over = True
        self.join((self.deadline_s + 10) * SLOW)
        assert not self.is_alive() and self.broke is None, self.broke
        return self


def check_puts(pool, calls, since=0, prefix="calls/"):
    """Whatever was put is there, and whole. since: of the times that are told where it is not."""
    reader = Shell(pool.bench, pool.addr, "reader")
    left = calls.ok
    while left:
        n = next((i for i in range(len(left)) if i == 1000 or left[i] != left[0] + i), len(left))
        got = reader(f"bget {prefix} {left[0]} {n} 100")
        if got["results"] != {"OK": n} or got["wrong"] != 0:
            lost = [i for i in left[:n] if reader(f"get {prefix}{i} 100")["err"] != "OK"]
            told = [(i, [round(t - since, 4) for t in calls.calls[i][:2]]) for i in lost]
            near = [round(c[1] - since, 3) for i in lost[:1] for c in calls.calls[max(0, i - 3):i + 4]]
            pytest.fail(f"lost: {told[:10]} of {got}; calls about the first ended {near}")
        left = left[n:]


def check_workers(pool, workers):
    reader = Shell(pool.bench, pool.addr, "versions")
    return sum(check_versions(reader, w.may_be, LEN) for w in workers)


def start_workers(pool, deadline_ms=20000, n=2):
    workers = [Worker(pool, f"w{i}", i, deadline_ms * SLOW) for i in range(n)]
    for w in workers:
        w.start()
    wait_until(lambda: all(w.acknowledged > 50 or w.is_spent() for w in workers), 30, "the workers to work")
    return workers


def end_workers(workers):
    for w in workers:
        w.end()


def fill(pool, prefix, n, size=100):
    writer = Shell(pool.bench, pool.addr, f"fill-{prefix.strip('/')}")
    for i in range(0, n, 1000):
        got = writer(f"bput {prefix} {i} {min(1000, n - i)} {size} deadline={20000 * SLOW}")
        assert got["results"] == {"OK": min(1000, n - i)}, got


def insync(pool, leader):
    return len(pool.status(leader).get("insync", []))


def wait_insync(pool, leader, n, timeout=10):
    """Like wait_insync of the masters, which asks all of them who leads: one that is stopped takes a second each time."""
    begun = time.monotonic()
    wait_until(lambda: insync(pool, leader) == n, timeout, f"{n} masters to be in sync")
    return time.monotonic() - begun


def wait_role(pool, i, role, timeout=20):
    begun = time.monotonic()
    wait_until(lambda: pool.health(i)["role"] == role, timeout, f"master {i} to be {role}")
    return time.monotonic() - begun


def wait_etcd(pool, without, begun):
    """Until etcd has a leader among the other members. Returns how long that took, and how long puts may rest for all of it: two
    elections of etcd's own, where the first came to nothing, are not ours."""
    others = [m for m in pool.etcd.members if m is not without]
    wait_until(lambda: any(m.is_leader() for m in others), 20, "etcd to have a leader")
    took = time.monotonic() - begun
    return took, max(FAIL_OVER_S, took + (TTL_S + 4) * SLOW)


def another_leads(pool, was, timeout=20):
    """Which one does, and how long that took. The one that led is not asked."""
    begun = time.monotonic()
    others = [i for i in range(3) if i != was]
    new = wait_until(lambda: next((i + 1 for i in others if pool.health(i)["role"] == "leader"), 0), timeout, "another to lead") - 1
    return new, time.monotonic() - begun


# ---- members of etcd
@pytest.mark.limit(120)
def test_etcd_restarted_under_load(masters):
    """Fails if, where one member of etcd after the other is killed and started again, a call fails, puts rest for longer than a failover
    takes, or something that was acknowledged is lost.
    """
    workers, calls = start_workers(masters), Calls(masters)
    for i, member in enumerate(masters.etcd.members):
        was, leads_etcd = masters.wait_leader(), member.is_leader()
        term, begun = masters.health(was)["term"], time.monotonic()
        member.kill()
        masters.etcd.leader()
        calls.go_on(300)
        member.start()
        wait_until(lambda m=member: has_leader(m), 20, "the member to be back")
        calls.go_on(100)
        now = masters.wait_leader()
        print(f"member {i}{' (led etcd)' if leads_etcd else ''}: leader {was} of term {term} -> {now} of {masters.health(now)['term']}, "
              f"longest time between puts {calls.gap(begun):.2f} s")
        assert calls.gap(begun) < FAIL_OVER_S
    end_workers(workers)
    calls.end()
    assert not calls.errors and not any(w.failed for w in workers), (calls.errors, [w.failed for w in workers])
    check_puts(masters, calls)
    check_workers(masters, workers)


@pytest.mark.parametrize("which", ["leader", 0, 1, 2] if LONG else ["leader"])
def test_member_lost(masters, which):
    """Fails if, where a member of etcd is lost for good, a put fails, or puts rest for longer than a failover takes."""
    calls = Calls(masters)
    calls.go_on(50)
    member = masters.etcd.leader() if which == "leader" else masters.etcd.members[which]
    was, leads_etcd, begun = masters.wait_leader(), member.is_leader(), time.monotonic()
    member.kill()
    work(FAIL_OVER_S, lambda: calls.done() > 100)
    calls.go_on()
    print(f"{member.name} lost{', which led etcd' if leads_etcd else ''}: longest time between puts {calls.gap(begun):.2f} s, "
          f"longest call {calls.longest(begun):.2f} s, leader {was} -> {masters.wait_leader()}")
    assert calls.gap(begun) < FAIL_OVER_S
    assert not calls.end().errors, calls.errors
    check_puts(masters, calls)


def test_both_leaders_killed(masters):
    """Fails if, where the leader is killed together with etcd's leader, puts do not work again within 2 TTL + 5 s."""
    workers, calls = start_workers(masters), Calls(masters)
    calls.go_on(50)
    was, member = masters.wait_leader(), masters.etcd.leader()
    begun = time.monotonic()
    member.kill()
    masters.masters[was].kill9()
    etcd_s, may_rest_s = wait_etcd(masters, member, begun)
    new = another_leads(masters, was)[0]
    elected_s = time.monotonic() - begun
    calls.go_on()
    print(f"etcd has a leader after {etcd_s:.2f} s, another master leads after {elected_s:.2f} s, longest time between puts "
          f"{calls.gap(begun):.2f} s")
    assert calls.gap(begun) < may_rest_s
    masters.again(was)
    wait_role(masters, was, "standby")
    wait_insync(masters, new, 3, 20)
    end_workers(workers)
    assert not calls.end().errors, calls.errors
    check_puts(masters, calls)
    check_workers(masters, workers)


@pytest.mark.limit(180)
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_all_of_etcd_away(masters, how):
    """Fails if, while etcd is away, serving goes on after the lease, or ends at once, a call hangs or is told something odd, the leader does not say
    that it is fenced; or if, when etcd is back, puts do not work within 10 s, something acknowledged is lost, or something removed is back.
    """
    away_s = 60 if LONG else 6
    workers = start_workers(masters, 500)
    calls = Calls(masters, deadline_ms=500)
    calls.go_on(100)
    was, etcd = masters.wait_leader(), masters.etcd.members
    begun = lost = time.monotonic()
    for member in etcd:
        member.proc.send_signal(19) if how == "stopped" else member.kill()
        lost = time.monotonic() if member is etcd[1] else lost  # its majority
    fenced_s = wait_role(masters, was, "fenced", 5)
    work(begun + away_s * SLOW - time.monotonic())
    roles = masters.roles()
    served_s = max(c[0] for c in calls.calls if c[2] == "OK") - lost  # calls that began so late
    during = [c for c in list(calls.calls) if c[0] > lost + served_s]
    back = time.monotonic()
    for member in etcd:
        member.thaw() if how == "stopped" else member.start()
    calls.go_on(1, 10)
    again_s = next(c[1] for c in calls.calls if c[2] == "OK" and c[1] > back) - back
    print(f"served for {served_s:.2f} s, fenced after {fenced_s:.2f} s, roles at the end {roles}, {len(during)} calls failed meanwhile, "
          f"the longest took {max(c[1] - c[0] for c in during):.2f} s, puts again {again_s:.2f} s after etcd")
    assert 0.1 < served_s < TTL_S * SLOW
    assert fenced_s < TTL_S * SLOW + 4
    assert {c[2] for c in during} <= set(DOWN), {c[2] for c in during}
    assert statistics.median(c[1] - c[0] for c in during) < (0.5 + 0.3) * SLOW and max(c[1] - c[0] for c in during) < 4 * SLOW
    assert again_s < 15 * SLOW
    calls.go_on(100)
    masters.wait_insync(3, 20)
    seen = [w.acknowledged for w in workers]
    wait_until(lambda: all(w.acknowledged > n + 20 or w.is_spent() for w, n in zip(workers, seen)), 20, "the workers to work again")
    end_workers(workers)
    calls.end()
    check_puts(masters, calls)
    check_workers(masters, workers)


# ---- standbys
@pytest.mark.parametrize("seconds", [1, 7] if LONG else [1])  # behind 5 its connection is given up, and behind the TTL what it has in etcd
def test_standby_stopped(masters, seconds):
    """Fails if a standby that is stopped holds up removals for longer than a second (or three, where the machine stands still), or is not in sync again when it goes on."""
    fill(masters, "gone/", 20000)
    was = masters.wait_leader()
    standby = masters.masters[(was + 1) % 3]
    calls = Calls(masters, "remove gone/{} force=1")
    calls.go_on(100)
    begun = time.monotonic()
    standby.freeze()
    left_s = wait_insync(masters, was, 2, 5)
    lag = dict(line.rsplit(" ", 1) for line in masters.masters[was].http_get("/metrics")[1].splitlines() if "standby_lag" in line and line[0] != "#")
    for what in ("bytes", "records", "seconds"):
        assert max(float(n) for name, n in lag.items() if f"lag_{what}" in name) > 0, (what, lag)
    work(begun + seconds * SLOW - time.monotonic())
    calls.go_on(100)
    longest = calls.longest(begun - 1)
    back = time.monotonic()
    standby.thaw()
    back_s = wait_insync(masters, was, 3, 10)
    calls.go_on(100)
    print(f"left the set after {left_s:.2f} s, longest removal {longest:.2f} s; in sync again after {back_s:.2f} s, longest removal then "
          f"{calls.longest(back):.2f} s")
    assert longest < 3.5 * SLOW
    assert calls.longest(back) < 2.5 * SLOW
    assert not calls.end().errors, set(calls.errors)
    assert masters.leader() == was


@pytest.mark.limit(120)
def test_standby_anew(masters):
    """Fails if a standby that is started with an empty directory during puts is not in sync within 20 s, or if what it then knows alone
    is not all that was acknowledged.
    """
    fill(masters, "old/", 30000)
    workers, calls = start_workers(masters), Calls(masters)
    was = masters.wait_leader()
    anew, other = (was + 1) % 3, (was + 2) % 3
    masters.masters[anew].kill9()
    wait_insync(masters, was, 2, 5)
    shutil.rmtree(f"{masters.bench.home}/m{anew}")
    masters.again(anew)
    insync_s = wait_insync(masters, was, 3, 20)
    assert masters.health(anew)["role"] == "standby"
    calls.go_on(100)
    # Of the old ones none is left.
    begun = time.monotonic()
    masters.masters[other].kill9()
    wait_insync(masters, was, 2, 5)
    calls.go_on()
    masters.masters[was].kill9()
    another_leads(masters, was)
    calls.go_on()
    print(f"in sync {insync_s:.2f} s after the start, longest time between puts when the others died {calls.gap(begun):.2f} s")
    assert calls.gap(begun) < FAIL_OVER_S
    end_workers(workers)
    assert not calls.end().errors, calls.errors
    check_puts(masters, calls)
    check_workers(masters, workers)
    reader = Shell(masters.bench, masters.addr, "old")
    for i in range(0, 30000, 1000):
        assert reader(f"bget old/ {i} 1000 100")["results"] == {"OK": 1000}


# ---- hosts cut off
@pytest.mark.parametrize("cut_off", ["from all", "from etcd and masters", "from etcd"])
def test_leader_cut_off(apart, cut_off):
    """Fails if a leader that is cut off from all others, or from all but clients and nodes, or from etcd alone, is not fenced, another one
    does not lead in time, a client that is new does not find that one while the first is silent, the first is no standby when it is
    back, or something acknowledged is lost.
    """
    workers, calls = start_workers(apart), Calls(apart)
    calls.go_on(100)
    was = apart.wait_leader()
    term = apart.health(was)["term"]
    begun = time.monotonic()
    if cut_off == "from etcd":
        apart.net.cut([f"m{was}"], ["e0", "e1", "e2"])
    else:
        apart.cut_host(was, cut_off == "from all")
    cut_s = time.monotonic() - begun
    role = wait_until(lambda: (r := apart.health(was)["role"]) not in ("leader", "") and r, 10, "the one that is cut off to be fenced")
    fenced_s = time.monotonic() - begun
    etcd_s, may_rest_s = wait_etcd(apart, None if cut_off == "from etcd" else apart.etcd.members[was], begun)
    new = another_leads(apart, was)[0]
    elected_s = time.monotonic() - begun
    calls.go_on()
    met = time.monotonic()
    late = Shell(apart.bench, apart.addr, "late", deadline=8000 * SLOW)
    assert late("put late 100")["err"] == "OK"
    late_s = time.monotonic() - met
    print(f"cut off {cut_off} in {cut_s:.2f} s; {role} after {fenced_s:.2f} s, etcd has a leader after at most {etcd_s:.2f} s, "
          f"another leads after {elected_s:.2f} s, longest time between puts {calls.gap(begun):.2f} s, "
          f"a new client's first put after {late_s:.2f} s")
    assert role == "fenced" and apart.health(new)["term"] > term
    assert calls.gap(begun) < may_rest_s
    healed = time.monotonic()
    apart.net.heal()
    wait_role(apart, was, "standby")
    standby_s = time.monotonic() - healed
    wait_insync(apart, new, 3, 20)
    print(f"a standby {standby_s:.2f} s after that, in sync {time.monotonic() - healed:.2f} s after")
    wait_role(apart, new, "leader")  # where etcd elects once more it rests for that
    seen = [w.acknowledged for w in workers]
    wait_until(lambda: all(w.acknowledged > n + 20 or w.is_spent() for w, n in zip(workers, seen)), 20, "the workers to work again")
    end_workers(workers)
    assert not calls.end().errors, calls.errors
    print(f"longest time between puts since then {calls.gap(healed):.2f} s")
    assert calls.gap(healed) < FAIL_OVER_S and apart.leader() == new
    assert late("get late 100")["err"] == "OK"
    check_puts(apart, calls, begun)
    check_workers(apart, workers)


def test_standby_cut_off_from_the_leader(apart):
    """Fails if a standby that only the leader does not reach holds up removals, or is not in sync again when it is reached."""
    fill(apart, "gone/", 20000)
    was = apart.wait_leader()
    standby = (was + 1) % 3
    calls = Calls(apart, "remove gone/{} force=1")
    calls.go_on(100)
    begun = time.monotonic()
    apart.net.cut([f"m{was}"], [f"m{standby}"])
    left_s = wait_insync(apart, was, 2, 5)
    calls.go_on(300)
    longest = calls.longest(begun - 1)
    apart.net.heal()
    back_s = wait_insync(apart, was, 3, 20)
    calls.go_on(100)
    print(f"left the set after {left_s:.2f} s, longest removal {longest:.2f} s, in sync {back_s:.2f} s after it is reached again")
    assert longest < 3.5 * SLOW
    assert not calls.end().errors, set(calls.errors)
    assert apart.leader() == was


# ---- nodes
def test_node_again_under_another_leader(masters):
    """Fails if a node that is started again when another master leads does not join that one."""
    calls = Calls(masters)
    was = masters.wait_leader()
    masters.masters[was].kill9()
    new = another_leads(masters, was)[0]
    wait_until(lambda: masters.health(new)["segments"] == 2, 20, "the nodes to join")
    begun = time.monotonic()
    masters.nodes[0].kill9()
    masters.nodes[0] = masters.bench.node(masters.addr, "node1", "64MiB")
    masters.nodes[0].wait_log(r"mounted.* term=%d " % masters.health(new)["term"], 10)
    print(f"mounted {time.monotonic() - begun:.2f} s after its death")
    wait_until(lambda: sum(s["state"] == "up" for s in segments(masters)) == 2, 10, "both nodes to be up")
    calls.go_on(100)
    masters.nodes[1].kill9()
    calls.go_on(100)  # which now are at the one that came again
    calls.end()
    assert set(calls.errors) <= set(DOWN), set(calls.errors)


def segments(pool):
    return pool.kvpool("stat", "--json").json["segments"]


def test_removed_while_a_node_is_away(masters):
    """Fails if an object that was removed while its node was stopped, before the leader was killed, is back when the node goes on."""
    n = 2000
    fill(masters, "gone/", n)
    fill(masters, "kept/", n)
    assert all(s["used_bytes"] > 0 for s in segments(masters)), "one node has everything"
    client = Shell(masters.bench, masters.addr, "client", deadline=20000 * SLOW)
    was = masters.wait_leader()
    masters.nodes[0].freeze()
    got = client(f"bremove gone/ 0 {n} force=1", timeout=30)
    assert got["removed"] == n, got
    masters.masters[was].kill9()
    new = another_leads(masters, was)[0]
    assert client(f"bexist gone/ 0 {n}")["exist"] == 0
    masters.nodes[0].thaw()
    thawed, looks = time.monotonic(), 0
    while looks < 50 or masters.health(new)["segments"] < 2:
        got = client(f"bexist gone/ 0 {n}")
        assert got["exist"] == 0 and got["failed"] == 0, got
        looks += masters.health(new)["segments"] == 2
        assert time.monotonic() < thawed + 20 * SLOW
    assert client(f"bget gone/ 0 {n} 100")["results"] == {"NOT_FOUND": n}
    assert client(f"bget kept/ 0 {n} 100")["results"] == {"OK": n}
    settled(masters.masters[new], timeout=20, used_bytes=n * 128)


# ---- what is acknowledged, and who may begin
@pytest.mark.pool(args=("--ack-standbys", "1"))
def test_puts_that_a_standby_has(masters):
    """Fails if with --ack-standbys 1 a put does not work while there is a standby, is acknowledged when there is none, hangs then, or does
    not work again when one is back.
    """
    client = Shell(masters.bench, masters.addr, "client")
    for i in range(100):
        assert client(f"put with/{i} 100")["err"] == "OK"
    was = masters.wait_leader()
    others = [i for i in range(3) if i != was]
    for i in others:
        masters.masters[i].kill9()
    got = client(f"put alone 100 deadline={1000 * SLOW}")
    print(f"alone: {got['err']} after {got['ms']:.0f} ms")
    assert got["err"] in DOWN and got["ms"] < 4000 * SLOW, got
    assert client("get with/1 100")["err"] == "OK"
    waits = Calls(masters)
    time.sleep(0.5)  # it is under way
    assert waits.done() == 0 and not waits.errors
    begun = time.monotonic()
    masters.again(others[0])
    waits.go_on(20)
    print(f"puts work {waits.gap(begun):.2f} s after the start of a standby")
    assert not waits.end().errors, waits.errors
    masters.masters[was].kill9()
    another_leads(masters, was)
    check_puts(masters, waits)
    assert client("bget with/ 0 100 100")["results"] == {"OK": 100}


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system is root's to mount")
def test_disk_of_a_master_is_full(bench):
    """Fails if a standby whose disk is full is elected where the leader dies, or if a leader whose disk is full does not give way to a standby
    that has all; or if something acknowledged is lost.
    """
    at = f"{bench.home}/m0"
    os.mkdir(at)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", at], check=True)
    try:
        masters = Masters(bench, n=2)
        masters.wait_insync(2)
        if masters.wait_leader() == 0:
            masters.switch()
            masters.wait_insync(2)
        client = Shell(bench, masters.addr, "client", deadline=20000 * SLOW)
        fill(masters, "fill/", 8000)  # more than that disk has room for
        wait_insync(masters, 1, 1)
        assert client("put kept 100")["err"] == "OK"
        masters.masters[1].kill9()
        time.sleep(TTL_S + 1.5)
        wait_role(masters, 0, "standby")
        masters.again(1)
        masters.wait_leader(other_than=0)
        assert client("get kept 100")["err"] == "OK"
        # With room again it is in sync, and leads; and is full again.
        subprocess.run(["mount", "-o", "remount,size=2m", at], check=True)
        wait_insync(masters, 1, 2, 20)
        masters.switch()
        wait_insync(masters, 0, 2, 20)
        fill(masters, "more/", 20000)
        masters.wait_leader(other_than=0)
        assert client("bget fill/ 0 8000 100")["results"] == client("bget more/ 0 8000 100")["results"] == {"OK": 8000}
        assert client("get kept 100")["err"] == "OK"
    finally:
        subprocess.run(["umount", "-l", at], check=False)


@pytest.mark.parametrize("hangs", [("write", "read"), ("sync", "read")], ids="-".join)
def test_disk_of_the_leader_hangs(bench, monkeypatch, hangs):
    """Fails if a leader whose log disk hangs does not give way to a standby that has all, if its /health does not name the disk, if a call
    fails meanwhile, if something acknowledged is lost, or if that master is no standby when its disk answers again.
    """
    switches = [pathlib.Path(f"{bench.home}/m0/stall-{what}") for what in hangs]
    monkeypatch.setenv("LD_PRELOAD", str(E2E / "e2e_eio.so"))
    monkeypatch.setenv("E2E_EIO", f"{bench.home}/m0")
    masters = Masters(bench, n=2)
    masters.wait_insync(2)
    if masters.wait_leader() != 0:
        masters.switch()
        masters.wait_insync(2)
    calls = Calls(masters)
    calls.go_on(20)
    for switch in switches:
        switch.touch()
    begun = time.monotonic()
    masters.wait_leader(other_than=0)
    calls.go_on(20)
    print(f"puts work {calls.gap(begun):.2f} s after the disk hung")
    why = masters.health(0)["why"]
    assert any("does not answer" in line and f"{bench.home}/m0" in line for line in why), why
    for switch in switches:
        switch.unlink()
    wait_role(masters, 0, "standby")
    masters.wait_insync(2, 20)
    assert not calls.end().errors, calls.errors
    check_puts(masters, calls)


@pytest.mark.pool(args=("--ack-standbys", "1"), n=1)
def test_new_pool_without_the_standbys_that_are_waited_for(masters):
    """Fails if nobody gets in before there is a standby."""
    assert masters.kvpool("exists", "k").rc == 1
    assert masters.kvpool("put", "k", "--deadline", "500ms", stdin=b"x").rc == 1


def test_all_directories_lost(masters):
    """Fails if, where all masters lose their directories, anything is lost that the nodes have."""
    fill(masters, "kept/", 3000)
    client = Shell(masters.bench, masters.addr, "client", deadline=20000 * SLOW)
    for _ in range(3):
        for m in masters.masters:
            m.kill9()
        for i in range(3):
            shutil.rmtree(f"{masters.bench.home}/m{i}")
            masters.again(i)
        new = masters.wait_leader()
        wait_until(lambda: masters.health(new)["segments"] == 2, 20, "the nodes to be back")  # noqa: B023
        settled(masters.masters[new], timeout=20, used_bytes=3000 * 128)
        assert client("bget kept/ 0 3000 100")["results"] == {"OK": 3000}


def refused(bench, name, *args):
    """What a master that does not start says."""
    d = bench.start(name, "kvpool-master", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", *args, ready=False)
    wait_until(lambda: not d.is_running(), 10, f"{name} to give up")
    assert d.proc.wait() == 1
    d.kill9()
    return d.log()


def test_directories_of_others(masters):
    """Fails if a master starts alone in a directory of a cluster without being forced to, or in one of another cluster or pool, or if it
    does not say why not.
    """
    bench, i = masters.bench, (masters.wait_leader() + 1) % 3
    masters.masters[i].kill9()
    at = f"{bench.home}/m{i}"
    assert re.search("belongs to cluster test, .*--force-single", refused(bench, "alone", "--data-dir", at))
    log = refused(bench, "other", "--data-dir", at, "--etcd", masters.etcd.urls, "--cluster", "other")
    assert "the data directory belongs to cluster test, and not to other" in log
    forced = bench.master("--force-single", data_dir=at, name="forced")
    assert json.loads(forced.http_get("/health")[1])["role"] == "leader"
    assert forced.terminate() == 0
    # A pool of its own, which has a node and objects.
    single = bench.master(data_dir=f"{bench.home}/single", name="single")
    bench.node(single, "single-node", "16MiB").wait_log("mounted")
    assert bench.run("kvpool", "put", "--master", single.listen, "key", stdin=b"value").rc == 0
    assert single.terminate() == 0
    log = refused(bench, "joins", "--data-dir", f"{bench.home}/single", "--etcd", masters.etcd.urls, "--cluster", "test")
    assert "the data directory belongs to another pool than cluster test" in log
    masters.wait_leader()


def test_standby_tells_what_the_leader_tells(masters):
    """Fails if `ls` or `stat` at a standby do not tell of the same objects as at the leader."""
    fill(masters, "here/", 500)
    fill(masters, "gone/", 500)
    client = Shell(masters.bench, masters.addr, "client")
    assert client("bremove gone/ 0 500 force=1")["removed"] == 500
    was = masters.wait_leader()
    listed, stat = masters.kvpool("ls"), masters.kvpool("stat", "--json").json
    assert listed.rc == 0 and len(listed.out.split()) >= 500
    for i in range(3):
        at = masters.masters[i].listen
        wait_until(lambda a=at: masters.kvpool("ls", at=a).out == listed.out, 5, f"master {i} (leader: {was}) to list the same")
        got = masters.kvpool("stat", "--json", at=at)
        assert got.rc == 0, got
        assert got.json["pool"]["objects"] == stat["pool"]["objects"] == 500, got.json["pool"]
        assert got.json["pool"]["is_standby"] == (i != was)
