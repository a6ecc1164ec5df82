"""Axis Decay: how fast a recurrent state forgets, as a log decay of each head or of each channel of its keys."""

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.core.bounds import NonNegativeInt, PositiveFloat, PositiveInt, Rate
from kinfolk.core.cost import Cost, linear
from kinfolk.core.errors import SpecError
from kinfolk.core.spec import Spec
from kinfolk.layers.module import Dims, Linear, Module


class Decay(Spec):
    """Axis: how the state of a linear recurrence decays.

    `x_BLD -> log decay`, [B, H, L, 1] for one per head or [B, H, L, K] for one per channel, at most 0.
    """

    by_channel: ClassVar[bool] = False
    makes_keys: ClassVar[bool] = False  # keys are 1 - decay

    def build(self, dims: Dims, n_heads: int, d_key: int) -> Module:
        """Return the module."""
        raise NotImplementedError

    def cost(self, dims: Dims, n_heads: int, d_key: int) -> Cost:
        """Return its cost; the input is kept by others, the log decay by the recurrence."""
        raise NotImplementedError


class NoDecay(Decay, kind="none"):
    """No decay: nothing is forgotten."""

    def build(self, dims: Dims, n_heads: int, d_key: int) -> Module:
        return _FixedDecay(n_heads, fixed=False)

    def cost(self, dims: Dims, n_heads: int, d_key: int) -> Cost:
        return Cost()


class FixedDecay(Decay, kind="fixed"):
    r"""Fixed decay of retention, $1 - 2^{-5-h}$ for head h (Sun et al. 2023, RetNet, equation 8)."""

    def build(self, dims: Dims, n_heads: int, d_key: int) -> Module:
        return _FixedDecay(n_heads, fixed=True)

    def cost(self, dims: Dims, n_heads: int, d_key: int) -> Cost:
        return Cost()


class _FixedDecay(Module):
    def __init__(self, n_heads: int, fixed: bool) -> None:
        super().__init__()
        self.n_heads, self.fixed = n_heads, fixed

    def forward(self, x_BLD: Tensor) -> Tensor:
        if not self.fixed:
            return x_BLD.new_zeros(()).expand(len(x_BLD), self.n_heads, x_BLD.shape[1], 1)
        head_H = torch.arange(self.n_heads, device=x_BLD.device, dtype=torch.promote_types(x_BLD.dtype, torch.float32))
        # log1p: of the slowest heads, 1 - 2^(-5 - h) rounds to 1 in half precision
        log_H = torch.log1p(-torch.exp2(-5.0 - head_H))
        return log_H[None, :, None, None].expand(len(x_BLD), -1, x_BLD.shape[1], 1)


class LowRankDecay(Decay, kind="low-rank"):
    r"""Low-rank gate $\sigma(W_2 W_1 x + b)^{1/\tau}$ for each channel (Yang et al. 2024, GLA, section 4.4)."""

    by_channel = True

    rank: PositiveInt = 16
    temperature: PositiveFloat = 16.0

    def build(self, dims: Dims, n_heads: int, d_key: int) -> Module:
        return _LowRankDecay(self, dims, n_heads, d_key)

    def cost(self, dims: Dims, n_heads: int, d_key: int) -> Cost:
        width = n_heads * d_key
        maps = linear(dims.d_model, self.rank, False, kept=False) + linear(self.rank, width, True)
        return maps + Cost(flops=3.0 * width, kept=2 * width)


class _LowRankDecay(Module):
    def __init__(self, spec: LowRankDecay, dims: Dims, n_heads: int, d_key: int) -> None:
        super().__init__()
        self.n_heads, self.temperature = n_heads, spec.temperature
        self.down = Linear(dims.d_model, spec.rank, bias=False)
        self.up = Linear(spec.rank, n_heads * d_key)

    def forward(self, x_BLD: Tensor) -> Tensor:
        # the logarithm of a root; the logarithm of a sigmoid would be -inf where it underflows
        return _heads(F.logsigmoid(self.up(self.down(x_BLD))) / self.temperature, self.n_heads)


class TiedDecay(Decay, kind="tied"):
    r"""Forget gate $f = \gamma + (1 - \gamma)\,\sigma(W x)$ per channel, keys $1 - f$ (Qin et al. 2024, HGRN2).

    `floor` is the lower bound $\gamma$ of the forget gate, larger in higher layers. The paper learns it; here it has
    the value that its parametrisation begins with.
    """

    by_channel = True
    makes_keys = True

    floor: Rate = 0.0

    def build(self, dims: Dims, n_heads: int, d_key: int) -> Module:
        return _TiedDecay(self, dims, n_heads, d_key)

    def cost(self, dims: Dims, n_heads: int, d_key: int) -> Cost:
        width = n_heads * d_key
        return linear(dims.d_model, width, False, kept=False) + Cost(flops=5.0 * width, kept=2 * width)


class _TiedDecay(Module):
    def __init__(self, spec: TiedDecay, dims: Dims, n_heads: int, d_key: int) -> None:
        super().__init__()
        self.n_heads, self.floor = n_heads, spec.floor
        self.forget = Linear(dims.d_model, n_heads * d_key, bias=False)

    def forward(self, x_BLD: Tensor) -> Tensor:
        f_BLK = self.floor + (1 - self.floor) * self.forget(x_BLD).sigmoid()
        # without a floor a sigmoid may underflow, below about -88 in single precision, and differences of two
        # logarithms of 0 are no numbers
        return _heads(f_BLK.clamp(min=torch.finfo(f_BLK.dtype).tiny).log(), self.n_heads)


class StepDecay(Decay, kind="step"):
    r"""Step decay $\exp(-A\,\mathrm{softplus}(W x + b))$ per head (Dao and Gu 2024; Yang et al. 2024a, Gated DeltaNet).

    A is drawn from [1, `largest`], and the softplus of b from [`least`, `most`], evenly on a logarithmic scale.
    """

    largest: PositiveFloat = 16.0
    least: PositiveFloat = 0.001
    most: PositiveFloat = 0.1

    def __post_init__(self) -> None:
        check_steps(self.least, self.most, self.largest)

    def build(self, dims: Dims, n_heads: int, d_key: int) -> Module:
        return _StepDecay(self, Linear(dims.d_model, n_heads, bias=False), n_heads, 1)

    def cost(self, dims: Dims, n_heads: int, d_key: int) -> Cost:
        return linear(dims.d_model, n_heads, False, kept=False) + Cost(2 * n_heads, 4.0 * n_heads, 3 * n_heads)


class ChannelStepDecay(StepDecay, kind="channel-step"):
    r"""Step decay $\exp(-A_h\,\mathrm{softplus}(W_2 W_1 x + b))$ per channel (Kimi Team 2025, Kimi Linear, section 3).

    `rank` is the width between the maps; 0 means that of a head.
    """

    by_channel = True

    rank: NonNegativeInt = 0

    def build(self, dims: Dims, n_heads: int, d_key: int) -> Module:
        rank = self.rank or d_key
        maps = nn.Sequential(
            Linear(dims.d_model, rank, bias=False),
            Linear(rank, n_heads * d_key, bias=False),
        )
        return _StepDecay(self, maps, n_heads, d_key)

    def cost(self, dims: Dims, n_heads: int, d_key: int) -> Cost:
        width, rank = n_heads * d_key, self.rank or d_key
        maps = linear(dims.d_model, rank, False, kept=False) + linear(rank, width, False)
        return maps + Cost(n_heads + width, 4.0 * width, 3 * width)


class _StepDecay(Module):
    def __init__(self, spec: StepDecay, steps: nn.Module, n_heads: int, width: int) -> None:
        super().__init__()
        self.spec, self.n_heads, self.steps = spec, n_heads, steps
        self.log_rate_H = nn.Parameter(torch.zeros(n_heads))
        self.bias = nn.Parameter(torch.zeros(n_heads * width))

    def draw(self) -> None:
        """Draw rates and steps."""
        with torch.no_grad():
            self.log_rate_H.uniform_(1.0, self.spec.largest).log_()
        draw_steps(self.bias, self.spec.least, self.spec.most)

    def forward(self, x_BLD: Tensor) -> Tensor:
        step = _heads(F.softplus(self.steps(x_BLD) + self.bias), self.n_heads)
        return -self.log_rate_H.exp()[:, None, None] * step


def check_steps(least: float, most: float, largest: float = 1.0) -> None:
    """Refuse ranges that nothing can be drawn from."""
    if least > most:
        raise SpecError(f"least: steps are drawn from [least, most], got [{least:g}, {most:g}]")
    if largest < 1:
        raise SpecError(f"largest: rates are drawn from [1, largest], got {largest:g}")


def draw_steps(bias: Tensor, least: float, most: float) -> None:
    """Draw biases whose softplus lies between two numbers, evenly on a logarithmic scale (Gu and Dao 2023, 3.6)."""
    with torch.no_grad():
        step = bias.uniform_(math.log(least), math.log(most)).exp_()
        # the inverse of softplus, log(e^s - 1), without overflow for large s or cancellation for small s
        bias.copy_(step + torch.log(-torch.expm1(-step)))


def _heads(x_BLD: Tensor, n_heads: int) -> Tensor:
    return x_BLD.unflatten(-1, (n_heads, -1)).transpose(1, 2)
