"""Reader of .parquet files, row group by row group. Needs the `data` extra."""

from collections.abc import Iterator
from typing import Any

from kinfolk.core.errors import MissingExtraError, suggest
from kinfolk.data.files.lines import RowError
from kinfolk.data.files.reader import Bad, Document, Reader
from kinfolk.data.files.sources import Bytes

_ROWS = 256


class ParquetReader(Reader):
    """Rows of a parquet file; `line` is the number of the row, from 1. The span counts row groups."""

    _done = 0

    @property
    def consumed(self) -> int:
        """How many bytes on disk have been read, as far as can be told: whole row groups."""
        return self._done

    def rows(self, *files: Bytes) -> Iterator[Document | Bad]:
        """Yield the chosen columns of every row."""
        try:
            table = open_parquet(self.source.path)
            self._check(table.schema_arrow)
        except RowError as why:
            yield Bad(1, why.reason, f"{why.detail}; nothing of the file can be read")
            return
        stop = table.num_row_groups if self.span.stop is None else self.span.stop
        row = sum(table.metadata.row_group(i).num_rows for i in range(self.span.start))
        for group in range(self.span.start, stop):
            for batch in table.iter_batches(_ROWS, row_groups=[group], columns=list(self.columns), use_threads=False):
                for values in zip(*(column.to_pylist() for column in self._columns(batch)), strict=True):
                    self.line = row
                    row += 1
                    try:
                        yield self.document(self._values(values))
                    except RowError as why:
                        yield Bad(row, why.reason, why.detail)
            self._done += self.source.size // max(1, table.num_row_groups)

    def _columns(self, batch: Any) -> list[Any]:
        return [batch.column(name) for name in self.columns]

    def _values(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        for name, value in zip(self.columns, values, strict=True):
            if name in self.texts and not isinstance(value, str):
                raise RowError("not text", f"{name!r} is {'null' if value is None else type(value).__name__}")
        return values

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
