# SPDX-License-Identifier: Apache-2.0
"""vLLM's own scheduler with a KV connector, without an engine, a model or an accelerator: what scheduler_cases.py runs.

An Engine has the real Scheduler, the connector's scheduler role in it, and a Worker a rank: the connector's worker role with real KV cache
tensors on the CPU. A Worker calls the hooks in the order of vLLM's model runner. Its model computes nothing: it writes, for each token it
is asked to compute, a value that depends on all tokens up to it, and before that it looks whether the cache has the right values for all
tokens before. So bytes that were loaded wrongly, or that were not loaded and not computed either, fail the case.

Which connector runs is said by an Adapter. Scripted is the one of the cases that show what vLLM does; a connector that has its
own idea of hits needs an Adapter of its own, and nothing else here changes.

The interpreter has to find vLLM: use_vllm() before this is imported."""
import contextlib
import copy
import dataclasses
import functools
import itertools
import json
import os
import pathlib
import pickle
import signal
import socket
import subprocess
import tempfile
import time
import types
import zlib

import torch
from vllm import SamplingParams
from vllm.config import (CacheConfig, DeviceConfig, KVTransferConfig, ModelConfig, SchedulerConfig, VllmConfig,
                         set_current_vllm_config)
from vllm.distributed import parallel_state
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.base import (KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole,
                                                               KVConnectorTransferResults, KVConnectorWorkerMetadata, SupportsHMA)
from vllm.model_executor.models import ModelRegistry
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.worker.utils import allocate_kv_cache
from vllm.version import __version_tuple__

import kvpool

try:  # 0.33 has the plan of the cache in a module of its own
    from vllm.v1.core import kv_cache_planning
except ImportError:
    kv_cache_planning = kv_cache_utils

VERSION = tuple(__version_tuple__[:2])
BLOCK = 16
VOCABULARY = 512
MAX_LEN = 1024
HEADS, HEAD_SIZE = 2, 4
LAYERS = {"full": ("layers.0.attn", "layers.2.attn"), "window": ("layers.1.attn", "layers.3.attn")}
WRONG = -1.0  # what a token's value is where the values before it were wrong


class Failed(Exception):
    """A case does not hold."""


def need(condition, what):
    if not condition:
        raise Failed(what)


def same(got, wanted, what):
    need(got == wanted, f"{what}: {got}, not {wanted}")


@contextlib.contextmanager
def ends_engine(kind):
    """The block raises `kind` in vLLM's scheduler, which would end an engine."""
    try:
        yield
    except kind as error:
        last = error.__traceback__
        while last.tb_next:
            last = last.tb_next
        need("sched/scheduler.py" in last.tb_frame.f_code.co_filename, f"{error!r} was raised outside the scheduler")
        return
    raise Failed(f"no {kind.__name__}: vLLM has taken it")


# ---- the configuration of an engine


class _NoModel(torch.nn.Module):
    """What vLLM's registry wants to see of a model that generates text. It is never made."""

    def __init__(self, vllm_config, prefix=""):
        raise NotImplementedError

    def embed_input_ids(self, input_ids):
        raise NotImplementedError

    def forward(self, input_ids, positions):
        raise NotImplementedError

    def compute_logits(self, hidden_states):
        raise NotImplementedError


# Registered as a class, so vLLM does not start a process to look at the model's source.
_ARCHITECTURE = "KvpoolNoModel"
ModelRegistry.register_model(_ARCHITECTURE, _NoModel)


@functools.cache
def _model_config(ranks):
    """A Llama by its config.json alone. Each rank has HEADS heads of it."""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "config.json").write_text(json.dumps(dict(
            architectures=[_ARCHITECTURE], model_type="llama", hidden_size=32, intermediate_size=32, num_hidden_layers=4,
            num_attention_heads=HEADS * ranks, num_key_value_heads=HEADS * ranks, head_dim=HEAD_SIZE, vocab_size=VOCABULARY,
            max_position_embeddings=MAX_LEN, torch_dtype="float32")))
        return ModelConfig(model=folder, tokenizer=folder, skip_tokenizer_init=True, dtype="float32", seed=0, max_model_len=MAX_LEN)


class Setup(types.SimpleNamespace):
    """How an engine is made. blocks: of the whole pool, of which vLLM keeps one as its null block. groups: "full", or "full" and
    "window". budget: tokens a step. overlapped: as with asynchronous scheduling, a step may be planned before the one before it has
    been processed. late_loads: vLLM 0.33 waits with loads until the steps under way are done, as it does for models with a HiSparse
    host pool. runner: 1 or 2, vLLM's model runner. layout: of the cache, as vLLM names it; the default is what it takes on a CPU. reserve:
    a request is let in if there is room for its whole prompt, which is vLLM's default."""

    def __init__(self, **given):
        super().__init__(**(dict(blocks=64, groups=("full",), window=2 * BLOCK, policy="recompute", budget=512, seqs=16, ranks=1,
                                 overlapped=False, late_loads=False, runner=1, layout="LBHNC", reserve=True) | given))


def vllm_config(setup, adapter):
    transfer = KVTransferConfig(kv_role="kv_both", kv_load_failure_policy=setup.policy, **adapter.transfer())
    made = VllmConfig(
        model_config=_model_config(setup.ranks),
        cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
        scheduler_config=SchedulerConfig(
            max_num_seqs=setup.seqs, max_num_batched_tokens=setup.budget, max_model_len=MAX_LEN, enable_chunked_prefill=True,
            is_encoder_decoder=False, disable_hybrid_kv_cache_manager=False, scheduler_reserve_full_isl=setup.reserve),
        device_config=DeviceConfig("cpu"), kv_transfer_config=transfer)
    # vLLM forbids it on CPUs; the scheduler does not care where the model runs.
    made.scheduler_config.async_scheduling = setup.overlapped
    made.cache_config.kv_cache_layout = setup.layout
    # As behind the start of the workers, which this has none of.
    made.parallel_config.tensor_parallel_size = made.parallel_config.world_size = setup.ranks
    return made


def kv_cache_config(setup, config):
    """By vLLM's own plan, so that strides and sizes are those that a worker gets."""
    shape = dict(block_size=BLOCK, num_kv_heads=HEADS, head_size=HEAD_SIZE, dtype=torch.float32)
    specs = {}
    for group in setup.groups:
        spec = FullAttentionSpec(**shape) if group == "full" else SlidingWindowSpec(sliding_window=setup.window, **shape)
        specs |= dict.fromkeys(LAYERS[group], spec)
    groups = kv_cache_planning.get_kv_cache_groups(config, specs)
    bytes_a_block = 2 * spec.page_size_bytes  # each group has two layers, and groups share the memory
    made = kv_cache_planning.get_kv_cache_config_from_groups(config, groups, setup.blocks * bytes_a_block)
    same(len(made.kv_cache_groups), len(setup.groups), "cache groups of vLLM's plan")
    same(made.num_blocks, setup.blocks, "blocks of vLLM's plan")
    made.kv_cache_layout = config.cache_config.kv_cache_layout
    if setup.late_loads:
        made.hisparse_host_num_blocks = setup.blocks
    return made


# ---- the worker side


@contextlib.contextmanager
def as_rank(rank, ranks):
    """What a connector asks vLLM for its place in the tensor-parallel group, while a hook of that rank runs."""
    alone = types.SimpleNamespace(rank_in_group=0, world_size=1, is_first_rank=True, is_last_rank=True)
    place = types.SimpleNamespace(rank_in_group=rank, world_size=ranks, is_first_rank=rank == 0, is_last_rank=rank == ranks - 1)
    names = {"_TP": place, "_PP": alone, "_DCP": alone, "_PCP": alone, "_DP": alone, "_WORLD": place}
    before = {name: getattr(parallel_state, name) for name in names if hasattr(parallel_state, name)}
    for name in before:
        setattr(parallel_state, name, names[name])
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(parallel_state, name, value)


class Worker:
    """One rank: KV cache tensors, and the connector's worker role on them."""

    def __init__(self, setup, config, cache_config, rank):
        self.setup, self.rank, self.cache_config = setup, rank, cache_config
        self.caches = allocate_kv_cache(cache_config, torch.device("cpu"), config.cache_config.get_resolved_kv_cache_layout(), None)
        self.tables = {}  # request: a list of blocks a cache group
        self.tokens = {}  # request: its tokens, those that were sampled here included
        self.hooks = []  # names of the connector's hooks, in the order of their calls
        config = copy.copy(config)
        config.parallel_config = copy.copy(config.parallel_config)
        config.parallel_config.rank = rank
        with as_rank(rank, setup.ranks):
            self.connector = KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, cache_config)
            self.connector.register_kv_caches(self.caches)

    def _hook(self, name, *arguments, **keywords):
        self.hooks.append(name)
        with as_rank(self.rank, self.setup.ranks):
            return getattr(self.connector, name)(*arguments, **keywords)

    # ---- the cache

    def values(self, tokens, layer, first, end):
        """What the cache of a layer has for the tokens from first to end."""
        sums = itertools.accumulate(tokens[:end], lambda total, token: zlib.crc32(token.to_bytes(4, "little"), total), initial=0)
        number = list(self.caches).index(layer)
        return torch.tensor([float((total + 977 * number + 31 * self.rank) & 0xffffff) for total in itertools.islice(sums, first + 1, None)])

    def _slots(self, table, first, end):
        where = torch.arange(first, end)
        blocks = torch.tensor([table[position // BLOCK] for position in range(first, end)], dtype=torch.long)
        return blocks, where % BLOCK

    def fill(self, group, blocks, tokens, first_block, wrong=False):
        """Writes whole blocks as they would be if they were computed: what a connector of a case does in place of a load."""
        for i, block in enumerate(blocks):
            first = (first_block + i) * BLOCK
            for layer in self.cache_config.kv_cache_groups[group].layer_names:
                values = self.values(tokens, layer, first, first + BLOCK)
                self.caches[layer][block] = WRONG if wrong else values[None, :, None]

    def _wrong(self, layer, table, tokens, first, end):
        """Blocks in which a layer does not have what it ought to have for tokens from first to end."""
        if first >= end:
            return set()
        blocks, offsets = self._slots(table, first, end)
        right = (self.caches[layer][blocks, :, offsets] == self.values(tokens, layer, first, end)[:, None, None]).all(dim=(1, 2))
        return set(blocks[~right].tolist())

    # ---- a step

    def step(self, output, metadata, engine):
        """One execution: the output of the model runner, of which `kv_connector_output` is the connector's."""
        second = self.setup.runner == 2
        self._follow(output, engine)
        # Order of calls: vLLM's gpu/kv_connector.py for the second model runner, kv_connector_model_runner_mixin.py for the first.
        self._hook("handle_preemptions", metadata)
        self._hook("bind_connector_metadata", metadata)
        context = types.SimpleNamespace(no_compile_layers={name: types.SimpleNamespace(kv_cache=cache) for name, cache in self.caches.items()},
                                        attn_metadata=None, virtual_engine=0)
        if output.has_sync_kv_loads:
            self._hook("start_load_kv", context)
        wrong, sampled = self._forward(output)
        if second:
            self._hook("finish_forward")
        if not output.has_sync_kv_loads:
            self._hook("start_load_kv", context)
        self._hook("wait_for_save")
        results = self._hook("get_transfer_results", output.finished_req_ids)
        told = KVConnectorOutput(
            finished_sending=results.finished_sending or None, finished_recving=results.finished_recving or None,
            failed_recving=results.failed_recving, invalid_block_ids=self._hook("get_block_ids_with_load_errors"),
            kv_connector_stats=self._hook("get_kv_connector_stats"), kv_cache_events=self._hook("get_kv_connector_kv_cache_events"),
            kv_connector_worker_meta=self._hook("build_connector_worker_meta"))
        self._hook("clear_connector_metadata")
        for request, blocks in wrong.items():
            # A synchronous load may fail: the connector has to say so in this step.
            need(blocks & told.invalid_block_ids, f"{request} was computed on blocks {sorted(blocks)} that have not what they ought to have, "
                 "and the connector says nothing")
        requests = list(output.num_scheduled_tokens)
        if not requests:
            return ModelRunnerOutput.with_kv_conn_output_only(told)
        return ModelRunnerOutput(req_ids=requests, req_id_to_index={name: i for i, name in enumerate(requests)},
                                 sampled_token_ids=[sampled[name] for name in requests], logprobs=None, prompt_logprobs_dict={},
                                 pooler_output=None, kv_connector_output=told)

    def _follow(self, output, engine):
        """Block tables and tokens, from the messages that a worker gets."""
        for request in output.finished_req_ids:
            self.tables.pop(request, None)
            self.tokens.pop(request, None)
        for new in output.scheduled_new_reqs:
            self.tables[new.req_id] = [list(blocks) for blocks in new.block_ids]
            self.tokens[new.req_id] = list(new.prefill_token_ids or new.prompt_token_ids)
        cached = output.scheduled_cached_reqs
        for request, blocks in zip(cached.req_ids, cached.new_block_ids):
            if request in cached.resumed_req_ids:
                self.tables[request] = [list(group) for group in blocks]
            elif blocks is not None:
                for table, more in zip(self.tables[request], blocks):
                    table.extend(more)
            if not self.setup.overlapped:  # else vLLM does not know yet what was sampled
                self.tokens[request] = list(engine.scheduler.requests[request].all_token_ids)

    def _forward(self, output):
        computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        computed |= dict(zip(output.scheduled_cached_reqs.req_ids, output.scheduled_cached_reqs.num_computed_tokens))
        wrong, sampled = {}, {}
        for layer in self.caches if output.num_scheduled_tokens else ():
            self._hook("wait_for_layer_load", layer)
            group = next(i for i, one in enumerate(self.cache_config.kv_cache_groups) if layer in one.layer_names)
            window = getattr(self.cache_config.kv_cache_groups[group].kv_cache_spec, "sliding_window", None) or MAX_LEN
            # As attention does: first all requests write, then each reads what is before it, of which some may be written by another
            # one in this step. What was read wrongly is in all layers behind.
            for request, count in output.num_scheduled_tokens.items():
                first, table = computed[request], self.tables[request][group]
                blocks, offsets = self._slots(table, first, first + count)
                values = self.values(self.tokens[request], layer, first, first + count)
                self.caches[layer][blocks, :, offsets] = torch.full_like(values, WRONG)[:, None, None] if request in wrong else values[:, None, None]
            for request in output.num_scheduled_tokens:
                first = computed[request]
                bad = self._wrong(layer, self.tables[request][group], self.tokens[request], max(0, first - window + 1), first)
                if bad:
                    wrong.setdefault(request, set()).update(bad)
            self._hook("save_kv_layer", layer, self.caches[layer], None)
        for request, count in output.num_scheduled_tokens.items():
            tokens = self.tokens[request]
            sampled[request] = []
            if computed[request] + count >= len(tokens):
                sampled[request].append(zlib.crc32(bytes(str(tokens), "ascii")) % (VOCABULARY - 3) + 3)
                tokens.append(sampled[request][0])
        return wrong, sampled


# ---- an engine


class Engine:
    """The scheduler and its workers. `change`, if given, is called with the output of every step and may change what vLLM is told."""

    def __init__(self, adapter, change=None, **setup):
        self.setup, self.adapter, self.change = Setup(**setup), adapter, change
        self.config = vllm_config(self.setup, adapter)
        hash_function = get_hash_fn_by_name(self.config.cache_config.prefix_caching_hash_algo)
        kv_cache_utils.init_none_hash(hash_function)
        with set_current_vllm_config(self.config):
            plan = kv_cache_config(self.setup, self.config)
            for_scheduler = kv_cache_utils.generate_scheduler_kv_cache_config([plan])
            self.config.cache_config.num_gpu_blocks = plan.num_blocks
            block_size, hash_block_size = kv_cache_utils.resolve_kv_cache_block_sizes(for_scheduler, self.config)
            alignment = kv_cache_utils.resolve_cache_hit_alignment_tokens(for_scheduler, self.config, block_size, hash_block_size)
            for one in (plan, for_scheduler):
                one.hash_block_size, one.cache_hit_alignment_tokens = hash_block_size, alignment
            # Workers first, as in an engine.
            self.workers = [Worker(self.setup, self.config, plan, rank) for rank in range(self.setup.ranks)]
            made = AsyncScheduler if self.setup.overlapped else Scheduler
            self.scheduler = made(vllm_config=self.config, kv_cache_config=for_scheduler, log_stats=True, block_size=block_size,
                                  structured_output_manager=StructuredOutputManager(self.config), hash_block_size=hash_block_size)
        self.scheduler.use_v2_model_runner = self.setup.runner == 2
        self.connector = self.scheduler.connector
        self.aggregator = KVOutputAggregator.from_connector(self.workers[0].connector, self.setup.ranks)
        self.hasher = kv_cache_utils.get_request_block_hasher(hash_block_size, hash_function)
        self.steps = 0
        self.flying = []  # steps that were planned and not processed
        self.computed = {}  # request: tokens that were computed for it
        self.reasons = {}  # request: why it ended
        self.output_tokens = {}  # request: what it generated
        self.numbers = itertools.count(1)
        adapter.attach(self)

    # ---- requests

    def add(self, tokens, max_tokens=2, params=None, **sampling):
        extra = {"kv_transfer_params": params} if params else None
        request = Request(
            request_id=f"r{next(self.numbers)}", prompt_token_ids=list(tokens), pooling_params=None, block_hasher=self.hasher,
            sampling_params=SamplingParams(max_tokens=max_tokens, ignore_eos=True, extra_args=extra, **sampling))
        self.scheduler.add_request(request)
        return request

    def abort(self, request):
        self.scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)

    # ---- steps

    def plan(self):
        """Plans one step and lets the workers run it; nothing is processed yet."""
        output = self.scheduler.schedule()
        need(output.kv_connector_block_state is None, "block state left in the output of the scheduler")
        # Metadata crosses processes.
        metadata = pickle.loads(pickle.dumps(output.kv_connector_metadata))
        for request, count in output.num_scheduled_tokens.items():
            self.computed[request] = self.computed.get(request, 0) + count
        ran = [worker.step(output, metadata, self) for worker in self.workers]
        result = self.aggregator.aggregate([pickle.loads(pickle.dumps(one)) for one in ran])
        self.steps += 1
        self.flying.append((output, result))
        return output

    def process(self):
        """What vLLM makes of the oldest step's results."""
        output, result = self.flying.pop(0)
        if self.change:
            result = dataclasses.replace(result) if result is EMPTY_MODEL_RUNNER_OUTPUT else result
            result.kv_connector_output = result.kv_connector_output or KVConnectorOutput()
            self.change(result.kv_connector_output)
        for answers in self.scheduler.update_from_output(output, result).values():
            for answer in answers.outputs:
                self.output_tokens.setdefault(answer.request_id, []).extend(answer.new_token_ids)
                if answer.finish_reason is not None:
                    self.reasons[answer.request_id] = str(answer.finish_reason)
        return output

    def step(self, times=1):
        for _ in range(times):
            self.plan()
            self.process()

    def _goes_on(self, steps):
        """One step for each turn of a loop, at most `steps`; as vLLM does, with a pause behind a step that had nothing to compute."""
        for _ in range(steps or self.adapter.steps):
            yield
            if not self.plan().num_scheduled_tokens:
                time.sleep(self.adapter.idle_s)
            self.process()

    def run(self, *requests, steps=None):
        """Until all of them have ended."""
        for _ in self._goes_on(steps):
            if all(request.is_finished() for request in requests):
                return
        left = [(request.request_id, str(request.status)) for request in requests if not request.is_finished()]
        raise Failed(f"not ended after {steps or self.adapter.steps} steps: {left}")

    def settle(self):
        """Until vLLM has nothing left to do."""
        while self.flying:
            self.process()
        for _ in self._goes_on(None):
            if not self.scheduler.has_requests():
                return
        raise Failed(f"the engine goes on after {self.adapter.steps} steps: {list(self.scheduler.requests)}")

    # ---- what can be asked

    @property
    def pool(self):
        return self.scheduler.kv_cache_manager.block_pool

    def free_blocks(self):
        return self.pool.get_num_free_blocks()

    def table(self, request):
        return self.scheduler.kv_cache_manager.get_block_ids(request.request_id)

    def check_empty(self):
        """Nothing is left of any request, in the scheduler nor in the pool of blocks."""
        self.settle()
        same(list(self.scheduler.requests), [], "requests left")
        same(self.free_blocks(), self.setup.blocks - 1, "free blocks")
        same([block.block_id for block in self.pool.blocks if block.ref_cnt and not block.is_null], [], "blocks in use")

    def close(self):
        self.scheduler.shutdown()
        for worker in self.workers:
            worker.connector.shutdown()


def prompt(blocks, tail=0, seed=0):
    """Tokens for so many whole blocks and a tail; other prompts for other seeds, from the first token on."""
    return [(7 * i + 131 * seed + 1) % VOCABULARY for i in range(blocks * BLOCK + tail)]


# ---- which connector runs


class Adapter:
    """How vLLM is told of a connector, and what a case may do with what lies outside the engine. steps: how many an engine may need
    where nothing else is said; idle_s: the pause behind a step without tokens."""
    steps, idle_s = 100, 0

    def transfer(self):
        """Arguments for KVTransferConfig."""
        raise NotImplementedError

    def attach(self, engine):
        """The engine is made."""


# ---- the connector of the cases


@dataclasses.dataclass
class Load:
    """A load at a worker; `blocks` are those to be loaded, a list a cache group, None where a group needs none."""
    request: str
    tokens: list
    first_block: int
    blocks: list
    steps: int = 1  # until it is reported
    bad: tuple = ()  # which of its blocks do not come, counted from the first that is loaded
    by_request: bool = False  # a failure is told by failed_recving
    silent: bool = False  # it is never reported
    waits: bool = True  # an asynchronous load


@dataclasses.dataclass
class LoadMetadata(KVConnectorMetadata):
    loads: list


@dataclasses.dataclass
class LoadsDone(KVConnectorWorkerMetadata):
    requests: list

    def aggregate(self, other):
        return LoadsDone(self.requests + other.requests)


class Scripted(Adapter):
    """Answers and failures as a case wants them. `answer` is called as get_num_new_matched_tokens, `outcome` with (request's name, number
    of the load, rank) and returns fields of the Load. calls has the scheduler role's hooks in their order."""

    table = {}  # settings travel as JSON, so the connector finds its script by a number

    def __init__(self, answer=None, outcome=None, name="ScriptedConnector"):
        self.answer = answer or self._found
        self.outcome = outcome or (lambda request, number, rank: {})
        self.known = []  # (tokens, blocks) of have()
        self.calls, self.loads, self.name = [], [], name
        self.engine = None
        self.pending, self.reset = False, None  # what has_pending_push_work and reset_cache say
        self.number = len(Scripted.table)
        Scripted.table[self.number] = self

    def transfer(self):
        return dict(kv_connector=self.name, kv_connector_module_path=__name__, kv_connector_extra_config={"script": self.number})

    def attach(self, engine):
        self.engine = engine

    def have(self, tokens, blocks):
        self.known.append((list(tokens[:blocks * BLOCK]), blocks))

    def _found(self, request, computed):
        best = max((blocks for tokens, blocks in self.known if list(request.all_token_ids[:blocks * BLOCK]) == tokens), default=0)
        found = max(0, best * BLOCK - computed)
        return found, found > 0

    def count(self, hook):
        return sum(call[0] == hook for call in self.calls)

    def of(self, hook):
        return [call[1:] for call in self.calls if call[0] == hook]


class ScriptedConnector(KVConnectorBase_V1, SupportsHMA):
    """Both roles of Scripted. It has no pool: its worker writes the right values into the blocks that it is to load."""

    def __init__(self, config, role, kv_cache_config):
        super().__init__(config, role, kv_cache_config)
        self.script = Scripted.table[self._kv_transfer_config.kv_connector_extra_config["script"]]
        self.waiting, self.async_answer, self.counts = [], {}, {}
        self.under_way, self.bad = [], set()

    @property
    def requires_kv_delivery(self):
        return False

    # ---- scheduler role

    def _note(self, *call):
        self.script.calls.append(call)

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        answer = self.script.answer(request, num_computed_tokens)
        self.async_answer[request.request_id] = (num_computed_tokens, answer[1])
        self._note("asked", request.request_id, num_computed_tokens, answer)
        return answer

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        self._note("allocated", request.request_id, num_external_tokens, [len(group) for group in blocks.get_block_ids()])
        if not num_external_tokens:
            return
        computed, waits = self.async_answer[request.request_id]
        first, end = computed // BLOCK, -(-(computed + num_external_tokens) // BLOCK)
        chosen = []
        for group in blocks.blocks:  # a window's group has the null block where it needs none
            chosen.append([None if block.is_null else block.block_id for block in group[first:end]])
        self.waiting.append(Load(request.request_id, list(request.all_token_ids), first, chosen, waits=waits))

    def build_connector_meta(self, scheduler_output):
        state = scheduler_output.kv_connector_block_state
        for request in scheduler_output.num_scheduled_tokens:
            need(state.get_block_ids(request) is not None, f"no block table of {request} in the block state of the step")
        self._note("built", dict(scheduler_output.num_scheduled_tokens), [new.req_id for new in scheduler_output.scheduled_new_reqs],
                   sorted(scheduler_output.scheduled_cached_reqs.resumed_req_ids), sorted(scheduler_output.preempted_req_ids or ()))
        loads, self.waiting = self.waiting, []
        self.script.loads += [load.request for load in loads]
        return LoadMetadata(loads)

    def update_connector_output(self, connector_output):
        self._note("told", sorted(connector_output.finished_recving or ()), sorted(connector_output.failed_recving),
                   sorted(connector_output.invalid_block_ids))

    def on_new_request(self, request):
        self._note("new", request.request_id)

    def bind_gpu_block_pool(self, gpu_block_pool):
        self.pool = gpu_block_pool

    def has_pending_push_work(self):
        return self.script.pending

    def reset_cache(self):
        self._note("reset")
        return self.script.reset

    def request_finished_all_groups(self, request, block_ids):
        self._note("finished", request.request_id, [len(group) for group in block_ids])
        self.waiting = [load for load in self.waiting if load.request != request.request_id]
        return False, None

    # ---- worker role

    def register_kv_caches(self, kv_caches):
        self.rank = parallel_state.get_tensor_model_parallel_rank()

    def start_load_kv(self, forward_context, **_):
        for load in self._get_connector_metadata().loads:
            number = self.counts[load.request] = self.counts.get(load.request, 0) + 1
            load = dataclasses.replace(load, **self.script.outcome(load.request, number, self.rank))
            worker = self.script.engine.workers[self.rank]
            for group, blocks in enumerate(load.blocks):
                for i, block in enumerate(blocks):
                    if block is not None:
                        worker.fill(group, [block], load.tokens, load.first_block + i, wrong=i in load.bad or load.steps > 1)
            self.under_way.append(load)

    def wait_for_layer_load(self, layer_name):
        pass

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **_):
        pass

    def wait_for_save(self):
        pass

    def get_transfer_results(self, finished_req_ids):
        results = KVConnectorTransferResults()
        for load in [load for load in self.under_way if not load.silent]:
            load.steps -= 1
            if load.steps > 0:
                continue
            self.under_way.remove(load)
            worker = self.script.engine.workers[self.rank]
            for group, blocks in enumerate(load.blocks):
                for i, block in enumerate(blocks):
                    if block is not None and i not in load.bad:
                        worker.fill(group, [block], load.tokens, load.first_block + i)
            if load.waits:
                results.finished_recving.add(load.request)
            if load.bad and load.by_request:
                results.failed_recving.add(load.request)
            elif load.bad:
                self.bad |= {block for blocks in load.blocks for i, block in enumerate(blocks) if i in load.bad and block is not None}
        return results

    def get_block_ids_with_load_errors(self):
        bad, self.bad = self.bad, set()
        return bad

    def build_connector_worker_meta(self):
        return LoadsDone([self.rank])


class OtherScriptedConnector(ScriptedConnector):
    """A second name, for MultiConnector."""


class Multi(Adapter):
    """vLLM's MultiConnector over others, the first of which that has a hit loads."""

    def __init__(self, *children):
        self.children = children

    def transfer(self):
        return dict(kv_connector="MultiConnector", kv_connector_extra_config={
            "connectors": [dict(kv_role="kv_both", kv_load_failure_policy="recompute", **child.transfer()) for child in self.children]})

    def attach(self, engine):
        for child in self.children:
            child.attach(engine)


# ---- our connector


class KVPool(Adapter):
    """kvpool.vllm.KVPoolConnector, with a master and a node of its own. All engines of one adapter have one pool."""
    steps, idle_s = 20000, 0.001

    def __init__(self, **settings):
        self.settings, self.lost, self.engine = settings, set(), None
        self.processes, self.node = [], None
        port = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{port.getsockname()[1]}"
        port.close()
        self.start("kvpool-master", "--listen", self.address, "--http", "none", "--data-dir", "none")
        self.node = self.start("kvpool-node", "--master", self.address, "--memory", "64MiB", "--name", f"node-{self.address}", "--keeper", "none")

    def start(self, program, *arguments):
        """A daemon, once it is ready."""
        where = pathlib.Path(kvpool.__file__).parent / "bin" / program
        process = subprocess.Popen([where, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.processes.append(process)
        need(process.stdout.readline().startswith("ready"), f"{program} did not start")
        return process

    def transfer(self):
        extra = {"master": self.address, "cost": "always", "lookup_ms": 5000} | self.settings
        return dict(kv_connector="KVPoolConnector", kv_connector_module_path="kvpool.vllm", kv_connector_extra_config=extra)

    def attach(self, engine):
        self.engine = engine
        ours = [one for one in getattr(engine.connector, "_connectors", [engine.connector]) if type(one).__name__ == "KVPoolConnector"]
        self.side = ours[0].scheduler
        self.requests = self.side.requests
        allocated = self.requests.allocated

        def lossy(request, tables, external):
            for number in self.lost if external else ():
                for key in self.keys(request, number):
                    self.pool().remove(key, force=True)
            allocated(request, tables, external)

        self.requests.allocated = lossy

    def pool(self):
        return self.side.attachment.pool

    def keys(self, request, number):
        """Of all objects of the block of that number."""
        for i, group in enumerate(self.side.groups):
            block = self.requests.hashes(request, i)[number].hex().encode()
            yield from (self.side.names.object_prefix(group, shard, 0) + block for shard in range(group.shards))

    def lose(self, number):
        """The block of that number is removed between the look-up and the load."""
        self.lost.add(number)

    def node_kill(self):
        self.node.kill()
        self.node.wait()

    def node_stop(self):
        self.node.send_signal(signal.SIGSTOP)

    def node_go_on(self):
        self.node.send_signal(signal.SIGCONT)

    def flip(self, tokens, number):
        """One byte of the block of that number is another one in the node's memory, where its bytes are looked for."""
        request = types.SimpleNamespace(block_hashes=self.engine.hasher(Request(
            request_id="flip", prompt_token_ids=list(tokens), pooling_params=None, sampling_params=SamplingParams())))
        value = self.pool().get(next(iter(self.keys(request, number))))
        for descriptor in pathlib.Path(f"/proc/{self.node.pid}/fd").iterdir():
            if "memfd:" in os.readlink(descriptor):
                with open(descriptor, "r+b") as file:
                    at = file.read().find(value)
                    if at >= 0:
                        file.seek(at + 5)
                        file.write(bytes([value[5] ^ 1]))
                        return
        raise Failed("the bytes of the block are not found in the node's memory")

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdout.close()
