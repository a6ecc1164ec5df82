"""Further pre-training: first the text of the task without its labels, then the labels (Howard and Ruder 2018)."""

import dataclasses
from pathlib import Path
from typing import Any

from kinfolk.core.errors import SpecError
from kinfolk.family.knowing import informed
from kinfolk.objectives.tasks.classify import RowTask
from kinfolk.objectives.tasks.task import Task
from kinfolk.objectives.tasks.text import NextToken
from kinfolk.runs import folder
from kinfolk.runs.knowledge import fitted
from kinfolk.runs.run import Run
from kinfolk.train import RunOptions
from kinfolk.train.finetune.recipe import Effort
from kinfolk.train.finetune.run import Prepared, finetune, prepare
from kinfolk.train.finetune.source import PretrainedSource, open_source
from kinfolk.train.finetune.task import choose

SUFFIX = "-further"


def ready(
    run: str | Path | Run,
    task: Task,
    files: tuple[Path, Path | None],
    out: Path,
    *,
    seed: int = 0,
    options: RunOptions | None = None,
    **more: Any,
) -> Prepared:
    """Open a run, pre-train it on the text of the task if `effort.further` says so, and settle the recipe.

    more: arguments of `prepare`, with `also` as files; `precision` of all training; `knowledge`: a file of facts to
    read beside a text.
    """
    effort = more.pop("effort", None) or Effort()
    precision, knowledge = more.pop("precision", None), more.pop("knowledge", None)
    also = [(choose("auto", Path(file)), Path(file)) for file in more.pop("also", ())]
    source = open_source(run)
    if precision is not None:
        source = dataclasses.replace(source, recipe=source.recipe.assigned([f"training.precision={precision}"]))
    if effort.further:
        first = dataclasses.replace(effort, steps=effort.further, patience=0, metric="loss")
        text = prepare(source, _text_of(task), files, effort=first, cache=more.get("cache"))
        source = _further(text, out.with_name(out.name + SUFFIX), seed, options)
    prepared = prepare(source, task, files, effort=effort, also=also, **more)
    if knowledge is None:
        return prepared
    return dataclasses.replace(prepared, recipe=fitted(informed(prepared.recipe, str(knowledge))))


def _text_of(task: Task) -> Task:
    if not isinstance(task, RowTask):
        raise SpecError(f"--further: reads the text column of a table, and task {task.kind!r} has none")
    return NextToken(text=task.text or "text")


def _further(text: Prepared, out: Path, seed: int, options: RunOptions | None) -> PretrainedSource:
    """Continue pre-training in an ordinary run, found again if it is finished; return the source with the new body."""
    if folder.result(out) is None:
        result, _ = finetune(text, out, seed=seed, options=options)
        if result.status == "interrupted":
            raise KeyboardInterrupt
    body = {name: x for name, x in open_source(out).weights.items() if not name.startswith("head.")}
    head = {name: x for name, x in text.source.weights.items() if name.startswith("head.")}
    return dataclasses.replace(text.source, weights=body | head)
