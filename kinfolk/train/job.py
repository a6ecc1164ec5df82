"""What the loop is given and what it gives back."""

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import torch

from kinfolk.core.batch import Batch
from kinfolk.core.rng import Rng, derive
from kinfolk.data import Split
from kinfolk.optim import Training
from kinfolk.train.evaluate import BatchSource, MeanScore
from kinfolk.train.parallel import Team
from kinfolk.train.step import tokens_of

FINISHED, EARLY, CLOCK, INTERRUPTED = "finished", "early", "clock", "interrupted"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """What is trained on what.

    learner: batch in, loss out, with `prepare` and `measure`: see `kinfolk.objectives.learner`.
    valid, split: validation batches, and the split they come from.
    flops_per_token: of training, forward and backward; 0 where it is not known.
    judge: further scores of a model at each validation, by name.
    """

    name: str
    learner: Any
    training: Training
    batches: BatchSource
    valid: BatchSource | None = None
    split: Split | None = None
    seed: int = 0
    flops_per_token: float = 0.0
    judge: Callable[[Any], dict[str, MeanScore]] | None = None

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def read(self, step: int, team: Team) -> tuple[Batch, int]:
        """Return this process's rows of the batch of a step, prepared, and how many tokens were read for them."""
        batch = self.batches.at(step - 1, team.rank, team.world)
        prepared: Batch = self.learner.prepare(batch, Rng(derive(self.seed, "objective")))
        return pinned(prepared, team.device), tokens_of(batch)


def pinned(batch: Batch, device: torch.device) -> Batch:
    """Return a batch of the host in memory from which a device copies while the host goes on."""
    return batch if device.type in ("cpu", "meta", "mps") else batch.map(lambda x: x.pin_memory())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """How a run ended: the content of result.json.

    status: "finished", "early" (no improvement for `patience` validations), "clock" (`max_seconds`) or "interrupted".
    """

    name: str
    out: str
    status: str
    step: int
    total_steps: int
    parameters: int
    tokens: int
    seconds: float
    flops: float
    loss: float | None
    valid: dict[str, float]
    bits_per_byte: float | None
    best: float | None
    best_step: int | None
    tokens_per_second: float
    mfu: float | None
    precision: str
    compile: str
