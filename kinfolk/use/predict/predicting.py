"""`predict`: rows in, answers out, in their order and in bounded memory."""

from collections.abc import Iterable, Iterator
from typing import Any

from kinfolk.core.errors import DataError
from kinfolk.data.files.reader import FileRow
from kinfolk.objectives.tasks.answering import How, PredictionCounts
from kinfolk.use.predict.opening import AnsweringRun

_CHARACTERS = 1 << 22


def predict(
    run: AnsweringRun,
    rows: Iterable[FileRow | DataError],
    how: How | None = None,
    counts: PredictionCounts | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield what a run says of each row, in the order of the rows.

    Rows are taken a chunk at a time and read sorted by their lengths, so that little is padding. A row that is bad is
    refused with its line, or skipped and counted in `counts`.
    """
    how, counts = how or How(), counts if counts is not None else PredictionCounts()
    # images are of one length, and large
    size = how.chunk if run.picture is None else how.batch_size
    for chunk in _chunks(_usable(run, rows, how, counts), size):
        answers = run.task.answers(run, [asked for _, asked in chunk], how, counts)
        counts.rows += len(chunk)
        for (row, _), answer in zip(chunk, answers, strict=True):
            shown = row.values if how.echo else {} if run.picture is None else {run.columns.file}
            echoed = {key: x for key, x in row.values.items() if key in shown and key != "id"}
            yield _identity(row) | echoed | answer


def _usable(
    run: AnsweringRun, rows: Iterable[FileRow | DataError], how: How, counts: PredictionCounts
) -> Iterator[tuple[FileRow, Any]]:
    """Yield rows with what is asked about them; bad ones raise, or are counted."""
    for row in rows:
        try:
            if isinstance(row, DataError):
                raise row
            yield row, run.task.ask(run, row)
        except DataError as error:
            if how.on_bad == "stop":
                raise
            counts.bad.append(str(error))


def _chunks(rows: Iterator[tuple[FileRow, Any]], size: int) -> Iterator[list[tuple[FileRow, Any]]]:
    """Yield lists of rows, of at most `size`, and shorter ones where rows are long."""
    chunk: list[tuple[FileRow, Any]] = []
    held = 0
    for row in rows:
        chunk.append(row)
        held += sum(len(x) for x in row[0].values.values() if isinstance(x, str | list))
        if len(chunk) == size or held >= _CHARACTERS:
            yield chunk
            chunk, held = [], 0
    if chunk:
        yield chunk


def _identity(row: FileRow) -> dict[str, Any]:
    """Return what names a row in the output: its line, and its id if it has one."""
    key = row.values.get("id")
    return {"line": row.line} | ({} if key is None else {"id": key})
