"""Progress display of trials: a bar per running trial and the time left, or plain lines without a terminal."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.live import Live
from rich.table import Table
from rich.text import Text

from kinfolk.contests.budget import duration
from kinfolk.contests.fleet.totals import Totals
from kinfolk.contests.job import Job
from kinfolk.contests.outcome import DONE, Outcome
from kinfolk.core.console import Console, note

BAR = 24
REPORT_EVERY = 10.0
"""Seconds between two reports of the totals where no bar shows them."""


class Screen:
    """Progress of a number of jobs. `kept` of them were there already; `weight` is that of all the others."""

    def __init__(
        self,
        total: int,
        *,
        kept: int = 0,
        weight: float = 1.0,
        console: Console | None = None,
        events: Callable[[str], None] | None = None,
    ) -> None:
        """Show nothing yet. events: takes one JSON object per line for machines, in the place of bars and sentences."""
        self.console, self.events = console or Console(stderr=True), events
        self.total, self.ended, self.weight = total, kept, weight
        self.totals = Totals(finished=kept)
        self._speeds: dict[str, float] = {}
        self._reported = 0.0
        self._worked = self._found = 0.0
        self._began = time.monotonic()
        self._live: Live | None = None

    def __enter__(self) -> "Screen":
        if self.console.is_terminal and self.events is None:
            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.__exit__(None, None, None)
            self._live = None

    def note(self, text: str) -> None:
        """Say one thing above the bars."""
        if self.events is not None:
            self.events(note(text))
            return
        self.console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)

    def started(self, job: Job) -> None:
        """Say that a job begins, where no bar would show it; what an earlier run did of it is not this run's work."""
        self._found += job.weight * job.progress()
        if self.events is not None:
            self._event("started", job)
        elif not self._live:
            self.note(f"[{self.ended}/{self.total}] {job.label} begins")

    def claimed(self, job: Job, worker: str) -> None:
        """Report that a worker has taken a job on; people see it counted."""
        if self.events is not None:
            self._event("started", job, worker=worker)

    def finished(self, job: Job, outcome: Outcome) -> None:
        """Say how a job ended."""
        self.ended += 1
        self._worked += job.weight
        self.totals.add(outcome)
        self._speeds.pop(job.folder.name, None)
        if self.events is not None:
            self._event("finished", job, status=outcome.status, seconds=outcome.seconds, scores=outcome.scores)
            return
        self.note(f"[{self.ended}/{self.total}] {job.label}: {summary(outcome)}")

    def update(self, running: Sequence[tuple[Job, float]]) -> None:
        """Redraw the bars, or report the totals from time to time."""
        if not self._live:
            # people are not told again and again that all of them wait
            active = self.totals.running or (self.events is not None and self.totals.queued)
            if time.monotonic() - self._reported > REPORT_EVERY and active:
                self._reported = time.monotonic()
                self._report()
            return
        lines = Table.grid(padding=(0, 1))
        for job, fraction in running:
            lines.add_row(job.label, _bar(fraction), f"{100 * fraction:3.0f} %")
        gained = self._worked + sum(job.weight * fraction for job, fraction in running) - self._found
        share = gained / (self.weight - self._found or 1.0)
        lines.add_row(f"{self.ended} of {self.total} trials", _bar(share), self.time_left(share))
        if self.totals.running:
            lines.add_row(str(self.totals))
        self._live.update(lines)

    def counted(self, queued: int, running: int) -> None:
        """Take in how many trials wait and run, where others run them."""
        self.totals.queued, self.totals.running = queued, running

    def heard(self, job: Job, row: Mapping[str, Any]) -> None:
        """Take in the last row of a running trial's metrics; the speed of those not heard of is taken for the mean."""
        self._speeds[job.folder.name] = float(row.get("tokens_per_second", 0.0))
        mean = sum(self._speeds.values()) / len(self._speeds)
        self.totals.tokens_per_second = mean * max(self.totals.running, 1)

    def _event(self, event: str, job: Job, **more: Any) -> None:
        assert self.events is not None
        self.events(json.dumps({"event": event, "trial": job.folder.name, "name": job.name, "seed": job.seed} | more))

    def _report(self) -> None:
        if self.events is not None:
            self.events(json.dumps({"event": "progress"} | self.totals.plain()))
        else:
            self.note(str(self.totals))

    def time_left(self, share: float) -> str:
        """Estimate from what this run has done so far, and say nothing before it has done anything."""
        if share < 0.01:
            return ""
        elapsed = time.monotonic() - self._began
        return f"{duration(max(1, round(elapsed * (1 - share) / share)))} left"


def summary(outcome: Outcome) -> str:
    """Say in one line how a trial ended."""
    if outcome.status != DONE:
        return f"{outcome.status}: {outcome.reason.splitlines()[-1] if outcome.reason else 'no reason given'}"
    if not outcome.curve:
        return f"{1000 * outcome.seconds / max(1, outcome.steps):.1f} ms per step"
    losses = ", ".join(f"{measure} {value:.4f}" for measure, value in outcome.curve[-1].valid.items())
    steps = f"{outcome.steps} of {outcome.planned_steps}" if outcome.cut_short else f"{outcome.steps}"
    cut = ", cut short by the clock" if outcome.cut_short else ""
    return f"{losses} after {steps} steps in {duration(outcome.seconds)}{cut}"


def _bar(fraction: float) -> Text:
    # no markup: a note printed above the bars turns it off for them too
    full = round(BAR * min(max(fraction, 0.0), 1.0))
    return Text.assemble(("━" * full, "green"), ("─" * (BAR - full), "dim"))
