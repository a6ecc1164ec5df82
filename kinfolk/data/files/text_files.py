"""Readers of plain text: running text cut into documents, a text a line, and two files that go line by line."""

import io
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kinfolk.data.files.documents import pieces, text_start
from kinfolk.data.files.lines import RowError, decode
from kinfolk.data.files.reader import Bad, Document, FileSpan, Reader, Record, byte_spans, document
from kinfolk.data.files.sources import Bytes, Source

_GONE = b"<gone>"
_LINES = 1 << 16
_BLOCK = 1 << 20


class TextReader(Reader, kind="text", suffixes=(".txt",)):
    """Plain text, cut into documents at blank lines where there are any. A bad line is taken out of its document.

    As rows, each line is a `text`.
    """

    table = False

    @classmethod
    def spans(cls, source: Source, number: int, size: int) -> Iterator[FileSpan]:
        """Cut at any byte; a part begins at the next place where a text may be cut."""
        return byte_spans(source, number, size)

    def records(self, file: Bytes) -> Iterator[Record | Bad]:
        """Yield every line as a text."""
        for line in self.text_lines(file):
            yield line if isinstance(line, Bad) else self.record({"text": line})

    def documents(self, *files: Bytes) -> Iterator[Document | Bad]:
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


class LinesReader(TextReader, kind="lines"):
    """Two text files that go line by line: source and target."""

    @classmethod
    def spans(cls, source: Source, number: int, size: int) -> Iterator[FileSpan]:
        """Cut both files at the same lines, which takes one look at both."""
        assert source.twin is not None
        if source.gzipped:
            yield FileSpan(number, line=0, size=source.total)
            return
        here, line = (0, 0), 0
        for there in zip(_every(source.path), _every(source.twin.path), strict=False):
            yield FileSpan(number, here[0], there[0], here[1], line, size=sum(there) - sum(here))
            here, line = there, line + _LINES
        yield FileSpan(number, here[0], None, here[1], line, size=source.total - sum(here))

    def documents(self, *files: Bytes) -> Iterator[Document | Bad]:
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


def _every(path: str) -> Iterator[int]:
    """Yield the place after every 65,536th line of a file."""
    count = place = 0
    with Path(path).open("rb") as file:
        while block := file.read(_BLOCK):
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
            for end in ends[_LINES - 1 - count % _LINES :: _LINES]:
                yield place + int(end) + 1
            count += len(ends)
            place += len(block)
