"""Numbers for Prometheus, in its text format."""

import bisect
import collections
from collections.abc import Iterator

from kinfolk.use.serve.scheduler import Scheduler

BOUNDS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)
"""Seconds of the histogram's buckets."""


class Metrics:
    """Counts of requests, by what was asked and how it was answered; everything else is read from the engine."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.requests: collections.Counter[tuple[str, int]] = collections.Counter()
        self.seconds: dict[str, list[int]] = {}
        self.sums: collections.Counter[str] = collections.Counter()
        self.gone = 0

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count an answer."""
        self.requests[route, status] += 1
        buckets = self.seconds.setdefault(route, [0] * (len(BOUNDS) + 1))
        buckets[bisect.bisect_left(BOUNDS, seconds)] += 1
        self.sums[route] += seconds  # type: ignore[assignment]

    def text(self) -> str:
        """Return all numbers."""
        return "\n".join([*self._of_requests(), *self._of_engine()]) + "\n"

    def _of_requests(self) -> Iterator[str]:
        yield from _head("kinfolk_requests_total", "counter", "Requests answered.")
        for (route, status), n in sorted(self.requests.items()):
            yield f'kinfolk_requests_total{{route="{route}",status="{status}"}} {n}'
        yield from _head("kinfolk_request_seconds", "histogram", "From the request to the end of its answer.")
        for route, buckets in sorted(self.seconds.items()):
            total = 0
            for bound, n in zip((*map(str, BOUNDS), "+Inf"), buckets, strict=True):
                total += n
                yield f'kinfolk_request_seconds_bucket{{route="{route}",le="{bound}"}} {total}'
            yield f'kinfolk_request_seconds_sum{{route="{route}"}} {self.sums[route]:.6f}'
            yield f'kinfolk_request_seconds_count{{route="{route}"}} {total}'
        yield from _head("kinfolk_clients_gone_total", "counter", "Clients that left before their answer was complete.")
        yield f"kinfolk_clients_gone_total {self.gone}"

    def _of_engine(self) -> Iterator[str]:
        yield from _head("kinfolk_waiting", "gauge", "Texts and calls that wait.")
        yield f"kinfolk_waiting {self.scheduler.n_waiting}"
        yield from _head("kinfolk_engine_restarts_total", "counter", "Times the engine began again after a failure.")
        yield f"kinfolk_engine_restarts_total {self.scheduler.restarts}"
        yield from _head("kinfolk_running", "gauge", "Texts being written.")
        for name, batch in self.scheduler.running.items():
            yield f'kinfolk_running{{model="{_label(name)}"}} {len(batch.sequences)}'
        for field, what in (
            ("prompt_tokens", "Tokens of prompts read."),
            ("new_tokens", "Tokens written."),
            ("steps", "Steps of the running batch."),
            ("rows_in_steps", "Rows of all steps; divided by steps, how many share one."),
            ("seconds", "Time spent in steps."),
            ("joined", "Rows that joined a batch."),
            ("left_early", "Rows that left before they were done."),
        ):
            yield from _head(f"kinfolk_{field}_total", "counter", what)
            for name, counts in self.scheduler.counts.items():
                yield f'kinfolk_{field}_total{{model="{_label(name)}"}} {getattr(counts, field):.10g}'


def _head(name: str, kind: str, what: str) -> Iterator[str]:
    yield f"# HELP {name} {what}"
    yield f"# TYPE {name} {kind}"


def _label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
