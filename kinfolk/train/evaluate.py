"""Score a learner on validation batches: sums and counts per measure, so that nothing is a mean of means."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from kinfolk.core.batch import Batch
from kinfolk.core.device import seed_draws, send, wide, widest
from kinfolk.core.errors import TrainingError
from kinfolk.core.rng import Rng, derive
from kinfolk.data import Split
from kinfolk.train.memory import Memories
from kinfolk.train.parallel import Team
from kinfolk.train.step import Autocast

EVERY_TOKEN = "next-token"
"""The measure that scores every token of a text, so that bits per byte can be said."""


class BatchSource(Protocol):
    """Numbered batches: see `kinfolk.data.batches.batches`."""

    @property
    def steps_per_epoch(self) -> int:
        """How many batches hold every example once."""

    def at(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        """Return this process's rows of one batch."""


class Scorable(Protocol):
    """What is trained and scored: see `kinfolk.objectives.learner`. It is an `nn.Module` too."""

    training: bool

    def prepare(self, batch: Batch, rng: Rng) -> Batch:
        """Make inputs and targets of a batch as read."""

    def measure(self, batch: Batch, memory: Any = None) -> dict[str, tuple[Tensor, Tensor]]:
        """Return sums and counts of what is reported, the headline first."""

    def train(self, mode: bool = True) -> Any:
        """Switch dropout on or off."""


@dataclasses.dataclass(frozen=True)
class MeanScore:
    """A sum of nats over scored targets."""

    total: float
    count: float

    @property
    def mean(self) -> float:
        """Nats per target."""
        return self.total / self.count if self.count else math.nan


def evaluate(
    learner: Scorable,
    batches: BatchSource,
    n_batches: int = 0,
    *,
    team: Team | None = None,
    autocast: Autocast = contextlib.nullcontext,
) -> dict[str, MeanScore]:
    """Return the score of every measure over the first `n_batches` (0: all). The headline measure comes first.

    With several processes each scores its rows and the sums are added up, so the number of processes does not matter.
    """
    team = team or Team()
    count = min(n_batches or batches.steps_per_epoch, batches.steps_per_epoch)
    memories = Memories(learner)
    names: list[str] = []
    sums = torch.zeros(0, 2, dtype=widest(team.device), device=team.device)
    with scoring(learner), autocast():
        for i in range(count):
            # whatever an objective draws at random is the same at every validation and in every run
            seed_draws(derive(0, "valid", i, team.rank), team.device)
            batch = batches.at(i, team.rank, team.world)
            # the last batch may have fewer rows than there are processes; a sharded model needs all of them to run
            weight = float(len(batch) > 0)
            batch = batch if weight else batches.at(i).rows(slice(0, 1))
            batch = learner.prepare(batch, Rng(derive(0, "valid")))
            batch = batch.map(lambda x: send(x, team.device))
            measures = learner.measure(batch, *memories.before(0, batch))
            memories.settle()
            names = names or list(measures)
            totals = torch.stack([torch.stack((wide(t), wide(c))) for t, c in measures.values()])
            sums = weight * totals + (sums if len(sums) else 0)
    return {name: MeanScore(*row) for name, row in zip(names, team.sum(sums).tolist(), strict=True)}


def require_finite(scores: Mapping[str, float], where: str) -> None:
    """Raise if a result is not a number: that is no result."""
    for name, value in scores.items():
        if not math.isfinite(value):
            raise TrainingError(f"{where}: {name} is {value}, so the model or the data cannot be used")


def bits_per_byte(scores: dict[str, MeanScore], split: Split | None) -> float | None:
    """Return bits per byte of text, or of images, where every token is scored; None elsewhere."""
    if split is None or (split.kind != "text" and split.picture is None) or EVERY_TOKEN not in scores:
        return None
    tokens, size = split.n_tokens, split.n_bytes
    return scores[EVERY_TOKEN].mean / math.log(2) * tokens / size if tokens and size else None


@contextlib.contextmanager
def scoring(learner: Scorable | nn.Module) -> Iterator[None]:
    """Switch dropout and gradients off, and leave the learner or model as it was."""
    training = learner.training
    learner.train(False)
    try:
        with torch.no_grad():
            yield
    finally:
        learner.train(training)
