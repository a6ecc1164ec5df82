"""A model and its objective as one module: batch in, loss out, so that any engine can wrap it whole."""

import contextlib
from typing import Protocol

from torch import Tensor

from kinfolk.core.batch import Batch
from kinfolk.core.rng import Rng
from kinfolk.layers.module import Module
from kinfolk.models.model import Output, State, Transformer
from kinfolk.objectives.measures.measure import of_objective
from kinfolk.objectives.objective import Loss, Objective, Vocabulary


class NoiseHook(Protocol):
    """What disturbs weights while they learn: see `kinfolk.optim.noise`."""

    def begin(self, model: Transformer) -> None:
        """See the weights that training begins with."""

    def over(self, model: Transformer) -> contextlib.AbstractContextManager[None]:
        """Disturb the weights for one pass."""


class Learner(Module):
    """Everything with parameters is used inside `forward`.

    `partner` is what an objective learns besides the model and throws away with itself, drawn from `seed`: a checkpoint
    has it, a saved model does not. `stage` is for objectives that ask for other things as learning goes on.
    `disturbance` is what happens to weights in passes of training.
    """

    def __init__(self, model: Transformer, objective: Objective, vocabulary: Vocabulary, seed: int = 0) -> None:
        super().__init__()
        self.model, self.objective, self.vocabulary = model, objective, vocabulary
        self.partner = objective.partner(model, seed)
        self.stage = objective.stage(0.0, model.spec)
        self.disturbance: NoiseHook | None = None

    def begin(self) -> None:
        """Be told that the model has the weights with which training begins."""
        if self.disturbance is not None:
            self.disturbance.begin(self.model)

    def prepare(self, batch: Batch, rng: Rng) -> Batch:
        """Make inputs and targets; runs where data is loaded, not where it is learnt from."""
        made, known = self.objective.prepare(batch, rng, self.vocabulary), self.vocabulary.known
        return made if known is None else known.inform(made, self.vocabulary, self.model.limit)

    def new_memory(self) -> State | None:
        """Return an empty memory to carry from batch to batch, if the model has one."""
        return self.model.new_memory()

    def at_progress(self, progress: float) -> None:
        """Be as this share of the training wants it; called between steps."""
        self.stage = self.objective.stage(progress, self.model.spec)

    def forward(self, batch: Batch, memory: State | None = None) -> Loss:
        disturbance = self.disturbance if self.training else None
        with contextlib.nullcontext() if disturbance is None else disturbance.over(self.model):
            return self.objective.loss(*self.run(batch, memory))

    def run(self, batch: Batch, memory: State | None = None) -> tuple[Output, Batch]:
        """Run on a prepared batch; return what the model said, and the batch with what is scored of that."""
        return self.objective.run(self, batch, memory)

    def measure(self, batch: Batch, memory: State | None = None) -> dict[str, tuple[Tensor, Tensor]]:
        """Score a prepared batch for evaluation: sums and counts by name."""
        return self.scores(*self.run(batch, memory))

    def scores(self, output: Output, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the sums and counts of what the objective reports, and of measures defined for its kind."""
        own, added = self.objective.measure(output, batch), of_objective(self.objective.inner.kind)
        return own | {m.name: m.sums(output, batch) for m in added if m.sums is not None}
