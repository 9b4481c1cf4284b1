# SPDX-License-Identifier: Apache-2.0
"""The pool's page at the master's HTTP port in a real browser, and its documents."""
import base64
import hashlib
import http.client
import json
import re
import time

import pytest

from browser import CHROMIUM, assert_fits, assert_keyboard_reaches_all, assert_quiet, browser  # noqa: F401: a fixture
from clients import figures
from conftest import ask_http, wait_until
from standby import Etcd, Masters, needs_etcd

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here (a Debian package)")
LONG, MARKUP = "n" * 128, "<img src=x onerror=alert(1)>"  # names have at most 128 bytes


def overview(daemon):
    status, text = daemon.http_get("/overview")
    assert status == 200
    return json.loads(text)


def ask(browser, key, **fields):  # noqa: F811
    """Fills in the form, and returns what the page found."""
    browser.get("(() => { const f = document.getElementById('ask'); f.reset(); "
                + "".join(f"f.{k}.{'checked' if v is True else 'value'} = {json.dumps(v)};" for k, v in {"key": key, **fields}.items())
                + "document.getElementById('found').replaceChildren(); f.requestSubmit(); })()")
    return wait_until(lambda: browser.text("#found"), 10, "an answer")


@needs_browser
@pytest.mark.limit(120)
@pytest.mark.parametrize("nodes", [0, 1, 40])
def test_any_number_of_nodes(make_pool, browser, nodes):  # noqa: F811
    """The page fits every window, can be read, and shows each node; without one it says so."""
    pool = make_pool(nodes=nodes, memory="16MiB")
    base = f"http://{pool.master.http}"
    browser.open(base + "/")
    browser.shows(f"{nodes} of {nodes}")
    assert browser.get("document.querySelectorAll('#nodes tbody tr').length") == max(1, nodes)
    if nodes == 0:
        browser.shows("there is no node: nothing can be stored", "#wrong")
        browser.shows("start kvpool-node", "#nodes")
    if nodes == 40:  # the fullest node is the first
        pool.put("big", bytes(900 * 1024))
        browser.shows("900 KiB", "#nodes tbody tr")
    assert_fits(browser)
    assert_quiet(browser, base)


@needs_browser
@pytest.mark.pool(nodes=1, memory="32MiB")
def test_names_are_text(pool, browser):  # noqa: F811
    """A node's, a tenant's and a key's name never become markup, and long ones do not widen the page."""
    for name in (LONG, MARKUP):
        pool.add_node(name, "16MiB")
        pool.kvpool("put", MARKUP, "--tenant", name, stdin=b"x")
    for name in (LONG, MARKUP) * 2:
        pool.kvpool("exists", MARKUP, "--tenant", name)
    base = f"http://{pool.master.http}"
    browser.open(base + "/")
    for part in ("#nodes", "#tenants"):
        browser.shows(LONG, part)
        browser.shows(MARKUP, part)
    assert {LONG, MARKUP} < set(browser.get("[...document.getElementById('whose').options].map((o) => o.text)"))
    assert "can be read" in ask(browser, MARKUP, tenant=MARKUP) and "not known" in ask(browser, MARKUP + "2", tenant=LONG)
    assert f"{MARKUP}: it is there" in ask(browser, MARKUP.encode().hex(), hex=True, all=True)
    assert ask(browser, "xy", hex=True).startswith("key_hex is not") and "no client uses a tenant" in ask(browser, "k", tenant="nobody")
    assert browser.get("document.querySelectorAll('img').length") == 0
    assert_fits(browser)
    assert_quiet(browser, base, but=("400", "404"))  # the two bad questions are the page's own doing


@needs_browser
def test_keyboard_alone(pool, browser):  # noqa: F811
    """Every control is reached and works without a mouse: the question, the cursor of a plot, sorting, pausing."""
    pool.put("k", b"x" * 100)
    base = f"http://{pool.master.http}"
    browser.call("Accessibility.enable")
    browser.open(base + "/")
    browser.shows("2 of 2")
    wait_until(lambda: browser.get("document.getElementById('early').hidden"), 30, "the first point of the plots")
    assert assert_keyboard_reaches_all(browser) > 25
    browser.get("document.getElementById('ask').key.focus()")
    browser.call("Input.insertText", text="k")
    browser.press("Enter", "\r")
    browser.shows("can be read", "#found")
    browser.get("document.querySelector('figure').focus()")
    browser.press("ArrowLeft")
    assert " ago: " in browser.get("document.activeElement.getAttribute('aria-valuetext')")
    browser.get("document.querySelector('#nodes th button').focus()")
    for order in ("ascending", "descending"):
        browser.press("Enter", "\r")
        assert browser.get("document.activeElement.parentNode.getAttribute('aria-sort')") == order
    browser.shows("node2", "#nodes tbody tr")
    browser.get("document.getElementById('pause').focus()")
    browser.press(" ", " ")
    assert browser.get("document.getElementById('pause').getAttribute('aria-pressed')") == "true"
    n = len(browser.asked)
    time.sleep(3)
    browser.get("1")
    assert len(browser.asked) <= n + 1  # one may have been under way
    browser.press(" ", " ")
    wait_until(lambda: browser.get("1") and len(browser.asked) > n + 1, 10, "the page to go on")
    assert_quiet(browser, base)


@needs_browser
def test_master_that_dies(pool, browser):  # noqa: F811
    """The page says that there is no answer, keeps the figures, and that a visit from another site's link is no attack."""
    port = pool.master.http.rsplit(":", 1)[1]
    browser.open("data:text/html,<a id=a href='http://127.0.0.1:" + port + "/'>pool</a>")
    browser.shows("pool", "#a")
    browser.get("document.getElementById('a').click()")
    browser.shows("2 of 2")
    pool.master.kill9()
    browser.shows("No answer", "#notice")
    assert "The figures below are old" in browser.text("#notice")
    assert "2 of 2" in browser.text("#tiles")


@needs_browser
@pytest.mark.limit(90)
def test_what_has_changed(make_pool, browser):  # noqa: F811
    """The page and the log say when a node joined, was lost, came back or left, and when evictions began."""
    pool = make_pool(nodes=1, memory="32MiB")
    pool.add_node(MARKUP, "16MiB")
    base = f"http://{pool.master.http}"
    browser.open(base + "/")
    browser.shows(f"node {MARKUP} joined the pool", "#changes")
    pool.nodes[1].kill9()
    browser.shows(f"node {MARKUP} is lost: its connection ended", "#changes")
    pool.add_node(MARKUP, "16MiB")
    browser.shows(f"node {MARKUP} is back", "#changes")
    pool.nodes[2].terminate()
    browser.shows(f"node {MARKUP} left the pool", "#changes")
    for i in range(12):
        assert pool.put(f"k{i}", bytes(4 << 20)).rc == 0
    browser.shows("evictions began", "#changes")
    browser.shows("evictions/s", "#nodes thead")
    (node,) = pool.kvpool("node", "ls", "--json").json
    assert node["evictions"] == figures(pool.master)["evictions"] > 0, node
    assert re.search(r" evictions .*\n.* [1-9]", pool.kvpool("node", "ls").text)
    told = overview(pool.master)["changes"]
    assert [c["ago_ms"] for c in told] == sorted(c["ago_ms"] for c in told), told
    for change in told[:-1]:  # the first one is the lead, which has a line of its own
        pool.master.wait_log(re.escape(change["text"]))
    assert browser.get("document.querySelectorAll('img').length") == 0
    assert_fits(browser)
    assert_quiet(browser, base)


@needs_browser
@needs_etcd
@pytest.mark.limit(120)
def test_standby_leads_to_the_leader(bench, browser):  # noqa: F811
    """Its page names the leader and links there, also from another host's name; it answers no question about a key."""
    pool = Masters(bench, 2, nodes=1, args=("--conductor", "127.0.0.1:13333"), etcd=Etcd(bench, 1))
    pool.wait_insync(2)
    leader = pool.masters[pool.leader()]
    standby = pool.masters[1 - pool.leader()]
    told = overview(leader)
    assert {m["state"] for m in told["masters"]} == {"leader", "standby"} and told["conductor"] == "127.0.0.1:13333"
    assert ask_http(standby.http, "/explain?key=k")[0] == 503 and "ask the leader" in ask_http(standby.http, "/explain?key=k")[1]
    port = standby.http.rsplit(":", 1)[1]
    browser.open(f"http://localhost:{port}/")  # another site than 127.0.0.1, for a browser
    browser.shows(f"This master is standby: only the leader's page shows the pool. The leader is {leader.listen}.")
    assert browser.get("document.getElementById('leading').hidden") and not browser.errors
    seen = browser.get("document.body.innerText")
    assert "Masters" in seen and "What has changed" in seen and "nodes up" not in seen and "Tenants" not in seen, seen
    browser.get("document.querySelector('#notice a').click()")
    browser.shows("leader, term", "#who")
    browser.shows("this master leads, in term", "#changes")
    assert f"master {leader.listen} leads, in term" in str(overview(standby)["changes"])
    assert browser.get("location.host") == leader.http and browser.get("document.getElementById('notice').hidden")
    browser.shows("lead", "#masters")
    assert browser.get("document.getElementById('conductor').href") == "http://127.0.0.1:13333/"
    assert not browser.errors, browser.errors


def test_policy_methods_and_paths(pool):
    """The page allows its own script and style by their hashes alone; wrong methods, paths and arguments have clear errors."""
    host, port = pool.master.http.rsplit(":", 1)

    def request(method, path, **headers):
        c = http.client.HTTPConnection(host, int(port), timeout=20)
        c.request(method, path, headers=headers)
        r = c.getresponse()
        return r.status, r.headers, r.read().decode()

    status, headers, html = request("GET", "/")
    policy = headers["Content-Security-Policy"]
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8" and "unsafe" not in policy
    for tag in ("script", "style"):
        inner = re.search(f"<{tag}>(.*?)</{tag}>", html, re.S).group(1)
        assert f"{tag}-src 'sha256-{base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()}'" in policy
    assert not re.search(r"""(?i)(src|href)=["']?(https?:)?//|\son\w+=|style=""", html)
    head = request("HEAD", "/")
    assert head[0] == 200 and head[2] == "" and head[1]["Content-Length"] == str(len(html.encode()))
    for path in ("/", "/overview", "/explain?key=k"):
        assert request("POST", path)[0] == 405 and request("DELETE", path)[1]["Allow"] == "GET"
    assert request("GET", "/overview/")[0] == 404 and request("GET", "/page.html")[0] == 404
    cross = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}
    assert [request("GET", p, **cross)[0] for p in ("/", "/overview", "/explain?key=k")] == [200, 403, 403]
    assert request("GET", "/", **{**cross, "Sec-Fetch-Dest": "iframe"})[0] == 403
    assert request("GET", "/", Host="evil.example")[0] == 403 and request("GET", "/overview", Origin="http://evil.example")[0] == 403
    pool.put("k", b"x")
    for query, why in (("", "wanted: ?key=KEY"), ("key=", "wanted"), ("key=a%00b", "wanted"), ("key=a&key_hex=61", "wanted"), ("key_hex=6", "even number"),
                       ("key_hex=6g", "even number"), ("key_hex=10%2010", "even number"), ("key=" + "k" * 1025, "at most 1024"), ("key=k&tenant=" + "t" * 129, "too long"),
                       ("key=k&all_tenants=yes", "all_tenants is 1")):
        status, _, text = request("GET", "/explain?" + query)
        assert status == 400 and why in json.loads(text)["error"], query
    assert request("GET", "/explain?key=k&tenant=nobody")[0] == 404
    told = pool.kvpool("why", "k", "--json").json
    page = json.loads(request("GET", "/explain?key=k&tenant=default")[2])
    for answer in (told, page):
        for found in answer["found"]:
            for name in ("ago_ms", "age_ms", "used_ms"):
                found.pop(name)
            found["copies"][0].pop("transport", None)  # how this client reads it
    assert page == told and page["found"][0]["is_present"]
    assert json.loads(request("GET", "/explain?key_hex=00ff6b")[2])["key_hex"] == "00ff6b"
    assert json.loads(request("GET", "/explain?key=" + "k" * 1024)[2])["found"][0]["cause"] == "not_known"


@pytest.mark.pool(nodes=2, memory="16MiB")
def test_document_follows_the_pool(pool):
    """Rates, ratios, causes and times of what was done; one document for all that ask within a second."""
    for i in range(40):
        pool.put(f"k{i}", bytes(1 << 20))
    for key in ("k39", "never"):
        pool.exists(key)
    time.sleep(1.1)
    told = overview(pool.master)
    assert any(overview(pool.master) == overview(pool.master) for _ in range(5))  # within the second: the document of before
    pool_part, all_of_them = told["pool"], told["tenants"][0]
    assert told["status"] == "ok" and told["role"] == "leader" and 0 < pool_part["objects"] < 40 and pool_part["size_bytes"] == 32 << 20
    assert [n["node"] for n in told["nodes"]] == ["node1", "node2"] and {n["state"] for n in told["nodes"]} == {"up"}
    assert all_of_them["asked_minute"] == 2 and all_of_them["hit_ratio_minute"] == 0.5 and told["tenants"][1]["tenant"] == "default"
    seconds = told["rates_ms"] / 1000
    assert round(told["rates"]["puts"] * seconds) <= 40 and told["rates"]["evictions"] * seconds > 1 and told["rates"]["exists"] > 0
    assert told["lookup_misses"] == {"not_known": 1}
    calls = {c["call"]: c for c in told["calls"]}
    assert told["slow_calls"] == 0 or "slow" in pool.master.log()
    assert calls["put_begin"]["n"] == 40 and 0 < calls["put_begin"]["p50_ns"] <= calls["put_begin"]["p999_ns"]
    pool.nodes[0].kill9()
    wait_until(lambda: overview(pool.master)["status"] == "degraded", 10, "the lost node to be seen")
    lost = overview(pool.master)
    assert any("node1" in why for why in lost["why"]) and [n["state"] for n in lost["nodes"]] == ["lost", "up"]
