# SPDX-License-Identifier: Apache-2.0
"""One vLLM engine, in this process but for ranks of its own: kvpool_once.py MODEL ARGUMENTS. ARGUMENTS is JSON: "engine" are
arguments of LLM, and "extra" is the kv_connector_extra_config of kvpool.vllm.KVPoolConnector, or null for an engine without a
cache. Prints "result {}" when it is ready, and then, for each line of standard input, which is JSON with the name of a method
of Engine as "do" and its arguments, a line that begins with "result " and holds what the method returns.

The connector is a subclass that reads faults from the file KVPOOL_TEST_FAULTS whenever it moves bytes: `delay_s` before a put, `rank_s` before
a load or a put for each rank before this one, `refused`: the rank whose puts fail, `lost`: a block to remove before a load."""
import dataclasses
import json
import os
import sys
import time

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the scheduler in this process; before vllm is imported

from kvpool.vllm.connector import KVPoolConnector  # noqa: E402


def faults():
    with open(os.environ["KVPOOL_TEST_FAULTS"]) as file:
        return json.load(file)


class FaultyConnector(KVPoolConnector):
    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        lost, side = faults().get("lost"), self.scheduler
        if lost is not None and num_external_tokens:
            for i, group in enumerate(side.groups):
                block = side.requests.hashes(request, i)[lost].hex().encode()
                for shard in range(group.shards):
                    side.attachment.pool.remove_many([side.names.object_prefix(group, shard, 0) + block], force=True)
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    def register_kv_caches(self, kv_caches):
        super().register_kv_caches(kv_caches)
        moving, rank = self.worker.transfers, self.worker._config.parallel_config.rank
        get, put = moving._get, moving._put

        def slow_get(loading):
            time.sleep(faults().get("rank_s", 0) * rank)
            get(loading)

        def slow_put(save, report):
            given = faults()
            time.sleep(given.get("delay_s", 0) + given.get("rank_s", 0) * rank)
            if given.get("refused") == rank:
                report.failed.update((p.group, p.first + i) for p in save.parts for i in range(len(p.blocks)))
            else:
                put(save, report)

        moving._get, moving._put = slow_get, slow_put


class Engine:
    def __init__(self, model, engine, extra):
        from vllm import LLM

        from prompts import BLOCK_TOKENS

        more = {} if extra is None else {"kv_transfer_config": {
            "kv_connector": "FaultyConnector", "kv_connector_module_path": "kvpool_once", "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute", "kv_connector_extra_config": extra}}
        self.llm = LLM(**{"model": model, "enforce_eager": True, "dtype": "bfloat16", "max_model_len": 2048, "max_num_seqs": 4,
                          "block_size": BLOCK_TOKENS, "seed": 0, "disable_log_stats": False, "distributed_executor_backend": "uni",
                          "prefix_caching_hash_algo": "sha256_cbor", **more, **engine})
        self.core = self.llm.llm_engine.engine_core.engine_core
        self.side = None if extra is None else self.core.scheduler.connector.scheduler

    def counts(self):
        """The connector's figures, and the preemptions of vLLM."""
        found = {} if self.side is None else dict(self.side.requests.counts)
        found["preemptions"] = sum(m.value for m in self.llm.get_metrics() if m.name == "vllm:num_preemptions")
        return found

    def settle(self):
        """Until all saves have been reported."""
        while self.core.scheduler.has_requests():
            self.core.step_fn()
            time.sleep(0.001)

    def _params(self, tokens, params=None):
        from vllm import SamplingParams

        return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, extra_args=params and {"kv_transfer_params": params})

    def ask(self, prompts, tokens=16, together=False, params=None, settle=True):
        """What it generates from prompts of token ids with an empty cache of its own. counts: what the connector counted."""
        before = self.counts()
        self.settle()
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("blocks are held")
        inputs = [{"prompt_token_ids": p} for p in prompts]
        begun = time.monotonic()
        answers = [a for batch in ([inputs] if together else [[i] for i in inputs])
                   for a in self.llm.generate(batch, self._params(tokens, params), use_tqdm=False)]
        seconds = time.monotonic() - begun
        if settle:
            self.settle()
        counts = {name: value - before.get(name, 0) for name, value in self.counts().items() if value != before.get(name, 0)}
        return {"tokens": [list(a.outputs[0].token_ids) for a in answers], "cached": [a.num_cached_tokens for a in answers],
                "params": answers[-1].kv_transfer_params, "counts": counts, "seconds": seconds}

    def abort_while_loading(self, prompt):
        """Returns the seconds from the abort until nothing of the request is left."""
        self.llm.reset_prefix_cache()
        self.llm.llm_engine.add_request("aborted", {"prompt_token_ids": prompt}, self._params(16))
        end = time.monotonic() + 5
        while not any(e.state.name == "LOADING" for e in self.side.requests._entries.values()):
            self.llm.llm_engine.step()
            if time.monotonic() > end:
                raise RuntimeError("it did not load")
        self.llm.llm_engine.step()
        begun = time.monotonic()
        self.llm.llm_engine.abort_request(["aborted"])
        while self.side.requests._loads or self.core.scheduler.has_requests():
            self.core.step_fn()
        return {"seconds": time.monotonic() - begun, "entries": len(self.side.requests._entries)}

    def set(self, **settings):
        """Other settings from now on."""
        from kvpool.vllm.cost import Cost

        requests = self.side.requests
        requests.settings = s = dataclasses.replace(requests.settings, **settings)
        requests.cost = Cost(s.cost, s.patience, s.load_ms / 1e3, keeps_prefix=len(requests.groups) == 1)
        return {}

    def weights(self, folder):
        """Other weights, and a reset of all caches."""
        self.llm.collective_rpc("reload_weights", kwargs={"weights_path": folder})
        self.settle()
        return {"reset": self.llm.reset_prefix_cache(reset_connector=self.side is not None)}

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
