"""Axis RopeScaling: rotary positions beyond the trained length, by slower rotation (linear, NTK-aware, YaRN, Llama 3).

Channel pair i of a head turns by `pos * rate_i` with rate_i = base^(-2i/K). A scaling is a map of the rates; YaRN also
lengthens queries and keys, which sharpens the softmax.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from kinfolk.core.bounds import NonNegativeFloat, PositiveFloat, PositiveInt
from kinfolk.core.errors import SpecError
from kinfolk.core.spec import Spec


class RopeScaling(Spec):
    """Axis: how rotary frequencies are scaled for longer contexts: `rates -> rates`, in float64."""

    def rates(self, rate: Tensor, base: float) -> Tensor:
        """Return the scaled rates [K/2] of a head of width K whose plain ones are given."""
        raise NotImplementedError

    @property
    def magnitude(self) -> float:
        """What rotated queries and keys are multiplied by."""
        return 1.0


class NoScaling(RopeScaling, kind="none"):
    """RoPE as trained: no scaling."""

    def rates(self, rate: Tensor, base: float) -> Tensor:
        return rate


class LinearScaling(RopeScaling, kind="linear"):
    """Position interpolation: every rate divided by `factor` (Chen et al. 2023, arXiv:2306.15595, equation 4)."""

    factor: PositiveFloat = 1.0

    def rates(self, rate: Tensor, base: float) -> Tensor:
        return rate / self.factor


class NTKScaling(RopeScaling, kind="ntk"):
    r"""NTK-aware: base times $\mathrm{factor}^{K/(K-2)}$, so the fastest pair keeps its rate and the slowest is
    divided by `factor` (bloc97 2023; Peng et al. 2024, arXiv:2309.00071, definition 1)."""

    factor: PositiveFloat = 1.0

    def rates(self, rate: Tensor, base: float) -> Tensor:
        n = len(rate)
        # (factor^(K / (K - 2)))^(-2i / K) = factor^(-i / (n - 1)) with n = K / 2
        share = torch.arange(n, dtype=rate.dtype, device=rate.device) / max(n - 1, 1)
        return rate * self.factor**-share


class Llama3Scaling(RopeScaling, kind="llama3"):
    """Llama 3.1's scaling: slow pairs divided by `factor`, fast pairs kept, a linear passage between (released code).

    A pair is slow if it turns less than `low` times within the `original` context, fast if more than `high` times.
    """

    factor: PositiveFloat = 8.0
    low: PositiveFloat = 1.0
    high: PositiveFloat = 4.0
    original: PositiveInt = 8192

    def __post_init__(self) -> None:
        if self.high <= self.low:
            raise SpecError(f"high: {self.high} must be above low, {self.low}")

    def rates(self, rate: Tensor, base: float) -> Tensor:
        # how often a pair turns within the original context
        turns = self.original * rate / (2 * math.pi)
        keep = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return keep * rate + (1 - keep) * rate / self.factor


class YarnScaling(RopeScaling, kind="yarn"):
    """YaRN (Peng et al. 2024, arXiv:2309.00071, section 3.4): as Llama 3's, the passage linear in the channel's number.

    fast, slow: turns within the `original` context above which a pair keeps its rate, and below which it is divided by
    `factor`. length: what queries and keys are multiplied by; 0: 0.1 ln(factor) + 1 (equation 22). ends: whether the
    passage begins and ends at whole channels, as in the released code, or where the equation says (gpt-oss).
    """

    factor: PositiveFloat = 4.0
    original: PositiveInt = 4096
    fast: PositiveFloat = 32.0
    slow: PositiveFloat = 1.0
    length: NonNegativeFloat = 0.0
    ends: Literal["whole", "exact"] = "whole"

    def rates(self, rate: Tensor, base: float) -> Tensor:
        n = len(rate)

        def channel(turns: float) -> float:
            # the i of base^(-i / n) original / (2 pi) = turns
            return n * math.log(self.original / (turns * 2 * math.pi)) / math.log(base)

        low, high = channel(self.fast), channel(self.slow)
        if self.ends == "whole":
            low, high = math.floor(low), math.ceil(high)
        # 2n - 1 as in the released code: the last channel of a head, not its last pair
        low, high = max(low, 0), min(high, 2 * n - 1)
        number = torch.arange(n, dtype=rate.dtype, device=rate.device)
        # where both ends of the ramp fall on one channel it becomes a step
        interpolated = ((number - low) / max(high - low, 1e-3)).clamp(0, 1)
        return interpolated * rate / self.factor + (1 - interpolated) * rate

    @property
    def magnitude(self) -> float:
        return self.length or (0.1 * math.log(self.factor) + 1 if self.factor > 1 else 1.0)
