# SPDX-License-Identifier: Apache-2.0
"""mooncake.store against the reference's own wheel: the same calls on both, each on a pool of its own, compared one by one.
What differs has to be in the table of reference_rows.py, and all of that table has to be seen. After a difference the keys in
question are removed on both sides, so that it does not breed others.

KVPOOL_REFERENCE_VENV names a virtual environment with mooncake-transfer-engine-non-cuda (tests/run makes one).
"""
import pathlib
import sys

import pytest

import reference_calls
from conftest import PROGRAMS
from reference_odd import FRESH
from reference_rows import rows
from reference_sides import Judge, Side, on_both, reference_python

PEER = pathlib.Path(__file__).with_name("reference_peer.py")
CLIENTS = 3
MEMORY = 64 << 20
LEASE_MS = 3600 * 1000  # longer than any run: what is held stays held
SEED = 20261122


@pytest.fixture
def sides(bench):
    python = reference_python()
    lease = f"{LEASE_MS}ms"

    def side(name, python, master):
        told = {"master": [str(word) for word in master], "clients": CLIENTS, "memory": MEMORY}
        return Side(bench, name, python, PEER, told, [[0, 0]] * CLIENTS)

    ours = side("ours", sys.executable, [
        PROGRAMS["kvpool-master"], "--listen", "127.0.0.1:50051", "--http", "127.0.0.1:0", "--data-dir", "none", "--lease-ttl", lease])
    theirs = side("reference", python, [
        python.with_name("mooncake_master"), "--rpc_address=127.0.0.1", "--rpc_port=50051", "--metrics_host=127.0.0.1",
        "--metrics_port=50052", f"--default_kv_lease_ttl={LEASE_MS}"])
    return ours, theirs


@pytest.mark.limit(600)
def test_same_calls_same_outcomes(sides, scaled):
    calls = reference_calls.make(SEED, 2000 + scaled(20000), CLIENTS)
    judge = Judge(rows())
    for call in calls:
        ours, theirs = on_both(sides, call.client, call.text)
        if judge.judge(call.text, ours, theirs):
            continue
        every = "s.remove_all(True)" if call.keys is None else f"s.batch_remove({call.keys}, True)"
        on_both(sides, call.client, every)
        on_both(sides, call.client, "refill(1)")
    names = on_both(sides, 0, "[name for name in dir(s) if name[0] != '_']")[1]
    for text in FRESH:
        judge.judge(text, *on_both(sides, -1, text))
    judge.verdict(len(calls) + len(FRESH))
    called = "\n".join([call.text for call in calls] + FRESH)
    assert [name for name in names["value"] if f".{name}(" not in called and f".{name}," not in called] == []
