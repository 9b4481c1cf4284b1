# SPDX-License-Identifier: Apache-2.0
"""KVPOOL_SECURITY=required: a daemon does not open a port without protection to other hosts."""
import pytest

from conftest import wait_until
from secured import Certs
from trusted import Trusted

REQUIRED = {"KVPOOL_SECURITY": "required"}
MASTER = ("kvpool-master", "--data-dir", "none", "--listen")
NODE = ("kvpool-node", "--master", "127.0.0.1:1", "--name", "n", "--memory", "64MiB", "--listen")
CONDUCTOR = ("kvpool-conductor", "--http")


@pytest.mark.parametrize("argv, option", [
    ((*MASTER, "0.0.0.0:0"), "--listen 0.0.0.0:0"),
    ((*MASTER, "[::]:0"), "--listen [::]:0"),
    ((*MASTER, "127.0.0.1:0", "--http", "0.0.0.0:0"), "--http 0.0.0.0:0"),
    ((*MASTER, "127.0.0.1:0", "--http", "none", "--events", "tcp://*:0"), "--events"),
    ((*NODE, "0.0.0.0:0"), "--listen 0.0.0.0:0"),
    ((*NODE, "127.0.0.1:0", "--http", "0.0.0.0:0"), "--http 0.0.0.0:0"),
    ((*CONDUCTOR, "0.0.0.0:0"), "--http 0.0.0.0:0"),
    ((*CONDUCTOR, "127.0.0.1:0", "--proxy", "0.0.0.0:0", "--replica", "http://127.0.0.1:1"), "--proxy 0.0.0.0:0"),
])
def test_a_port_without_protection_is_refused(bench, argv, option):
    daemon = bench.start("refused", *argv, ready=False, env=REQUIRED)
    daemon.wait_log("KVPOOL_SECURITY=required: ")
    wait_until(lambda: not daemon.is_running())
    assert f"{option}" in daemon.log() and "is not protected" in daemon.log()
    bench.daemons.remove(daemon)


def test_loopback_ports_need_nothing(bench):
    master = bench.master("--events", "ipc://@kvpool-required", env=REQUIRED)
    bench.node(master, "n1", "64MiB", env=REQUIRED)
    bench.start("conductor", *CONDUCTOR, "127.0.0.1:0", env=REQUIRED)


def test_protected_ports_are_open(bench):
    bench.certs = Certs(bench)
    pool = Trusted(bench, nodes=False)
    args = ("--tokens", str(pool.file))
    master = bench.start("outside", *MASTER, "0.0.0.0:0", "--http", "0.0.0.0:0", *args, env=REQUIRED)
    port = master.listen.rsplit(":", 1)[1]
    bench.node(f"127.0.0.1:{port}", "n1", "64MiB", "--http", "0.0.0.0:0", *args, listen="0.0.0.0:0", env=REQUIRED)
    bench.start("conductor", *CONDUCTOR, "0.0.0.0:0", *args, "--proxy", "0.0.0.0:0", "--replica", "http://127.0.0.1:1", "--api-keys", args[1],
                env=REQUIRED)


def test_another_word_is_named(bench):
    daemon = bench.start("refused", *MASTER, "127.0.0.1:0", ready=False, env={"KVPOOL_SECURITY": "yes"})
    daemon.wait_log('KVPOOL_SECURITY is .*required.* or not set, not yes')
    wait_until(lambda: not daemon.is_running())
    bench.daemons.remove(daemon)
