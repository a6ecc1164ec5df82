"""A job: a folder, and the command that leaves `result.json` in it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """What to run where.

    weight: its share of the work ahead. limit: seconds after which it is stopped. needs: what a host must have to run
    it besides this package, by name.
    """

    name: str
    seed: int
    key: str
    folder: Path
    command: Sequence[str]
    threads: int
    weight: float = 1.0
    limit: float | None = None
    progress: Callable[[], float] = lambda: 0.0
    steps: int = 0
    needs: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def fraction(self, row: Mapping[str, Any]) -> float:
        """Return how far a job is, from the last row of its metrics."""
        return float(row.get("step", 0)) / self.steps if self.steps else 0.0

    @property
    def label(self) -> str:
        """How the job is called on screen."""
        return f"{self.name} · seed {self.seed}"
