# SPDX-License-Identifier: Apache-2.0
"""The command line beyond put and get: what its options do, and what it says when they are wrong."""
import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from conftest import PROGRAMS, SLOW, chat_trace, run_program, wait_until


def test_upsert_replaces(pool):
    """Fails if --upsert leaves the old value, or if a put without it replaces one or says that it stored this one."""
    got = pool.put("k", b"one", "--json")
    assert got.rc == 0 and got.json == {"key": "k", "stored": True, "already": False, "size_bytes": 3} and got.err == ""
    for flags in ((), ("--json",)):
        got = pool.put("k", b"another", *flags)
        assert got.rc == 0 and "--upsert" in got.err and got.err.count("\n") == 1, got
    assert got.json == {"key": "k", "stored": False, "already": True, "size_bytes": 3}
    assert pool.get("k").out == b"one"
    got = pool.put("k", b"three", "--upsert", "--wait", "--json")
    assert got.rc == 0 and got.json == {"key": "k", "stored": True, "already": False, "size_bytes": 5} and got.err == ""
    assert pool.get("k").out == b"three"
    assert pool.put("new", b"value", "--upsert").rc == 0, "an upsert of a key that is not there is a put"


def test_replicas(make_pool):
    """Fails if --replicas does not make copies on as many hosts."""
    pool = make_pool(nodes=0)
    for i in (1, 2):
        pool.add_node(f"node{i}", "8MiB", "--host-id", f"host-{i}")
    assert pool.put("k", b"value", "--replicas", "2").rc == 0
    assert [s["objects"] for s in pool.kvpool("stat", "--json").json["segments"]] == [1, 1]


@pytest.mark.pool(nodes=1, memory="1MiB")
def test_pins(pool):
    """Fails if what was pinned hard is evicted, or if what was not is kept in its place."""
    value = bytes(64 << 10)
    assert pool.put("hard", value, "--pin", "hard").rc == 0
    assert pool.put("loose", value).rc == 0
    for i in range(20):
        assert pool.put(f"k{i}", value).rc == 0
    assert pool.exists("hard").rc == 0 and pool.exists("loose").rc == 1
    assert pool.rm("hard").rc == 0
    assert pool.put("soft", value, "--pin", "soft").rc == 0


def test_tenants_and_bump(pool):
    """Fails if --tenant does not set keys apart, or if bump leaves its own findable or takes another's."""
    for tenant in ("default", "5"):
        assert pool.put("k", tenant.encode(), "--tenant", tenant).rc == 0
    assert pool.get("k").out == b"default" and pool.get("k", "--tenant", "5").out == b"5"
    assert pool.get("k", "--tenant", "6").rc == 1
    shown = pool.kvpool("stat", "--json", "--tenant", "5").json["tenants"]
    assert [(t["tenant"], t["objects"]) for t in shown] == [("5", 1)]
    first = pool.kvpool("bump", "--tenant", "5", "--json")
    assert first.rc == 0 and first.json["tenant"] == "5", first
    assert pool.kvpool("bump", "--tenant", "5", "--json").json["epoch"] == first.json["epoch"] + 1
    assert pool.get("k", "--tenant", "5").rc == 1
    assert pool.get("k").out == b"default"
    assert re.search(r"epoch\s+\d", pool.kvpool("bump").text)
    assert pool.get("k").rc == 1


def test_rm_waits_and_forces(pool):
    assert pool.put("k", b"v").rc == 0
    assert pool.rm("k", "--wait").rc == 0
    assert pool.put("k", b"v").rc == 0
    assert pool.rm("k", "--wait", "--force").rc == 0
    assert pool.exists("k").rc == 1


@pytest.mark.parametrize("args, says", [
    (["put", "k", "--replicas", "0"], "from 1 to 8"),
    (["put", "k", "--replicas", "9"], "from 1 to 8"),
    (["put", "k", "--pin", "firm"], "soft or hard"),
    (["put", "k", "--group", "name"], "NAME/MEMBERS/NUMBER"),
    (["put", "k", "--group", "name/2/2"], "numbered from 0"),
    (["put", "k", "--group", "/2/1"], "NAME/MEMBERS/NUMBER"),
    (["put", "k", "--group", "name/5000/1"], "at most 4096"),
    (["put", "k", "--wait"], "--upsert"),
    (["rm", "--all", "--wait"], "--wait is for keys"),
    (["bump", "k"], "no operand"),
    (["get", "k", "--tenant", "x" * 129], "128 bytes"),
    (["get", "k", "--deadline", "0"], "0.001 s"),
    (["ls", "--limit", "-1"], "a whole number"),
    (["get", "k", "--transports", "pigeon"], 'transports: there is no transport "pigeon", but shm, rdma and tcp'),
    (["get", "k", "--transports", "tcp,tcp"], "tcp is named twice"),
    (["get", "k", "--transports", ""], "shm, rdma, tcp"),
    (["get", "k", "--host-id", ""], "1 to 128 bytes"),
    (["get", "k", "--host-id", "h" * 129], "128 bytes"),
    (["get", "k", "--master", ""], "HOST:PORT"),
])
def test_bad_options_say_what_is_wanted(bench, args, says):
    """Fails if a wrong value is taken, or refused without its unit and bounds."""
    r = bench.run("kvpool", *args, stdin=b"v")
    assert r.rc == 2 and says in r.err and not r.out, r


@pytest.mark.parametrize("variables, says", [
    ({"KVPOOL_TRANSPORTS": "pigeon"}, 'KVPOOL_TRANSPORTS: there is no transport "pigeon", but shm, rdma and tcp'),
    ({"KVPOOL_RDMA_DEVICE": "mlx5_0:no"}, "KVPOOL_RDMA_DEVICE"),
    ({"KVPOOL_RDMA_GID_INDEX": "first"}, "KVPOOL_RDMA_GID_INDEX"),
    ({"KVPOOL_VERIFY": "all"}, "KVPOOL_VERIFY"),
])
def test_bad_variables_say_what_is_wanted(bench, variables, says):
    """Fails if a wrong value in the environment is taken, not named, or named in more than one line."""
    r = bench.run("kvpool", "get", "k", env=variables)
    assert r.rc == 2 and says in r.err and len(r.err.splitlines()) == 1 and not r.out, r


@pytest.mark.skipif(os.path.isdir("/sys/class/infiniband"), reason="this machine has RDMA devices; the guest's test covers them")
@pytest.mark.parametrize("args", [["get", "k"], ["bench", "--size", "4KiB", "--set", "64KiB", "--seconds", "10ms"]])
def test_rdma_that_is_named_and_not_there_is_an_error(bench, args):
    """Fails if rdma is replaced by another transport where there is no device, or the line does not say why."""
    master = bench.master()
    bench.node(master, "node", "1MiB")
    r = bench.run("kvpool", *args, "--master", master.listen, "--transports", "rdma")
    assert r.rc == 2 and len(r.err.splitlines()) == 1 and not r.out, r
    assert "rdma cannot be used here: no RDMA device" in r.err or "not installed" in r.err, r


@pytest.mark.skipif(os.path.isdir("/sys/class/infiniband"), reason="this machine has RDMA devices; the guest's test covers them")
def test_replay_over_a_pool_of_its_own_takes_options_as_others_do(bench):
    """Fails if what cannot be used is told with another exit code than by other verbs, or after the replay began."""
    r = bench.run("kvpool", "replay", "--trace", chat_trace(bench, 10), "--block-bytes", "4KiB", "--transports", "rdma")
    assert r.rc == 2 and "transports: rdma cannot be used here" in r.err and not r.out, r


@pytest.mark.parametrize("verb", [["up", "--nodes", "1"], ["bench", "--op", "exists", "--keys", "64"], ["replay", "--trace"]])
@pytest.mark.parametrize("address", ["", "127.0.0.1:7000", "no such host", "n" * 300])
def test_node_listen_takes_addresses(bench, verb, address):
    """Fails if what is no address is taken, or a port that all nodes would have to share."""
    trace = [chat_trace(bench, 10)] if verb[-1] == "--trace" else []
    r = bench.run("kvpool", *verb, *trace, "--node-listen", address)
    assert r.rc == 2 and f'--node-listen does not take "{address}"' in r.err and not r.out, r


def test_nodes_of_up_listen_where_they_are_told_to(bench):
    """Fails if they listen elsewhere, or a pool with nodes there cannot be used."""
    up = bench.popen("kvpool", "up", "--listen", "127.0.0.1:0", "--node-listen", "127.0.0.2", "--memory", "4MiB", "--json",
                     stdout=subprocess.PIPE, env={"KVPOOL_TRANSPORTS": "tcp"})
    said = json.loads(up.stdout.readline())
    assert len(said["nodes"]) == 2 and all(at.startswith("127.0.0.2:") for at in said["nodes"]), said
    assert bench.run("kvpool", "put", "k", "--master", said["master"], "--transports", "tcp", stdin=b"v").rc == 0
    got = bench.run("kvpool", "get", "k", "--master", said["master"], "--transports", "tcp")
    assert got.rc == 0 and got.out == b"v", got
    up.send_signal(signal.SIGINT)
    assert up.wait(30) == 0


def test_up_with_a_conductor(bench):
    """Fails if the conductor of `up` does not follow the pool, `stat --conductor` does not show it, or it outlives the rest."""
    up = bench.popen("kvpool", "up", "--listen", "127.0.0.1:0", "--nodes", "1", "--memory", "4MiB", "--conductor", "--conductor-http", "127.0.0.1:0", "--json",
                     stdout=subprocess.PIPE)
    said = json.loads(up.stdout.readline())
    assert bench.run("kvpool", "put", "k", "--master", said["master"], stdin=b"v").rc == 0
    at = ("stat", "--conductor", "--conductor-http", said["conductor"])
    wait_until(lambda: bench.run("kvpool", *at, "--json").json[0]["events"] > 0, 10, "the event")
    shown = bench.run("kvpool", *at)
    assert shown.rc == 0 and re.search(r"^  pool +default .* live ", shown.text, re.M), shown
    up.send_signal(signal.SIGTERM)
    assert up.wait(30) == 0
    gone = bench.run("kvpool", *at)
    assert gone.rc == 3 and "no conductor answers" in gone.err, gone


@pytest.mark.parametrize("program", ["kvpool-master", "kvpool-node"])
def test_address_that_cannot_be_listened_at_is_named(bench, program):
    """Fails if the line does not say which port or address it is, or what to do."""
    master = bench.master()
    args = ["--data-dir", "none", "--http", "none"] if program == "kvpool-master" else ["--master", master.listen, "--memory", "1MiB"]
    for at, says in ((master.listen, "choose another port with --listen"), ("192.0.2.1:7000", "ip address")):
        r = bench.run(program, *args, "--insecure", "--listen", at)
        assert r.rc == 1 and f"cannot listen at {at}: " in r.err and says in r.err, r


@pytest.mark.parametrize("program, args, says", [
    ("kvpool-master", ["--lease-ttl", "1ms"], "from 100ms to 1h"),
    ("kvpool-node", ["--memory", "1KiB"], "at least 64KiB"),
    ("kvpool-node", ["--chunk-bytes", "1B"], "from 64KiB to 64GiB"),
    ("kvpool-node", ["--lanes", "9"], "from 0 to 8"),
    ("kvpool-node", ["--master", "nowhere"], "HOST:PORT"),
    ("kvpool-node", ["--listen", "nowhere"], "HOST:PORT"),
    ("kvpool-node", ["--transports", "pigeon"], 'there is no transport "pigeon", but shm, rdma and tcp'),
    ("kvpool-node", ["--rdma-device", "mlx5_0:no"], "NAME[:PORT]"),
    ("kvpool-node", ["--rdma-gid-index", "first"], "no GID index"),
    ("kvpool-node", ["--name", "n" * 129], "128 bytes"),
    ("kvpool-node", ["--transports", ""], "transport"),
    ("kvpool-node", ["--host-id", ""], "from 1 to 128 bytes"),
    ("kvpool-node", ["--populate", "maybe"], "maybe"),
])
def test_daemons_bad_options_say_what_is_wanted(bench, program, args, says):
    """Fails if a daemon does not end with 2 and the option's bounds, whichever part of it finds the value wrong."""
    r = bench.run(program, *args, timeout=10 * SLOW)
    assert r.rc == 2 and says in r.err.replace('\\"', '"') and not r.out, r


def test_options_before_the_verb_and_words_that_are_near(pool, bench):
    """Fails if an option of every verb may not stand before it, or if a mistake is named by another word than the one that is wrong."""
    at = ("--master", pool.addr)
    assert bench.run("kvpool", *at, "--json", "put", "k", stdin=b"x").json["stored"]
    assert bench.run("kvpool", f"--master={pool.addr}", "--deadline", "2s", "exists", "k").rc == 0
    assert bench.run("kvpool", *at, "put", "--", "-dash", stdin=b"x").rc == 0
    assert bench.run("kvpool", "--upsert", *at, "put", "k", stdin=b"xyz").rc == 0 and bench.run("kvpool", "get", "k", *at).out == b"xyz"
    assert bench.run("kvpool", "--limit", "1", *at, "ls").out == b"-dash\n"
    for words, says in ((("put", "-dash"), "-d;"), (("rm", "-k1", "a"), "-k;"), (("put", "k", "--upser1"), "--upser1"), (("putt", "k"), 'did you mean "put"'),
                        (("stats",), 'did you mean "stat"'), (("delete", "k"), 'did you mean "rm"'), (("--json", "exist", "k"), 'did you mean "exists"'),
                        (("frobnicate",), 'no verb "frobnicate"; see'), (("--json",), "verb is missing"), (("switch",), 'did you mean "master switch"'),
                        (("-dash", "put"), "unknown option -dash"), (("--upser1", "put", "k"), "--upser1")):
        r = bench.run("kvpool", *words)
        assert r.rc == 2 and says in r.err and "unknown option put" not in r.err, r


def test_why_no_master_is_reached(bench):
    """Fails if a tool does not say in one line, or as JSON, why it reaches no master, or waits for a name that nobody knows."""
    deadline = ("--deadline", "200ms")

    def check(master, *why, verbs=("put k",)):
        text = bench.run("kvpool", "exists", "k", "--master", master, *deadline)
        assert text.rc == 3 and text.err.count("\n") == 1 and not text.out and all(w in text.err for w in why), text
        assert text.err.startswith("kvpool exists: ") and text.err.endswith("(UNREACHABLE)\n"), text
        for verb in verbs:
            got = bench.run("kvpool", *verb.split(), "--master", master, "--json", *deadline)
            said = json.loads(got.err if verb == "get k" else got.out)
            assert got.rc == 3 and said["error"] == "UNREACHABLE" and all(w in said["detail"] for w in why), got
            assert not (got.out if verb == "get k" else got.err), got

    check("127.0.0.1:1", "127.0.0.1:1: Connection refused", verbs=("stat", "ls", "exists k", "put k", "rm k", "get k"))
    check("127.0.0.1:1,127.0.0.1:2", "127.0.0.1:1: Connection refused", "127.0.0.1:2: Connection refused")
    deadline = ("--deadline", "60s")
    check("no-such-host.invalid:1", "no-such-host.invalid:1: the name does not resolve")
    deadline = ("--deadline", "3s")  # masters are asked meanwhile
    frozen = bench.master()
    frozen.freeze()
    check(frozen.listen, f"{frozen.listen}: no answer", "timed out")
    frozen.thaw()
    two = [bench.master("--etcd", "http://127.0.0.1:1", "--cluster", "c", data_dir=f"{bench.home}/{i}", name=f"master{i}") for i in range(2)]
    check(f"{two[0].listen},{two[1].listen}", "no master leads")
    found = bench.run("kvpool", "doctor", "--json", "--master", f"{two[0].listen},{two[1].listen}", *deadline).json["findings"]
    assert "etcd" in next(f for f in found if f["code"] == "no_leader")["fix"]
    for at, why in (("127.0.0.1:1", "Connection refused"), ("no-such-host.invalid:1", "Name or service not known"), (frozen.http, "is no conductor")):
        got = bench.run("kvpool", "stat", "--conductor", "--conductor-http", at, "--json")
        assert got.rc == 3 and why in json.loads(got.out)["detail"] and not got.err, got
        got = bench.run("kvpool", "stat", "--conductor", "--conductor-http", at)
        assert got.rc == 3 and got.err.count("\n") == 1 and f"{at}: " in got.err and why in got.err, got


def test_name_of_a_node_that_is_taken_is_told(bench):
    """Fails if the second node of one name does not say which name that is and what helps, or is not heard where it is free."""
    master = bench.master()
    first = bench.node(master, "twin", "4MiB")
    second = bench.start("second", "kvpool-node", "--master", master.listen, "--name", "twin", "--memory", "4MiB", "--listen",
                         "127.0.0.1:0", ready=False)
    second.wait_log(r'a connected node \\"twin\\".*--name')
    first.terminate()
    second.wait_ready()


def test_http_port_in_use_is_named(pool):
    """Fails if the complaint about a used port names another one."""
    r = run_program([PROGRAMS["kvpool-master"], "--listen", "127.0.0.1:0", "--http", pool.master.http, "--data-dir", "none"],
                    pool.bench.env(), timeout=10 * SLOW)
    assert r.rc == 1, r
    assert f"cannot listen at {pool.master.http}: Address already in use" in r.err and "port 0" not in r.err, r


def test_second_master_on_a_directory_says_why(bench):
    """Fails if a master that finds another one in its data directory gives any other reason."""
    data = os.path.join(bench.home, "data")
    bench.master(data_dir=data)
    r = bench.run("kvpool-master", "--listen", "127.0.0.1:0", "--http", "none", "--data-dir", data)
    assert r.rc == 1 and "another master uses the data directory" in r.err, r
    assert "peer" not in r.err and "connection" not in r.err, r


def test_open_doors_are_named(bench):
    """Fails if a daemon that other hosts can reach does not say that it asks nobody who he is, or if one that they cannot
    reach says so.
    """
    inside = bench.master()
    bench.node(inside, "inside", "1MiB")
    outside = bench.master(listen="0.0.0.0:0", name="outside")
    node = bench.node(inside, "node", "1MiB", listen="0.0.0.0:0")
    for daemon in (outside, node):
        daemon.wait_log("clients are not authenticated")
    assert not any("authenticated" in d.log() for d in bench.daemons if d not in (outside, node))


def test_flags_of_daemons_take_a_value(bench):
    """Fails if `--populate no` is refused: values of such options used to need an equals sign."""
    master = bench.master()
    for value in ("no", "yes"):
        assert bench.node(master, f"node-{value}", "1MiB", "--populate", value).is_running()


@pytest.mark.pool(nodes=1, memory="1MiB")
def test_refused_puts_say_why(pool):
    """Fails if a put that is refused for space does not say what the master knows of it: memory that is pinned, or that
    is other tenants'; as text and as JSON.
    """
    value = bytes(64 << 10)
    for i in range(16):
        assert pool.put(f"hard{i}", value, "--pin", "hard").rc == 0
    r = pool.put("more", value)
    assert r.rc == 1 and re.search(r"NO_SPACE\): of 1048576 bytes, 1048576 are used, 1048576 of these pinned hard", r.err), r
    r = pool.put("more", value, "--tenant", "5", "--json")
    assert r.rc == 1 and r.json["error"] == "NO_SPACE" and "1048576 in chunks of other tenants" in r.json["detail"], r
    assert "detail" not in pool.kvpool("get", "--json", "nothing").err


def test_puts_into_a_pool_without_nodes_say_so(make_pool):
    """Fails if a put that waits for a first node in vain does not say that there is none."""
    r = make_pool(nodes=0).put("k", b"v", "--deadline", "2s")
    assert r.rc == 1 and "): no node has offered memory yet" in r.err, r


def test_sweeping_removals_after_a_restart_say_what_they_wait_for(bench, make_pool):
    """Fails if a removal of everything that comes too early for a new master that has lost its log speaks of space, or does not
    tell for how long.
    """
    data = os.path.join(bench.home, "data")
    pool = make_pool(nodes=1, data_dir=data)
    assert pool.put("k", b"v").rc == 0
    pool.master.kill9()
    shutil.rmtree(os.path.join(data, "log"))
    pool.master = bench.master(data_dir=data, listen=pool.master.listen, name="master2")
    for what in (["--all"], ["--regex", "k"]):
        r = pool.kvpool("rm", *what, timeout=20 * SLOW)
        assert r.rc == 1 and re.search(r"RETRY_AFTER\): nodes .* may still report .*, for \d+ s", r.err), r
        assert "space" not in r.err, r


def test_stat_begins_at_once(pool):
    """Fails if the text of --all begins with an empty line, or if its sections are not set apart."""
    assert pool.put("k", b"value").rc == 0
    lines = pool.kvpool("stat", "--all").text.splitlines()
    assert lines[0] == "pool"
    for title in ("tenants", "segments", "client"):
        assert lines[lines.index(title) - 1] == "", title


def screen(pool):
    """The lines of stat's screen by their first word; the nodes' names and states below."""
    got = pool.kvpool("stat")
    assert got.rc == 0, got
    head, _, table = got.text.partition("\n\nnodes\n")
    shown = {line[:11].strip(): line[11:] for line in head.splitlines()}
    return shown, [line.split()[:2] for line in table.splitlines()[1:]]


@pytest.mark.pool(nodes=2, memory="64MiB", node_args=("--chunk-bytes", "64MiB"))
def test_stat_shows_how_the_pool_is(pool):
    """Fails if the screen has not nodes, memory, objects and hits as they are, or if it has counters."""
    shown, nodes = screen(pool)
    assert shown == {"nodes": "2 of 2 up", "memory": "0 B of 128 MiB used (0.0 %)", "objects": "0, and 0 puts under way",
                     "hit ratio": "since start: nothing was asked for yet", "wrong": "nothing",
                     "protection": "master: control loopback, http loopback", "": "2 nodes: control loopback, http closed, data loopback"}
    assert nodes == [["node1", "up"], ["node2", "up"]]
    assert pool.put("k", bytes(32 << 20)).rc == 0
    assert pool.exists("k", "absent").rc == 1 and pool.get("k").rc == 0
    shown, _ = screen(pool)
    assert shown["memory"] == "32 MiB of 128 MiB used (25.0 %)" and shown["objects"] == "1, and 0 puts under way"
    assert "hit ratio  last minute: 50.0 % (of tenants that look up: look-ups, and gets that missed)\n" in pool.kvpool("stat").text
    assert shown["hit ratio"] == "since start: gets 100.0 % of 1, look-ups 50.0 % of 2"
    assert "evictions" not in pool.kvpool("stat").text and "evictions" in pool.kvpool("stat", "--all").text


@pytest.mark.pool(nodes=2, memory="64MiB", node_args=("--chunk-bytes", "64MiB"))
def test_stat_says_what_is_wrong(pool):
    """Fails if a node that is lost, or puts that were refused for want of space, are not told."""
    assert pool.put("pinned", bytes(40 << 20), "--pin", "hard").rc == 0
    assert pool.put("pinned as well", bytes(40 << 20), "--pin", "hard").rc == 0
    assert pool.put("k", bytes(40 << 20)).rc == 1
    assert screen(pool)[0]["wrong"] == "puts refused for want of space: 1"
    pool.nodes[0].kill9()
    shown, nodes = wait_until(lambda: (got := screen(pool))[0]["nodes"] == "1 of 2 up" and got, 20, "the node to be lost")
    assert shown["wrong"] == "node node1 is lost: its objects cannot be read until it is back"
    assert nodes == [["node1", "lost"], ["node2", "up"]]
    told = pool.kvpool("stat", "--json").json
    assert told["pool"]["status"] == "degraded" and [w["code"] for w in told["pool"]["why"]] == ["node_lost"], told["pool"]
    assert [(m["address"], m["state"]) for m in told["masters"]] == [(pool.addr, "leader")]
    status, text = pool.master.http_get("/health")
    assert status == 200 and json.loads(text)["status"] == "degraded" and "node1 is lost" in text, text
    pool.nodes[1].kill9()
    wait_until(lambda: "node2 is lost" in pool.master.http_get("/health")[1], 20, "the other to be lost")


@pytest.mark.pool(nodes=1)
def test_health_without_nodes(pool):
    """Fails if a pool is not good, or is still good after its last node has stopped in order."""
    assert (told := json.loads(pool.master.http_get("/health")[1]))["why"] == [] and told["status"] == "ok", told
    assert pool.nodes[0].terminate() == 0
    told = wait_until(lambda: (got := json.loads(pool.master.http_get("/health")[1]))["status"] == "degraded" and got, 20, "no node")
    assert told["why"] == ["there is no node: nothing can be stored"]
    assert screen(pool)[0]["wrong"] == "there is no node: nothing can be stored"


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_replay_stops_its_pool_in_order(bench, sig):
    """Fails if a replay that is interrupted does not end soon, or leaves complaints of its children, or children."""
    errors = open(os.path.join(bench.home, "err"), "w+b")
    p = bench.popen("kvpool", "replay", "--trace", chat_trace(bench, 60000), "--block-bytes", "4KiB", stderr=errors, stdout=errors)

    def said():
        errors.seek(0)
        return errors.read().decode()

    children = wait_until(lambda: len(c := children_of(p.pid)) == 3 and c, 20, "its pool")
    time.sleep(0.5)
    assert p.poll() is None, said()
    p.send_signal(sig)
    assert p.wait(15 * SLOW) == 1
    assert "CANCELLED" in said() and not re.search(r"(warn|error) +\w+:|died|did not stop", said()), said()
    assert not any(os.path.exists(f"/proc/{child}") for child in children)


def children_of(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
            return f.read().split()
    except OSError:
        return []
