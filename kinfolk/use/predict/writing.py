"""Answers to a file: JSON lines, or a table; whole or not there at all."""

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kinfolk.core import durable
from kinfolk.core.errors import DataError, suggest

ENDINGS = (".jsonl", ".csv")
Writer = Callable[[dict[str, Any]], None]


@contextmanager
def writer(out: Path | None) -> Iterator[Writer]:
    """Write answers to a file, aside until it is finished; None is standard output, as JSON lines."""
    if out is None:
        yield lambda answer: print_line(sys.stdout, answer)
        return
    if out.suffix not in ENDINGS:
        raise DataError(f"{out}: answers are written as {' or '.join(ENDINGS)}{suggest(out.suffix, ENDINGS)}")
    out.parent.mkdir(parents=True, exist_ok=True)
    with durable.appearing(out) as aside, aside.open("w", encoding="utf-8", newline="") as file:
        table = _Table(file)
        yield (lambda answer: print_line(file, answer)) if out.suffix == ".jsonl" else table.write


def print_line(file: Any, answer: dict[str, Any]) -> None:
    """Write an answer as a line of JSON."""
    file.write(json.dumps(answer, ensure_ascii=False) + "\n")


class _Table:
    """Rows of one width: probabilities have columns of their own, lists and objects are JSON."""

    def __init__(self, file: io.TextIOBase | Any) -> None:
        self.writer = csv.writer(file)
        self.names: list[str] = []

    def write(self, answer: dict[str, Any]) -> None:
        """Write a row, and before the first one the names."""
        flat: dict[str, Any] = {}
        for key, value in answer.items():
            if key == "probabilities":
                flat |= {f"p({name})": share for name, share in value.items()}
            else:
                flat[key] = _cell(value)
        if not self.names:
            self.names = list(flat)
            self.writer.writerow(self.names)
        strange = [name for name in flat if name not in self.names]
        if strange:
            raise DataError(f"a table has the columns of its first row, and {strange[0]!r} is not there; write .jsonl")
        self.writer.writerow([flat.get(name, "") for name in self.names])


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(x, str) for x in value):
        return " ".join(value) if not any(" " in x for x in value) else json.dumps(value, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
