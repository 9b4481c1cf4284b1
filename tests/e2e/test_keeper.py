# SPDX-License-Identifier: Apache-2.0
"""A keeper holds a node's memory while the node is killed, stopped or replaced: what was put is served again, from the same memory, to
clients and by a master that go on as they were.
"""
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import time

import pytest

from clients import PATHS, Board, Load, Shell, figures, settled, slow, work
from conftest import PROGRAMS, RDMA, ROOT, SLOW, TIER, Daemon, proc_state, wait_until
from test_hostile import shared_bytes
from test_tier import MEMORY, N, SSD, get_all, put_all, ssd_of

MIB = 1 << 20
MESSAGE_BYTES = 200


class Kept:
    """A master and nodes with keepers, which are ended with the test."""

    def __init__(self, bench):
        self.bench = bench
        self.data_dir = f"{bench.home}/data"
        self.master = bench.master(data_dir=self.data_dir)
        self.names = set()

    def node(self, name="kept1", memory="32MiB", *args, mode="auto", **kw):
        self.names.add(name)
        return self.bench.node(self.master, name, memory, "--http", "127.0.0.1:0", "--keeper", mode, *args, **kw)

    def shell(self, **conf):
        return Shell(self.bench, self.master.listen, **conf)

    def next_master(self):
        self.master.kill9()
        self.master = self.bench.master(data_dir=self.data_dir, listen=self.master.listen)

    def end_keeper(self, name):
        return self.bench.run("kvpool-keeper", "--name", name, "--end", "yes")

    def end(self):
        for daemon in self.bench.daemons:
            if daemon.name in self.names and daemon.is_running():
                daemon.terminate()
        for name in self.names:
            assert self.end_keeper(name).rc == 0


@pytest.fixture
def kept(bench):
    k = Kept(bench)
    yield k
    k.end()


def does(client, line):
    """Has a client that may have seen the node go do something: misses may last a moment, and nothing else is wrong meanwhile."""
    def is_done():
        got = client(line)
        assert got["err"] in ("OK", "NODE_LOST"), got
        return got["err"] == "OK" and got

    got = wait_until(is_done, 5, line)
    assert got.get("intact", True), got


def find_all(client, n, what="old/", first=0, length=100000):
    """Waits until a client that may have seen the node go finds n objects, and none may be wrong."""
    got = wait_until(lambda: (g := client(f"bget {what} {first} {n} {length}"))["results"] == {"OK": n} and g, 10, "the objects")
    assert got["wrong"] == 0, got


def test_gets_wait_for_a_node_that_is_started_again(kept):
    """Fails if a get of what lies at a node that was killed, and whose keeper has its memory, does not wait until the next process is there; or waits
    for long where none comes.
    """
    node = kept.node()
    assert kept.shell(**PATHS["tcp"])("bput old/ 0 8 100000")["results"] == {"OK": 8}
    reader, late = kept.shell(**PATHS["tcp"]), kept.shell(**PATHS["tcp"])
    node.kill9()
    wait_until(lambda: figures(kept.master)["segments"] == 0, 10, "the node to be missed")
    reader.say(f"bget old/ 0 8 100000 deadline={20000 * SLOW}")
    time.sleep(0.3)
    kept.node().wait_log('msg="adopted the memory of the process before this one" bytes=')
    got = reader.hear(30)
    assert got["results"] == {"OK": 8} and got["wrong"] == 0, got
    wait_until(lambda: figures(kept.master)["segments"] == 1, 10, "the node")
    kept.bench.daemons[-1].kill9()
    begun = time.monotonic()
    assert late(f"bget old/ 0 8 100000 deadline={20000 * SLOW}")["results"] == {"NODE_LOST": 8}
    assert time.monotonic() - begun < 12 * SLOW


def test_keeper_inherits_nothing(kept, bench):
    """Fails if a keeper that a node starts has a descriptor of the process that started the node, such as a lock: it would outlive both."""
    lock = os.open(f"{bench.home}/lock", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(lock, True)
    node = subprocess.Popen([str(PROGRAMS["kvpool-node"]), "--master", kept.master.listen, "--name", "kept1", "--memory", "1MiB", "--keeper", "auto",
                             "--listen", "127.0.0.1:0"], env=bench.env(), close_fds=False, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    kept.names.add("kept1")
    for line in iter(node.stderr.readline, ""):
        if m := re.search(r"in the hands of a keeper\" pid=(\d+)", line):
            keeper = int(m.group(1))
            break
    names = {os.readlink(f"/proc/{keeper}/fd/{fd}") for fd in os.listdir(f"/proc/{keeper}/fd")}
    assert f"{bench.home}/lock" not in names and not any(name.startswith("pipe:") for name in names), names
    node.terminate()
    assert node.wait(20) == 0
    node.stdout.close(), node.stderr.close(), os.close(lock)


def test_keeper_without_room(kept, bench):
    """Fails if a keeper that may not have as many descriptors as the memory has files ends, or the node, or that does not say why it has no keeper."""
    keeper = Daemon("keeper", ["prlimit", "--nofile=20:20", PROGRAMS["kvpool-keeper"], "--name", "kept1"], bench.env(), bench.home)
    bench.daemons.append(keeper)
    keeper.wait_ready()
    node = kept.node("kept1", "256MiB")
    node.wait_log(r"the memory has no keeper for now: .*(limit|descriptor|too many)")
    client = kept.shell(deadline=3000)
    assert client("put k 100000")["err"] == "OK" and not health(node)["is_kept"] and keeper.is_running()
    node.kill9()
    node = kept.node("kept1", "256MiB")
    assert health(node)["adopted_objects"] == 0


def message(kind, fds_n=0, version=1, name=b"kept1", is_new=0, total=0):
    """A packet as of PROTOCOL "Keeper"."""
    return struct.pack("<IHBBIIIiIIQQQQ136s", 0x4b50564b, version, kind, fds_n, 0, total, 0, 0, 0, is_new, 1000, 1, 1, 0, name)


def health(node):
    return json.loads(node.http_get("/health")[1])


def wait_kept(node):
    wait_until(lambda: health(node)["is_kept"], 10, "the keeper to have the memory")
    return health(node)["keeper_pid"]


@pytest.mark.parametrize("path", sorted(PATHS))
def test_killed_node_comes_back_with_its_memory(kept, path):
    """Fails if, after kill -9 of the node and a new process of its name, an object is not served with its bytes, a new put or a removal
    does not work, or a client or the master would have to be restarted; four times, the last after a clean stop."""
    node = kept.node()
    client = kept.shell(deadline=3000, **PATHS[path])
    assert client("bput old/ 0 50 100000")["results"] == {"OK": 50}
    for turn in range(4):
        keeper = wait_kept(node)
        if turn < 3:
            node.kill9()
        else:
            assert node.terminate() == 0
        node = kept.node()
        assert health(node)["keeper_pid"] == keeper and health(node)["adopted_objects"] == 50 + turn
        find_all(client, 50)
        does(client, f"put new/{turn} 50000")
        does(client, f"get new/{turn} 50000")


def quarantined(node):
    return int(re.search(r"^kvpool_node_quarantined_extents (\d+)", node.http_get("/metrics")[1], re.M).group(1))


@slow
@pytest.mark.skipif(bool(RDMA), reason="over RDMA a writer's paths end with the node's process")
@pytest.mark.parametrize("hurt", ["node", "keeper, then node"])
def test_space_of_a_writer_that_lives_stays_in_quarantine(kept, hurt):
    """Fails if the space of a writer that is stuck in the middle of its copy into shared memory is given to others after the node's
    process was replaced (also where another keeper got everything meanwhile), while that process lives; or not once it is dead."""
    node = kept.node()
    writer, other = kept.shell(name="writer", deadline=60000), kept.shell(name="other")
    assert writer("put warm 100000")["err"] == "OK"
    keeper = wait_kept(node)
    writer.stuck(f"put k {8 * MIB} version=1 stuck_at={3 * MIB}")
    writer.freeze()
    if hurt != "node":
        os.kill(keeper, signal.SIGKILL)
        wait_until(lambda: health(node)["keeper_pid"] not in (0, keeper) and health(node)["is_kept"], 10, "the next keeper")
    node.kill9()
    node = kept.node()
    assert health(node)["adopted_objects"] == 1
    wait_until(lambda: other(f"put k {4 * MIB} version=2")["err"] == "OK", 10, "the key")
    for i in range(40):
        assert other(f"put filler/{i} {MIB} version={i}")["err"] == "OK", "the rest of the pool goes on"
    assert figures(kept.master)["quarantine_bytes"] == 8 * MIB and quarantined(node) == 1, "a live process can still store into it"
    writer.kill9()
    settled(kept.master, "the proof that the writer is dead", 10)
    assert quarantined(node) == 0


def test_keeper_that_somebody_else_started(kept, bench):
    """Fails if a node does not use the keeper that runs for its name, as one of a unit of its own; if a second keeper of that name runs, or if one does
    not end cleanly: with its node there, which starts its own then, and alone."""
    keeper = bench.start("keeper", "kvpool-keeper", "--name", "kept1", "--idle", "0s")
    second = bench.run("kvpool-keeper", "--name", "kept1")
    assert second.rc == 1 and r'a keeper for \"kept1\" runs already' in second.err, second
    client = kept.shell(deadline=3000)
    node = kept.node()
    assert client("bput old/ 0 20 100000")["results"] == {"OK": 20}
    for _ in range(2):
        assert wait_kept(node) == keeper.pid
        node.kill9()
        node = kept.node()
        assert health(node)["adopted_objects"] == 20
    assert wait_kept(node) == keeper.pid
    assert keeper.terminate() == 0
    own = wait_until(lambda: (pid := health(node)["keeper_pid"]) not in (0, keeper.pid) and pid, 10, "a keeper of the node's own")
    find_all(client, 20)
    assert wait_kept(node) == own
    node.terminate()
    assert kept.end_keeper("kept1").rc == 0
    keeper = bench.start("keeper2", "kvpool-keeper", "--name", "kept1", "--idle", "100ms")
    assert keeper.proc.wait(10) == 0, "nobody came"


def test_keeper_killed_and_both_killed(kept):
    """Fails if a node whose keeper is killed starts no other, or that one has not everything; or if after the death of both the node does not begin
    anew: old keys as misses, new puts served."""
    node = kept.node()
    client = kept.shell(deadline=3000)
    assert client("bput old/ 0 20 100000")["results"] == {"OK": 20}
    for _ in range(2):
        keeper = wait_kept(node)
        os.kill(keeper, signal.SIGKILL)
        wait_until(lambda: health(node)["keeper_pid"] not in (0, keeper), 10, "another keeper")
        assert client("bget old/ 0 20 100000")["results"] == {"OK": 20}
    keeper = wait_kept(node)
    node.kill9()
    node = kept.node()
    assert health(node)["adopted_objects"] == 20
    find_all(client, 20)
    node.freeze()  # or it has started another one by then
    os.kill(keeper, signal.SIGKILL)
    node.kill9()
    node = kept.node()
    assert health(node)["adopted_objects"] == 0
    wait_until(lambda: client("put new 50000")["err"] == "OK", 5, "a put")
    wait_until(lambda: set(client("bget old/ 0 20 100000")["results"]) == {"NOT_FOUND"}, 5, "the client to look anew")
    wait_kept(node)


class Stopped:
    """A keeper that is stopped as long as this lasts."""

    def __init__(self, pid):
        self.pid = pid

    def __enter__(self):
        os.kill(self.pid, signal.SIGSTOP)
        wait_until(lambda: proc_state(self.pid) == "T", 5, "the keeper to stop")

    def __exit__(self, *_):
        os.kill(self.pid, signal.SIGCONT)


@slow
def test_node_starts_without_a_keeper_that_is_stopped(kept):
    """Fails if the start of a node waits for a keeper that is stopped: it is to be without the memory then, and say so; or if the keeper does not have
    the new memory, once it goes on."""
    node = kept.node()
    client = kept.shell(deadline=3000)
    assert client("bput old/ 0 20 100000")["results"] == {"OK": 20}
    keeper = wait_kept(node)
    node.kill9()
    with Stopped(keeper):
        began = time.monotonic()
        node = kept.node()
        assert time.monotonic() - began < 10 * SLOW
        node.wait_log("without a keeper for now: it does not answer")
        assert not health(node)["is_kept"]
        wait_until(lambda: client("put new 50000")["err"] == "OK", 5, "a put")
    assert wait_kept(node) == keeper
    node.kill9()
    node = kept.node()
    assert health(node)["adopted_objects"] == 1
    does(client, "get new 50000")


@slow
@pytest.mark.skipif(bool(RDMA), reason="over RDMA no writer is noted")
@pytest.mark.parametrize("is_killed", [False, True])
def test_stopped_keeper_stops_nobody(kept, is_killed):
    """Fails if a put waits for a keeper that is stopped; if the node is not without a keeper once that takes no more messages of writers; or if
    the keeper, when it goes on, does not get all again, or takes something from the memory. Where the node was killed meanwhile, nobody knows who may
    write: fails if the next one does not begin anew."""
    node = kept.node()
    client = kept.shell(deadline=3000)
    assert client("bput old/ 0 20 100000")["results"] == {"OK": 20}
    keeper = wait_kept(node)
    comer = kept.shell(name="comer", deadline=3000)
    with Stopped(keeper):
        for i in range(1000):
            got = comer(f"put by/{i} 1000")
            assert got["err"] == "OK" and got["ms"] < 2500 * SLOW, (i, got)
            if not health(node)["is_kept"]:
                break
            comer("close")
            comer(f"open master={kept.master.listen} deadline=3000")
        node.wait_log("the memory has no keeper for now: it takes no messages")
        if is_killed:
            node.kill9()
    if is_killed:
        node = kept.node()
        node.wait_log("new memory is allocated, and the keeper's memory is given up: it was not handed over to the end")
        assert wait_kept(node) == keeper
        return
    assert wait_kept(node) == keeper
    assert client("bget old/ 0 20 100000")["results"] == {"OK": 20}
    node.kill9()
    node = kept.node()
    assert health(node)["adopted_objects"] == 21 + i
    find_all(client, 20)


def test_other_memory_is_begun_anew(kept):
    """Fails if a node that is to have another size does not begin anew, with the reason in its log; or if a second node of the same name
    gets memory, or the first is disturbed by it."""
    node = kept.node()
    client = kept.shell(deadline=3000)
    assert client("put old 100000")["err"] == "OK"
    wait_kept(node)
    second = kept.node(ready=False)
    assert second.proc.wait(20 * SLOW) == 1
    second.killed = True
    second.wait_log(rf'a node of the name \\"kept1\\" runs on this host \(pid {node.pid}\)')
    assert client("get old 100000")["intact"]
    node.kill9()
    node = kept.node(memory="16MiB")
    node.wait_log("new memory is allocated, and the keeper's memory is given up: --memory or --chunk-bytes is another")
    wait_until(lambda: client("put new 50000")["err"] == "OK", 5, "a put")
    assert client("get old 100000")["err"] == "NOT_FOUND"
    wait_kept(node)


def test_what_was_removed_meanwhile_is_not_back(kept):
    """Fails if a removal or an upsert that was acknowledged while the node was away, or while it and the master were killed, does not hold when its memory is
    back, or if what was not touched is not served."""
    node = kept.node()
    client = kept.shell(deadline=3000)
    assert client("bput k/ 0 30 100000")["results"] == {"OK": 30}
    wait_kept(node)
    node.kill9()
    other = kept.node("kept2")
    for i in range(5):
        assert client(f"remove k/{i} force=1")["err"] == "OK"
    assert client("put k/5 100000 version=7 upsert=1")["err"] == "OK"
    kept.next_master()
    node = kept.node()
    assert health(node)["adopted_objects"] == 30
    find_all(client, 24, "k/", 6)
    for i in range(5):
        assert client(f"get k/{i} 100000")["err"] == "NOT_FOUND", i
    got = wait_until(lambda: (g := client("get k/5 100000"))["err"] == "OK" and g, 10, "the node of the new version")
    assert got["version"] == 7, got
    assert other.is_running()


def test_master_that_knows_nothing(kept, bench):
    """Fails if a master without a log, that comes after one that was killed with the node, does not learn from the adopted memory which pool it serves and
    what is there, of each tenant."""
    kept.master.terminate()
    kept.data_dir = "none"
    kept.master = bench.master()
    node = kept.node()
    clients = {tenant: kept.shell(name=f"client-{tenant}", deadline=3000, **({"tenant": tenant} if tenant else {})) for tenant in ("", "blue")}
    for i, client in enumerate(clients.values()):
        assert client(f"bput k/ 0 {10 + i} 100000")["results"] == {"OK": 10 + i}
    wait_kept(node)
    node.kill9()
    kept.next_master()
    node = kept.node()
    assert health(node)["adopted_objects"] == 21
    for i, client in enumerate(clients.values()):
        find_all(client, 10 + i, "k/")
    assert clients[""]("get k/10 100000")["err"] == "NOT_FOUND"


def test_strangers_at_the_keeper(kept, bench):
    """Fails if what comes to a keeper's socket and is no message of a node's ends it, or disturbs it, or gets an answer other than a refusal."""
    node = kept.node()
    client = kept.shell(deadline=3000)
    assert client("put old 100000")["err"] == "OK"
    keeper = wait_kept(node)
    path, = map(str, pathlib.Path(bench.home).glob("kvpool/keeper-*.sock"))

    def ask(packet, fds=()):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.settimeout(10)
            s.connect(path)
            socket.send_fds(s, [packet], fds) if fds else s.send(packet)
            return struct.unpack_from("<IHBBIIIiI", s.recv(MESSAGE_BYTES))

    answers = {}
    for what, packet, fds in (("garbage", b"x" * MESSAGE_BYTES, ()), ("short", b"KVPK", ()), ("version", message(1, version=2), ()),
                              ("no pidfd", message(1, 1), (0,)), ("no descriptor", message(1, 1), ()), ("a node's word", message(6), ()),
                              ("a stranger", message(1, 1, is_new=1), (os.pidfd_open(os.getpid()),)), ("another name", message(7, name=b"kept2"), ()),
                              ("the end", message(7), ())):
        got = ask(packet, fds)
        assert got[0] == 0x4b50564b and got[2] == 2 and got[5] == 0 and got[7] < 0, (what, got)
        answers[what] = got[7]
    assert answers["a stranger"] == answers["the end"] != answers["garbage"] != answers["version"]
    for _ in range(40):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.connect(path)
            s.send(os.urandom(MESSAGE_BYTES))
    assert health(node)["keeper_pid"] == keeper and health(node)["is_kept"]
    node.kill9()
    node = kept.node()
    assert health(node)["adopted_objects"] == 1 and health(node)["keeper_pid"] == keeper


@pytest.mark.parametrize("answer, why", [
    (message(2, version=2, name=b""), "without a keeper for now: the running keeper is of another version"),
    (b"", "without a keeper for now"),
    (message(2, name=b"", total=3), "the keeper's memory is given up: "),
    (message(2, name=b"", total=1) + message(3, 1, name=b"", total=1), "the keeper's memory is given up: its book is broken"),
], ids=["another version", "none", "less than it said", "no book"])
def test_keeper_that_is_none(kept, bench, answer, why):
    """Fails if a node is kept from serving, or adopts something, where what answers in the place of its keeper is of another version, says nothing,
    breaks off, or hands over a file that is no book."""
    keeper = bench.start("keeper", "kvpool-keeper", "--name", "kept1")
    path = re.search(r"unix=(\S+)", keeper.ready_line).group(1)
    keeper.terminate()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(path)
        door.listen(16)
        node = kept.node(ready=False)
        conn, _ = door.accept()
        assert conn.recv(MESSAGE_BYTES)[:8] == message(1, 1)[:8]
        for at in range(0, len(answer), MESSAGE_BYTES):
            socket.send_fds(conn, [answer[at:at + MESSAGE_BYTES]], [os.memfd_create("none")] if at else [])
        if answer:
            conn.close()
        node.wait_ready()
        node.wait_log(re.escape(why))
        assert health(node)["adopted_objects"] == 0 and not health(node)["is_kept"]
    os.unlink(path)
    wait_kept(node)


def test_when_the_keeper_ends(kept, bench):
    """Fails if a keeper outlives --keeper until-stop and a stop, `kvpool up`, its time with memory that nobody comes for, or --end; or if `none`
    starts one."""
    def keeper_of(node):
        return health(node)["keeper_pid"]

    def is_gone(pid):
        return proc_state(pid) in ("", "Z")

    node = kept.node(mode="until-stop")
    keeper = wait_kept(node)
    node.terminate()
    wait_until(lambda: is_gone(keeper), 5, "the keeper to end with a stop")
    node = kept.node("kept2", "32MiB", "--keeper-hold", "200ms")
    keeper = wait_kept(node)
    node.kill9()
    wait_until(lambda: shared_bytes(keeper) == 0, 10, "the memory to be given up")
    node = kept.node("kept2")
    assert health(node)["adopted_objects"] == 0 and wait_kept(node) == keeper
    assert kept.end_keeper("kept2").rc == 1 and not is_gone(keeper), "its node runs"
    node.terminate()
    assert kept.end_keeper("kept2").rc == 0
    wait_until(lambda: is_gone(keeper), 5, "the keeper to end")
    sockets = set(pathlib.Path(bench.home).glob("kvpool/keeper-*.sock"))
    node = kept.node("kept3", mode="none")
    assert keeper_of(node) == 0 and not health(node)["is_kept"]
    up = bench.popen("kvpool", "up", "--nodes", "1", "--memory", "16MiB", "--listen", "127.0.0.1:0", env={"KVPOOL_KEEPER": "auto"},
                     stdout=subprocess.PIPE)
    assert up.stdout.readline().startswith(b"KVPOOL_MASTER=") and set(pathlib.Path(bench.home).glob("kvpool/keeper-*.sock")) == sockets


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_units_of_systemd(bench):
    """Fails if systemd finds something in a unit of deploy/systemd that it does not understand, or the node's unit and the keeper's name two
    nodes or two directories."""
    texts = {}
    for unit in sorted((ROOT / "deploy" / "systemd").glob("*.service")):
        program = PROGRAMS[unit.stem]
        texts[unit.stem] = unit.read_text()
        path = pathlib.Path(bench.home, unit.name)
        path.write_text(texts[unit.stem].replace(f"/usr/local/bin/{program.name}", str(program)))
    assert sorted(texts) == ["kvpool-conductor", "kvpool-keeper", "kvpool-master", "kvpool-node"]
    r = subprocess.run(["systemd-analyze", "verify", "--man=no", *map(str, pathlib.Path(bench.home).glob("*.service"))], capture_output=True,
                       text=True, timeout=60)
    assert r.returncode == 0 and r.stderr == "", r.stderr
    same = [[line for line in texts[name].splitlines() if line.startswith(("Environment=", "User="))] for name in ("kvpool-node", "kvpool-keeper")]
    assert same[0] == same[1]


@slow
def test_with_an_ssd_tier(kept, bench):
    """Fails if, with kills of a node that has an SSD tier as well, what was in memory or on the SSD is not served, or with other bytes."""
    ssd = ("--ssd", f"{ssd_of(bench)}:{SSD}")
    node = kept.node("kept1", MEMORY, *ssd)
    client = kept.shell(deadline=20000 * SLOW, **PATHS["tcp"])
    put_all(kept, client)
    for turn in range(3):
        wait_kept(node)
        client.say(f"bget k/ {turn * 100} 200 65536")  # from the SSD into memory, while the node is killed
        time.sleep(0.02 * turn)
        node.kill9()
        client.hear(60)
        node = kept.node("kept1", MEMORY, *ssd)
        assert health(node)["adopted_objects"] > 0
        wait_until(lambda: client(f"bexist k/ 0 {N}")["exist"] > N - 32, 20, "the objects")
        wait_until(lambda: client(f"bget k/ {N - 8} 8 65536")["results"].get("NODE_LOST", 0) == 0, 5, "the client to try the node again")
        found, wrong = get_all(client)
        assert wrong == 0 and found >= N - figures(kept.master)["tier_missed"] and figures(kept.master)["tier_missed"] < 64


@slow
@pytest.mark.limit(120)
def test_under_load(kept):
    """Fails if, with readers and writers over both paths and the node killed again and again, a byte is wrong, a call outlives its deadline by
    three seconds, or hits do not go on after each time."""
    deadline_ms = 2000
    node = kept.node(memory="48MiB")
    board = Board(kept.bench, 2)
    common = dict(deadline_ms=deadline_ms, batch=8, min_bytes=16384, max_bytes=256 << 10, window=100, **board.options)
    loads = [Load(kept.bench, kept.master.listen, f"{what}-{path}", seed=i + 3, **{f"{what}ters": n}, **common, **conf,
                  **({"stream_base": i} if what == "put" else {}))
             for what, n in (("put", 1), ("get", 2)) for i, (path, conf) in enumerate(sorted(PATHS.items()))]
    for load in loads:
        load.ready()
    wait_until(lambda: board.begun(0) > 200 and board.begun(1) > 200, 30, "the pool to fill")
    for _ in range(10 if TIER == "long" else 3):
        wait_kept(node)
        node.kill9()
        node = kept.node(memory="48MiB")
        assert health(node)["adopted_objects"] > 50
        for load in loads:
            load.mark()
        work(1, *(lambda load=load: load.done() > 20 for load in loads))
        for load in loads:
            got = load.mark()
            assert got["wrong"] == 0, got
            assert got["max_ms"] < deadline_ms + 3000 * SLOW, got
            assert got["results"].get("OK", 0) > 20, (load.name, got)
    for load in loads:
        assert load.stop()["wrong"] == 0
    settled(kept.master)


@slow
@pytest.mark.limit(400)
def test_any_of_them_at_any_time(kept):
    """Fails if, with readers and writers over both paths while node, keeper, both, and master are killed and keepers stopped at random, a byte or a
    version is wrong, a call outlives its deadline by three seconds, or, once that is over, not everything works again or space is lost."""
    rng = random.Random(1901)
    deadline_ms = 2000
    node = kept.node(memory="48MiB")
    board = Board(kept.bench, 2)
    common = dict(deadline_ms=deadline_ms, batch=4, min_bytes=4096, max_bytes=256 << 10, window=200, **board.options)
    loads = [Load(kept.bench, kept.master.listen, f"{what}-{path}", seed=i + 3, **{f"{what}ters": 1}, **common, **conf,
                  **({"stream_base": i} if what == "put" else {}))
             for what in ("put", "get") for i, (path, conf) in enumerate(sorted(PATHS.items()))]
    for load in loads:
        load.ready()
    wait_until(lambda: board.begun(0) > 100 and board.begun(1) > 100, 30, "the pool to fill")
    adopted = 0
    for turn in range(400 if TIER == "long" else 16):
        keeper = health(node)["keeper_pid"]
        what = rng.choice(["node", "node", "node", "keeper", "keeper, then node", "both", "master", "stop", "node and master"])
        if what == "stop" and keeper:
            with Stopped(keeper):
                time.sleep(rng.random())
        if what.startswith("keeper") and keeper or what == "both" and keeper:
            os.kill(keeper, signal.SIGKILL)
        if what == "keeper, then node":
            time.sleep(rng.random() * 0.2)
        if "node" in what or what == "both":
            node.kill9()
        if "master" in what:
            kept.next_master()
        if not node.is_running():
            node = kept.node(memory="48MiB")
            adopted += health(node)["adopted_objects"] > 0
        time.sleep(rng.random() * 0.5)
        for load in loads:
            got = load.mark()
            assert got["wrong"] == 0, (turn, what, got)
            assert got["max_ms"] < deadline_ms + 3000 * SLOW, (turn, what, got)
    assert adopted > turn // 8
    wait_kept(node)
    wait_until(lambda: all(load.mark()["results"].get("OK", 0) > 5 or time.sleep(0.3) for load in loads), 20, "everything to work again")
    for load in loads:
        assert load.stop()["wrong"] == 0
    settled(kept.master)


@slow
@pytest.mark.limit(600 if TIER == "long" else 60)
def test_first_get_within_a_second(kept):
    """Fails if a get is not served within a second of the exec of a node that adopts its memory (8 GiB in a million objects in the long
    tier), in the best of three times, if a sample of them is wrong, or if a call fails beyond its deadline."""
    size, objects, length = ("8GiB", 1000000, 8000) if TIER == "long" else ("256MiB", 20000, 8000)
    node = kept.node("kept1", size, "--populate", "no")
    client = kept.shell(deadline=5000)
    for at in range(0, objects, 1000):
        assert client(f"bput k/ {at} 1000 {length}", 60)["results"] == {"OK": 1000}
    readers = [kept.shell(name=f"reader-{path}", deadline=5000, **conf) for path, conf in sorted(PATHS.items())]
    for reader in readers:
        assert reader(f"get k/0 {length}")["intact"]
    fresh = iter(range(objects - 1, 0, -1))  # objects of which no reader knows a place
    for _ in range(3):
        wait_kept(node)
        node.kill9()
        began = time.monotonic()
        node = kept.node("kept1", size, ready=False)
        for reader, i in zip(readers, fresh):
            got = {}
            while not got.get("intact"):
                asked = time.monotonic()
                got = reader(f"get k/{i} {length} deadline=1000")
                assert time.monotonic() - asked < 4 * SLOW and time.monotonic() - began < 30 * SLOW, got
        took = time.monotonic() - began
        print(f"first gets {took:.3f} s after exec, {objects} objects in {size}")
        node.wait_ready()
        if took < 1 * SLOW:
            break
    assert took < 1 * SLOW, took
    for at in range(0, objects - 499, objects // 20 - 1):
        find_all(readers[at % 2], 500, "k/", at, length)


def test_memory_that_does_not_fit(kept):
    """Fails if a node takes more memory than the machine has, does not name a size that fits, or the keeper of another node that ended and holds
    memory; or if a node that is refused costs what its own keeper holds.
    """
    def refused(name, size):
        got = kept.bench.run("kvpool-node", "--master", kept.master.listen, "--name", name, "--memory", f"{size}B")
        assert got.rc == 1, got
        return got.err

    total = int(re.search(r"MemTotal:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text())[1]) << 10
    node = kept.node()
    assert kept.shell(deadline=3000)(f"put old {8 * MIB}")["err"] == "OK"
    wait_kept(node)
    node.kill9()
    other = refused("kept2", total)
    assert re.search(r'the keeper of the node \\"kept1\\", which ended, holds \d+MiB', other), other
    assert "keeper of the node" not in refused("kept1", 2 * total)
    assert health(kept.node())["adopted_objects"] == 1
    fits = int(re.search(r"the largest possible is (\d+)MiB", other)[1]) * 9 // 10  # other processes take memory meanwhile
    kept.node("kept3", f"{fits}MiB", "--populate", "no", mode="none").terminate()
    share = kept.node("kept4", "1%", "--populate", "no", mode="none")
    assert 0 < health(share)["size_bytes"] <= total / 100
