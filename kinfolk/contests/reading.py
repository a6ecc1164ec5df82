"""Tokens and FLOPs of a training step: the bridge between data, budgets and the cost model.

An objective decides what a model sees of a text or a pair (two halves, one joined row, masks), so costs come from the
shapes of a few prepared batches, padding included: it is computed as well. They are given per token that is read,
which is the same number for every contestant.
"""

import dataclasses
import functools
import statistics
from typing import NamedTuple

import torch

from kinfolk.core.annotations import OtherDocument
from kinfolk.core.batch import Batch
from kinfolk.core.rng import Rng
from kinfolk.data import Batches, Data
from kinfolk.data.batches.order import MEGA
from kinfolk.family.recipe import Recipe
from kinfolk.models.cost import ModelCost, cost
from kinfolk.objectives.objective import Objective, Vocabulary
from kinfolk.runs.vocabulary import vocabulary_of
from kinfolk.train.step import tokens_of

SAMPLES = {"text": 1, "pairs": MEGA, "labelled": MEGA, "images": 1}
"""Batches looked at: windows of text are all alike; the others are grouped by length within this many batches."""


@dataclasses.dataclass(frozen=True, eq=False)
class Reading:
    """The first batches that every trial sees."""

    batches: tuple[Batch, ...]
    vocabulary: Vocabulary

    @functools.cached_property
    def tokens_per_step(self) -> float:
        """Tokens that a step reads, padding left out."""
        return statistics.fmean(map(tokens_of, self.batches))


def read(data: Data, batch_size: int, length: int, grouping: str = "auto") -> Reading:
    """Look at the first batches of the training data."""
    batches = Batches(data.split("train"), batch_size=batch_size, length=length, grouping=grouping)
    # images are all alike
    count = 1 if data.split("train").picture is not None else min(SAMPLES[data.kind], batches.steps_per_epoch)
    return Reading(tuple(map(batches.at, range(count))), vocabulary_of(data.tokenizer))


def window(length: int) -> Reading:
    """Return a substitute where there is no running text: one row, of ordinary tokens."""
    vocabulary = Vocabulary(size=256)
    tokens = torch.full((1, length + 1), vocabulary.n_special)
    return Reading((Batch(index=torch.zeros(1, dtype=torch.long), tokens=tokens),), vocabulary)


def one_picture(n_values: int) -> Reading:
    """Return a substitute where there are no images: one, of one value, with a label."""
    vocabulary, one = Vocabulary(size=263), torch.zeros(1, dtype=torch.long)
    tokens = torch.full((1, n_values), vocabulary.n_special)
    return Reading((Batch(index=one, tokens=tokens, labels=one),), vocabulary)


def cost_of(recipe: Recipe, reading: Reading) -> ModelCost:
    """Return what a recipe costs per token that is read."""
    flops = kept = 0.0
    params = core = 0
    companion = recipe.objective.companion(recipe.model)
    for shape in _shapes(recipe.objective, reading):
        whole = cost(recipe.model, shape.length, shape.source, shape.scored)
        params, core = whole.params, whole.core_params
        for network in (recipe.model,) if companion is None else (recipe.model, companion):
            network_cost = cost(network, shape.length, shape.source, shape.scored)
            flops += network_cost.flops_per_token * shape.positions * recipe.objective.passes
            kept += network_cost.activation_bytes * shape.positions * recipe.objective.passes
    tokens = sum(map(tokens_of, reading.batches))
    return ModelCost(params, flops / tokens, kept / tokens, core)


class _Shape(NamedTuple):
    """What a model sees of a batch: its lengths, the share of positions that are scored, and how many there are."""

    length: int
    source: int | None
    scored: float
    positions: int


@functools.lru_cache(maxsize=64)
def _shapes(objective: Objective, reading: Reading) -> tuple[_Shape, ...]:
    """Prepare the batches once for every objective: matching tries many widths of one recipe."""
    # who asks about other documents is content with any: only shapes matter here
    batches = (batch.annotate(OtherDocument(batch.tokens, batch.keep)) for batch in reading.batches)
    return tuple(_shape(objective.prepare(batch, Rng(0), reading.vocabulary)) for batch in batches)


def _shape(batch: Batch) -> _Shape:
    positions = batch.tokens.numel()
    scored = batch.n_scored / positions
    return _Shape(batch.tokens.shape[1], None if batch.source is None else batch.source.shape[1], scored, positions)
