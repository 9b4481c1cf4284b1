# SPDX-License-Identifier: Apache-2.0
"""What setup() is told of hosts, and in which words sizes are told (stage `python` of tests/run)."""
import pathlib
import socket
import subprocess
import sys

import pytest

from mooncake import _setup
from mooncake.store import MooncakeDistributedStore
from stores import MIB


def has_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        return True
    except OSError:
        return False


def set_up(store, pool, host, memory=16 * MIB):
    return store.setup(host, "P2PHANDSHAKE", memory, 16 * MIB, "tcp", "", pool.addr)


HOSTS = ["127.0.0.1", "localhost"] + (["::1", "[::1]"] if has_ipv6() else [])


@pytest.mark.pool(nodes=0)
@pytest.mark.parametrize("host", HOSTS)
def test_stores_of_one_host_have_ports_of_their_own(pool, host):
    """Fails if a port is looked for at another kind of address than the host's."""
    stores = [MooncakeDistributedStore() for _ in range(2)]
    assert [set_up(store, pool, host) for store in stores] == [0, 0]
    names = [store.get_hostname() for store in stores]
    shown = f"[{host.strip('[]')}]" if ":" in host else host
    ports = [int(name.removeprefix(f"{shown}:")) for name in names]
    assert len({*ports}) == 2 and all(port in _setup.PORTS for port in ports)
    assert stores[0].put("a", b"x") == 0 and stores[1].get("a") == b"x"
    assert [store.close() for store in stores] == [0, 0]


def test_hosts_are_split():
    for text, host, port in (("h", "h", 0), ("h:1", "h", 1), ("::1", "::1", 0), ("[::1]", "::1", 0), ("[::1]:7", "::1", 7), ("h:x", "h", 0),
                             ("::1:51234", "::1", 51234), ("::1:7", "::1:7", 0), ("fe80::1%e0:51234", "fe80::1%e0", 51234), ("a:b:7", "a:b:7", 0)):
        assert _setup.split_host(text) == (host, port)


def test_masters_of_ipv6(bench):
    """Fails if the address of a master is taken with brackets only: a store, and a client's memory."""
    if not has_ipv6():
        pytest.skip("no IPv6 here")
    master = bench.master(listen="[::1]:0")
    address = f"::1:{master.listen.rpartition(':')[2]}"
    store = MooncakeDistributedStore()
    assert store.setup("::1", "P2PHANDSHAKE", 16 * MIB, 16 * MIB, "tcp", "", address) == 0
    assert store.put("a", b"x") == 0 and store.get("a") == b"x" and store.close() == 0
    assert _setup.masters(f"h:1,{address}") == f"h:1,{master.listen}" and _setup.masters("etcd://::1:2379") == "etcd://::1:2379"
    node = subprocess.Popen([pathlib.Path(sys.executable).parent / "mooncake_client", "--host=::1", "--port=0", "--global_segment_size=16MB",
                             f"--master_server_address={address}"], env=bench.env(), stdout=subprocess.PIPE, text=True)
    try:
        assert node.stdout.readline().startswith("ready listen=[::1]:")
    finally:
        node.terminate()
        assert node.wait(20) == 0
        node.stdout.close()


@pytest.mark.pool(nodes=0)
@pytest.mark.parametrize("host, said", [
    ("no.such.host.invalid", "is not known"), ("h" * 1000000, "253 characters"), ("." * 200, "is not known"), ("a\0b", "is not known"),
    ("\ud800", "is not known"), ("203.0.113.1", "nothing can listen"),
])
def test_hosts_at_which_nobody_can_listen(pool, monkeypatch, caplog, host, said):
    """The name is asked for once: a resolver may wait for its servers, but not for each port."""
    asked, ask = [], socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kw: asked.append(args) or ask(*args, **kw))
    store = MooncakeDistributedStore()
    assert set_up(store, pool, host) == -1 and store.health_check() == 1
    assert said in caplog.text and len(caplog.text) < 1000 and len(asked) <= 1
    assert set_up(store, pool, "127.0.0.1") == 0 and store.close() == 0


def test_ports_that_are_all_taken(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(_setup, "PORTS", range(port, port + 1))
        with pytest.raises(_setup.HostError, match="is free"):
            _setup.free_port("127.0.0.1", 0)


@pytest.mark.pool(nodes=0)
def test_none_is_no_value(pool, caplog):
    """-600, as the reference gives for any value that is None."""
    words = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "master_server_addr": pool.addr, "global_segment_size": "16MB"}
    store = MooncakeDistributedStore()
    for name in (*words, "local_buffer_size", "protocol", "rdma_devices", "tenant_id", "not_known"):
        caplog.clear()
        assert store.setup({**words, name: None}) == -600 and f"{name} is None" in caplog.text
    for host in (None, 7, b"127.0.0.1"):
        with pytest.raises(TypeError):
            set_up(store, pool, host)
    assert store.setup(words) == 0 and store.close() == 0


@pytest.mark.parametrize("text, size", [
    ("16MB", 16 * MIB), (" 16 mb ", 16 * MIB), ("1.5GB", 3 << 29), (".5GB", 1 << 29), ("16.MB", 16 * MIB), ("16384.5KB", 16384 * 1024 + 512),
    ("7", 7), ("7.9", 7), ("0", 0), ("16m", 16 * MIB), ("2 T", 2 << 40), ("18446744073709551615", 2**64 - 1), (7, 7),
])
def test_sizes(text, size):
    assert _setup.parse_size(text) == size


@pytest.mark.parametrize("text", ["", " ", "GB", ".", ".MB", "1.5.5MB", "1e1MB", "1_6MB", "50%", "-1", "nanMB", "inf", "16MiB", "16M B", "1,5GB", "\u0661MB",
                                  "16TBB", "BK", "16KM", "9" * 100000, "x" * 100000, True, None, -1])
def test_sizes_that_are_none(text):
    with pytest.raises(ValueError) as e:
        _setup.parse_size(text)
    assert len(str(e.value)) < 200


@pytest.mark.pool(nodes=0)
def test_fractions_are_sizes_of_setup(pool):
    store = MooncakeDistributedStore()
    assert store.setup({"local_hostname": "127.0.0.1", "master_server_addr": pool.addr, "global_segment_size": "0.0625GB"}) == 0
    assert store.put("k", bytes(48 * MIB)) == 0 and store.close() == 0
    with pytest.raises(TypeError, match="float"):
        set_up(store, pool, "127.0.0.1", 1.5)
