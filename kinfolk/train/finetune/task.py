"""The task of a file: the one that is named, with its columns looked for, or the one that the file shows."""

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kinfolk.core.errors import DataError, SpecError, brief, suggest
from kinfolk.data.files.label_kinds import BETWEEN, SEPARATORS
from kinfolk.data.files.reader import FileRow
from kinfolk.data.files.readers import is_table, read_rows
from kinfolk.objectives.tasks.classify import MultiLabel, RowTask
from kinfolk.objectives.tasks.registry import tasks
from kinfolk.objectives.tasks.task import TableColumns, Task
from kinfolk.objectives.tasks.text import NextToken, TextToText

AUTO = "auto"
"""The name of the task that the file shows."""

TEXTS = ("text", "sentence", "sentence1", "premise", "question1", "review", "content", "question", "first")
SECONDS = ("second", "text2", "sentence2", "hypothesis", "question2", "passage", "context")
LABELLED = ("label", "labels", "class", "score", "stars", "rating", "similarity", "gold_label", "category", "sentiment")
"""Names that columns usually have, the likeliest first."""

_LOOKED_AT = 200


class Named(Task):
    """Data that has a name already, such as `labelled:text=review:PATH`."""

    name: str

    def data(self, path: Path, window: int = 0) -> str:
        return self.name


def choose(kind: str, path: Path, text: str = "", second: str = "", label: str = "", between: str = "") -> Task:
    """Return the task that was named, its columns looked for in the file; with "auto", the task that the file shows."""
    task = _named(kind, path, between)
    task = MultiLabel if between and task is None else task
    shown = _by_file(path)
    if shown is not None:
        return (task or shown)(text=text, second=second, label=label)
    rows = first_rows(path)
    names = list(rows[0])
    if task in (None, TextToText) and {"source", "target"} <= set(names) and not label:
        return TextToText(text=text or "source", second=second or "target")
    text = text or _usual(TEXTS, names)
    if task is not None and not issubclass(task, RowTask):
        return task(text=text if text in names else "", second=second, label=label)
    if not second and (task is None or task.second_text):
        second = _usual(SECONDS, [name for name in names if name != text])
    label = label or _usual(LABELLED, [name for name in names if name not in (text, second)])
    labels = [_field(row, label) for row in rows] if label else []
    columns = TableColumns(text, second, label, labels, between or separator_of(labels))
    if task is not None:
        return task.of_columns(columns)
    if not text or not label:
        columns_found = ", ".join(brief(name, 30) for name in names[:8])
        raise SpecError(
            f"{path}: what to learn is not clear from its columns ({columns_found}; the first row names them); "
            "say which to use with --text-column and --label-column, or the task with --task"
        )
    return next(one for one in _newest() if one.in_columns(columns)).of_columns(columns)


def _newest() -> list[type[Task]]:
    """Return the tasks that tell by themselves whether columns show them, the newest definition first."""
    return [task for task in reversed(tasks().values()) if "in_columns" in vars(task)]


def _named(kind: str, path: Path, between: str) -> type[Task] | None:
    """Return a task by its name, None for "auto"; refuse what is unknown."""
    named = tasks()
    if kind not in (*named, AUTO):
        raise SpecError(f"task: unknown {kind!r}{suggest(kind, (*named, AUTO))}")
    if between and between not in SEPARATORS:
        raise SpecError(f"between: unknown {between!r}{suggest(between, SEPARATORS)}")
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    return named.get(kind)


def _by_file(path: Path) -> type[Task] | None:
    """Return the task that the kind of a file shows; None of a table, whose columns show it."""
    shown = next((task for task in reversed(tasks().values()) if task.in_file(path)), None)
    return shown or (None if path.is_file() and is_table(path) else NextToken)


def separator_of(labels: Sequence[Any]) -> str:
    """Guess what separates several classes in one label, as in "3,10": "" if nothing does.

    A bar always does. A comma or a semicolon does if at least two different labels have one and taking them apart
    leaves fewer names than there are labels, which names that only happen to hold a comma do not.
    """
    texts = {x for x in labels if isinstance(x, str)}
    if any(BETWEEN in text for text in texts):
        return "bar"
    for name in ("comma", "semicolon"):
        mark = SEPARATORS[name]
        names = {part.strip() for text in texts for part in text.split(mark)}
        if sum(mark in text for text in texts) > 1 and len(names) < len(texts):
            return name
    return ""


def separator_of_file(path: Path, label: str) -> str:
    """Guess the separator of the labels of a file from its first rows; "" where it has no such column."""
    if not label or _by_file(path) is not None:
        return ""
    return separator_of([_field(row, label) for row in first_rows(path)])


def first_rows(path: Path) -> list[dict[str, Any]]:
    """Return the values of the first rows of a table; the first row has the names of its columns."""
    rows = []
    for row in itertools.islice(read_rows(str(path)), _LOOKED_AT):
        if not isinstance(row, FileRow):
            raise row
        rows.append(row.values)
    if not rows:
        raise DataError(f"{path}: has no rows")
    return rows


def _field(row: dict[str, Any], name: str) -> Any:
    """Return a column of a row by its name, or by its number from 1."""
    values = list(row.values())
    if name not in row and name.isdecimal() and 0 < int(name) <= len(values):
        return values[int(name) - 1]
    return row.get(name)


def _usual(usual: Iterable[str], names: Sequence[str]) -> str:
    lower = {name.lower(): name for name in reversed(names)}
    return next((lower[name] for name in usual if name in lower), "")
