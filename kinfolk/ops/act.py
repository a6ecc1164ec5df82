"""One step of adaptive computation time (ACT, Graves 2016)."""

from typing import NamedTuple

import torch
from torch import Tensor


class Halt(NamedTuple):
    """Weight of a step, the sum of halting probabilities so far, and whether the step is the last."""

    weight: Tensor
    total: Tensor
    halts: Tensor


def halt(chance: Tensor, total: Tensor, eps: float, last: bool) -> Halt:
    r"""Weigh a step whose halting chance is $h$, after steps whose chances add up to `total`.

    $$N = \min\{n : \sum_{m \le n} h_m \ge 1 - \epsilon\}, \qquad
      w_n = h_n \ (n < N), \qquad w_N = R = 1 - \sum_{m < N} h_m$$

    (Graves 2016, equations 6 to 8). The `last` step that is allowed takes the remainder in any case, so that weights
    always add up to one. N is piecewise constant and has no gradient; R has. Where one has halted before, what is
    returned means nothing. Reference: `kinfolk.ops.naive.act`.
    """
    after = total + chance
    # a sigmoid is below 1, so that without eps one step could never be enough
    halts = torch.ones_like(after, dtype=torch.bool) if last else after.detach() >= 1 - eps
    # the remainder has a gradient of -1 for every earlier chance, and none for the chance that it replaces
    return Halt(torch.where(halts, 1 - total, chance), after, halts)
