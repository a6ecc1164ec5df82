"""Norms on both sides of a part, inside its residual branch: CogView, Gemma 2 and 3, OLMo 2."""

from typing import Any, ClassVar

from torch import Tensor

from kinfolk.core.context import Context
from kinfolk.core.cost import Cost
from kinfolk.layers.module import Dims, Dropout, Module
from kinfolk.layers.norms.norm import LayerNorm, Norm
from kinfolk.layers.residuals.residual import PreNormModule, Residual, ResidualModule, dropout_cost


class SandwichNorm(Residual, kind="sandwich-norm"):
    """Sandwich norm, x + dropout(after(part(before(x)))): a norm on both sides of a part (Ding et al. 2021; Gemma 2).

    With `before` "none" it is OLMo 2's order (norms behind attention and feed-forward, before the sum).
    """

    additive: ClassVar[bool] = True
    before: Norm = LayerNorm()
    after: Norm = LayerNorm()

    def build(self, dims: Dims) -> ResidualModule:
        return _SandwichNorm(self, dims)

    def cost(self, dims: Dims) -> Cost:
        return self.before.cost(dims.d_model) + self.after.cost(dims.d_model) + dropout_cost(dims)


class _SandwichNorm(PreNormModule):
    def __init__(self, spec: SandwichNorm, dims: Dims) -> None:
        Module.__init__(self)
        self.before, self.after = spec.before.build(dims.d_model), spec.after.build(dims.d_model)
        self.dropout = Dropout(dims.dropout)

    def branch(self, x: Tensor, part: Module, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        y, state = part(self.given(x), ctx, state)
        return self.dropout(self.after(y)), state

    def given(self, x: Tensor) -> Tensor:
        normed: Tensor = self.before(x)
        return normed
