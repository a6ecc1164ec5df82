"""The public functions `kf.predict`, `kf.finetune` and `kf.embed`; each takes a path or a `Run`."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kinfolk.data.files.reader import FileRow
from kinfolk.data.files.readers import read_rows
from kinfolk.decoding.written import judge
from kinfolk.objectives.tasks.answering import How
from kinfolk.runs.run import Run
from kinfolk.train.finetune.further import ready
from kinfolk.train.finetune.recipe import Effort
from kinfolk.train.finetune.run import finetune as tune
from kinfolk.train.finetune.task import choose
from kinfolk.train.public import QUIET
from kinfolk.use.predict.embedding import Vector, open_embedder
from kinfolk.use.predict.opening import open_run
from kinfolk.use.predict.predicting import predict as answers


def finetune(
    run: str | Path | Run,
    *,
    train: str | Path,
    valid: str | Path | None = None,
    out: str | Path,
    task: str = "auto",
    effort: Effort | None = None,
    seed: int = 0,
    **more: Any,
) -> Run:
    """Fine-tune a run of any layout on a file with labels, and return the new run.

    task: "classify", "tag" …; "auto" looks at the file. effort: epochs, learning rate and batch size. more: arguments
    of `kinfolk.train.finetune.further.ready`, such as `tactic` and `assignments`; `options` of the run.
    """
    options = more.pop("options", QUIET)
    files = (Path(train), None if valid is None else Path(valid))
    prepared = ready(run, choose(task, files[0]), files, Path(out), seed=seed, options=options, effort=effort, **more)
    tune(prepared, Path(out), seed=seed, options=options, judging=judge)
    return Run.open(out)


def predict(run: str | Path | Run, rows: str | Path | Iterable[Any], **how: Any) -> list[dict[str, Any]]:
    """Return the answer of a run for every row: a file, texts, or dictionaries with its columns.

    how: fields of `kinfolk.objectives.tasks.answering.How`, such as `batch_size` and `threshold`.
    """
    opened = open_run(run)
    source: Iterable[Any] = read_rows(str(rows)) if isinstance(rows, str | Path) else _rows(rows, opened.columns.text)
    return list(answers(opened, source, How(**how)))


def embed(run: str | Path | Run, texts: Sequence[str], *, batch_size: int = 32, **how: Any) -> Vector:
    """Return one vector for each text: [texts, numbers]. how: `pool`, `unit` and `length`, as of `kin embed`."""
    return open_embedder(run, **how).vectors(list(texts), batch_size)[0]


def _rows(rows: Iterable[Any], column: str) -> Iterable[FileRow]:
    for i, row in enumerate(rows):
        yield FileRow("rows", i, {column: row} if isinstance(row, str) else dict(row))
