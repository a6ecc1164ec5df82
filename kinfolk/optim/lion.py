"""Lion: steps of one length in every weight, by the sign of a momentum (Chen et al. 2023)."""

from typing import Any

import torch

from kinfolk.core.bounds import NonNegativeFloat, PositiveFloat, Rate
from kinfolk.optim.eager import SpecOptimiser, eager
from kinfolk.optim.optimiser import Optimiser


class Lion(Optimiser, kind="lion"):
    r"""$w \leftarrow w - \eta\,(\mathrm{sign}(\beta_1 m + (1 - \beta_1) g) + \lambda w)$ (algorithm 2).

    Then $m \leftarrow \beta_2 m + (1 - \beta_2) g$. The paper takes rates three to ten times smaller than AdamW's, and
    a weight decay larger by as much.
    """

    lr: PositiveFloat = 1e-4
    betas: tuple[Rate, Rate] = (0.9, 0.99)
    weight_decay: NonNegativeFloat = 0.1

    def make(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return _Lion(groups, self)


@eager
class _Lion(SpecOptimiser):
    def update(self, group: dict[str, Any]) -> None:
        params = [p for p in group["params"] if p.grad is not None]
        if not params:
            return
        for p in params:
            if not self.state[p]:
                self.state[p]["exp_avg"] = torch.zeros_like(p)
        (beta, beta_mean), grads = self.spec.betas, [p.grad for p in params]
        means = [self.state[p]["exp_avg"] for p in params]
        moves = torch._foreach_lerp(means, grads, 1 - beta)
        torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(params, torch._foreach_sign(moves), alpha=-group["lr"])
        torch._foreach_lerp_(means, grads, 1 - beta_mean)
