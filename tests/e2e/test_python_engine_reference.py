# SPDX-License-Identifier: Apache-2.0
"""mooncake.engine against the reference's own wheel, as test_python_reference.py: the same calls on two engines of each that reach one
another over the loopback of a namespace; what they say and what the memory of both engines holds is compared after every call. What
differs has to be in the table of reference_engine_rows.py, and all of that table has to be seen."""
import pathlib
import sys

import pytest

from reference_engine_calls import FRESH, UNSET, make
from reference_engine_rows import rows
from reference_sides import Judge, Side, on_both, reference_python

PEER = pathlib.Path(__file__).with_name("reference_engine_peer.py")
SEED = 20261122
MINE_OF_PAIR, UNSET_ENGINE = -1, -2


@pytest.mark.limit(600)
def test_same_transfers_same_bytes(bench, scaled, monkeypatch):
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", "5")
    interpreters = {"ours": sys.executable, "reference": reference_python()}
    sides = [Side(bench, name, python, PEER, {}, [[0, 0]] * 2) for name, python in interpreters.items()]
    judge = Judge(rows())
    calls = make(SEED, 1000 + scaled(10000)) + [(MINE_OF_PAIR, text) for text in FRESH] + [(UNSET_ENGINE, text) for text in UNSET]
    for engine, text in calls:
        if not judge.judge(text, *on_both(sides, engine, text)) and engine >= 0:
            on_both(sides, engine, "refill(1)")
    judge.verdict(len(calls))
    called = "\n".join(text for _, text in calls)
    names = on_both(sides, 0, "[name for name in dir(e) if name[0] != '_' and name != 'TransferOpcode']")[1]["value"]
    assert [name for name in names if f".{name}(" not in called and f".{name}," not in called] == []
