"""Two-tower head over two sequences encoded apart (LRA's matching task, Tay et al. 2021)."""

import itertools
from typing import Literal

import torch
from torch import Tensor, nn

from kinfolk.core.cost import Cost, linear
from kinfolk.core.errors import ShapeError
from kinfolk.layers.embeddings.embedding import EmbeddingModule
from kinfolk.layers.heads.class_head import ClassHead, JudgingHead
from kinfolk.layers.heads.head import HeadModule
from kinfolk.layers.module import Dims, Dropout, Linear
from kinfolk.ops.activated_linear import ACTIVATIONS, Activation
from kinfolk.ops.pooled_vector import Pool, readout

FEATURES = {"both": 2, "all": 4}


class PairHead(ClassHead, kind="towers"):
    """Two-tower classification: classes of two sequences that one model encodes apart, [B, classes].

    `features` "both" puts the pooled states side by side, a and b, as the released runs of the Long Range Arena do (Tay
    et al. 2021); "all" adds their product and their difference (Mou et al. 2016). Then come two layers, of widths
    `d_hidden` and half of it. The states of all first sequences precede those of all second ones.
    """

    pool: Literal[Pool, "three"] = "mean"
    activation: Activation = "relu"
    features: Literal["both", "all"] = "all"

    def build(self, dims: Dims, embedding: EmbeddingModule) -> HeadModule:
        return _PairHead(self, dims)

    def cost(self, dims: Dims) -> Cost:
        widths = self.widths(dims)
        total = Cost(kept=(FEATURES[self.features] - 2) * dims.d_model)
        for d_in, d_out in itertools.pairwise(widths):
            total += linear(d_in, d_out, True) + Cost(kept=d_out)
        return total

    def widths(self, dims: Dims) -> list[int]:
        """Return the widths from features to classes."""
        wide = self.d_hidden or dims.d_model
        return [FEATURES[self.features] * dims.d_model, wide, max(1, wide // 2), self.n_classes]


class _PairHead(JudgingHead):
    def __init__(self, spec: PairHead, dims: Dims) -> None:
        super().__init__()
        self.pool, self.features, widths = spec.pool, spec.features, spec.widths(dims)
        self.activation = ACTIVATIONS[spec.activation]
        self.dropout = Dropout(dims.dropout)
        self.layers = nn.ModuleList(Linear(a, b) for a, b in itertools.pairwise(widths))

    def answer(self, x_BLD: Tensor, keep_BL: Tensor | None) -> Tensor:
        if len(x_BLD) % 2:
            raise ShapeError(f"towers: {len(x_BLD)} sequences are no pairs; first all first ones, then all second ones")
        a_BD, b_BD = readout(x_BLD, keep_BL, self.pool).chunk(2)
        more = (a_BD * b_BD, a_BD - b_BD) if self.features == "all" else ()
        x = torch.cat([a_BD, b_BD, *more], -1)
        *inner, last = self.layers
        for layer in inner:
            x = self.activation(layer(self.dropout(x)))
        scores_BC: Tensor = last(self.dropout(x))
        return scores_BC
