"""Scores a run's validation data by its graphs: what int8 costs is said, not guessed."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.core.batch import IGNORE, Batch
from kinfolk.decoding.engines.onnx.exported import ExportedModel
from kinfolk.layers.heads.head import HeadModule
from kinfolk.layers.module import Module
from kinfolk.models.model import Model, Output, State
from kinfolk.objectives.learner import Learner
from kinfolk.train.evaluate import Batches, Score, evaluate


def scores(engine: ExportedModel, learner: Learner, batches: Batches, n_batches: int = 0) -> dict[str, Score]:
    """Return what `evaluate` says of a learner whose model is an engine."""
    model, learner.model = learner.model, _Standing(engine, learner.model.spec)  # type: ignore[assignment]
    try:
        return evaluate(learner, batches, n_batches)
    finally:
        learner.model = model


class _Standing(Module):
    """Stands in the place of a model: its states are the scores, and its head says them again."""

    def __init__(self, engine: ExportedModel, spec: Model) -> None:
        super().__init__()
        self.engine, self.spec, self.limit = engine, spec, engine.about.limit
        self.head = _Said()

    def run(self, batch: Batch, state: State | None = None, taps: bool | Iterable[str] = False) -> Output:
        """Score a batch as the graphs do."""
        if not self.engine.decodes:
            said = self.engine.answer(batch)[1]
        elif batch.source is None:
            said = self.engine.scores(batch.tokens)
        else:
            keep, n = batch.source_keep, batch.tokens.shape[1]
            rows = [row.tolist() if keep is None else row[keep[i]].tolist() for i, row in enumerate(batch.source)]
            kept = self.engine.encode(rows, n)
            said = torch.from_numpy(self.engine.advance(kept, batch.tokens.numpy(), np.arange(n)))
        return Output(said, self.head, {}, {}, None, batch.keep)

    def new_memory(self) -> None:
        """A graph carries nothing from segment to segment."""


class _Said(HeadModule):
    """States that are scores already."""

    def answer(self, x_BLD: Tensor, keep_BL: Tensor | None) -> Tensor:
        return x_BLD

    def logits(self, x_BLD: Tensor) -> Tensor:
        return x_BLD

    def losses(self, x_BLD: Tensor, targets_BL: Tensor) -> Tensor:
        flat = F.cross_entropy(x_BLD.flatten(0, 1), targets_BL.flatten(), reduction="none", ignore_index=IGNORE)
        return flat.view_as(targets_BL)

    def loss(self, x_BLD: Tensor, targets_BL: Tensor, epsilon: float = 0.0, over: str = "all") -> Any:
        return self.losses(x_BLD, targets_BL).sum()
