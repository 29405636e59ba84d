"""Prometheus metrics of one server. Each app has its own registry."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, UntypedMetricFamily
from prometheus_client.registry import Collector

from duckfleet.runtime.engine import Engine, GenerationMetrics

log = logging.getLogger(__name__)

FabricStats = Callable[[], Mapping[str, object]]

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, float("inf"))


class ServerMetrics:
    """Counts of requests and what generations cost."""

    def __init__(self, engine: Engine, fabric_stats: FabricStats | None) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "duckfleet_http_requests", "Answered requests", ["path", "method", "status"], registry=self.registry
        )
        self.request_s = Histogram(
            "duckfleet_http_request_seconds", "Time to answer", ["path"], buckets=_SECONDS, registry=self.registry
        )
        self.gone = Counter(
            "duckfleet_http_clients_gone", "Clients that left before their answer was whole", registry=self.registry
        )
        self._tokens = Counter("duckfleet_tokens", "Tokens of ended generations", ["kind"], registry=self.registry)
        self._ttft_s = Histogram(
            "duckfleet_ttft_seconds", "From submit to the first token", buckets=_SECONDS, registry=self.registry
        )
        self._tpot_s = Histogram(
            "duckfleet_tpot_seconds", "Mean time of a token after the first", buckets=_SECONDS, registry=self.registry
        )
        self._queue_s = Histogram(
            "duckfleet_queue_seconds", "From submit to the first forward", buckets=_SECONDS, registry=self.registry
        )
        self.registry.register(_EngineCollector(engine))
        if fabric_stats is not None:
            self.registry.register(_FabricCollector(fabric_stats))

    def generation_ended(self, metrics: GenerationMetrics) -> None:
        self._tokens.labels("prompt").inc(metrics.prompt_tokens)
        self._tokens.labels("completion").inc(metrics.completion_tokens)
        if metrics.num_forwards:
            self._queue_s.observe(metrics.queue_s)
        if metrics.ttft_s is not None:
            self._ttft_s.observe(metrics.ttft_s)
        if metrics.tokens_per_s is not None:
            self._tpot_s.observe(1.0 / metrics.tokens_per_s)


class _EngineCollector(Collector):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterable[Metric]:
        stats = self._engine.stats()
        yield GaugeMetricFamily("duckfleet_requests_active", "Requests being served", stats.num_active)
        yield GaugeMetricFamily("duckfleet_requests_waiting", "Requests in the queue", stats.num_waiting)
        ended = CounterMetricFamily("duckfleet_generations", "Ended generations", labels=["outcome"])
        ended.add_metric(["finished"], stats.num_finished)
        ended.add_metric(["failed"], stats.num_failed)
        ended.add_metric(["cancelled"], stats.num_cancelled)
        yield ended
        yield CounterMetricFamily("duckfleet_forwards", "Forwards of the decoder", stats.num_forwards)
        yield CounterMetricFamily("duckfleet_forward_seconds", "Time in forwards", stats.forward_s)
        split = CounterMetricFamily("duckfleet_fabric_seconds", "Time in the fabric, by part", labels=["part"])
        for part in ("prepare", "send", "wait", "fetch"):
            split.add_metric([part], getattr(stats, f"{part}_us") / 1e6)
        yield split


class _FabricCollector(Collector):
    """Whatever numbers a fabric's `stats()` holds.

    {"forwards": 3}                           duckfleet_fabric_forwards 3
    {"drops": {"stale": 1}}                   duckfleet_fabric_drops{kind="stale"} 1
    {"ducks": [{"duck": "a", "resends": 2}]}  duckfleet_fabric_duck_resends{duck="a"} 2
    {"transport": "udp"}                      duckfleet_fabric_info{transport="udp"} 1
    """

    def __init__(self, stats: FabricStats) -> None:
        self._stats = stats
        self._num_failures = 0

    def collect(self) -> Iterable[Metric]:
        families: dict[str, UntypedMetricFamily] = {}
        try:
            _gather(self._stats(), families)
        except Exception:  # a fabric that is being closed must not take the other metrics with it
            log.exception("the fabric's statistics could not be read")
            self._num_failures += 1
        yield from families.values()
        yield CounterMetricFamily(
            "duckfleet_fabric_stats_failures", "Times the fabric's statistics could not be read", self._num_failures
        )

    def describe(self) -> Iterable[Metric]:
        return ()  # the names are known only once there are statistics


def _gather(stats: Mapping[str, object], families: dict[str, UntypedMetricFamily]) -> None:
    info = {}
    for name, value in stats.items():
        match value:
            case str():
                info[name] = value
            case list():
                singular = name.removesuffix("s")
                for item in value:
                    if isinstance(item, Mapping):
                        labels = {singular: str(item.get(singular, ""))}
                        for key, inner in item.items():
                            _add(families, f"{singular}_{key}", labels, inner)
            case _:
                _add(families, name, {}, value)
    if info:
        _add(families, "info", info, 1)


def _add(families: dict[str, UntypedMetricFamily], name: str, labels: dict[str, str], value: object) -> None:
    if isinstance(value, Mapping):
        for kind, inner in value.items():
            if isinstance(inner, int | float):
                _add(families, name, {**labels, "kind": str(kind)}, inner)
    elif isinstance(value, int | float):
        full_name = "duckfleet_fabric_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)
        names = [re.sub(r"[^a-zA-Z0-9_]", "_", label) for label in labels]
        family = families.setdefault(full_name, UntypedMetricFamily(full_name, "From the fabric", labels=names))
        family.add_metric(list(labels.values()), float(value))
