# SPDX-License-Identifier: Apache-2.0
"""kvpool-conductor over real sockets: recorded events of vLLM, published as vLLM does, give the matches that their own token lists imply, also
where messages are lost, come twice, or come from another process than before; and what the HTTP paths answer.
"""
import collections
import json
import os
import pathlib
import re
import socket
import struct
import threading
import time

import pytest

from conftest import ROOT, SLOW, ask_http, wait_until
from kvevents import pack
from zmqsock import ROUTER, XPUB, Socket

RECORDED = pathlib.Path(os.environ.get("KVP_KV_EVENTS", ROOT.parent / "shared" / "kv_events"))
BLOCK = 32
recorded = pytest.mark.skipif(not (RECORDED / "int.json").exists(), reason=f"no recorded events in {RECORDED}")


def read(tag):
    """[(payload, events)] of a recorded stream."""
    messages = json.loads((RECORDED / f"{tag}.json").read_text())["messages"]
    return [((RECORDED / f"{tag}-{m['seq']:03}.bin").read_bytes(), m["batch"][1]) for m in messages]


def standard(event_id, kind, hashes=None, **more):
    """A payload of one event of the standard."""
    return pack([0, [{"event_id": event_id, "event_type": kind, "model_name": "tiny", "block_size": BLOCK, "additional_salt": None, "lora_name": None,
                      "tenant_id": "default", "backend_id": "b", "medium": "cpu", "dp_rank": 0,
                      **({"seq_hashes": hashes} if hashes else {}), **more}], 0])


class Naive:
    """What the events say, block by block: where each hash stands, and how often it is there."""

    def __init__(self):
        self.place, self.count = {}, {}

    def take(self, events):
        for e in events:
            if e["type"] == "AllBlocksCleared":
                self.count.clear()
                continue
            hashes = [json.dumps(h) for h in e["block_hashes"]]
            if e["type"] == "BlockRemoved":
                for h in hashes:
                    self.count[h] -= 1
                continue
            parent = e["parent_block_hash"]
            salt, tokens = ("", []) if parent is None else self.place[json.dumps(parent)]
            keys = (e.get("extra_keys") or [None])[0]
            salt = keys[0] if parent is None and keys else salt
            for i, h in enumerate(hashes):
                tokens = tokens + e["token_ids"][i * BLOCK:(i + 1) * BLOCK]
                self.place[h] = salt, tokens
                self.count[h] = self.count.get(h, 0) + 1

    def run(self, salt, tokens):
        """Blocks of the prompt that are there, from the first on."""
        held = {(s, tuple(t)) for h, (s, t) in self.place.items() if self.count.get(h, 0) > 0}
        n = 0
        while (n + 1) * BLOCK <= len(tokens) and (salt, tuple(tokens[:(n + 1) * BLOCK])) in held:
            n += 1
        return n


class Publisher:
    """Publishes as vLLM does, and answers replays from what it has kept."""

    def __init__(self, endpoint="tcp://127.0.0.1:*", connects=False, replays=True, at=None):
        self.pub = Socket(XPUB, at[0] if at else endpoint, connects)
        self.router = Socket(ROUTER, at[1] if at else "tcp://127.0.0.1:*") if replays else None
        self.kept, self.seq, self.is_over, self.asked = [], 0, False, 0
        self.digests = pack([0, [], 0])
        self.thread = threading.Thread(target=self.serve, daemon=True)
        if replays:
            self.thread.start()

    def serve(self):
        while not self.is_over:
            frames = self.router.receive(20)
            if frames is None:
                continue
            who = frames[0]
            if frames[-1] == b"digests":
                self.router.send(who, b"", b"digests", struct.pack(">Q", self.seq - 1), self.digests)
                continue
            self.asked += 1
            for seq, payload in list(self.kept):
                if seq >= struct.unpack(">Q", frames[-1])[0]:
                    self.router.send(who, b"", b"kv-events", struct.pack(">Q", seq), payload)
            self.router.send(who, b"", b"", b"\xff" * 8, b"")

    def publish(self, payload, is_lost=False, seq=None):
        seq = self.seq if seq is None else seq
        self.seq = max(self.seq, seq + 1)
        self.kept.append((seq, payload))
        if not is_lost:
            self.pub.send(b"kv-events", struct.pack(">Q", seq), payload)

    def is_heard(self):
        """Whether a subscription, which is a message on its way to the publisher, has arrived since the last call."""
        return (self.pub.receive(50) or [b""])[0][:1] == b"\1"

    def close(self):
        self.is_over = True
        if self.router:
            self.thread.join()
            self.router.close()
        self.pub.close()


class Conductor:
    def __init__(self, bench, *args):
        self.daemon = bench.start("conductor", "kvpool-conductor", "--http", "127.0.0.1:0", *args)

    def ask(self, path, body=None, raw=None):
        status, text = ask_http(self.daemon.http, path, json.dumps(body) if raw is None and body is not None else raw)
        return status, json.loads(text)

    def register(self, publisher, **more):
        body = {"endpoint": publisher.pub.endpoint, "type": "vLLM", "modelname": "tiny", "instance_id": "i", "block_size": BLOCK, "dp_rank": 0,
                **({"replay_endpoint": publisher.router.endpoint} if publisher.router else {}), **more}
        status, answer = self.ask("/register", body)
        assert status == 200 and answer == {"status": "registered successfully", "instance_id": body["instance_id"]}, answer

    def service(self, i=0):
        return self.ask("/services")[1][i]

    def matched(self, tokens, salt="", instance="i"):
        status, answer = self.ask("/query", {"model": "tiny", "token_ids": tokens, "block_size": BLOCK, "cache_salt": salt})
        assert status == 200, answer
        return answer["default"][instance]

    def wait_seq(self, seq):
        wait_until(lambda: self.service().get("last_sequence") == seq, 10, f"message {seq} to be taken")

    def check(self, naive):
        """Every prompt that was ever told, and one block more."""
        for salt, tokens in naive.place.values():
            for asked in (tokens, tokens + [7] * BLOCK):
                got = self.matched(asked, salt)
                want = naive.run(salt, asked) * BLOCK
                assert got["CPU"] == got["DISK"] == 0, got
                assert got["longest_matched"] == got["DP"]["0"] == want == got["GPU"], (salt, len(asked), want, got)


@pytest.fixture
def conductor(bench):
    return Conductor(bench)


@pytest.fixture
def publishers():
    made = []

    def make(*args, **kw):
        made.append(Publisher(*args, **kw))
        return made[-1]

    yield make
    for p in made:
        p.close()


def subscribed(conductor, *publishers):
    """Waits until the conductor hears the publishers, and until the replays that a registration causes at other publishers are over: they
    begin a little later, and nothing shows before that they will."""
    seen = collections.deque(maxlen=12)

    def is_settled():
        seen.append([(s["state"], s["events"], s.get("stored"), s.get("ignored")) for s in conductor.ask("/services")[1]])
        return len(seen) == seen.maxlen and {s[0] for s in seen[0]} == {"live"} and all(now == seen[0] for now in seen)

    wait_until(is_settled, 10, "the subscriptions")
    for p in publishers:
        wait_until(p.is_heard, 10, "a subscription")


@recorded
@pytest.mark.parametrize("tag", ["int", "bytes"])
def test_recorded_stream(conductor, publishers, tag):
    """Fails if, behind any message of a recorded stream, a query does not give what the token lists before it imply."""
    p, naive = publishers(), Naive()
    conductor.register(p)
    subscribed(conductor, p)
    for seq, (payload, events) in enumerate(read(tag)):
        p.publish(payload)
        naive.take(events)
        conductor.wait_seq(seq)
        conductor.check(naive)
    told = conductor.service()
    assert told["gaps"] == told["drops"] == told["malformed_messages"] == 0 and told["skipped"] == [], told


@recorded
@pytest.mark.parametrize("what", ["late", "lost", "last lost", "twice"])
def test_stream_with_faults(conductor, publishers, what):
    """Fails if messages that were published before the registration, were lost, also the last one, or came twice, or out of order, leave another
    view than the whole stream."""
    p, naive = publishers(), Naive()
    messages = read("int")[:17]  # the next one clears all, and what was missed before it would not show
    if what != "late":
        conductor.register(p)
        subscribed(conductor, p)
    for seq, (payload, events) in enumerate(messages):
        p.publish(payload, is_lost=what == "lost" and seq in (0, 4, 5, 11) or what == "last lost" and seq == len(messages) - 1)
        if what == "twice" and seq % 3 == 0:
            p.publish(payload, seq=seq)
            p.publish(messages[max(0, seq - 2)][0], seq=max(0, seq - 2))
            p.kept = sorted(set(p.kept))
        naive.take(events)
    if what == "late":
        conductor.register(p)
    conductor.wait_seq(len(messages) - 1)
    conductor.check(naive)


@recorded
@pytest.mark.parametrize("already", [3, 19])
def test_publisher_restarted(conductor, publishers, already):
    """Fails if what a publisher held before it was started again is served, where the new one has told less, or as much, by the time that it is found."""
    p = publishers()
    conductor.register(p)
    subscribed(conductor, p)
    for payload, _ in read("int")[:12]:
        p.publish(payload)
    conductor.wait_seq(11)
    at = p.pub.endpoint, p.router.endpoint
    p.close()
    again, naive = publishers(at=at), Naive()
    for payload, events in read("bytes")[:already]:
        again.publish(payload)
        naive.take(events)
    wait_until(lambda: conductor.service()["incarnations"] > 0, 15, "the conductor to notice")
    conductor.wait_seq(already - 1)
    conductor.check(naive)


@recorded
def test_publisher_that_connects(conductor, publishers):
    """Fails if an engine that connects to the conductor, which vLLM does where its endpoint has no wildcard, is not heard; without a replay endpoint a gap
    drops what is held."""
    from clients import free_ports
    port, messages, naive = free_ports(1)[0], read("int"), Naive()
    status, _ = conductor.ask("/register", {"endpoint": f"tcp://*:{port}", "type": "vLLM", "modelname": "tiny", "instance_id": "i",
                                            "block_size": BLOCK, "dp_rank": 0})
    assert status == 200
    p = publishers(f"tcp://127.0.0.1:{port}", connects=True, replays=False)
    subscribed(conductor, p)
    for payload, events in messages[:5]:
        p.publish(payload)
        naive.take(events)
    conductor.wait_seq(4)
    conductor.check(naive)
    p.publish(messages[5][0], is_lost=True)
    p.publish(messages[6][0])
    conductor.wait_seq(6)
    assert conductor.service()["drops"] == 1
    assert all(conductor.matched(tokens, salt)["longest_matched"] == 0 for salt, tokens in naive.place.values())


def test_two_engines_at_a_bound_endpoint(conductor, publishers):
    """Fails if a second engine that connects to a bound endpoint, with the same topic, clears the first one's blocks or counts as
    it, if nothing shows it, if it is not heard when the first one has gone, or if an engine that registers its bound endpoint
    again finds the port in use.
    """
    from clients import free_ports
    port, tokens = free_ports(1)[0], list(range(2 * BLOCK))
    body = {"endpoint": f"tcp://*:{port}", "type": "vLLM", "modelname": "tiny", "instance_id": "i", "block_size": BLOCK, "dp_rank": 0}
    for host in ["*", "0.0.0.0"] * 20:
        assert conductor.ask("/register", {**body, "endpoint": f"tcp://{host}:{port}"})[0] == 200
    status, answer = conductor.ask("/register", {**body, "instance_id": "j"})
    assert status == 409 and "in use by instance i" in answer["error"]
    first, second = (publishers(f"tcp://127.0.0.1:{port}", connects=True, replays=False) for _ in range(2))
    subscribed(conductor, first, second)

    def stored(n, parent=None):
        return pack([0, [["BlockStored", [n], parent, tokens[(n - 1) * BLOCK:n * BLOCK], BLOCK, None, "GPU"]]])

    first.publish(stored(1))
    conductor.wait_seq(0)
    second.publish(pack([0, [["AllBlocksCleared"]]]), seq=7)
    wait_until(lambda: conductor.service().get("refused_messages") == 1, 5, "the second engine to be shown")
    assert conductor.service()["refused_topic"] == "kv-events"
    first.publish(stored(2, 1))
    conductor.wait_seq(1)
    assert conductor.matched(tokens)["GPU"] == 2 * BLOCK and conductor.service()["drops"] == 0
    first.close()
    wait_until(lambda: conductor.matched(tokens)["longest_matched"] == 0, 10, "the first engine's blocks to be dropped")
    second.publish(stored(1), seq=8)
    wait_until(lambda: conductor.matched(tokens)["longest_matched"] == BLOCK, 5, "the second engine to be heard")


def test_names_of_media(conductor, publishers):
    """Fails if a medium's name of 64 bytes is cut, so that two media count as one, or if a longer one is not refused."""
    p, name = publishers(replays=False), "a-medium-with-a-long-name-of-sixty-four-bytes-that-ends-with-its"
    conductor.register(p)
    subscribed(conductor, p)
    for i, medium in enumerate((name, name[:15], name + "x")):
        p.publish(standard(1, "stored", [11 + i], base_block_idx=0, medium=medium))
    conductor.wait_seq(2)

    def media(block_hash):
        got = conductor.ask("/query_by_hash", {"model": "tiny", "seq_hashes": [block_hash], "block_size": BLOCK})[1]["default"]["i"]
        return [k for k, v in got.items() if v == BLOCK and k != "longest_matched"]

    assert conductor.matched([7] * BLOCK) == {"longest_matched": 0, "GPU": 0, "CPU": 0, "DISK": 0, "DP": {"0": 0}, name.upper(): 0, name[:15].upper(): 0}

    assert len(name) == 64 and media(11) == [name.upper()] and media(12) == [name[:15].upper()] and media(13) == []
    assert [s["n"] for s in conductor.service()["skipped"]] == [1]


@recorded
def test_unregister_and_restart(bench, publishers):
    """Fails if an unregistered publisher is in answers, or registrations do not outlive the conductor."""
    conductor, p, naive = Conductor(bench, "--data-dir", f"{bench.home}/c"), publishers(), Naive()
    conductor.register(p)
    conductor.register(p, instance_id="other", dp_rank=3)
    for payload, events in read("int"):
        p.publish(payload)
        naive.take(events)
    wait_until(lambda: all(conductor.service(i).get("last_sequence") == 18 for i in range(2)), 10, "both to be level")
    key = {"type": "vLLM", "modelname": "tiny", "instance_id": "other", "block_size": BLOCK, "dp_rank": 3}
    assert conductor.ask("/unregister", key) == (200, {"status": "unregistered successfully", "removed_instances": ["other|default|3"]})
    assert conductor.ask("/unregister", key)[0] == 404
    tokens = next(t for s, t in naive.place.values() if naive.run(s, t) > 0)
    assert set(conductor.ask("/query", {"model": "tiny", "token_ids": tokens, "block_size": BLOCK})[1]["default"]) == {"i"}
    second = bench.start("second", "kvpool-conductor", "--http", "127.0.0.1:0", "--data-dir", f"{bench.home}/c", ready=False)
    wait_until(lambda: not second.is_running(), 5, "a second conductor of the directory to give up")
    second.wait_log("another conductor uses the data directory")
    assert second.proc.wait() == 1
    second.kill9()
    conductor.daemon.terminate()
    conductor = Conductor(bench, "--data-dir", f"{bench.home}/c")
    wait_until(lambda: conductor.ask("/ready")[0] == 200, 10, "the conductor to be ready")
    conductor.check(naive)


def test_bad_requests(conductor):
    """Fails if a malformed request is taken, or its answer has no reason."""
    good = {"model": "m", "token_ids": [1, 2, 3], "block_size": 2}
    assert conductor.ask("/query", good) == (200, {"default": {}})
    assert conductor.ask("/query", {**good, "tenant_id": "t"}) == (200, {"t": {}})
    big = {"model": "m", "seq_hashes": [2**64 - 1], "block_size": 2}
    assert conductor.ask("/query_by_hash", big)[0] == conductor.ask("/query_by_hash", {"model": "m", "block_hash": [1], "block_size": 2})[0] == 200
    register = {"endpoint": "tcp://127.0.0.1:1", "type": "vLLM", "modelname": "m", "instance_id": "i", "block_size": 2, "dp_rank": 0}
    for path, body in (("/query", {**good, "token_ids": [1.5]}), ("/query", {**good, "token_ids": [-1]}), ("/query", {**good, "token_ids": [2**32]}),
                       ("/query", {**good, "token_ids": "no"}), ("/query", {**good, "block_size": 0}), ("/query", {**good, "block_size": 1.5}),
                       ("/query", {**good, "lora_name": "a", "lora_id": 1}), ("/query", {**good, "model": 'a"b'}), ("/query", {"model": "m"}),
                       ("/query_by_hash", {**big, "seq_hashes": [2**64]}), ("/query_by_hash", {**big, "seq_hashes": [[1]]}),
                       ("/register", {**register, "endpoint": "http://h"}), ("/register", {**register, "endpoint": "tcp://nowhere"}),
                       ("/register", {**register, "block_size": 2**40}), ("/register", {**register, "dp_rank": -1}),
                       ("/register", {**register, "role": "boss"}), ("/register", {**register, "url": "foo"}), ("/register", {**register, "url": "http://h:99999"}),
                       ("/register", {}), ("/register", []), ("/unregister", {"instance_id": 1})):
        status, answer = conductor.ask(path, body)
        assert status == 400 and answer["error"], (path, body, status, answer)
    for raw in (b"", b"{", b'{"token_ids":[1,2', b"[" * 100000, b'{"token_ids":[' + b"[" * 1000, b"\xff", b'{"token_ids":[1,]}', b'{"token_ids":[01]}'):
        assert conductor.ask("/query", raw=raw)[0] == 400, raw[:20]
    assert conductor.ask("/query", raw=b'{"token_ids":[' + b"1," * (8 << 20) + b"1]}")[0] == 413
    assert conductor.ask("/nowhere")[0] == 404 and conductor.ask("/query")[0] == 405
    many = {**good, "token_ids": list(range(500000))}
    assert conductor.ask("/query", many) == (200, {"default": {}})


def test_bad_messages(conductor, publishers):
    """Fails if a message that is none ends the conductor, is taken for an event, or is not counted."""
    p = publishers(replays=False)
    conductor.register(p)
    subscribed(conductor, p)
    bad = [b"", b"\xc1", b"\x93", b"\x92\x00", b"\x93\x00\x90\x00", b"\xdd\xff\xff\xff\xff", b"\x91" * 100, b"\x93\xcb" + b"\0" * 8 + b"\xdd\xff\xff\xff\xf0\x00",
           b"\x93\x00\x91\x81\xa4type\xabBlockStored\x00", b"\x93\x00\x91\x91\xa3abc\x00", b"\x93\x00\x91\xc0\x00", os.urandom(1000)]
    for payload in bad:
        p.publish(payload)
    for frames in ([b"x"], [b"x", b"y"], [b"", b"\0" * 7, b""], [b"", b"\0" * 8, b"", b""], [b""] * 9):
        p.pub.send(*frames)
    wait_until(lambda: conductor.service()["malformed_messages"] == 5, 5, "messages of other frames to be counted")
    told = conductor.service()
    assert sum(s["n"] for s in told["skipped"]) == len(bad) - 1 and told["blocks"] == 0, told  # one is a payload without an event


def test_standard_events(conductor, publishers):
    """Fails if events of the standard's envelope are not taken as they say: by medium, salt, rank and place, in the order of their numbers."""
    p = publishers(replays=False)
    conductor.register(p)
    subscribed(conductor, p)
    chain, salted = [11, 12, 13], {"additional_salt": "s"}

    def matched(hashes=chain, **more):
        got = conductor.ask("/query_by_hash", {"model": "tiny", "seq_hashes": hashes, "block_size": BLOCK, **more})[1]["default"]["i"]
        return got["longest_matched"] // BLOCK, {k: v // BLOCK for k, v in got.items() if k in ("CPU", "DISK")}

    def say(*payloads):
        for payload in payloads:
            p.publish(payload)
        conductor.wait_seq(p.seq - 1)

    say(standard(1, "stored", chain[:2], base_block_idx=0), standard(1, "stored", chain, base_block_idx=0, medium="disk"),
        standard(1, "stored", chain[:1], base_block_idx=0, **salted))
    assert matched() == (3, {"CPU": 2, "DISK": 3}) and matched(cache_salt="s") == (1, {"CPU": 1, "DISK": 0})
    # A run begins at the first block, whatever hashes are asked for.
    assert matched(chain[1:])[0] == matched([13])[0] == 0 and matched([11, 11, 11])[0] == 1
    say(standard(2, "removed", [11], **salted))
    assert matched()[0] == 3 and matched(cache_salt="s")[0] == 0
    say(standard(3, "cleared", **salted), standard(1, "cleared", medium="disk", backend_id="other"))
    assert matched()[0] == 3
    say(standard(2, "cleared", medium="disk"))
    assert matched() == (2, {"CPU": 2, "DISK": 0})
    say(standard(2, "stored", [13], parent_hash=12), standard(2, "removed", [11]))  # the second has been told
    assert matched()[0] == 3
    say(standard(3, "stored", [99], base_block_idx=0, dp_rank=4), standard(3, "stored", [99], base_block_idx=0, model_name="other"))
    assert matched([99])[0] == 0 and sum(k["n"] for k in conductor.service()["skipped"]) == 2
    say(standard(9, "stored", [55], base_block_idx=0))  # what was missed may have been a removal
    assert matched()[0] == 0 and matched([55])[0] == 1 and conductor.service()["gaps"] == 1


def salted(layout, hashes, parent, tokens, salt):
    """A BlockStored of SGLang with that salt, as its versions have laid it out."""
    array = ["BlockStored", hashes, parent, tokens, BLOCK, None, "GPU"]
    tagged = [[f"dynamo-cache-salt:{salt}"]]
    named = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens, "block_size": BLOCK, "lora_id": None, "medium": "GPU"}
    return {"map behind the medium": [*array, {"cache_salt": salt, "session_id": "x"}],
            "tagged extra key": [*array, None, tagged],
            "tagged extra key and a map at the end": [*array, None, tagged, None, None, None, None, None, {"cache_salt": salt}],
            "tagged map": {**named, "cache_salt": salt},
            "tagged map with an adapter's key": {**named, "cache_salt": salt, "extra_keys": [["a"]], "lora_name": "a"}}[layout]


@pytest.mark.parametrize("layout", ["map behind the medium", "tagged extra key", "tagged extra key and a map at the end", "tagged map", "tagged map with an adapter's key"])
def test_salt_of_sglang(conductor, publishers, layout):
    """Fails if a block that is told with a salt counts without it, or under another one, or if a salt that cannot be attributed is not skipped and counted."""
    p, tokens = publishers(replays=False), list(range(1, 2 * BLOCK + 1))
    conductor.register(p)
    subscribed(conductor, p)
    lora = {"lora_name": "a"} if "adapter" in layout else {}

    def blocks(salt, **more):
        answer = conductor.ask("/query", {"model": "tiny", "token_ids": tokens, "block_size": BLOCK, "cache_salt": salt, **lora, **more})[1]
        return answer["default"]["i"]["longest_matched"] // BLOCK

    first, second = (salted(layout, [n], n - 1 or None, tokens[(n - 1) * BLOCK:n * BLOCK], "tenant-a") for n in (1, 2))
    p.publish(pack([0, [first, second, ["BlockStored", [11], None, tokens[:BLOCK], BLOCK, None, "GPU"]], 0]))
    conductor.wait_seq(0)
    assert blocks("tenant-a") == blocks("dynamo-cache-salt:tenant-a") == 2
    assert blocks("", lora_name="") == 1 and blocks("tenant-b") == 0 and conductor.service()["skipped"] == []
    # A child of another salt than its parent's; two salts in one event; a salt that is no text.
    named = {"type": "BlockStored", "block_hashes": [21], "parent_block_hash": None, "token_ids": tokens[:BLOCK], "block_size": BLOCK}
    p.publish(pack([0, [salted(layout, [3], 1, tokens[BLOCK:], "tenant-b"), {**named, "cache_salt": "tenant-b", "extra_keys": [["dynamo-cache-salt:tenant-c"]]},
                        {**named, "cache_salt": 5}, salted("map behind the medium", [21], None, tokens[:BLOCK], 5)], 0]))
    conductor.wait_seq(1)
    assert sorted(s["n"] for s in conductor.service()["skipped"]) == [2, 2], conductor.service()["skipped"]
    assert blocks("tenant-b") == blocks("tenant-c") == 0 and blocks("", lora_name="") == 1


def test_offloaded_blocks(conductor, publishers):
    """Fails if vLLM's offloading, which tells hashes without tokens, does not count where the hashes are known, or if others are not counted as skipped."""
    p, tokens = publishers(replays=False), list(range(1, 2 * BLOCK + 1))
    conductor.register(p)
    subscribed(conductor, p)
    p.publish(pack([0, [["BlockStored", [1, 2], None, tokens, BLOCK, None, "GPU", None, None, 1, "full_attention"]], 0]))
    for hashes, medium, group in (([1, 2, 7], "CPU", 1), ([1, 2], "DISK", 2), ([1], "DISK", None)):
        p.publish(pack([0, [["BlockStored", hashes, None, [], 0, None, medium, None, None, group]], 0]))
    p.publish(pack([0, [["BlockRemoved", [1, 2], "GPU", 1]], 0]))
    conductor.wait_seq(p.seq - 1)
    got = conductor.matched(tokens)
    assert (got["GPU"], got["CPU"], got["DISK"]) == (0, 2 * BLOCK, BLOCK), got
    assert [s["n"] for s in conductor.service()["skipped"]] == [3]
    p.publish(pack([0, [["BlockRemoved", [1], "CPU", 1], ["BlockRemoved", [1], "DISK"]], 0]))
    conductor.wait_seq(p.seq - 1)
    assert conductor.matched(tokens)["longest_matched"] == 0


def test_come_and_gone(conductor, publishers):
    """Fails if publishers that are registered and unregistered at once leave the others unheard, or one that is refused ends the one before."""
    p = publishers(replays=False)
    key = {"instance_id": "x", "dp_rank": 0}
    for _ in range(30):
        conductor.register(p, instance_id="x")
        assert conductor.ask("/unregister", key)[0] == 200
    conductor.register(p)
    subscribed(conductor)
    # The last subscription may still be on its way.
    wait_until(lambda: (p.publish(standard(1, "stored", [1], base_block_idx=0), seq=0), conductor.service().get("last_sequence") == 0)[1], 10, "the event")
    bad = {"endpoint": "tcp://127.0.0.1", "type": "vLLM", "modelname": "tiny", "instance_id": "i", "block_size": BLOCK, "dp_rank": 0}
    assert conductor.ask("/register", bad)[0] == 400
    assert conductor.ask("/register", {**bad, "endpoint": p.pub.endpoint, "shared": 1})[0] == 400
    assert conductor.service()["blocks"] == 1
    # An engine that cannot be asked whether it is the same is not believed when its connection ends.
    p.close()
    wait_until(lambda: conductor.service()["blocks"] == 0, 10, "the blocks of an engine that is gone to be dropped")


def test_more_blocks_than_there_may_be(bench, publishers):
    """Fails if places of blocks that nobody holds any more keep others out."""
    conductor, p = Conductor(bench, "--max-blocks", "50"), publishers(replays=False)
    conductor.register(p)
    subscribed(conductor, p)
    event = 0
    for i in range(120):
        for kind in ("stored", "removed"):
            event += 1
            p.publish(standard(event, kind, [1000 + i], **({"base_block_idx": 0} if kind == "stored" else {})))
        conductor.wait_seq(p.seq - 1)
        time.sleep(0.02)
    time.sleep(1)
    p.publish(standard(event + 1, "stored", [7], base_block_idx=0))
    conductor.wait_seq(p.seq - 1)
    assert conductor.ask("/query_by_hash", {"model": "tiny", "seq_hashes": [7], "block_size": BLOCK})[1]["default"]["i"]["longest_matched"] == BLOCK


def test_flood_and_slow_clients(bench, publishers):
    """Fails if a publisher that floods takes memory without bound or keeps others from being heard and answered, if clients that send no more of a request hold up others, or if
    SIGTERM does not end it all in time."""
    conductor = Conductor(bench)
    flood, calm = publishers(replays=False), publishers()
    conductor.register(flood, instance_id="flood")
    conductor.register(calm, instance_id="calm")
    subscribed(conductor, flood, calm)
    is_over = threading.Event()
    big = pack([0, [{"type": "BlockStored", "block_hashes": list(range(n, n + 1000)), "parent_block_hash": None, "token_ids": [n] * 1000 * BLOCK, "block_size": BLOCK,
                     "medium": "GPU"} for n in range(8)]])

    def send():
        n = 0
        while not is_over.is_set():
            flood.pub.send(b"kv-events", struct.pack(">Q", n), big)
            n += 1

    slow = []
    for begin in (b"", b"GET /hea", b"POST /query HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"):
        for _ in range(20):
            slow.append(socket.create_connection(conductor.daemon.http.split(":")))
            slow[-1].sendall(begin)
    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    tokens = [7] * BLOCK
    calm.publish(pack([0, [{"type": "BlockStored", "block_hashes": [1], "parent_block_hash": None, "token_ids": tokens, "block_size": BLOCK, "medium": "GPU"}]]))
    wait_until(lambda: conductor.matched(tokens, instance="calm").get("GPU") == BLOCK, 5, "the calm one's event")
    until, took_s = time.monotonic() + 3, []
    while time.monotonic() < until:
        begun = time.monotonic()
        assert conductor.ask("/health")[0] == 200
        took_s.append(time.monotonic() - begun)
    rss = int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{conductor.daemon.pid}/status").read_text())[1])
    assert rss < (400 << 10) * SLOW and sorted(took_s)[-3] < 1 * SLOW, (rss, sorted(took_s)[-5:])  # the process may have stood still
    begun = time.monotonic()
    conductor.daemon.terminate()
    took = time.monotonic() - begun
    is_over.set()
    thread.join()
    for s in slow:
        s.close()
    assert took < 8 * SLOW, took


def test_message_that_is_too_long(conductor, publishers):  # noqa: F811
    """Fails if a publisher is lost for good when it has sent a message that is longer than any may be."""
    p = publishers(replays=False)
    conductor.register(p)
    subscribed(conductor, p)
    tokens = [7] * BLOCK
    p.publish(b"\xc6" + struct.pack(">I", 5 << 20) + b"\0" * (5 << 20))
    good = pack([0, [{"type": "BlockStored", "block_hashes": [1], "parent_block_hash": None, "token_ids": tokens, "block_size": BLOCK, "medium": "GPU"}]])

    def is_heard():
        p.publish(good)
        return conductor.matched(tokens).get("GPU") == BLOCK

    wait_until(is_heard, 15, "the publisher to be heard again")


def test_endpoint_where_nothing_listens(bench):
    """Fails if a publisher that cannot be reached seems to be replayed, if the reason is not shown, if it is logged each time, or if /ready does not stay 200 or hides it."""
    held = [socket.socket() for _ in range(2)]  # bound, and nothing listens
    for s in held:
        s.bind(("127.0.0.1", 0))
    at = [f"tcp://127.0.0.1:{s.getsockname()[1]}" for s in held]
    conductor = Conductor(bench)
    wait_until(lambda: conductor.ask("/ready") == (200, {"status": "ready", "unreachable": []}), 5, "the conductor to be ready")
    body = {"endpoint": at[0], "replay_endpoint": at[1], "type": "vLLM", "modelname": "tiny", "instance_id": "i", "block_size": BLOCK, "dp_rank": 0}
    assert conductor.ask("/register", body)[0] == 200
    wait_until(lambda: conductor.service()["state"] == "unreachable", 5, "it to be found unreachable")
    end = time.monotonic() + 7  # longer than a replay may take
    while time.monotonic() < end:
        service, (status, ready) = conductor.service(), conductor.ask("/ready")
        assert service["state"] == "unreachable" and service["unreachable"] == f"{at[0]}: connection refused", service
        assert status == 200 and [u["instance_id"] for u in ready["unreachable"]] == ["i"] and ready["unreachable"][0]["unreachable"] == service["unreachable"], ready
        assert conductor.ask("/global_view")[1]["instances"][0]["state"] == "unreachable"
        time.sleep(0.2)

    def logged(what):
        return sum(what in line and at[0] in line for line in conductor.daemon.log().splitlines())

    assert logged("cannot be reached") == 1
    for s in held:
        s.close()
    publisher = Publisher(at=at)
    wait_until(lambda: conductor.service()["state"] == "live" and "unreachable" not in conductor.service(), 15, "it to be reached")
    wait_until(lambda: logged("reached again") == 1, 5, "the log")
    assert logged("cannot be reached") == 1
    assert conductor.ask("/ready") == (200, {"status": "ready", "unreachable": []})
    publisher.close()
    # A replay endpoint alone, a name that is none, and a port that speaks something else.
    publisher, other = Publisher(replays=False), socket.create_server(("127.0.0.1", 0))
    dead = socket.socket()
    dead.bind(("127.0.0.1", 0))
    port = dead.getsockname()[1]
    for name, endpoint, replay in (("a", publisher.pub.endpoint, f"tcp://127.0.0.1:{port}"), ("b", "ipc:///nonexistent/x", ""), ("c", f"tcp://127.0.0.1:{other.getsockname()[1]}", "")):
        assert conductor.ask("/register", {**body, "endpoint": endpoint, "replay_endpoint": replay, "instance_id": name})[0] == 200

    def seen():
        return {s["instance_id"]: (s["state"], s.get("unreachable", "").rpartition(": ")[2]) for s in conductor.ask("/services")[1] if s["instance_id"] != "i"}

    want = {"a": ("live", "connection refused"), "b": ("unreachable", "No such file or directory"), "c": ("unreachable", "it takes connections, and speaks no ZMQ")}
    wait_until(lambda: seen() == want, 20, "the reasons of the others")
    publisher.close()
    other.close()
    dead.close()
