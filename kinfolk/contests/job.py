"""A job: a folder, and the command that leaves `result.json` in it."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from kinfolk.contests.outcome import Outcome
from kinfolk.contests.trial import Trial, last_row
from kinfolk.core import child


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
    steps: int = 0
    needs: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, trial: Trial, folder: Path, **fields: Any) -> Self:
        """Return the job of a trial in a folder, by the command of this installation and no other."""
        command = child.module("kinfolk.contests.trial", folder)
        fields = {"threads": trial.threads} | fields
        return cls(name=trial.name, seed=trial.seed, key=trial.key, folder=folder, command=command, **fields)

    def progress(self) -> float:
        """Return how far a job is that runs in its folder."""
        return self.fraction(last_row(self.folder))

    def fraction(self, row: Mapping[str, Any]) -> float:
        """Return how far a job is, from the last row of its metrics."""
        return float(row.get("step", 0)) / self.steps if self.steps else 0.0

    def ended(self, status: str, reason: str) -> Outcome:
        """Return an outcome in the place of the job's own."""
        return Outcome(name=self.name, seed=self.seed, key=self.key, status=status, reason=reason)

    @property
    def label(self) -> str:
        """How the job is called on screen."""
        return f"{self.name} · seed {self.seed}"
