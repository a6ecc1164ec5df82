"""Further pre-training: first the text of the task without its labels, then the labels (Howard and Ruder 2018)."""

import dataclasses
from pathlib import Path
from typing import Any

from kinfolk.core.errors import SpecError
from kinfolk.objectives.tasks.classify import RowTask
from kinfolk.objectives.tasks.task import Task
from kinfolk.objectives.tasks.text import NextToken
from kinfolk.runs import folder
from kinfolk.train import RunOptions
from kinfolk.train.finetune.recipe import Effort
from kinfolk.train.finetune.run import finetune, prepare
from kinfolk.train.finetune.source import PretrainedSource, open_source

SUFFIX = "-further"


def further(
    source: PretrainedSource,
    task: Task,
    files: tuple[Path, Path | None],
    out: Path,
    effort: Effort,
    *,
    seed: int = 0,
    options: RunOptions | None = None,
    cache: Path | None = None,
) -> PretrainedSource:
    """Let a source go on learning from the text of a task, as it once learnt; return it with its new body.

    What it does is an ordinary run beside `out`, which is found again if it is finished.
    """
    if not isinstance(task, RowTask):
        raise SpecError(f"--further: reads the text column of a table, and task {task.kind!r} has none")
    beside = out.with_name(out.name + SUFFIX)
    if folder.result(beside) is None:
        text = NextToken(text=task.text or "text")
        made = prepare(source, text, files, effort=dataclasses.replace(effort, metric="loss"), cache=cache)
        known: dict[str, Any] = {"seed": seed, "options": options}
        result, _ = finetune(made, beside, **known)
        if result.status == "interrupted":
            raise KeyboardInterrupt
    learnt = open_source(beside)
    head = {name: x for name, x in source.weights.items() if name.startswith("head.")}
    body = {name: x for name, x in learnt.weights.items() if not name.startswith("head.")}
    return dataclasses.replace(source, weights=body | head)
