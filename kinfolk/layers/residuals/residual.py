"""Axis Residual: residual connections, post-norm and pre-norm.

A residual owns what surrounds one part (norms, gates, dropout) and calls it: `forward(x, part, ctx, state)` on
`given(x)`. One that is `additive` also has `branch(x, part, ctx, state)`, what it adds to x.
"""

from typing import Any, ClassVar

from torch import Tensor

from kinfolk.core.context import Context
from kinfolk.core.cost import Cost
from kinfolk.core.spec import Spec
from kinfolk.layers.module import Dims, Dropout, Module
from kinfolk.layers.norms.norm import LayerNorm, Norm


class Residual(Spec):
    """Axis: residual connections, with their norms: `(x, part) -> x`."""

    additive: ClassVar[bool] = False

    def build(self, dims: Dims) -> "ResidualModule":
        """Return the module that joins one part to the stream."""
        raise NotImplementedError

    def cost(self, dims: Dims) -> Cost:
        """Return what it adds to the part's own cost, per token."""
        raise NotImplementedError


class ResidualModule(Module):
    """Base of residual connections: joins one part to the stream."""

    def given(self, x: Tensor) -> Tensor:
        """Return the input of the part."""
        return x


class PostNorm(Residual, kind="post-norm"):
    """Post-norm: norm(x + dropout(part(x))) (Vaswani et al. 2017, section 3.1)."""

    norm: Norm = LayerNorm()

    def build(self, dims: Dims) -> ResidualModule:
        return _PostNorm(self, dims)

    def cost(self, dims: Dims) -> Cost:
        return self.norm.cost(dims.d_model) + dropout_cost(dims)


class _PostNorm(ResidualModule):
    def __init__(self, spec: PostNorm, dims: Dims) -> None:
        super().__init__()
        self.norm, self.dropout = spec.norm.build(dims.d_model), Dropout(dims.dropout)

    def forward(self, x: Tensor, part: Module, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        y, state = part(x, ctx, state)
        return self.norm(x + self.dropout(y)), state


class PreNorm(Residual, kind="pre-norm"):
    """Pre-norm: x + dropout(part(norm(x))); a norm closes the stack (Radford et al. 2019, section 2.3)."""

    additive: ClassVar[bool] = True
    norm: Norm = LayerNorm()

    def build(self, dims: Dims) -> ResidualModule:
        return PreNormModule(self, dims)

    def cost(self, dims: Dims) -> Cost:
        return self.norm.cost(dims.d_model) + dropout_cost(dims)


class PreNormModule(ResidualModule):
    """Pre-norm residual: adds a branch that normalises its input."""

    def __init__(self, spec: PreNorm, dims: Dims) -> None:
        super().__init__()
        self.norm, self.dropout = spec.norm.build(dims.d_model), Dropout(dims.dropout)

    def forward(self, x: Tensor, part: Module, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        y, state = self.branch(x, part, ctx, state)
        return x + y, state

    def branch(self, x: Tensor, part: Module, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        y, state = part(self.given(x), ctx, state)
        return self.dropout(y), state

    def given(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x)
        return normed


def dropout_cost(dims: Dims) -> Cost:
    """Dropout keeps its mask."""
    return Cost(flops=dims.d_model, kept=dims.d_model if dims.dropout else 0)
