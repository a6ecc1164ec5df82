"""What there is to learn from which file: tasks by name, and the guess where a file makes it clear."""

import csv
import dataclasses
import io
import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kinfolk.core.errors import DataError, MissingExtraError, SpecError, suggest
from kinfolk.data.files.conll import is_conll
from kinfolk.data.files.questions import is_questions
from kinfolk.data.files.sources import open_bytes
from kinfolk.data.files.treebank import is_treebank
from kinfolk.data.preparing.preparation import BETWEEN as SEPARATORS
from kinfolk.data.splits.images import is_images
from kinfolk.data.splits.labels import BETWEEN

LABELS = {"classify": "class", "pairs": "class", "multi-label": "classes", "regress": "number"}
TASKS = (*LABELS, "tag", "answer", "lm", "seq2seq", "image")
"""What `--task` takes, besides auto."""

TEXTS = ("text", "sentence", "sentence1", "premise", "question1", "review", "content", "question", "first")
SECONDS = ("second", "text2", "sentence2", "hypothesis", "question2", "passage", "context")
LABELLED = ("label", "labels", "class", "score", "stars", "rating", "similarity", "gold_label", "category", "sentiment")
"""Names that columns usually have, the likeliest first."""

_LOOKED_AT = 200
_FEW = 50


@dataclasses.dataclass(frozen=True)
class Task:
    """A task, and the columns of a table where it is found; "" is the usual name.

    between: what separates classes that hold together, as in `Preparation`; "" is a bar.
    unknown: "add" learns with classes that only the validation file has; "" refuses them.
    """

    kind: str
    text: str = ""
    second: str = ""
    label: str = ""
    between: str = ""
    unknown: str = ""

    def data(self, path: Path, window: int = 0) -> str:
        """Return the name under which `open_data` reads a file for this task; answers are looked for in windows."""
        if self.kind in LABELS:
            given = {"text": self.text or "text", "label": self.label or "label", "second": self.second}
            if self.kind == "pairs" and not self.second:
                raise SpecError("task 'pairs' asks for a second text: name its column with --second-column")
            given["labels"] = LABELS[self.kind]
            given |= {"between": self.between if self.kind == "multi-label" else "", "unknown": self.unknown}
            return _named("labelled", given, path)
        if self.kind == "tag":
            return _named(
                "labelled", {"text": self.text, "label": self.label, "labels": "tags", "unknown": self.unknown}, path
            )
        if self.kind == "answer":
            windows = {"window": str(window), "stride": str(max(1, window // 3))} if window else {}
            return _named("labelled", windows | {"labels": "span"}, path)
        if self.kind == "seq2seq":
            return _named("pairs", {"source": self.text, "target": self.second or self.label}, path)
        if self.kind == "lm" and self.text:
            return _named("corpus", {"text": self.text}, path)
        return str(path)


@dataclasses.dataclass(frozen=True)
class Named(Task):
    """Data that has a name already, such as `labelled:text=review:PATH`."""

    kind: str

    def data(self, path: Path, window: int = 0) -> str:
        """Return the name."""
        return self.kind


def choose(kind: str, path: Path, text: str = "", second: str = "", label: str = "", between: str = "") -> Task:
    """Return the task that was named, its columns looked for in the file; with "auto", the task that the file shows."""
    _refuse_unknown(kind, path, between)
    kind = "multi-label" if between and kind == "auto" else kind
    plain = _by_name(path)
    if plain:
        return Task(plain if kind == "auto" else kind, text, second, label)
    rows = list(itertools.islice(_rows(path), _LOOKED_AT))
    if not rows:
        raise DataError(f"{path}: has no rows")
    names = list(rows[0])
    if kind in ("auto", "seq2seq") and {"source", "target"} <= set(names) and not label:
        return Task("seq2seq", text or "source", second or "target")
    text = text or _usual(TEXTS, names)
    if kind in ("lm", "seq2seq", "tag", "answer", "image"):
        return Task(kind, text if text in names else "", second, label)
    second = second or (
        _usual(SECONDS, [n for n in names if n != text]) if kind in ("auto", "pairs", "regress") else ""
    )
    label = label or _usual(LABELLED, [n for n in names if n not in (text, second)])
    labels = [_field(row, label) for row in rows] if label else []
    guessed = between or separator_of(labels)
    if kind != "auto":
        return Task(kind, text, second, label, guessed if kind == "multi-label" else "")
    if not text or not label:
        raise SpecError(
            f"{path}: what to learn is not clear from its columns ({', '.join(names[:8])}); name them with "
            f"--text-column and --label-column, or the task with --task"
        )
    chosen = _kind(labels, second, guessed)
    return Task(chosen, text, second, label, guessed if chosen == "multi-label" else "")


def _refuse_unknown(kind: str, path: Path, between: str) -> None:
    if kind not in (*TASKS, "auto"):
        raise SpecError(f"task: unknown {kind!r}{suggest(kind, (*TASKS, 'auto'))}")
    if between and between not in SEPARATORS:
        raise SpecError(f"between: unknown {between!r}{suggest(between, SEPARATORS)}")
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")


def _by_name(path: Path) -> str:
    """Tell the task by the kind of file, where that is enough."""
    if path.is_dir():
        return "image" if is_images(path) else "lm"
    if is_images(path):
        return "image"
    if is_conll(path) or is_treebank(path):
        return "tag"
    if is_questions(path):
        return "answer"
    return "" if _ending(path) in (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet") else "lm"


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
    if not label or _by_name(path):
        return ""
    return separator_of([_field(row, label) for row in itertools.islice(_rows(path), _LOOKED_AT)])


def _kind(labels: Sequence[Any], second: str, between: str) -> str:
    """Tell what labels are by what they look like."""
    if between or any(isinstance(x, list) for x in labels):
        return "multi-label"
    numbers = [_number(x) for x in labels]
    given = [x for x in numbers if x is not None]
    if len(given) == len(labels) and (any(not x.is_integer() for x in given) or len(set(given)) > _FEW):
        return "regress"
    return "pairs" if second else "classify"


def _field(row: dict[str, Any], name: str) -> Any:
    """Return a column of a row by its name, or by its number from 1."""
    values = list(row.values())
    if name not in row and name.isdecimal() and 0 < int(name) <= len(values):
        return values[int(name) - 1]
    return row.get(name)


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


def _usual(known: Iterable[str], names: Sequence[str]) -> str:
    lower = {name.lower(): name for name in reversed(names)}
    return next((lower[name] for name in known if name in lower), "")


def _rows(path: Path) -> Iterable[dict[str, Any]]:
    """Yield the rows of a table; columns of one without a header are called 1, 2, … and are to be named."""
    ending = _ending(path)
    if ending == ".parquet":
        yield from _parquet(path)
        return
    try:
        with open_bytes(str(path)) as raw, io.TextIOWrapper(raw, encoding="utf-8", newline="") as file:
            if ending in (".jsonl", ".ndjson"):
                yield from (json.loads(line) for line in file if line.strip())
            elif ending == ".csv":
                yield from csv.DictReader(file)
            else:
                yield from csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def _parquet(path: Path) -> Iterable[dict[str, Any]]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise MissingExtraError("data", f"reading {path}") from None
    for batch in parquet.ParquetFile(path).iter_batches(_LOOKED_AT):
        yield from batch.to_pylist()


def _ending(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _named(prefix: str, settings: dict[str, str], path: Path) -> str:
    """Write a name that `open_data` reads."""
    said = ",".join(f"{key}={value}" for key, value in settings.items() if value)
    return f"{prefix}:{said}:{path}" if said else f"{prefix}:{path}"
