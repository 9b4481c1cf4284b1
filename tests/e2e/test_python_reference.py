# SPDX-License-Identifier: Apache-2.0
"""mooncake.store against the reference's own wheel: the same calls on both, each on a pool of its own, compared one by one.
What differs has to be in the table of reference_rows.py, and all of that table has to be seen. After a difference the keys in
question are removed on both sides, so that it does not breed others.

KVPOOL_REFERENCE_VENV names a virtual environment with mooncake-transfer-engine-non-cuda (tests/run makes one).
"""
import json
import os
import pathlib
import subprocess
import sys

import pytest

import reference_calls
from clients import Talker
from conftest import PROGRAMS, SAN
from reference_rows import rows

PEER = pathlib.Path(__file__).with_name("reference_peer.py")
CLIENTS = 3
MEMORY = 64 << 20
LEASE_MS = 3600 * 1000  # longer than any run: what is held stays held
SEED = 20261122
APART = ["unshare", "--net", "--map-root-user"]
CALL_S = 60


def reference_python():
    """The interpreter of the reference, or a skip that says why it is not here."""
    python = pathlib.Path(os.environ.get("KVPOOL_REFERENCE_VENV", "/nonexistent")) / "bin" / "python3"
    if not python.exists():
        pytest.skip("KVPOOL_REFERENCE_VENV names no virtual environment with the reference's wheel")
    checks = {"no network namespaces": [*APART, "true"], "the wheel": [python, "-c", "import mooncake.store"]}
    for what, argv in checks.items():
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            pytest.skip(f"{what}: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    return python


class Side:
    """One of the two pools."""

    def __init__(self, bench, name, python, master):
        told = {"master": [str(word) for word in master], "clients": CLIENTS, "memory": MEMORY}
        self.talker = Talker(bench, name, [*APART, python, PEER, json.dumps(told)])
        assert self.talker.hear(CALL_S) == [[0, 0]] * CLIENTS, self.talker.log()[-2000:]

    def begin(self, client, text):
        self.talker.say(json.dumps([client, text]))

    def end(self):
        return self.talker.hear(CALL_S)


@pytest.fixture
def sides(bench):
    python = reference_python()
    lease = f"{LEASE_MS}ms"
    ours = Side(bench, "ours", sys.executable, [
        PROGRAMS["kvpool-master"], "--listen", "127.0.0.1:50051", "--http", "127.0.0.1:0", "--data-dir", "none", "--lease-ttl", lease])
    theirs = Side(bench, "reference", python, [
        python.with_name("mooncake_master"), "--rpc_address=127.0.0.1", "--rpc_port=50051", "--metrics_host=127.0.0.1",
        "--metrics_port=50052", f"--default_kv_lease_ttl={LEASE_MS}"])
    return ours, theirs


def on_both(sides, client, text):
    for side in sides:
        side.begin(client, text)
    return [side.end() for side in sides]


def leaves(ours, theirs):
    """Pairs that differ. Lists of one length are compared item by item."""
    if type(ours) is list and type(theirs) is list and len(ours) == len(theirs):
        for pair in zip(ours, theirs):
            yield from leaves(*pair)
    elif json.dumps(ours) != json.dumps(theirs):
        yield json.dumps(ours, ensure_ascii=False), json.dumps(theirs, ensure_ascii=False)


def outcome_leaves(ours, theirs):
    """Pairs that differ of two outcomes; of memory only where all else is the same: then the pair is that and "memory"."""
    if set(ours) == set(theirs) and "value" in ours:
        found = list(leaves(ours["value"], theirs["value"]))
    else:
        one, other = ({k: v for k, v in o.items() if k not in ("text", "memory")} for o in (ours, theirs))
        found = [] if one == other else [(json.dumps(one), json.dumps(other))]
    if not found and ours.get("memory") != theirs.get("memory"):
        found.append((json.dumps(ours.get("value")), '"memory"'))
    return found


class Judge:
    """Holds pairs of outcomes against the table."""

    def __init__(self):
        self.table = rows()
        self.same = 0
        self.unknown = []

    def judge(self, text, ours, theirs):
        """True where they are the same."""
        found = outcome_leaves(ours, theirs)
        for pair in found:
            row = next((r for r in self.table if r.covers(text, *pair)), None)
            if row is None:
                self.unknown.append(f"{text[:300]}\n    ours {ours}\n    reference {theirs}")
                break
            row.uses += 1
        self.same += not found
        return not found

    def verdict(self, calls):
        assert not self.unknown, f"{len(self.unknown)} differences that are not in the table:\n" + "\n".join(self.unknown[:40])
        unused = [row for row in self.table if row.uses == 0]
        assert not unused, "rows that no call used: " + "; ".join(map(repr, unused))
        assert self.same > calls // 2, f"only {self.same} of {calls} outcomes were the same"


@pytest.mark.limit(600)
def test_same_calls_same_outcomes(sides, scaled):
    calls = reference_calls.make(SEED, 2000 + scaled(20000), CLIENTS)
    judge = Judge()
    for call in calls:
        ours, theirs = on_both(sides, call.client, call.text)
        if judge.judge(call.text, ours, theirs):
            continue
        every = "s.remove_all(True)" if call.keys is None else f"s.batch_remove({call.keys}, True)"
        on_both(sides, call.client, every)
        on_both(sides, call.client, "refill(1)")
    for text in reference_calls.FRESH:
        judge.judge(text, *on_both(sides, -1, text))
    judge.verdict(len(calls) + len(reference_calls.FRESH))
