# SPDX-License-Identifier: Apache-2.0
"""mooncake.store: tensors that ranks share, put and read by their parallelism. Without torch what needs none: arguments and manifests."""
import struct
from types import SimpleNamespace

import pytest

from mooncake import _tensor_format
from mooncake.store import MooncakeDistributedStore, ParallelAxis, ReadTarget, TensorParallelism
from stores import MIB, Memory
from test_python_replicate import config
from test_python_tensors import HAS_TORCH, is_same, needs_torch

if HAS_TORCH:
    import torch

# What mooncake 0.3.13 wrote: of a float32 tensor of 3 x 14 x 2 in 7 parts along dimension 1; and the axes in the header of rank 1 of 2
# of tensor parallelism (dimension 0 of 4 x 2), which was named before rank 0 of 2 of data parallelism.
MANIFEST = bytes.fromhex("4e414d5701006000" "0000000003000000" "0100000007000000" "0000000000000000" "0300000000000000" "0e00000000000000"
                         "0200000000000000") + b"\xff" * 40
AXES = bytes.fromhex("010000000000000001000000020000000000000000000000" "0200000000000000" "000000000100000000000000" "02000000ffffffff")


def axis(kind, rank, size, split_dim=None, expert_id=None, stage_id=None):
    made = ParallelAxis()
    made.kind, made.rank, made.size = kind, rank, size
    made.split_dim, made.expert_id, made.stage_id = split_dim, expert_id, stage_id
    return made


def by(*axes):
    made = TensorParallelism()
    made.axes = list(axes)
    return made


def tp(rank, size, split_dim=0):
    return by(axis("tp", rank, size, split_dim))


def target(mode, parallelism=None):
    made = ReadTarget()
    made.mode, made.parallelism = mode, parallelism
    return made


def test_manifests():
    assert _tensor_format.pack_manifest(0, [3, 14, 2], 1, 7) == MANIFEST
    assert _tensor_format.unpack_manifest(MANIFEST, 7) == (0, [3, 14, 2], 1, 7) and _tensor_format.unpack_manifest(MANIFEST, 6) is None
    for at, word in ((0, 1), (4, 1), (8, 15), (8, -1), (12, 0), (12, 9), (12, -1), (16, 3), (16, -1), (20, 0), (20, -7), (20, 3), (36, -1)):
        bad = bytearray(MANIFEST)
        struct.pack_into("<i", bad, at, word)
        assert _tensor_format.unpack_manifest(bad, 4096) is None, (at, word)
    for length in (0, 95, 97):
        assert _tensor_format.unpack_manifest(MANIFEST.ljust(length)[:length], 4096) is None


def test_arguments():
    made = ParallelAxis()
    assert (made.kind, made.rank, made.size, made.split_dim, made.expert_id, made.stage_id) == ("", 0, 1, None, None, None)
    assert TensorParallelism().axes == [] and (ReadTarget().mode, ReadTarget().parallelism) == ("as_stored", None)
    for of, name, value in ((made, "rank", "x"), (made, "size", None), (made, "kind", 7), (made, "split_dim", 1.5), (made, "rank", True),
                            (TensorParallelism(), "axes", 7), (TensorParallelism(), "axes", [7]), (ReadTarget(), "mode", 7),
                            (ReadTarget(), "parallelism", 7)):
        with pytest.raises(TypeError):
            setattr(of, name, value)
    with pytest.raises(RuntimeError):
        ReadTarget().mode = "sideways"
    with pytest.raises(AttributeError):
        made.other = 1


def test_without_tensors(pool):
    store = MooncakeDistributedStore()
    for _ in range(2):
        assert store.put_tensor_with_parallelism("k", 7, tp(0, 2)) == store.put_tensor_with_parallelism_from("k", 64, 400) == -600
        assert store.batch_upsert_tensor_with_parallelism(["k", "l"], [7, 7]) == [-600, -600]
        for mode in ("as_stored", "full", "shard"):
            assert store.get_tensor_with_parallelism("k", target(mode, tp(0, 2))) is None
            assert store.batch_get_tensor_with_parallelism_into(["k"], [64], [400], [target(mode)]) == [None]
        if store.health_check() == 1:
            assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", pool.addr) == 0
    assert store.close() == 0


def full(value):
    return torch.arange(value).reshape(-1, 4).float()


@needs_torch
def test_ranks_put_their_shards(store):
    whole = full(48)  # 12 x 4
    for rank, part in enumerate(whole.chunk(3)):
        assert store.get_tensor_with_parallelism("k", target("full", tp(0, 3))) is None
        assert store.put_tensor_with_parallelism("k", part, tp(rank, 3)) == 0
    assert store.is_exist("k") == 0 and is_same(store.get_tensor_with_tp("k", 1, 3), whole[4:8])
    assert store.get("k_tp_1")[168:208] == struct.pack("<i4xiiiiiiq", 1, 1, 0, 1, 3, 0, 0, 4)
    assert is_same(store.get_tensor_with_parallelism("k", target("as_stored", tp(2, 3))), whole[8:])
    for size in (1, 2, 3, 4, 6, 12):  # other divisions than that which was put
        assert is_same(store.get_tensor_with_parallelism("k", target("full", tp(0, size))), whole)
        for rank, part in enumerate(whole.chunk(size)):
            assert is_same(store.get_tensor_with_parallelism("k", target("shard", tp(rank, size))), part)
    for rank, part in enumerate(whole.chunk(2, 1)):
        assert is_same(store.get_tensor_with_parallelism("k", target("shard", tp(rank, 2, 1))), part.contiguous())
    for bad in (tp(0, 5), tp(0, 2, 2), tp(0, 2, 9), tp(2, 2), by(axis("tp", 0, 2)), by()):
        assert store.get_tensor_with_parallelism("k", target("shard", bad)) is None
    assert store.get_tensor_with_parallelism("k") is None is store.get_tensor_with_parallelism("k", target("full"))
    # One that is gone; and what it had no part in.
    assert store.remove("k_tp_1", True) == 0
    assert store.get_tensor_with_parallelism("k", target("full", tp(0, 3))) is None
    assert is_same(store.get_tensor_with_parallelism("k", target("shard", tp(5, 6))), whole[10:])
    # What put_tensor_with_tp has made has no manifest.
    assert store.put_tensor_with_tp("t", whole, 0, 3) == 0
    assert is_same(store.get_tensor_with_parallelism("t", target("full", tp(0, 4))), whole)
    assert is_same(store.get_tensor_with_parallelism("t", target("shard", tp(1, 4))), whole[3:6])


@needs_torch
def test_several_axes(store):
    whole = full(16)
    names = {"g__dp_1of2": by(axis("dp", 1, 2)), "h__ep_1of2_eid3": by(axis("ep", 1, 2, expert_id=3)),
             "i__pp_1of2_sid1": by(axis("pp", 1, 2, stage_id=1))}
    for name, parallelism in names.items():
        assert store.put_tensor_with_parallelism(name[0], whole, parallelism) == 0 and is_same(store.get_tensor(name), whole)
        for mode in ("as_stored", "shard", "full"):
            assert is_same(store.get_tensor_with_parallelism(name[0], target(mode, parallelism)), whole)
    every = by(axis("pp", 0, 2, stage_id=4), axis("ep", 1, 2, expert_id=5), axis("dp", 0, 2), axis("tp", 1, 2, 1))
    assert store.put_tensor_with_parallelism("j", whole, every) == 0
    assert is_same(store.get_tensor("j__dp_0of2__tp_1of2_sd1__ep_1of2_eid5__pp_0of2_sid4"), whole[:, 2:].contiguous())
    # As the reference has it, of the whole 4 x 2 given.
    two = [by(axis("tp", rank, 2, 0), axis("dp", 0, 2)) for rank in range(2)]
    small = torch.arange(8.).reshape(4, 2)
    assert store.put_tensor_with_parallelism("m", small, two[1]) == 0
    head = store.get("m__dp_0of2__tp_1of2_sd0")[:304]
    assert struct.unpack_from("<i", head, 168) == (2,) and head[176:].rstrip(b"\0") == AXES
    assert store.get_tensor_with_parallelism("m", target("full", two[0])) is None
    assert store.put_tensor_with_parallelism("m", small, two[0]) == 0
    assert is_same(store.get_tensor_with_parallelism("m", target("full", two[0])), small)
    four = by(axis("dp", 0, 2), axis("tp", 3, 4, 0))
    assert is_same(store.get_tensor_with_parallelism("m", target("shard", four)), small[3:])


@needs_torch
def test_writers(store):
    whole = full(32)
    for rank in range(2):
        assert store.get_tensor_with_parallelism("w", target("full")) is None
        writer = axis("", rank, 2, 0) if rank else SimpleNamespace(rank=0, size=2, split_dim=0)
        assert store.put_tensor_with_parallelism("w", whole, writer_partition=writer) == 0
    assert is_same(store.get_tensor("w__writer_1of2_sd0"), whole[4:]) and store.get("w__writer_manifest")[:4] == b"NAMW"
    assert is_same(store.get_tensor_with_parallelism("w", target("full")), whole)
    for size in (2, 4):
        assert is_same(store.get_tensor_with_parallelism("w", target("shard", tp(1, size))), whole.chunk(size)[1])
    assert store.get_tensor_with_parallelism("w") is None
    for bad in (7, (0, 2, 0), axis("", 0, 3, 0), axis("", 2, 2, 0), axis("", 0, 2, 2), axis("", 0, 2)):
        assert store.put_tensor_with_parallelism("bad", whole, writer_partition=bad) == -600
    assert store.put_tensor_with_parallelism("bad", whole, tp(0, 2), writer_partition=axis("", 0, 2, 0)) == -600


@needs_torch
def test_batches_and_terms(store):
    one, two = full(16), full(8)
    assert store.batch_put_tensor_with_parallelism(["a", "b", "c"], [one, two, 7], [tp(0, 1), None, None]) == [0, 0, -600]
    assert store.batch_put_tensor_with_parallelism(["d"], [one], None, config(with_hard_pin=True, group_ids=["g"])) == [0]
    got = store.batch_get_tensor_with_parallelism(["a", "b", "d", "absent"], [target("full", tp(0, 1)), None, target("as_stored"), None])
    assert [t is None for t in got] == [False, False, False, True] and is_same(got[0], one) and is_same(got[1], two)
    assert [t is None for t in store.batch_get_tensor_with_parallelism(["a", "b"])] == [True, False]
    assert store.batch_upsert_tensor_with_parallelism(["b"], [one]) == [0] and is_same(store.get_tensor("b"), one)
    assert store.upsert_tensor_with_parallelism("a", two, tp(0, 1)) == 0
    assert is_same(store.get_tensor_with_parallelism("a", target("full", tp(0, 1))), two)
    assert store.upsert_tensor_with_parallelism("a", one.double(), tp(1, 2, 1)) == 0  # the manifest, too
    assert store.get_tensor_with_parallelism("a", target("full", tp(0, 1))) is None  # rank 0 is of another kind
    for keys, tensors, more in ((["x", "y"], [one], {}), (["x"], [one], dict(parallelisms=[])), (["x"], [one], dict(parallelisms=tp(0, 2))),
                                (["x"], [one], dict(writer_partitions=[None] * 2)), (["x"], [one], dict(config=config(replica_num=0)))):
        assert store.batch_put_tensor_with_parallelism(keys, tensors, **more) == [-600] * len(keys)
    assert store.batch_get_tensor_with_parallelism(["a", "b"], [None]) == [None, None] == store.batch_get_tensor_with_parallelism(
        ["a", "b"], target("full"))
    assert store.get_tensor_with_parallelism("b", 7) is None
    for bad in (7, [1], by(), by(axis("tp", 0, 2)), by(axis("tp", 2, 2, 0)), by(axis("tp", 0, 2, 5)), by(axis("dp", 0, 2, 0)),
                by(axis("ep", 0, 2)), by(axis("pp", 0, 2)), by(axis("zp", 0, 2)), by(axis("tp", 0, 2, 0), axis("tp", 0, 2, 1)),
                by(axis("dp", 0, 0)), by(axis("dp", -1, 2)), by(axis("dp", 0, 1 << 40)), by(axis("dp", 0, 2), axis("tp", 0, 3, 0))):
        assert store.put_tensor_with_parallelism("bad", one, bad) == -600, bad
    with pytest.raises(TypeError):
        store.batch_put_tensor_with_parallelism("text", [one])


@needs_torch
def test_in_registered_memory(store):
    whole, memory = full(32), Memory(store, MIB)
    at, size = memory.at, 304 + 128
    assert store.put_tensor("k", whole) == 0 and is_same(store.get_tensor_with_parallelism_into("k", at, MIB), whole)
    assert store.put_tensor_with_parallelism_from("plain", at, size) == 0 and is_same(store.get_tensor("plain"), whole)
    assert store.put_tensor_with_parallelism_from("t", at, size, tp(1, 2)) == 0  # of all ranks
    assert is_same(store.get_tensor_with_parallelism("t", target("full", tp(0, 2))), whole)
    assert store.batch_put_tensor_with_parallelism_from(["u", "v"], [at, 64], [size] * 2, [by(axis("dp", 1, 2), axis("tp", 0, 2, 1))] * 2) == [0, -600]
    assert is_same(store.get_tensor("u__dp_1of2__tp_1of2_sd1"), whole[:, 2:].contiguous())
    assert store.put_tensor_with_parallelism_from("w", at, size, writer_partition=axis("", 1, 2, 0)) == 0
    assert is_same(store.get_tensor("w__writer_1of2_sd0"), whole[4:])
    assert store.upsert_tensor_with_parallelism_from("t", at, size, tp(0, 2)) == 0 == store.batch_upsert_tensor_with_parallelism_from(
        ["t"], [at], [size], [tp(0, 2)])[0]
    for length in (0, 303, size - 1, size + 1, MIB, 1 << 62):
        assert store.put_tensor_with_parallelism_from("bad", at, length, tp(0, 2)) == -600
    half = target("shard", tp(3, 4))
    got = store.get_tensor_with_parallelism_into("t", at + 4096, 304 + 32, half)
    assert is_same(got, whole[6:]) and got.data_ptr() == at + 4096 + 304
    assert store.put_tensor_from("again", at + 4096, 304 + 32) == 0 and is_same(store.get_tensor("again"), whole[6:])
    for ptr, length in ((at, 304 + 31), (64, MIB), (at + MIB - 100, MIB), (0, MIB)):
        assert store.get_tensor_with_parallelism_into("t", ptr, length, half) is None
    assert is_same(store.batch_get_tensor_with_parallelism_into(["t", "absent"], [at] * 2, [MIB] * 2, [half] * 2)[0], whole[6:])
    assert store.batch_get_tensor_with_parallelism_into(["t"], [at], [MIB], []) == [None]


@needs_torch
def test_what_lies(store):
    """Manifests and parts that others have put are not believed."""
    for manifest in (b"", b"x" * 96, _tensor_format.pack_manifest(0, [1 << 40, 4], 0, 4096), _tensor_format.pack_manifest(0, [8, 4], 0, 2),
                     _tensor_format.pack_manifest(14, [8, 4], 0, 4), _tensor_format.pack_manifest(0, [8, 4, 1], 0, 4)):
        assert store.upsert("k__parallelism_manifest", manifest or b"y") == 0 == store.upsert("k__writer_manifest", manifest or b"y")
        for rank in range(4):
            assert store.upsert_tensor("k_tp_%d" % rank, full(8)) == 0
        for mode in ("full", "shard"):
            found = store.get_tensor_with_parallelism("k", target(mode, tp(0, 1)))
            assert found is None, manifest
