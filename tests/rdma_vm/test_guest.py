# SPDX-License-Identifier: Apache-2.0
"""The guest itself: what is run in it comes back whole, whatever goes wrong is said in one message, and the two devices
reach one another over the cable and nothing else."""
import hashlib
import json
import os
import random
import signal
import subprocess

import guest
import inside
import limits
import pytest

RUN = guest.HERE / "run"
A, B = guest.ADDRESSES


def sh(text):
    return ["sh", "-c", text]


def counters(vm):
    """Packets sent and received by each device, and bytes that left eth1."""
    ports = "/sys/class/infiniband/rxe*/ports/1/hw_counters"
    r = vm.run(sh(f"cat {ports}/sent_pkts {ports}/rcvd_pkts /sys/class/net/eth1/statistics/tx_bytes"))
    sent0, sent1, received0, received1, crossed = map(int, r.out.split())
    return {"sent": (sent0, sent1), "received": (received0, received1), "crossed": crossed}


# ---- what comes back


@pytest.mark.quick
@pytest.mark.parametrize("code", [0, 7])
def test_exit_code_comes_back(vm, code):
    assert vm.run(sh(f"exit {code}")).rc == code


def test_signal_comes_back(vm):
    assert vm.run(sh("kill -SEGV $$")).rc == -signal.SIGSEGV


def test_program_that_is_not_there(vm):
    r = vm.run(["/nonexistent/program"])
    assert r.rc == 127 and "/nonexistent/program" in r.err, r


def test_output_comes_back_whole(vm):
    """1 MiB on each stream, and what was given on standard input."""
    given = random.Random(5).randbytes(1 << 20)
    r = vm.run(sh("cat; sha256sum /run/kvpool-vm/share/*.in >/dev/null; head -c 1048576 /dev/zero | tr '\\0' e >&2"), stdin=given)
    assert r.rc == 0
    assert hashlib.sha256(r.out).digest() == hashlib.sha256(given).digest()
    assert r.err == "e" * (1 << 20)


def test_programs_run_side_by_side(vm):
    waiting = vm.start(sh("until [ -e /tmp/go ]; do sleep 0.05; done; exit 3"))
    assert waiting.poll() is None
    assert vm.run(["touch", "/tmp/go"]).rc == 0
    assert waiting.wait(30).rc == 3


def test_environment_and_directory(vm):
    r = vm.run(sh('echo "$GIVEN $PWD $(id -u)"'), env={"GIVEN": "a b"}, cwd="/usr")
    assert r.text == "a b /usr 0\n"


def test_time_limit(vm):
    """What ran too long is killed with its children, what it had printed comes back, and the guest goes on."""
    with pytest.raises(guest.TimeLimit) as e:
        vm.run(sh("echo begun; sleep 1234 & wait"), timeout=3)
    assert e.value.out == b"begun\n"
    assert "3 s" in str(e.value)
    assert vm.run(sh("! grep -zqx 1234 /proc/[0-9]*/cmdline")).rc == 0


# ---- what the guest sees


def test_host_is_read_only(vm):
    r = vm.run(["touch", str(guest.ROOT / "written-by-the-guest")])
    assert r.rc != 0 and "Read-only" in r.err, r
    assert not (guest.ROOT / "written-by-the-guest").exists()
    assert vm.run(sh("echo x >/tmp/x && echo x >/run/x && echo x >/dev/shm/x")).rc == 0


def test_no_way_out(vm):
    links = {link["ifname"] for link in json.loads(vm.run(["ip", "-j", "link"]).out)}
    assert links == {"lo", "eth1", "eth2"}
    routes = json.loads(vm.run(["ip", "-j", "route", "show", "table", "all"]).out)
    assert {route.get("dev") for route in routes if route["dst"] == "default"} <= {None, "lo"}, routes


def test_program_of_the_build(vm):
    kvpool = guest.BUILD / "bin" / "kvpool"
    here = subprocess.run([kvpool, "--version"], stdout=subprocess.PIPE, check=True).stdout
    r = vm.run([kvpool, "--version"])
    assert r.rc == 0 and r.out == here, r


# ---- the devices


@pytest.mark.quick
def test_pingpong_crosses_the_cable(vm):
    before = counters(vm)
    server = limits.serve(vm, ["ibv_rc_pingpong", "-d", "rxe1", "-g", "1", "-n", "100", "-c"])
    r = vm.run(["ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-n", "100", "-c", B], timeout=120)
    assert r.rc == 0, r
    assert server.wait(60).rc == 0
    after = counters(vm)
    for what in ("sent", "received"):
        for device in (0, 1):
            assert after[what][device] - before[what][device] >= 400, f"{what} by rxe{device}: {before} {after}"
    assert after["crossed"] - before["crossed"] > 100 * 4096


@pytest.mark.parametrize("source", [["-I", A], []])
def test_connection_manager(vm, source):
    """With an address of its own or without, who connects to the other end gets there over the cable. In the end rping closes its
    event channel, which a thread of it may still read (then it ends with 255): what counts is what came back.
    """
    before = counters(vm)
    server = serve_rdma(vm, ["rping", "-s", "-a", B, "-C", "5"])
    r = vm.run(["rping", "-v", "-c", "-a", B, *source, "-C", "5"], timeout=60)
    assert r.out.count(b"ping data: rdma-ping-") == 5 and r.rc in (0, 255), r
    server.wait(60)
    after = counters(vm)
    assert after["received"][1] - before["received"][1] >= 5, (before, after)


def serve_rdma(vm, argv):
    """Starts a server of the connection manager and waits until it listens."""
    job = vm.start(argv)
    listening = "until rdma resource show cm_id | grep -q LISTEN; do sleep 0.1; done"
    assert vm.run(sh(listening), timeout=60).rc == 0
    return job


@pytest.mark.parametrize("program", ["ib_read_bw", "ib_write_bw"])
def test_one_sided(vm, program):
    before = counters(vm)
    assert limits.perftest(vm, program, 65536, 16, 100) > 0
    after = counters(vm)
    # What is read arrives at rxe0, what is written at rxe1, in packets of 4096 bytes.
    to = 0 if program == "ib_read_bw" else 1
    assert after["received"][to] - before["received"][to] >= 100 * 16, (before, after)


def test_link_down_and_up(vm):
    """Nothing goes around the cable while it is down, and all is as before once it is up."""
    reach = f"timeout 20 python3 -c 'import socket; socket.create_connection((\"{B}\", 9), 1)' 2>&1"
    down = vm.run(sh(f"ip link set eth1 down; {reach}"), timeout=60)
    assert down.rc != 0 and ("unreachable" in down.text or "No route" in down.text), down
    assert vm.run(sh("ip link set eth1 up; until grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state &&"
                     f" ip route get {B} | grep -q eth1; do sleep 0.1; done"), timeout=60).rc == 0
    up = vm.run(sh(reach), timeout=60)
    assert up.rc != 0 and "refused" in up.text, up
    test_pingpong_crosses_the_cable(vm)


# ---- what goes wrong


@pytest.mark.ends_guest
def test_hang_and_panic(rough_vm, monkeypatch):
    """A guest that does not answer and one whose kernel panics are one clear message each."""
    monkeypatch.setattr(guest, "ANSWER_S", 2)
    rough_vm.qemu.send_signal(signal.SIGSTOP)
    with pytest.raises(guest.GuestError, match="the guest hangs: waited 2 s for the end of true, which was killed"):
        rough_vm.run(["true"], timeout=1)
    rough_vm.qemu.send_signal(signal.SIGCONT)
    monkeypatch.undo()
    with pytest.raises(guest.GuestError, match="the guest's kernel panicked: .*sysrq triggered crash"):
        rough_vm.run(sh("echo c >/proc/sysrq-trigger"), timeout=60)
    assert rough_vm.qemu.poll() is not None, "qemu ends with its guest"


# ---- the command


def test_command(guest_parts, tmp_path):
    """Its guest has what it was told to have, what its program prints comes back, and how it ended; logs are kept. Also: a
    directory that fresh memory covers can be seen, for builds may lie there."""
    (tmp_path / "seen").write_text("by the guest\n")
    kept = tmp_path / "kept"
    script = f"cat {tmp_path}/seen; ls /sys/class/infiniband; echo $GIVEN; echo e >&2; exit 7"
    r = subprocess.run([RUN, "--devices", "1", "--visible", tmp_path, "--keep-logs", kept, "--env", "GIVEN=x y", "--", "sh", "-c",
                        script], capture_output=True, text=True, timeout=300)
    assert (r.returncode, r.stdout, r.stderr) == (7, "by the guest\nrxe0\nx y\n", "e\n")
    assert "Linux version" in (kept / "share" / "dmesg").read_text(), "it was powered off, not killed"
    assert (kept / "share" / "1.out").read_text() == r.stdout


@inside.long
def test_command_with_time_limit(guest_parts, tmp_path):
    """What its program had printed is there, and nothing is left of the guest."""
    r = subprocess.run([RUN, "--timeout", "2", "--", "sh", "-c", "echo begun; sleep 1000"], capture_output=True, text=True,
                       timeout=300, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert (r.returncode, r.stdout) == (124, "begun\n"), r
    assert "took longer than 2 s" in r.stderr
    assert not list(tmp_path.iterdir())


def test_machine_without_a_guest(tmp_path):
    """One message and an exit code of its own where no guest can be had."""
    uname = tmp_path / "uname"
    uname.write_text("#!/bin/sh\necho sparc64\n")
    uname.chmod(0o755)
    r = subprocess.run([RUN, "--", "true"], capture_output=True, text=True, timeout=60,
                       env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert r.returncode == 126 and "this machine is sparc64" in r.stderr, r
