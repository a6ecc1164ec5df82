"""Sentence-embedding head: one pooled vector for a sequence, for search and clustering."""

from typing import Literal

from torch import Tensor, nn

from kinfolk.core.cost import Cost, linear
from kinfolk.layers.embeddings.embedding import EmbeddingModule
from kinfolk.layers.heads.class_head import JudgingHead
from kinfolk.layers.heads.head import Head, HeadModule
from kinfolk.layers.module import Dims, Linear
from kinfolk.ops.activated_linear import ACTIVATIONS, Activation
from kinfolk.ops.pooled_vector import Pool, readout


class VectorHead(Head, kind="vector"):
    """Sentence embedding: the pooled states of a sequence (Reimers and Gurevych 2019, section 3).

    `pool` as in `ClassHead`. `activation` other than "none" puts a square layer after it: with the "first" state and
    "tanh" it is BERT's pooler. `length` "unit" divides vectors by their length, so that their products are cosines.
    """

    pool: Pool = "mean"
    activation: Literal["none", Activation] = "none"
    length: Literal["free", "unit"] = "free"

    def build(self, dims: Dims, embedding: EmbeddingModule) -> HeadModule:
        return _VectorHead(self, dims)

    def cost(self, dims: Dims) -> Cost:
        return Cost() if self.activation == "none" else linear(dims.d_model, dims.d_model, True)


class _VectorHead(JudgingHead):
    def __init__(self, spec: VectorHead, dims: Dims) -> None:
        super().__init__()
        self.spec = spec
        self.map = None if spec.activation == "none" else Linear(dims.d_model, dims.d_model)
        self.activation = ACTIVATIONS["identity" if spec.activation == "none" else spec.activation]

    def answer(self, x_BLD: Tensor, keep_BL: Tensor | None) -> Tensor:
        x_BD = readout(x_BLD, keep_BL, self.spec.pool)
        if self.map is not None:
            x_BD = self.activation(self.map(x_BD))
        return nn.functional.normalize(x_BD, dim=-1) if self.spec.length == "unit" else x_BD
