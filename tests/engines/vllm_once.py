# SPDX-License-Identifier: Apache-2.0
"""One vLLM engine, in this process alone, with upstream's MooncakeStoreConnector: vllm_once.py MODEL. Generates from PROMPTS,
prints a line that begins with "result " and holds JSON, and keeps the engine, and with it an embedded node, until standard input
ends: what it stores it stores from a thread of its own, so who started it waits for that. For each line of standard input, a JSON list
of prompts, it forgets its own cache and does the same again. MOONCAKE_CONFIG_PATH says where the pool is. With KV_EVENTS=PORT,REPLAY_PORT
the engine publishes its KV events there; without MOONCAKE_CONFIG_PATH there is no connector then, and a line of standard input forgets nothing."""
import json
import os
import sys

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # all in this process; before vllm is imported

from vllm import LLM, SamplingParams  # noqa: E402

from prompts import BLOCK_TOKENS, PROMPTS  # noqa: E402

TIMES = "vllm:mooncake_store_operation_time_seconds"


def calls(llm):
    """By the connector's operation: how many calls of the store it made so far, and how many seconds they took."""
    found = {}
    for metric in llm.get_metrics():
        if metric.name == TIMES:
            count, seconds = found.get(metric.labels["operation"], (0, 0.0))
            found[metric.labels["operation"]] = count + metric.count, seconds + metric.sum
    return found


def failed_keys(llm):
    return sum(metric.value for metric in llm.get_metrics() if metric.name == "vllm:mooncake_store_operation_failed_keys")


def answer_all(llm, prompts):
    greedy = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    results = []
    for prompt in prompts:
        answer = llm.generate([prompt], greedy, use_tqdm=False)[0]
        results.append({"tokens": list(answer.outputs[0].token_ids), "prompt": len(answer.prompt_token_ids), "ids": list(answer.prompt_token_ids),
                        "cached": answer.num_cached_tokens})
    print("result " + json.dumps({"results": results, "calls": calls(llm), "failed_keys": failed_keys(llm)}), flush=True)


def main():
    events = os.environ.get("KV_EVENTS")
    has_store = not events or "MOONCAKE_CONFIG_PATH" in os.environ
    more = {"kv_transfer_config": {"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"}} if has_store else {}
    if events:
        port, replay = events.split(",")
        more |= {"kv_events_config": {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{port}",
                                     "replay_endpoint": f"tcp://*:{replay}", "topic": "kv-events"}}
    llm = LLM(model=sys.argv[1], enforce_eager=True, dtype="bfloat16", max_model_len=2048, max_num_seqs=4, block_size=BLOCK_TOKENS,
              seed=0, disable_log_stats=False, distributed_executor_backend="uni", prefix_caching_hash_algo="sha256_cbor", **more)
    answer_all(llm, PROMPTS)
    for line in sys.stdin:
        if has_store:
            llm.reset_prefix_cache()
        answer_all(llm, json.loads(line))
    del llm


if __name__ == "__main__":
    main()
