# SPDX-License-Identifier: Apache-2.0
"""Ports that other hosts reach: refused without protection, unless --insecure; refused in every case with KVPOOL_SECURITY=required."""
import json
import os
import re

import pytest

from clients import E2E, Shell, Talker
from conftest import wait_until
from secured import Certs
from trusted import Trusted

REQUIRED = {"KVPOOL_SECURITY": "required"}
MASTER = ("kvpool-master", "--data-dir", "none", "--listen")
NODE = ("kvpool-node", "--master", "127.0.0.1:1", "--name", "n", "--memory", "64MiB", "--listen")
CONDUCTOR = ("kvpool-conductor", "--http")


OPEN = [
    ((*MASTER, "0.0.0.0:0", "--http", "none"), "--listen 0.0.0.0:0"),
    ((*MASTER, "[::]:0", "--http", "none"), "--listen [::]:0"),
    ((*MASTER, "127.0.0.1:0", "--http", "0.0.0.0:0"), "--http 0.0.0.0:0"),
    ((*MASTER, "127.0.0.1:0", "--http", "none", "--events", "tcp://*:0"), "--events"),
    ((*NODE, "0.0.0.0:0"), "--listen 0.0.0.0:0"),
    ((*NODE, "127.0.0.1:0", "--http", "0.0.0.0:0"), "--http 0.0.0.0:0"),
    ((*CONDUCTOR, "0.0.0.0:0"), "--http 0.0.0.0:0"),
]
PROXY = [((*CONDUCTOR, "127.0.0.1:0", "--proxy", "0.0.0.0:0", "--replica", "http://127.0.0.1:1"), "--proxy 0.0.0.0:0")]


def ends(bench, argv, env, *texts):
    """The daemon does not start, and its log has these texts."""
    daemon = bench.start("refused", *argv, ready=False, env=env)
    wait_until(lambda: not daemon.is_running())
    for text in texts:
        daemon.wait_log(re.escape(text))
    assert daemon.proc.returncode in (1, 2)
    bench.daemons.remove(daemon)


@pytest.mark.parametrize("argv, option", OPEN)
def test_a_port_without_protection_needs_insecure(bench, argv, option):
    """Fails if a daemon listens outside loopback with no security configured, does not say what helps, or refuses to with --insecure."""
    ends(bench, argv, {}, f"{option}", "is not protected", "or --insecure in a network")
    ends(bench, (*argv, "--insecure"), REQUIRED, "KVPOOL_SECURITY=required: ")
    if argv[0] == "kvpool-node":  # which waits for a master
        bench.start("open", *argv, "--insecure", ready=False).wait_log("no session with master")
    else:
        bench.start("open", *argv, "--insecure")


@pytest.mark.parametrize("argv, option", OPEN + PROXY)
def test_a_port_without_protection_is_refused(bench, argv, option):
    ends(bench, argv, REQUIRED, "KVPOOL_SECURITY=required: ", f"{option}", "is not protected")


def test_the_words_of_a_file_and_of_the_environment(bench, tmp_path):
    file = tmp_path / "master.conf"
    file.write_text("insecure = yes\nlisten = 0.0.0.0:0\nhttp = none\ndata-dir = none\n")
    bench.start("file", "kvpool-master", "--config", str(file)).wait_log("clients are not authenticated")
    bench.start("variable", *MASTER, "0.0.0.0:0", "--http", "none", env={"KVPOOL_INSECURE": "yes"}).wait_log("clients are not authenticated")


def test_the_proxy_says_that_it_asks_for_no_key(bench):
    conductor = bench.start("conductor", *PROXY[0][0])
    conductor.wait_log("clients need no key .--api-keys.: every host")
    assert conductor.log().count("level=warn") == 1, conductor.log()


def test_an_embedded_node_warns(bench):
    """Fails if a program that lends memory at an address of its own choice needs more than it needed, or warns of nothing."""
    master = bench.master()
    program = Shell(bench, master.listen, "program", memory_bytes=16 << 20, listen="0.0.0.0:0")
    wait_until(lambda: program.log().count("clients are not authenticated") == 1)
    refused = Talker(bench, "refused", ["env", "KVPOOL_SECURITY=required", E2E / "e2e_shell"]).ask(
        f"open master={master.listen} name=r memory_bytes={16 << 20} listen=0.0.0.0:0 detail=1")
    assert refused["err"] == "INVALID" and "KVPOOL_SECURITY=required: --listen 0.0.0.0:0" in refused["detail"], refused


def test_up_needs_the_flag(bench):
    up = bench.run("kvpool", "up", "--listen", "0.0.0.0:0", "--nodes", "1", "--memory", "16MiB")
    assert up.rc == 1 and "or --insecure in a network" in up.err, up


def test_loopback_ports_need_nothing(bench):
    master = bench.master("--events", f"ipc://@kvpool-required-{os.getpid()}", env=REQUIRED)
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


@pytest.mark.parametrize("is_tls", [False, True])
def test_planes_are_named(bench, is_tls):
    """Fails if log, stat, doctor or /health does not say what protects the planes of the master and of each node."""
    bench.certs = Certs(bench, own=("admin", "acme")) if is_tls else None
    master = bench.master()
    near = bench.node(master, "near", "64MiB")
    far = bench.node(master, "far", "64MiB", "--http", "127.0.0.1:0", "--insecure", listen="0.0.0.0:0")
    control = ["tls"] * 3 if is_tls else ["loopback", "loopback", "unprotected"]
    said = {"master": f"control {control[0]}, http loopback", "near": f"control {control[1]}, http closed, data loopback",
            "far": f"control {control[2]}, http loopback, data unprotected"}
    for daemon, name in ((master, "master"), (near, "near"), (far, "far")):
        daemon.wait_log(f'protection="{said[name]}"')
        if daemon.http:
            assert json.loads(daemon.http_get("/health")[1])["protection"] == said[name]
    stat = bench.run("kvpool", "stat", "--master", master.listen, "--json").json
    assert {"master": stat["pool"]["protection"], **{s["node"]: s["protection"] for s in stat["segments"]}} == said
    text = bench.run("kvpool", "stat", "--master", master.listen).out.decode()
    assert f"protection master: {said['master']}\n" in text and f" 1 node: {said['far']}\n" in text, text
    doctor = bench.run("kvpool", "doctor", "--master", master.listen)
    assert doctor.out.decode().count("  protection  ") == 3 and all(f"  protection  {text}\n" in doctor.out.decode() for text in said.values()), doctor
    found = bench.run("kvpool", "doctor", "--master", master.listen, "--json").json
    assert {"master": found["pool"]["protection"], **{n["node"]: n["protection"] for n in found["nodes"]}} == said
