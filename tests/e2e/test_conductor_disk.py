# SPDX-License-Identifier: Apache-2.0
"""A conductor whose data directory hangs or fails goes on answering and says so. The disk is e2e_eio.c's."""
import json
import pathlib
import threading
import time

import pytest

from conftest import PROGRAMS, SLOW, ask_http, wait_until
from test_conductor import BLOCK, Conductor, publishers  # noqa: F401
from test_conductor_pool import stored, tokens_of
from test_proxy import Server

EIO = next(PROGRAMS["kvpool-conductor"].parents[1].glob("tests/e2e/e2e_eio.so"))
ANSWER_S = 5 * SLOW
BACKENDS = [{"backend_id": "kvpool", "key_prefix": "p", "ranks": 1}]


class Site:
    """A conductor with one publisher, and a proxy with one replica, over a disk of which the test has the switches."""

    def __init__(self, bench, monkeypatch, server, publisher):
        self.dir = pathlib.Path(f"{bench.home}/conductor")
        monkeypatch.setenv("LD_PRELOAD", str(EIO))
        monkeypatch.setenv("E2E_EIO", str(self.dir))
        self.conductor = Conductor(bench, "--data-dir", self.dir, "--proxy", "127.0.0.1:0", "--replica", server.url)
        self.publisher, self.prompts = publisher, 0
        wait_until(lambda: self.conductor.ask("/ready")[0] == 200, 10, "the conductor to be ready")
        self.conductor.register(publisher, backends=BACKENDS)
        self.publish()

    def publish(self):
        """One prompt more is stored, and soon in answers."""
        self.prompts += 1
        self.publisher.publish(stored(self.prompts, 2))
        wait_until(lambda: self.conductor.matched(tokens_of(self.prompts, 2))["GPU"] == 2 * BLOCK, 1, "the event")

    def register(self, instance):
        body = {"endpoint": self.publisher.pub.endpoint, "type": "vLLM", "modelname": "tiny", "instance_id": instance, "block_size": BLOCK, "dp_rank": 0}
        status, answer = self.conductor.ask("/register", body)
        assert status == 200 and answer["status"] == "registered successfully"
        return answer.get("warning")

    def health(self):
        return self.conductor.ask("/health")[1]

    def check_answers(self):
        """None waits for the disk, which hangs for as long as the test wants."""
        for path in ("/services", "/global_view", "/ready", "/health"):
            at = time.monotonic()
            assert self.conductor.ask(path)[0] == 200
            assert time.monotonic() - at < ANSWER_S, path
        at = time.monotonic()
        body = json.dumps({"model": "m", "prompt": "hello"})
        assert ask_http(self.conductor.daemon.listen, "/v1/completions", body)[0] == 200 and time.monotonic() - at < ANSWER_S
        self.publish()

    def metric(self):
        return "\nkvpool_conductor_degraded 1\n" in self.conductor.daemon.http_get("/metrics")[1]

    def kept(self):
        return [r["instance_id"] for r in json.loads((self.dir / "registrations.json").read_text())]


@pytest.fixture
def site(bench, monkeypatch, publishers):  # noqa: F811
    server = Server("replica", False)
    yield Site(bench, monkeypatch, server, publishers())
    server.close()


@pytest.mark.parametrize("how", ["write", "sync"])
def test_a_disk_that_hangs(site, how):
    """Fails if an answer, an event or the proxy waits for the disk, if the disk is not named, or if SIGTERM does not end the conductor."""
    switch = site.dir / f"stall-{how}"
    assert site.register("before") is None and site.kept() == ["i", "before"]
    wait_until(lambda: (site.dir / "joins").stat().st_size > 0, 5, "places to be written")
    switch.touch()
    at, warnings = time.monotonic(), []
    if how == "write":
        site.publish()  # a place of a block is to be written
    else:
        register = threading.Thread(target=lambda: warnings.append(site.register("during")))
        register.start()
    while site.health()["status"] == "ok":
        site.check_answers()
        assert time.monotonic() - at < 3 * ANSWER_S
        time.sleep(0.05)
    assert str(site.dir) in site.health()["why"][0] and "not answered" in site.health()["why"][0] and site.metric()
    site.conductor.daemon.wait_log("the data directory does not answer")
    took_s = []
    for _ in range(3):  # the first trouble is known: no wait
        at = time.monotonic()
        assert "GET /health" in site.register("later")
        took_s.append(time.monotonic() - at)
    assert min(took_s) < SLOW, took_s
    site.check_answers()
    if how == "write":
        switch.unlink()
        wait_until(lambda: site.health()["status"] == "ok", 5, "the disk to be well")
        wait_until(lambda: site.kept() == ["i", "before", "later"], 5, "the registration to be kept")
        switch.touch()
        site.publish()
    else:
        register.join()
        assert "GET /health" in warnings[0]
    site.conductor.daemon.proc.terminate()
    assert site.conductor.daemon.proc.wait(15 * SLOW) == 0


def test_a_disk_that_fails(site):
    """Fails if a disk with errors is not named, or if what could not be written is not written later."""
    size = (site.dir / "joins").stat().st_size
    (site.dir / "eio-write").touch()
    assert "GET /health" in site.register("during")
    wait_until(lambda: site.health()["status"] == "degraded", 3 * SLOW, "the trouble to be named")
    why, = site.health()["why"]
    assert str(site.dir) in why and "Input/output error" in why
    site.check_answers()
    (site.dir / "eio-write").unlink()
    wait_until(lambda: site.health()["status"] == "ok", 30, "the disk to be well")
    wait_until(lambda: site.kept() == ["i", "during"], 15, "the registration to be kept")
    wait_until(lambda: (site.dir / "joins").stat().st_size >= size, 15, "the file of places")
