"""Axis Embedding: from what comes in to vectors."""

from torch import Tensor, nn

from kinfolk.core.context import Context
from kinfolk.core.cost import Cost
from kinfolk.core.errors import ShapeError
from kinfolk.core.spec import Spec
from kinfolk.layers.module import Dims, Dropout, Module
from kinfolk.layers.norm import NoNorm, Norm
from kinfolk.layers.position import NoPosition, Position


class Embedding(Spec):
    """Axis: `(tokens_BL, ctx) -> x_BLD`. The module's `weight` is what a tied head shares."""

    def build(self, dims: Dims) -> Module:
        """Return the module."""
        raise NotImplementedError

    def cost(self, dims: Dims) -> Cost:
        """Return its cost per token."""
        raise NotImplementedError


class Tokens(Embedding, kind="tokens"):
    """A table of vectors plus positions (Vaswani et al. 2017, section 3.4), then a norm and dropout.

    `scale` "sqrt" multiplies the vectors by sqrt(d_model), which a table shared with the output layer needs to stand
    beside sinusoids. `n_segments` adds a second table for the kind of segment a token belongs to (Devlin et al. 2019).
    """

    position: Position = NoPosition()
    scale: str = "none"
    norm: Norm = NoNorm()
    n_segments: int = 0

    def build(self, dims: Dims) -> Module:
        return _Tokens(self, dims)

    def cost(self, dims: Dims) -> Cost:
        tables = Cost(params=(dims.vocab_size + self.n_segments) * dims.d_model, flops=dims.d_model)
        dropout = Cost(kept=dims.d_model if dims.dropout else 0)
        return tables + self.position.cost(dims) + self.norm.cost(dims.d_model) + dropout


class _Tokens(Module):
    def __init__(self, spec: Tokens, dims: Dims) -> None:
        super().__init__()
        self.table = nn.Embedding(dims.vocab_size, dims.d_model)
        self.segments = nn.Embedding(spec.n_segments, dims.d_model) if spec.n_segments else None
        self.position = spec.position.build(dims)
        self.norm = spec.norm.build(dims.d_model)
        self.dropout = Dropout(dims.dropout)
        self.scale = dims.d_model**0.5 if spec.scale == "sqrt" else 1.0

    @property
    def weight(self) -> Tensor:
        return self.table.weight

    def forward(self, tokens_BL: Tensor, ctx: Context, segments_BL: Tensor | None = None) -> Tensor:
        if tokens_BL.ndim != 2:
            raise ShapeError(f"tokens should have axes [batch, length], got shape {tuple(tokens_BL.shape)}")
        x_BLD = self.table(tokens_BL)
        if self.scale != 1.0:
            x_BLD = x_BLD * self.scale
        if self.segments is not None:
            # without a second segment every token belongs to the first
            x_BLD = x_BLD + (self.segments.weight[0] if segments_BL is None else self.segments(segments_BL))
        return self.dropout(self.norm(self.position.add(x_BLD, ctx)))
