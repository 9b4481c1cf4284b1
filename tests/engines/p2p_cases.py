# SPDX-License-Identifier: Apache-2.0
"""MooncakeConnector, from prefill servers to decode servers: by hand, and through the proxy while servers are killed."""
import http.client
import json
import os
import signal
import sys
import threading
import time

from places import CALL_S, Store, Wrong, await_http, counters, free_ports, post
from prompts import BLOCK_TOKENS

ABORT_S = 10  # after which a prefill server frees what nobody fetches
# A decode server waits so long for a prefill server that died: by vLLM 60 s more than ABORT_S.
FREED_S = ABORT_S + 60 + 60


def request(prompt, tokens):
    return {"model": "tiny", "prompt": prompt, "temperature": 0, "ignore_eos": True, "return_token_ids": True, "max_tokens": tokens}


def serve(place, name, role, port, dtype, stores=False):
    """A server of vLLM. producer: the prefill side; consumer: the decode side. stores: it has a pool, too."""
    transfer = {"kv_connector": "CpuMooncakeConnector", "kv_connector_module_path": "cpu_connector", "kv_role": f"kv_{role}",
                "kv_connector_extra_config": {"mooncake_protocol": "tcp", "num_workers": 2}}
    if stores:
        transfer = {"kv_connector": "MultiConnector", "kv_role": f"kv_{role}", "kv_connector_extra_config": {
            "connectors": [transfer, {"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both",
                                      # Else all engines of a host look up at the one that began last.
                                      "kv_connector_extra_config": {"lookup_rpc_port": port}}]}}
    return place.start(
        name, sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", place.model, "--served-model-name", "tiny",
        "--host", "127.0.0.1", "--port", port, "--enforce-eager", "--dtype", dtype, "--max-model-len", "2048", "--max-num-seqs", "4", "--block-size", str(BLOCK_TOKENS),
        "--kv-transfer-config", json.dumps(transfer))


def p2p(place):
    ports, bootstrap = free_ports(2), free_ports(1)[0]
    place.env["VLLM_MOONCAKE_BOOTSTRAP_PORT"] = str(bootstrap)
    servers = [serve(place, role, role, port, "bfloat16") for port, role in zip(ports, ("producer", "consumer"))]
    for port in ports:
        await_http(f"http://127.0.0.1:{port}/health", *servers)
    boot = f"http://127.0.0.1:{bootstrap}"
    engine = json.loads(await_http(f"{boot}/query", *servers))["0"]["engine_id"]
    total, times = 0, []
    prompts = ["the quick brown fox jumps over the lazy dog " * 24, "blocks go from one engine to the other " * 20]
    for turn, prompt in enumerate(prompts):
        body = request(prompt, 1)
        transfer = {"transfer_id": f"transfer-{turn}"}
        post(ports[0], {**body, "kv_transfer_params": {
            **transfer, "do_remote_decode": True, "do_remote_prefill": False}})
        begun = time.monotonic()
        far = post(ports[1], {**body, "max_tokens": 16, "kv_transfer_params": {
            **transfer, "do_remote_decode": False, "do_remote_prefill": True, "remote_bootstrap_addr": boot,
            "remote_engine_id": engine}})
        times.append(time.monotonic() - begun)
        near = post(ports[0], {**body, "max_tokens": 16})
        if far["choices"][0]["token_ids"] != near["choices"][0]["token_ids"]:
            raise Wrong(f"prompt {turn}: the decode engine generated other tokens than the prefill engine alone")
        total += far["usage"]["prompt_tokens"]
    came = sum(n for name, n in counters(ports[1], "vllm:prompt_tokens_by_source_total").items() if "external_kv_transfer" in name)
    if came < total - 2 * BLOCK_TOKENS:
        raise Wrong(f"{came:.0f} of {total} prompt tokens came by transfer")
    return (f"{came:.0f} of {total} prompt tokens came by transfer, same tokens; decode requests took "
            + " and ".join(f"{1000 * s:.0f} ms" for s in times))


# ---- through the proxy


class Load:
    """Clients that ask the proxy without a pause, each time a prompt of their own, every second one as a stream."""

    def __init__(self, port, clients):
        self.port, self.over, self.answers, self.lost, self.broken = port, threading.Event(), {}, [], []
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(clients)]
        for t in self.threads:
            t.start()

    def run(self, client):
        turn = 0
        while not self.over.is_set():
            prompt = f"client {client} asks for the {turn}th time " * (3 + (client + turn) % 20)
            self.ask(prompt, turn % 2 == 1)
            turn += 1

    @staticmethod
    def long(streams):
        return 96 if streams else 16

    def ask(self, prompt, streams):
        body = {**request(prompt, self.long(streams)), "stream": streams}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=CALL_S)
        tokens, has_begun = [], False
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise Wrong(f"status {answer.status}: {answer.read(300)}")
            if not streams:
                tokens = json.loads(answer.read())["choices"][0]["token_ids"]
            else:
                for line in answer:
                    has_begun = True
                    if line.startswith(b"data: {"):
                        event = json.loads(line[6:])
                        if "error" in event:
                            raise Wrong(f"{event}")
                        tokens += event["choices"][0].get("token_ids") or []
            if len(tokens) != self.long(streams):
                raise Wrong(f"{len(tokens)} tokens")
        except (Wrong, OSError, http.client.HTTPException, ValueError) as e:
            (self.broken if has_begun else self.lost).append(f"{prompt[:30]}: {e}")
        self.answers[prompt] = tokens
        connection.close()

    def end(self):
        self.over.set()
        for t in self.threads:
            t.join()


def kill(process):
    """As it would die by the kernel's hand: its engine with it."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def used(port):
    """What vLLM says is in use, when nothing is asked but this."""
    post(port, {"model": "tiny", "prompt": "a", "max_tokens": 1})
    told = [counters(port, f"vllm:{name}{{") for name in ("kv_cache_usage_perc", "num_requests_running", "num_requests_waiting")]
    if not all(told):
        raise Wrong(f"vLLM does not tell what is in use: {told}")
    return sum(sum(gauge.values()) for gauge in told)


def await_freed(ports):
    end = time.monotonic() + FREED_S
    while any(left := [used(port) for port in ports]):
        if time.monotonic() > end:
            raise Wrong(f"blocks or requests are left after {FREED_S} s: {left}")
        time.sleep(1)


def pd_killed(place):
    """Two prefill servers that have a pool, too, and two decode servers behind the proxy; under load one of each is killed.
    No request of which nothing had come is lost, all tokens are those of one server alone, and the servers that live have
    freed all blocks."""
    place.env["VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT"] = str(ABORT_S)
    store = Store(place, "standalone-store", 0)
    store.owner()
    prefill, bootstrap, decode, (proxy, admin) = free_ports(2), free_ports(2), free_ports(2), free_ports(2)
    servers = {}
    for i, port in enumerate(prefill):
        place.env["VLLM_MOONCAKE_BOOTSTRAP_PORT"] = str(bootstrap[i])
        servers[port] = serve(place, f"prefill{i}", "producer", port, "float32", stores=True)
    for i, port in enumerate(decode):
        servers[port] = serve(place, f"decode{i}", "consumer", port, "float32")
    for port in servers:
        await_http(f"http://127.0.0.1:{port}/health", *servers.values())
    flags = [word for port, boot in zip(prefill, bootstrap) for word in ("--prefill", f"http://127.0.0.1:{port},{boot}")]
    flags += [word for port in decode for word in ("--decode", f"http://127.0.0.1:{port}")]
    place.start("proxy", place.programs / "kvpool-conductor", "--proxy", f"127.0.0.1:{proxy}", "--http", f"127.0.0.1:{admin}",
                "--first-byte-timeout", "15s", *flags)
    await_http(f"http://127.0.0.1:{proxy}/healthcheck")
    load = Load(proxy, 4)
    time.sleep(10)
    before = len(load.answers)
    kill(servers[prefill[0]])
    time.sleep(10)
    kill(servers[decode[0]])
    time.sleep(30)
    load.end()
    if load.lost:
        raise Wrong(f"{len(load.lost)} of {len(load.answers)} requests were lost: {load.lost[:3]}")
    told = counters(proxy, "kvpool_proxy_")
    if told["kvpool_proxy_broken_total"] != len(load.broken) or len(load.answers) < before + 20:
        raise Wrong(f"{len(load.broken)} streams broke, {len(load.answers)} answers; {told}")
    came = sum(n for name, n in counters(decode[1], "vllm:prompt_tokens_by_source_total").items() if "external_kv_transfer" in name)
    if came == 0:
        raise Wrong("nothing came by transfer")
    for prompt, tokens in load.answers.items():
        alone = post(prefill[1], request(prompt, max(len(tokens), 1)))
        if alone["choices"][0]["token_ids"][:len(tokens)] != tokens:
            raise Wrong(f"other tokens than one server's: {prompt[:30]}")
    keys = len(store.keys())
    if keys == 0:
        raise Wrong("nothing was stored")
    begun = time.monotonic()
    await_freed((prefill[1], decode[1]))
    return (f"{len(load.answers)} requests, {before} of them before the first kill; {len(load.broken)} streams broke behind their "
            f"first byte, none was lost; {told['kvpool_proxy_plain_total']:.0f} decoded without their prefill; {came:.0f} tokens "
            f"came by transfer to the decode server that lives, {keys} blocks are in the pool; same tokens; all blocks free after {time.monotonic() - begun:.0f} s")
