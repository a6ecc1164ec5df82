"""A report of how right a model is: its figures, each class, what is taken for what, and its worst mistakes."""

import dataclasses
import datetime

from kinfolk.objectives.measures.tallies import Tally
from kinfolk.objectives.tasks.task import Example

LARGEST = 40
"""The largest number of classes whose matrix is drawn."""


@dataclasses.dataclass(frozen=True)
class Report:
    """What a page or a text says.

    facts: where everything came from. figures: by the names of measures. columns, rows: of the table of classes.
    matrix: how often each class (row) was taken for each (column), of `classes`; none where there are too many.
    points: guesses and labels of numbers. remarks: what a reader must know, as how much was cut off.
    """

    title: str
    facts: dict[str, str]
    figures: dict[str, float]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    classes: tuple[str, ...]
    matrix: tuple[tuple[int, ...], ...]
    points: list[list[float]]
    worst: tuple[Example, ...]
    remarks: tuple[str, ...]


def make_report(
    title: str, facts: dict[str, str], figures: dict[str, float], tally: Tally, worst: list[Example], remarks: list[str]
) -> Report:
    """Put together what a tally found."""
    classes, matrix = tally.matrix()
    if len(classes) > LARGEST:
        classes, matrix = (), ()
    columns, rows = tally.table()
    made = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return Report(
        title=title,
        facts=facts | {"made": made},
        figures=figures | tally.values(),
        columns=columns,
        rows=rows,
        classes=classes,
        matrix=matrix,
        points=tally.points(),
        worst=tuple(worst),
        remarks=tuple(remarks),
    )


def as_text(report: Report) -> str:
    """Return a report to read in a terminal."""
    lines = [report.title, "=" * len(report.title), ""]
    lines += [f"{name:14} {value}" for name, value in report.facts.items()]
    lines += ["", *(f"{name:20} {value:.4f}" for name, value in report.figures.items())]
    lines += ["", *report.remarks] if report.remarks else []
    if report.rows:
        lines += ["", *_grid([report.columns, *report.rows])]
    if report.matrix:
        head = ("label \\ answer", *report.classes)
        body = [(name, *(f"{n:,}" for n in row)) for name, row in zip(report.classes, report.matrix, strict=True)]
        lines += ["", *_grid([head, *body])]
    if report.worst:
        lines += ["", "The worst examples", "-" * 18]
    for number, example in enumerate(report.worst, 1):
        lines += ["", f"{number}. loss {example.loss:.4f}", f"   label  {example.label}", f"   answer {example.answer}"]
        lines += [f"   {example.notes}"] if example.notes else []
        lines += [f"   | {line}" for line in example.text.splitlines()]
    return "\n".join(lines) + "\n"


def _grid(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
