# SPDX-License-Identifier: Apache-2.0
"""KVPoolConnector: vLLM's hooks. What they do is in the other modules of this package (docs/adr/0046-vllm-connector.md)."""
from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import json
import logging
import os
import pathlib
import platform
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple, Union

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole,
                                                               KVConnectorTransferResults, KVConnectorWorkerMetadata, SupportsHMA)
from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

from .. import _kvpool, errors
from . import layout
from .attach import Attachment
from .hits import Hits
from .names import Group, names_of
from .requests import Load, LoadReport, Requests, Save, SaveReport
from .settings import Settings, check_masters, read
from .stats import Metrics, Stats
from .transfers import Rank, Transfers

log = logging.getLogger(__name__)

_LOOKUP_CALL_MS = 500  # after which a look-up ends that nobody waits for any more
_TTL_MS = 2000
_CHECK_S = 1.0  # of a block whose sum was wrong
_PIECE = 65536  # bytes of a file of weights, at each of four places, which the fingerprint depends on
# 1 + the place (cost.py) of an object with these flags, 0 = the object is not there
_PLACE = bytes(0 if not f & _kvpool.PRESENT else 1 if f & _kvpool.ON_HOST else 3 if f & _kvpool.ON_SSD else 2 for f in range(256))


@dataclass
class Metadata(KVConnectorMetadata):
    """From the scheduler to the workers, with each step."""

    step: int
    loads: List[Load]
    saves: List[Save]
    stops: List[int]


@dataclass
class WorkerMetadata(KVConnectorWorkerMetadata):
    """From the workers to the scheduler, with each step."""

    step: int
    loads: Dict[int, LoadReport] = field(default_factory=dict)
    saves: Dict[int, SaveReport] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerMetadata:
        assert isinstance(other, WorkerMetadata)
        for job, load in other.loads.items():
            self.loads.setdefault(job, LoadReport(0, load.blocks, 0.0)).add(load)
        for job, save in other.saves.items():
            self.saves.setdefault(job, SaveReport(0)).add(save)
        return self


# ---- what the engine is
def _specs(spec: Any) -> List[Any]:
    """The specs of a group's layers: a group of layers of one type has one, another group one for each layer."""
    inner = getattr(spec, "kv_cache_specs", None)
    return list(inner.values()) if inner else [spec]


def _kind(spec: Any) -> str:
    name = type(_specs(spec)[0]).__name__
    return "state" if "Mamba" in name else "window" if "SlidingWindow" in name else "full"


def _replicas(spec: Any, config: Any) -> int:
    """The number of ranks of one stage with the same bytes."""
    tp = int(config.parallel_config.tensor_parallel_size)
    names = [type(s).__name__ for s in _specs(spec)]
    if any("Mamba" in n for n in names):
        return 1
    if all("MLA" in n for n in names):
        return tp
    return max(1, tp // int(config.model_config.get_total_num_kv_heads()))


def groups_of(config: Any, cache: Any, settings: Settings) -> List[Group]:
    """The cache groups that the pool keeps."""
    parallel = config.parallel_config
    if getattr(parallel, "decode_context_parallel_size", 1) > 1 or getattr(parallel, "prefill_context_parallel_size", 1) > 1:
        raise ValueError("context parallelism is not supported")
    found = []
    for number in cache.prefix_cacheable_group_ids:
        spec = cache.kv_cache_groups[number].kv_cache_spec
        kind = _kind(spec)
        if type(_specs(spec)[0]).__name__ == "CrossAttentionSpec":
            raise ValueError("encoder-decoder models are not supported")
        if kind == "state" and _specs(spec)[0].mamba_cache_mode != "align":
            raise ValueError("states are stored with mamba_cache_mode 'align' only")
        shards = parallel.tensor_parallel_size // _replicas(spec, config)
        found.append(Group(number, kind, spec.block_size, shards, getattr(_specs(spec)[0], "sliding_window", None) or 0))
    if not found:
        raise ValueError("the model has no cache group with prefix caching")
    if settings.store_tp:
        found = [_with_shards(found, config, settings.store_tp)]
    return found


def _with_shards(groups: Sequence[Group], config: Any, shards: int) -> Group:
    tp, heads = config.parallel_config.tensor_parallel_size, config.model_config.get_total_num_kv_heads()
    if len(groups) != 1 or groups[0].kind != "full" or groups[0].shards != tp or shards % tp or heads % shards:
        raise ValueError(f"store_tp {shards}: a model with one full-attention group is needed, whose {heads} heads are divided by "
                         f"it, and which is a multiple of the tensor parallelism {tp}")
    return Group(groups[0].number, "full", groups[0].block_tokens, shards)


def _weights_of(model: str) -> Optional[str]:
    """A digest of pieces of a folder's files of weights; None: model is the name of a hub's model, which says the same."""
    if not os.path.isdir(model):
        return None
    digest = hashlib.sha256()
    for path in sorted(p for p in pathlib.Path(model).iterdir() if p.suffix in (".safetensors", ".bin", ".pt", ".gguf")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with open(path, "rb") as file:
            for at in (0, size // 3, size * 2 // 3, max(size - _PIECE, 0)):
                file.seek(at)
                digest.update(file.read(_PIECE))
    return digest.hexdigest()[:32]


def fingerprint(config: Any, cache: Any, groups: Sequence[Group], settings: Settings, hash_tokens: int) -> Dict[str, Any]:
    """What the bytes of a block and the hashes depend on."""
    model, kv = config.model_config, config.cache_config
    algorithm, seed = str(kv.prefix_caching_hash_algo), os.environ.get("PYTHONHASHSEED", "")
    if "xxhash" in algorithm and not seed:
        raise ValueError(f"prefix_caching_hash_algo {algorithm} has another seed in every process: set PYTHONHASHSEED, or choose sha256")
    described = {name: value for name, value in model.hf_config.to_dict().items() if name not in ("_name_or_path", "transformers_version")}
    text = json.dumps(described, sort_keys=True, default=str)
    speculative, weights = getattr(config, "speculative_config", None), _weights_of(model.model)
    return {
        "weights_id": settings.weights_id, "revision": model.revision, "weights": weights,
        "model": model.model if weights is None else model.model.rstrip("/").rsplit("/", 1)[-1],
        "quantization": model.quantization, "dtype": str(model.dtype), "config": hashlib.sha256(text.encode()).hexdigest()[:32],
        "cache_dtype": str(kv.cache_dtype), "hash": algorithm, "hash_seed": seed, "hash_tokens": hash_tokens,
        "device": f"{config.device_config.device_type} {platform.machine()}",
        "backend": str(getattr(getattr(config, "attention_config", None), "backend", None)),
        "layout": str(getattr(cache, "kv_cache_layout", None)), "stages": config.parallel_config.pipeline_parallel_size,
        "groups": [{"number": g.number, "kind": g.kind, "block_tokens": g.block_tokens, "shards": g.shards, "window": g.window,
                    "specs": sorted({_spec_text(s) for s in _specs(cache.kv_cache_groups[g.number].kv_cache_spec)}),
                    "layers": len(cache.kv_cache_groups[g.number].layer_names)} for g in groups],
        "speculative": None if speculative is None else f"{speculative.method} {speculative.model}",
    }


def _spec_text(spec: Any) -> str:
    """Without the number of heads of a rank, which depends on the tensor parallelism and not on the shards."""
    parts = [f"{name}={getattr(spec, name)}" for name in _SPEC_FIELDS if hasattr(spec, name)]
    return f"{type(spec).__name__}({', '.join(parts)})"


_SPEC_FIELDS = ("head_size", "head_size_v", "dtype", "dtypes", "sliding_window", "shapes", "kv_quant_mode", "tokens_per_state")


class _Asker:
    """The look-ups of a scheduler: _kvpool.Asker with the options that all of them have."""

    def __init__(self, pool: Any, is_grouped: bool) -> None:
        self._raw = _kvpool.Asker(pool._raw)
        self._flags = _kvpool.EPOCH | _kvpool.PLACES | _kvpool.SOON | (_kvpool.GROUPS if is_grouped else 0)
        self.take, self.drop, self.close = self._raw.take, self._raw.drop, self._raw.close

    def ask(self, number: int, parts: Any, is_prefix: bool, epoch: int) -> bool:
        return self._raw.ask(number, parts, is_prefix, _TTL_MS, _LOOKUP_CALL_MS, self._flags, epoch)


def _release(pool: Any, tickets: Sequence[Tuple[int, int, int]]) -> None:
    for ticket in tickets:
        pool._raw.lookup_release(*ticket)


def _remove_damaged(pool: Any, keys: Sequence[bytes]) -> None:
    """Removes those that another read finds damaged, too: one may have been damaged on its way, or put again meanwhile."""
    for key in keys:
        try:
            pool.get(key, fresh=True, deadline=_CHECK_S)
        except errors.Error as e:
            if e.name == "CORRUPT":
                pool.remove_many([key])


# ---- the scheduler
class _Scheduler:
    def __init__(self, config: Any, cache: Any, settings: Settings) -> None:
        self.groups = groups_of(config, cache, settings)
        parallel = config.parallel_config
        self.names = names_of(settings.namespace, parallel.pipeline_parallel_size, self.groups)
        _, hash_tokens = resolve_kv_cache_block_sizes(cache, config)
        block_bytes = [sum(s.page_size_bytes for s in _specs(cache.kv_cache_groups[g.number].kv_cache_spec)) *
                       (1 if getattr(cache.kv_cache_groups[g.number].kv_cache_spec, "kv_cache_specs", None) else
                        len(cache.kv_cache_groups[g.number].layer_names)) for g in self.groups]
        self.requests = Requests(settings, self.groups, block_bytes, parallel.world_size, time.monotonic, self._parts, self._hit)
        self.requests.hash_tokens = hash_tokens
        self.hits = None if self.requests.is_dense else Hits(self.groups, settings.windows)
        self.requests.on_stale = lambda: self._lost(True)
        self.requests.on_failed_put = self._remove_group
        self._steps: Dict[int, Tuple[List[Tuple[int, int]], float]] = {}
        self._step, self._last_output = 0, 0.0
        self._told: Dict[str, Any] = {}
        self._was_attached: Optional[bool] = None
        fields = fingerprint(config, cache, self.groups, settings, hash_tokens)
        self.attachment = Attachment(settings, f"vllm-{socket.gethostname()}-{os.getpid()}-scheduler", fields, self._ready, lambda: self._lost(False))
        self.attachment.start()

    def _ready(self, pool: Any, epoch: int) -> None:
        r = self.requests
        if r.asker is None:
            r.asker = _Asker(pool, self.names.is_grouped)
        r.release = lambda tickets: _release(pool, tickets)
        r.remove_damaged = lambda keys: self.attachment.later(lambda: _remove_damaged(pool, keys))
        r.epoch = epoch

    def _lost(self, looks: bool) -> None:
        self.requests.epoch = None
        if looks:
            self.attachment.look()

    def bind(self, manager: Any) -> None:
        if self.hits is not None:
            self.hits.bind(manager)
            self.requests.mask = self.hits.mask
            self.requests.unit_tokens = self.hits.unit_tokens

    def _parts(self, request: Any) -> Tuple[List[Tuple[bytes, List[bytes]]], bool]:
        parts = [(self.names.lookup_prefix(g), self.requests.hashes(request, i)) for i, g in enumerate(self.groups)]
        return parts if parts[0][1] else [], self.requests.is_dense

    def _hit(self, request: Any, flags: bytes) -> Tuple[int, bytes]:
        places = flags.translate(_PLACE)
        if self.hits is None:
            n = places.find(b"\0")
            n = len(places) if n < 0 else n
            return n * self.groups[0].block_tokens, bytes(p - 1 for p in places[:n])
        hashes = [self.requests.hashes(request, i) for i in range(len(self.groups))]
        rows = range(max(len(h) for h in hashes))  # the order in which the asker asked
        return self.hits.hit(request, [(g, h[i]) for i in rows for g, h in zip(self.groups, hashes) if i < len(h)], places)

    def _remove_group(self, parts: Any, failed: Any) -> None:
        """A member was not put: what other ranks have put is never seen, and is removed."""
        keys = []
        for part in parts if self.names.is_grouped else ():
            group = self.groups[part.group]
            for i, block_hash in enumerate(part.hashes):
                if (part.group, part.first + i) in failed:
                    keys += [self.names.object_prefix(group, s, stage) + block_hash.hex().encode()
                             for s in range(group.shards) for stage in range(self.names.stages)]
        pool = self.attachment.pool
        if keys and pool is not None:
            self.attachment.later(lambda: pool.remove_many(keys))

    def meta(self, output: Any) -> Metadata:
        cached, tokens = output.scheduled_cached_reqs, output.num_scheduled_tokens
        scheduled = [(r.req_id, r.num_computed_tokens, tokens[r.req_id]) for r in output.scheduled_new_reqs]
        scheduled += [(i, n, tokens[i]) for i, n in zip(cached.req_ids, cached.num_computed_tokens)]
        state = output.kv_connector_block_state
        self._step += 1
        if scheduled:
            self._steps[self._step] = [(n, before) for _, before, n in scheduled], time.monotonic()

        def tables_of(request_id: str) -> Optional[List[List[int]]]:
            tables = None if state is None else state.get_block_ids(request_id)
            return None if tables is None else [tables[g.number] for g in self.groups]

        index = {g.number: i for i, g in enumerate(self.groups)}
        states = {r: [(index[g], b, n) for g, b, n in found if g in index]
                  for r, found in (state.boundary_state_offloads if state is not None else {}).items()}
        return Metadata(self._step, *self.requests.step(scheduled, tables_of, states))

    def output(self, meta: Any) -> None:
        if not isinstance(meta, WorkerMetadata):
            return
        now = time.monotonic()
        for step in [s for s in self._steps if s <= meta.step]:
            chunks, began = self._steps.pop(step)
            if step == meta.step:  # steps may overlap, so a step begins with the output before it at the earliest
                self.requests.cost.computing.add(chunks, now - max(began, self._last_output))
        self._last_output = now
        for job, load in meta.loads.items():
            self.requests.loaded(job, load)
        for job, save in meta.saves.items():
            self.requests.saved(job, save)

    def fail(self) -> None:
        self.requests.epoch = None
        self.attachment.state = "failed"

    def reset(self) -> bool:
        """True in every case: vLLM's pause fails otherwise, and old blocks are not read without the master either."""
        self.requests.forget()
        self.attachment.reset()
        return True

    def stats(self) -> Optional[Stats]:
        """What was counted since the last call; None: nothing."""
        r = self.requests
        data: Dict[str, Any] = {name: value - self._told.get(name, 0) for name, value in r.counts.items()}
        data = {name: value for name, value in data.items() if value}
        is_attached = r.epoch is not None
        if not data and self._was_attached is is_attached:
            return None
        self._told, self._was_attached = dict(r.counts), is_attached
        data["now_attached"] = int(is_attached)
        for name, per_byte in zip(("host", "remote", "ssd"), r.cost.loading.per_byte() or ()):
            data[f"now_load_{name}_bytes_per_second"] = 1.0 / per_byte
        seconds = r.cost.computing.seconds(1024, 0)
        if seconds:
            data["now_compute_tokens_per_second"] = 1024 / seconds
        return Stats(data)

    def close(self) -> None:
        if self.requests.asker is not None:
            self.requests.asker.close()
        self.attachment.close()


# ---- a worker
class _Worker:
    def __init__(self, config: Any, cache: Any, settings: Settings) -> None:
        self._config, self._cache, self._settings = config, cache, settings
        self.groups = groups_of(config, cache, settings)
        self.names = names_of(settings.namespace, config.parallel_config.pipeline_parallel_size, self.groups)
        self.transfers: Optional[Transfers] = None
        self.attachment: Optional[Attachment] = None
        self._storages: Dict[int, int] = {}
        self._lock, self._is_asleep = threading.Lock(), False
        self._step = 0

    def register(self, caches: Dict[str, Any]) -> None:
        from vllm.distributed.parallel_state import get_pp_group, get_tp_group

        tp_rank, stage, tp = get_tp_group().rank_in_group, get_pp_group().rank_in_group, get_tp_group().world_size
        layouts, replicas, replica = [], [], []
        for group in self.groups:
            spec = self._cache.kv_cache_groups[group.number]
            n = tp // group.shards if group.shards < tp else 1
            mine = group.shards // tp if group.shards > tp else 1  # store_tp: the shards of one rank
            found = [layout.pieces(caches, spec.layer_names, self._cache.num_blocks, mine, i) for i in range(mine)]
            if max(map(len, found)) > layout.PIECES_MAX:
                raise ValueError(f"a block has {max(map(len, found))} pieces; {layout.PIECES_MAX} are possible: choose the cache layout LBHNC")
            layouts.append([(tp_rank // n * mine + i, layout.packed(pieces)) for i, pieces in enumerate(found)])
            replicas.append(n)
            replica.append(tp_rank % n)
        self.transfers = Transfers(self.names, self.groups, Rank(stage, layouts, replicas, replica))
        self.transfers.start()
        self._storages = layout.storages(caches)
        rank = self._config.parallel_config.rank
        self.attachment = Attachment(self._settings, f"vllm-{socket.gethostname()}-{os.getpid()}-{rank}", None, self._ready,
                                     memory=self._settings.memory if rank == 0 else 0)
        self.attachment.start()

    def _ready(self, pool: Any, epoch: int) -> None:
        with self._lock:
            if not self._is_asleep:
                self._register(pool)

    def _register(self, pool: Any) -> None:
        for address, length in self._storages.items():
            err = pool._raw.register(address, length)
            if err:
                log.error("the cache at %#x (%d bytes) cannot be registered: error %d; nothing is loaded or saved", address, length, err)
                return
        self.moving().pool = pool

    def moving(self) -> Transfers:
        assert self.transfers is not None, "register_kv_caches comes first"
        return self.transfers

    def begin(self, meta: Metadata) -> None:
        self._step = meta.step
        for load in meta.loads:
            self.moving().load(load)
        for job in meta.stops:
            self.moving().stop(job)

    def save(self, meta: Metadata) -> None:
        ready = _written() if meta.saves else lambda: None
        for save in meta.saves:
            self.moving().save(save, ready)

    def unregister(self) -> None:
        """Sleep: the cache goes away. Nothing is under way then."""
        with self._lock:
            self._is_asleep = True
            if self.transfers is not None and self.transfers.pool is not None:
                pool, self.transfers.pool = self.transfers.pool, None
                for address in self._storages:
                    pool._raw.unregister(address)

    def restore(self) -> None:
        with self._lock:
            self._is_asleep = False
            if self.transfers is not None and self.transfers.pool is None and self.attachment is not None and self.attachment.state == "ready":
                self._register(self.attachment.pool)

    def close(self) -> None:
        if self.attachment is not None:
            self.attachment.close()  # ends the calls of the threads
        if self.transfers is not None:
            self.transfers.close()


def _written() -> Callable[[], Any]:
    """A function that returns when the device has done what it was told so far."""
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        return lambda: None
    event = torch.cuda.Event()
    event.record()
    wait: Callable[[], Any] = event.synchronize
    return wait


# ---- the hooks
def _guarded(default: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A hook of the scheduler that raises nothing into the engine: after a fault of ours the engine goes on without the pool."""
    def guard(hook: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(hook)
        def run(self: KVPoolConnector, *arguments: Any) -> Any:
            try:
                return hook(self, *arguments)
            except Exception:
                log.exception("the cache is off: a fault of the connector")
                self.scheduler.fail()
                return default
        return run
    return guard


class KVPoolConnector(KVConnectorBase_V1, SupportsHMA):
    """The pool as an external cache of vLLM. Settings: settings.py."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        settings = read(transfer.kv_connector_extra_config, vllm_config.model_config.model, transfer.kv_load_failure_policy)
        check_masters(settings.master)
        if not transfer.is_kv_consumer:  # vLLM does not protect the blocks of a load from steps under way then
            settings = dataclasses.replace(settings, cost="never")
        if not transfer.is_kv_producer:
            settings = dataclasses.replace(settings, save="none")
        self._bad_blocks: Set[int] = set()
        self._side: Union[None, _Scheduler, _Worker] = None
        if role == KVConnectorRole.SCHEDULER:
            self._side = _Scheduler(vllm_config, kv_cache_config, settings)
        else:
            self._side = _Worker(vllm_config, kv_cache_config, settings)

    @property
    def scheduler(self) -> _Scheduler:
        assert isinstance(self._side, _Scheduler)
        return self._side

    @property
    def worker(self) -> _Worker:
        assert isinstance(self._side, _Worker)
        return self._side

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    def shutdown(self) -> None:
        if self._side is not None:
            self._side.close()
        self._side = None

    # scheduler
    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        self.scheduler.bind(kv_cache_manager)

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        self.scheduler.requests.pool = gpu_block_pool

    @_guarded(None)
    def on_new_request(self, request: Any) -> None:
        self.scheduler.requests.new(request)

    @_guarded((0, False))
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Tuple[Optional[int], bool]:
        return self.scheduler.requests.matched(request, num_computed_tokens)

    @_guarded(None)
    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        tables = blocks.get_block_ids()
        self.scheduler.requests.allocated(request, [tables[g.number] for g in self.scheduler.groups], num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return self.scheduler.meta(scheduler_output)

    @_guarded(None)
    def update_connector_output(self, connector_output: Any) -> None:
        self.scheduler.output(connector_output.kv_connector_worker_meta)

    @_guarded((False, None))
    def request_finished(self, request: Any, block_ids: List[int]) -> Tuple[bool, Optional[Dict[str, Any]]]:
        return False, self.scheduler.requests.finished(request)

    @_guarded((False, None))
    def request_finished_all_groups(self, request: Any, block_ids: Tuple[List[int], ...]) -> Tuple[bool, Optional[Dict[str, Any]]]:
        return False, self.scheduler.requests.finished(request)

    def has_pending_push_work(self) -> bool:
        return self.scheduler.requests.has_saves

    def has_pending_block_frees(self) -> bool:
        return self.scheduler.requests.has_saves

    def reset_cache(self) -> Optional[bool]:
        return self._side.reset() if isinstance(self._side, _Scheduler) else None

    # both
    def get_kv_connector_stats(self) -> Optional[Stats]:
        return self._side.stats() if isinstance(self._side, _Scheduler) else None

    @classmethod
    def build_kv_connector_stats(cls, data: Optional[Dict[str, Any]] = None) -> Stats:
        return Stats(data or {})

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, metric_types: Any, labelnames: List[str],
                           per_engine_labelvalues: Dict[int, List[object]]) -> Metrics:
        return Metrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> Optional[str]:
        """store_tp cuts a block by heads, whose bytes have to lie side by side."""
        return "LBHNC" if vllm_config.kv_transfer_config.get_from_extra_config("store_tp", 0) else None

    # worker
    def register_kv_caches(self, kv_caches: Dict[str, Any]) -> None:
        self.worker.register(kv_caches)

    def unregister_kv_caches(self) -> None:
        self.worker.unregister()

    def restore_kv_caches(self) -> None:
        self.worker.restore()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self.worker.begin(self._get_connector_metadata())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are not layer by layer."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Saves are not layer by layer."""

    def wait_for_save(self) -> None:
        self.worker.save(self._get_connector_metadata())

    def get_transfer_results(self, finished_req_ids: Any) -> KVConnectorTransferResults:
        finished, failed, self._bad_blocks = self.worker.moving().take_finished()
        return KVConnectorTransferResults(finished_recving=finished, failed_recving=failed)

    def get_block_ids_with_load_errors(self) -> Any:
        return self._bad_blocks  # of the moment of get_transfer_results, which vLLM calls before

    def build_connector_worker_meta(self) -> Optional[KVConnectorWorkerMetadata]:
        return WorkerMetadata(self.worker._step, *self.worker.moving().take_reports())


try:  # MultiConnector finds the figures of its connectors by their registered names
    KVConnectorFactory.register_connector("KVPoolConnector", "kvpool.vllm", "KVPoolConnector")
except ValueError:
    pass  # this process has registered it
