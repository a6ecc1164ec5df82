"""A recipe: the model, what it learns from, and how it is trained."""

from collections.abc import Sequence
from typing import Self

from kinfolk.core import paths
from kinfolk.core.spec import Spec
from kinfolk.models.model import Model
from kinfolk.objectives.knowledge import Knowledge
from kinfolk.objectives.objective import Objective
from kinfolk.optim.training import Training


class Recipe(Spec):
    """Everything that a relative is, as plain data."""

    name: str
    model: Model
    objective: Objective
    training: Training = Training()
    knowledge: Knowledge | None = None

    def fitted(self, vocab_size: int) -> Self:
        """Return it for data of so many ids: the model has those, and what the objective adds to them."""
        return self.replace(model=self.model.replace(vocab_size=vocab_size + self.objective.extra_ids))

    def learning_from(self, kind: str) -> Self:
        """Return it for text or pairs: what corrupts text predicts one side of a pair from the other."""
        return self.replace(objective=self.objective.on_pairs()) if kind == "pairs" else self

    def assigned(self, assignments: Sequence[str]) -> Self:
        """Return it with `path=value` applied; an objective that needs more ids than the last gets them."""
        changed = paths.assign(self, assignments)
        more = changed.objective.extra_ids - self.objective.extra_ids
        if more <= 0 or changed.model.vocab_size != self.model.vocab_size:
            return changed
        return changed.replace(model=changed.model.replace(vocab_size=changed.model.vocab_size + more))
