"""The Reader axis: a file format, from the bytes of a file to rows with named columns, in bounded memory.

A reader registers itself by being defined, so a plugin adds a format for every verb with one class:

    class FixedWidth(Reader, kind="fixed-width", suffixes=(".fwf",)):
        def records(self, file):
            for line in self.text_lines(file):              strings, or `Bad` for a line that is not UTF-8
                yield line if isinstance(line, Bad) else self.record({"label": line[:4], "text": line[4:]})

Preparing and training read `Document`s (the chosen columns as texts and a label), prediction reads `FileRow`s (all
columns). What cannot be used comes out as a `Bad` with its line and the reason, in its place among the
rows; the caller decides whether to stop or to continue.
"""

import abc
import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from kinfolk.core.errors import DataError, suggest
from kinfolk.core.plugins import Registry
from kinfolk.data.files.label_kinds import label_kind
from kinfolk.data.files.lines import RowError, count_lines, decode, lines, next_line
from kinfolk.data.files.sources import BROKEN_GZIP, Bytes, Source, head_of, open_bytes
from kinfolk.data.preparing.preparation import Preparation

STDIN = "-"
GIVEN = Preparation()
"""The choices where nothing was chosen."""


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
class FileRow:
    """The values of one row by the names of their columns, and its place."""

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


@dataclasses.dataclass(frozen=True)
class FileSpan:
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


Record = tuple[int, dict[str, Any]]
"""A row as a reader yields it: its line, from 1, and its values by column."""


class Reader(abc.ABC):
    """The rows of a part of a file. `piece` is the size that long texts are cut to.

    kind: the name of the format. suffixes: file names with these endings are read by it, also with `.gz` behind them.
    table: rows have columns, among them perhaps labels. streams: it reads standard input too.
    header: whether the first row of a table has the names of its columns; without, they are numbers, from 1.
    """

    kind: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = ()
    table: ClassVar[bool] = True
    streams: ClassVar[bool] = True

    def __init_subclass__(cls, kind: str = "", suffixes: tuple[str, ...] = (), **more: Any) -> None:
        super().__init_subclass__(**more)
        if kind:
            cls.kind, cls.suffixes, READERS[kind] = kind, suffixes, cls

    def __init__(
        self, source: Source, span: FileSpan, choices: Preparation = GIVEN, piece: int = 0, *, header: bool = True
    ) -> None:
        self.source, self.span, self.choices, self.piece, self.header = source, span, choices, piece, header
        self.columns = choices.columns
        self.texts = self.columns[:-1] if choices.label_column else self.columns
        self.line = 0
        # where the lines begin that are counted from 0, and how many come before; counted only when needed
        self.place = span.start
        self.before = span.line
        self._files: list[Bytes] = []

    @classmethod
    def spans(cls, source: Source, number: int, size: int) -> Iterator[FileSpan]:
        """Cut source `number` of a plan into parts of about `size` bytes, where the format allows it."""
        yield FileSpan(number, line=0, size=source.total)

    @classmethod
    def unusable(cls, source: Source) -> tuple[str, str] | None:
        """Return what makes a whole file unusable, seen in its first bytes: the reason and the detail, or None."""
        try:
            head = head_of(source.path)
        except DataError as error:
            return "broken gzip", str(error)
        if not head:
            return "empty file", ""
        if head.startswith((b"\xff\xfe", b"\xfe\xff")):
            return "binary file", "it looks like UTF-16; convert it to UTF-8"
        if b"\0" in head:
            return "binary file", f"NUL at byte {head.index(0)}; what can be read: {readable()}"
        return None

    @abc.abstractmethod
    def records(self, file: Bytes) -> Iterator[Record | Bad]:
        """Yield the rows of the part with all their columns, and what cannot be used, in their order."""

    def __iter__(self) -> Iterator[Document | Bad]:
        with contextlib.ExitStack() as stack:
            try:
                paths = [self.source.path, *([self.source.twin.path] if self.source.twin else [])]
                self._files = [stack.enter_context(open_bytes(path)) for path in paths]
                yield from self.documents(*self._files)
            except BROKEN_GZIP as error:
                yield self.bad(RowError("broken gzip", f"{error}; what follows is lost"))

    def rows(self) -> Iterator[FileRow | DataError]:
        """Yield rows with all their columns, and what is wrong with those that cannot be read."""
        streamed = self.source.path == STDIN
        name = "standard input" if streamed else self.source.path
        with contextlib.ExitStack() as stack:
            file: Any = sys.stdin.buffer if streamed else stack.enter_context(open_bytes(self.source.path))
            try:
                for item in self.records(file):
                    yield (
                        DataError(f"{name}:{item.line}: {item.why}") if isinstance(item, Bad) else FileRow(name, *item)
                    )
            except BROKEN_GZIP as error:
                yield DataError(f"{name}:{self.number(self.line + 1)}: broken gzip: {error}; what follows is lost")

    @property
    def consumed(self) -> int:
        """How many bytes on disk have been read."""
        return max(0, sum(file.consumed for file in self._files) - self.span.start - self.span.twin_start)

    def documents(self, *files: Bytes) -> Iterator[Document | Bad]:
        """Yield the chosen columns of every row."""
        for item in self.records(files[0]):
            try:
                yield item if isinstance(item, Bad) else self.document(self.chosen(item[1]))
            except RowError as why:
                yield Bad(item.line if isinstance(item, Bad) else item[0], why.reason, why.detail)

    def chosen(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the values of the chosen columns, or raise `RowError`."""
        for key in self.columns:
            if key not in values:
                raise RowError("key missing", f"no {key!r}{suggest(key, values)}")
            if key in self.texts and not isinstance(values[key], str):
                kind = "null" if values[key] is None else type(values[key]).__name__
                raise RowError("not text", f"{key!r} is {kind}")
        return tuple(values[key] for key in self.columns)

    def document(self, values: Sequence[Any]) -> Document:
        """Return the values of the chosen columns as a document, or raise `RowError`; a label is the last of them."""
        if not self.choices.label_column:
            return document(values)
        *texts, label = values
        text = label_kind(self.choices.labels).text(label, self.choices.between)
        return dataclasses.replace(document(texts), label=text)

    def record(self, values: dict[str, Any]) -> Record:
        """Return the values of the present line as a record."""
        return self.number(self.line), values

    def text_lines(self, file: Bytes) -> Iterator[str | Bad]:
        """Yield the lines of the part as text; `Bad` for one that is too long or not UTF-8."""
        for i, raw in enumerate(self.lines(file, self.span.start, self.span.stop)):
            self.line = i
            try:
                yield self.decoded(raw)
            except RowError as why:
                yield self.bad(why)

    def lines(self, file: Bytes, start: int, stop: int | None) -> Iterator[bytes | None]:
        """Yield lines, None for one that is too long."""
        # standard input cannot be asked where it is
        self.place = 0 if self.source.path == STDIN else next_line(file, start)
        return lines(file, self.place, stop, self.choices.max_line)

    def decoded(self, raw: bytes | None) -> str:
        """Return a line as text."""
        if raw is None:
            raise self.too_long()
        return decode(raw)

    def too_long(self) -> RowError:
        """Return the complaint about a line that is too long."""
        return RowError(
            "line too long", f"more than {self.choices.max_line} bytes; --max-line of kin prepare allows longer ones"
        )

    def bad(self, why: RowError) -> Bad:
        """Return what is wrong with the present line."""
        return Bad(self.number(self.line), why.reason, why.detail)

    def number(self, line: int) -> int:
        """Return the number in the file, from 1, of a line counted from 0 where reading began."""
        if self.before is None:
            self.before = count_lines(self.source.path, self.place) if self.place else 0
        return self.before + line + 1


READERS: Registry[type[Reader]] = Registry()
"""All readers by the names of their formats, plugins' own included."""


def reader_of(name: str) -> type[Reader]:
    """Return the reader of a format by its name, or by the ending of its files without the dot."""
    for kind, reader in READERS.items():
        if name == kind or f".{name}" in reader.suffixes:
            return reader
    raise DataError(f"unknown form {name!r}{suggest(name, READERS)}")


def format_of(path: str | Path, usual: str = "text") -> str:
    """Return the format of a file by its name; of any other ending, the usual one."""
    name = Path(path).name.lower().removesuffix(".gz")
    # a plugin's reader comes before ours
    return next(
        (kind for kind, one in reversed(READERS.items()) if one.suffixes and name.endswith(one.suffixes)), usual
    )


def readable() -> str:
    """Return the formats of text, as a refusal names them."""
    return ", ".join(["text in UTF-8", *(suffix for one in READERS.values() for suffix in one.suffixes[:1])])


def byte_spans(source: Source, number: int, size: int) -> Iterator[FileSpan]:
    """Cut a file whose rows are lines; a compressed one has no middle."""
    if source.gzipped:
        yield FileSpan(number, line=0, size=source.total)
        return
    for start in range(0, source.size, size):
        stop = min(start + size, source.size)
        yield FileSpan(number, start, stop if stop < source.size else None, size=stop - start)


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
