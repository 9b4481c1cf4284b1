# SPDX-License-Identifier: Apache-2.0
"""A machine with two soft RoCE devices to run programs of this host's build in: Debian's stock kernel under qemu, in
software, with the host's file system read-only beneath it. No root, no network beyond the guest itself.

    with guest.Guest() as g:
        r = g.run(["ibv_devinfo"], timeout=30)      # r.rc, r.out, r.err
        server = g.start(["ib_read_bw", "-d", "rxe1"])
        ...
        server.wait(60)

Inside, programs are root, /tmp, /run and /dev/shm are fresh memory, eth1 and eth2 are the ends of one cable with the
addresses ADDRESSES[0] and [1], and rxe0 and rxe1 are the devices on them. A test that wants a link down just runs `ip`.

The two sides talk in lines of JSON over a virtio port. To the guest: {"start": N, "argv", "env", "cwd"},
{"signal": S, "job": N}, {"power_off"}. From it: {"ready": release}, {"failed": why}, {"ended": N, "rc"}. The files N.in,
N.out and N.err in the shared folder are a program's standard streams.
"""
import ctypes
import json
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = pathlib.Path(os.environ.get("KVPOOL_BUILD", ROOT / "build")).resolve()
ADDRESSES = ("10.99.0.1", "10.99.0.2")

BOOT_S = 120  # it takes 4 s, but the machine may be busy
FOR_EVERYBODY = "/run/kvpool-programs"  # in the guest, where every user may read; its folders are those of the build
ANSWER_S = 30  # for what the guest does at once
CONSOLE_LINES = 25
# The oldest processor that our builds run on (x86-64-v2). What newer ones have is slower when emulated: `rep movsb` goes byte by
# byte, and the loader saves all of AVX's registers for each symbol that it binds.
OLDEST = "Nehalem"

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class Unavailable(Exception):
    """No guest can be had on this machine; the text says why."""


class GuestError(Exception):
    """The guest itself failed: it did not come up, panicked, or hangs. The text ends with its last words."""


class TimeLimit(Exception):
    """A program ran into its time limit and was killed. `out` and `err` are what it had printed."""

    def __init__(self, argv, seconds, out, err):
        super().__init__(f"{' '.join(argv)} took longer than {seconds:g} s in the guest; it had printed:\n"
                         f"{out[-2000:].decode(errors='replace')}{err[-2000:]}")
        self.out, self.err = out, err


class Result:
    """What a program did: rc (negative: the signal that ended it), out (bytes), err (text), seconds."""

    def __init__(self, argv, rc, out, err, seconds):
        self.argv, self.rc, self.out, self.err, self.seconds = argv, rc, out, err, seconds

    @property
    def text(self):
        return self.out.decode(errors="replace")

    def __repr__(self):
        return (f"<{' '.join(self.argv)}: rc {self.rc} after {self.seconds:.1f} s, out {self.text[-2000:]!r}, "
                f"err {self.err[-2000:]!r}>")


class Job:
    """A program that was started in the guest."""

    def __init__(self, guest, number, argv):
        self.guest, self.number, self.argv = guest, number, argv
        self.began = time.monotonic()
        self.rc = None
        self.seconds = None

    def stream(self, name):
        """What it has printed so far on "out" or "err", bytes."""
        try:
            return (self.guest.share / f"{self.number}.{name}").read_bytes()
        except FileNotFoundError:
            return b""

    def signal(self, number):
        """Sends a signal to it and to the processes of its session's group."""
        self.guest._send(signal=int(number), job=self.number)

    def poll(self):
        """Its exit code, None while it runs."""
        self.guest._listen(0)
        return self.rc

    def result(self):
        return Result(self.argv, self.rc, self.stream("out"), self.stream("err").decode(errors="replace"), self.seconds)

    def kill(self):
        """Ends it, and waits until it has ended."""
        self.signal(signal.SIGKILL)
        self.guest._until(lambda: self.rc is not None, ANSWER_S, f"the end of {self.argv[0]}, which was killed")

    def wait(self, timeout, watch=None):
        """Waits for its end and returns the Result; kills it and raises TimeLimit after timeout seconds. watch() is
        called several times a second."""
        end = self.began + timeout
        while self.rc is None and time.monotonic() < end:
            self.guest._listen(min(0.2, end - time.monotonic()))
            if watch:
                watch()
        if self.rc is None:
            self.kill()
            raise TimeLimit(self.argv, timeout, self.stream("out"), self.stream("err").decode(errors="replace"))
        return self.result()


class Guest:
    """One guest, up between `with` and its end. visible: directories of the host under /tmp or /run that the guest is to
    see; those of the repository, of the build and the current one are. keep: where the console and the streams of all
    programs stay."""

    def __init__(self, devices=2, mtu=4200, cores=2, memory="2G", visible=(), keep=None, cpu=OLDEST):
        self.devices, self.mtu, self.cores, self.memory, self.cpu = devices, mtu, cores, memory, cpu
        self.visible = [str(pathlib.Path(p).resolve()) for p in (ROOT, BUILD, os.getcwd(), *visible)]
        self.keep = keep
        self.home = self.share = self.console = self.qemu = self.control = None
        self.jobs = {}
        self.ready = None
        self.rest = b""
        self.number = 0
        self.boot_s = None

    def __enter__(self):
        parts = prepare()
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="kvp-vm-"))
        try:
            self._boot(parts)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_):
        try:
            if self.qemu.poll() is None:
                self._send(power_off=True)
                self.qemu.wait(ANSWER_S)
        except (GuestError, subprocess.TimeoutExpired):
            pass  # it hangs, or has died: what a test makes of that it has made of it already
        finally:
            self._end()

    def start(self, argv, env=None, cwd=None, stdin=b""):
        """Starts a program and returns its Job. Its environment is the guest's own and env; nodes have no keepers, so that one test finds nothing of
        another."""
        argv = [str(a) for a in argv]
        self.number += 1
        if stdin:
            (self.share / f"{self.number}.in").write_bytes(stdin)
        job = self.jobs[self.number] = Job(self, self.number, argv)
        self._send(start=self.number, argv=argv, env={"KVPOOL_KEEPER": "none", "KVPOOL_INSECURE": "yes", **(env or {})}, cwd=str(cwd or os.getcwd()))
        return job

    def run(self, argv, timeout=60, **kw):
        """Runs a program to its end and returns its Result."""
        return self.start(argv, **kw).wait(timeout)

    def for_everybody(self, program):
        """The path of a copy of a program, with its libraries, that every user in the guest may run: the build may be root's."""
        path = pathlib.Path(program)
        for to, files in (("bin", [path, *path.parent.glob("lib*.so.?")]), ("common", [BUILD / "common" / "libkvpool-tls.so"])):
            r = self.run(["install", "-D", "-m", "755", "-t", f"{FOR_EVERYBODY}/{to}", *files])
            assert r.rc == 0, f"no copy of {path} for everybody: {r}"
        return f"{FOR_EVERYBODY}/bin/{path.name}"

    def console_lines(self):
        """What the kernel wrote to its console."""
        try:
            return self.console.read_text(errors="replace").splitlines()
        except OSError:
            return []

    def last_words(self):
        """The end of what the kernel wrote to its console."""
        return quoted(self.console_lines()[-CONSOLE_LINES:])

    # ---- the machine

    def _boot(self, parts):
        self.share = self.home / "share"
        self.share.mkdir()
        self.console = self.home / "console"
        shutil.copy(HERE / "agent.py", self.share)
        (self.share / "guest.json").write_text(json.dumps(
            {"devices": self.devices, "mtu": self.mtu, "visible": self.visible}))
        self.control, theirs = socket.socketpair()
        began = time.monotonic()
        with theirs, open(self.home / "qemu", "wb") as log:
            self.qemu = subprocess.Popen(self._command(parts, theirs.fileno()), stdin=subprocess.DEVNULL, stdout=log,
                                         stderr=log, pass_fds=[theirs.fileno()], start_new_session=True,
                                         preexec_fn=lambda: _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL))
        self._until(lambda: self.ready, BOOT_S, "the guest to come up")
        self.boot_s = time.monotonic() - began

    def _command(self, parts, port):
        def folder(tag, path, more):
            return ["-virtfs", f"local,path={str(path).replace(',', ',,')},mount_tag={tag},security_model=none,"
                               f"multidevs=remap{more}"]

        # panic: qemu ends with the guest. no_timer_check: on a busy host the kernel counts too few ticks, and panics. The rest spares an emulated processor what only costs it time.
        kernel = ("console=ttyS0 quiet panic=-1 oops=panic mitigations=off audit=0 apparmor=0 cryptomgr.notests nowatchdog "
                  "no_timer_check init_on_alloc=0 hardened_usercopy=off rcupdate.rcu_expedited=1")
        # KVM is left alone even where there is one: on nested machines it is seen to hang in the kernel's first steps.
        return ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", self.cpu, "-smp", str(self.cores),
                "-m", str(self.memory), "-no-user-config", "-nodefaults", "-display", "none", "-no-reboot",
                "-nic", "none", "-kernel", str(parts / "vmlinuz"), "-initrd", str(parts / "initramfs"), "-append", kernel,
                "-serial", f"file:{self.console}", *folder("host", "/", ",readonly=on"), *folder("share", self.share, ""),
                "-device", "virtio-serial-pci", "-chardev", f"socket,id=port,fd={port}",
                "-device", "virtserialport,chardev=port,name=kvpool"]

    def _end(self):
        if self.qemu and self.qemu.poll() is None:
            self.qemu.kill()
            self.qemu.wait()
        if self.control:
            self.control.close()
        if self.keep:
            shutil.copytree(self.home, self.keep, dirs_exist_ok=True)
        shutil.rmtree(self.home, ignore_errors=True)

    # ---- the conversation

    def _send(self, **order):
        try:
            self.control.sendall(json.dumps(order).encode() + b"\n")
        except OSError:
            self._fallen()

    def _listen(self, seconds):
        """Takes in what the guest says within so many seconds; returns after the first of it."""
        if not select.select([self.control], [], [], max(0, seconds))[0]:
            return
        try:
            data = self.control.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._fallen()
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            said = json.loads(line)
            if "ready" in said:
                self.ready = said
            elif "failed" in said:
                raise GuestError(f"the guest could not set itself up: {said['failed']}\n{self.last_words()}")
            else:
                job = self.jobs.pop(said["ended"])
                job.seconds = time.monotonic() - job.began
                job.rc = said["rc"]

    def _until(self, condition, seconds, what):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise GuestError(f"the guest hangs: waited {seconds} s for {what}. Its last words:\n{self.last_words()}")
            self._listen(end - time.monotonic())

    def _fallen(self):
        """The line to the guest is closed: qemu has ended, because the kernel panicked, or by itself."""
        try:
            rc = self.qemu.wait(ANSWER_S)
        except subprocess.TimeoutExpired:
            rc = None
        lines = self.console_lines()
        panic = next((i for i, line in enumerate(lines) if "Kernel panic" in line), None)
        if panic is not None:
            why = lines[panic].partition("Kernel panic - ")[2]
            raise GuestError(f"the guest's kernel panicked: {why}\n{quoted(lines[max(0, panic - 15):panic + 15])}")
        complaint = (self.home / "qemu").read_text(errors="replace").strip()
        raise GuestError(f"qemu ended with {rc}: {complaint or 'it says nothing'}\n{self.last_words()}")


def quoted(lines):
    return "\n".join(f"  | {line}" for line in lines) or "  (nothing on its console)"


def prepare():
    """The directory with the guest's kernel and initramfs, made if it is not there. Raises Unavailable."""
    made = subprocess.run([str(HERE / "prepare")], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    if made.returncode != 0:
        raise Unavailable((made.stderr.strip().splitlines() or [f"prepare ended with {made.returncode}"])[-1])
    return pathlib.Path(made.stdout.strip().splitlines()[-1])
