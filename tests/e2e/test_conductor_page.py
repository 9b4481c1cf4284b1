# SPDX-License-Identifier: Apache-2.0
"""The conductor's page in a real browser."""
import json
import socket

import pytest

from browser import CHROMIUM, assert_fits, assert_keyboard_reaches_all, assert_quiet, browser  # noqa: F401: a fixture
from conftest import ask_http
from test_conductor import BLOCK, conductor, publishers, read, recorded, subscribed  # noqa: F401: fixtures
from test_proxy import Proxy, Server

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here (a Debian package)")


@recorded
def test_page(conductor, publishers, browser):  # noqa: F811
    """Fails if the page does not load, follow what happens, answer who holds a prompt, fit a phone, or logs an error, asks anybody else, or takes a name
    for HTML."""
    base = f"http://{conductor.daemon.http}"
    browser.open(base + "/")
    browser.shows("0 publishers")
    p = publishers()
    conductor.register(p, instance_id="<img src=x>")
    subscribed(conductor, p)
    browser.shows("<img src=x>")
    messages = read("int")[:5]
    for payload, _ in messages:
        p.publish(payload)
    browser.shows("1 publishers, 8 blocks")
    assert browser.get("document.querySelectorAll('td img').length") == 0
    tokens = messages[0][1][0]["token_ids"]
    browser.get(f"document.getElementById('ask').token_ids.value = {json.dumps(' '.join(map(str, tokens)))}")
    browser.get("document.getElementById('ask').requestSubmit()")
    browser.shows(f"GPU {len(tokens)}", "#matches")
    assert str(len(tokens) // BLOCK * BLOCK) in browser.text("#matches tbody tr")
    browser.shows("1 questions; instances held 100 % of their tokens", "#hits")
    assert "1 to 255 tokens\t1" in browser.text("#lengths")
    browser.get("document.getElementById('ask').token_ids.value = '1.5'")
    browser.get("document.getElementById('ask').requestSubmit()")
    browser.shows("whole numbers", "#why")
    browser.call("Accessibility.enable")
    assert assert_keyboard_reaches_all(browser) > 15
    assert_fits(browser)
    assert_quiet(browser, base, but=("400",))  # the bad request is the page's own doing, and the browser logs it


def test_servers_and_an_engine_out_of_reach(bench, browser):  # noqa: F811
    """The page has the proxy's servers with their latencies, the routes, and why an engine cannot be reached."""
    servers = [Server("replica"), Server("replica")]
    proxy = Proxy(bench, servers, "--policy", "router")
    with socket.socket() as held:  # bound, and nothing listens
        held.bind(("127.0.0.1", 0))
        endpoint = f"tcp://127.0.0.1:{held.getsockname()[1]}"
        body = {"endpoint": endpoint, "type": "vLLM", "modelname": "tiny", "instance_id": "far", "block_size": BLOCK, "dp_rank": 0, "url": servers[0].url}
        assert ask_http(proxy.daemon.http, "/register", json.dumps(body))[0] == 200
        for _ in range(6):
            assert proxy.post({"prompt": "1 2 3", "model": "tiny"})[0] == 200
        base = f"http://{proxy.daemon.http}"
        browser.open(base + "/")
        browser.shows(f"unreachable: {endpoint}: connection refused", "#services")
        browser.shows(servers[0].url, "#servers")
        rows = browser.get("[...document.querySelectorAll('#servers tbody tr')].map((r) => [...r.cells].map((c) => c.innerText))")
        told = {s["url"]: s for s in json.loads(ask_http(proxy.daemon.http, "/servers")[1])["servers"]}
        assert {r[0]: r[4] for r in rows} == {url: str(s["requests"]) for url, s in told.items()}
        assert sum(sum(s["answer_counts"]) for s in told.values()) == 6 and any(r[6].endswith("ms") for r in rows), rows
        routes = json.loads(ask_http(proxy.daemon.http, "/global_view")[1])["routes"]
        assert routes["routed"] > 0
        browser.shows(f"{routes['routed']} requests routed", "#routes")
        assert_fits(browser)
        assert_quiet(browser, base)
    for s in servers:
        s.close()
