# SPDX-License-Identifier: Apache-2.0
"""Tokens and roles at the master (docs/adr/0051-identities.md): each attack is refused, is in the audit once with its cause, and the pool
serves on."""
import os
import pathlib
import re
import subprocess
import time

import pytest

import rawwire as w
from conftest import PROGRAMS, wait_until
from trusted import DENIED, EXPIRED, FOLLOW, SNAPSHOT, SWITCH, Trusted, hello


@pytest.fixture
def pool(bench):
    return Trusted(bench)


def refused(at, data, err):
    with w.Raw(at) as raw:
        answer = raw.call(data)
        assert answer is not None and answer.err == err, answer and (answer.err, answer.detail)
        assert answer.detail
        assert raw.is_closed()


def test_a_client_without_a_token_is_refused_on_tcp(pool):
    pool.attack("what=HELLO result=DENIED.*no token", lambda: refused(pool.master.listen, hello(), DENIED))


def test_an_unknown_token_is_refused(pool):
    pool.attack("result=DENIED.*unknown", lambda: refused(pool.unix, hello(b"kvp_" + b"A" * 43), DENIED))


def test_a_token_that_has_ended_is_refused(pool):
    token = pool.token("t-short", "reader", "acme", ttl="1s")
    pool.master.wait_log('read again"? tokens=2')

    def has_ended():
        with w.Raw(pool.unix) as raw:
            return raw.call(hello(token)).err == EXPIRED

    wait_until(has_ended)
    pool.attack("t-short.*result=EXPIRED", lambda: refused(pool.unix, hello(token), EXPIRED))


def test_a_deleted_token_ends_its_sessions_within_ten_seconds(pool):
    token = pool.token("t-gone", "reader", "acme")
    pool.master.wait_log('read again"? tokens=2')

    def use_until_deleted():
        with w.Raw(pool.unix) as raw:
            assert raw.call(hello(token)).err == w.OK
            pool.delete("t-gone")
            assert raw.is_closed(12)
        refused(pool.unix, hello(token), DENIED)

    pool.attack("t-gone.*deleted", use_until_deleted)


def test_a_revoked_client_is_fenced_at_the_nodes(pool):
    token = pool.token("t-fenced", "writer", "acme")
    pool.master.wait_log('read again"? tokens=2')
    before = pool.fences()
    with w.Raw(pool.unix) as raw:
        assert raw.call(hello(token)).err == w.OK
        pool.delete("t-fenced")
        assert raw.is_closed(10)
    wait_until(lambda: pool.fences() > before)


def test_an_administrator_lists_and_ends_sessions(pool):
    pool.token("t-admin", "admin")
    token = pool.token("t-ended", "writer", "acme")
    pool.master.wait_log('read again"? tokens=3')
    admin = pool.env("t-admin")
    before = pool.fences()
    with w.Raw(pool.unix) as raw, w.Raw(pool.unix) as other:
        assert raw.call(hello(token, name="to-end")).err == w.OK and other.call(hello(token, name="stays")).err == w.OK
        rows = {row["name"]: row for row in pool.kvpool("session", "ls", "--json", env=admin).json["sessions"]}
        assert rows["to-end"]["identity"] == "writer t-ended" and rows["to-end"]["tenant"] == "acme" and rows["n1"]["role"] == "node"
        denied = pool.kvpool("session", "end", rows["to-end"]["id"])
        assert denied.rc == 1 and "needs the role admin" in denied.err, denied
        assert pool.kvpool("session", "end", rows["to-end"]["id"], env=admin).rc == 0
        assert raw.is_closed(10)
        pool.audit("t-admin.*what=SESSIONS result=OK")
        wait_until(lambda: pool.fences() > before)
        assert other.call(w.frame(w.STATUS)).opcode == w.STATUS
    again = pool.kvpool("session", "end", rows["to-end"]["id"], env=admin)
    assert again.rc == 1 and "no session has this number" in again.err, again
    assert pool.kvpool("session", "end", "7", env=admin).rc == 2
    pool.still_serves()


def test_sessions_are_listed_in_pages(bench):
    """200 sessions need four answers; each session is there once."""
    master = bench.master()
    raws = [w.Raw(master.unix) for _ in range(200)]
    try:
        for i, raw in enumerate(raws):
            assert raw.call(hello(name=f"s{i}")).err == w.OK
        names = [row["name"] for row in bench.run("kvpool", "session", "ls", "--master", master.listen, "--json").json["sessions"]]
        assert sorted(n for n in names if n[0] == "s" and n[1:].isdigit()) == sorted(f"s{i}" for i in range(200))
    finally:
        for raw in raws:
            raw.sock.close()


def test_another_tenant_in_hello_is_refused(pool):
    token = (pool.home / "t-writer.token").read_bytes().strip()
    pool.attack("t-writer.*another tenant", lambda: refused(pool.unix, hello(token, tenant="victim"), DENIED))


def test_a_token_of_64_kib_is_refused(pool):
    def send():
        with w.Raw(pool.unix) as raw:
            raw.send(hello(b"k" * 60000))
            assert raw.is_closed()
        refused(pool.unix, hello(b"k" * 8192), DENIED)

    pool.attack("result=DENIED.*not a token", send)


def test_a_token_on_a_plain_connection_is_not_looked_up(pool):
    token = (pool.home / "t-writer.token").read_bytes().strip()
    pool.attack('who=("")? role=none.*not encrypted', lambda: refused(pool.master.listen, hello(token), DENIED))


def test_a_token_on_a_plain_connection_is_accepted_if_told(bench):
    pool = Trusted(bench, "--insecure-tokens")
    token = (pool.home / "t-writer.token").read_bytes().strip()
    with w.Raw(pool.master.listen) as raw:
        answer = raw.call(hello(token))
        assert answer.err == w.OK
        assert answer.fields[16] == b"acme" and answer.fields[17] == b"writer t-writer"


@pytest.fixture
def reader(pool):
    token = pool.token("t-reader", "reader", "acme")
    pool.master.wait_log('read again"? tokens=2')
    return token


@pytest.mark.parametrize("opcode, name", [(FOLLOW, "FOLLOW"), (SWITCH, "SWITCH")])
def test_a_reader_may_not_follow_or_switch(pool, reader, opcode, name):
    ask = w.frame(opcode, w.pack((1, 1), (13, reader)) if opcode == SWITCH else w.pack((1, 1), (2, 1), (3, "x"), (13, reader)))
    pool.attack(f"t-reader.*what={name} result=DENIED", lambda: refused(pool.unix, ask, DENIED))


def test_nodes_do_not_follow(pool):
    token = pool.token("t-node", "node", name="n2")
    pool.master.wait_log('read again"? tokens=2')
    ask = w.frame(FOLLOW, w.pack((1, 1), (2, 1), (3, "x"), (13, token)))
    pool.attack("t-node.*what=FOLLOW result=DENIED", lambda: refused(pool.unix, ask, DENIED))


@pytest.mark.parametrize("role, opcode, head, cause", [
    ("reader", SNAPSHOT, w.pack(), "needs the role admin"),
    ("reader", w.PUT_BEGIN, w.pack((1, 1)), "needs the role writer"),
    ("reader", w.REMOVE, w.pack((1, 1)), "needs the role writer"),
    ("writer", w.BUMP, w.pack((2, 1)), "needs the role admin"),
    ("writer", w.REMOVE_MANY, w.pack((4, 1)), "needs the role admin"),
    ("monitor", w.LIST, w.pack(), "needs the role reader"),
])
def test_a_role_may_not_ask_more_than_its_own(pool, role, opcode, head, cause):
    token = pool.token("t-role", role, "acme")
    pool.master.wait_log('read again"? tokens=2')

    def ask():
        with w.Raw(pool.unix) as raw:
            assert raw.call(hello(token)).err == w.OK
            answer = raw.call(w.frame(opcode, head))
            assert answer.err == DENIED and cause in answer.detail
            assert raw.call(w.frame(w.STATUS)).opcode == w.STATUS  # the connection stays

    pool.attack(f"t-role.*result=DENIED.*{cause}", ask)


def test_a_client_may_not_be_a_node(pool, reader):
    pool.attack("t-reader.*only the roles node", lambda: refused(pool.unix, hello(reader, role=w.NODE, name="n9"), DENIED))


@pytest.mark.parametrize("is_away", [False, True])
def test_a_node_may_not_take_the_name_of_another(pool, is_away):
    token = pool.token("t-thief", "node", name="thief")
    pool.master.wait_log('read again"? tokens=2')
    if is_away:
        pool.add = pool.bench.node(pool.master, "n2")
        pool.node.freeze()

    def mount():
        refused(pool.unix, hello(token, role=w.NODE, name="n1"), DENIED)
        with w.Raw(pool.unix) as raw:
            assert raw.call(hello(token, role=w.NODE, name="thief")).err == w.OK
            answer = raw.call(w.frame(w.MOUNT, w.pack((1, "n1"), (2, os.urandom(16)), (3, w.Fixed(1)), (4, 1 << 20), (5, 1 << 20), (6, "127.0.0.1:1"))))
            assert answer.err == DENIED, (answer.err, answer.detail)

    try:
        before = pool.audits
        mount()
        pool.audit("t-thief.*what=MOUNT result=DENIED")
        assert pool.audits > before
    finally:
        if is_away:
            pool.node.thaw()
    pool.still_serves()


def test_hello_twice_does_not_change_the_tenant(pool, reader):
    with w.Raw(pool.unix) as raw:
        assert raw.call(hello(reader)).err == w.OK
        assert raw.call(hello(reader, tenant="victim")).err == -16  # NOTSUP: a session has one Hello
        assert raw.call(w.frame(w.STATUS)).opcode == w.STATUS
    pool.still_serves()


def test_frames_of_one_session_do_nothing_in_another(pool, reader):
    writer = (pool.home / "t-writer.token").read_bytes().strip()
    bump = w.frame(w.BUMP, w.pack((2, 1)))
    with w.Raw(pool.unix) as a, w.Raw(pool.unix) as b:
        assert a.call(hello(writer)).err == w.OK
        recorded = w.frame(w.HEARTBEAT, w.pack((1, w.Fixed(a.call(hello(writer)).request_id))))
        assert b.call(hello(reader)).err == w.OK
        assert b.call(recorded).err == w.FENCED
        assert b.call(bump).err == DENIED
    pool.still_serves()


def test_a_bad_token_file_leaves_the_tokens_before_in_force(pool):
    before = pool.file.read_text()
    pool.file.write_text(before + "not a line\n")
    pool.master.wait_log("token file is not valid")
    pool.still_serves()


def test_the_audit_goes_to_its_file(bench):
    """Also with a log that has errors only, after the file was moved away, and at most 100 lines in a second with the number of the others."""
    path = pathlib.Path(bench.home) / "audit"
    pool = Trusted(bench, "--audit", str(path), "--log-level", "error", nodes=False)

    def lines():
        return path.read_text().splitlines() if path.exists() else []

    refused(pool.unix, hello(b"kvp_" + b"A" * 43), DENIED)
    wait_until(lambda: any(re.match(r"time=\S+ level=warn part=audit msg=refused .*from=\"pid .*what=HELLO result=DENIED.*unknown", x) for x in lines()))
    assert "part=audit" not in pool.master.log() and path.stat().st_mode & 0o777 == 0o600
    path.rename(f"{path}.1")
    refused(pool.unix, hello(b"kvp_" + b"A" * 43), DENIED)
    wait_until(lambda: len(lines()) == 1, what="a new file")
    began = time.monotonic()
    for _ in range(400):
        refused(pool.unix, hello(b"kvp_" + b"A" * 43), DENIED)
    assert len(lines()) <= 51 + 51 * (time.monotonic() - began)
    time.sleep(0.1)
    refused(pool.unix, hello(b"kvp_" + b"A" * 43), DENIED)
    wait_until(lambda: sum(int(re.search(r"missed=(\d+)", x)[1]) + 1 for x in lines()) == 402, what="a count of all refusals")


def test_an_audit_file_that_cannot_be_written_is_named(bench):
    master = bench.start("bare", "kvpool-master", "--listen", "127.0.0.1:0", "--http", "none", "--data-dir", "none", "--audit", "/nowhere/audit",
                         ready=False)
    master.wait_log("--audit: cannot write the file.*No such file.*file=/nowhere/audit")
    wait_until(lambda: not master.is_running())
    bench.daemons.remove(master)


def test_the_role_of_a_user_is_that_of_its_line(bench):
    """With a line for the own user, this user is no administrator any more."""
    pool = Trusted(bench, "--map-uid", f"{os.geteuid()}=monitor:acme", nodes=False)
    as_user = pool.bench.run("kvpool", "whoami", "--master", pool.master.listen, "--json").json
    assert as_user == {"role": "monitor", "id": f"uid:{os.geteuid()}", "tenant": "acme"}
    assert pool.bench.run("kvpool", "rm", "--all", "--master", pool.master.listen).rc == 1


def test_whoami_shows_role_and_tenant(pool):
    assert pool.kvpool("whoami", "--json").json == {"role": "writer", "id": "t-writer", "tenant": "acme"}
    as_owner = pool.bench.run("kvpool", "whoami", "--master", pool.master.listen, "--json").json
    assert as_owner["role"] == "admin" and as_owner["id"] == f"uid:{os.geteuid()}"


def test_the_tenant_is_that_of_the_token(pool):
    """A client that names no tenant works with the tenant of its token; another tenant does not see its keys."""
    pool.token("t-other", "writer", "other")
    pool.master.wait_log('read again"? tokens=2')
    assert pool.kvpool("put", "key", stdin=b"acme's").rc == 0
    assert pool.kvpool("get", "key").out == b"acme's"
    assert pool.kvpool("get", "key", env=pool.env("t-other")).rc == 1
    assert pool.kvpool("get", "key", "--tenant", "acme").out == b"acme's"
    denied = pool.kvpool("get", "key", "--tenant", "other")
    assert denied.rc == 1 and "another tenant" in denied.err, denied


def test_a_tenant_sees_its_own_figures_only(pool):
    pool.token("t-other", "writer", "other")
    pool.master.wait_log('read again"? tokens=2')
    assert pool.kvpool("put", "key", stdin=b"x" * 100000).rc == 0
    stat = pool.kvpool("stat", "--json", env=pool.env("t-other")).json
    assert stat["pool"]["objects"] == 0 and stat["pool"]["counters"] == {}
    assert all(s["objects"] == 0 and s["used_bytes"] == 0 for s in stat["segments"])
    own = pool.kvpool("stat", "--json").json
    assert own["pool"]["objects"] == 1


def test_a_token_file_that_others_may_read_is_refused(pool):
    (pool.home / "t-writer.token").chmod(0o644)
    got = pool.kvpool("get", "key")
    assert got.rc != 0 and "chmod 600" in got.err, got


def test_a_bad_token_file_at_the_start_names_its_line(bench):
    path = pathlib.Path(bench.home) / "bad"
    path.write_text("# a comment\nabc id reader acme never\n")
    master = bench.start("master", "kvpool-master", "--listen", "127.0.0.1:0", "--http", "none", "--data-dir", "none",
                         "--tokens", str(path), ready=False)
    master.wait_log("line 2: the first field is not a SHA-256")
    wait_until(lambda: not master.is_running())
    bench.daemons.remove(master)


def test_nodes_copy_with_their_own_tokens_and_admins_drain(pool):
    """Fails if a writer may drain a node, or if nodes with tokens of the role `node` cannot copy objects of another tenant."""
    for ident, role, who in (("t-n2", "node", {"name": "n2"}), ("t-n3", "node", {"name": "n3"}), ("t-admin", "admin", {})):
        pool.token(ident, role, **who)
    pool.master.wait_log('read again"? tokens=4')
    nodes = {n: pool.bench.node(pool.master, n, "64MiB", "--token-file", str(pool.home / f"t-{n}.token")) for n in ("n2", "n3")}
    for i in range(30):
        assert pool.kvpool("put", f"k{i}", stdin=b"%d" % i * 5000).rc == 0
    got = pool.kvpool("node", "drain", "n2", "--wait")
    assert got.rc == 1 and "needs the role admin" in got.err, got
    pool.audit("t-writer.*what=DRAIN result=DENIED")
    assert pool.kvpool("node", "drain", "n1", env=pool.env("t-admin")).rc == 0
    got = pool.kvpool("node", "drain", "n2", "--wait", "--json", env=pool.env("t-admin"))
    assert got.rc == 0 and got.json["moved_objects"] > 0 and got.json["left_objects"] == 0, got
    pool.audit("t-admin.*what=DRAIN result=OK")
    assert sum("what=DRAIN result=OK" in line for line in pool.master.log().splitlines()) == 2  # and none for the questions
    nodes["n2"].kill9()
    for i in range(30):
        assert pool.kvpool("get", f"k{i}").out == b"%d" % i * 5000


def test_a_process_of_the_host_that_does_not_come_to_the_socket_is_in_the_audit(pool, tmp_path):
    """Fails if the audit lacks refusals over TCP of the master's own host, or has those of clients that go on to the Unix socket."""
    away = {"XDG_RUNTIME_DIR": str(tmp_path), "KVPOOL_RUNTIME_DIR": str(tmp_path)}
    for env, cause in ((away, "no token"), ({**pool.honest, **away, "KVPOOL_INSECURE_TOKENS": "yes"}, "not encrypted")):
        got = pool.bench.run("kvpool", "whoami", "--master", pool.master.listen, env=env)
        assert got.rc == 1 and "directory of sockets" in got.err, got
        pool.audit(f"what=HELLO result=DENIED object=.*{cause}")
    pool.still_serves()
    withheld = pool.bench.run("kvpool", "whoami", "--master", pool.master.listen, env={**pool.honest, **away})
    assert "was not sent, because this is TCP without TLS" in withheld.err, withheld
    pool.audit("result=DENIED.*no token")  # after the lines of the clients that serve, if there are such
    assert len(set(re.findall(r"result=DENIED object=(kvpool-\d+)", pool.master.log()))) == 3, pool.master.log()


def test_a_node_with_a_bad_token_says_what_is_wrong(pool):
    pool.token("t-n9", "node", name="n9")
    pool.token("t-shut", "node", name="n8")
    pool.master.wait_log('read again"? tokens=3')
    for file, mode, cause in (("t-n9", 0o600, "node with another name"), ("t-writer", 0o600, "only the roles node"), ("t-none", 0, "No such file"),
                              ("t-shut", 0o644, "chmod 600")):
        path = pool.home / f"{file}.token"
        if mode:
            path.chmod(mode)
        node = pool.bench.start(file, "kvpool-node", "--master", pool.master.listen, "--name", "n8", "--memory", "64MiB", "--keeper", "none",
                                "--token-file", str(path), ready=False)
        node.wait_log(f"no session with master.*{cause}")
        node.terminate()
        pool.bench.daemons.remove(node)


def test_the_audit_names_what_was_asked(pool):
    pool.token("t-admin", "admin")
    pool.master.wait_log('read again"? tokens=2')
    admin = pool.env("t-admin")
    assert pool.kvpool("put", "k1", stdin=b"x").rc == 0
    assert pool.kvpool("rm", "k1").rc == 0
    pool.audit("t-writer.*what=REMOVE result=OK object=\"1 keys, first digest [0-9a-f]{32}\"")
    assert pool.kvpool("rm", "--regex", "^none").rc == 0
    pool.audit("t-writer.*what=REMOVE_MANY result=OK object=.?\\^none")
    assert pool.kvpool("rm", "--all").rc == 1
    pool.audit("t-writer.*what=REMOVE_MANY result=DENIED object=all")
    assert pool.kvpool("node", "drain", "n1", env=admin).rc == 0
    pool.audit("t-admin.*what=DRAIN result=OK object=n1")
    assert pool.kvpool("session", "end", "00000000000000ff", env=admin).rc == 1
    pool.audit("t-admin.*what=SESSIONS result=NOT_FOUND object=.?00000000000000ff")


def test_a_client_learns_that_its_token_has_ended(pool):
    pool.token("t-over", "writer", "acme", ttl="1s")
    pool.master.wait_log('read again"? tokens=2')
    wait_until(lambda: "(EXPIRED)" in pool.kvpool("whoami", env=pool.env("t-over")).err)


def test_an_id_is_used_once_and_a_token_that_was_not_shown_is_not_in_the_file(pool):
    again = pool.bench.run("kvpool", "token", "create", "--file", str(pool.file), "--role", "reader", "--id", "t-writer")
    assert again.rc == 1 and "has a token t-writer already" in again.err, again
    before = pool.file.read_text()
    with open("/dev/full", "w") as full:
        done = subprocess.run([PROGRAMS["kvpool"], "token", "create", "--file", str(pool.file), "--role", "reader"], stdout=full,
                              stderr=subprocess.PIPE, env=pool.bench.env())
    assert done.returncode == 1 and pool.file.read_text() == before, done


def test_a_bad_user_is_named(bench):
    got = bench.run("kvpool-master", "--data-dir", "none", "--http", "none", "--listen", "127.0.0.1:0", "--map-uid", "5=king:a")
    assert got.rc != 0 and 'UID=ROLE:TENANT: a number, a role, and a tenant or none" value="5=king:a"' in got.err, got
