"""Stochastic depth: residual branches are dropped at random in training (Huang et al. 2016)."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from kinfolk.core.bounds import Rate
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost
from kinfolk.core.errors import SpecError
from kinfolk.layers.module import Dims, Module
from kinfolk.layers.residuals.residual import Residual, ResidualModule


class StochasticDepth(Residual, kind="stochastic-depth"):
    r"""Stochastic depth: $x + m\,\mathrm{branch}(x) / (1 - rate)$; in training m is 0 in a share `rate` of examples.

    Huang et al. 2016, section 3, but for the place of the factor: there in evaluation, here in training, so that a
    trained model is an ordinary one. `of` is a residual that adds a branch.
    """

    additive: ClassVar[bool] = True
    of: Residual
    rate: Rate

    def __post_init__(self) -> None:
        if not self.of.additive:
            raise SpecError(f"of: {self.of.kind!r} does not add a branch to the stream, so there is none to drop")

    def build(self, dims: Dims) -> ResidualModule:
        return _StochasticDepth(self, dims)

    def cost(self, dims: Dims) -> Cost:
        return self.of.cost(dims) + Cost(flops=dims.d_model)


class _StochasticDepth(ResidualModule):
    def __init__(self, spec: StochasticDepth, dims: Dims) -> None:
        super().__init__()
        self.of: Any = spec.of.build(dims)
        self.rate = spec.rate

    def forward(self, x: Tensor, part: Module, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        y, state = self.branch(x, part, ctx, state)
        return x + y, state

    def given(self, x: Tensor) -> Tensor:
        inner: Tensor = self.of.given(x)
        return inner

    def branch(self, x: Tensor, part: Module, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        """Return what is added: nothing for some examples."""
        y, state = self.of.branch(x, part, ctx, state)
        if not self.training:
            return y, state
        kept_B11 = torch.rand(len(y), 1, 1, device=y.device) >= self.rate
        return y * (kept_B11.to(y.dtype) / (1 - self.rate)), state
