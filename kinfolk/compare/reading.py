"""What a step reads, and what a model computes for it: the bridge between data, budgets and the cost model."""

import dataclasses
import statistics

from kinfolk.data import Batches, Data
from kinfolk.family.recipe import Recipe
from kinfolk.models.cost import ModelCost, cost
from kinfolk.train.step import tokens_of

SAMPLE = 8
"""Batches looked at to learn how long pairs are; windows of text are all alike."""


@dataclasses.dataclass(frozen=True)
class Reading:
    """Tokens of a step, and of an example: `source` is 0 for running text. The same for all contestants."""

    tokens_per_step: float
    source: float
    target: float

    @property
    def tokens(self) -> float:
        """Tokens of an example."""
        return self.source + self.target


def read(data: Data, batch_size: int, length: int) -> Reading:
    """Look at the first batches that every trial will see."""
    batches = Batches(data.split("train"), batch_size=batch_size, length=length)
    if data.kind == "text":
        return Reading(batch_size * length, 0, length)
    sample = [batches.at(step) for step in range(SAMPLE)]
    tokens = statistics.fmean(tokens_of(batch) for batch in sample)
    source = statistics.fmean(
        float(batch.source_keep.sum() if batch.source_keep is not None else batch.source.numel()) / len(batch)
        for batch in sample
        if batch.source is not None
    )
    return Reading(tokens, source, max(1.0, tokens / batch_size - source))


def cost_of(recipe: Recipe, reading: Reading) -> ModelCost:
    """Return what a recipe costs per token that a step reads, however it cuts the example into source and target."""
    # an objective that hides a share of the tokens scores only those
    scored = float(getattr(recipe.objective, "share", 1.0))
    if recipe.model.topology != "encoder-decoder":
        if reading.source and recipe.model.topology == "decoder":
            scored = reading.target / reading.tokens
        return cost(recipe.model, round(reading.tokens), scored=scored)
    # of a text, the second half is predicted from the first
    target = reading.target if reading.source else reading.target / 2
    found = cost(recipe.model, round(target), source_length=round(reading.tokens - target), scored=scored)
    share = target / reading.tokens
    return ModelCost(found.params, found.flops_per_token * share, found.activation_bytes * share)
