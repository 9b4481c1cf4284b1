# SPDX-License-Identifier: Apache-2.0
"""What vLLM's scheduler does with a KV connector: scheduler_cases.py [--vllm-033 DIR] [--list] [CASE ...] in vLLM's environment. Prints a
line a case; exit code 0: all hold, 1: one does not, 2: usage, or there is no vLLM here.

Without --vllm-033 the environment's vLLM runs (0.32). With it 0.33 does, from DIR, which has the Python sources of its sdist: no compiled
file of it is needed for the scheduler, and everything else comes from the environment.

A case is a function of the harness (scheduler_harness.py), and its first line says what it asserts. It raises if that does not hold."""
import argparse
import functools
import inspect
import logging
import os
import pathlib
import sys
import tempfile
import threading
import time
import traceback

CASES = {}  # name: (function, versions)


def case(*versions):
    """Of the versions of vLLM in which it has to hold; all, if none is named."""
    def add(function):
        CASES[function.__name__] = (function, versions or (32, 33))
        return function
    return add


def pool_case(*versions):
    """A case of our connector, which takes an adapter with a pool of its own besides the harness."""
    def add(function):
        @functools.wraps(function)
        def run(h):
            adapter = h.KVPool()
            try:
                function(h, adapter)
            finally:
                adapter.close()

        CASES[function.__name__] = (run, versions or (32, 33))
        return function
    return add


def use_vllm(folder=None):
    """Chooses the vLLM that is imported. None: the environment's; else 0.33's sources in that folder."""
    logging.disable(logging.ERROR)  # what vLLM says of failed loads is meant here
    if folder:
        sys.path.insert(0, str(folder))
        # No distribution is called vllm here, so its search for a platform finds none.
        os.environ["VLLM_TARGET_DEVICE"] = "cpu"
        os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def finished(engine, request, count=2):
    """It has ended as a request ends that was computed alone, and nothing is left of it."""
    engine.run(request)
    if engine.reasons.get(request.request_id) != "length" or len(engine.output_tokens[request.request_id]) != count:
        raise AssertionError(f"{request.request_id} ended by {engine.reasons.get(request.request_id)} "
                             f"with {engine.output_tokens.get(request.request_id)}")
    engine.check_empty()


# ---- loads that fail


def _fails_for_ever(h, **how):
    """The hit stays the same whatever happens: 40 loads in 40 steps, and the request is where it was."""
    script = h.Scripted(answer=lambda request, computed: (64 - computed, True), outcome=lambda *_: dict(bad=(0,), **how))
    engine = h.Engine(script)
    request = engine.add(h.prompt(4, 5))
    engine.step(40)
    h.same(len(script.loads), 40, "loads in 40 steps")
    h.need(not request.is_finished() and not engine.computed, "the request came further")
    # Only the connector can end it.
    script.answer = lambda request, computed: (0, False)
    finished(engine, request)
    h.same(len(script.loads), 40, "loads after the connector finds nothing more")


@case()
def first_block_fails_for_ever(h):
    """A connector that reports the same hit after its first block failed (by invalid blocks) loads once a step, for ever."""
    _fails_for_ever(h)


@case()
def request_fails_for_ever(h):
    """A connector that reports the same hit after the request failed (by failed_recving) loads once a step, for ever."""
    _fails_for_ever(h, by_request=True)


@case()
def two_groups_invalid_blocks(h):
    """With two cache groups vLLM takes no block numbers: get_block_ids_with_load_errors ends the engine."""
    script = h.Scripted(outcome=lambda *_: dict(bad=(0,)))
    engine = h.Engine(script, groups=("full", "window"))
    script.have(h.prompt(4), 4)
    engine.add(h.prompt(4, 5))
    engine.plan()
    with h.ends_engine(RuntimeError):
        engine.process()


# ---- when a load ends


def _report_ends_engine(h, script, max_tokens, run):
    """run(engine, request) brings the request to some state; finished_recving for it then ends the engine."""
    tell = []

    def change(output):
        if tell:
            output.finished_recving = {request.request_id}

    engine = h.Engine(script, change=change)
    request = engine.add(h.prompt(4, 5), max_tokens=max_tokens)
    run(engine, request)
    tell.append(True)
    engine.plan()
    with h.ends_engine(AssertionError):
        engine.process()


@case()
def finished_twice_running(h):
    """finished_recving for a request that runs ends the engine: a load is reported exactly once."""
    def run(engine, request):
        engine.step(3)
        h.same(str(request.status), "RUNNING", "status")

    script = h.Scripted()
    script.have(h.prompt(4), 4)
    _report_ends_engine(h, script, 8, run)


@case()
def finished_after_the_end(h):
    """finished_recving for a request that has ended and was freed ends the engine."""
    _report_ends_engine(h, h.Scripted(), 1, lambda engine, request: engine.run(request))


# ---- other connectors


@case()
def multi_connector_statistics_by_name(h):
    """MultiConnector finds a connector's statistics by its registered name: one that came by a module path has to register itself."""
    kind = h.KVConnectorFactory.get_connector_class(h.KVTransferConfig(kv_connector="MultiConnector", kv_role="kv_both"))
    try:
        kind.build_kv_connector_stats({"ScriptedConnector": {}})
    except ValueError as error:
        h.need("not registered" in str(error), f"{error!r}")
    else:
        raise AssertionError("vLLM knows the class by its module path")
    h.KVConnectorFactory.register_connector("ScriptedConnector", h.__name__, "ScriptedConnector")
    try:
        h.same(kind.build_kv_connector_stats({"ScriptedConnector": {}}).data, {}, "statistics")
    finally:
        del h.KVConnectorFactory._registry["ScriptedConnector"]


# ---- resets, as a pause of the engine with clear_cache makes them


@case()
def reset_while_blocks_are_held(h):
    """A reset while a connector holds references on blocks, as for a save, raises RuntimeError; has_requests has to say that one is held."""
    script = h.Scripted()
    engine = h.Engine(script)
    request = engine.add(h.prompt(4, 5))
    engine.step()
    blocks = [engine.pool.blocks[number] for number in engine.table(request)[0][:2]]
    engine.connector.pool.touch(blocks)
    engine.run(request)
    engine.step()
    h.need(not engine.scheduler.has_requests(), "vLLM knows of the references")
    script.pending = True
    h.need(engine.scheduler.has_requests(), "has_pending_push_work does not count")
    with h.ends_engine(RuntimeError):
        engine.scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
    script.pending = False
    engine.pool.free_blocks(blocks)
    h.same(engine.scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True), True, "the reset afterwards")
    h.same(script.count("reset"), 1, "reset_cache")
    engine.check_empty()


# ---- overlapped steps


def _late(h):
    """A request with a hit while a step is under way, in an engine that waits with loads."""
    script = h.Scripted()
    engine = h.Engine(script, overlapped=True, late_loads=True)
    other = engine.add(h.prompt(2, 3, seed=1), max_tokens=8)
    engine.plan()
    script.have(h.prompt(4), 4)
    request = engine.add(h.prompt(4, 5))
    engine.plan()
    h.same(script.count("asked"), 2, "questions")
    h.same(str(request.status), "WAITING_FOR_REMOTE_KVS", "status")
    h.same([call for call in script.of("allocated") if call[0] == request.request_id], [], "update_state_after_alloc in that step")
    return script, engine, other, request


@case(33)
def late_load(h):
    """In 0.33 with a HiSparse host pool and steps under way update_state_after_alloc comes while a later result is processed."""
    script, engine, other, request = _late(h)
    engine.process()
    h.same([call[1] for call in script.of("allocated") if call[0] == request.request_id], [64], "update_state_after_alloc after that step")
    h.same(script.loads, [], "loads: the metadata of a later step has it")
    engine.plan()
    h.same(script.loads, [request.request_id], "loads in the next step")
    for _ in range(20):
        engine.process()
        engine.plan()
    engine.settle()
    h.same([len(engine.output_tokens[one.request_id]) for one in (other, request)], [8, 2], "tokens")
    engine.check_empty()


@case(33)
def late_load_aborted(h):
    """In 0.33 a request that is aborted while its load waits never gets update_state_after_alloc, and finished_recving would end the engine."""
    script, engine, other, request = _late(h)
    engine.abort(request)
    h.same([call[0] for call in script.of("finished")], [request.request_id], "request_finished")
    for _ in range(20):
        engine.process()
        engine.plan()
    engine.settle()
    h.same([call for call in script.of("allocated") if call[0] == request.request_id], [], "update_state_after_alloc")
    h.same(script.loads, [], "loads")
    h.same(len(engine.output_tokens[other.request_id]), 8, "tokens of the other one")
    engine.check_empty()
    engine.change = lambda output: setattr(output, "finished_recving", {request.request_id})
    engine.plan()
    with h.ends_engine(AssertionError):
        engine.process()


# ---- the rest of the interface


@case()
def worker_hooks_in_order(h):
    """In a step without tokens a worker is called as in others, but for the layers; failed blocks are fetched after the results."""
    script = h.Scripted()
    engine = h.Engine(script)
    script.have(h.prompt(4), 4)
    request = engine.add(h.prompt(4, 5))
    around = ["handle_preemptions", "bind_connector_metadata"]
    behind = ["start_load_kv", "wait_for_save", "get_transfer_results", "get_block_ids_with_load_errors", "get_kv_connector_stats",
              "get_kv_connector_kv_cache_events", "build_connector_worker_meta", "clear_connector_metadata"]
    engine.step()
    h.same(script.of("built")[0][0], {}, "tokens of the step that loads")
    h.same(engine.workers[0].hooks, around + behind, "hooks of the step that loads")
    engine.workers[0].hooks.clear()
    engine.step()
    h.same(engine.workers[0].hooks, around + ["wait_for_layer_load", "save_kv_layer"] * 2 + behind, "hooks of the step that computes")
    finished(engine, request)


@case()
def wrong_bytes_are_seen(h):
    """The harness itself: a load that says nothing of a block that did not come fails the case."""
    def outcome(*_):
        return dict(bad=())

    script = h.Scripted(outcome=outcome)
    engine = h.Engine(script)
    script.have(h.prompt(4), 4)
    request = engine.add(h.prompt(4, 5))
    engine.step()
    worker = engine.workers[0]
    worker.fill(0, [engine.table(request)[0][2]], h.prompt(4, seed=3), 2)
    try:
        engine.step()
    except h.Failed:
        return
    raise AssertionError("wrong bytes were computed on, and nobody said so")


# ---- our connector, with a master and a node


def _saved_then_loaded(h, adapter, blocks=4, tail=5, wanted=None, lost=(), **setup):
    """An engine computes a prompt; another one, with an empty cache of its own, gets it from the pool."""
    tokens = h.prompt(blocks, tail)
    first = h.Engine(adapter, **setup)
    request = first.add(tokens, max_tokens=3)
    finished(first, request, 3)
    h.same(first.computed[request.request_id], len(tokens) + 2, "tokens that the first engine computed")
    for number in lost:
        adapter.lose(number)
    second = h.Engine(adapter, **setup)
    again = second.add(tokens, max_tokens=3)
    finished(second, again, 3)
    h.same(second.output_tokens[again.request_id], first.output_tokens[request.request_id], "tokens of the second engine")
    h.same(second.computed[again.request_id], (tail if wanted is None else wanted) + 2, "tokens that the second engine computed")
    for engine in (first, second):
        engine.close()


@pool_case()
def saved_is_loaded(h, adapter):
    """What one engine has computed another one loads: it computes the rest of the prompt alone, and the bytes are the same."""
    _saved_then_loaded(h, adapter)


@pool_case()
def saved_is_loaded_whole(h, adapter):
    """A prompt of whole blocks alone is loaded but for its last token."""
    _saved_then_loaded(h, adapter, tail=0, wanted=1)


@pool_case()
def saved_is_loaded_in_chunks(h, adapter):
    """The same where the prompt is computed in chunks that end inside of blocks."""
    _saved_then_loaded(h, adapter, blocks=6, tail=40, wanted=8, budget=24)


@pool_case()
def saved_is_loaded_two_groups(h, adapter):
    """The same with two cache groups, of which a window keeps its end."""
    _saved_then_loaded(h, adapter, blocks=6, groups=("full", "window"))


@pool_case()
def saved_is_loaded_two_ranks(h, adapter):
    """The same with two ranks, each of which has bytes of its own."""
    _saved_then_loaded(h, adapter, ranks=2)


@pool_case()
def saved_is_loaded_second_runner(h, adapter):
    """The same with the order of calls of vLLM's second model runner."""
    _saved_then_loaded(h, adapter, runner=2)


@pool_case()
def saved_is_loaded_overlapped(h, adapter):
    """The same where steps overlap and the answer of one is processed behind the next."""
    tokens = h.prompt(4, 5)
    for wanted in (69, 5):
        engine = h.Engine(adapter, overlapped=True)
        request = engine.add(tokens, max_tokens=3)
        engine.plan()
        for _ in range(12):
            engine.plan()
            engine.process()
        engine.check_empty()
        h.same(len(engine.output_tokens[request.request_id]), 3, "tokens")
        h.same(engine.computed[request.request_id], wanted + 2, "computed tokens")
        engine.close()


@pool_case()
def lost_block_is_computed(h, adapter):
    """A block that is gone when it is loaded is computed, and what was before it is kept."""
    _saved_then_loaded(h, adapter, lost=[2], wanted=5 + 2 * h.BLOCK)


@pool_case()
def lost_first_block_is_computed(h, adapter):
    """Where the first block is gone when it is loaded all is computed, and nothing loads for ever."""
    _saved_then_loaded(h, adapter, lost=[0], wanted=5 + 4 * h.BLOCK)


@pool_case()
def lost_block_of_two_groups(h, adapter):
    """With two cache groups all is computed where one block is gone."""
    _saved_then_loaded(h, adapter, blocks=6, lost=[5], wanted=5 + 6 * h.BLOCK, groups=("full", "window"))


@pool_case()
def lost_block_of_two_ranks(h, adapter):
    """With two ranks a block that is gone is computed by both."""
    _saved_then_loaded(h, adapter, lost=[3], wanted=5 + h.BLOCK, ranks=2)


@pool_case()
def preempted_and_loaded_again(h, adapter):
    """With too few blocks for two requests one is preempted; both generate what they do alone, and no block is left in use."""
    engine = h.Engine(adapter, blocks=10, reserve=False)
    requests = [engine.add(h.prompt(3, 10, seed=seed), max_tokens=40) for seed in (1, 2)]
    engine.run(*requests, steps=200)
    h.need(sum(request.num_preemptions for request in requests) > 0, "none was preempted")
    engine.check_empty()
    for request in requests:
        alone = h.Engine(h.Scripted())
        same = alone.add(request.prompt_token_ids, max_tokens=40)
        alone.run(same)
        h.same(engine.output_tokens[request.request_id], alone.output_tokens[same.request_id], "tokens")
    engine.close()


def _stored(h, adapter, blocks=4, tail=5, **setup):
    """A prompt whose blocks the pool has, and what an engine without a cache generates for it."""
    tokens = h.prompt(blocks, tail)
    engine = h.Engine(adapter, **setup)
    request = engine.add(tokens, max_tokens=3)
    finished(engine, request, 3)
    engine.close()
    return tokens, engine.output_tokens[request.request_id]


def _again(h, adapter, stored, computed, fault=lambda: None, count=None, value=1, **setup):
    """Another engine gets the prompt while something fails: the same tokens, so many computed, no block left in use; `count`,
    a figure of the connector, names the cause."""
    tokens, wanted = stored
    engine = h.Engine(adapter, **setup)
    fault()
    request = engine.add(tokens, max_tokens=3)
    finished(engine, request, 3)
    engine.check_empty()
    h.same(engine.output_tokens[request.request_id], wanted, "tokens")
    h.same(engine.computed[request.request_id], computed + 2, "computed tokens")
    if count:
        h.same(adapter.requests.counts[count], value, count)
    engine.close()
    return engine


@pool_case()
def master_is_killed(h, adapter):
    """The first look-up is given up, the next one is not sent, and both requests are computed."""
    stored = _stored(h, adapter)
    engine = h.Engine(adapter)
    adapter.processes[0].kill()
    for seed, count in ((0, "lookups_late"), (0, "lookups_quiet")):
        request = engine.add(stored[0], max_tokens=3)
        finished(engine, request, 3)
        h.same(engine.output_tokens[request.request_id], stored[1], "tokens")
        engine.scheduler.reset_prefix_cache()
        h.need(adapter.requests.counts[count] + adapter.requests.counts["lookups_failed"] > 0, f"{count}: {dict(adapter.requests.counts)}")
    engine.close()


@pool_case()
def node_is_killed(h, adapter):
    """What lay on the node is computed, all of it."""
    _again(h, adapter, _stored(h, adapter), 4 * h.BLOCK + 5, adapter.node_kill)


@pool_case()
def node_is_hung(h, adapter):
    """A load from a stopped node ends by its time, and all is computed."""
    adapter.settings = {"load_ms": 300, "transports": "tcp"}
    _again(h, adapter, _stored(h, adapter), 4 * h.BLOCK + 5, adapter.node_stop, "loads_cut")


@pool_case()
def load_has_no_time(h, adapter):
    """With load_ms 1 loads are cut or arrive; the tokens are right in each case."""
    stored = _stored(h, adapter, blocks=12)
    adapter.settings = {"load_ms": 1, "transports": "tcp"}
    tokens, wanted = stored
    engine = h.Engine(adapter)
    for _ in range(10):
        request = engine.add(tokens, max_tokens=3)
        finished(engine, request, 3)
        h.same(engine.output_tokens[request.request_id], wanted, "tokens")
        engine.check_empty()
        engine.scheduler.reset_prefix_cache()
    engine.close()


@pool_case()
def slow_way_is_measured_again(h, adapter):
    """Where loading seems far too slow all is computed, and eight blocks are read beside it, which shows how fast loading is."""
    stored = _stored(h, adapter, blocks=12)
    adapter.settings = {"cost": "auto"}
    engine = h.Engine(adapter)
    cost = adapter.requests.cost
    cost.loading.add([1.0, 0.0, 0.0], 1.0)
    for _ in range(3):
        cost.computing.add([(1000, 0)], 0.001)
    request = engine.add(stored[0], max_tokens=3)
    finished(engine, request, 3)
    end = time.monotonic() + 5
    while cost.loading.per_byte()[0] > 1e-4 and time.monotonic() < end:
        engine.step()
    h.same(engine.computed[request.request_id], len(stored[0]) + 2, "computed tokens")
    h.same(adapter.requests.counts["probes"], 1, "probes")
    h.need(cost.loading.per_byte()[0] < 1e-4, f"what was read has measured nothing: {cost.loading.per_byte()}")
    engine.close()


@pool_case()
def flipped_byte_is_computed(h, adapter):
    """A block with a wrong byte ends the prefix there, and is removed, so that the next engine does not find it."""
    stored = _stored(h, adapter)
    _again(h, adapter, stored, 5 + 2 * h.BLOCK, lambda: adapter.flip(stored[0], 2), "failed_CORRUPT")
    between = h.Engine(adapter)  # the put of the computed block may have come before the removal; then this engine puts it
    request = between.add(stored[0], max_tokens=3)
    finished(between, request, 3)
    h.same(adapter.requests.counts["loads_failed"], 0, "loads_failed")
    between.close()
    _again(h, adapter, stored, 5, count="loads_failed", value=0)


@pool_case()
def abort_while_it_loads(h, adapter):
    """A request is aborted while it loads: no block is left in use, and the engine goes on."""
    stored = _stored(h, adapter)
    adapter.settings = {"load_ms": 1000, "transports": "tcp"}
    engine = h.Engine(adapter)
    adapter.node_stop()
    request = engine.add(stored[0], max_tokens=3)
    for _ in range(1000):
        engine.step()
        if adapter.requests._loads:
            break
    engine.step(3)
    engine.abort(request)
    engine.check_empty()
    h.same(adapter.requests.counts["loads_cut"], 0, "aborted loads that say something of the way to the pool")
    adapter.node_go_on()
    other = engine.add(stored[0], max_tokens=3)
    finished(engine, other, 3)
    h.same(engine.output_tokens[other.request_id], stored[1], "tokens of the next request")
    engine.close()


@pool_case()
def another_connector_loads(h, adapter):
    """In a MultiConnector that loads by another connector ours gives its reservation back, and its figures are known by name."""
    stored = _stored(h, adapter)
    script = h.Scripted()
    engine = h.Engine(h.Multi(script, adapter))
    script.have(stored[0][:4 * h.BLOCK], 4)
    request = engine.add(stored[0], max_tokens=3)
    finished(engine, request, 3)
    h.same(script.loads, [request.request_id], "loads of the other connector")
    h.same(adapter.requests.counts["lookups_hit"], 1, "look-ups of ours")
    h.same(adapter.requests.counts["tokens_loaded"], 0, "tokens that ours loaded")
    engine.close()


@pool_case(33)
def late_hook_with_the_pool(h, adapter):
    """In 0.33 update_state_after_alloc comes some steps after the look-up, and never if the request is aborted before."""
    stored = _stored(h, adapter)
    for is_aborted in (False, True):
        engine = h.Engine(adapter, overlapped=True, late_loads=True)
        other = engine.add(h.prompt(2, 3, seed=1), max_tokens=8)
        engine.plan()
        request = engine.add(stored[0], max_tokens=3)
        time.sleep(0.05)
        engine.plan()
        if is_aborted:
            engine.abort(request)
        for _ in range(200):
            engine.process()
            engine.plan()
            time.sleep(0.001)
        engine.settle()
        h.same(len(engine.output_tokens[other.request_id]), 8, "tokens of the other one")
        if not is_aborted:
            h.same(engine.output_tokens[request.request_id], stored[1], "tokens")
        engine.check_empty()
        engine.close()


@pool_case(33)
def late_hook_after_a_reset(h, adapter):
    """A reset comes between the promise of a load and its blocks: the load ends as STALE, and the request is computed."""
    stored = _stored(h, adapter)
    engine = h.Engine(adapter, overlapped=True, late_loads=True)
    engine.add(h.prompt(2, 3, seed=1), max_tokens=50)
    time.sleep(0.05)
    engine.plan()
    request = engine.add(stored[0], max_tokens=3)
    time.sleep(0.05)
    engine.plan()
    engine.scheduler.reset_prefix_cache(reset_connector=True)
    end = time.monotonic() + 5
    while not request.is_finished() and time.monotonic() < end:
        engine.process()
        engine.plan()
        time.sleep(0.001)
    h.need(request.is_finished(), f"the request is {request.status}")
    engine.close()


@pool_case()
def put_of_one_rank_is_refused(h, adapter):
    """A rank cannot put: nothing of the group is found, and the other rank's objects are removed."""
    tokens = h.prompt(4, 5)
    engine = h.Engine(adapter, ranks=2)
    engine.workers[1].connector.worker.transfers.pool = None
    request = engine.add(tokens, max_tokens=3)
    finished(engine, request, 3)
    engine.check_empty()
    h.same(adapter.requests.counts["saves_failed"], 4, "saves_failed")
    end = time.monotonic() + 5
    while len(found := [k for k, _ in adapter.pool().list()]) > 1 and time.monotonic() < end:
        time.sleep(0.01)
    h.same(found, [b"kvpool:fingerprint"], "objects left")
    h.same(adapter.pool().stat()["pool"]["attempts"], 0, "hidden objects left")
    engine.close()


@pool_case()
def sleeps_twice(h, adapter):
    """The cache is unregistered and registered again, each twice, and the pool works after it."""
    stored = _stored(h, adapter)
    engine = h.Engine(adapter)
    worker = engine.workers[0].connector
    for hook in (worker.unregister_kv_caches, worker.unregister_kv_caches, worker.restore_kv_caches, worker.restore_kv_caches):
        hook()
    request = engine.add(stored[0], max_tokens=3)
    finished(engine, request, 3)
    h.same(engine.computed[request.request_id], 5 + 2, "computed tokens")
    engine.close()


@pool_case()
def reset_of_two_engines(h, adapter):
    """Two engines of a namespace get new weights. After the reset of one neither reads a block of the other's weights; after that of
    both they share again, by one bump."""
    tokens, _ = _stored(h, adapter)
    engines = [h.Engine(adapter) for _ in range(2)]
    sides = [engine.connector.scheduler for engine in engines]
    engines[0].scheduler.reset_prefix_cache(reset_connector=True)
    first = engines[0].add(tokens, max_tokens=3)
    finished(engines[0], first, 3)
    h.same(engines[0].computed[first.request_id], len(tokens) + 2, "tokens computed after the reset")
    behind = engines[1].add(tokens, max_tokens=3)
    finished(engines[1], behind, 3)
    h.same(engines[1].computed[behind.request_id], len(tokens) + 2, "tokens computed by the engine that is behind")
    h.same(sides[1].attachment.state, "behind", "state of the engine that is behind")
    epoch = sides[0].requests.epoch
    engines[1].scheduler.reset_prefix_cache(reset_connector=True)
    engines[1].step(2)
    h.same([side.requests.epoch for side in sides], [epoch, epoch], "epochs")
    shared = engines[1].add(tokens, max_tokens=3)
    finished(engines[1], shared, 3)
    h.same(engines[1].computed[shared.request_id], 5 + 2, "tokens computed after both resets")
    for engine in engines:
        engine.close()


@pool_case()
def other_fingerprint_is_refused(h, adapter):
    """An engine with other weights is refused, with both values; with on_mismatch "no cache" it runs without the pool."""
    stored = _stored(h, adapter)
    adapter.settings = {"weights_id": "other"}
    try:
        h.Engine(adapter)
        raise h.Failed("an engine with another fingerprint starts")
    except ValueError as e:
        h.need("weights_id: here 'other', in the pool ''" in str(e), f"the text is: {e}")
    adapter.settings = {"weights_id": "other", "on_mismatch": "no cache"}
    _again(h, adapter, stored, 4 * h.BLOCK + 5)
    from kvpool.vllm.connector import _weights_of
    found = []
    for last in (b"a", b"b"):  # models of one name in two folders
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "model.safetensors").write_bytes(bytes(1 << 20) + last)
            found.append(_weights_of(folder))
    h.need(found[0] != found[1] and _weights_of("no/folder") is None, f"other weights have one fingerprint: {found}")


@pool_case()
def starts_without_a_master(h, adapter):
    """An engine starts while no master answers, and finds prefixes when one does."""
    stored = _stored(h, adapter)
    adapter.processes[0].kill()
    adapter.processes[0].wait()
    engine = h.Engine(adapter)
    request = engine.add(stored[0], max_tokens=3)
    finished(engine, request, 3)
    h.same(engine.computed[request.request_id], len(stored[0]) + 2, "computed tokens without a master")
    adapter.start("kvpool-master", "--listen", adapter.address, "--http", "none", "--data-dir", "none")
    end = time.monotonic() + 20
    while engine.connector.scheduler.attachment.state != "ready" and time.monotonic() < end:
        time.sleep(0.05)
    _again(h, adapter, stored, 5)
    engine.close()


@pool_case()
def windows_alone(h, adapter):
    """A model of sliding windows alone hits by its last blocks; where one of them is gone all is computed."""
    stored = _stored(h, adapter, blocks=8, groups=("window",))
    _again(h, adapter, stored, 7 - 2, groups=("window",))
    adapter.lose(7)
    _again(h, adapter, stored, 8 * h.BLOCK + 5, count="failed_NOT_FOUND", groups=("window",))


@pool_case()
def lost_fingerprint(h, adapter):
    """Where the fingerprint is gone the blocks may be anybody's: an engine with other weights does not find them."""
    stored = _stored(h, adapter)
    with h.kvpool.Pool(adapter.address, tenant=adapter.side.names.namespace) as pool:
        pool.remove("kvpool:fingerprint", force=True)
    adapter.settings = {"weights_id": "other"}
    _again(h, adapter, stored, 4 * h.BLOCK + 5)


@pool_case()
def hand_over_from_prefill(h, adapter):
    """Prefill says how many blocks it stores, and decode waits for them; what is made up is not waited for."""
    tokens, params = h.prompt(4, 5), []
    engine = h.Engine(adapter)
    told = engine.connector.request_finished_all_groups
    engine.connector.request_finished_all_groups = lambda *given: params.append(told(*given)[1]) or (False, params[-1])
    finished(engine, engine.add(tokens, params={"kvpool": 1}, max_tokens=2), 2)
    h.same(params[0]["kvpool"]["blocks"], 4, "blocks that prefill stores")
    for given, computed in ((params[0], 5), ({"kvpool": {"blocks": 4, "last": "00"}}, 69), ({"kvpool": {"blocks": 10**9, "last": "00"}}, 69)):
        adapter.settings = {"handover_ms": 10000}
        decode = h.Engine(adapter)
        objects = [(key, decode.connector.scheduler.attachment.pool.get(key)) for key, _ in adapter.pool().list() if b"@" in key]
        for key, _ in objects:
            adapter.pool().remove(key, force=True)
        late = threading.Timer(0.3, lambda objects=objects: [adapter.pool().put(key, value) for key, value in objects])
        late.start()
        begun = time.monotonic()
        request = decode.add(tokens, params=given, max_tokens=2)
        finished(decode, request, 2)
        h.need(time.monotonic() - begun < 3, "decode waited in vain")
        h.same(decode.computed[request.request_id], computed + 1, "computed tokens")
        late.join()
        decode.close()
    engine.close()


@pool_case()
def settings_are_checked(h, adapter):
    """The policy "fail", an unknown setting, and an address that none can be, are refused with a line that says what to change."""
    for change, policy, text in (({}, "fail", '"kv_load_failure_policy": "recompute"'), ({"pacience": 1}, "recompute", "no setting 'pacience'"),
                                 ({"master": "nowhere"}, "recompute", "HOST:PORT"), ({"save": "some"}, "recompute", "'prompt' or 'all' or 'none'")):
        adapter.settings = change
        try:
            h.Engine(adapter, policy=policy)
            raise h.Failed(f"{change} {policy} is accepted")
        except ValueError as e:
            h.need(text in str(e), f"the text is: {e}")
    adapter.settings = {"accept_failed_requests": True}
    h.Engine(adapter, policy="fail").close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vllm-033", metavar="DIR", type=pathlib.Path, help="sources of vLLM 0.33: the folder that has vllm/")
    parser.add_argument("--list", action="store_true", help="print the names of the cases, with the versions in which they have to hold")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    given = parser.parse_args()
    if given.list:
        for name, (_, versions) in CASES.items():
            print(name, *versions)
        return 0
    if unknown := [name for name in given.cases if name not in CASES]:
        parser.error(f"no case {', '.join(unknown)}")
    if given.vllm_033 and not (given.vllm_033 / "vllm" / "version.py").is_file():
        parser.error(f"{given.vllm_033} has no vllm/version.py")
    begun = time.monotonic()
    use_vllm(given.vllm_033)
    try:
        import scheduler_harness as harness
    except ImportError as error:
        print(f"no vLLM here: {error}", file=sys.stderr)
        return 2
    version = harness.VERSION[1]
    if harness.VERSION != ((0, 33) if given.vllm_033 else (0, 32)):
        parser.error(f"this is vLLM {'.'.join(map(str, harness.VERSION))}")
    print(f"vLLM 0.{version}, imported in {time.monotonic() - begun:.1f} s", flush=True)
    failed = 0
    for name, (function, versions) in CASES.items():
        if given.cases and name not in given.cases or version not in versions:
            continue
        begun = time.monotonic()
        try:
            function(harness)
        except Exception as error:  # whatever it is, the other cases run
            failed += 1
            print(f"FAILED {name} ({time.monotonic() - begun:.2f} s): {error!r}", flush=True)
            traceback.print_exc()
        else:
            print(f"ok {name} ({time.monotonic() - begun:.2f} s): {inspect.getdoc(function)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
