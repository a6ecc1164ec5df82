"""Linear embedding of real-valued features, for models that read measurements instead of tokens."""

from torch import Tensor

from kinfolk.core.bounds import PositiveInt
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, linear
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.layers.embeddings.embedding import Embedding, EmbeddingModule
from kinfolk.layers.module import Dims, Dropout, Linear
from kinfolk.layers.positions.position import NoPosition, Position


class Features(Embedding, kind="features"):
    """Linear embedding of vectors of `n_features` numbers, plus positions, then dropout."""

    n_features: PositiveInt
    position: Position = NoPosition()

    def build(self, dims: Dims) -> EmbeddingModule:
        return _Features(self, dims)

    def cost(self, dims: Dims) -> Cost:
        dropout = Cost(kept=dims.d_model if dims.dropout else 0)
        return linear(self.n_features, dims.d_model, True) + self.position.cost(dims) + dropout


class _Features(EmbeddingModule):
    def __init__(self, spec: Features, dims: Dims) -> None:
        super().__init__()
        self.map = Linear(spec.n_features, dims.d_model)
        self.position = spec.position.build(dims)
        self.dropout = Dropout(dims.dropout)

    @property
    def weight(self) -> Tensor:
        raise SpecError("features: there is no table that a tied head could share; use another head")

    def forward(self, features_BLF: Tensor, ctx: Context, segments_BL: Tensor | None = None) -> Tensor:
        if features_BLF.ndim != 3 or features_BLF.shape[2] != self.map.in_features:
            wanted = f"[batch, length, {self.map.in_features}]"
            raise ShapeError(f"features should have axes {wanted}, got shape {tuple(features_BLF.shape)}")
        x_BLD = self.map(features_BLF.to(self.map.weight.dtype))
        out: Tensor = self.dropout(self.position.add(x_BLD, ctx))
        return out
