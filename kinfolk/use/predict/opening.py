"""A run that answers: its model, its tokenizer, and what it was taught to say."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kinfolk.core.batch import Batch
from kinfolk.core.errors import SpecError, TrainingError
from kinfolk.core.rng import Rng
from kinfolk.data import Tokenizer
from kinfolk.data.splits.answering import WINDOW, Reading
from kinfolk.data.splits.asking import settings_of
from kinfolk.family.recipe import Recipe
from kinfolk.family.supervise import Labelling
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.objective import Objective
from kinfolk.objectives.supervised import Classify, ClassifyMany, Regress, SpanAnswer, Tag
from kinfolk.train import folder
from kinfolk.train.run import load_learner
from kinfolk.use.predict.examples import Columns
from kinfolk.use.predict.pictures import Size, size_of

Answer = Callable[[Batch], tuple[Tensor, Tensor]]
"""From a prepared batch to the states [B, L, D] of its positions, and what the head says of them."""

TASKS: dict[type, str] = {
    SpanAnswer: "span",
    Tag: "tags",
    ClassifyMany: "classes",
    Regress: "number",
    Classify: "class",
}
"""What a run is asked for, by its objective."""


@dataclasses.dataclass(frozen=True, eq=False)
class Opened:
    """A run ready to answer.

    task: "class", "classes", "number", "tags" or "span". n_texts: how many texts it judges at once. length: tokens of a
    text that are read; cut: which, of a longer one. always: every question has an answer. columns: where its own data
    had what it reads. objective: what it was taught, of several tasks the first. picture: the size of the pictures that
    it judges instead of texts.
    """

    folder: Path
    learner: Learner
    objective: Objective
    tokenizer: Tokenizer
    classes: tuple[str, ...]
    task: str
    length: int
    answer: Answer
    n_texts: int
    reading: Reading
    always: bool
    columns: Columns
    cut: str = "head"
    picture: Size | None = None

    def prepare(self, batch: Batch) -> Batch:
        """Put the marks around what was read."""
        return self.learner.prepare(batch, Rng(0))


def open_run(run: Path, *, answer: Answer | None = None, device: str = "cpu", average: int = 0) -> Opened:
    """Open a run to ask it.

    answer: another engine than PyTorch, from a prepared batch to states and what the head says. average: as in
    `load_learner`.
    """
    recipe, learner = load_learner(run, average)
    task = judges(recipe)
    if not task:
        raise SpecError(
            f"{run}: its objective is {recipe.objective.kind!r}, which judges nothing; kin generate lets a model "
            "write, kin embed gives vectors, kin finetune teaches labels"
        )
    about = folder.read(run)
    read: dict[str, Any] = about.get("reading", {})
    names = _columns(str(about.get("data", {}).get("name", "")))
    n_texts = int(read.get("sequences", 2 if names.second else 1))
    learner.train(False)
    learner.to(device)
    tokenizer, usual = Tokenizer.load(run / folder.TOKENIZER), recipe.training.length
    opened = Opened(
        folder=run,
        learner=learner,
        objective=asked(recipe),
        tokenizer=tokenizer,
        classes=tuple(about.get("classes", ())),
        task=task,
        length=_length(learner, tokenizer, n_texts, usual) if "imported" in about else usual,
        answer=answer or torch_answer(learner, device),
        n_texts=n_texts,
        reading=_reading(read, learner) if task == "span" else Reading(),
        always=bool(read.get("always", True)),
        columns=names,
        cut=recipe.training.cut,
        picture=size_of(read, recipe.model),
    )
    return dataclasses.replace(opened, classes=opened.classes or _numbered(learner))


def judges(recipe: Recipe) -> str:
    """Return what a recipe is asked for; "" if it judges nothing."""
    return next((name for kind, name in TASKS.items() if isinstance(asked(recipe), kind)), "")


def asked(recipe: Recipe) -> Objective:
    """Return what a run is asked as: what was learnt with a teacher or beside other tasks is its own task."""
    found: Objective = getattr(recipe.objective, "task", recipe.objective)
    return found


def torch_answer(learner: Learner, device: str = "cpu") -> Answer:
    """Return the engine that is PyTorch."""

    def answer(batch: Batch) -> tuple[Tensor, Tensor]:
        with torch.inference_mode():
            output, _ = learner.run(batch.map(lambda x: x.to(device)))
            logits = output.logits.cpu()
            if bool(logits.isnan().any()):
                raise TrainingError("what the model says is not a number (NaN), so it cannot be used")
            return output.hidden.cpu(), logits

    return answer


def _length(learner: Learner, tokenizer: Tokenizer, n_texts: int, usual: int) -> int:
    """Return how many tokens of a text are read by a model that was not trained here: as many as it has positions."""
    limit, row = learner.model.limit, Labelling(0, n_sequences=n_texts, between=tokenizer.between)
    return usual if limit is None else (limit - row.marks) // row.together


def _reading(read: dict[str, Any], learner: Learner) -> Reading:
    """Return how long texts are read: as in training, or else with windows that the model has positions for."""
    usual = {"window": min(WINDOW, learner.model.limit or WINDOW)}
    return Reading(**usual | {key: read[key] for key in ("window", "stride") if key in read})


def _columns(name: str) -> Columns:
    """Return the columns that the name of a run's data says."""
    given = settings_of(name)
    return Columns(**{key: given[key] for key in ("text", "second") if key in given})


def _numbered(learner: Learner) -> tuple[str, ...]:
    """Name classes by their numbers, where nobody named them."""
    head: Any = learner.model.spec.head
    n = getattr(head, "n_classes", getattr(head, "n_tags", 0))
    return tuple(map(str, range(n)))
