"""What the user sees while a run goes on: a live line on a terminal, a line now and then elsewhere, or nothing."""

import sys
import time
from collections.abc import Mapping
from typing import Any

SMOOTHING = 0.9
"""How much of the running mean of the loss and of the speed is kept at each step."""


class Progress:
    """Says nothing; the others say more."""

    def start(self, step: int, total: int) -> None:
        """Begin after `step` of `total`."""

    def step(self, row: Mapping[str, Any]) -> None:
        """Take in a training row of metrics.jsonl."""

    def valid(self, row: Mapping[str, Any]) -> None:
        """Take in a validation row of metrics.jsonl."""

    def note(self, text: str) -> None:
        """Say something once."""

    def close(self) -> None:
        """End."""


class _Spoken(Progress):
    """Keeps running means and the time left."""

    def start(self, step: int, total: int) -> None:
        self.total, self.done, self.first, self.begun = total, step, step, time.monotonic()
        self.means: dict[str, float] = {}
        self.validation = ""

    def step(self, row: Mapping[str, Any]) -> None:
        self.done = row["step"]
        for name in ("loss", "tokens_per_second", "mfu"):
            if row.get(name) is not None:
                self.means[name] = SMOOTHING * self.means.get(name, row[name]) + (1 - SMOOTHING) * row[name]

    def valid(self, row: Mapping[str, Any]) -> None:
        name, value = next(iter(row["valid"].items()))
        self.validation = f"{name} {value:.4f}"

    def describe(self) -> str:
        """Return loss, validation, speed and the share of the measured peak in one line."""
        parts = [f"loss {self.means.get('loss', float('nan')):.4f}"]
        parts += [f"valid {self.validation}"] if self.validation else []
        parts += [f"{self.means.get('tokens_per_second', 0):,.0f} tokens/s"]
        parts += [f"MFU {100 * self.means['mfu']:.0f} %"] if "mfu" in self.means else []
        return "  ".join(parts)

    def left(self) -> float:
        """Return the seconds left at the pace so far, validations and checkpoints included."""
        steps = self.done - self.first
        return (time.monotonic() - self.begun) / steps * (self.total - self.done) if steps else 0.0


class Lines(_Spoken):
    """One line per validation and per twentieth of the run, for logs."""

    def step(self, row: Mapping[str, Any]) -> None:
        super().step(row)
        if self.done % max(1, self.total // 20) == 0:
            self.note(f"step {self.done}/{self.total}  {self.describe()}  {clock(self.left())} left")

    def note(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


class Live(_Spoken):
    """A bar that moves, on a terminal."""

    def start(self, step: int, total: int) -> None:
        super().start(step, total)
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        from kinfolk.core.console import Console

        columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.description}"))
        self.bar = Bar(*columns, console=Console(stderr=True), refresh_per_second=4, transient=False)
        self.task = self.bar.add_task("", total=total, completed=step)
        self.bar.start()

    def step(self, row: Mapping[str, Any]) -> None:
        super().step(row)
        text = f"{self.describe()}  {clock(self.left())} left"
        self.bar.update(self.task, completed=self.done, description=text)

    def note(self, text: str) -> None:
        self.bar.console.print(text, highlight=False, markup=False)

    def close(self) -> None:
        self.bar.stop()


def choose(quiet: bool, main: bool = True) -> Progress:
    """Return the way to show progress that fits where the output goes."""
    if quiet or not main:
        return Progress()
    return Live() if sys.stderr.isatty() else Lines()


def clock(seconds: float) -> str:
    """Return "1h02m", "3m20s" or "12s"."""
    seconds = round(seconds)
    hours, minutes = divmod(seconds // 60, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{seconds % 60:02d}s" if minutes else f"{seconds}s"
