"""What is seen while trials run: a line per running trial and the time left, or plain lines where nobody watches."""

import time
from collections.abc import Sequence

from rich.live import Live
from rich.table import Table

from kinfolk.contests.budget import duration
from kinfolk.contests.job import Job
from kinfolk.contests.outcome import DONE, Outcome
from kinfolk.core.console import Console

BAR = 24


class Screen:
    """Progress of a number of jobs. `kept` of them were there already; `weight` is that of all the others."""

    def __init__(self, total: int, *, kept: int = 0, weight: float = 1.0, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.total, self.ended, self.weight = total, kept, weight
        self._worked = self._found = 0.0
        self._began = time.monotonic()
        self._live: Live | None = None

    def __enter__(self) -> "Screen":
        if self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.__exit__(None, None, None)
            self._live = None

    def note(self, text: str) -> None:
        """Say one thing above the bars."""
        self.console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)

    def started(self, job: Job) -> None:
        """Say that a job begins, where no bar would show it; what an earlier run did of it is not this run's work."""
        self._found += job.weight * job.progress()
        if not self._live:
            self.note(f"[{self.ended}/{self.total}] {job.label} begins")

    def finished(self, job: Job, outcome: Outcome) -> None:
        """Say how a job ended."""
        self.ended += 1
        self._worked += job.weight
        self.note(f"[{self.ended}/{self.total}] {job.label}: {summary(outcome)}")

    def update(self, running: Sequence[tuple[Job, float]]) -> None:
        """Redraw the bars."""
        if not self._live:
            return
        lines = Table.grid(padding=(0, 1))
        for job, fraction in running:
            lines.add_row(job.label, _bar(fraction), f"{100 * fraction:3.0f} %")
        gained = self._worked + sum(job.weight * fraction for job, fraction in running) - self._found
        share = gained / (self.weight - self._found or 1.0)
        lines.add_row(f"{self.ended} of {self.total} trials", _bar(share), self.time_left(share))
        self._live.update(lines)

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


def _bar(fraction: float) -> str:
    full = round(BAR * min(max(fraction, 0.0), 1.0))
    return f"[green]{'━' * full}[/][dim]{'─' * (BAR - full)}[/]"
