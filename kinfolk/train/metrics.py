"""What happened at each step, as one JSON object per line, and in TensorBoard when it is installed.

Rows go to the file as they happen. A killed process may leave half a line, and rows of steps that a resumed run
makes again: `Metrics.resume` drops both, so the file of a resumed run reads like that of an uninterrupted one.
"""

import contextlib
import importlib.util
import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from kinfolk.core.errors import DataError
from kinfolk.runs import durable

CLOCKS = ("seconds", "tokens_per_second", "mfu", "waiting")
"""Fields that depend on how fast the machine was; two equal runs agree on everything else."""


class DamagedMetrics(UserWarning):
    """Lines of metrics.jsonl cannot be read."""


class MetricsLog:
    """The open file of one run."""

    def __init__(self, path: Path, step: int = 0, *, tensorboard: bool = True) -> None:
        self.path = path
        with durable.refusal(path):
            self._file: TextIO = path.open("a", encoding="utf-8")
        self._board = _board(path.parent / "tensorboard", step) if tensorboard else None

    @classmethod
    def resume(cls, path: Path, step: int, *, tensorboard: bool = True) -> "MetricsLog":
        """Open the file of a run that goes on after `step`."""
        if path.exists():
            rows = [row for row in _usable(path) if row["step"] <= step]
            durable.write(path, "".join(_line(row) for row in rows))
        return cls(path, step, tensorboard=tensorboard)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append a row."""
        with durable.refusal(self.path):
            self._file.write(_line(row))
            self._file.flush()
        if self._board is not None:
            for name, value in _flat(row):
                if name != "step" and math.isfinite(value):
                    self._board.add_scalar(name, value, row["step"])

    def sync(self) -> None:
        """Force the rows to disk; done before a checkpoint says that their steps are behind us."""
        with durable.refusal(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        # a full disk was reported by the write that met it; closing must not hide that report
        with contextlib.suppress(OSError):
            self._file.close()
        if self._board is not None:
            self._board.close()


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file; half a line at its end is what a killed process left and is passed over."""
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines, 1):
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            if number < len(lines):
                raise DataError(f"{path}:{number}: not a JSON object: {line[:60]!r}") from None


def _usable(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows that can be read; a damaged file costs its damaged lines, not the run."""
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    lost = 0
    for line in lines[:-1]:
        try:
            row = json.loads(line)
            if isinstance(row["step"], int):
                yield row
                continue
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        lost += 1
    if lost:
        warnings.warn(f"{path}: {lost} damaged lines are left out", DamagedMetrics, stacklevel=3)


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row) + "\n"


def _flat(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/")
        elif isinstance(value, int | float):
            yield f"{prefix}{name}", value


def _board(folder: Path, step: int) -> Any:
    """Open TensorBoard's writer, or return None where it is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=step + 1)
