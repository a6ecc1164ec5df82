"""Readers of plain text, of JSON lines, and of two files that go line by line; tables are in `tables`."""

import io
import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from kinfolk.core.errors import suggest
from kinfolk.data.files.documents import pieces, text_start
from kinfolk.data.files.lines import RowError, decode
from kinfolk.data.files.parquet import ParquetReader
from kinfolk.data.files.reader import Bad, Document, Reader, Span, document
from kinfolk.data.files.sources import Bytes, Source
from kinfolk.data.files.tables import CsvReader, TsvReader
from kinfolk.data.preparing.preparation import Preparation

_GONE = b"<gone>"


def read(source: Source, span: Span, choices: Preparation, piece: int) -> Reader:
    """Return the documents of a part of a file, by its format."""
    return READERS[source.format](source, span, choices, piece)


class TextReader(Reader):
    """Plain text, cut into documents at blank lines where there are any. A bad line is taken out of its document."""

    def rows(self, *files: Bytes) -> Iterator[Document | Bad]:
        """Yield pieces of text."""
        (file,) = files
        start, left = text_start(file, self.span.start), None
        self.place = start
        if self.span.stop is not None:
            left = text_start(file, self.span.stop) - start
            file.seek(start)
        for raw in pieces(file, left, self.piece):
            try:
                yield Document((decode(raw),), (len(raw),))
            except RowError:
                yield from self._line_by_line(raw)
            self.line += int(np.count_nonzero(np.frombuffer(raw, np.uint8) == ord("\n")))

    def _line_by_line(self, raw: bytes) -> Iterator[Document | Bad]:
        good = []
        for i, line in enumerate(io.BytesIO(raw)):
            try:
                good.append(decode(line))
            except RowError as why:
                yield Bad(self.number(self.line + i), why.reason, why.detail)
        if kept := "".join(good):
            yield Document((kept,), (len(kept.encode()),))


class JsonReader(Reader):
    """One JSON object a line; the texts are the values of the chosen keys."""

    def rows(self, *files: Bytes) -> Iterator[Document | Bad]:
        """Yield the rows; blank lines are none."""
        for i, raw in enumerate(self.lines(files[0], self.span.start, self.span.stop)):
            self.line = i
            try:
                text = self.decoded(raw)
                if text.strip():
                    yield self.document(self._values(text))
            except RowError as why:
                yield self.bad(why)

    def _values(self, text: str) -> tuple[Any, ...]:
        try:
            row = json.loads(text)
        except json.JSONDecodeError as error:
            raise RowError("not valid JSON", f"{error.msg} at column {error.colno}") from None
        except (RecursionError, ValueError) as error:
            raise RowError("not valid JSON", str(error)) from None
        if not isinstance(row, dict):
            raise RowError("not a JSON object", f"found {type(row).__name__}")
        for key in self.columns:
            if key not in row:
                raise RowError("key missing", f"no {key!r}{suggest(key, row)}")
            if key in self.texts and not isinstance(row[key], str):
                raise RowError("not text", f"{key!r} is {type(row[key]).__name__}")
        return tuple(row[key] for key in self.columns)


class LinesReader(Reader):
    """Two text files that go line by line: source and target."""

    def rows(self, *files: Bytes) -> Iterator[Document | Bad]:
        """Yield the lines of both files together."""
        sources = self.lines(files[0], self.span.start, self.span.stop)
        targets = self.lines(files[1], self.span.twin_start, None)
        # only the last part can see that one file is longer
        last = self.span.stop is None
        both = itertools.zip_longest(sources, targets, fillvalue=_GONE) if last else zip(sources, targets, strict=False)
        for i, (source, target) in enumerate(both):
            self.line = i
            try:
                if source is _GONE or target is _GONE:
                    raise RowError(
                        "files of unequal length", self._uneven(1 + sum(1 for _ in both), longer=target is _GONE)
                    )
                yield document((self.decoded(source), self.decoded(target)))
            except RowError as why:
                yield self.bad(why)

    def _uneven(self, rest: int, *, longer: bool) -> str:
        twin = self.source.twin.path if self.source.twin else ""
        return f"{rest} lines more than in {twin}" if longer else f"{rest} lines less than in {twin}"


READERS: dict[str, type[Reader]] = {
    "text": TextReader,
    "jsonl": JsonReader,
    "csv": CsvReader,
    "tsv": TsvReader,
    "parquet": ParquetReader,
    "lines": LinesReader,
}
