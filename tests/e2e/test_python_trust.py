# SPDX-License-Identifier: Apache-2.0
"""mooncake.store in a pool with TLS or tokens (docs/operations/secure.md): what the environment alone gives it (stage `python` of
tests/run)."""
import json
import subprocess
import sys

from secured import Secured
from trusted import Trusted

STORE = """
import json, sys
import numpy as np
from mooncake.store import MooncakeDistributedStore
master, host, memory, offload, key = sys.argv[1], sys.argv[2], int(sys.argv[3]) << 20, sys.argv[4], sys.argv[5]
store = MooncakeDistributedStore()
got = {"setup": store.setup(host, "P2PHANDSHAKE", memory, 16 << 20, "tcp", "", master, None, bool(offload), offload)}
value = np.frombuffer(b"value" * 10000, np.uint8)
got["host"], got["before"] = store.get_hostname(), store.get(key) == value.tobytes()
if got["setup"] == 0:
    got["put"], got["get"] = store.put(key, value), store.get(key) == value.tobytes()
print(json.dumps(got), flush=True)
sys.stdin.read()
store.close()
"""


class Store:
    """A process with a store, until the block ends. said: what its calls returned."""

    def __init__(self, pool, env, host="127.0.0.1", memory=32, offload="", key="a"):
        self.process = subprocess.Popen([sys.executable, "-c", STORE, pool.master.listen, host, str(memory), str(offload), key], env=pool.bench.env(**env),
                                        cwd=pool.bench.home, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        self.said = json.loads(line) if line else {}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.errors = self.process.communicate("", timeout=60)[1]
        assert self.process.returncode == 0, self.errors


def test_stores_with_segments_in_a_pool_with_tls(bench, tmp_path):
    """Two processes with one certificate share keys; another tenant's, and a writer without memory, are what they are."""
    pool = Secured(bench, nodes=False)
    engine, other = pool.certs.env("engine", "acme/127.0.0.1"), pool.certs.env("engine", "other/127.0.0.1")
    fine = {"setup": 0, "put": 0, "get": True}
    with Store(pool, engine) as one, Store(pool, {**engine, "KVPOOL_TRANSPORTS": "tcp"}, key="b", offload=tmp_path) as two:
        assert one.said == {**fine, "host": one.said["host"], "before": False} and one.said["host"].startswith("127.0.0.1:")
        assert two.said == {**fine, "host": two.said["host"], "before": False} and two.said["host"] != one.said["host"], two.said
        with Store(pool, {**pool.certs.env("writer"), "KVPOOL_TRANSPORTS": "tcp"}, memory=0) as writer:
            assert writer.said["before"] and writer.said["put"] == 0, writer.said
        with Store(pool, other) as stranger:
            assert stranger.said == {**fine, "host": stranger.said["host"], "before": False}, stranger.said
        with Store(pool, pool.certs.env("writer"), key="c") as writer:
            assert writer.said["setup"] != 0
        assert "needs a certificate of the role node or engine" in writer.errors
        with Store(pool, engine, host="127.0.0.2", key="c") as elsewhere:
            assert elsewhere.said["setup"] == -601, elsewhere.said
        assert "of a node with another name" in elsewhere.errors


def test_a_store_with_a_segment_and_a_token(bench):
    pool = Trusted(bench, nodes=False)
    pool.token("t-engine", "engine", "acme", name="127.0.0.1")
    pool.token("t-other", "engine", "other", name="127.0.0.1")
    pool.master.wait_log('read again"? tokens=3')
    with Store(pool, pool.env("t-engine")) as one, Store(pool, pool.env("t-other")) as other:
        assert one.said["put"] == 0 and one.said["get"] and not one.said["before"], one.said
        assert other.said["put"] == 0 and other.said["get"] and not other.said["before"], other.said
        with Store(pool, pool.honest, memory=0) as writer:
            assert writer.said["before"], writer.said
