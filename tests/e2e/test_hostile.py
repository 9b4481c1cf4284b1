# SPDX-License-Identifier: Apache-2.0
"""What a hostile or careless neighbour can do (docs/adr/0026-strangers.md): a case for each way, from a raw socket, with what the
others lived through meanwhile: longest wait, failed calls, memory of the daemons.
"""
import os
import socket
import subprocess
import threading
import time

import pytest
import rawwire as w
from conftest import PROGRAMS, SLOW, run_program, wait_until


class Bystander:
    """Another client that asks EXISTS for one digest again and again, over its own connection. .waits_s has how long each answer took,
    .failed how many calls got no answer."""

    def __init__(self, master):
        self.waits_s, self.failed = [], 0
        self._raw, _ = w.session(master, name="bystander")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        ask = w.frame(w.EXISTS, b"", bytes(16))
        while not self._over.is_set():
            began = time.monotonic()
            answer = self._raw.call(ask)
            if answer is None:
                self.failed += 1
                return
            self.waits_s.append(time.monotonic() - began)
            time.sleep(0.001)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._over.set()
        self._thread.join(30 * SLOW)

    def p99_s(self):
        return sorted(self.waits_s)[int(len(self.waits_s) * 0.99)]


# ---- 1. terms
# ---- 2. hash flooding
# ---- 3. turns of the master
# ---- 4. empty messages
# ---- 5. tenants
# ---- 6. descriptors of a large node
# ---- 7. big frames
# ---- 8. Unix paths
HERE = "the-host-of-case-8"


class Listener:
    """Takes connections at a Unix path ('@': abstract) or, without one, at a port of the loopback address, and answers every Hello
    with answer. .seen has what each connection sent, .fds_n how many descriptors came along."""

    def __init__(self, path=None, answer=b"", uid=0):
        self.sock = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
        self.sock.bind(path.replace("@", "\0", 1) if path else ("127.0.0.1", 0))
        if uid:
            os.seteuid(uid)  # the kernel tells who has called listen()
        try:
            self.sock.listen(64)
        finally:
            os.seteuid(os.getuid())
        self.at = path or f"127.0.0.1:{self.sock.getsockname()[1]}"
        self.answer, self.seen, self.fds_n = answer, [], 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while True:
            try:
                conn = self.sock.accept()[0]
            except OSError:
                return
            self.seen.append(b"")
            threading.Thread(target=self._serve, args=(conn, len(self.seen) - 1), daemon=True).start()

    def _serve(self, conn, i):
        with conn:
            while True:
                try:
                    data, fds, _, _ = socket.recv_fds(conn, 65536, 8)
                except OSError:
                    return
                self.seen[i] += data
                self.fds_n += len(fds)
                for fd in fds:
                    os.close(fd)
                if not data:
                    return
                if self.answer:
                    conn.sendall(self.answer)

    def close(self):
        self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()
        self._thread.join(10 * SLOW)


def told_elsewhere(bench):
    """Paths that lie where no socket of ours does: a name of no kind, names of ours in another directory, an abstract one."""
    os.mkdir(f"{bench.home}/elsewhere")
    return [f"{bench.home}/elsewhere/anything", f"{bench.home}/elsewhere/master-50051.sock",
            f"{bench.home}/elsewhere/node-1-0000abcd.sock", f"@kvpool-{os.getpid()}-{os.urandom(4).hex()}"]


def test_path_that_a_master_tells(bench):
    """Fails if a client or a node goes to a Unix path outside its own directory because whoever answers as a master says so."""
    for path in told_elsewhere(bench):
        lure = Listener(path)
        told = w.pack((3, 1), (5, 1), (6, w.Fixed(77)), (7, b"p" * 16), (9, HERE), (10, path), (11, 1000), (12, 10000))
        master = Listener(answer=w.frame(w.HELLO, told, flags=w.REPLY))
        node = bench.start("node", "kvpool-node", "--master", master.at, "--host-id", HERE, "--listen", "127.0.0.1:0", ready=False)
        bench.run("kvpool", "exists", "key", "--master", master.at, "--host-id", HERE, "--deadline", "1s")
        wait_until(lambda: len(master.seen) >= 2, what="the node has come, too")
        node.wait_log("staying on tcp")
        assert lure.seen == [] and lure.fds_n == 0, path
        node.terminate()
        master.close()
        lure.close()


def test_path_that_a_node_tells(bench):
    """Fails if a client goes to a Unix path outside its own directory because a node says so, hands that its pidfd, does not take TCP
    instead, or takes TCP where shared memory was asked for."""
    master = bench.master()
    for path in told_elsewhere(bench):
        lure, tcp = Listener(path), Listener()
        node = w.MountedNode(master.listen, HERE, tcp.at, unix_path=path, transports="shm,tcp")
        put = ("put", "k", "--master", master.listen, "--host-id", HERE, "--deadline", "1s")
        assert bench.run("kvpool", *put, "--transports", "shm", stdin=b"x").rc != 0 and tcp.seen == []
        bench.run("kvpool", *put, stdin=b"x")
        assert tcp.seen and lure.seen == [] and lure.fds_n == 0, path
        node.end()
        tcp.close()
        lure.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can listen as another user")
def test_process_of_another_user(bench):
    """Fails if anything is sent to a socket in the right place whose process is of a user that is not trusted."""
    master = bench.master()
    path = f"{bench.home}/kvpool/node-1-0000abcd.sock"
    lure = Listener(path, uid=4000)
    node = w.MountedNode(master.listen, HERE, "127.0.0.1:1", unix_path=path, transports="shm")
    put = ("put", "k", "--master", master.listen, "--host-id", HERE, "--deadline", "1s", "--transports", "shm")
    assert bench.run("kvpool", *put, stdin=b"x").rc != 0
    assert lure.seen and set(lure.seen) == {b""} and lure.fds_n == 0
    bench.run("kvpool", *put, stdin=b"x", env={"KVPOOL_TRUST_UID": "4000"})
    assert lure.seen[-1] != b"" and lure.fds_n == 1  # what is not done above is done to one that is trusted
    node.end()
    lure.close()


def as_user(*how):
    """A pool's program run in another way; skips where that is not possible here."""
    try:
        able = subprocess.run([*how, PROGRAMS["kvpool"], "--version"], capture_output=True)
    except OSError as e:
        pytest.skip(f"{how[0]}: {e}")
    if able.returncode != 0:
        pytest.skip(f"{' '.join(how)}: {able.stderr.decode(errors='replace').strip()}")
    return list(how)


def shm_put(bench, master, how, **env):
    """A put of another key each time: one that is there already needs no node."""
    return run_program([*how, PROGRAMS["kvpool"], "put", os.urandom(8).hex(), "--master", master.listen, "--transports", "shm", "--deadline", "2s"],
                       bench.env(**env), b"x")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_users_that_share_a_directory(bench):
    """Fails if a user of the directory's group gets shared memory that the node does not trust, or none that it trusts."""
    how = as_user("setpriv", "--reuid=4000", "--regid=4000", "--clear-groups")
    shared = f"{bench.home}/shared"
    os.mkdir(shared)
    os.chown(shared, 0, 4000)
    os.chmod(shared, 0o750)
    os.chmod(bench.home, 0o755)
    master = bench.master("--runtime-dir", shared)
    node = bench.node(master, "n", "4MiB", "--runtime-dir", shared)
    assert shm_put(bench, master, how, KVPOOL_RUNTIME_DIR=shared).rc != 0 and "does not trust" in node.log()
    node.terminate()
    bench.node(master, "n", "4MiB", "--runtime-dir", shared, "--trust-uid", "4000")
    assert shm_put(bench, master, how, KVPOOL_RUNTIME_DIR=shared).rc == 0
    assert shm_put(bench, master, how).rc != 0  # its own directory has no such socket


def test_user_namespaces(bench):
    """Fails if a client in a user namespace in which its user has a number gets no shared memory, or one that cannot tell users from
    one another gets some."""
    mapped, unmapped = as_user("unshare", "--user", "--map-root-user"), as_user("unshare", "--user")
    master = bench.master()
    node = bench.node(master, "n", "4MiB")
    inside = {"KVPOOL_RUNTIME_DIR": os.path.dirname(node.unix)}
    assert shm_put(bench, master, mapped, **inside).rc == 0
    assert shm_put(bench, master, unmapped, **inside).rc != 0
