# SPDX-License-Identifier: Apache-2.0
"""The proxy by the conductor's router: a prompt goes to the server that has it, and where the router cannot say which that is the load decides, and it is counted."""
import json
import re
import time

import pytest

from conftest import SLOW, wait_until
from test_conductor import BLOCK, Conductor, publishers  # noqa: F401: the fixture
from test_proxy import Proxy, Server
from test_proxy_hung import ask, hang, is_left_out, wake
from test_router import stored, tokens_of


class Site:
    def __init__(self, bench, publishers, *args, kinds=("replica", "replica", "replica"), ranks=(0,)):  # noqa: F811
        self.servers = [Server(kind, bootstrap=kind == "prefill" and ranks != (0,)) for kind in kinds]
        self.proxy = Proxy(bench, self.servers, *args)
        self.conductor = Conductor.__new__(Conductor)
        self.conductor.daemon = self.proxy.daemon
        self.publishers = []
        for i, s in enumerate(self.servers):
            if s.kind != "decode":
                s.ranks = None if ranks == (0,) else {str(rank): {"engine_id": f"s{i}-{rank}"} for rank in ranks}
                for rank in ranks:
                    self.publishers.append(publishers())
                    self.conductor.register(self.publishers[-1], instance_id=f"s{i}", url=s.url + "/", dp_rank=rank)  # that is one with it
        wait_until(lambda: {s["state"] for s in self.conductor.ask("/services")[1]} == {"live"}, 5, "the subscriptions")
        time.sleep(0.1 * SLOW)  # the proxy looks 20 times a second whether anybody is registered

    def has(self, i, prompt):
        self.publishers[i].publish(stored(prompt))
        wait_until(lambda: self.conductor.matched(tokens_of(prompt), instance=f"s{i}")["longest_matched"] == 40 * BLOCK, 5, "the event")

    def complete(self, prompt, headers=(), **more):
        """The numbers of the servers that were asked."""
        def posts():
            return [sum(body is not None for _, body, _ in s.asked) for s in self.servers]

        before = posts()
        status, text, _ = self.proxy.post({"model": "tiny", "prompt": prompt, "max_tokens": 4, **more}, headers=headers)
        assert status == 200 and json.loads(text)["choices"], text
        return [i for i, n in enumerate(posts()) if n > before[i]]

    def count(self, name):
        lines = self.proxy.get("/metrics")[1].decode().splitlines()
        return int(next(line for line in lines if line.startswith(f"kvpool_proxy_{name} ")).split()[1])

    def open_routes(self):
        lines = self.proxy.daemon.http_get("/metrics")[1].splitlines()
        return int(next(line for line in lines if line.startswith("kvpool_conductor_routes_open ")).split()[1])

    def route(self, prompt):
        """The instance that another one than the proxy would be sent to."""
        status, told = self.conductor.ask("/route", {"model": "tiny", "prompt": prompt, "block_size": BLOCK})
        assert status == 200 and self.conductor.ask("/route/done", {"route_id": told["route_id"]})[0] == 200
        return told["instance_id"]

    def close(self):
        for s in self.servers:
            s.close()


@pytest.fixture
def site(bench, publishers):  # noqa: F811
    made = []

    def make(*args, **more):
        made.append(Site(bench, publishers, *args, **more))
        return made[-1]

    yield make
    for s in made:
        s.close()


def test_prompts_go_where_they_are(site):
    """Fails if a prompt, as a text or as tokens, goes elsewhere than where it is, if routes stay open, or if it goes nowhere when that server fails."""
    s = site()
    for i in range(3):
        s.has(i, i + 1)
    for turn in range(2):
        for i in (2, 0, 1):
            assert s.complete(" ".join(map(str, tokens_of(i + 1)))) == [i]
            assert s.complete(tokens_of(i + 1)) == [i]
    assert s.count("routed_total") == 12 and s.count("unrouted_total") == 0
    assert sum(server.tokenized for server in s.servers) == 3  # a text once, in turn
    wait_until(lambda: s.open_routes() == 0, 5, "the routes to end")
    s.servers[1].fail = "close"
    asked = s.complete(tokens_of(2))
    assert 1 in asked and len(asked) == 2
    assert 1 not in (s.complete(tokens_of(2)) and s.complete(tokens_of(2))), "it is left out, at the latest after a second kept connection has ended"
    assert s.count("unrouted_total") == 0


def test_adapters(site):
    """Fails if a request that names an adapter goes elsewhere than where the adapter's blocks are, if adapters with one prompt attract each other, or if a request goes to a server that
    does not list its adapter."""
    s = site()
    s.publishers[1].publish(stored(1, lora_name="sql", lora_id=7, extra_keys=[["sql"]] * 40))
    ask = {"model": "tiny", "block_size": BLOCK, "token_ids": tokens_of(1), "lora_name": "sql"}
    wait_until(lambda: s.conductor.ask("/query", ask)[1]["default"]["s1"]["longest_matched"] == 40 * BLOCK, 5, "the adapter's event")
    assert all(s.complete(tokens_of(1), model="sql") == [1] for _ in range(6))  # no server lists it: the events name it
    assert s.complete(tokens_of(1)) != [1]  # the base model's blocks are others
    for server in s.servers:
        server.models = [{"id": "tiny", "parent": None}, {"id": "chat", "parent": "tiny"}, {"id": "code", "parent": "tiny"}, {"id": "other-name", "parent": None}]
    s.servers[2].models.append({"id": "here", "root": {"parent": 1}, "parent": "tiny"})

    def matched(model):
        answer = s.conductor.ask("/route", {"model": model, "token_ids": tokens_of(3)})
        return answer[0] == 200 and s.conductor.ask("/route/done", {"route_id": answer[1]["route_id"]}) and answer[1]

    for model in ("chat", "code", "here", "other-name"):
        wait_until(lambda: matched(model), 10, f"{model} to be known")
    assert all(s.complete(tokens_of(4), model="here") == [2] for _ in range(4))
    s.has(0, 5)
    assert all(s.complete(tokens_of(5), model="other-name") == [0] for _ in range(4))
    assert matched("chat")["lora_name"] == "chat" and "lora_name" not in matched("other-name")
    # One prompt of two adapters: each stays where it was sent first.
    chat, code = s.complete(tokens_of(6), model="chat"), s.complete(tokens_of(6), model="code")
    assert chat != code and s.complete(tokens_of(6), model="chat") == chat and s.complete(tokens_of(6), model="code") == code
    assert s.count("unrouted_total") == 0


def test_sessions_stay(site):
    s = site("--affinity", "10s")
    first = s.complete(tokens_of(1), headers={"X-Session-Id": "a"})
    again = s.complete(tokens_of(2), user="b")
    assert all(s.complete(tokens_of(10 + i), headers={"X-Session-Id": "a"}) == first for i in range(4))
    assert all(s.complete(tokens_of(20 + i), user="b") == again for i in range(4))
    odd = s.complete(tokens_of(3), user='DOMAIN\\a"\n')
    assert s.complete(tokens_of(4), user='DOMAIN\\a"\n') == odd and s.count("unrouted_total") == 0


def test_prefill_by_the_router_and_decode_by_load(site):
    s = site(kinds=("prefill", "prefill", "decode", "decode"))
    s.has(1, 7)
    asked = [s.complete(tokens_of(7)) for _ in range(4)]
    assert [a[0] for a in asked] == [1] * 4 and {a[1] for a in asked} == {2, 3}


@pytest.mark.parametrize("ranks", [(1, 2), (2,)])
def test_rank_by_the_router(site, ranks):
    """Fails if the rank that has the prompt is not asked, if its prompt goes out with the engine id of another rank, or if a rank that is gone is asked."""
    s = site(kinds=("prefill", "decode"), ranks=ranks)
    p, d = s.servers

    def chosen(prompt):
        s.complete(tokens_of(prompt))
        asked = [headers for path, _, headers in p.asked if path == "/v1/completions"]
        return int(asked[-1]["X-data-parallel-rank"]), d.asked[-1][1]["kv_transfer_params"]["remote_engine_id"]

    for i, rank in enumerate(ranks):
        s.publishers[i].publish(stored(7 + i))
        wait_until(lambda: s.conductor.matched(tokens_of(7 + i), instance="s0")["longest_matched"] == 40 * BLOCK, 5, "the event")
    for i, rank in enumerate(ranks):
        assert [chosen(7 + i) for _ in range(2)] == [(rank, f"s0-{rank}")] * 2
    if len(ranks) > 1:
        p.ranks = {"9": {"engine_id": "s0-9"}}
        wait_until(lambda: chosen(7) == (9, "s0-9"), 10, "the rank that is left")
    assert s.count("unrouted_total") == 0


def test_router_that_cannot_say(site):
    """Fails if a request waits for long, or is lost, where nobody can tokenize, or where its model is not known."""
    s = site()
    s.has(1, 1)
    for server in s.servers:
        server.can_tokenize = False
    began = time.monotonic()
    for _ in range(6):
        s.complete(" ".join(map(str, tokens_of(1))))
    assert time.monotonic() - began < 15 * SLOW
    assert s.count("unrouted_total") >= 1
    before = s.count("unrouted_total")
    assert len(s.complete(tokens_of(1), model="another")) == 1
    assert s.count("unrouted_total") == before + 1
    s.proxy.daemon.wait_log("the router could not choose, so the server with the least load is used")


def test_hung_server(site):
    """Fails if routes of clients that give up end before their server gives a sign, or if the router knows nothing of what the proxy leaves out."""
    s = site()
    s.has(0, 1)
    assert s.complete(tokens_of(1)) == [0]
    hang(s.servers[0])
    answers = [ask(s.proxy, {"model": "tiny", "prompt": tokens_of(1)}) for _ in range(12)]
    assert 8 <= answers.count(True) < 12, answers
    assert s.open_routes() >= 1
    wait_until(lambda: is_left_out(s.proxy, s.servers[0]), 10, "the server to be left out")
    wait_until(lambda: s.route(tokens_of(1)) != "s0", 5, "the router to hear of it")
    before = s.servers[0].tokenized
    for i in range(6):
        assert s.complete(" ".join(map(str, tokens_of(60 + i)))) != [0]
        assert s.route(" ".join(map(str, tokens_of(70 + i)))) != "s0"
    assert s.servers[0].tokenized == before
    wake(s.servers[0])
    wait_until(lambda: s.route(tokens_of(1)) == "s0" and s.open_routes() == 0, 20, "the server to be used again")
    wait_until(lambda: s.complete(tokens_of(1)) == [0], 5, "a request for it")


def test_servers_that_are_not_the_proxys(site):
    s = site()
    assert s.proxy.servers("DELETE", {"role": "replica", "url": s.servers[1].url})[0] == 200
    s.has(1, 1)
    assert s.complete(tokens_of(1)) in ([0], [2]) and s.count("unrouted_total") == 1
    s.proxy.daemon.wait_log(re.escape(f"the router chose a server that is not available here, so the server with the least load is used\" url={s.servers[1].url}"))


def test_round_robin(site):
    s = site("--policy", "round-robin")
    s.has(1, 1)
    assert sorted(sum((s.complete(tokens_of(1)) for _ in range(6)), [])) == [0, 0, 1, 1, 2, 2]
    assert s.count("routed_total") == s.count("unrouted_total") == 0
