"""Adaptive computation time (ACT): halting threshold, ponder cost and halting unit (Graves 2016)."""

import math

import torch
from torch import Tensor, nn

from kinfolk.core.bounds import FiniteFloat, Inside, NonNegativeFloat
from kinfolk.core.spec import Spec
from kinfolk.layers.module import Module


class Pondering(Spec):
    """Adaptive computation time (Graves 2016, section 2).

    One halts when chances add up to 1 - `eps`. `bias` is where the logit of a chance starts, `ponder` the weight of the
    mean of steps and remainder among the losses.
    """

    eps: Inside = 0.01
    bias: FiniteFloat = 1.0
    ponder: NonNegativeFloat = 0.01

    def steps_at_first(self, most: int) -> int:
        """Return how many steps are made before anything is learnt, when every chance is that of the bias."""
        # (1 - eps) / sigmoid(bias), rounded up
        return min(most, math.ceil((1 - self.eps) * (1 + math.exp(-self.bias))))


class HaltingUnit(Module):
    """Halting unit: a sigmoid of a state, the probability to halt."""

    def __init__(self, width: int, bias: float) -> None:
        super().__init__()
        self.weight_1D, self.bias_1 = nn.Parameter(torch.zeros(1, width)), nn.Parameter(torch.full((1,), bias))
        self.start = bias

    def draw(self) -> None:
        """Begin with the same chance for every state."""
        nn.init.zeros_(self.weight_1D)
        nn.init.constant_(self.bias_1, self.start)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(nn.functional.linear(x, self.weight_1D, self.bias_1)).squeeze(-1)
