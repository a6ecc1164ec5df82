"""Score a learner on validation batches: sums and counts per measure, so that nothing is a mean of means."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import nn

from kinfolk.core.batch import Batch
from kinfolk.core.rng import derive
from kinfolk.train.parallel import Team
from kinfolk.train.step import Autocast, Loss

TEXT_MEASURES = ("next-token", "loss")
"""Measures that score every token of a text, so that bits per byte can be said."""


class Batches(Protocol):
    """Numbered batches: see `kinfolk.data.batches`."""

    @property
    def steps_per_epoch(self) -> int:
        """How many batches hold every example once."""

    def at(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        """Return this process's rows of one batch."""


@dataclasses.dataclass(frozen=True)
class Score:
    """A sum of nats over scored targets."""

    total: float
    count: float

    @property
    def mean(self) -> float:
        """Nats per target."""
        return self.total / self.count if self.count else math.nan


def evaluate(
    learner: nn.Module,
    batches: Batches,
    n_batches: int = 0,
    *,
    team: Team | None = None,
    autocast: Autocast = contextlib.nullcontext,
) -> dict[str, Score]:
    """Return the score of every measure over the first `n_batches` (0: all). The headline measure comes first.

    With several processes each scores its rows and the sums are added up, so the number of processes does not matter.
    """
    team = team or Team()
    count = min(n_batches or batches.steps_per_epoch, batches.steps_per_epoch)
    names: list[str] = []
    sums = torch.zeros(0, 2, dtype=torch.float64)
    with _scoring(learner), autocast():
        for i in range(count):
            # whatever an objective draws at random is the same at every validation and in every run
            torch.manual_seed(derive(0, "valid", i, team.rank))
            batch = batches.at(i, team.rank, team.world)
            # the last batch may have fewer rows than there are processes; a sharded model needs all of them to run
            weight = float(len(batch) > 0)
            batch = batch if weight else batches.at(i).rows(slice(0, 1))
            measures = _measures(learner(batch.map(lambda x: x.to(team.device))))
            names = names or list(measures)
            found = torch.tensor([[float(t), float(c)] for t, c in measures.values()], dtype=torch.float64)
            sums = weight * found + (sums if len(sums) else 0)
    sums = team.sum(sums.to(team.device)).cpu()
    return {name: Score(*row) for name, row in zip(names, sums.tolist(), strict=True)}


def bits_per_byte(scores: dict[str, Score], split: object) -> float | None:
    """Return bits per byte of text, from the first measure that scores every token; None where there is none."""
    tokens, size = getattr(split, "n_tokens", 0), getattr(split, "n_bytes", 0)
    if getattr(split, "kind", "") != "text" or not tokens or not size:
        return None
    return next((scores[m].mean / math.log(2) * tokens / size for m in TEXT_MEASURES if m in scores), None)


def _measures(loss: Loss) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    return loss.measures or {"loss": (loss.total, loss.count)}


@contextlib.contextmanager
def _scoring(learner: nn.Module) -> Iterator[None]:
    """Switch dropout and gradients off, and leave the learner as it was."""
    training = learner.training
    learner.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        learner.train(training)
