"""Fine-tune: open what is there, fit it to the task, and hand it to the one loop."""

import dataclasses
import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kinfolk.core.errors import SpecError
from kinfolk.data import Data, open_data
from kinfolk.data.opening import cache_folder
from kinfolk.data.splits.answering import WINDOW
from kinfolk.data.splits.several import name_of
from kinfolk.family.building import build
from kinfolk.family.recipe import Recipe
from kinfolk.objectives.tasks.classify import ImageClassification
from kinfolk.objectives.tasks.task import Task
from kinfolk.runs import folder
from kinfolk.runs.huggingface.folder import write_tensors
from kinfolk.train import Result, RunOptions
from kinfolk.train.finetune.recipe import Effort, recipe_for
from kinfolk.train.finetune.source import PretrainedSource
from kinfolk.train.finetune.tactics import Tactic, parse
from kinfolk.train.finetune.transplant import Moved, transplant
from kinfolk.train.run import train

TOKENIZERS = "tokenizers"


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """Everything that is known before the first step.

    where: the arguments of `open_data` that give the data again.
    """

    source: PretrainedSource
    recipe: Recipe
    data: Data
    where: Mapping[str, Any]
    tactic: Tactic


def prepare(
    source: PretrainedSource,
    task: Task,
    files: tuple[Path, Path | None],
    *,
    effort: Effort | None = None,
    tactic: str = "plain",
    assignments: Sequence[str] = (),
    cache: Path | None = None,
    also: Sequence[tuple[Task, Path]] = (),
) -> Prepared:
    """Open the data with the tokenizer of the source, and settle the recipe.

    files: to learn from, and to validate on; without the second a share of the first is held out.
    also: tasks that are learnt beside the first, each with a head of its own that is dropped in the end.
    """
    effort = effort or Effort()
    window = effort.length or min(WINDOW, source.recipe.model.max_len)
    where: dict[str, Any] = {"name": task.data(files[0].resolve(), window)}
    if also:
        where["name"] = name_of([where["name"], *(other.data(file.resolve(), window) for other, file in also)])
    if files[1] is not None:
        where["valid"] = str(files[1].resolve())
    if cache is not None:
        where["cache"] = str(cache)
    if not isinstance(task, ImageClassification):
        where["tokenizer"] = str(tokenizer_file(source, cache))
    data = open_data(**where)
    chosen = parse(tactic)
    recipe = chosen.change(recipe_for(source, data, effort), data)
    if effort.lr:
        # a rate that was asked for is taken as it is, whatever suits a tactic
        recipe = recipe.assigned([f"training.optimiser.lr={effort.lr!r}"])
    return Prepared(source, recipe.assigned(assignments), data, where, chosen)


def finetune(
    made: Prepared, out: Path, *, seed: int = 0, options: RunOptions | None = None, judging: Any = None
) -> tuple[Result, Moved]:
    """Train what was prepared into a new run folder; return how it ended, and what became of the weights."""
    with tempfile.TemporaryDirectory() as aside:
        start, moved = write_start(made, Path(aside) / folder.START, seed)
        result = train(
            made.recipe, made.data, out, seed=seed, options=options, source=made.where, start=start, judging=judging
        )
        return result, moved


def write_start(made: Prepared, file: Path, seed: int = 0) -> tuple[Path, Moved]:
    """Write the weights that fine-tuning begins with: those of the source, and new ones drawn from the seed."""
    model = build(made.recipe, seed)
    classes = made.data.splits["train"].classes
    same = (bool(classes) and classes == made.source.classes) or made.data.kind != "labelled"
    moved = transplant(model, made.source.weights, head=same, fresh=made.tactic.fresh(made.recipe.model))
    write_tensors(model.state_dict(), file)
    return file, moved


def tokenizer_file(source: PretrainedSource, cache: Path | None = None) -> Path:
    """Return a file with the tokenizer of a source, where it stays as long as the data that it made."""
    if source.tokenizer is None:
        raise SpecError(f"{source.path}: has no tokenizer, so texts cannot be read for it")
    text = source.tokenizer.to_json()
    place = cache_folder(cache) / TOKENIZERS / hashlib.sha256(text.encode()).hexdigest()[:16]
    # data remembers the name of its tokenizer's file, and a run has a copy under this one
    file = place / folder.TOKENIZER
    if not file.is_file():
        place.mkdir(parents=True, exist_ok=True)
        source.tokenizer.save(file)
    return file
