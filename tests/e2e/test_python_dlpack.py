# SPDX-License-Identifier: Apache-2.0
"""Memory by DLPack: what producers say, those of numpy and torch (where it is here), and those that lie about it."""
import ctypes

import numpy as np
import pytest

import kvpool


@pytest.fixture
def pool_here(make_pool):
    with kvpool.Pool(make_pool(nodes=1).addr, name="dlpack") as handle:
        yield handle


class Only:
    """As a tensor of torch: no buffer protocol. It keeps what it was asked for."""

    def __init__(self, values, is_old=False):
        self.values = values
        self.asked = []
        self.is_old = is_old

    def __dlpack__(self, **kw):
        self.asked.append(kw)
        if self.is_old and kw:
            raise TypeError("__dlpack__() got an unexpected keyword argument")
        return self.values.__dlpack__(**kw)


CPU, CUDA, OPENCL = 1, 2, 4
READ_ONLY, IS_COPIED = 1, 2


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64)]


class Old(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
                ("flags", ctypes.c_uint64), ("tensor", Tensor)]


class Made:
    """A producer made by hand, over the memory of a numpy array."""

    def __init__(self, memory, device=CPU, shape=None, strides=None, offset=0, bits=8, version=None, flags=0):
        shape = [memory.size] if shape is None else shape
        self._shape = (ctypes.c_int64 * len(shape))(*shape)
        self._strides = (ctypes.c_int64 * len(strides))(*strides) if strides else None
        self.memory = memory
        tensor = Tensor(memory.ctypes.data, device, 0, len(shape), 1, bits, 1, self._shape, self._strides, offset)
        self.managed = Old(tensor) if version is None else Versioned(*version, None, None, flags, tensor)
        self.name = b"dltensor" if version is None else b"dltensor_versioned"

    def __dlpack__(self, *, max_version=None):
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self.managed), self.name, None)


def test_sources_and_targets(pool_here):
    values = np.arange(1000, dtype=np.float32).reshape(10, 100)
    for is_old in (False, True):
        source, back = Only(values, is_old), np.zeros_like(values)
        pool_here.put(f"t{is_old}", source)
        assert pool_here.get_into(f"t{is_old}", Only(back, is_old)) == values.nbytes
        assert (back == values).all()
        assert source.asked == [{"max_version": (1, 0)}] + ([{}] if is_old else [])
    part, back = values[3:5], np.zeros((2, 100), np.float32)
    pool_here.put("part", Made(values.view(np.uint8), shape=[2, 100], strides=[100, 1], offset=3 * 400, bits=32))
    pool_here.get_into("part", back)
    assert (back == part).all()
    pool_here.register(back)
    assert pool_here.get_many(["part"], [[Only(back[0]), Only(back[1])]]) == [800]


def test_what_is_not_contiguous(pool_here):
    values = np.arange(1000, dtype=np.uint8)
    for bad in (Only(values[::2]), Only(values.reshape(10, 100).T), Made(values, shape=[10, 10], strides=[1, 10]),
                Made(values, shape=[10], strides=[-1]), Made(values, shape=[-5])):
        for call in (pool_here.put, pool_here.get_into):
            with pytest.raises(BufferError, match="not contiguous"):
                call("k", bad)
    with pytest.raises(BufferError, match="larger"):
        pool_here.put("k", Made(values, shape=[1 << 62], bits=64))
    assert "k" not in pool_here


def test_what_is_read_only(pool_here):
    values = np.arange(100, dtype=np.uint8)
    pool_here.put("k", Made(values, version=(1, 0), flags=READ_ONLY))
    assert pool_here.get("k") == values.tobytes()
    values[:] = 0
    with pytest.raises(BufferError, match="read-only"):
        pool_here.get_into("k", Made(values, version=(1, 1), flags=READ_ONLY))
    with pytest.raises(BufferError, match="copy"):
        pool_here.get_into("k", Made(values, version=(1, 0), flags=IS_COPIED))
    assert not values.any()
    frozen = np.zeros(100, np.uint8)
    frozen.flags.writeable = False
    with pytest.raises(BufferError):
        pool_here.get_into("k", Only(frozen))
    assert not frozen.any()


def test_what_cannot_be_read(pool_here):
    values = np.zeros(100, np.uint8)
    with pytest.raises(BufferError, match="version"):
        pool_here.put("k", Made(values, version=(2, 0)))
    with pytest.raises(BufferError, match="type 4"):
        pool_here.put("k", Made(values, device=OPENCL))
    for bad in (None, 5, "capsule"):
        with pytest.raises(TypeError):
            pool_here.put("k", type("Bad", (), {"__dlpack__": lambda self, max_version=None, bad=bad: bad})())

    class Raises:
        def __dlpack__(self, **kw):
            raise RuntimeError("it needs a gradient")

    with pytest.raises(RuntimeError, match="gradient"):
        pool_here.put("k", Raises())


def test_memory_of_a_device_has_to_be_registered(pool_here):
    """Fails if a processor touches memory that a producer says is a GPU's; here it is not even mapped."""
    device = np.zeros(4096, np.uint8)
    nowhere = Made(device, device=CUDA)
    nowhere.managed.tensor.data = 0x7F0000000000 ^ (1 << 45)
    pool_here.put("k", b"x" * 4096)
    for call in (lambda: pool_here.put("new", nowhere), lambda: pool_here.put("k", nowhere, upsert=True),
                 lambda: pool_here.get_into("k", nowhere)):
        with pytest.raises(kvpool.InvalidError) as e:
            call()
        assert e.value.name == "NOT_REGISTERED"
    assert pool_here.get("k") == b"x" * 4096


def test_tensors_of_torch(pool_here):
    torch = pytest.importorskip("torch")
    values = torch.arange(1000, dtype=torch.float32).to(torch.bfloat16)
    pool_here.put("t", values)
    back = torch.zeros(1000, dtype=torch.bfloat16)
    assert pool_here.get_into("t", back) == 2000
    assert torch.equal(values, back)
    with pytest.raises(BufferError, match="not contiguous"):
        pool_here.put("strided", values[::2])
    pool_here.register(back)
    assert pool_here.get_many(["t"], [back]) == [2000]
