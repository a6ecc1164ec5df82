"""A job: a folder, and the command that leaves `result.json` in it."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """What to run where. `weight` is its share of the work ahead, `limit` the seconds after which it is stopped."""

    name: str
    seed: int
    key: str
    folder: Path
    command: Sequence[str]
    threads: int
    weight: float = 1.0
    limit: float | None = None
    progress: Callable[[], float] = lambda: 0.0

    @property
    def label(self) -> str:
        """How the job is called on screen."""
        return f"{self.name} · seed {self.seed}"
