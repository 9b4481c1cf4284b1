# SPDX-License-Identifier: Apache-2.0
"""The guest's side: its process 1. Sets up the network and the soft RoCE devices, then starts programs and says how they
ended, one JSON object a line over a virtio port. What programs print goes to files in the folder shared with the host,
so it is there whatever becomes of the guest. guest.py is the other end and says what the lines mean.
"""
import contextlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time

VM = "/run/kvpool-vm"
SHARE = f"{VM}/share"
ADDRESSES = ("10.99.0.1", "10.99.0.2")
MAPPED = ("ffff:0a63:0001", "ffff:0a63:0002")  # the same as the kernel writes them in GIDs
ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp/home", "TMPDIR": "/tmp",
       "LANG": "C.UTF-8"}


def call(*argv, stdin=""):
    done = subprocess.run(argv, input=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENV)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}: {done.stdout.strip()}")


def write(path, text):
    with open(path, "w") as f:
        f.write(text)


def read(path):
    with open(path) as f:
        return f.read()


def wait_for(condition, what, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"waited {seconds} s for {what}")
        time.sleep(0.02)


def show(path):
    """Makes a directory of the host visible that fresh memory covers."""
    if path.startswith(("/tmp/", "/run/")):
        os.makedirs(path, exist_ok=True)
        call("mount", "--bind", f"{VM}/host{path}", path)


def set_up_network(mtu):
    """Two ends of one cable in one name space. The kernel short-cuts what one end sends to the other, unless rules that
    come before its table of local addresses say otherwise: with these, what the ends exchange crosses the cable, and
    does not arrive while that is down."""
    one, two = ADDRESSES
    for name, value in (("default/accept_local", "1"), ("default/rp_filter", "0"), ("all/rp_filter", "0")):
        write(f"/proc/sys/net/ipv4/conf/{name}", value)
    call("ip", "-batch", "-", stdin=f"""\
link set lo up
link add eth1 mtu {mtu} type veth peer name eth2 mtu {mtu}
addr add {one}/24 dev eth1
addr add {two}/24 dev eth2
link set eth1 up
link set eth2 up
rule add pref 10 iif lo from {one} to {one} lookup local
rule add pref 10 iif lo from {two} to {two} lookup local
rule add pref 20 iif lo to {two} lookup 101
rule add pref 20 iif lo to {one} lookup 102
rule add pref 30 lookup local
rule del pref 0
route add unreachable default table 101
route add unreachable default table 102
""")
    set_up_routes()


def set_up_routes():
    """The routes over the cable, which the kernel forgets when a link goes down. Fails as long as one is."""
    subprocess.run(["ip", "-force", "-batch", "-"], text=True, env=ENV, stderr=subprocess.DEVNULL, input=f"""\
route replace {ADDRESSES[1]} dev eth1 src {ADDRESSES[0]} table 101
route replace {ADDRESSES[0]} dev eth2 src {ADDRESSES[1]} table 102
""")


def open_link_watch():
    """A socket that is readable when a link has changed."""
    watch = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE)
    watch.bind((0, 1))  # RTMGRP_LINK
    return watch


def set_up_devices(count):
    for i in range(count):
        call("rdma", "link", "add", f"rxe{i}", "type", "rxe", "netdev", f"eth{i + 1}")
    for i in range(count):
        port = f"/sys/class/infiniband/rxe{i}/ports/1"
        wait_for(lambda: "ACTIVE" in read(f"{port}/state"), f"rxe{i} to be active")
        wait_for(lambda: read(f"{port}/gids/1").strip().endswith(MAPPED[i]), f"the IPv4 address of rxe{i} as a GID")


class Agent:
    def __init__(self, port):
        self.port = port
        self.jobs = {}  # pid: number
        self.rest = b""

    def say(self, **message):
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(self.port, data):]

    def start(self, number, argv, env, cwd):
        stem = f"{SHARE}/{number}"
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                stdin = f"{stem}.in" if os.path.exists(f"{stem}.in") else "/dev/null"
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
                for fd, file in enumerate((os.open(stdin, os.O_RDONLY), os.open(f"{stem}.out", flags, 0o644),
                                           os.open(f"{stem}.err", flags, 0o644))):
                    os.dup2(file, fd)
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)
                os.chdir(cwd)
                os.execvpe(argv[0], argv, {**ENV, **env})
            except OSError as e:
                os.write(2, f"{e.filename or argv[0]}: {e.strerror}\n".encode())
            os._exit(127)
        self.jobs[pid] = number

    def reap(self):
        """Ends what has ended, orphans that came to process 1 as well."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            number = self.jobs.pop(pid, None)
            if number is not None:
                self.say(ended=number, rc=os.waitstatus_to_exitcode(status))

    def obey(self, order):
        if "start" in order:
            self.start(order["start"], order["argv"], order["env"], order["cwd"])
        elif "signal" in order:
            for pid, number in self.jobs.items():
                if number == order["job"]:
                    with contextlib.suppress(ProcessLookupError):  # it has just ended
                        os.killpg(pid, order["signal"])
        elif "power_off" in order:
            power_off()

    def serve(self):
        woken, wake = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self.port, select.POLLIN)
        poll.register(woken, select.POLLIN)
        links = open_link_watch()
        poll.register(links, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                data = os.read(fd, 1 << 16)
                if fd == woken:
                    self.reap()
                    continue
                if fd == links.fileno():
                    set_up_routes()
                    continue
                *lines, self.rest = (self.rest + data).split(b"\n")
                for line in lines:
                    self.obey(json.loads(line))


def power_off():
    """The kernel's log is the last that is kept."""
    try:
        with open(f"{SHARE}/dmesg", "wb") as f:
            subprocess.run(["dmesg"], stdout=f, stderr=subprocess.DEVNULL, env=ENV)
    finally:
        write("/proc/sysrq-trigger", "o")
        while True:
            time.sleep(1)


def open_port():
    def found():
        base = "/sys/class/virtio-ports"
        for port in os.listdir(base):
            if read(f"{base}/{port}/name").strip() == "kvpool":
                return f"/dev/{port}"
        return None

    wait_for(found, "the port to the host")
    return os.open(found(), os.O_RDWR | os.O_CLOEXEC)


def main():
    agent = Agent(open_port())
    conf = json.loads(read(f"{SHARE}/guest.json"))
    try:
        os.makedirs(ENV["HOME"])
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 16, 1 << 20))
        for path in conf["visible"]:
            show(path)
        set_up_network(conf["mtu"])
        set_up_devices(conf["devices"])
    except (OSError, RuntimeError) as e:
        agent.say(failed=str(e))
        power_off()
    agent.say(ready=os.uname().release, uptime_s=float(read("/proc/uptime").split()[0]))
    agent.serve()


if __name__ == "__main__":
    sys.exit(main())
