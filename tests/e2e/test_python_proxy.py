# SPDX-License-Identifier: Apache-2.0
"""python -m mooncake.vllm_v1_proxy_server, by the wheel alone, under the flags that scripts start the reference's with (stage `python` of tests/run)."""
import json
import signal
import subprocess
import sys

import pytest

from clients import free_ports
from conftest import wait_until
from test_proxy import Server
from test_python_store import fetch

MODULE = "mooncake.vllm_v1_proxy_server"


@pytest.fixture
def servers():
    both = [Server("prefill"), Server("prefill"), Server("decode"), Server("decode")]
    yield both
    for s in both:
        s.close()


def of(bench, port, *flags, **env):
    """Starts the proxy."""
    return subprocess.Popen([sys.executable, "-m", MODULE, "--port", str(port), *map(str, flags)], env={**bench.env(), **env}, cwd=bench.home, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("style", ["one", "two", "bootstrap", "environment"])
def test_flags(bench, servers, style):
    (p0, p1, d0, d1), (port,) = servers, free_ports(1)
    host = "127.0.0.1"
    flags, env = {
        "one": (["--prefiller-host", host, "--prefiller-port", p0.port, "--decoder-host", host, "--decoder-port", d0.port], {}),
        "two": (["--host", "localhost", "--prefiller-hosts", host, host, "--prefiller-ports", p0.port, p1.port, "--decoder-hosts", host, "--decoder-ports", d0.port, d1.port], {}),
        "bootstrap": (["--prefiller-hosts", host, host, "--prefiller-ports", p0.port, p1.port, "--prefiller-bootstrap-ports", p0.port, f"localhost:{p1.port}", "--decoder-port", d0.port], {}),
        "environment": (["--prefiller-port", p0.port, "--decoder-port", d0.port], {"VLLM_MOONCAKE_BOOTSTRAP_PORT": str(p0.port)}),
    }[style]
    n = 2 if style in ("two", "bootstrap") else 1
    process = of(bench, port, *flags, **env)
    try:
        wait_until(lambda: fetch(port, "/healthcheck")[0] == 200 or process.poll() is not None, 20, "the proxy")
        told = json.loads(fetch(port, "/healthcheck")[1])
        assert told["status"] == "ok" and told["prefill_instances"] == n and told["decode_instances"] == (2 if style == "two" else 1)
        for _ in range(n):
            body = json.dumps({"model": "m", "prompt": "x", "max_tokens": 4})
            status, text = fetch(port, "/v1/completions", "POST", body, **{"Content-Type": "application/json"})
            assert status == 200 and json.loads(text) == {"choices": [{"text": "ok"}]}
        assert all([path for path, _, _ in s.asked].count("/v1/completions") == 1 for s in servers[:n])
        params = [body["kv_transfer_params"] for s in (d0, d1) for _, body, _ in s.asked]
        assert all(("remote_engine_id" in x) == (style in ("bootstrap", "environment")) for x in params) and len(params) == n
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


@pytest.mark.parametrize("flags, why", [
    (["--prefiller-hosts", "a", "b", "--prefiller-ports", "1", "2", "3"], "2 hosts of prefillers, but 3 ports"),
    (["--decoder-port", "65536"], "'65536' is no port"),
    (["--prefiller-bootstrap-ports", "1", "2"], "1 prefill servers, but 2 bootstrap ports"),
], ids=["hosts", "port", "bootstrap"])
def test_flags_that_cannot_be(bench, flags, why):
    done = subprocess.run([sys.executable, "-m", MODULE, *flags], env=bench.env(), capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and why in done.stderr


def test_port_that_is_taken(bench, servers):
    process = of(bench, servers[0].port)
    assert process.wait(20) == 1
