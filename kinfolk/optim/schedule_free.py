"""Schedule-free AdamW: an average of all iterates takes the place of a falling learning rate (Defazio et al. 2024)."""

from typing import Any

import torch
from torch import Tensor

from kinfolk.core.bounds import NonNegativeFloat, PositiveFloat, Rate
from kinfolk.optim.eager import SpecOptimiser, eager
from kinfolk.optim.optimiser import Optimiser


class ScheduleFree(Optimiser, kind="schedule-free"):
    r"""Gradients at $y = (1 - \beta) z + \beta x$, steps of z, and x the mean of all z (algorithm 1, AdamW form).

    $z \leftarrow z - \eta\,(g / (\sqrt{\hat v} + \epsilon) + \lambda y)$, $x \leftarrow (1 - c) x + c z$ with
    $c_t = \eta_t^2 / \sum_{i \le t} \eta_i^2$, where $\eta$ is the largest rate so far. Weights are x between steps:
    that is what is evaluated and saved. `zero_grad`, with which a step begins, moves them to y. To be used with a
    schedule that stays (`constant` with a warm-up). betas: the share of x in y, and of the mean square that is kept.
    """

    lr: PositiveFloat = 2.5e-3
    betas: tuple[Rate, Rate] = (0.9, 0.999)
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.01

    def make(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return _ScheduleFree(groups, self)


@eager
class _ScheduleFree(SpecOptimiser):
    def __init__(self, groups: list[dict[str, Any]], spec: ScheduleFree) -> None:
        super().__init__(groups, spec)
        self.means: dict[Tensor, Tensor] = {}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Begin a step: forget gradients, and move the weights to where new ones are taken."""
        with torch.no_grad():
            for p in (p for group in self.param_groups for p in group["params"]):
                p.grad = None
                if self.state[p] and p not in self.means:
                    self.means[p] = p.clone()
                    p.lerp_(self.state[p]["z"], 1 - self.spec.betas[0])

    def update(self, group: dict[str, Any]) -> None:
        """Leave the mean in the weights."""
        for p in group["params"]:
            mean = self.means.pop(p, p)
            if p.grad is not None:
                p.copy_(self._moved(p, mean, group))
            elif mean is not p:
                p.copy_(mean)

    def _moved(self, p: Tensor, mean: Tensor, group: dict[str, Any]) -> Tensor:
        state, beta = self.state[p], self.spec.betas[1]
        if not state:
            state["z"], state["exp_avg_sq"] = p.clone(), torch.zeros_like(p)
            state |= {name: torch.zeros((), dtype=torch.float64) for name in ("step", "largest", "total")}
        state["step"] += 1
        state["largest"].clamp_(min=group["lr"])
        weight = state["largest"].square()
        state["total"] += weight
        share = float(weight / state["total"]) if state["total"] else 0.0
        square = state["exp_avg_sq"].mul_(beta).addcmul_(p.grad, p.grad, value=1 - beta)
        root = (square / (1 - beta ** float(state["step"]))).sqrt_().add_(self.spec.eps)
        move = (p.grad / root).add_(p, alpha=group["weight_decay"])
        state["z"].sub_(move, alpha=group["lr"])
        return mean.lerp(state["z"], share)
