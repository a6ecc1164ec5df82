"""Axis FeedForward: what happens at each position alone."""

from typing import Any

import torch
from torch import Tensor, nn

from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.core.errors import SpecError, suggest
from kinfolk.layers.module import Dims, Linear
from kinfolk.layers.part import FeedForward, PartModule
from kinfolk.ops.activated_linear import ACTIVATIONS, activated_linear


class Dense(FeedForward, kind="dense"):
    r"""$W_2\,\phi(W_1 x + b_1) + b_2$ (Vaswani et al. 2017, equation 2)."""

    d_ff: int
    activation: str = "relu"
    bias: bool = True

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise SpecError(f"activation: unknown {self.activation!r}{suggest(self.activation, ACTIVATIONS)}")

    def build(self, dims: Dims) -> PartModule:
        return _Dense(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        widen = linear(dims.d_model, self.d_ff, self.bias, kept=True)
        return widen + linear(self.d_ff, dims.d_model, self.bias, kept=True) + Cost(flops=self.d_ff)


class _Dense(PartModule):
    def __init__(self, spec: Dense, dims: Dims) -> None:
        super().__init__()
        self.activation = spec.activation
        self.widen = Linear(dims.d_model, spec.d_ff, bias=spec.bias)
        self.narrow = Linear(spec.d_ff, dims.d_model, bias=spec.bias, ends_branch=True)

    def forward(self, x_BLD: Tensor, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        u_BLF = self.widen(x_BLD)
        return activated_linear(u_BLF, self.narrow.weight, self.narrow.bias, self.activation), state


class ShiftedDense(Dense, kind="shifted-dense"):
    r"""$W_2\,(\phi(W_1 x + b_1) + c) + b_2$ with one number c, 0 at first: what Fixup has (Zhang et al. 2019)."""

    def build(self, dims: Dims) -> PartModule:
        return _ShiftedDense(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        return super().cost(dims, shape) + Cost(params=1)


class _ShiftedDense(_Dense):
    def __init__(self, spec: Dense, dims: Dims) -> None:
        super().__init__(spec, dims)
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, x_BLD: Tensor, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        u_BLF, weight_DF = self.widen(x_BLD), self.narrow.weight
        # the map of a constant is one vector for all positions, so it can join the bias
        bias_D = self.shift * weight_DF.sum(1)
        bias_D = bias_D if self.narrow.bias is None else bias_D + self.narrow.bias
        return activated_linear(u_BLF, weight_DF, bias_D, self.activation), state
