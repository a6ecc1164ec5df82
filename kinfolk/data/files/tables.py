"""Readers of tables: .tsv and .csv."""

import csv
from collections.abc import Iterator, Sequence

from kinfolk.core.errors import suggest
from kinfolk.data.files.lines import RowError
from kinfolk.data.files.reader import Bad, Document, Reader
from kinfolk.data.files.sources import Bytes, open_bytes
from kinfolk.data.preparing.preparation import Preparation


class TsvReader(Reader):
    """Rows of fields between tabs, one row a line, no quoting; and, below, the base of .csv."""

    def rows(self, *files: Bytes) -> Iterator[Document | Bad]:
        """Yield the chosen columns of every row."""
        try:
            width, columns, has_header = self._header()
        except RowError as why:
            if self.span.start == 0:
                yield Bad(1, why.reason, f"{why.detail}; nothing of the file can be read")
            return
        for i, row in enumerate(self.fields(files[0], self.span.start, self.span.stop)):
            if i == 0 and has_header and self.span.start == 0:
                continue
            try:
                if isinstance(row, RowError):
                    raise row
                if len(row) != width:
                    raise RowError("wrong number of fields", f"{len(row)}, but {width} in the first row")
                yield self.document([row[column] for column in columns])
            except RowError as why:
                yield self.bad(why)

    def fields(self, file: Bytes, start: int, stop: int | None) -> Iterator[list[str] | RowError]:
        """Yield rows of fields, or what is wrong with one; `self.line` is the line each begins on."""
        for i, raw in enumerate(self.lines(file, start, stop)):
            self.line = i
            try:
                yield self.decoded(raw).split("\t")
            except RowError as why:
                yield why

    def _header(self) -> tuple[int, list[int], bool]:
        with open_bytes(self.source.path) as file:
            first = next(self.fields(file, 0, None), None)
        if first is None:
            raise RowError("no row", "there are blank lines only")
        if isinstance(first, RowError):
            raise first
        return len(first), *choose_columns(first, self.choices)


class CsvReader(TsvReader):
    """Comma-separated values; a quoted field may hold commas, quotes and lines."""

    def fields(self, file: Bytes, start: int, stop: int | None) -> Iterator[list[str] | RowError]:
        """Yield rows of fields, or what is wrong with one; `self.line` is the line each begins on."""
        taken = 0
        spoiled = False

        def feed() -> Iterator[str]:
            nonlocal taken, spoiled
            for raw in self.lines(file, start, stop):
                taken += 1
                spoiled = spoiled or raw is None
                # a byte that is not UTF-8 becomes a lone surrogate, found if its field is wanted
                yield (raw or b"").decode("utf-8", "surrogateescape") + "\n"

        # one limit for the whole process, so it is only ever raised
        csv.field_size_limit(max(csv.field_size_limit(), self.choices.max_line))
        rows = csv.reader(feed(), strict=True)
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
        name, flags = "corpus:text=A:FILE", "--text-column"
    return f"data may be called {name}, and kin prepare has {flags}; a column is a name, or a number from 1"
