"""Reader of .parquet files, row group by row group. Needs the `data` extra."""

from collections.abc import Iterator
from typing import Any

from kinfolk.core.errors import DataError, MissingExtraError, suggest
from kinfolk.data.files.lines import RowError
from kinfolk.data.files.reader import Bad, Document, FileSpan, Reader, Record
from kinfolk.data.files.sources import Bytes, Source

_ROWS = 256


class ParquetReader(Reader, kind="parquet", suffixes=(".parquet",)):
    """Rows of a parquet file; `line` is the number of the row, from 1. The span counts row groups."""

    streams = False
    _done = 0

    @classmethod
    def spans(cls, source: Source, number: int, size: int) -> Iterator[FileSpan]:
        try:
            groups = max(1, open_parquet(source.path).num_row_groups)
        except RowError:
            # its reader will say so
            groups = 1
        step = max(1, groups * size // source.size)
        for start in range(0, groups, step):
            stop = min(start + step, groups)
            yield FileSpan(number, start, stop if stop < groups else None, size=source.size * (stop - start) // groups)

    @classmethod
    def unusable(cls, source: Source) -> tuple[str, str] | None:
        """Return None: it is no text, and whether it is a table its library says."""
        return None if source.size else super().unusable(source)

    @property
    def consumed(self) -> int:
        """How many bytes on disk have been read, as far as can be told: whole row groups."""
        return self._done

    def documents(self, *files: Bytes) -> Iterator[Document | Bad]:
        """Yield the chosen columns of every row; no others are read."""
        try:
            table = open_parquet(self.source.path)
            self._check(table.schema_arrow)
        except RowError as why:
            yield Bad(1, why.reason, f"{why.detail}; nothing of the file can be read")
            return
        for values in self._values(table, list(self.columns)):
            try:
                yield self.document(self.chosen(values))
            except RowError as why:
                yield self.bad(why)

    def records(self, file: Bytes) -> Iterator[Record | Bad]:
        """Yield every row with all its columns."""
        try:
            table = open_parquet(self.source.path)
        except RowError as why:
            raise DataError(f"{self.source.path}: {why.reason}: {why.detail}") from None
        for values in self._values(table, None):
            yield self.record(values)

    def _values(self, table: Any, columns: list[str] | None) -> Iterator[dict[str, Any]]:
        """Yield rows as dictionaries; `self.line` is the number of the row, from 0."""
        self.before = 0
        stop = table.num_row_groups if self.span.stop is None else self.span.stop
        row = sum(table.metadata.row_group(i).num_rows for i in range(self.span.start))
        for group in range(self.span.start, stop):
            for batch in table.iter_batches(_ROWS, row_groups=[group], columns=columns, use_threads=False):
                for values in batch.to_pylist():
                    self.line, row = row, row + 1
                    yield values
            self._done += self.source.size // max(1, table.num_row_groups)

    def _check(self, schema: Any) -> None:
        for name in self.columns:
            if name not in schema.names:
                raise RowError("column missing", f"no {name!r}{suggest(name, schema.names)}")


def open_parquet(path: str) -> Any:
    """Open a parquet file so that its pages are read as they are needed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError("data", f"{path}: reading parquet") from None
    try:
        return pyarrow.parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
    except (pyarrow.ArrowException, OSError) as error:
        raise RowError("not a parquet file", str(error)) from None
