"""Reader of rows as dictionaries, from any file or standard input, in bounded memory."""

import csv
import dataclasses
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kinfolk.core.errors import DataError, suggest
from kinfolk.data.files.conll import DOCUMENT, ENDINGS, REMARK, parsed
from kinfolk.data.files.lines import RowError, decode, lines
from kinfolk.data.files.parquet import open_parquet
from kinfolk.data.files.questions import read_questions
from kinfolk.data.files.sources import BROKEN_GZIP, open_bytes, refuse_binary

STDIN = "-"
LONGEST = 16 << 20
FORMS = ("txt", "jsonl", "csv", "tsv", "parquet", "conll", "json")
_ENDINGS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet", ".json": "json"}
_ROWS = 256


@dataclasses.dataclass(frozen=True)
class Row:
    """The values of one row by the names of their columns, and where it stands."""

    path: str
    line: int
    values: dict[str, Any]

    @property
    def where(self) -> str:
        """The file and the line."""
        return f"{self.path}:{self.line}"

    def refuse(self, why: str) -> DataError:
        """Return what to raise."""
        return DataError(f"{self.where}: {why}")

    def text(self, column: str, *, empty: bool = False) -> str:
        """Return the text of a column, or refuse the row; `empty` allows one without any characters."""
        if column not in self.values:
            raise self.refuse(f"no {column!r}{suggest(column, self.values)}")
        value = self.values[column]
        if not isinstance(value, str):
            raise self.refuse(f"{column!r} is {'null' if value is None else type(value).__name__}, not text")
        if not empty and not value.strip():
            raise self.refuse("empty text")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self.refuse("not valid UTF-8") from None
        return value


def read_rows(path: str, form: str = "", *, header: bool = True) -> Iterator[Row | DataError]:
    """Yield the rows of a file, and what is wrong with those that cannot be read.

    path: "-" is standard input. form: one of `FORMS`; by default the ending of the name says it, and standard input is
    text, or JSON lines if it begins with a brace. A line of text is a row with a `text`, a sentence of a CoNLL file one
    with its `tokens`, a question of a SQuAD file one with `question`, `context` and `id`. header: whether the first row
    of a table has names; without, columns are named by their number, from 1.
    """
    form = form or form_of(path)
    if form and form not in FORMS:
        raise DataError(f"{path}: unknown form {form!r}{suggest(form, FORMS)}")
    if form in ("parquet", "json"):
        if path == STDIN:
            raise DataError(f"standard input: {form} cannot be read as a stream; give a file")
        yield from _parquet(path) if form == "parquet" else _questions(path)
        return
    with ExitStack() as stack:
        if form == "txt" and path != STDIN:
            refuse_binary(path)
        file: Any = sys.stdin.buffer if path == STDIN else stack.enter_context(open_bytes(path))
        name = "standard input" if path == STDIN else path
        if not form:
            form = "jsonl" if file.peek(1)[:1] == b"{" else "txt"
        yield from _READERS[form](name, _numbered(name, file), header)


def form_of(path: str) -> str:
    """Tell the form of a file by its name; "" of standard input."""
    if path == STDIN:
        return ""
    name = Path(path).name.lower().removesuffix(".gz")
    if name.endswith(ENDINGS) or name.endswith(".conllu"):
        return "conll"
    return _ENDINGS.get(Path(name).suffix, "txt")


def is_table(path: str | Path) -> bool:
    """Tell whether a file has rows with columns."""
    return form_of(str(path)) in ("csv", "tsv", "jsonl", "parquet")


Line = tuple[int, str | DataError]


def _numbered(name: str, file: Any) -> Iterator[Line]:
    number = 0
    try:
        for number, raw in enumerate(lines(file, 0, None, LONGEST), 1):
            try:
                if raw is None:
                    raise RowError("line too long", f"more than {LONGEST} bytes")
                yield number, decode(raw)
            except RowError as why:
                yield number, DataError(f"{name}:{number}: {why.reason}: {why.detail}")
    except BROKEN_GZIP as error:
        yield number + 1, DataError(f"{name}:{number + 1}: broken gzip: {error}; what follows is lost")


def _text(name: str, found: Iterator[Line], header: bool) -> Iterator[Row | DataError]:
    for number, line in found:
        yield line if isinstance(line, DataError) else Row(name, number, {"text": line})


def _json(name: str, found: Iterator[Line], header: bool) -> Iterator[Row | DataError]:
    for number, line in found:
        try:
            if isinstance(line, DataError):
                raise line
            if line.strip():
                yield Row(name, number, parsed(name, number, line))
        except DataError as error:
            yield error


def _tsv(name: str, found: Iterator[Line], header: bool) -> Iterator[Row | DataError]:
    rows = ((number, line if isinstance(line, DataError) else line.split("\t")) for number, line in found)
    yield from _table(name, rows, header)


def _csv(name: str, found: Iterator[Line], header: bool) -> Iterator[Row | DataError]:
    yield from _table(name, _quoted(name, found), header)


def _quoted(name: str, found: Iterator[Line]) -> Iterator[tuple[int, list[str] | DataError]]:
    """Yield rows of fields with the line each begins on; a quoted field may hold lines."""
    taken, broken = 0, None

    def feed() -> Iterator[str]:
        nonlocal taken, broken
        for taken, line in found:  # noqa: B007 - the outer loop reads it
            broken = broken or (line if isinstance(line, DataError) else None)
            yield ("" if isinstance(line, DataError) else line) + "\n"

    csv.field_size_limit(max(csv.field_size_limit(), LONGEST))
    rows = csv.reader(feed(), strict=True)
    while True:
        first = taken + 1
        try:
            row: list[str] | DataError | None = next(rows, None)
        except csv.Error as error:
            row = DataError(f"{name}:{first}: not valid CSV: {error}")
        if row is None:
            return
        if broken is not None:
            row, broken = broken, None
        # a blank line is no row
        if row:
            yield first, row


def _table(name: str, rows: Iterator[tuple[int, list[str] | DataError]], header: bool) -> Iterator[Row | DataError]:
    names: list[str] | None = None
    for number, row in rows:
        if isinstance(row, DataError):
            yield row
            continue
        if names is None:
            names = row if header else [str(i) for i in range(1, len(row) + 1)]
            if header:
                continue
        if len(row) != len(names):
            yield DataError(f"{name}:{number}: wrong number of fields: {len(row)}, but {len(names)} in the first row")
        else:
            yield Row(name, number, dict(zip(names, row, strict=True)))


def _conll(name: str, found: Iterator[Line], header: bool) -> Iterator[Row | DataError]:
    """Yield the words of sentences: the first column, or the second of a treebank."""
    column, words, first = int(".conllu" in name.lower()), list[str](), 0
    for number, line in found:
        if isinstance(line, DataError):
            yield line
        elif not line.strip("\ufeff").strip():
            if words:
                yield Row(name, first, {"tokens": words})
            words = []
        elif not (line.startswith(DOCUMENT) or REMARK.match(line)):
            row = line.split("\t") if "\t" in line else line.split()
            # of a treebank, 3-4 spans two words that are written as one, and 5.1 is not written at all
            if column and not row[0].isdecimal():
                continue
            first = first if words else number
            words.append(row[min(column, len(row) - 1)])
    if words:
        yield Row(name, first, {"tokens": words})


def _parquet(path: str) -> Iterator[Row | DataError]:
    try:
        table = open_parquet(path)
    except RowError as why:
        raise DataError(f"{path}: {why.reason}: {why.detail}") from None
    number = 0
    for batch in table.iter_batches(_ROWS, use_threads=False):
        for values in batch.to_pylist():
            number += 1
            yield Row(path, number, values)


def _questions(path: str) -> Iterator[Row | DataError]:
    # JSON has no rows: it is read whole
    for number, q in enumerate(read_questions(path, answered=False), 1):
        yield Row(path, number, {"id": q.id, "question": q.question, "context": q.context})


_READERS = {"txt": _text, "jsonl": _json, "csv": _csv, "tsv": _tsv, "conll": _conll}
