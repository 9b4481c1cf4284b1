# SPDX-License-Identifier: Apache-2.0
"""Runs end-to-end tests (tests/e2e) in a guest that is up: their daemons and clients are on both devices, and bytes move by rdma
alone. One run of pytest in there does all that are named; out here each name is a test of its own.
"""
import os
import subprocess
import sys
import xml.etree.ElementTree

import guest
import pytest

TIER = os.environ.get("KVPOOL_TEST_TIER", "normal")
long = pytest.mark.skipif(TIER != "long", reason="only in --long (docs/TESTING.md)")
TIER_INSIDE = "normal" if TIER == "long" else TIER  # its counts: a guest has a tenth of the machine's speed
E2E = guest.ROOT / "tests" / "e2e"
PYTEST = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]


def environment():
    env = {"KVPOOL_BUILD": str(guest.BUILD), "KVPOOL_TEST_RDMA": ",".join(reversed(guest.ADDRESSES)),
           "KVPOOL_TEST_TIER": TIER_INSIDE, "PYTHONDONTWRITEBYTECODE": "1"}
    if "KVP_TRACE" in os.environ:
        env["KVP_TRACE"] = os.environ["KVP_TRACE"]
    return env


def every_test():
    """The names of all end-to-end tests, as they are where there are devices."""
    r = subprocess.run([*PYTEST, "--collect-only", str(E2E)], env={**os.environ, **environment()}, cwd=guest.ROOT, text=True,
                       stdout=subprocess.PIPE, check=True)
    return [line[line.index("test_"):] for line in r.stdout.splitlines() if ".py::" in line]


def run(vm, names, limit_s):
    """What became of each test: {name: (how, text)}."""
    report = "/run/kvpool-vm/share/e2e.xml"
    r = vm.run([*PYTEST, f"--junitxml={report}", *(E2E / name for name in names)], env=environment(), cwd=str(guest.ROOT),
               timeout=limit_s)
    assert r.rc in (0, 1), r  # else it is not about tests that failed
    found = {}
    for case in xml.etree.ElementTree.parse(vm.share / "e2e.xml").iter("testcase"):
        what = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        name = f"{case.get('classname').rpartition('.')[2]}.py::{case.get('name')}"
        found[name] = ("passed", "") if what is None else (what.tag, f"{what.get('message')}\n{what.text}")
    return found


def judge(ran, name):
    """Fails where the test of that name did, or one of those that it stands for; skips where all were skipped."""
    mine = {test: how for test, how in ran.items() if test == name or test.startswith((f"{name}[", f"{name}::"))}
    assert mine, f"there is no such test: {name}"
    bad = {test: text for test, (how, text) in mine.items() if how in ("failure", "error")}
    assert not bad, "\n".join(f"{test}: {text}" for test, text in bad.items())
    if all(how == "skipped" for how, _ in mine.values()):
        pytest.skip("; ".join(text.strip().splitlines()[0] for _, text in mine.values()))


def one_test_each(names):
    """The test of a module: of what `ran` says became of these, one name each."""
    @pytest.mark.parametrize("name", names)
    def test_in_the_guest(ran, name):
        judge(ran, name)

    return test_in_the_guest
