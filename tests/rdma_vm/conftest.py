# SPDX-License-Identifier: Apache-2.0
"""Fixtures for tests in the guest. Where none can be had they are skipped with the reason; with CI=true they fail."""
import os

import guest
import pytest


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
