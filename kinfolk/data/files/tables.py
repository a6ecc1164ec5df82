"""Readers of tables: .tsv and .csv."""

import csv
import itertools
import re
from collections.abc import Iterator, Sequence

from kinfolk.core.errors import suggest
from kinfolk.data.files.lines import RowError
from kinfolk.data.files.reader import Bad, Document, FileSpan, Reader, Record, byte_spans
from kinfolk.data.files.sources import Bytes, Source, open_bytes
from kinfolk.data.preparing.preparation import Preparation


class TsvReader(Reader, kind="tsv", suffixes=(".tsv",)):
    """Rows of fields between tabs, one row a line, no quoting; and, below, the base of .csv."""

    @classmethod
    def spans(cls, source: Source, number: int, size: int) -> Iterator[FileSpan]:
        return byte_spans(source, number, size)

    def documents(self, *files: Bytes) -> Iterator[Document | Bad]:
        try:
            first = self._first()
            columns, has_header = choose_columns(first, self.choices)
        except RowError as why:
            if self.span.start == 0:
                yield Bad(1, why.reason, f"{why.detail}; nothing of the file can be read")
            return
        for row in self._rows(files[0], len(first), has_header=has_header):
            try:
                yield row if isinstance(row, Bad) else self.document([row[column] for column in columns])
            except RowError as why:
                yield self.bad(why)

    def records(self, file: Bytes) -> Iterator[Record | Bad]:
        """Yield every row with the names of the first one, or with numbers from 1."""
        names: list[str] = []
        for fields in self.fields(file, self.span.start, self.span.stop):
            row = fields if isinstance(fields, RowError) else _unreadable(fields) or fields
            if isinstance(row, RowError):
                yield self.bad(row)
            elif not names:
                names = row if self.header else [str(i) for i in range(1, len(row) + 1)]
                if not self.header:
                    yield self.record(dict(zip(names, row, strict=True)))
            elif len(row) != len(names):
                yield self.bad(_uneven(row, len(names)))
            else:
                yield self.record(dict(zip(names, row, strict=True)))

    def _rows(self, file: Bytes, width: int, *, has_header: bool) -> Iterator[list[str] | Bad]:
        for i, row in enumerate(self.fields(file, self.span.start, self.span.stop)):
            if i == 0 and has_header and self.span.start == 0:
                continue
            if isinstance(row, RowError):
                yield self.bad(row)
            else:
                yield row if len(row) == width else self.bad(_uneven(row, width))

    def fields(self, file: Bytes, start: int, stop: int | None) -> Iterator[list[str] | RowError]:
        """Yield rows of fields, or what is wrong with one; `self.line` is the line each begins on."""
        for i, raw in enumerate(self.lines(file, start, stop)):
            self.line = i
            try:
                yield self.decoded(raw).split("\t")
            except RowError as why:
                yield why

    def _first(self) -> list[str]:
        with open_bytes(self.source.path) as file:
            first = next(self.fields(file, 0, None), None)
        if first is None:
            raise RowError("no row", "there are blank lines only")
        if isinstance(first, RowError):
            raise first
        return first


class CsvReader(TsvReader, kind="csv", suffixes=(".csv",)):
    """Comma-separated values; a quoted field may hold commas, quotes and lines.

    A first line with semicolons or tabs and no comma says that these separate the fields, as in files of spreadsheets.
    """

    @classmethod
    def spans(cls, source: Source, number: int, size: int) -> Iterator[FileSpan]:
        """Leave a file whole: a line end may be inside a quoted field."""
        yield FileSpan(number, line=0, size=source.total)

    def fields(self, file: Bytes, start: int, stop: int | None) -> Iterator[list[str] | RowError]:
        taken = 0
        spoiled = False
        lines = iter(self.lines(file, start, stop))
        first = next(lines, b"")

        def feed() -> Iterator[str]:
            nonlocal taken, spoiled
            for raw in itertools.chain([first], lines):
                taken += 1
                spoiled = spoiled or raw is None
                # a byte that is not UTF-8 becomes a lone surrogate, found if its field is wanted
                yield (raw or b"").decode("utf-8", "surrogateescape") + "\n"

        # one limit for the whole process, so it is only ever raised
        csv.field_size_limit(max(csv.field_size_limit(), self.choices.max_line))
        rows = csv.reader(feed(), strict=True, delimiter=_delimiter(first or b""))
        while True:
            self.line = taken
            try:
                row: list[str] | RowError | None = next(rows, None)
            except csv.Error as error:
                last = f" (up to line {self.number(taken - 1)})" if taken > self.line + 1 else ""
                row = RowError("not valid CSV", f"{error}{last}")
            if row is None:
                return
            if spoiled:
                row, spoiled = self.too_long(), False
            # a blank line is no row
            if row:
                yield row


def _delimiter(first: bytes) -> str:
    """Return what separates the fields of a file with this first line."""
    outside = re.sub(rb'"[^"]*"', b"", first)
    return next((mark.decode() for mark in (b",", b";", b"\t") if mark in outside), ",")


def _uneven(row: Sequence[str], width: int) -> RowError:
    return RowError("wrong number of fields", f"{len(row)}, but {width} in the first row")


def _unreadable(row: Sequence[str]) -> RowError | None:
    """Return what is wrong with the characters of a row, all of whose fields may be used."""
    text = "".join(row)
    if "\0" in text:
        return RowError("NUL byte")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return RowError("not valid UTF-8", f"byte 0x{ord(text[error.start]) & 0xFF:02x}")
    return None


def choose_columns(first: Sequence[str], choices: Preparation) -> tuple[list[int], bool]:
    """Return which fields of a row are meant, and whether the first row is a header.

    Names are looked up in the first row. Numbers, counted from 1, mean that there is no header, and so do two
    columns without names when pairs are wanted.
    """
    names = choices.columns
    if all(name in first for name in names):
        return [list(first).index(name) for name in names], True
    if all(name.isdecimal() and 0 < int(name) <= len(first) for name in names):
        return [int(name) - 1 for name in names], False
    if names == ("source", "target") and len(first) == 2:
        return [0, 1], False
    missing = next(name for name in names if name not in first)
    raise RowError("column missing", f"no {missing!r}{suggest(missing, first)}; {_naming(missing, choices)}")


def _naming(missing: str, choices: Preparation) -> str:
    """Say how a column is named, in ways that do not depend on the verb."""
    if choices.pairs:
        name, flags = "pairs:source=A,target=B:FILE", "--source-column and --target-column"
    elif choices.label_column:
        name, flags = "labelled:text=A,label=B:FILE", "--text-column and --label-column"
        flags = "--label-column" if missing == choices.label_column else flags
    else:
        name, flags = "corpus:text=A:FILE (or pairs:source=A,target=B:FILE)", "--text-column"
    return f"data may be called {name}, and kin prepare has {flags}; a column is a name, or a number from 1"
