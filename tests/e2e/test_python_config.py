# SPDX-License-Identifier: Apache-2.0
"""mooncake.mooncake_config: its fields, defaults and errors, and that a store is set up from it."""
import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import pytest

from mooncake.mooncake_config import MooncakeConfig
from mooncake.store import MooncakeDistributedStore

LEAST = {"local_hostname": "here", "metadata_server": "P2PHANDSHAKE", "master_server_address": "there:1"}
DEFAULTS = {**LEAST, "global_segment_size": 3355443200, "local_buffer_size": 1 << 30, "protocol": "tcp", "device_name": "",
            "enable_ssd_offload": False, "ssd_offload_path": "", "tenant_id": "default", "enable_client_http_server": False,
            "client_http_port": 9300}


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("MOONCAKE_")]:
        monkeypatch.delenv(name)


def write(tmp_path, fields):
    path = tmp_path / "config.json"
    path.write_text(fields if isinstance(fields, str) else json.dumps(fields))
    return str(path)


def test_defaults(tmp_path, monkeypatch):
    assert dataclasses.asdict(MooncakeConfig.from_file(write(tmp_path, LEAST))) == DEFAULTS
    monkeypatch.setenv("MOONCAKE_MASTER", "there:1")
    assert dataclasses.asdict(MooncakeConfig.load_from_env()) == {**DEFAULTS, "local_hostname": "localhost"}


def test_environment(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="MOONCAKE_CONFIG_PATH.*MOONCAKE_MASTER"):
        MooncakeConfig.load_from_env()
    for name, value in dict(MASTER="m:2", LOCAL_HOSTNAME="h", TE_META_DATA_SERVER="http://d", GLOBAL_SEGMENT_SIZE="1.5 GB", PROTOCOL=" RDMA",
                            LOCAL_BUFFER_SIZE="16mb", DEVICE="mlx5_0", OFFLOAD_ENABLED="on", OFFLOAD_FILE_STORAGE_PATH="/ssd",
                            TENANT_ID="team", ENABLE_CLIENT_HTTP_SERVER="1", CLIENT_HTTP_PORT="81").items():
        monkeypatch.setenv(f"MOONCAKE_{name}", value)
    assert dataclasses.astuple(MooncakeConfig.load_from_env()) == (
        "h", "http://d", 3 << 29, 16 << 20, "rdma", "mlx5_0", "m:2", True, "/ssd", "team", True, 81)
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", write(tmp_path, LEAST))
    assert MooncakeConfig.load_from_env().master_server_address == "there:1"


@pytest.mark.parametrize("wrong, said", [
    (dict(protocol=""), "protocol"), (dict(protocol=7), "protocol"), (dict(global_segment_size=-1), "global_segment_size"),
    (dict(local_buffer_size="-1 GB"), "local_buffer_size"), (dict(global_segment_size="GB"), "size"), (dict(local_buffer_size=""), "size"),
    (dict(local_buffer_size="50%"), "size"), (dict(local_buffer_size="infB"), "size"), (dict(enable_ssd_offload="maybe"), "boolean"),
    (dict(local_hostname=" "), "local_hostname"), (dict(metadata_server=None), "metadata_server"),
    (dict(master_server_address=5), "master_server_address"), (dict(client_http_port="http"), "http"),
])
def test_wrong_fields_are_named(tmp_path, wrong, said):
    with pytest.raises(ValueError, match=said):
        MooncakeConfig.from_file(write(tmp_path, {**LEAST, **wrong}))


@pytest.mark.parametrize("text", ["", "[]", "{", "7", "[" * 100000, "{}", json.dumps({**LEAST, "x": " " * (1 << 20)})])
def test_files_that_are_none(tmp_path, text):
    with pytest.raises(ValueError):
        MooncakeConfig.from_file(write(tmp_path, text))
    with pytest.raises(OSError):
        MooncakeConfig.from_file(str(tmp_path / "absent"))


@pytest.mark.pool(nodes=1)
def test_a_store_of_it(pool, tmp_path):
    config = MooncakeConfig.from_file(write(tmp_path, {**LEAST, "local_hostname": "127.0.0.1", "master_server_address": pool.addr,
                                                       "global_segment_size": "16MB", "local_buffer_size": "16 MB"}))
    store = MooncakeDistributedStore()
    assert store.setup(config.local_hostname, config.metadata_server, config.global_segment_size, config.local_buffer_size,
                       config.protocol, config.device_name, config.master_server_address, tenant_id=config.tenant_id) == 0
    assert store.put("k", b"x") == 0 and store.get("k") == b"x"
    assert store.close() == 0


OUTCOME = """
import dataclasses, json, sys
from mooncake.mooncake_config import MooncakeConfig
for path in sys.argv[1:]:
    try:
        print(json.dumps(dataclasses.asdict(MooncakeConfig.from_file(path))))
    except Exception as e:
        print(type(e).__name__)
"""


def test_the_reference_reads_the_same(tmp_path):
    python = pathlib.Path(os.environ.get("KVPOOL_REFERENCE_VENV", "/nonexistent")) / "bin" / "python3"
    if not python.exists():
        pytest.skip("KVPOOL_REFERENCE_VENV names no virtual environment with the reference's wheel")
    changes = [{}, dict(protocol="RDMA "), dict(protocol="new"), dict(protocol=None), dict(global_segment_size="2g"), dict(local_buffer_size="7"),
               dict(local_buffer_size=" 0.5 KB "), dict(local_buffer_size="b"), dict(local_buffer_size=1.5), dict(enable_ssd_offload="yes"),
               dict(enable_ssd_offload=""), dict(enable_ssd_offload=None), dict(enable_ssd_offload="2"), dict(tenant_id=None), dict(tenant_id=5),
               dict(ssd_offload_path=None), dict(device_name=None), dict(client_http_port="80"), dict(local_hostname="")]
    paths = []
    for i, change in enumerate(changes):
        paths.append(str(tmp_path / f"{i}.json"))
        pathlib.Path(paths[-1]).write_text(json.dumps({**LEAST, **change}))
    ours, theirs = (subprocess.run([p, "-c", OUTCOME, *paths], capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
                    for p in (sys.executable, python))
    assert len(ours) == len(changes) and ours == theirs


BASE = {"local_hostname": "h", "metadata_server": "P2PHANDSHAKE", "master_server_address": "h:1"}


@pytest.mark.parametrize("field, value", [("global_segment_size", None), ("local_buffer_size", []), ("local_buffer_size", True), ("protocol", None),
                                          ("client_http_port", None), ("local_hostname", None), ("global_segment_size", "1 gib")])
def test_a_field_that_cannot_be_is_named(tmp_path, field, value):
    path = tmp_path / "mooncake.json"
    path.write_text(json.dumps({**BASE, field: value}))
    with pytest.raises(ValueError, match=field.partition("_")[0]):
        MooncakeConfig.from_file(str(path))


def test_a_misspelt_field_is_named(tmp_path, caplog):
    path = tmp_path / "mooncake.json"
    path.write_text(json.dumps({**BASE, "global_segment_sise": "1gb", "mode": "standalone-store"}))
    MooncakeConfig.from_file(str(path))
    [line] = caplog.messages
    assert "'global_segment_sise'" in line and "'global_segment_size'" in line
