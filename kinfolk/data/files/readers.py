"""Read input files of any format: find them, know their format by its reader, and read documents or rows of them.

The readers themselves are in `text_files`, `json_lines`, `tables`, `parquet`, `conll` and `questions`.
"""

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kinfolk.core.errors import DataError

# readers register themselves by being defined
from kinfolk.data.files import conll, json_lines, parquet, questions, tables, text_files  # noqa: F401
from kinfolk.data.files.reader import READERS, STDIN, FileRow, FileSpan, Reader, format_of, readable, reader_of
from kinfolk.data.files.sources import Source, files_below, head_of, stat
from kinfolk.data.preparing.preparation import Preparation


def read(source: Source, span: FileSpan, choices: Preparation, piece: int) -> Reader:
    """Return the documents of a part of a file, by its format."""
    return reader_of(source.format)(source, span, choices, piece)


def read_rows(path: str, form: str = "", *, header: bool = True) -> Iterator[FileRow | DataError]:
    """Yield the rows of a file, and what is wrong with those that cannot be read.

    path: "-" is standard input. form: the name of a format; by default the ending of the name says it, and standard
    input is text, or JSON lines if it begins with a brace. A line of text is a row with a `text`, a sentence of a CoNLL
    file one with its `tokens`, a question of a SQuAD file one with `question`, `context` and `id`. header: whether the
    first row of a table has names; without, columns are named by their number, from 1.
    """
    try:
        reader = reader_of(form or form_of(path) or _streamed())
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    if path == STDIN:
        if not reader.streams:
            raise DataError(f"standard input: {reader.kind} cannot be read as a stream; give a file")
    elif reader.kind == "text":
        _refuse_binary(path)
    yield from reader(Source(path, reader.kind, 0, 0), FileSpan(0, line=0), header=header).rows()


def form_of(path: str) -> str:
    """Tell the format of a file by its name; "" of standard input."""
    return "" if path == STDIN else format_of(path)


def is_table(path: str | Path) -> bool:
    """Tell whether a file has rows with columns."""
    return READERS[format_of(path)].table


def find_sources(inputs: Sequence[str | Path], *, pairs: bool) -> list[Source]:
    """Return the files named, and those in the folders named, in a fixed order; hidden files are left alone."""
    if not inputs:
        raise DataError("nothing to prepare: name at least one file or folder")
    sources = [_source(path) for given in inputs for path in _files(Path(given))]
    return _in_twos(sources) if pairs else sources


def _files(path: Path) -> list[Path]:
    files = list(files_below(path)) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path}: the folder holds no files")
    return files


def _source(path: Path) -> Source:
    status = stat(path)
    kind = format_of(path)
    if not READERS[kind].streams and READERS[kind].table and path.name.endswith(".gz"):
        raise DataError(f"{path}: {kind} is compressed inside; unpack the .gz first")
    return Source(str(path), kind, status.st_size, status.st_mtime_ns)


def _in_twos(sources: Sequence[Source]) -> list[Source]:
    """Join plain text files two by two: source, target, source, target; a table is pairs by itself."""
    joined: list[Source] = []
    waiting: Source | None = None
    for source in sources:
        if READERS[source.format].table:
            joined.append(source)
        elif waiting is None:
            waiting = source
        else:
            joined.append(dataclasses.replace(waiting, format="lines", twin=source))
            waiting = None
    if waiting is not None:
        raise DataError(f"{waiting.path}: pairs need plain text files in twos, source then target; this one is alone")
    return joined


def _streamed() -> str:
    """Return the format of standard input by its first byte."""
    stream: Any = sys.stdin.buffer
    return "jsonl" if stream.peek(1)[:1] == b"{" else "text"


def _refuse_binary(path: str) -> None:
    """Refuse a file that is no text, with the formats that can be read."""
    head = head_of(path)
    if b"\0" in head and not head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path}: a binary file (NUL at byte {head.index(0)}); what can be read: {readable()}")
