"""A feed-forward behind one sigmoid gate per token: the shared expert of Qwen's mixtures (Qwen Team 2025)."""

from typing import Any

import torch
from torch import Tensor

from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.layers.module import Dims, Linear
from kinfolk.layers.part import FeedForward, PartModule


class TokenGated(FeedForward, kind="token-gated"):
    r"""Gate of a shared expert: $\sigma(w^\top x)\,\mathrm{part}(x)$, one number per token (Qwen Team 2025)."""

    part: FeedForward

    def build(self, dims: Dims) -> PartModule:
        return _TokenGated(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        gate = linear(dims.d_model, 1, False, kept=False) + Cost(flops=dims.d_model, kept=dims.d_model + 1)
        return self.part.cost(dims, shape) + gate


class _TokenGated(PartModule):
    def __init__(self, spec: TokenGated, dims: Dims) -> None:
        super().__init__()
        self.gate, self.part = Linear(dims.d_model, 1, bias=False), spec.part.build(dims)

    def forward(self, x_BLD: Tensor, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        y_BLD, state = self.part(x_BLD, ctx, state)
        return torch.sigmoid(self.gate(x_BLD)) * y_BLD, state
