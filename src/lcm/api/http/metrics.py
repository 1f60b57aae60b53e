"""Metrics for Prometheus, in a registry of their own, read by `/metrics`: of every process, and of one with the API.

`api.http.app` feeds them with every answer; `compose.status` shows those of a process without the API.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from lcm.controllers.runtime.counts import LOOK_BOUNDS, ControllerCounts
from lcm.store.base import StoreUsage
from lcm.system.build import build_name
from lcm.system.loop_watch import LoopWatch

MEDIA: Final = CONTENT_TYPE_PLAIN_0_0_4.encode()
NO_ROUTE_LABEL: Final = "none"
"""The route and method label of a request for an unknown route: what a client writes must not become a label."""

_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(slots=True)
class _Series:
    """Counts of the answers of one route, method and status."""

    count: int = 0
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(_BOUNDS) + 1))


class AnswerMetrics(Collector):
    """Counts answers in plain numbers: the library's own series cost more than the rest of a small request."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str, int], _Series] = {}

    def count(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count one answer."""
        series = self._series.get((route, method, status))
        if series is None:
            series = self._series[route, method, status] = _Series()
        series.count += 1
        series.seconds += seconds
        series.buckets[bisect_left(_BOUNDS, seconds)] += 1

    def collect(self) -> Iterator[CounterMetricFamily | HistogramMetricFamily]:
        """Yield everything as metric families of Prometheus."""
        answers = CounterMetricFamily("lcm_http_requests", "Requests answered.", labels=["route", "method", "status"])
        took = HistogramMetricFamily(
            "lcm_http_request_seconds",
            "Seconds until an answer was handed to the server; of a stream, until it ended.",
            labels=["route", "method", "status"],
        )
        for (route, method, status), series in self._series.items():
            labels = [route, method, str(status)]
            answers.add_metric(labels, series.count)
            bounds = [*map(str, _BOUNDS), "+Inf"]
            took.add_metric(labels, list(zip(bounds, accumulate(series.buckets), strict=True)), series.seconds)
        yield answers
        yield took


class LoopMetrics(Collector):
    """What a watch over the event loop saw."""

    def __init__(self, watch: LoopWatch) -> None:
        self._watch = watch

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield everything as metric families of Prometheus."""
        longest = GaugeMetricFamily(
            "lcm_loop_longest_hold_seconds",
            "The longest time in which one step kept everything else waiting since the start, and what it was.",
            labels=["culprit"],
        )
        if (held := self._watch.longest).seconds:
            longest.add_metric([held.culprit], held.seconds)
        yield longest
        holds = CounterMetricFamily("lcm_loop_holds", "Steps that kept everything else waiting for over 50 ms.")
        holds.add_metric([], self._watch.count)
        yield holds


class ControllerMetrics(Collector):
    """What the controllers of a process did, by their names."""

    def __init__(self, counts: ControllerCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]:
        """Yield everything as metric families of Prometheus."""
        yield from self._collect_looks()
        yield from self._collect_terms()

    def _collect_looks(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]:
        took = HistogramMetricFamily(
            "lcm_reconcile_seconds",
            "Seconds that a look at an object took, what was done about it included.",
            labels=["controller"],
        )
        failed = CounterMetricFamily(
            "lcm_reconcile_errors", "Looks that ended with an error.", labels=["controller", "reason"]
        )
        queued = GaugeMetricFamily("lcm_queue_depth", "Objects that wait to be looked at.", labels=["controller"])
        bounds = [*map(str, LOOK_BOUNDS), "+Inf"]
        for name, looks in self._counts.looks.items():
            took.add_metric([name], list(zip(bounds, accumulate(looks.buckets), strict=True)), looks.seconds)
            queued.add_metric([name], looks.measure_queue())
            for reason, count in looks.errors.items():
                failed.add_metric([name, reason], count)
        yield from (took, failed, queued)

    def _collect_terms(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        leads = GaugeMetricFamily("lcm_leader", "Whether this process leads.", labels=["lease"])
        left = GaugeMetricFamily(
            "lcm_lease_left_seconds",
            "Seconds for which this process may still act.",
            labels=["lease"],
        )
        elected = CounterMetricFamily("lcm_elections", "Terms that this process was elected for.", labels=["lease"])
        lost = CounterMetricFamily("lcm_terms_interrupted", "Terms that were not handed over.", labels=["lease"])
        for name, terms in self._counts.terms.items():
            seconds = terms.measure_left()
            leads.add_metric([name], seconds > 0)
            left.add_metric([name], seconds)
            elected.add_metric([name], terms.elected)
            lost.add_metric([name], terms.interrupted)
        yield from (leads, left, elected, lost)


class ProcessMetrics:
    """The metrics of any process: its loop, its controllers, its memory, and what runs."""

    def __init__(self, loop_watch: LoopWatch | None, counts: ControllerCounts) -> None:
        self.registry = CollectorRegistry()
        if loop_watch is not None:
            self.registry.register(LoopMetrics(loop_watch))
        self.registry.register(ControllerMetrics(counts))
        self._ready = Gauge("lcm_ready", "Whether a check of /readyz holds.", ["check"], registry=self.registry)
        build = Gauge("lcm_build_info", "Always 1; the labels say what runs.", ["version"], registry=self.registry)
        build.labels(build_name()).set(1)
        ProcessCollector(registry=self.registry)

    def render(self, checks: Mapping[str, bool]) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        for name, holds in checks.items():
            self._ready.labels(name).set(holds)
        return generate_latest(self.registry)


class ApiMetrics:
    """All metrics of a process that serves the API."""

    def __init__(self, loop_watch: LoopWatch | None = None, counts: ControllerCounts | None = None) -> None:
        self._process = ProcessMetrics(loop_watch, counts or ControllerCounts())
        self.registry = self._process.registry
        self.answers = AnswerMetrics()
        self.registry.register(self.answers)
        self._revision = Gauge("lcm_store_revision", "The store's newest revision.", registry=self.registry)
        self._used = Gauge("lcm_store_used_bytes", "Bytes that the store takes.", registry=self.registry)
        self._limit = Gauge("lcm_store_limit_bytes", "Bytes that the store can take.", registry=self.registry)
        self._unused = Gauge(
            "lcm_store_unused_bytes", "Bytes of those taken that defragmentation would free.", registry=self.registry
        )
        self._streams = Gauge("lcm_http_streams", "Streams that are open.", registry=self.registry)

    def render(
        self, *, revision: int | None, streams: int, checks: Mapping[str, bool], usage: StoreUsage | None = None
    ) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        if usage is not None:
            self._used.set(usage.used_bytes)
            self._limit.set(usage.limit_bytes)
            self._unused.set(usage.unused_bytes)
        if revision is not None:
            self._revision.set(revision)
        self._streams.set(streams)
        return self._process.render(checks)
