# SPDX-License-Identifier: Apache-2.0
"""What mooncake.store logs of calls that fail again and again (stage `python` of tests/run)."""
import logging
import sys
import types

import pytest

from mooncake import _telling
from stores import make

LONG = "x" * 1000  # a key may have 1024 characters


@pytest.fixture
def store(pool, monkeypatch):
    handle = make(pool.addr)
    assert handle.put(LONG, b"x") == 0
    # Of torch nothing need be installed: there is one file with one tensor, and none can be written.
    library = types.ModuleType("safetensors.torch")
    library.load_file = {"there": {"one": 7}}.__getitem__
    monkeypatch.setitem(sys.modules, "safetensors", types.ModuleType("safetensors"))
    monkeypatch.setitem(sys.modules, "safetensors.torch", library)
    monkeypatch.setattr(handle, "get_tensor", lambda key: object())
    yield handle
    assert handle.close() == 0


CALLS = {
    "mount_segment": lambda store: store.mount_segment(LONG, 4096)["ret"] == -1,
    "put_tensor": lambda store: store.put_tensor(LONG, 7) == -600,
    "put, divided": lambda store: store.put_tensor_with_parallelism(LONG.encode(), 7) == -600,
    "get, divided": lambda store: store.get_tensor_with_parallelism(LONG, 7) is None,
    "save": lambda store: store.save_tensor_to_safetensor("k", LONG) == -600,
    "load": lambda store: store.load_tensor_from_safetensor("k", LONG) is None,
}


@pytest.mark.parametrize("how", CALLS)
def test_failures_do_not_fill_the_log(store, caplog, monkeypatch, how):
    """The first, then one a second with how many were left out, and no key is longer than a line."""
    now = [100.0]
    monkeypatch.setattr(_telling, "monotonic", lambda: now[0])
    assert all([CALLS[how](store) for _ in range(100)])
    assert [len(record.getMessage()) < 500 for record in caplog.records] == [True]
    now[0] += 1
    assert CALLS[how](store) and CALLS[how](store)
    assert len(caplog.records) == 2 and caplog.records[1].getMessage().endswith("(99 more of the kind were left out before)")


def test_kinds_are_told_apart(store, caplog, monkeypatch):
    """What fails all the time hides nothing else; a warning stays one."""
    monkeypatch.setattr(_telling, "monotonic", lambda: 100.0)
    for how in ("put_tensor", "put, divided", "get, divided", "load"):
        assert CALLS[how](store) and CALLS[how](store)
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 4
    for _ in range(2):
        assert store.load_tensor_from_safetensor("absent", "there") is None  # and put_tensor of it has failed before
    assert [record.levelno for record in caplog.records[4:]] == [logging.WARNING]
    caplog.clear()
    store.close()  # the same error of two calls
    for _ in range(2):
        assert store.put("k", b"x") == store.is_exist("k") == store.remove("k") == -600
    assert [record.getMessage().split()[0] for record in caplog.records] == ["put", "is_exist", "remove"]
