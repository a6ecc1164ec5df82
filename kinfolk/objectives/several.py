"""Multi-task learning with one shared body: a main task and others beside it.

Liu et al. 2019 (MT-DNN), section 3: a batch is of one task, and tasks take turns in proportion to their size.
"""

import dataclasses
from typing import Any

from torch import Tensor, nn

from kinfolk.core.annotations import TaskNumber
from kinfolk.core.batch import Batch
from kinfolk.core.errors import SpecError
from kinfolk.core.rng import Rng, derive
from kinfolk.layers.heads.head import Head
from kinfolk.layers.init import seeded
from kinfolk.layers.module import Module
from kinfolk.models.model import Model, Output, State, Transformer
from kinfolk.objectives.objective import Learning, Loss, Objective, Vocabulary


class Several(Objective, kind="several"):
    """Do a task, and `others` with a head for each, which are dropped when all is learnt.

    `task` of a batch says which it is of; data without it is of the first.
    """

    task: Objective
    others: tuple[Objective, ...]
    heads: tuple[Head, ...]

    def __post_init__(self) -> None:
        if len(self.others) != len(self.heads) or not self.others:
            raise SpecError(f"others: {len(self.others)} tasks beside the first, and {len(self.heads)} heads for them")

    @property
    def extra_ids(self) -> int:
        return max(objective.extra_ids for objective in (self.task, *self.others))

    @property
    def inner(self) -> Objective:
        return self.task.inner

    @property
    def parts(self) -> tuple[Objective, ...]:
        return tuple(part for one in (self.task, *self.others) for part in one.parts)

    def on_topology(self, topology: str) -> Objective:
        others = tuple(other.on_topology(topology) for other in self.others)
        return self.replace(task=self.task.on_topology(topology), others=others)

    def prepare(self, batch: Batch, rng: Rng, vocabulary: Vocabulary) -> Batch:
        task = batch.annotation(TaskNumber)
        prepared = self._of(batch).prepare(batch, rng, vocabulary)
        return prepared if task is None else prepared.annotate(task)

    def companion(self, model: Model) -> Model | None:
        return self.task.companion(model)

    def partner(self, model: Transformer, seed: int) -> Module | None:
        if any(objective.partner(model, seed) is not None for objective in (self.task, *self.others)):
            raise SpecError("several: a task that learns something besides the model cannot be one of them")
        heads = TaskHeads([head.build(model.spec.dims, model.embedding) for head in self.heads])
        seeded(model.spec.init, heads, model.spec.dims, derive(seed, "several"))
        return heads.to(next(model.parameters()))

    def run(self, learner: Learning, batch: Batch, memory: State | None = None) -> tuple[Output, Batch]:
        said, batch = self._of(batch).run(learner, batch, memory)
        number = _number(batch)
        if number:
            heads: Any = learner.partner
            said = dataclasses.replace(said, head=heads.heads[number - 1])
        return said, batch

    def loss(self, output: Output, batch: Batch) -> Loss:
        return self._of(batch).loss(output, batch)

    def measure(self, output: Output, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        return self._of(batch).measure(output, batch)

    def _of(self, batch: Batch) -> Objective:
        return (self.task, *self.others)[_number(batch)]


class TaskHeads(Module):
    """The heads of the tasks beside the first."""

    def __init__(self, heads: list[Any]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)


def _number(batch: Batch) -> int:
    """Return the task of a batch; all of its rows have the same."""
    task = batch.annotation(TaskNumber)
    return 0 if task is None or not len(task.task_B) else int(task.task_B[0])
