"""Classification and regression heads over pooled sequences."""

from typing import Literal, NoReturn

import torch
from torch import Tensor

from kinfolk.core.bounds import NonNegativeInt, PositiveInt
from kinfolk.core.cost import Cost, linear
from kinfolk.core.errors import SpecError
from kinfolk.layers.embeddings.embedding import EmbeddingModule
from kinfolk.layers.heads.head import Head, HeadModule
from kinfolk.layers.module import Dims, Dropout, Linear
from kinfolk.ops.activated_linear import ACTIVATIONS, Activation
from kinfolk.ops.pooled_vector import Pool, readout


class JudgingHead(HeadModule):
    """Base of heads without a vocabulary: they have an `answer`, and no logits over tokens."""

    def logits(self, x_BLD: Tensor) -> Tensor:
        self._refuse()

    def loss(self, x_BLD: Tensor, targets_BL: Tensor, epsilon: float = 0.0, over: str = "all") -> Tensor:
        self._refuse()

    def losses(self, x_BLD: Tensor, targets_BL: Tensor) -> Tensor:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise SpecError("head: this model judges what it reads and predicts no tokens; its objective needs labels")


class PoolingHead(Head):
    """Axis: heads that pool the states of a sequence into one vector and map it to `n_outputs` numbers.

    `pool`: the "first" state (Devlin et al. 2019), the "last" real one (Radford et al. 2018), or the "mean" or the
    "max" of the real ones; or "three", last, max and mean side by side (Howard and Ruder 2018, section 3.3).
    `activation` puts a layer of width `d_hidden` (0: as wide as the model) between: "tanh" is BERT's pooler,
    "relu" that of the Long Range Arena (Tay et al. 2021); "none": no such layer. Dropout is the model's.
    """

    pool: Literal[Pool, "three"] = "first"
    activation: Literal["none", Activation] = "none"
    d_hidden: NonNegativeInt = 0

    @property
    def n_outputs(self) -> int:
        """How many numbers it gives."""
        raise NotImplementedError

    @property
    def pools(self) -> tuple[str, ...]:
        """Classes of several heads side by side."""
        return ("last", "max", "mean") if self.pool == "three" else (self.pool,)

    def build(self, dims: Dims, embedding: EmbeddingModule) -> HeadModule:
        return PoolingModule(self, dims)

    def cost(self, dims: Dims) -> Cost:
        pooled = len(self.pools) * dims.d_model
        if self.activation == "none":
            return linear(pooled, self.n_outputs, True)
        width = self.d_hidden or dims.d_model
        return linear(pooled, width, True) + Cost(kept=width) + linear(width, self.n_outputs, True)


class PoolingModule(JudgingHead):
    """Pooling, an optional hidden layer, and an output layer: [B, outputs]."""

    def __init__(self, spec: PoolingHead, dims: Dims) -> None:
        super().__init__()
        self.pools, pooled = spec.pools, len(spec.pools) * dims.d_model
        width = (spec.d_hidden or dims.d_model) if spec.activation != "none" else pooled
        self.hidden = Linear(pooled, width) if spec.activation != "none" else None
        self.activation = ACTIVATIONS["identity" if spec.activation == "none" else spec.activation]
        self.dropout = Dropout(dims.dropout)
        self.output = Linear(width, spec.n_outputs)

    def answer(self, x_BLD: Tensor, keep_BL: Tensor | None) -> Tensor:
        x_BD = torch.cat([readout(x_BLD, keep_BL, pool) for pool in self.pools], -1)
        if self.hidden is not None:
            x_BD = self.activation(self.hidden(x_BD))
        scores: Tensor = self.output(self.dropout(x_BD))
        return scores


class ClassHead(PoolingHead, kind="class"):
    """Sequence classification: scores of `n_classes` classes, [B, classes]."""

    n_classes: PositiveInt

    @property
    def n_outputs(self) -> int:
        return self.n_classes

    @property
    def n_labels(self) -> int:
        return self.n_classes


class RegressionHead(PoolingHead, kind="regression"):
    """Sequence regression: one number, [B]."""

    @property
    def n_outputs(self) -> int:
        return 1

    def build(self, dims: Dims, embedding: EmbeddingModule) -> HeadModule:
        return _Number(self, dims)


class _Number(PoolingModule):
    def answer(self, x_BLD: Tensor, keep_BL: Tensor | None) -> Tensor:
        return super().answer(x_BLD, keep_BL)[:, 0]
