# SPDX-License-Identifier: Apache-2.0
"""What mooncake.engine logs of calls that fail again and again (stage `python` of tests/run)."""
from mooncake import _telling
from mooncake.engine import TransferEngine
from test_python_engine import engine  # noqa: F401


def test_failures_do_not_fill_the_log(engine, caplog, monkeypatch):  # noqa: F811
    """The first of a kind, then one a second with how many were left out; and no name is longer than a line."""
    now = [100.0]
    monkeypatch.setattr(_telling, "monotonic", lambda: now[0])
    for peer in ["x" * 10_000_000] + ["nowhere"] * 999:
        assert engine.transfer_sync_write(peer, 4096, 4096, 1) == -1
        assert engine.batch_transfer_sync_write("nowhere", [4096], [], [1]) == -1
        assert engine.get_batch_transfer_status([12345]) == -1
    assert [len(r.getMessage()) < 300 for r in caplog.records] == [True] * 3
    now[0] += 1
    caplog.clear()
    assert engine.transfer_sync_write("nowhere", 4096, 4096, 1) == engine.transfer_sync_write("nowhere", 4096, 4096, 1) == -1
    assert [r.getMessage() for r in caplog.records] == [
        "transfer with nowhere: invalid argument (999 more of the kind were left out before)"]
    caplog.clear()
    other = TransferEngine()
    assert other.initialize("127.0.0.1", "P2PHANDSHAKE", "x" * 1_000_000, "") in (0, -1)
    assert other.initialize("127.0.0.1", "x" * 1_000_000, "tcp", "") == -1
    assert all(len(r.getMessage()) < 400 for r in caplog.records)
