"""Heads over whole sequences: which class a text belongs to."""

from typing import NoReturn

from torch import Tensor

from kinfolk.core.cost import Cost, linear
from kinfolk.core.errors import SpecError, suggest
from kinfolk.layers.embedding import EmbeddingModule
from kinfolk.layers.head import Head, HeadModule
from kinfolk.layers.module import Dims, Dropout, Linear
from kinfolk.ops.activated_linear import ACTIVATIONS
from kinfolk.ops.readout import POOLS, readout


class JudgingHead(HeadModule):
    """What heads share that do not predict tokens: they have an `answer`, and nothing over the vocabulary."""

    def logits(self, x_BLD: Tensor) -> Tensor:
        self._refuse()

    def loss(self, x_BLD: Tensor, targets_BL: Tensor, epsilon: float = 0.0, over: str = "all") -> Tensor:
        self._refuse()

    def losses(self, x_BLD: Tensor, targets_BL: Tensor) -> Tensor:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise SpecError(
            "head: this model judges what it reads and predicts no tokens; it needs an objective with labels"
        )


class ClassHead(Head, kind="class"):
    """Pool the states of a sequence into one vector and score `n_classes` classes of it.

    `pool`: the "first" state (Devlin et al. 2019), the "last" real one (Radford et al. 2018), or the "mean" or the
    "max" of the real ones. `activation` puts a layer of width `d_hidden` (0: as wide as the model) between: "tanh" is
    BERT's pooler, "relu" that of the Long Range Arena (Tay et al. 2021); "none": no such layer. Dropout is the model's.
    """

    n_classes: int
    pool: str = "first"
    activation: str = "none"
    d_hidden: int = 0

    def __post_init__(self) -> None:
        if self.n_classes < 1:
            raise SpecError(f"n_classes: {self.n_classes} is not allowed; there is at least one class")
        if self.pool not in POOLS:
            raise SpecError(f"pool: unknown {self.pool!r}{suggest(self.pool, POOLS)}")
        if self.activation != "none" and self.activation not in ACTIVATIONS:
            raise SpecError(
                f"activation: unknown {self.activation!r}{suggest(self.activation, ['none', *ACTIVATIONS])}"
            )

    def build(self, dims: Dims, embedding: EmbeddingModule) -> HeadModule:
        return _ClassHead(self, dims)

    def cost(self, dims: Dims) -> Cost:
        if self.activation == "none":
            return linear(dims.d_model, self.n_classes, True)
        width = self.d_hidden or dims.d_model
        return linear(dims.d_model, width, True) + Cost(kept=width) + linear(width, self.n_classes, True)


class _ClassHead(JudgingHead):
    def __init__(self, spec: ClassHead, dims: Dims) -> None:
        super().__init__()
        self.pool = spec.pool
        width = (spec.d_hidden or dims.d_model) if spec.activation != "none" else dims.d_model
        self.hidden = Linear(dims.d_model, width) if spec.activation != "none" else None
        self.activation = ACTIVATIONS["identity" if spec.activation == "none" else spec.activation]
        self.dropout = Dropout(dims.dropout)
        self.output = Linear(width, spec.n_classes)

    def answer(self, x_BLD: Tensor, keep_BL: Tensor | None) -> Tensor:
        x_BD = readout(x_BLD, keep_BL, self.pool)
        if self.hidden is not None:
            x_BD = self.activation(self.hidden(x_BD))
        scores_BC: Tensor = self.output(self.dropout(x_BD))
        return scores_BC
