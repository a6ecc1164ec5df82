"""A head that says nothing: one vector for a whole sequence, for search, for clustering, and for heads to come."""

from torch import Tensor, nn

from kinfolk.core.cost import Cost, linear
from kinfolk.core.errors import SpecError, suggest
from kinfolk.layers.class_head import JudgingHead
from kinfolk.layers.embedding import EmbeddingModule
from kinfolk.layers.head import Head, HeadModule
from kinfolk.layers.module import Dims, Linear
from kinfolk.ops.activated_linear import ACTIVATIONS
from kinfolk.ops.readout import POOLS, readout

LENGTHS = ("free", "unit")


class VectorHead(Head, kind="vector"):
    """Pool the states of a sequence into one vector (Reimers and Gurevych 2019, section 3).

    `pool` as in `ClassHead`. `activation` other than "none" puts a square layer after it: with the "first" state and
    "tanh" it is BERT's pooler. `length` "unit" divides vectors by their length, so that their products are cosines.
    """

    pool: str = "mean"
    activation: str = "none"
    length: str = "free"

    def __post_init__(self) -> None:
        if self.pool not in POOLS:
            raise SpecError(f"pool: unknown {self.pool!r}{suggest(self.pool, POOLS)}")
        if self.activation not in ("none", *ACTIVATIONS):
            raise SpecError(
                f"activation: unknown {self.activation!r}{suggest(self.activation, ['none', *ACTIVATIONS])}"
            )
        if self.length not in LENGTHS:
            raise SpecError(f"length: unknown {self.length!r}{suggest(self.length, LENGTHS)}")

    def build(self, dims: Dims, embedding: EmbeddingModule) -> HeadModule:
        return _VectorHead(self, dims)

    def cost(self, dims: Dims) -> Cost:
        return Cost() if self.activation == "none" else linear(dims.d_model, dims.d_model, True)


class _VectorHead(JudgingHead):
    def __init__(self, spec: VectorHead, dims: Dims) -> None:
        super().__init__()
        self.spec = spec
        self.map = None if spec.activation == "none" else Linear(dims.d_model, dims.d_model)

    def answer(self, x_BLD: Tensor, keep_BL: Tensor | None) -> Tensor:
        x_BD = readout(x_BLD, keep_BL, self.spec.pool)
        if self.map is not None:
            x_BD = ACTIVATIONS[self.spec.activation](self.map(x_BD))
        return nn.functional.normalize(x_BD, dim=-1) if self.spec.length == "unit" else x_BD
