"""Progress of many trials in a few numbers: counts, tokens per second, time left, core and GPU hours."""

import dataclasses
from typing import Any

from kinfolk.contests.budget import duration
from kinfolk.contests.outcome import KEPT, Outcome


@dataclasses.dataclass
class Totals:
    """Counts of trials by state, and what they have used.

    failed: ended without a result that is kept. tokens_per_second: of all trials that run. trial_seconds: training of
    those that finished, from which the time left is estimated.
    """

    queued: int = 0
    running: int = 0
    finished: int = 0
    failed: int = 0
    tokens_per_second: float = 0.0
    trial_seconds: float = 0.0
    core_hours: float = 0.0
    gpu_hours: float = 0.0

    def add(self, outcome: Outcome) -> None:
        """Count a trial that has ended."""
        kept = outcome.status in KEPT
        self.finished += kept
        self.failed += not kept
        self.trial_seconds += outcome.seconds * kept
        self.core_hours += outcome.seconds * max(1, outcome.threads) / 3600
        self.gpu_hours += outcome.seconds * (outcome.device_bytes > 0) / 3600

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the last trial ends, if those to come take as long as those that finished did."""
        if not self.finished or not self.running:
            return None
        # a trial that runs is half done, as far as anybody knows
        return self.trial_seconds / self.finished * (self.queued / self.running + 0.5)

    def plain(self) -> dict[str, Any]:
        """Return the numbers for machines."""
        left = self.seconds_left
        numbers = dataclasses.asdict(self) | {"seconds_left": None if left is None else round(left, 1)}
        del numbers["trial_seconds"]
        return {name: round(x, 4) if isinstance(x, float) else x for name, x in numbers.items()}

    def __str__(self) -> str:
        parts = [f"{getattr(self, name):,} {name}" for name in ("queued", "running", "finished", "failed")]
        parts += [f"{self.tokens_per_second:,.0f} tokens/s"] if self.tokens_per_second else []
        parts += [f"{self.core_hours:.2f} core hours"]
        parts += [f"{self.gpu_hours:.2f} GPU hours"] if self.gpu_hours else []
        parts += [f"{duration(max(1, round(self.seconds_left)))} left"] if self.seconds_left is not None else []
        return ", ".join(parts)
