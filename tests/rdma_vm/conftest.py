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


class Guests:
    """The guests of a session, one at a time: first the one that tests share, then the rough one."""

    def __init__(self):
        self.now = self.kind = None
        self.is_soiled = False

    def get(self, kind):
        """The guest of this kind. It is booted where there is none, and anew where it has ended, or a test has failed in the rough
        one."""
        if self.now and (kind != self.kind or self.is_soiled or self.now.qemu.poll() is not None):
            self.end()
        if not self.now:
            self.now, self.kind, self.is_soiled = guest.Guest().__enter__(), kind, False
        return self.now

    def end(self):
        if self.now:
            self.now.__exit__()
            self.now = None


@pytest.fixture(scope="session")
def guests(guest_parts, request):
    held = request.config.kvp_guests = Guests()
    yield held
    held.end()


@pytest.fixture(scope="module")
def vm(guests):
    """The guest that all tests share which leave it as they found it."""
    return guests.get("shared")


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


@pytest.fixture(scope="module")
def rough_vm(guests):
    """The guest of those tests that take links and devices away. Each finds all of them, and none cares what else is left."""
    return guests.get("rough")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """So that each guest is booted once: first what needs the shared one, then what needs the rough one, and last what ends it."""
    items.sort(key=lambda item: ("rough_vm" in item.fixturenames) + 2 * bool(item.get_closest_marker("ends_guest")))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """The end of the console goes into the report of a failure."""
    report = (yield).get_result()
    if report.failed and "rough_vm" in item.fixturenames and hasattr(item.config, "kvp_guests"):
        item.config.kvp_guests.is_soiled = True
    for name in ("vm", "rough_vm"):
        g = getattr(item, "funcargs", {}).get(name)
        if report.failed and g:
            report.sections.append((f"console of {name}", g.last_words()))
