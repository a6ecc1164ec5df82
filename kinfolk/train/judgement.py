"""How well labels are found, beyond one number: which classes are taken for which, and what follows from that."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kinfolk.core.batch import Batch
from kinfolk.core.rng import Rng
from kinfolk.data import Batches
from kinfolk.models.model import State
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.objective import Objective
from kinfolk.objectives.supervised import Classify, ClassifyMany, Regress, SpanAnswer, Tag
from kinfolk.train.answers import Answers
from kinfolk.train.entities import Entities, marks_entities
from kinfolk.train.evaluate import evaluate
from kinfolk.train.tallies import Confusion, Correlation, Holding, Tally


class Watched:
    """A learner whose answers are tallied while it is scored, so that it runs once."""

    def __init__(self, learner: Learner, tally: Tally) -> None:
        self.learner, self.tally, self.training = learner, tally, learner.training

    def train(self, mode: bool = True) -> Any:
        """Switch dropout on or off."""
        self.training = mode
        return self.learner.train(mode)

    def prepare(self, batch: Batch, rng: Rng) -> Batch:
        """Make inputs of a batch as read."""
        return self.learner.prepare(batch, rng)

    def new_memory(self) -> State | None:
        """Return an empty memory, if the model has one."""
        return self.learner.new_memory()

    def measure(self, batch: Batch, memory: Any = None) -> dict[str, tuple[Tensor, Tensor]]:
        """Score a batch, and tally it."""
        output, batch = self.learner.run(batch, memory)
        self.tally.add(output, batch)
        return self.learner.objective.measure(output, batch)


def tally_of(objective: Objective, classes: Sequence[str], split: Any = None) -> Tally | None:
    """Return an empty tally for what an objective asks; None where there is nothing to say beyond its measures.

    split: where the examples are from. With it tags that mark entities are judged by entities, and answers by their
    text; the examples must then come in the order of the split.
    """
    # what is learnt with a teacher or beside other tasks is judged as what it is
    objective = getattr(objective, "task", objective)
    n = len(classes)
    if isinstance(objective, SpanAnswer):
        return Answers(split, objective.longest, objective.threshold) if hasattr(split, "questions") else None
    if isinstance(objective, Tag) and hasattr(split, "sentences") and marks_entities(classes):
        return Entities(classes, torch.zeros(n, n, dtype=torch.long), split)
    if isinstance(objective, Classify | Tag) and n:
        return Confusion(classes, torch.zeros(n, n, dtype=torch.long))
    if isinstance(objective, ClassifyMany):
        return Holding(classes, torch.zeros(n, 3, dtype=torch.long))
    return Correlation() if isinstance(objective, Regress) else None


def judged(learner: Learner, split: Any, n_batches: int = 0, **reading: Any) -> dict[str, float]:
    """Return the figures of a learner on a split, by name, the usual one first; nothing where there are no labels.

    reading: how it is read, arguments of `Batches`, as `reading_of` gives them.
    """
    tally = tally_of(learner.objective, getattr(split, "classes", ()), split)
    if tally is None:
        return {}
    batches = Batches(split, shuffle=False, by_length=n_batches, **reading)
    evaluate(Watched(learner, tally), batches, n_batches)
    return tally.values()


def metrics_of(objective: Objective, split: Any) -> tuple[str, ...]:
    """Return the names of the figures that `judged` will find, the usual one first."""
    tally = tally_of(objective, getattr(split, "classes", ()), split)
    return () if tally is None else tuple(tally.values())
