"""Evaluation with a tally: metrics of labels that are more than sums and counts, such as F1 or a correlation."""

from typing import Any

from torch import Tensor

from kinfolk.core.batch import Batch
from kinfolk.core.rng import Rng
from kinfolk.data import Batches, Split
from kinfolk.models.model import State
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.measures.tallies import Tally
from kinfolk.objectives.objective import Objective
from kinfolk.objectives.tasks.registry import of_objective
from kinfolk.train.evaluate import evaluate


class WatchedLearner:
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
        return self.learner.scores(output, batch)


def tally_of(objective: Objective, split: Split) -> Tally | None:
    """Return an empty tally for a split; None where there is nothing to report beyond sums and counts.

    The examples must be added in the order of the split.
    """
    task = of_objective(objective)
    return None if task is None else task.tally(objective.inner, split)


def judged(learner: Learner, split: Split, n_batches: int = 0, **reading: Any) -> dict[str, float]:
    """Return the figures of a learner on a split, by name, the usual one first; nothing where there are no labels.

    reading: how it is read, arguments of `Batches`, as `reading_of` gives them.
    """
    tally = tally_of(learner.objective, split)
    if tally is None:
        return {}
    batches = Batches(split, shuffle=False, by_length=n_batches, **reading)
    evaluate(WatchedLearner(learner, tally), batches, n_batches)
    return tally.values()
