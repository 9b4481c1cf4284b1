# SPDX-License-Identifier: Apache-2.0
"""mooncake.store: tensors of torch, in the reference's form. Without torch what needs none: the header."""
import importlib.util
import struct

import pytest

from mooncake import _tensor_format
from mooncake.store import MooncakeDistributedStore, ReplicateConfig, _deserialize_tensor, _serialize_tensor, \
    _tensor_metadata_size
from stores import MIB, Memory, make

HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed (pip install torch; it is large)")
if HAS_TORCH:
    import torch


# What mooncake 0.3.13 wrote of an int32 tensor of 4 x 6, and of rank 1 of 3 of its shards along dimension 1: where 32-bit words are not 0.
WHOLE = {0: 0x4d4f4f4e, 4: 0x01300001, 8: 6, 12: 2, 24: 304, 32: 96, 40: 4, 48: 6, 104: 4, 112: 6,
         **dict.fromkeys([*range(56, 104, 4), *range(120, 168, 4)], -1)}
SHARD = {**WHOLE, 16: 1, 32: 32, 112: 2, 168: 1, 176: 1, 184: 1, 188: 3, 192: 1, 200: 2}


def words(head):
    return {4 * i: word for i, word in enumerate(struct.unpack("<76i", head)) if word}


def test_the_header_is_the_references():
    assert _tensor_metadata_size() == 304
    assert words(_tensor_format.pack(6, [4, 6], 96)) == WHOLE
    assert words(_tensor_format.pack(6, [4, 2], 32, [4, 6], [(1, 1, 3, 1, 0, 2)])) == SHARD
    assert _tensor_format.unpack(_tensor_format.pack(6, [4, 2], 32, [4, 6], [(1, 1, 3, 1, 0, 2)]), 336) == (6, [4, 2])


@pytest.mark.parametrize("at, word", [(0, 1), (4, 0x01300002), (4, 0x01310001), (8, -1), (8, 15), (8, 1 << 30), (12, -1), (12, 9), (12, 3),
                                      (24, 0), (24, 312), (32, 97), (32, 0), (104, 5), (104, -4), (112, -6), (116, 1 << 30)])
def test_headers_that_lie(at, word):
    head = bytearray(_tensor_format.pack(6, [4, 6], 96))
    assert _tensor_format.unpack(head, 400) == (6, [4, 6])
    struct.pack_into("<i", head, at, word)
    assert _tensor_format.unpack(head, 400) is None
    for size in (0, 303, 304, 399, 401, 1 << 62):
        assert _tensor_format.unpack(_tensor_format.pack(6, [4, 6], 96), size) is None
    assert _tensor_format.unpack(head[:303], 400) is None


def is_same(a, b):
    return a is not None and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@needs_torch
@pytest.mark.parametrize("name", _tensor_format.DTYPES)
def test_every_dtype(store, name):
    dtype = getattr(torch, name)
    value = torch.randint(0, 2, (3, 16), dtype=torch.uint8).view(torch.bool) if name == "bool" else \
        torch.randint(0, 256, (3, 16), dtype=torch.uint8).view(dtype)
    assert store.put_tensor("k", value) == 0 and is_same(store.get_tensor("k"), value)
    assert struct.unpack_from("<i", store.get("k"), 8)[0] == _tensor_format.DTYPES.index(name)


@needs_torch
def test_shapes(store):
    for i, shape in enumerate([(1,), (0,), (3, 4, 5), (1, 2, 3, 4, 5, 1, 1, 1), (2, 0, 3)]):
        value = torch.rand(shape)
        assert store.put_tensor(f"s{i}", value) == 0 and is_same(store.get_tensor(f"s{i}"), value)
    assert store.put_tensor("scalar", torch.tensor(5.0)) == 0 and store.get_tensor("scalar").tolist() == [5.0]
    turned = torch.arange(24).reshape(4, 6).t()
    assert store.put_tensor("turned", turned) == 0 and is_same(store.get_tensor("turned"), turned.contiguous())
    got = store.get_tensor("turned")
    got += 1  # its own memory
    assert is_same(store.get_tensor("turned"), turned.contiguous())
    for bad in ([1, 2], None, b"x" * 400, torch.rand((1,) * 9), torch.zeros(2, dtype=torch.complex64), torch.eye(3).to_sparse()):
        assert store.put_tensor("bad", bad) == -600
    assert store.is_exist("bad") == 0 and store.get_tensor("absent") is None
    for length in (1, 303, 304, 500):
        assert store.upsert("garbage", b"x" * length) == 0 and store.get_tensor("garbage") is None


@needs_torch
@pytest.mark.limit(240)  # what torch imports for tensors of such kinds takes long on a busy machine
def test_tensors_whose_bytes_lie_elsewhere(store):
    """Those of another kind have none to store; what is negated when it is read is stored so."""
    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return args[0]

    assert store.put_tensor_with_tp("bad", torch.rand(4, device="meta"), 0, 2, 0) == -600
    for bad in (Wrapper(torch.rand(4)), torch.rand(4, device="meta")):
        assert store.put_tensor("bad", bad) == -600
        with pytest.raises(TypeError):
            _serialize_tensor(bad)
    assert store.is_exist("bad") == 0 == store.is_exist("bad_tp_0")
    negated = torch._neg_view(torch.rand(4))
    assert negated.is_neg() and store.put_tensor("negated", negated) == 0
    assert is_same(store.get_tensor("negated"), negated.resolve_neg())


@needs_torch
def test_forms_of_put(store):
    one, two, config = torch.arange(6), torch.rand(5), ReplicateConfig()
    config.with_hard_pin = True
    assert store.put_tensor("k", one) == 0 == store.put_tensor("k", two) and is_same(store.get_tensor("k"), one)
    assert store.upsert_tensor("k", two) == 0 and is_same(store.get_tensor("k"), two)
    assert store.pub_tensor("p", one, config) == 0 == store.upsert_pub_tensor("q", two, config)
    assert store.batch_put_tensor(["a", "b", "c"], [one, 5, two]) == [0, -600, 0]
    assert store.batch_pub_tensor(["d"], [one]) == store.batch_upsert_pub_tensor(["d"], [two], config) == [0]
    assert store.batch_upsert_tensor(["d"], [one]) == [0] and store.batch_put_tensor(["a", "b"], [one]) == [-600, -600]
    found = store.batch_get_tensor(["a", "absent", "c", "d", "p", "q"])
    assert found[1] is None and all(is_same(f, v) for f, v in zip(found, (one, None, two, one, one, two)) if v is not None)
    assert store.batch_get_tensor([]) == store.batch_put_tensor([], []) == []
    header, address, size, owner = _serialize_tensor(one)
    assert (header, address, size) == (store.get("a")[:304], one.data_ptr(), 48) and is_same(owner, one)
    assert is_same(_deserialize_tensor(store.get("a")), one)
    for bad in (b"", b"x" * 400, store.get("a")[:-1]):
        with pytest.raises(ValueError):
            _deserialize_tensor(bad)
    with pytest.raises(TypeError):
        _serialize_tensor(5)


@needs_torch
def test_shards(store):
    value = torch.arange(24, dtype=torch.int32).reshape(4, 6)
    for split, ranks in ((0, 2), (1, 3)):
        key = f"t{split}"
        assert store.put_tensor_with_tp(key, value, 0, ranks, split) == 0 and store.is_exist(key) == 0
        for rank, part in enumerate(value.chunk(ranks, split)):
            assert is_same(store.get_tensor_with_tp(key, rank, ranks, split), part.contiguous())
            assert is_same(store.get_tensor(f"{key}_tp_{rank}"), part.contiguous())
    assert words(store.get("t1_tp_1")[:304]) == SHARD
    assert store.get_tensor_with_tp("t1", 7, 3) is None and store.get_tensor_with_tp("t1") is None
    assert [t is None for t in store.batch_get_tensor_with_tp(["t0", "absent"], 1, 2)] == [False, True]
    assert store.put_tensor_with_tp("whole", value) == 0 and is_same(store.get_tensor_with_tp("whole"), value)
    for ranks, split in ((3, 0), (2, 2), (2, -1), (5, 1)):
        assert store.put_tensor_with_tp("bad", value, 0, ranks, split) == -600
    assert store.put_tensor_with_tp("bad", torch.rand(0, 2), 0, 2) == store.put_tensor_with_tp("bad", 5, 0, 2) == -600
    assert store.pub_tensor_with_tp("p", value, ReplicateConfig(), 0, 2) == 0
    assert store.batch_put_tensor_with_tp(["x", "y"], [value, 5], 0, 2) == [0, -600] == store.batch_pub_tensor_with_tp(
        ["x2", "y2"], [value, None], ReplicateConfig(), 0, 2)
    assert store.batch_put_tensor_with_tp(["x", "y"], [value], 0, 2) == [-600, -600]
    assert store.put_tensor_with_tp(b"bytes", value, 0, 2) == 0 and store.is_exist(b"bytes_tp_1") == 1


@needs_torch
def test_in_registered_memory(store):
    value = torch.arange(24, dtype=torch.int32).reshape(4, 6)
    memory = Memory(store, MIB)
    at = memory.at
    assert store.put_tensor("k", value) == 0
    got = store.get_tensor_into("k", at, MIB)
    assert is_same(got, value) and got.data_ptr() == at + 304
    assert is_same(store.get_tensor_into("k", at, 400), value) and store.get_tensor_into("k", at, 399) is None
    for ptr, size in ((0, MIB), (4096, 400), (at + MIB - 100, 400)):
        assert store.get_tensor_into("k", ptr, size) is None and store.put_tensor_from("bad", ptr, size) == -600
    assert store.get_tensor_into("absent", at, MIB) is None
    one, none = store.batch_get_tensor_into(["k", "absent"], [at, at + 4096], [4096, 4096])
    assert is_same(one, value) and none is None and store.batch_get_tensor_into(["k"], [at, at], [1]) == [-600]
    for size in (0, 303, 399, 401, MIB, 1 << 62):
        assert store.put_tensor_from("bad", at, size) == -600
    assert store.put_tensor_from("copy", at, 400) == 0 and is_same(store.get_tensor("copy"), value)
    assert store.batch_put_tensor_from(["c", "d", "e"], [at, at + 8192, at], [400] * 3) == [0, -600, 0]
    assert store.upsert_tensor_from("k", at, 400) == 0 and store.batch_upsert_tensor_from(["k"], [at], [400]) == [0]
    assert store.batch_put_tensor_from(["c"], [at], []) == [-600] and is_same(store.get_tensor("e"), value)
    assert store.put_tensor_with_tp_from("t", at, 400, 0, 2, 0) == 0
    assert store.batch_put_tensor_with_tp_from(["u", "v"], [at, 64], [400, 400], 0, 2, 1) == [0, -600]
    assert store.put_tensor_with_tp_from("w", at, 400) == 0 and is_same(store.get_tensor("w"), value)
    assert is_same(store.get_tensor_with_tp_into("t", at, 4096, 1, 2), value[2:])
    [half] = store.batch_get_tensor_with_tp_into(["u"], [at], [4096], 1, 2)
    assert is_same(half, value[:, 3:].contiguous())


@needs_torch
def test_elsewhere(store, tmp_path):
    value, file = torch.arange(6), str(tmp_path / "x.safetensors")
    assert store.put_tensor("k", value) == 0
    assert store.get_tensor_into_cuda("k", value) == -600 and store.batch_get_tensor_into_cuda(["k"], []) == [-600]
    assert store.save_tensor_to_safetensor("absent", file) == -704
    if importlib.util.find_spec("safetensors") is None:
        assert store.save_tensor_to_safetensor("k", file) == -600 and store.load_tensor_from_safetensor("l", file) is None
    else:
        assert store.save_tensor_to_safetensor("k", file) == 0 and is_same(store.load_tensor_from_safetensor("l", file), value)
        assert is_same(store.get_tensor("l"), value) and store.load_tensor_from_safetensor("m", "/none") is None
    with pytest.raises(TypeError):
        store.load_tensor_from_safetensor("k")


@needs_torch
def test_before_setup_and_after_close(pool):
    handle, value = MooncakeDistributedStore(), torch.arange(3)
    for state in ("new", "closed"):
        assert handle.put_tensor("k", value) == handle.put_tensor_with_tp("k", torch.arange(4), 0, 2) == -600
        assert handle.put_tensor_from("k", 64, 400) == handle.put_tensor_with_tp_from("k", 64, 400, 0, 2) == -600
        assert handle.get_tensor("k") is None and handle.batch_get_tensor(["k"]) == [None]
        assert handle.get_tensor_into("k", 64, 400) is None
        if state == "new":
            assert handle.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", pool.addr) == 0
        assert handle.close() == 0


@needs_torch
def test_a_tensor_outlives_its_store(pool):
    handle = make(pool.addr)
    assert handle.put_tensor("a", torch.arange(5)) == 0 == handle.put_tensor("b", torch.arange(7))
    one, [two, _] = handle.get_tensor("a"), handle.batch_get_tensor(["b", "a"])
    assert handle.close() == 0
    del handle
    assert one.tolist() == list(range(5)) and two.tolist() == list(range(7))
