# SPDX-License-Identifier: Apache-2.0
"""Memory that holds Python objects or pointers, in every call that takes an object with memory: bytes written over them ended the process,
and what was stored of them was of no use (stage `python` of tests/run)."""
import ctypes

import numpy as np
import pytest

import kvpool
from kvpool import _kvpool
from mooncake.engine import TransferEngine
from mooncake.store import ReplicateConfig
from stores import make
from test_python_dlpack import Made

OPAQUE = 3  # a code of DLPack's types


class WithPointer(ctypes.Structure):
    _fields_ = [("n", ctypes.c_int), ("text", ctypes.c_char_p)]


class WithNumbers(ctypes.Structure):
    _fields_ = [("O", ctypes.c_int), ("P", ctypes.c_double)]


def of_handles():
    made = Made(np.zeros(64, np.uint8))
    made.managed.tensor.code = OPAQUE
    return made


def addresses():
    """Objects whose memory is addresses of this process, and what is made of them."""
    objects = np.zeros(13, object)
    found = [objects, memoryview(objects), np.zeros(4, [("n", np.int64), ("x", object)]), np.zeros((2, 3), [("in", [("n", "u1"), ("x", "O", 2)])]),
             np.zeros(3, [("date", "M8[s]"), ("x", object)]), (ctypes.py_object * 4)(), (ctypes.c_char_p * 4)(), (ctypes.c_wchar_p * 4)(),
             (ctypes.c_void_p * 4)(), (ctypes.POINTER(ctypes.c_int) * 4)(), (ctypes.CFUNCTYPE(None) * 4)(), (WithPointer * 2)(),
             memoryview(bytearray(64)).cast("P"), of_handles()]
    if hasattr(getattr(np, "dtypes", None), "StringDType"):  # from numpy 2 on
        found.append(np.array(["a text that is too long to lie in the array itself"] * 4, np.dtypes.StringDType()))
    return found


def numbers():
    """What looks like it, and is none: names of fields, complex numbers, dates."""
    return [np.zeros(4, [("O", np.int64), ("PXO&z", np.uint8)]), np.zeros(3, complex), np.zeros(3, np.complex64), np.zeros(4, "M8[s]"),
            np.zeros(3, [("date", "M8[s]"), ("n", "u1")]), (WithNumbers * 3)(), np.zeros(4, "U7"), np.zeros(4, "V6"), np.zeros(4, bool),
            memoryview(bytearray(64)).cast("N")]


def raw(array):
    return ctypes.string_at(array.ctypes.data, array.nbytes) if isinstance(array, np.ndarray) else b""


@pytest.mark.pool(nodes=1)
def test_objects_and_pointers_are_refused(pool):
    plain = bytearray(64)
    grouped = ReplicateConfig()
    grouped.group_ids = ["g"]
    engine = TransferEngine()
    with kvpool.Pool(pool.addr) as here:
        here.put("k", bytes(range(16)) * 4)
        here.register(plain)
        store = make(pool.addr)
        for bad in addresses():
            before = raw(bad)
            for call in (lambda: here.put("bad", bad), lambda: here.get_into("k", bad), lambda: here.register(bad), lambda: here.unregister(bad),
                         lambda: here.put_many(["bad"], [bad]), lambda: here.put_many(["bad"], [[plain, bad]]),
                         lambda: here.get_many(["k"], [bad]), lambda: here.get_many(["k"], [[plain, bad]]),
                         lambda: store.put("bad", bad), lambda: store.upsert("bad", bad), lambda: store.put("bad", bad, grouped),
                         lambda: store.put_parts("bad", plain, bad), lambda: store.put_batch(["bad"], [bad]),
                         lambda: store.upsert_parts("bad", bad), lambda: engine.write_bytes_to_buffer(id(plain), bad, 1),
                         lambda: _kvpool.memory_of(bad, True)):
                with pytest.raises(TypeError, match="objects or pointers"):
                    call()
            assert before == raw(bad)
        assert not here.exists("bad")
        assert store.close() == 0


@pytest.mark.pool(nodes=1)
def test_what_only_looks_like_them_is_taken(pool):
    with kvpool.Pool(pool.addr) as here:
        for i, good in enumerate(numbers()):
            here.put(f"k{i}", good)
            assert here.size(f"k{i}") == here.get_into(f"k{i}", good) == _kvpool.memory_of(good, True)[1]
            here.register(good)
            here.unregister(good)
