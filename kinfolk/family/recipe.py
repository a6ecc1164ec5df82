"""Recipe of a relative: model spec, objective and training."""

import re
from collections.abc import Sequence
from typing import Self

from kinfolk.core import paths
from kinfolk.core.errors import SpecError
from kinfolk.core.spec import Spec
from kinfolk.models.model import Model
from kinfolk.objectives.knowledge import Knowledge
from kinfolk.objectives.leaks import refuse_leaks
from kinfolk.objectives.objective import LATER, Objective
from kinfolk.optim.training import Training


class Recipe(Spec):
    """Recipe: everything that a relative is, as plain data."""

    name: str
    model: Model
    objective: Objective
    training: Training = Training()
    knowledge: Knowledge | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[^\x00-\x1f\x7f-\x9f]{1,100}", self.name):
            raise SpecError(f"name: {self.name[:120]!r} is not allowed; up to 100 printable characters")

    @property
    def folder(self) -> str:
        """Its name as that of a folder: no part of it leads elsewhere."""
        return re.sub(r"[/\\]", "-", self.name).lstrip(".") or "run"

    def fitted(self, vocab_size: int) -> Self:
        """Return it for data of `vocab_size` ids: the model has those, and what the objective adds to them."""
        return self.replace(model=self.model.replace(vocab_size=vocab_size + self.objective.extra_ids))

    def settled(self) -> Self:
        """Return it with its objective in the form for its topology; refuse one that would see what it is asked for."""
        objective = self.objective.on_topology(self.model.topology)
        reads_prefix = any(part.reads_prefix for part in objective.parts)
        writes = any(part.targets == LATER for part in objective.parts)
        prompt = "bidirectional" if reads_prefix else "causal" if writes else self.model.prompt
        model = self.model if prompt == self.model.prompt else self.model.replace(prompt=prompt)
        refuse_leaks(model, objective)
        return self.replace(model=model, objective=objective)

    def learning_from(self, kind: str) -> Self:
        """Return it for text or pairs: what corrupts text predicts one side of a pair from the other."""
        return self.replace(objective=self.objective.on_pairs()) if kind == "pairs" else self

    def assigned(self, assignments: Sequence[str]) -> Self:
        """Return it with `path=value` applied; an objective that needs more ids than the last gets them."""
        changed = paths.assign(self, assignments).settled()
        more = changed.objective.extra_ids - self.objective.extra_ids
        if more <= 0 or changed.model.vocab_size != self.model.vocab_size:
            return changed
        return changed.replace(model=changed.model.replace(vocab_size=changed.model.vocab_size + more))
