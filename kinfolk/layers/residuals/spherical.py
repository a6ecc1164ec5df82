"""Normalised residual: steps on the unit sphere with learned sizes (nGPT, Loshchilov et al. 2024)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.core.bounds import PositiveFloat
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost
from kinfolk.layers.module import Dims, Dropout, Module
from kinfolk.layers.residuals.residual import Residual, ResidualModule, dropout_cost


class SphericalStep(Residual, kind="spherical"):
    r"""nGPT's update $\mathrm{unit}(x + |\alpha| \odot (\mathrm{unit}(\mathrm{part}(x)) - x))$, one size per channel.

    Loshchilov et al. 2024 (nGPT, arXiv:2410.01131), equations 10 and 11; x is a unit vector already. The size begins at
    `rate` and is stored as if it were $D^{-1/2}$. Reference: `kinfolk.ops.naive.normalised_transformer`.
    """

    rate: PositiveFloat = 0.05

    def build(self, dims: Dims) -> ResidualModule:
        return _SphericalStep(self, dims)

    def cost(self, dims: Dims) -> Cost:
        d = dims.d_model
        return Cost(d, 12.0 * d, 5 * d + 2) + dropout_cost(dims)


class _SphericalStep(ResidualModule):
    def __init__(self, spec: SphericalStep, dims: Dims) -> None:
        super().__init__()
        self.stored, self.rate = dims.d_model**-0.5, spec.rate
        self.alpha_D, self.dropout = nn.Parameter(torch.zeros(dims.d_model)), Dropout(dims.dropout)
        self.draw()

    def draw(self) -> None:
        """Begin with steps of the rate."""
        nn.init.constant_(self.alpha_D, self.stored)

    def forward(self, x: Tensor, part: Module, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        y, state = part(x, ctx, state)
        size_D = (self.alpha_D * (self.rate / self.stored)).abs().to(x.dtype)
        return F.normalize(torch.addcmul(x, size_D, F.normalize(self.dropout(y), dim=-1) - x), dim=-1), state
