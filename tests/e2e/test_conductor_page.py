# SPDX-License-Identifier: Apache-2.0
"""The conductor's page in a real browser."""
import json

import pytest

from browser import CHROMIUM, Browser
from conftest import wait_until
from test_conductor import BLOCK, conductor, publishers, read, recorded, subscribed  # noqa: F401: fixtures

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here (a Debian package)")


@pytest.fixture
def browser(bench):
    b = Browser(bench.home)
    yield b
    b.close()


def shows(browser, text, where="(document.body || {}).innerText"):
    wait_until(lambda: text in (browser.get(where) or ""), 10, f"the page to show {text!r}")


@recorded
def test_page(conductor, publishers, browser):  # noqa: F811
    """Fails if the page does not load, follow what happens, answer who holds a prompt, fit a phone, or logs an error, asks anybody else, or takes a name
    for HTML."""
    base = f"http://{conductor.daemon.http}"
    browser.open(base + "/")
    shows(browser, "0 publishers")
    p = publishers()
    conductor.register(p, instance_id="<img src=x>")
    subscribed(conductor)
    shows(browser, "<img src=x>")
    messages = read("int")[:5]
    for payload, _ in messages:
        p.publish(payload)
    shows(browser, "1 publishers, 8 blocks")
    assert browser.get("document.querySelectorAll('td img').length") == 0
    tokens = messages[0][1][0]["token_ids"]
    browser.get(f"document.getElementById('ask').token_ids.value = {json.dumps(' '.join(map(str, tokens)))}")
    browser.get("document.getElementById('ask').requestSubmit()")
    shows(browser, f"GPU {len(tokens)}", "document.getElementById('matches').innerText")
    assert str(len(tokens) // BLOCK * BLOCK) in browser.get("document.querySelector('#matches tbody tr').innerText")
    shows(browser, "1 questions; instances held 100 % of their tokens", "document.getElementById('hits').innerText")
    assert "1 to 255 tokens\t1" in browser.get("document.getElementById('lengths').innerText")
    browser.get("document.getElementById('ask').token_ids.value = '1.5'")
    browser.get("document.getElementById('ask').requestSubmit()")
    shows(browser, "whole numbers", "document.getElementById('why').innerText")
    browser.call("Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=2, mobile=True)
    assert browser.get("document.documentElement.scrollWidth") <= 360
    # The bad request is the page's own doing, and the browser logs it.
    errors = [e for e in browser.errors if "400" not in json.dumps(e)]
    assert not errors, errors
    assert all(url.startswith((base, "data:")) for url in browser.asked), browser.asked
