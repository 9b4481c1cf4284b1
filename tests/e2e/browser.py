# SPDX-License-Identifier: Apache-2.0
"""A real browser (Debian's chromium, headless), driven by its debugging protocol over a pipe."""
import json
import os
import select
import shutil
import subprocess
import time

from conftest import SLOW, _die_with_parent

CHROMIUM = shutil.which("chromium")


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

    def call(self, method, **params):
        self.seq += 1
        ask = {"id": self.seq, "method": method, "params": params, **({"sessionId": self.session} if self.session else {})}
        os.write(self.to, json.dumps(ask).encode() + b"\0")
        end = time.monotonic() + 30 * SLOW
        while True:
            got = self._next(end)
            if got.get("id") != self.seq:
                self._note(got)
                continue
            assert "error" not in got, (method, got)
            return got["result"]

    def open(self, url):
        self.call("Page.navigate", url=url)

    def get(self, expression):
        """The value of an expression of JavaScript."""
        got = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in got, got
        return got["result"].get("value")

    def close(self):
        self.proc.kill()
        self.proc.wait()
        os.close(self.to)
        os.close(self.back)
