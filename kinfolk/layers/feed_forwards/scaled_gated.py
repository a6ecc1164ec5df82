"""Gated MLP with a gain on each hidden channel, for unit vectors (nGPT, Loshchilov et al. 2024)."""

from typing import Any

import torch
from torch import Tensor, nn

from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape
from kinfolk.layers.feed_forwards.feed_forward import Gated, GatedModule
from kinfolk.layers.module import Dims
from kinfolk.layers.part import PartModule


class ScaledGated(Gated, kind="scaled-gated"):
    r"""Gated MLP of nGPT: $W_2\,(\phi(\sqrt{D}\,s_v \odot W x) \odot s_u \odot V x)$ (arXiv:2410.01131, eq. 20, 21).

    Products of unit vectors are about $D^{-1/2}$, where an activation is nearly linear. Both gains begin at 1.
    """

    def build(self, dims: Dims) -> PartModule:
        return _ScaledGated(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        width = 2 * self.d_ff
        return super().cost(dims, shape) + Cost(width, 1.0 * width, width)


class _ScaledGated(GatedModule):
    def __init__(self, spec: ScaledGated, dims: Dims) -> None:
        super().__init__(spec, dims)
        self.gains_2F, self.root = nn.Parameter(torch.ones(2, spec.d_ff)), dims.d_model**0.5

    def draw(self) -> None:
        """Begin with gains of 1."""
        nn.init.ones_(self.gains_2F)

    def forward(self, x_BLD: Tensor, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        gate_F, value_F = self.gains_2F
        u_BLf = self.widen(x_BLD)
        # under autocast the map is narrower than what it reads
        gains_f = torch.cat([self.root * gate_F, value_F]).to(u_BLf.dtype)
        return self.narrow.after_gate(u_BLf * gains_f, self.activation), state
