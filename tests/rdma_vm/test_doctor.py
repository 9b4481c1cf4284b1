# SPDX-License-Identifier: Apache-2.0
"""What `kvpool doctor` and the daemons say where there are devices: all that is there, probes by rdma, and for each way to set
them up wrongly one clear line with what helps. Also `kvpool bench` by rdma."""
import json
import signal
import time

import guest
import pytest

MASTER = f"{guest.ADDRESSES[0]}:50051"
BIN = {name: str(guest.BUILD / "bin" / name) for name in ("kvpool", "kvpool-node", "kvpool-master")}


@pytest.fixture
def pool(lent_vm):
    """A master, and a node that serves by rdma and tcp at the second device."""
    lent_vm.start([BIN["kvpool-master"], "--listen", MASTER, "--http", "none", "--data-dir", "none"])
    lent_vm.start([BIN["kvpool-node"], "--master", MASTER, "--listen", f"{guest.ADDRESSES[1]}:0", "--memory", "32MiB", "--transports",
                  "rdma,tcp", "--name", "far"])
    for _ in range(60):
        r = kvpool(lent_vm, "stat", "--json")
        if r.rc == 0 and b'"far"' in r.out:
            return lent_vm
        lent_vm.run(["sleep", "0.5"])
    pytest.fail("the node did not come")


def kvpool(vm, *args, **env):
    return vm.run([BIN["kvpool"], *args, "--deadline", "10s"], env={"KVPOOL_MASTER": MASTER, **env}, timeout=120)


# A user whose memory lock is short; root is not limited.
SHORT = ["prlimit", "--memlock=65536:65536", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "XDG_RUNTIME_DIR=/tmp"]


def node(vm, *args, limits=()):
    program = vm.for_everybody(BIN["kvpool-node"]) if limits else BIN["kvpool-node"]
    argv = [program, "--master", MASTER, "--memory", "32MiB", "--transports", "rdma", *args]
    return vm.run([*limits, *argv], timeout=60)


def test_devices_are_listed_and_probed(pool):
    r = kvpool(pool, "doctor", "--json")
    found = json.loads(r.out)
    assert r.rc == 0 and found["is_healthy"], r.text
    ports = {p["device"]: p for p in found["rdma_ports"]}
    assert set(ports) == {"rxe0", "rxe1"}
    for i, name in enumerate(("rxe0", "rxe1")):
        port = ports[name]
        assert port["state"] == "ACTIVE" and port["is_used"] and port["address"] == guest.ADDRESSES[i], port
        assert port["interface"] == f"eth{i + 1}" and port["mtu_bytes"] >= 1024, port
        assert {"index": 1, "gid": guest.ADDRESSES[i], "type": "RoCE v2"} in port["gids"], port
        assert port["max_registration_bytes"] > 1 << 30 and port["max_work_requests"] > 0
    probes = {p["transport"]: p["result"] for p in found["nodes"][0]["probes"]}
    assert probes == {"rdma": "OK", "tcp": "OK"}, r.text
    left = json.loads(kvpool(pool, "stat", "--json").out)["pool"]["objects"]
    assert left == 0

    # bench says what it went by, and what that took: an object that its sum vouches for is one request to get, and five to put
    # (word, payload, key, descriptor, word), with one READ of a batch before its last words, and one behind them
    for op, requests in (("batch_get", 64), ("batch_put", 64 * 5 + 2)):
        r = kvpool(pool, "bench", "--op", op, "--transport", "rdma", "--size", "4KiB", "--batch", "64", "--set", "1MiB", "--seconds",
                   "300ms", "--json")
        assert r.rc == 0, r.text
        round_ = json.loads(r.out.splitlines()[-1])
        assert round_["transports"] == "rdma" and round_["errors"] == 0 and round_["wrong_bytes"] == 0
        assert round_["work_requests"] == requests * round_["calls"] > 0, round_
        assert round_["doorbells"] == round_["signaled_completions"] == round_["calls"], round_

    # and a port that is down is named, with what sets it up
    pool.run(["ip", "link", "set", "eth1", "down"])
    r = kvpool(pool, "doctor", "--json", KVPOOL_TRANSPORTS="rdma", KVPOOL_RDMA_DEVICE="rxe0")
    found = json.loads(r.out)["findings"]
    assert r.rc in (1, 3) and any("rxe0:1 is not active" in f["what"] for f in found if f["code"] == "transport_named"), r
    assert any("ip link set eth1 up" in f["fix"] for f in found if f["code"] == "port_down"), r


BAD = [
    (["--rdma-device", "mlx5_9"], "no RDMA device mlx5_9, only rxe0, rxe1"),
    (["--rdma-device", "rxe0:2"], "no RDMA device rxe0:2"),
    (["--rdma-gid-index", "4000"], "has no GID index 4000, only 0 to"),
    (["--rdma-gid-index", "200"], "GID index 200 of rxe0:1 is empty"),
    (["--rdma-gid-index", "0"], "GID index 0 of rxe0:1 is link-local"),
    (["--rdma-device", "rxe0", "--listen", f"{guest.ADDRESSES[1]}:0"],
     f"no device in use has the address {guest.ADDRESSES[1]}: listen at 0.0.0.0, or at one of"),
]


def test_bad_settings_are_said_in_a_line(lent_vm):
    """The node ends by itself, and says which setting it was and what there is."""
    lent_vm.start([BIN["kvpool-master"], "--listen", MASTER, "--http", "none", "--data-dir", "none"])
    for args, says in BAD:
        r = node(lent_vm, "--listen", f"{guest.ADDRESSES[0]}:0", *args)
        assert r.rc in (1, 2) and r.err.count(says) == 1, (args, r.err)
    r = kvpool(lent_vm, "get", "k", KVPOOL_TRANSPORTS="rdma", KVPOOL_RDMA_DEVICE="mlx5_9")
    assert r.rc == 2 and r.err.count("no RDMA device mlx5_9, only rxe0, rxe1") == 1, r.err
    r = kvpool(lent_vm, "get", "k", KVPOOL_RDMA_DEVICE="mlx5_9")  # also where rdma is not named, but its device is
    assert r.rc == 2 and "KVPOOL_RDMA_DEVICE" in r.err, r.err

    # memory that may not be locked
    r = node(lent_vm, "--listen", f"{guest.ADDRESSES[0]}:0", limits=SHORT)
    assert r.rc == 1 and r.err.count("this process may lock 65536 bytes") == 1 and "LimitMEMLOCK=infinity" in r.err, r.err

    lent_vm.run(["ip", "link", "set", "eth1", "down"])
    r = node(lent_vm, "--listen", "0.0.0.0:0", "--rdma-device", "rxe0")
    assert r.rc == 2 and "rxe0:1 is not active" in r.err and "ip link set" in r.err, r.err


@pytest.mark.parametrize("address, limits, before, says", [
    ("127.0.0.1", [], "", "no device in use has the address 127.0.0.1: listen at 0.0.0.0, or at one of"),
    (guest.ADDRESSES[0], SHORT, "", "this process may lock 65536 bytes in all; raise that (ulimit -l unlimited"),
    ("127.0.0.1", [], "ip link set eth1 down; ip link set eth2 down", "is not active: set its network interface up (ip link set"),
])
def test_node_that_was_not_told_to_serve_by_rdma_says_why_it_does_not(lent_vm, address, limits, before, says):
    """One line, no warning, with what helps; and it serves by the other transports."""
    lent_vm.start([BIN["kvpool-master"], "--listen", "127.0.0.1:50051", "--http", "none", "--data-dir", "none"])
    assert before == "" or lent_vm.run(["sh", "-c", before]).rc == 0
    program = lent_vm.for_everybody(BIN["kvpool-node"])
    job = lent_vm.start([*limits, program, "--master", "127.0.0.1:50051", "--memory", "16MiB", "--listen", f"{address}:0"])
    end = time.monotonic() + 60
    while b"ready " not in job.stream("out") and job.poll() is None and time.monotonic() < end:
        time.sleep(0.1)
    job.signal(signal.SIGTERM)
    r = job.wait(90)
    lines = [line for line in r.err.splitlines() if "rdma" in line]
    assert b"ready " in r.out and len(lines) == 1 and "level=info" in lines[0] and says in lines[0], r


def test_pool_of_its_own_is_at_a_device_where_rdma_is_named(vm):
    """Fails if bench, replay or up, told to go by rdma, start nodes that no device reaches."""
    r = vm.run([BIN["kvpool"], "bench", "--transports", "rdma", "--size", "64KiB", "--set", "1MiB", "--seconds", "300ms", "--json"],
               timeout=120)
    assert r.rc == 0, r.text
    round_ = json.loads(r.out.splitlines()[-1])
    assert round_["transports"] == "rdma" and round_["work_requests"] > 0 and round_["errors"] == 0, round_
    r = vm.run(["sh", "-c", f"{guest.ROOT}/deploy/chat_trace 1 10 > /tmp/chat.jsonl"], timeout=60)
    assert r.rc == 0, r.text
    for env in ({}, {"KVPOOL_TRANSPORTS": "rdma"}):
        r = vm.run([BIN["kvpool"], "replay", *([] if env else ["--transports", "rdma"]), "--trace", "/tmp/chat.jsonl", "--block-bytes", "4KiB",
                    "--json"], env=env, timeout=120)
        assert r.rc == 0 and json.loads(r.out)["transports"] == "rdma 100 %", r.text
    r = vm.run(["timeout", "-s", "INT", "8", BIN["kvpool"], "up", "--transports", "rdma,tcp", "--memory", "16MiB", "--json", "--listen",
                "127.0.0.1:0"], timeout=60)
    nodes = json.loads(r.out.splitlines()[0])["nodes"]
    assert len(nodes) == 2 and all(at.startswith(f"{guest.ADDRESSES[0]}:") for at in nodes), r.text

    # and where the user says otherwise
    r = vm.run([BIN["kvpool"], "bench", "--transports", "rdma", "--node-listen", guest.ADDRESSES[1], "--size", "64KiB", "--set", "1MiB",
                "--seconds", "300ms", "--json"], timeout=120)
    assert r.rc == 0 and json.loads(r.out.splitlines()[-1])["transports"] == "rdma", r.text


def test_port_that_is_taken_is_named(lent_vm):
    """Fails if the line does not say which port, or what to do."""
    at = f"{guest.ADDRESSES[0]}:7411"
    lent_vm.start([BIN["kvpool-master"], "--listen", at, "--http", "none", "--data-dir", "none"])
    r = lent_vm.run(["sh", "-c", f"until {BIN['kvpool']} stat --master {at} --deadline 1s > /dev/null; do sleep 0.1; done"], timeout=30)
    assert r.rc == 0, r
    r = node(lent_vm, "--listen", at)
    assert r.rc == 1 and f"cannot listen at {at}: Address already in use" in r.err and "--listen" in r.err, r.err


TAKE = """
import ctypes, pathlib, socket, struct, subprocess, sys
cm = ctypes.CDLL("librdmacm.so.1")
cm.rdma_create_event_channel.restype = ctypes.c_void_p
channel, held = ctypes.c_void_p(cm.rdma_create_event_channel()), []
for port in range(40000, 40008):
    held.append(ctypes.c_void_p())
    at = struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(sys.argv[1]) + bytes(8)
    assert cm.rdma_create_id(channel, ctypes.byref(held[-1]), None, 0x0106) == 0  # RDMA_PS_TCP
    assert cm.rdma_bind_addr(held[-1], at) == 0
ports = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range")
before = ports.read_text()
try:
    ports.write_text("40000 40011")
    node = subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE, text=True)
    print(node.stdout.readline())
finally:
    ports.write_text(before)
node.terminate()
sys.exit(node.wait())
"""


def test_any_port_is_one_that_is_free_for_rdma_too(pool):
    """Two thirds of the ports that the kernel may choose are in use for RDMA."""
    at = guest.ADDRESSES[1]
    for i in range(4):
        r = pool.run(["python3", "-c", TAKE, at, BIN["kvpool-node"], "--master", MASTER, "--memory", "32MiB", "--transports", "rdma",
                      "--listen", f"{at}:0", "--name", f"any{i}"], timeout=60)
        assert r.rc == 0 and "ready listen=" in r.text, r.text
    range_ = pool.run(["cat", "/proc/sys/net/ipv4/ip_local_port_range"], timeout=30).text.split()
    assert int(range_[1]) - int(range_[0]) > 1000, f"the other tests of this guest would find no port: {range_}"
