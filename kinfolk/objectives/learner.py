"""A model and its objective as one module: batch in, loss out, so that any engine can wrap it whole."""

from torch import Tensor

from kinfolk.core.batch import Batch
from kinfolk.core.rng import Rng
from kinfolk.layers.module import Module
from kinfolk.models.model import State, Transformer
from kinfolk.objectives.objective import Loss, Objective, Vocabulary


class Learner(Module):
    """Everything with parameters is used inside `forward`."""

    def __init__(self, model: Transformer, objective: Objective, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.model, self.objective, self.vocabulary = model, objective, vocabulary

    def prepare(self, batch: Batch, rng: Rng) -> Batch:
        """Make inputs and targets; runs where data is loaded, not where it is learnt from."""
        return self.objective.prepare(batch, rng, self.vocabulary)

    def new_memory(self) -> State | None:
        """Return an empty memory to carry from batch to batch, if the model has one."""
        return self.model.new_memory()

    def forward(self, batch: Batch, memory: State | None = None) -> Loss:
        return self.objective.loss(self.model.run(batch, memory), batch)

    def measure(self, batch: Batch, memory: State | None = None) -> dict[str, tuple[Tensor, Tensor]]:
        """Score a prepared batch for evaluation: sums and counts by name."""
        return self.objective.measure(self.model.run(batch, memory), batch)
