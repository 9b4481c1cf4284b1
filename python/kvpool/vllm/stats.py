# SPDX-License-Identifier: Apache-2.0
"""Figures of the connector for vLLM's log and for Prometheus: counters since the engine last asked, and estimates."""
from __future__ import annotations

from typing import Any, Dict, List

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

# name: its text. Those whose name begins with "now_" are gauges; others are counted.
FIGURES = {
    "lookups_hit": "Look-ups that found a prefix", "lookups_miss": "Look-ups that found nothing", "lookups_late": "Look-ups given up after lookup_ms",
    "lookups_quiet": "Look-ups not sent, right after one without an answer", "lookups_failed": "Look-ups that ended with an error",
    "lookup_seconds": "Time of look-ups in seconds", "tokens_found": "Tokens that look-ups found", "tokens_loaded": "Tokens loaded from the pool",
    "tokens_refused": "Tokens found, and computed because that is faster", "tokens_failed": "Tokens of loads that did not arrive",
    "loads_cut": "Loads ended by their time", "loads_failed": "Loads with a block that is gone, damaged or out of reach",
    "load_host_bytes": "Bytes loaded from memory of this host", "load_remote_bytes": "Bytes loaded from memory of other hosts",
    "load_ssd_bytes": "Bytes loaded from SSDs", "load_seconds": "Time of loads in seconds, of the slowest rank", "probes": "Blocks read to measure the way to the pool",
    "saved_bytes": "Bytes put into the pool", "saves_dropped": "Blocks not stored for want of room, as others were on their way",
    "saves_failed": "Blocks that a rank could not put", "now_attached": "1 if the pool is used",
    "now_load_host_bytes_per_second": "Estimated rate of loads from memory of this host",
    "now_load_remote_bytes_per_second": "Estimated rate of loads from memory of other hosts",
    "now_load_ssd_bytes_per_second": "Estimated rate of loads from SSDs", "now_compute_tokens_per_second": "Estimated rate of computing a prompt",
}
CAUSES = "failed_"  # failed_NAME: loads that ended with that error


class Stats(KVConnectorStats):
    """data: figure -> value, as FIGURES, and failed_NAME."""

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, value in other.data.items():
            self.data[name] = value if name.startswith("now_") else self.data.get(name, 0) + value
        return self

    def reduce(self) -> Dict[str, Any]:
        return {name: round(value, 6) for name, value in self.data.items()}

    def is_empty(self) -> bool:
        return not self.data


class Metrics(KVConnectorPromMetrics):
    """vllm:kvpool_NAME, and vllm:kvpool_load_failures by cause."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: List[str], per_engine_labelvalues: Dict[int, List[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._of = {}
        for name, text in FIGURES.items():
            kind, shown = (self._gauge_cls, name[4:]) if name.startswith("now_") else (self._counter_cls, name)
            self._of[name] = kind(name=f"vllm:kvpool_{shown}", documentation=text + ".", labelnames=labelnames)
        self._causes = self._counter_cls(name="vllm:kvpool_load_failures", documentation="Loads that ended with an error, by its name.",
                                         labelnames=[*labelnames, "cause"])
        self._labels = per_engine_labelvalues

    def observe(self, transfer_stats_data: Dict[str, Any], engine_idx: int = 0) -> None:
        labels = self._labels[engine_idx]
        for name, value in transfer_stats_data.items():
            if name.startswith(CAUSES):
                self._causes.labels(*labels, name[len(CAUSES):]).inc(value)
            elif name.startswith("now_"):
                self._of[name].labels(*labels).set(value)
            elif name in self._of:
                self._of[name].labels(*labels).inc(value)
