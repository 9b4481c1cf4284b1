# SPDX-License-Identifier: Apache-2.0
"""Several masters under the reference's names: mooncake_master --enable_ha, and stores, engines' clients and pools that are given etcd (stage
`python` of tests/run)."""
import json
from base64 import b64encode
from pathlib import Path

import pytest

import kvpool
from clients import free_ports
from conftest import SLOW, wait_until
from standby import Etcd, needs_etcd
from stores import MIB, make
from test_python_programs import said
from test_python_store import fetch, programs  # noqa: F401: a fixture

CLUSTER = "pool-7"


class Cluster:
    """Two mooncake_masters and a mooncake_client, over three members of etcd."""

    def __init__(self, bench, start):
        self.etcd, self.start = Etcd(bench), start
        self.hosts = ";".join(m.url.removeprefix("http://") for m in self.etcd.members)
        self.etcd_url = f"etcd://{self.hosts}"
        self.ports = {}  # of the pool: the process, and that of its HTTP paths
        for how in (f"--etcd_endpoints={self.hosts}", f"--ha_backend_connstring={self.hosts}"):
            rpc, http = free_ports(2)
            self.ports[rpc] = self.master(rpc, http, how), http
        self.leader()
        at, http = free_ports(2)
        start("mooncake_client", "--master_server_address", self.etcd_url, "--host", "127.0.0.1", "--port", str(at), "--protocol", "tcp",
              "--global_segment_size", "64MB", "--enable_http_server", "--http_port", str(http))
        wait_until(lambda: '"is_mounted":true' in fetch(http, "/health")[1], 20, "the client's memory in the pool")

    def master(self, rpc, http, how):
        return self.start("mooncake_master", "--enable_ha", f"--cluster_id={CLUSTER}", f"--rpc_port={rpc}", "--rpc_address=127.0.0.1",
                          f"--metrics_port={http}", how)

    @property
    def addr(self):
        return ",".join(f"127.0.0.1:{rpc}" for rpc in self.ports)

    def role(self, rpc):
        return fetch(self.ports[rpc][1], "/role")[1]

    def leader(self):
        return wait_until(lambda: next((rpc for rpc in self.ports if self.role(rpc) == "leader"), None), 20, "a master to lead")


def key_of(name, port):
    """A master's key, as it writes it itself."""
    return {"key": b64encode(f"/kvpool/{name}/masters/x".encode()).decode(),
            "value": b64encode(f"id=x address=127.0.0.1:{port} http= term=0".encode()).decode()}


@pytest.fixture
def cluster(bench, programs, monkeypatch):  # noqa: F811
    for name in ("KVPOOL_MASTER", "KVPOOL_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MC_STORE_CLUSTER_ID", CLUSTER)
    return Cluster(bench, programs)


@needs_etcd
def test_a_master_ends_and_another_leads(cluster):
    """Fails if stores and pools that are given etcd, or all masters, do not go over to the next leader, or the admin paths do not tell who
    leads."""
    stores = [make(cluster.etcd_url), make(cluster.addr)]
    pools = [kvpool.Pool(at, deadline=20 * SLOW) for at in (cluster.etcd_url, cluster.addr)]
    pools.append(kvpool.Pool(cluster.etcd_url.replace(";", ","), cluster=CLUSTER))
    for i, store in enumerate(stores):
        assert store.put(f"s{i}", b"value") == 0
    for i, pool in enumerate(pools):
        pool.put(f"p{i}", b"value")
    was = cluster.leader()
    other = next(rpc for rpc in cluster.ports if rpc != was)
    wait_until(lambda: cluster.role(other) == "standby", 20, "the other one to be a standby")
    for rpc in cluster.ports:  # any of them answers for the pool
        http = cluster.ports[rpc][1]
        assert sorted(fetch(http, "/get_all_keys")[1].split()) == ["p0", "p1", "p2", "s0", "s1"]
        health = json.loads(fetch(http, "/health")[1])
        assert health["role"] == ("leader" if rpc == was else "standby") and health["service_ready"] == (rpc == was)
        assert fetch(http, "/ha_status")[1] == ("serving" if rpc == was else "standby")
    process = cluster.ports.pop(was)[0]
    process.terminate()
    assert process.wait(20) == 0
    assert cluster.leader() == other
    for pool in pools[:2]:
        pool.put("after", b"value")
        assert pool.get("p0") == pool.get("s1") == b"value"
    for store in stores:
        wait_until(lambda s=store: s.put("again", b"value") == 0 and s.get("s0") == b"value", 20, "the store to have found the next leader")
        assert store.close() == 0
    for pool in pools:
        pool.close()


@needs_etcd
def test_a_store_that_gives_memory(cluster):
    store = make(cluster.etcd_url, 16 * MIB)
    with kvpool.Pool(cluster.etcd_url) as pool:
        wait_until(lambda: len(pool.stat()["segments"]) == 2, 10, "the store's memory in the pool")
    assert store.put("k", b"x") == 0 and store.get("k") == b"x" and store.close() == 0


@needs_etcd
def test_of_another_cluster(cluster, monkeypatch):
    """Fails if the reference's default is not the default, or what is wrong is not said."""
    monkeypatch.delenv("MC_STORE_CLUSTER_ID")
    with pytest.raises(kvpool.Error, match="knows no master of this cluster"):
        kvpool.Pool(cluster.etcd_url, deadline=0.5)
    cluster.etcd.members[0].post("/v3/kv/put", json.dumps(key_of("mooncake_cluster", cluster.leader())))
    make(cluster.etcd_url).close()


@pytest.mark.parametrize("flags, why", [([], "--etcd_endpoints"), (["--ha_backend_type=redis", "--ha_backend_connstring=h:1"], "redis"),
                                        (["--etcd_endpoints=h:1", "--cluster_id=a/b"], "a/b")])
def test_flags_that_cannot_be(programs, flags, why):  # noqa: F811
    process = programs("mooncake_master", "--enable_ha", *flags)
    assert process.wait(20) == 1
    assert said(process).startswith("mooncake_master: --") and why in said(process) and "Traceback" not in said(process)


@needs_etcd
def test_directories_are_apart(cluster, bench):
    """A master that was alone at that port before kept another directory."""
    found = {p.name for p in Path(bench.home).glob("state/kvpool/mooncake-*")}
    assert found == {f"mooncake-{rpc}-{CLUSTER}" for rpc in cluster.ports}
