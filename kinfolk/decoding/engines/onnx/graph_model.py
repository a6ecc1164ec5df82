"""The model of an export: ONNX graphs in the place of a torch model, for evaluation and prediction."""

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


class GraphModel(Module):
    """The model of an export for evaluation. Its hidden states are the logits of the graphs, which its head returns."""

    def __init__(self, engine: ExportedModel, spec: Model) -> None:
        super().__init__()
        self.engine, self.spec, self.limit = engine, spec, engine.about.limit
        self.head = LogitsHead()

    def run(self, batch: Batch, state: State | None = None, taps: bool | Iterable[str] = False) -> Output:
        """Score a batch as the graphs do."""
        if not self.engine.decodes:
            logits = self.engine.answer(batch)[1]
        elif batch.source is None:
            logits = self.engine.scores(batch.tokens)
        else:
            keep, n = batch.source_keep, batch.tokens.shape[1]
            rows = [row.tolist() if keep is None else row[keep[i]].tolist() for i, row in enumerate(batch.source)]
            kept = self.engine.encode(rows, n)
            logits = torch.from_numpy(self.engine.advance(kept, batch.tokens.numpy(), np.arange(n)))
        return Output(logits, self.head, {}, {}, None, batch.keep)

    def new_memory(self) -> None:
        """A graph carries nothing from segment to segment."""


class LogitsHead(HeadModule):
    """A head whose states are logits already."""

    def answer(self, x_BLD: Tensor, keep_BL: Tensor | None) -> Tensor:
        return x_BLD

    def logits(self, x_BLD: Tensor) -> Tensor:
        return x_BLD

    def losses(self, x_BLD: Tensor, targets_BL: Tensor) -> Tensor:
        flat = F.cross_entropy(x_BLD.flatten(0, 1), targets_BL.flatten(), reduction="none", ignore_index=IGNORE)
        return flat.view_as(targets_BL)

    def loss(self, x_BLD: Tensor, targets_BL: Tensor, epsilon: float = 0.0, over: str = "all") -> Any:
        return self.losses(x_BLD, targets_BL).sum()
