"""Metrics for Prometheus: requests are counted here, everything else is read from the engine when it is asked for."""

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kinfolk.use.serve.scheduler import Scheduler

BOUNDS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)
"""Seconds of the histogram's buckets."""


class Metrics:
    """Requests by route and status, their seconds, and clients that left."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("kinfolk_requests", "Requests answered.", ["route", "status"], registry=self.registry)
        self.seconds = Histogram(
            "kinfolk_request_seconds",
            "From the request to the end of its answer.",
            ["route"],
            buckets=BOUNDS,
            registry=self.registry,
        )
        left = "Clients that left before their answer was complete."
        self.gone = Counter("kinfolk_clients_gone", left, registry=self.registry)
        self.registry.register(EngineMetrics(scheduler))

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count an answer."""
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def value(self, name: str, **labels: str) -> float:
        """Return one number; 0 before it was counted."""
        return self.registry.get_sample_value(name, labels) or 0.0

    def text(self) -> bytes:
        """Return all numbers in Prometheus' text format."""
        return generate_latest(self.registry)


class EngineMetrics(Collector):
    """The scheduler's own counts."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler

    def collect(self) -> Iterator[Metric]:
        """Read all counts."""
        scheduler = self.scheduler
        yield GaugeMetricFamily("kinfolk_waiting", "Texts and calls that wait.", value=scheduler.n_waiting)
        restarts = "Times the engine restarted after a failure."
        yield CounterMetricFamily("kinfolk_engine_restarts", restarts, value=scheduler.restarts)
        running = GaugeMetricFamily("kinfolk_running", "Texts being written.", labels=["model"])
        for name, batch in scheduler.running.items():
            running.add_metric([name], len(batch.sequences))
        yield running
        for field, meaning in (
            ("prompt_tokens", "Tokens of prompts read."),
            ("new_tokens", "Tokens written."),
            ("steps", "Steps of the running batch."),
            ("rows_in_steps", "Rows of all steps; divided by steps, the mean batch size."),
            ("seconds", "Time spent in steps."),
            ("joined", "Rows that joined a batch."),
            ("left_early", "Rows that left before they were done."),
        ):
            family = CounterMetricFamily(f"kinfolk_{field}", meaning, labels=["model"])
            for name, counts in scheduler.counts.items():
                family.add_metric([name], getattr(counts, field))
            yield family
        for field, meaning in (
            ("hits", "Prompts that started like an earlier one."),
            ("reused", "Tokens of prompts found in the prefix cache, which were not read again."),
            ("held", "Bytes of the prefix cache."),
        ):
            kind = GaugeMetricFamily if field == "held" else CounterMetricFamily
            prefixes: Any = kind(f"kinfolk_prefix_{field}", meaning, labels=["model"])
            for name, batch in scheduler.running.items():
                if (cache := batch.engine.prefixes) is not None:
                    prefixes.add_metric([name], getattr(cache, field))
            yield prefixes
