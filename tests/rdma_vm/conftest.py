# SPDX-License-Identifier: Apache-2.0
"""Fixtures for tests in the guest. Where none can be had they are skipped with the reason; with CI=true they fail."""
import os

import guest
import pytest

LINKS_UP = """
for i in 0 1; do
    ip link set eth$((i + 1)) up
    until grep -q ACTIVE /sys/class/infiniband/rxe$i/ports/1/state; do sleep 0.1; done
done
until ip route get 10.99.0.2 | grep -q eth1; do sleep 0.1; done
"""


@pytest.fixture(scope="session")
def guest_parts():
    """What a guest boots from."""
    try:
        return guest.prepare()
    except guest.Unavailable as e:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI runs these: {e}")
        pytest.skip(str(e))


@pytest.fixture(scope="session")
def vm(guest_parts):
    """A guest that all tests share which leave it as they found it."""
    with guest.Guest() as g:
        yield g


@pytest.fixture
def lent_vm(vm):
    """The shared guest for a test that starts daemons or takes links down: at its end what it started is killed and the links
    are up again."""
    others = set(vm.jobs)
    yield vm
    for job in [job for number, job in vm.jobs.items() if number not in others]:
        job.kill()
    r = vm.run(["sh", "-c", LINKS_UP], timeout=60)
    assert r.rc == 0, r


@pytest.fixture
def own_vm(guest_parts):
    """A guest for a test that hurts it."""
    with guest.Guest() as g:
        yield g


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """The end of the console goes into the report of a failure."""
    report = (yield).get_result()
    for name in ("vm", "own_vm"):
        g = getattr(item, "funcargs", {}).get(name)
        if report.failed and g:
            report.sections.append((f"console of {name}", g.last_words()))
