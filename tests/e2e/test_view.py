# SPDX-License-Identifier: Apache-2.0
"""Views: an object's bytes where they lie, held while they are looked at, and STALE where they may have changed."""
import pytest

from clients import PATHS, Load, Shell
from conftest import wait_until

SIZE = 100_000


@pytest.fixture
def shm(pool):
    return Shell(pool.bench, pool.addr, "shm", **PATHS["shm"])


def test_view_shows_the_object(shm):
    """Fails if a view's bytes are not those that were put, or if it ends with anything but OK."""
    assert shm(f"put k {SIZE} version=7")["err"] == "OK"
    got = shm("view k")
    assert (got["err"], got["len"], got["version"], got["intact"]) == ("OK", SIZE, 7, True)
    assert shm("unview")["err"] == "OK"
    assert shm("unview")["err"] == "INVALID", "it was given back already"
    assert shm("view nothing")["err"] == "NOT_FOUND"


def test_view_holds_its_object(pool, shm):
    """Fails if what is looked at can be removed without force, or cannot be once the view has ended."""
    assert shm(f"put k {SIZE}")["err"] == "OK"
    assert shm("view k")["err"] == "OK"
    other = Shell(pool.bench, pool.addr, "other", **PATHS["shm"])
    assert other("remove k")["err"] == "HELD"
    assert shm("unview")["err"] == "OK"
    assert other("remove k")["err"] == "OK"


@pytest.mark.parametrize("master", ["idle", "busy"])
def test_ended_holds_are_over_for_everybody(pool, shm, master):
    """Fails if removals are refused for views or gets of another client that had ended before: also where the master has other
    things to read, which may lie between the two. Twice in 400 times the other client's thread may have had no processor for the
    release, which is not waited for.
    """
    loads = [Load(pool.bench, pool.addr, f"load{i}", putters=2, batch=16).ready() for i in range(2 * (master == "busy"))]
    other = Shell(pool.bench, pool.addr, "other", **PATHS["shm"])
    refused = 0
    for use in ("view k", "get k 1000 fresh=1") * 200:
        assert shm("put k 1000")["err"] == "OK"
        assert shm(use)["err"] == "OK"
        assert use != "view k" or shm("unview")["err"] == "OK"
        got = other("remove k")["err"]
        if got != "OK":
            refused += 1
            wait_until(lambda: other("remove k")["err"] == "OK", 5, f"the removal, which was refused with {got}")
    assert refused <= 2
    for load in loads:
        assert load.stop()["calls"] > 0


def test_view_is_stale_after_removal_by_force(pool, shm):
    """Fails if a view whose object was removed under it ends with OK."""
    assert shm(f"put k {SIZE}")["err"] == "OK"
    assert shm("view k")["err"] == "OK"
    other = Shell(pool.bench, pool.addr, "other", **PATHS["shm"])
    assert other("remove k force=1")["err"] == "OK"
    assert shm("unview")["err"] == "STALE"


def test_view_needs_shared_memory(pool):
    """Fails if a client that reaches the node over the network only is given a pointer."""
    far = Shell(pool.bench, pool.addr, "far", **PATHS["tcp"])
    assert far(f"put k {SIZE}")["err"] == "OK"
    assert far("view k")["err"] == "NOTSUP"
    assert far("remove k")["err"] == "OK", "what was held for the view must have been given back"


def test_view_ends_with_the_session(pool, shm):
    """Fails if a view of a session that is lost ends with OK, or crashes the process; also when it outlives close."""
    assert shm(f"put k {SIZE} version=3")["err"] == "OK"
    assert shm("view k")["err"] == "OK"
    pool.master.kill9()
    assert shm("look k")["intact"], "the memory stays where it was"
    shm("exists k deadline=300")
    assert shm("unview")["err"] == "STALE"


def mapped(pid):
    """The shared memories that a process has mapped."""
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as f:
        return {line.split()[4] for line in f if "memfd:" in line}


def test_view_of_a_lost_session_keeps_one_node_mapped(pool, shm):
    """Fails if a view whose session is lost keeps the memory of other nodes than its own mapped, or if any of that
    session's memory stays mapped once the view has ended.
    """
    assert shm(f"bput k/ 0 40 {SIZE}")["results"] == {"OK": 40}
    assert shm(f"bget k/ 0 40 {SIZE}")["results"] == {"OK": 40}
    memories = [mapped(node.pid) & mapped(shm.pid) for node in pool.nodes]
    assert all(memories), "both nodes are used"
    assert shm("view k/0")["err"] == "OK"
    pool.master.kill9()
    pool.master = pool.bench.master(listen=pool.master.listen, name="master2")
    wait_until(lambda: shm("exists k/0 deadline=1000")["err"] == "OK", 10, "another session")

    def kept():
        return [bool(memory & mapped(shm.pid)) for memory in memories]
    wait_until(lambda: sum(kept()) == 1, 10, "the other node's memory to be unmapped")
    assert shm("look k/0")["len"] == SIZE, "it can still be read, though nodes make their memory anew for another pool"
    assert shm("unview")["err"] in ("STALE", "OK")  # OK: a node came before the client, and the new master kept its pool
    wait_until(lambda: not any(kept()), 10, "all of it to be unmapped")


def test_view_ends_with_close(shm):
    """Fails if the end of a view behind close is anything but CLOSED."""
    assert shm(f"put k {SIZE}")["err"] == "OK"
    assert shm("view k")["err"] == "OK"
    assert shm("close")["err"] == "OK"
    assert shm("unview")["err"] == "CLOSED"
