"""Reader of JSON lines (.jsonl, .ndjson): one object a line, its keys are the columns."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kinfolk.core.errors import DataError
from kinfolk.data.files.lines import RowError, numbered
from kinfolk.data.files.reader import Bad, FileSpan, Reader, Record, byte_spans
from kinfolk.data.files.sources import Bytes, Source


class JsonReader(Reader, kind="jsonl", suffixes=(".jsonl", ".ndjson")):
    """One JSON object a line; blank lines are no rows."""

    @classmethod
    def spans(cls, source: Source, number: int, size: int) -> Iterator[FileSpan]:
        return byte_spans(source, number, size)

    def records(self, file: Bytes) -> Iterator[Record | Bad]:
        for line in self.text_lines(file):
            try:
                if isinstance(line, Bad):
                    yield line
                elif line.strip():
                    yield self.record(object_of(line))
            except RowError as why:
                yield self.bad(why)


def object_of(line: str) -> dict[str, Any]:
    """Return a line of JSON as the object it is, or raise `RowError`."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise RowError("not valid JSON", f"{error.msg} at column {error.colno}") from None
    except (RecursionError, ValueError) as error:
        raise RowError("not valid JSON", str(error)) from None
    if not isinstance(row, dict):
        raise RowError("not a JSON object", f"found {type(row).__name__}")
    return row


def json_rows(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a small file with the numbers of their lines; a line that is none is refused."""
    for number, line in numbered(str(path)):
        if line.strip():
            try:
                yield number, object_of(line)
            except RowError as why:
                raise DataError(f"{path}:{number}: {why.reason}: {why.detail}") from None
