# SPDX-License-Identifier: Apache-2.0
"""Two peers of one kind, ours and the reference's, and the judge of what they answer: for test_python_reference.py and
test_python_engine_reference.py."""
import json
import os
import pathlib
import subprocess

import pytest

from clients import Talker

APART = ["unshare", "--net", "--map-root-user"]
CALL_S = 60


def reference_python():
    """The interpreter of the reference, or a skip that says why it is not here."""
    python = pathlib.Path(os.environ.get("KVPOOL_REFERENCE_VENV", "/nonexistent")) / "bin" / "python3"
    if not python.exists():
        pytest.skip("KVPOOL_REFERENCE_VENV names no virtual environment with the reference's wheel")
    checks = {"no network namespaces": [*APART, "true"], "the wheel": [python, "-c", "import mooncake.store, mooncake.engine"]}
    for what, argv in checks.items():
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            pytest.skip(f"{what}: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    return python


class Side:
    """One of the two peers: its program, in a namespace of its own with what it is told, which begins by saying ready."""

    def __init__(self, bench, name, python, peer, told, ready):
        self.talker = Talker(bench, name, [*APART, python, peer, json.dumps(told)])
        assert self.talker.hear(CALL_S) == ready, self.talker.log()[-2000:]

    def begin(self, client, text):
        self.talker.say(json.dumps([client, text]))

    def end(self):
        return self.talker.hear(CALL_S)


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
    """Holds pairs of outcomes against a table of rows."""

    def __init__(self, table):
        self.table = table
        self.same = 0
        self.unknown = []

    def judge(self, text, ours, theirs):
        """True where they are the same."""
        if ("value" not in ours and "raised" not in ours) or "other" in ours:  # dead or silent: never right, whatever theirs is
            self.unknown.append(f"{text[:300]}\n    ours {ours}\n    reference {theirs}")
            return False
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
