"""The outcome of a trial, however it ended: the content of its `result.json`."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from kinfolk.core.errors import DataError, brief
from kinfolk.runs import durable

DONE, DIVERGED, CRASHED, OUT_OF_MEMORY, TIMED_OUT = "done", "diverged", "crashed", "out of memory", "timed out"

KEPT = (DONE, DIVERGED)
"""Endings that the same command would reach again, so they are not tried again; the others may be bad luck."""

FILE = "result.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """One validation: how much had been used by then, and the mean loss in nats of every measure."""

    step: int
    tokens: int
    seconds: float
    flops: float
    valid: dict[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a trial ended and what it used.

    status, reason: one of the endings above, and why, for those that are not "done".
    lr: the learning rate of its recipe, added by who ordered it.
    planned_steps, steps: what the budget allowed and what was done (fewer where the clock stopped it).
    tokens, seconds, flops: what training used; validation and start-up do not count.
    start_bytes, peak_bytes: resident memory before the model was built, and the most there ever was.
    device_bytes: the most memory of an accelerator that it took; 0 where it ran on none.
    neighbours: trials that ran beside this one, on average over its life.
    bytes_per_token: of the validation text, to turn nats per token into bits per byte; 0 when unknown.
    curve: validations, the last one after the last step.
    test: scores of the last weights on the split that judges, where that is another than the curve's.
    special: what the relative is built around, by layer: see `kinfolk.train.special`.
    battery: what a trained contestant can do besides: see `kinfolk.contests.evidence.Battery`.
    """

    name: str
    seed: int
    status: str
    reason: str = ""
    key: str = ""
    lr: float | None = None
    params: int = 0
    planned_steps: int = 0
    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    flops: float = 0.0
    tokens_per_second: float = 0.0
    start_bytes: int = 0
    peak_bytes: int = 0
    device_bytes: int = 0
    threads: int = 0
    neighbours: float = 0.0
    bytes_per_token: float = 0.0
    curve: tuple[Point, ...] = ()
    test: dict[str, float] = dataclasses.field(default_factory=dict)
    special: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    battery: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def scores(self) -> dict[str, float]:
        """What a verdict is on: the scores on the split that judges, or the last validation where that is the same."""
        return self.test or (self.curve[-1].valid if self.curve else {})

    @property
    def done(self) -> bool:
        """Whether it has a score that can be ranked; the battery of a trained trial has none."""
        return self.status == DONE and bool(self.curve)

    @property
    def cut_short(self) -> bool:
        """Whether the clock ended it before the last of its steps."""
        return self.done and self.steps < self.planned_steps

    @property
    def pace(self) -> float:
        """Seconds of a step; 0 for a trial that did none."""
        return self.seconds / self.steps if self.status == DONE and self.steps else 0.0

    @property
    def most_bytes(self) -> int:
        """The most memory it had where it was trained: of the accelerator, or of the process."""
        return self.device_bytes or self.peak_bytes

    @property
    def growth_bytes(self) -> int:
        """How much of that training took."""
        return self.device_bytes or self.peak_bytes - self.start_bytes

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def write(self, folder: Path) -> None:
        """Write `result.json` in one stroke: it is there and whole, or it is not there."""
        write_json(folder / FILE, dataclasses.asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Read what `write` wrote; None when there is nothing, or something that cannot be read."""
        try:
            data = json.loads((folder / FILE).read_text(encoding="utf-8"))
            return cls(**{**data, "curve": tuple(Point(**point) for point in data["curve"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None


def write_json(file: Path, data: Any) -> None:
    """Write JSON atomically."""
    durable.write(file, json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def read_kept(file: Path, valid: Callable[[Any], bool]) -> Any:
    """Return the JSON by which a folder goes on as it was begun; None where there is none yet."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if valid(data):
            return data
        reason = f"found {brief(data)}"
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, TypeError, AttributeError, LookupError) as error:
        reason = str(error)
    raise DataError(
        f"{file}: is not what this folder's trials were begun with ({reason}); bring it back, or choose another --out"
    )
