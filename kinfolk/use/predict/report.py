"""A report of how right a model is: its figures, each class, what is taken for what, and its worst mistakes."""

import dataclasses
import datetime
from typing import Any

from kinfolk.train.tallies import Confusion, Correlation, Holding, Tally
from kinfolk.use.predict.worst import Example, points

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
    plain = tally.plain()
    matrix: tuple[tuple[int, ...], ...] = ()
    classes: tuple[str, ...] = ()
    if isinstance(tally, Confusion) and len(tally.classes) <= LARGEST:
        classes, matrix = tuple(tally.classes), tuple(tuple(row) for row in tally.counts_CC.tolist())
    columns, rows = _classes(tally, plain)
    made = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return Report(
        title=title,
        facts=facts | {"made": made},
        figures=figures | tally.values(),
        columns=columns,
        rows=rows,
        classes=classes,
        matrix=matrix,
        points=points(tally.pairs) if isinstance(tally, Correlation) else [],
        worst=tuple(worst),
        remarks=tuple(remarks),
    )


def _classes(tally: Tally, plain: dict[str, Any]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return the table of classes, of entities, or of questions with and without an answer."""
    if "with_answer" in plain:
        rows = [(name.replace("_", " "), plain[name]) for name in ("with_answer", "without_answer")]
        return ("questions", "number", "exact", "F1"), tuple(
            (name, f"{row['questions']:,}", f"{row['exact']:.4f}", f"{row['f1']:.4f}") for name, row in rows
        )
    names: tuple[str, ...] = ("class", "labels", "answers", "right", "precision", "recall", "F1")
    if isinstance(tally, Holding):
        counted = [
            (row["name"], row["right"] + row["missed"], row["right"] + row["wrong"], row["right"])
            for row in plain["classes"]
        ]
    elif "entities" in plain:
        names = ("entity", *names[1:])
        counted = [(row["name"], row["labels"], row["answers"], row["right"]) for row in plain["entities"]]
    elif isinstance(tally, Confusion):
        counted = [(row["name"], row["labels"], row["answers"], row["right"]) for row in plain["classes"]]
    else:
        return (), ()
    return names, tuple(_counted(*row) for row in counted)


def _counted(name: str, labels: int, answers: int, right: int) -> tuple[str, ...]:
    def share(n: float, of: int) -> str:
        return f"{n / of:.4f}" if of else ""

    return (
        name,
        f"{labels:,}",
        f"{answers:,}",
        f"{right:,}",
        share(right, answers),
        share(right, labels),
        share(2 * right, labels + answers),
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
