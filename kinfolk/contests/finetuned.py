"""Fine-tuning in a comparison: which checkpoint and which tactic is best on these labels, at an equal budget.

Everybody begins with the weights of a source and a head drawn from the seed. Sources may have tokenizers of their own;
each then reads the same rows in its own tokens.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kinfolk.contests.contestants import Contestant, refuse_repeated
from kinfolk.contests.settings import Settings
from kinfolk.family.recipe import Recipe
from kinfolk.runs.fit import Needs
from kinfolk.train.finetune.names import TACTICS
from kinfolk.train.finetune.recipe import Effort
from kinfolk.train.finetune.run import Prepared, prepare
from kinfolk.train.finetune.source import open_source
from kinfolk.train.finetune.task import Named, choose

PREFIXES = ("labelled:", "tags:", "pairs:", "corpus:")


@dataclasses.dataclass(frozen=True)
class Tuned(Contestant):
    """A contestant that begins with what another has learnt."""

    prepared: Prepared = dataclasses.field(kw_only=True)

    def recipe(self, needs: Needs, widths: Mapping[str, int] | None = None) -> Recipe:
        """Return its recipe; the body is what it is."""
        return self.prepared.recipe

    def parent(self, needs: Needs) -> Recipe | None:
        """It descends from a checkpoint, not from a relative."""
        return None

    @property
    def changes(self) -> str:
        """The tactics in words, and where it begins."""
        tactics = "; ".join(TACTICS[name].says for name, _ in self.prepared.tactic.parts)
        return f"begins with {self.prepared.source.path}: {tactics}"

    @property
    def begins(self) -> dict[str, Any]:
        """What a trial must know to begin."""
        source, tactic = self.prepared.source, self.prepared.tactic
        return {"source": str(source.path.resolve()), "digest": source.digest, "tactic": tactic.name}


def gather_tuned(settings: Settings) -> Sequence[Tuned]:
    """Find the sources and tactics that were named; each tactic is tried on each source."""
    sources = [open_source(path) for path in settings.finetune]
    tactics = settings.tactics or ("plain",)
    path = Path(settings.data)
    task = Named(name=settings.data) if settings.data.startswith(PREFIXES) else choose("auto", path)
    contestants = []
    for source in sources:
        for tactic in tactics:
            prepared = prepare(
                source,
                task,
                (path, Path(settings.valid) if settings.valid else None),
                effort=Effort(),
                tactic=tactic,
                assignments=settings.assignments,
                cache=settings.cache,
            )
            words = [source.name] * (len(sources) > 1) + [tactic] * (len(tactics) > 1 or len(sources) == 1)
            contestants.append(Tuned(" ".join(words), written=prepared.recipe, prepared=prepared))
    refuse_repeated(contestants, "give sources and tactics names of their own")
    return contestants
