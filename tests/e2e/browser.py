# SPDX-License-Identifier: Apache-2.0
"""A real browser (Debian's chromium, headless), driven by its debugging protocol over a pipe."""
import json
import os
import select
import shutil
import subprocess
import time

import pytest

from conftest import SLOW, _die_with_parent, wait_until

CHROMIUM = shutil.which("chromium")
# What the browser says of an expression whose page is left for another one before there is a value.
LEFT = (
    "Inspected target navigated or closed",
    "Execution context was destroyed.",
    "Cannot find context with specified id",
    "Cannot find default execution context",
)


class Browser:
    """One page. Errors of its console and its scripts, and what it asked for, are kept."""

    def __init__(self, home):
        in_r, in_w = os.pipe()
        out_r, out_w = os.pipe()

        def pipes():
            _die_with_parent()
            os.dup2(in_r, 100)  # whatever number they have, 3 and 4 may be among them
            os.dup2(out_w, 101)
            os.dup2(100, 3)
            os.dup2(101, 4)

        self.proc = subprocess.Popen(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe",
             f"--user-data-dir={home}/chromium", "about:blank"],
            env={**os.environ, "HOME": str(home)}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False,
            preexec_fn=pipes)
        os.close(in_r)
        os.close(out_w)
        self.to, self.back, self.buffer, self.seq, self.session = in_w, out_r, b"", 0, None
        self.errors, self.asked = [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page", "Network"):
            self.call(f"{domain}.enable")

    def _next(self, end):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.back], [], [], max(0, end - time.monotonic()))
            data = os.read(self.back, 1 << 16) if ready else b""
            assert data, "the browser does not answer"
            self.buffer += data
        text, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(text)

    def _note(self, event):
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown" or (method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert")):
            self.errors.append(params)
        if method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params)
        if method == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])

    def _ask(self, method, params):
        """The whole answer, which may be an error."""
        self.seq += 1
        ask = {"id": self.seq, "method": method, "params": params, **({"sessionId": self.session} if self.session else {})}
        os.write(self.to, json.dumps(ask).encode() + b"\0")
        end = time.monotonic() + 30 * SLOW
        while True:
            got = self._next(end)
            if got.get("id") != self.seq:
                self._note(got)
                continue
            return got

    def call(self, method, **params):
        got = self._ask(method, params)
        assert "error" not in got, (method, got)
        return got["result"]

    def open(self, url):
        self.call("Page.navigate", url=url)

    def get(self, expression):
        """The value of an expression of JavaScript. Asked again where the page was left for another one meanwhile."""
        asks = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        end = time.monotonic() + 15 * SLOW
        got = self._ask("Runtime.evaluate", asks)
        while got.get("error", {}).get("message") in LEFT and time.monotonic() < end:
            got = self._ask("Runtime.evaluate", asks)
        assert "error" not in got, got
        got = got["result"]
        assert "exceptionDetails" not in got, got
        return got["result"].get("value")

    def text(self, where):
        """The text of the first element of this selector; "" without one."""
        return self.get(f"(document.querySelector({json.dumps(where)}) || {{}}).innerText") or ""

    def shows(self, text, where="body"):
        wait_until(lambda: text in self.text(where), 15, f"the page to show {text!r}")

    def press(self, key, text="", modifiers=0):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, text=text if kind == "keyDown" else "", modifiers=modifiers,
                      windowsVirtualKeyCode={"Tab": 9, "Enter": 13, " ": 32, "ArrowLeft": 37}.get(key, 0))

    def look(self, width, scheme="light"):
        """Sets the width of the window, and the colors that the user prefers."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def close(self):
        self.proc.kill()
        self.proc.wait()
        os.close(self.to)
        os.close(self.back)


@pytest.fixture
def browser(bench):
    b = Browser(bench.home)
    yield b
    b.close()


LOOKS = [(390, "light"), (390, "dark"), (1280, "light"), (1280, "dark")]
# The texts whose contrast with what is behind them is below 4.5 (WCAG AA).
FLAWS = r"""(() => {
  const rgb = (c) => (c.match(/[\d.]+/g) || []).map(Number), flaws = [];
  const light = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, k, i) => { const v = c[i] / 255; return sum + k * (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); }, 0);
  const behind = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
  for (const e of document.querySelectorAll("body *")) {
    if (!e.checkVisibility() || ![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
    const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) flaws.push(`contrast ${contrast.toFixed(1)}: ${e.tagName} ${e.innerText.slice(0, 40)}`);
  }
  return flaws;
})()"""


def assert_fits(browser):
    """No text is hard to read and nothing is wider than the window, on a phone and on a screen, light and dark."""
    for width, scheme in LOOKS:
        browser.look(width, scheme)
        assert browser.get("getComputedStyle(document.body).backgroundColor") == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 24, 29)")
        assert browser.get(FLAWS) == [], (width, scheme)
        assert browser.get("document.documentElement.scrollWidth") <= width, (width, scheme)


# All that the Tab key should reach: controls, links, and what scrolls.
REACHABLE = "[...document.querySelectorAll('a[href], button, input, select, textarea, [tabindex=\"0\"]')].filter((e) => e.checkVisibility())"


def assert_keyboard_reaches_all(browser):
    """Tab comes by all controls, and each has a name for screen readers."""
    browser.get(f"window.left = new Set({REACHABLE}), document.activeElement.blur()")
    n = browser.get("left.size")
    for _ in range(n + 3):
        browser.press("Tab")
        browser.get("left.delete(document.activeElement)")
    assert browser.get("[...left].map((e) => e.outerHTML.slice(0, 80))") == []
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    roles = ("button", "link", "textbox", "checkbox", "combobox", "slider", "region")
    unnamed = [x["role"]["value"] for x in nodes if not x["ignored"] and x["role"]["value"] in roles and not x.get("name", {}).get("value")]
    assert unnamed == []
    return n


def assert_quiet(browser, base, but=()):
    """No error in the console, and nothing asked of anybody else. A daemon that stands still for a second may answer 503."""
    errors = [e for e in browser.errors if not any(word in json.dumps(e) for word in (*but, "status of 503"))]
    assert not errors, errors
    assert all(url.startswith((base, "data:")) for url in browser.asked), browser.asked
