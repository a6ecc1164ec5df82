"""Axis Norm: LayerNorm, RMSNorm, ScaleNorm, unit vectors and none."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from kinfolk.core.bounds import Fraction, NonNegativeFloat
from kinfolk.core.cost import Cost
from kinfolk.core.spec import Spec
from kinfolk.layers.module import Module
from kinfolk.ops.rms_norm import rms_norm


class Norm(Spec):
    """Axis: normalisation, each position on its own: `x_BLD -> x_BLD`."""

    def build(self, width: int) -> nn.Module:
        """Return the module for vectors of this width."""
        raise NotImplementedError

    def cost(self, width: int) -> Cost:
        """Return its cost per token."""
        raise NotImplementedError


class NoNorm(Norm, kind="none"):
    """The identity."""

    def build(self, width: int) -> nn.Module:
        return nn.Identity()

    def cost(self, width: int) -> Cost:
        return Cost()


class LayerNorm(Norm, kind="layer-norm"):
    r"""LayerNorm: $g\,(x - \mu) / \sqrt{\sigma^2 + \epsilon} + b$ over the last axis (Ba et al. 2016).

    `bias` false: without b.
    """

    eps: NonNegativeFloat = 1e-5
    bias: bool = True

    def build(self, width: int) -> nn.Module:
        return nn.LayerNorm(width, eps=self.eps, bias=self.bias)

    def cost(self, width: int) -> Cost:
        return Cost(params=(1 + self.bias) * width, flops=8.0 * width, kept=width + 2)


class RMSNorm(Norm, kind="rms-norm"):
    r"""RMSNorm: $g\,x / \sqrt{\mathrm{mean}(x^2) + \epsilon}$, without centring and bias (Zhang and Sennrich 2019).

    `part` is the share of channels, counted from the first, whose mean square is used for all (their pRMSNorm; 0.0625
    in the paper, 0.0675 in the comparison of Narang et al. 2021). `gain` "one-plus" stores g - 1, which weight decay
    pulls to 0 and so the gain to 1 (Gemma).
    """

    eps: NonNegativeFloat = 1e-6
    part: Fraction = 1.0
    gain: Literal["weight", "one-plus"] = "weight"

    def build(self, width: int) -> nn.Module:
        return _RMSNorm(self, width)

    def cost(self, width: int) -> Cost:
        return Cost(params=width, flops=5.0 * width, kept=width + 1)


class _RMSNorm(Module):
    def __init__(self, spec: RMSNorm, width: int) -> None:
        super().__init__()
        self.plus = spec.gain == "one-plus"
        self.weight = nn.Parameter(torch.zeros(width) if self.plus else torch.ones(width))
        self.eps, self.n_seen = spec.eps, math.ceil(spec.part * width)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, 1 + self.weight if self.plus else self.weight, self.n_seen, self.eps)


class ScaleNorm(Norm, kind="scale-norm"):
    r"""ScaleNorm: $g\,x / \lVert x \rVert$ with a learned length $g$, $\sqrt{D}$ at first (Nguyen and Salazar 2019)."""

    eps: NonNegativeFloat = 1e-5

    def build(self, width: int) -> nn.Module:
        return _ScaleNorm(self, width)

    def cost(self, width: int) -> Cost:
        return Cost(params=1, flops=4.0 * width, kept=width + 3)


class _ScaleNorm(Module):
    def __init__(self, spec: ScaleNorm, width: int) -> None:
        super().__init__()
        self.length = nn.Parameter(torch.full((1,), width**0.5))
        self.eps = spec.eps

    def forward(self, x: Tensor) -> Tensor:
        # a least length, not an eps inside the root: as in the released code
        return x * (self.length / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(min=self.eps))


class UnitNorm(Norm, kind="unit-norm"):
    r"""L2 normalisation: $x / \lVert x \rVert$, nothing is learnt."""

    def build(self, width: int) -> nn.Module:
        return _UnitNorm()

    def cost(self, width: int) -> Cost:
        return Cost(flops=3.0 * width, kept=width + 1)


class _UnitNorm(Module):
    def forward(self, x: Tensor) -> Tensor:
        # with a least length of 1e-12: zeros stay zeros
        return nn.functional.normalize(x, dim=-1)


class Shift(Norm, kind="shift"):
    """Scalar bias of Fixup, x + b, b = 0 at first: where other decoders close with a norm (Zhang et al. 2019)."""

    def build(self, width: int) -> nn.Module:
        return _Shift()

    def cost(self, width: int) -> Cost:
        return Cost(params=1, flops=width)


class _Shift(Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


class ShiftScale(Norm, kind="shift-scale"):
    """Scalar bias and multiplier of Fixup, s (x + b): where other encoders close with a norm (Zhang et al. 2019)."""

    def build(self, width: int) -> nn.Module:
        return _ShiftScale()

    def cost(self, width: int) -> Cost:
        return Cost(params=2, flops=2.0 * width, kept=width)


class _ShiftScale(_Shift):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.shift) * self.scale
