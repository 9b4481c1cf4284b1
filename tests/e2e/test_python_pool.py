# SPDX-License-Identifier: Apache-2.0
"""The package kvpool, in this interpreter, which has the wheel installed (stage `python` of tests/run)."""
import array
import os
import pickle
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import kvpool
from conftest import own_s, wait_until
from kvpool import _kvpool


@pytest.fixture
def pool_here(pool):
    with kvpool.Pool(pool.addr, name="here") as handle:
        yield handle


def block(seed, size):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


@pytest.mark.pool(nodes=1)
def test_bytes_come_back(pool_here):
    for size in (1, 100, 4096, 4097, 1 << 20):
        value = block(size, size).tobytes()
        pool_here.put(f"k{size}", value)
        assert pool_here.get(f"k{size}") == value
        assert pool_here.size(f"k{size}") == size
        target = np.zeros(size + 7, np.uint8)
        assert pool_here.get_into(f"k{size}", target) == size
        assert target[:size].tobytes() == value and not target[size:].any()
    assert "k1" in pool_here and "absent" not in pool_here


@pytest.mark.pool(nodes=1)
def test_errors_say_why_no_master_is_reached(pool, pool_here):
    with pytest.raises(kvpool.UnreachableError, match="127.0.0.1:1: Connection refused"):
        kvpool.Pool("127.0.0.1:1", deadline=0.3)
    with pytest.raises(kvpool.UnreachableError, match="no-such-host.invalid:1: the name does not resolve"):
        kvpool.Pool("no-such-host.invalid:1", deadline=60)
    pool.master.kill9()
    refused = f"no session with master {pool.addr}: Connection refused"
    with pytest.raises(kvpool.UnreachableError, match=refused):
        pool_here.put("k", b"x", deadline=0.3)
    with pytest.raises(kvpool.UnreachableError, match=refused):
        pool_here.exists("k", deadline=0.3)
    value = block(1, 8)
    pool_here.register(value)
    assert refused in str(pool_here.put_many(["k"], [value], deadline=0.3)[0])


@pytest.mark.pool(nodes=1)
def test_keys_are_text_or_bytes(pool_here):
    pool_here.put("ключ", b"1")
    assert pool_here.get("ключ".encode()) == b"1"
    pool_here.put(b"\xff\x00", b"2")
    assert pool_here.get(b"\xff\x00") == b"2"
    assert sorted(pool_here.list()) == sorted([("ключ".encode(), 1), (b"\xff\x00", 1)])
    for key in (5, None, ["a"], bytearray(b"a"), 1.5):
        with pytest.raises(TypeError):
            pool_here.put(key, b"x")
    with pytest.raises(UnicodeEncodeError):
        pool_here.put("\ud800", b"x")
    for key in ("", "x" * 1025, "x" * 10_000_000):
        with pytest.raises(kvpool.InvalidError):
            pool_here.put(key, b"x")


@pytest.mark.pool(nodes=1)
def test_values_are_whatever_has_memory(pool_here):
    numbers = array.array("d", [1.5, -2.0, 3.25])
    for i, value in enumerate([b"bytes", bytearray(b"bytearray"), memoryview(b"view"), numbers, np.arange(12.0).reshape(3, 4)]):
        pool_here.put(f"v{i}", value)
        assert pool_here.get(f"v{i}") == memoryview(value).tobytes()
    back = np.zeros((3, 4))
    pool_here.get_into("v4", back)
    assert (back == np.arange(12.0).reshape(3, 4)).all()
    for value in ("text", 5, None, [1, 2]):
        with pytest.raises(TypeError):
            pool_here.put("bad", value)
    frozen = np.zeros(5, np.uint8)
    frozen.flags.writeable = False
    for strided in (np.arange(12).reshape(3, 4)[:, ::2], np.arange(12).reshape(3, 4).T, memoryview(b"abcdef")[::2]):
        with pytest.raises(BufferError, match="not contiguous"):
            pool_here.put("bad", strided)
    with pytest.raises(BufferError, match="not contiguous"):
        pool_here.get_into("v0", np.zeros(20, np.uint8)[::2])
    for target in (b"read-only", frozen, memoryview(b"bytes")):
        with pytest.raises(BufferError, match="read-only"):
            pool_here.get_into("v0", target)
    assert not frozen.any()
    with pytest.raises(kvpool.InvalidError, match="the value is empty"):
        pool_here.put("bad", b"")
    pool_here.register(numbers)
    for empty in (b"", [], [b"", numbers[:0]]):
        [failed] = pool_here.put_many(["bad"], [empty])
        assert isinstance(failed, kvpool.InvalidError) and "the value is empty" in str(failed)


@pytest.mark.pool(nodes=1)
def test_errors_have_a_name_and_a_key(pool_here):
    with pytest.raises(kvpool.NotFoundError) as e:
        pool_here.get("absent")
    assert (e.value.name, e.value.key, e.value.number) == ("NOT_FOUND", "absent", -2)
    assert "absent" in str(e.value) and isinstance(e.value, KeyError)
    pool_here.put("there", b"four")
    with pytest.raises(kvpool.InvalidError) as e:
        pool_here.get_into("there", bytearray(3))
    assert e.value.name == "BUFFER_SMALL"
    for cls, names in kvpool.errors._CLASSES.items():
        for name in names:
            assert type(kvpool.errors.error(_kvpool.errors[name][0])) is cls


@pytest.mark.pool(nodes=1)
def test_many_at_once(pool_here):
    values, targets = block(1, 64 * 4096).reshape(64, 4096), np.zeros((64, 4096), np.uint8)
    pool_here.register(values)
    pool_here.register(targets)
    keys = [f"m{i}" for i in range(64)]
    assert pool_here.put_many(keys, list(values)) == [None] * 64
    assert pool_here.get_many(keys, list(targets)) == [4096] * 64
    assert (values == targets).all()
    # Parts: an object of many pieces, read into other ones.
    assert pool_here.put_many(["parts"], [[values[0][:100], values[0][100:]]]) == [None]
    targets[:] = 0
    assert pool_here.get_many(["parts"], [(targets[0][:4000], targets[0][4000:])]) == [4096]
    assert (targets[0] == values[0]).all()
    length, error = pool_here.get_many(["m1", "absent"], [targets[1], targets[2]])
    assert length == 4096 and isinstance(error, kvpool.NotFoundError) and error.key == "absent"
    assert pool_here.exists_many(["m1", "absent"]) == [True, False]
    gone, error = pool_here.remove_many(["m1", "absent"])
    assert gone is None and isinstance(error, kvpool.NotFoundError) and "m1" not in pool_here
    with pool_here.lookup(["m2"]):
        error, gone = pool_here.remove_many(["m2", "m3"])
        assert isinstance(error, kvpool.HeldError) and gone is None and pool_here.remove_many([]) == []
        assert pool_here.remove_many(["m2"], force=True) == [None]
    error, = pool_here.put_many(["loose"], [b"not registered"])
    assert error.name == "NOT_REGISTERED"
    for bad in ([values[0]], [values[0], values[1], values[2]]):
        with pytest.raises(ValueError):
            pool_here.put_many(["a", "b"], bad)
    for bad in ("ab", 5, None):
        with pytest.raises(TypeError):
            pool_here.exists_many(bad)
    pool_here.unregister(values)
    error, = pool_here.put_many(["loose"], [values[0]])
    assert error.name == "NOT_REGISTERED"


@pytest.mark.pool(nodes=1)
def test_ten_thousand_keys(pool_here):
    keys = [f"key/{i}" for i in range(10_000)]
    pool_here.put(keys[7], b"x")
    found = pool_here.exists_many(keys)
    assert len(found) == 10_000 and found.count(True) == 1 and found[7]


@pytest.mark.pool(nodes=1)
def test_views(pool_here):
    value = block(9, 100_000)
    pool_here.put("v", value)
    with pool_here.view("v") as memory:
        assert memory.readonly and len(memory) == 100_000 and (np.frombuffer(memory, np.uint8) == value).all()
        with pytest.raises(kvpool.HeldError):
            pool_here.remove("v")
    with pytest.raises(kvpool.NotFoundError):
        with pool_here.view("v"):
            pool_here.put("v", b"other", upsert=True)
    with pytest.raises(kvpool.NotFoundError):
        pool_here.view("absent")
    view = pool_here.view("v")
    mine = np.frombuffer(view.memory, np.uint8)
    for end in (view.release, pool_here.close):
        with pytest.raises(BufferError):
            end()
    del mine
    view.release()
    view.release()
    late = pool_here.view("v")
    late.memory.release()
    pool_here.close()
    with pytest.raises(BufferError):
        memoryview(late._raw)
    with pytest.raises(kvpool.ClosedError):
        late.release()


@pytest.mark.pool(nodes=1)
def test_types_of_the_extension_stay_as_they_are(pool_here):
    """Types that are made at run time behave as static ones, and an object that is freed gives its type back."""
    pool_here.put("v", bytes(4096))
    makers = [_kvpool.Pool, _kvpool.Peer, lambda: _kvpool.Span(0, 0, None), lambda: _kvpool.Asker(pool_here._raw),
              lambda: _kvpool.Job(pool_here._raw, bytes(16) + b"\1" + bytes(7), b"x@", [b"h"], [0]),
              lambda: pool_here._raw.view("v", 5000)]
    for make, name in zip(makers, ("Pool", "Peer", "Span", "Asker", "Job", "View")):
        kind = type(make())
        assert (kind.__module__, kind.__qualname__, repr(kind)) == ("kvpool._kvpool", name, f"<class 'kvpool._kvpool.{name}'>")
        users = sys.getrefcount(kind)
        for _ in range(100):
            make()
        assert sys.getrefcount(kind) == users
        if sys.version_info >= (3, 10):
            with pytest.raises(TypeError, match="immutable type"):
                kind.more = 1
    if sys.version_info >= (3, 10):
        with pytest.raises(TypeError, match="cannot create 'kvpool._kvpool.View' instances"):
            kind()


@pytest.mark.pool(nodes=1)
def test_a_view_that_two_threads_release(pool_here):
    """Fails if both give back what one had."""
    pool_here.put("v", bytes(4096))
    for _ in range(300):
        view = pool_here.view("v")
        other = threading.Thread(target=view.release)
        other.start()
        view.release()
        other.join()


@pytest.mark.pool(nodes=1)
def test_registered_memory_stays(pool_here):
    """Fails if what is registered can be resized or closed meanwhile."""
    memory = bytearray(8192)
    pool_here.register(memory)
    with pytest.raises(BufferError):
        memory.extend(bytes(1 << 20))
    pool_here.unregister(memory)
    memory.extend(b"x")


@pytest.mark.pool(nodes=1)
def test_why_memory_is_not_registered(pool_here):
    memory = bytearray(8192)
    pool_here.register(memory)
    for again in (memory, memoryview(memory)[100:200]):
        with pytest.raises(kvpool.InvalidError, match="registered already"):
            pool_here.register(again)
    with pytest.raises(kvpool.InvalidError, match="it is empty"):
        pool_here.register(bytearray())
    pool_here.unregister(memory)
    pool_here.register(memory)


@pytest.mark.pool(nodes=1)
def test_reservations(pool_here):
    for i in range(4):
        pool_here.put(f"r{i}", b"x")
    with pool_here.longest_prefix(["r0", "r1", "absent", "r2"], ttl=60) as r:
        assert (r.found, r.granted) == (2, 2) and 0 < r.ttl <= 120
        with pytest.raises(kvpool.HeldError):
            pool_here.remove("r0")
    pool_here.remove("r0")
    r = pool_here.lookup(["r0", "r1"])
    assert r.present == [False, True]
    r.release()
    r.release()


@pytest.mark.pool(nodes=1)
def test_removal_and_the_whole(pool_here):
    for i in range(20):
        pool_here.put(f"a{i}" if i % 2 else f"b{i}", b"x")
    assert pool_here.remove_matching("^a") == (10, 0)
    with pytest.raises(kvpool.InvalidError):
        pool_here.remove_matching("(")
    assert len(list(pool_here.list("b", page=3))) == 10
    assert pool_here.bump() == 1
    assert list(pool_here.list()) == []
    pool_here.put("c", b"1")
    pool_here.put("c", b"2")
    assert pool_here.get("c") == b"1"
    pool_here.put("c", b"2", upsert=True, wait=True)
    assert pool_here.get("c") == b"2"
    assert pool_here.remove_all() == (1, 0)
    with pytest.raises(kvpool.NotFoundError):
        pool_here.remove("c")
    assert pool_here.stat()["pool"]["objects"] == 0


@pytest.mark.pool(nodes=0)
def test_a_process_gives_memory(pool):
    with kvpool.Pool(pool.addr, memory="32MiB", chunk="8MiB") as one, kvpool.Pool(pool.addr) as other:
        one.put("k", b"value")
        assert other.get("k") == b"value"
        assert other.stat()["pool"]["size_bytes"] == 32 << 20


@pytest.mark.pool(nodes=1)
def test_what_is_no_pattern_removes_nothing(pool_here):
    pool_here.put("a", b"x")
    with pytest.raises(TypeError):
        pool_here.remove_matching(None, force=True)
    assert pool_here.get("a", deadline=1e9) == b"x"


def test_numbers_that_do_not_fit():
    for number in (-1, 2**32):
        with pytest.raises(ValueError, match="32 bits"):
            kvpool.Pool(locations=number)
    for number in (2**64, 2**64 + (32 << 20)):
        for what in ("memory", "chunk"):
            with pytest.raises(OverflowError):
                kvpool.Pool("127.0.0.1:1", deadline=0.1, **{what: number})


@pytest.mark.pool(nodes=1)
def test_numbers_of_calls_that_do_not_fit(pool_here):
    """One that is cut would be another call: one copy, a page of five, no flag."""
    for replicas in (-1, 2**32, 2**32 + 1, 2**64 + 1):
        for call in (lambda: pool_here.put("k", b"x", replicas=replicas), lambda: pool_here.put_many(["k"], [b"x"], replicas=replicas)):
            with pytest.raises(OverflowError):
                call()
    assert not pool_here.exists("k")
    with pytest.raises(OverflowError):
        next(pool_here.list(page=2**32 + 5))


@pytest.mark.pool(nodes=0)
def test_an_open_that_fails_ends_no_other(pool):
    """Two threads open one handle: the first waits for a master that does not answer."""
    raw = _kvpool.Pool()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        failed = []
        thread = threading.Thread(target=lambda: failed.append(raw.open(at, None, None, None, 1000, 0, 0, None, 0, None, 0, 0)[0]))
        thread.start()
        silent.accept()[0].close()  # it is under way, and tries again
        assert raw.open(pool.addr, None, None, None, 0, 0, 0, None, 0, None, 0, 0) == (0, "")
        thread.join(10)
    assert failed[0] < 0
    assert raw.exists("k", 0) == 0
    assert raw.open(pool.addr, None, None, None, 0, 0, 0, None, 0, None, 0, 0)[1] == "the pool is open already"
    assert raw.close() == 0


def test_what_is_wrong_is_said():
    with pytest.raises(kvpool.UnreachableError):
        kvpool.Pool("127.0.0.1:1", deadline=0.5)
    with pytest.raises(kvpool.InvalidError) as e:
        kvpool.Pool("no port")
    assert "port" in str(e.value)
    for size in ("5 apples", "", "1.5GiB", "4XB", "GiB"):
        with pytest.raises(ValueError, match="not a size"):
            kvpool.Pool(memory=size)


@pytest.mark.pool(nodes=1)
def test_times_below_zero(pool, pool_here):
    """They were a millisecond."""
    for bad in (-1, -0.001, float("-inf"), float("nan")):
        for call in (lambda: kvpool.Pool(pool.addr, deadline=bad), lambda: pool_here.get("k", deadline=bad),
                     lambda: pool_here.put("k", b"x", deadline=bad), lambda: pool_here.lookup(["k"], ttl=bad)):
            with pytest.raises(ValueError, match="0 or more"):
                call()
    assert not pool_here.exists("k", deadline=float("inf"))


def test_errors_show_their_names():
    """As they are shown in a list of results, and behind a pickle."""
    for e, text in ((kvpool.errors.error(-5), None), (kvpool.InvalidError(_kvpool.errors["BAD_KEY"][0], b"k"), "InvalidError(BAD_KEY, key=b'k')"),
                    (kvpool.NotFoundError(_kvpool.errors["NOT_FOUND"][0], "k", "gone"), "NotFoundError(NOT_FOUND, key='k', detail='gone')"),
                    (kvpool.InvalidError(_kvpool.errors["INVALID"][0]), "InvalidError(INVALID)")):
        assert repr(e) == (text or f"{type(e).__name__}({e.name})")
        again = pickle.loads(pickle.dumps(e))
        assert repr(again) == repr(e) and str(again) == str(e) and type(again) is type(e)


@pytest.mark.pool(nodes=1)
def test_closed(pool):
    handle = kvpool.Pool(pool.addr)
    handle.close()
    handle.close()
    for call in (lambda: handle.get("k"), lambda: handle.put("k", b"x"), lambda: handle.exists_many(["k"]),
                 lambda: handle.stat(), lambda: handle.remove_all()):
        with pytest.raises(kvpool.ClosedError):
            call()


@pytest.mark.pool(nodes=1)
def test_other_threads_run_meanwhile(pool):
    """A call that waits holds nobody up: the node is stopped, so a get takes its whole deadline."""
    pool.put("k", b"x")
    with kvpool.Pool(pool.addr, transports="tcp") as handle:
        pool.nodes[0].freeze()
        counted = 0

        def get():
            with pytest.raises(kvpool.Error):
                handle.get("k", deadline=3)

        thread = threading.Thread(target=get)
        thread.start()
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            counted += 1
        assert counted > 10_000
        thread.join(10)
        pool.nodes[0].thaw()


@pytest.mark.pool(nodes=1)
def test_rounds_of_a_get_share_its_deadline(pool):
    """The first learns that the object is longer than guessed, from a master that was stopped for a while; the second waits for its
    node, which still is. Together they have one deadline."""
    pool.put("short", b"x")
    pool.put("long", b"x" * 100_000)
    with kvpool.Pool(pool.addr, transports="tcp") as handle:
        assert handle.get("short") == b"x"  # it has met the node
        pool.nodes[0].freeze()
        pool.master.freeze()
        thaw = threading.Timer(4, pool.master.thaw)
        thaw.start()
        began, began_own = time.monotonic(), own_s()
        try:
            with pytest.raises(kvpool.DeadlineError):
                handle.get("long", deadline=8)
            assert time.monotonic() - began > 7 and own_s() - began_own < 11.5
        finally:
            thaw.join()
            pool.nodes[0].thaw()


def test_programs_of_the_wheel(bench):
    folder = os.path.dirname(sys.executable)
    for name in ("kvpool", "kvpool-conductor", "kvpool-keeper", "kvpool-master", "kvpool-node"):
        out = subprocess.run([f"{folder}/{name}", "--version"], capture_output=True, text=True, timeout=30)
        assert out.returncode == 0 and kvpool.__version__ in out.stdout
    mooncakes = [[f"{folder}/{name}"] for name in ("mooncake_master", "mooncake_client", "mooncake_http_metadata_server", "mc_store_rest_server")]
    for program in (*mooncakes, [sys.executable, "-m", "mooncake.vllm_v1_proxy_server"]):
        out = subprocess.run([*program, "--version"], capture_output=True, text=True, timeout=30)
        assert out.returncode == 0 and kvpool.__version__ in out.stdout, program
    done = subprocess.run([f"{folder}/kvpool", "no-such-verb"], capture_output=True, timeout=30)
    assert done.returncode == 2


@pytest.mark.pool(nodes=0)
def test_a_get_that_keeps_a_copy_here(pool):
    """Fails if get, get_into or get_many with keep_here makes no copy on the reader's host."""
    pool.add_node("a", "64MiB", "--host-id", "host-a")
    target = np.zeros(1000, np.uint8)
    with kvpool.Pool(pool.addr, host_id="host-b") as handle:
        for key in ("one", "into", "many"):
            handle.put(key, block(1, 1000))
        pool.add_node("b", "64MiB", "--host-id", "host-b")
        handle.register(target)
        handle.get("one", keep_here=True)
        assert handle.get_into("into", target, keep_here=True) == 1000
        assert handle.get_many(["many"], [target], keep_here=True) == [1000]
        for key in ("one", "into", "many"):
            wait_until(lambda key=key: {copy["node"] for copy in handle.where(key)["copies"]} == {"a", "b"}, 30, f"the copy of {key}")
