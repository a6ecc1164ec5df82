"""What every reader has in common: a part of a file in, documents out, in bounded memory.

A document is one text, or a source and a target. What cannot be used comes out as a `Bad` with its line and the
reason, in its place among the documents, so that whoever reads decides whether to stop or to go on.
"""

import abc
import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from kinfolk.data.files.lines import RowError, count_lines, decode, lines, next_line
from kinfolk.data.files.sources import BROKEN_GZIP, Bytes, Source, open_bytes
from kinfolk.data.preparing.preparation import Preparation
from kinfolk.data.splits.labels import label_text


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    """One text, or a source and a target, and how many bytes each is in UTF-8; and a label, if rows have one."""

    texts: tuple[str, ...]
    sizes: tuple[int, ...]
    label: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Bad:
    """A row that cannot be used: the line it is on, a reason that can be counted, and what was found."""

    line: int
    reason: str
    detail: str = ""

    @property
    def why(self) -> str:
        """The reason and what was found."""
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


@dataclasses.dataclass(frozen=True)
class Span:
    """A part of a source: bytes of a file, or row groups of a parquet file. `stop` None is the end.

    source: its place in the plan. twin_start: where the second of two files begins. line: how many lines come
    before, if known. size: about how many bytes on disk it is.
    """

    source: int
    start: int = 0
    stop: int | None = None
    twin_start: int = 0
    line: int | None = None
    size: int = 0


class Reader(abc.ABC):
    """The documents of a part of a file. `piece` is the size that long texts are cut to."""

    def __init__(self, source: Source, span: Span, choices: Preparation, piece: int) -> None:
        self.source, self.span, self.choices, self.piece = source, span, choices, piece
        self.columns = choices.columns
        self.texts = self.columns[:-1] if choices.label_column else self.columns
        self.line = 0
        # where the lines begin that are counted from 0, and how many come before; counted only when somebody asks
        self.place = span.start
        self.before = span.line
        self._files: list[Bytes] = []

    def __iter__(self) -> Iterator[Document | Bad]:
        with contextlib.ExitStack() as stack:
            try:
                paths = [self.source.path, *([self.source.twin.path] if self.source.twin else [])]
                self._files = [stack.enter_context(open_bytes(path)) for path in paths]
                yield from self.rows(*self._files)
            except BROKEN_GZIP as error:
                yield self.bad(RowError("broken gzip", f"{error}; what follows is lost"))

    @property
    def consumed(self) -> int:
        """How many bytes on disk have been read."""
        return max(0, sum(file.consumed for file in self._files) - self.span.start - self.span.twin_start)

    @abc.abstractmethod
    def rows(self, *files: Bytes) -> Iterator[Document | Bad]:
        """Yield documents and bad rows in their order."""

    def document(self, values: Sequence[Any]) -> Document:
        """Return the values of the chosen columns as a document, or raise `RowError`; a label is the last of them."""
        if not self.choices.label_column:
            return document(values)
        *texts, label = values
        return dataclasses.replace(document(texts), label=label_text(label, self.choices.labels, self.choices.between))

    def lines(self, file: Bytes, start: int, stop: int | None) -> Iterator[bytes | None]:
        """Yield lines, None for one that is too long."""
        self.place = next_line(file, start)
        return lines(file, self.place, stop, self.choices.max_line)

    def decoded(self, raw: bytes | None) -> str:
        """Return a line as text."""
        if raw is None:
            raise self.too_long()
        return decode(raw)

    def too_long(self) -> RowError:
        """Return the complaint about a line that is too long."""
        return RowError("line too long", f"more than {self.choices.max_line} bytes; --max-line allows longer ones")

    def bad(self, why: RowError) -> Bad:
        """Return what is wrong with the present line."""
        return Bad(self.number(self.line), why.reason, why.detail)

    def number(self, line: int) -> int:
        """Return the number in the file, from 1, of a line counted from 0 where reading began."""
        if self.before is None:
            self.before = count_lines(self.source.path, self.place)
        return self.before + line + 1


def document(texts: Sequence[str]) -> Document:
    """Return a row's texts as a document, or raise `RowError` when one is empty or not Unicode."""
    sizes = []
    for text in texts:
        if not text.strip():
            raise RowError("empty text")
        if "\0" in text:
            raise RowError("NUL byte")
        try:
            sizes.append(len(text.encode()))
        except UnicodeEncodeError:
            raise RowError("not valid UTF-8") from None
    return Document(tuple(texts), tuple(sizes))
