# SPDX-License-Identifier: Apache-2.0
"""One vLLM engine, in this process but for the ranks of a parallel one: kvpool_once.py MODEL ARGUMENTS. ARGUMENTS is JSON: "engine"
holds arguments of LLM, and "extra" the settings of kvpool.vllm.KVPoolConnector with "policy" for failed loads beside them, or null for
an engine without a cache. With VLLM_ENABLE_V1_MULTIPROCESSING=1 the scheduler has a process of its own. Prints "result {}" when it is
ready. Each line of standard input is JSON: "do" is the name of a method of Engine, the rest its arguments.
A line that begins with "result " holds the answer.

The connector is a subclass that reads faults from the file KVPOOL_TEST_FAULTS: `delay_s` before each put, `rank_s` before each load
and put for each rank before this one, `refused`: the rank whose puts fail, `lost`: a block whose last shard is removed before each load."""
import dataclasses
import json
import os
import sys
import time

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # before vllm is imported

from kvpool.vllm.connector import KVPoolConnector  # noqa: E402

RESET_S = 30


def faults():
    with open(os.environ["KVPOOL_TEST_FAULTS"]) as file:
        return json.load(file)


class FaultyConnector(KVPoolConnector):
    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        lost, side = faults().get("lost"), self.scheduler
        for i, group in enumerate(side.groups if lost is not None and num_external_tokens else ()):
            block = side.requests.hashes(request, i)[lost].hex().encode()
            side.attachment.pool.remove_many([side.names.object_prefix(group, group.shards - 1, 0) + block], force=True)
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    def register_kv_caches(self, kv_caches):
        super().register_kv_caches(kv_caches)
        moving, rank = self.worker.transfers, self._vllm_config.parallel_config.rank
        get, put = moving._get, moving._put

        def slow_get(loading, *more):
            time.sleep(faults().get("rank_s", 0) * rank)
            get(loading, *more)

        def slow_put(save, report, *more):
            given = faults()
            time.sleep(given.get("delay_s", 0) + given.get("rank_s", 0) * rank)
            if given.get("refused") == rank:
                report.failed.update((p.group, p.first + i) for p in save.parts for i in range(len(p.blocks)))
            else:
                put(save, report, *more)

        moving._get, moving._put = slow_get, slow_put


class Engine:
    def __init__(self, model, engine, extra):
        from vllm import LLM

        from prompts import BLOCK_TOKENS

        more = {} if extra is None else {"kv_transfer_config": {
            "kv_connector": "FaultyConnector", "kv_connector_module_path": "kvpool_once", "kv_role": "kv_both",
            "kv_load_failure_policy": extra.pop("policy", "recompute"), "kv_connector_extra_config": extra}}
        # With bfloat16 a batch of another size may generate other tokens without any cache.
        self.llm = LLM(model, enforce_eager=True, dtype="float32", max_model_len=2048, max_num_seqs=4, block_size=BLOCK_TOKENS, seed=0,
                       disable_log_stats=False, prefix_caching_hash_algo="sha256_cbor",
                       **{"distributed_executor_backend": "uni", **more, **engine})
        self.core = getattr(self.llm.llm_engine.engine_core, "engine_core", None)  # None: in a process of its own
        self.side = None if extra is None or self.core is None else self.core.scheduler.connector.scheduler

    def counts(self):
        """The connector's figures, and vLLM's preemptions."""
        shown = {(m.name, m.labels.get("cause")): m.value for m in self.llm.get_metrics() if hasattr(m, "value")}
        found = {f"failed_{cause}" if cause else name.removeprefix("vllm:kvpool_"): value for (name, cause), value in shown.items()
                 if name.startswith("vllm:kvpool_")}
        return {"preemptions": shown["vllm:num_preemptions", None], **(found if self.side is None else self.side.requests.counts)}

    def settle(self):
        """Until all loads and saves have been reported. That of a process of its own cannot be seen here."""
        while self.core and (self.core.scheduler.has_requests() or (self.side and self.side.requests._loads)):
            self.core.step_fn()
            time.sleep(0.001)  # as vLLM's own loop does: the threads of the connector need the interpreter

    def params(self, tokens, params=None):
        from vllm import SamplingParams

        return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, extra_args=params and {"kv_transfer_params": params})

    def ask(self, prompts, tokens=16, together=False, params=None, settle=True):
        """Generates from lists of token ids with an empty cache of its own. counts: what was counted meanwhile."""
        before = self.counts()
        self.settle()
        end = time.monotonic() + (0 if self.core else RESET_S)
        while not self.llm.reset_prefix_cache():
            if time.monotonic() >= end:
                raise RuntimeError("blocks are held")
            time.sleep(0.01)
        asked, begun = [{"prompt_token_ids": p} for p in prompts], time.monotonic()
        answers = [a for batch in ([asked] if together else [[one] for one in asked])
                   for a in self.llm.generate(batch, self.params(tokens, params), use_tqdm=False)]
        seconds = time.monotonic() - begun
        if settle:
            self.settle()
        return {"tokens": [list(a.outputs[0].token_ids) for a in answers], "reasons": [a.outputs[0].finish_reason for a in answers],
                "cached": [a.num_cached_tokens for a in answers], "params": answers[-1].kv_transfer_params, "seconds": seconds,
                "counts": {name: value - before.get(name, 0) for name, value in self.counts().items() if value != before.get(name, 0)}}

    def abort(self, prompt):
        """Aborts a request while it loads. Returns the seconds until its blocks are free, and the requests that the connector knows."""
        self.llm.reset_prefix_cache()
        self.llm.llm_engine.add_request("aborted", {"prompt_token_ids": prompt}, self.params(16))
        while not self.side.requests._loads:
            self.llm.llm_engine.step()
        self.llm.llm_engine.step()
        begun, was_loading = time.monotonic(), bool(self.side.requests._loads)
        self.llm.llm_engine.abort_request(["aborted"])
        self.settle()
        return {"seconds": time.monotonic() - begun, "was_loading": was_loading, "left": len(self.side.requests._entries)}

    def set(self, **settings):
        """Other settings from now on."""
        from kvpool.vllm.cost import Cost

        requests = self.side.requests
        requests.settings = s = dataclasses.replace(requests.settings, **settings)
        requests.cost = Cost(s.cost, s.patience, s.load_ms / 1e3, keeps_prefix=len(requests.groups) == 1)
        return {}

    def weights(self, folder):
        """Other weights, and a reset of all caches."""
        self.settle()
        self.llm.collective_rpc("reload_weights", kwargs={"weights_path": folder})
        return {"reset": self.llm.reset_prefix_cache(reset_connector=True)}

    def state(self):
        return {"state": self.side.attachment.state}


def main():
    engine = Engine(sys.argv[1], **json.loads(sys.argv[2]))
    print("result {}", flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        print("result " + json.dumps(getattr(engine, command.pop("do"))(**command)), flush=True)


if __name__ == "__main__":
    main()
