"""LAMB: Adam whose steps are as long, relative to its weights, in every layer (You et al. 2020)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kinfolk.core.bounds import NonNegativeFloat, PositiveFloat
from kinfolk.optim.eager import SpecOptimiser, eager
from kinfolk.optim.optimiser import AdamW


class LAMB(AdamW, kind="lamb"):
    r"""Algorithm 2: $w \leftarrow w - \eta\, \phi(\|w\|)\, u / \|u\|$.

    $u = \hat m / (\sqrt{\hat v} + \epsilon) + \lambda w$ is the direction of AdamW.

    The trust ratio is taken over each tensor, and is 1 where a norm is 0 and for what does not decay (biases and
    gains, as in the released code). $\phi$ clips to `clip`; (0, 0) leaves the norm as it is. `bias_correction` is in
    the paper and not in the released code.
    """

    lr: PositiveFloat = 2e-3
    eps: PositiveFloat = 1e-6
    bias_correction: bool = True
    clip: tuple[NonNegativeFloat, NonNegativeFloat] = (0.0, 0.0)

    def make(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return _LAMB(groups, self)


@eager
class _LAMB(SpecOptimiser):
    """All tensors of a group move together, by PyTorch's lists of tensors."""

    def update(self, group: dict[str, Any]) -> None:
        parameters: list[Tensor] = [p for p in group["params"] if p.grad is not None]
        if not parameters:
            return
        spec, (beta_m, beta_v) = self.spec, self.spec.betas
        states = [self._state(p) for p in parameters]
        grads = [p.grad for p in parameters if p.grad is not None]
        means, squares, steps = ([s[name] for s in states] for name in ("exp_avg", "exp_avg_sq", "step"))
        torch._foreach_add_(steps, 1)
        torch._foreach_lerp_(means, grads, 1 - beta_m)
        torch._foreach_mul_(squares, beta_v)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta_v)
        roots = torch._foreach_sqrt(squares)
        if spec.bias_correction:
            # they are always as many; one is asked, so that nothing waits for the others
            count = float(steps[0])
            torch._foreach_div_(roots, (1 - beta_v**count) ** 0.5)
            moved = torch._foreach_div(means, 1 - beta_m**count)
        else:
            moved = torch._foreach_mul(means, 1.0)
        torch._foreach_add_(roots, spec.eps)
        torch._foreach_div_(moved, roots)
        if group["weight_decay"]:
            torch._foreach_add_(moved, parameters, alpha=group["weight_decay"])
        if group["decays"]:
            torch._foreach_mul_(moved, self._ratios(parameters, moved))
        torch._foreach_add_(parameters, moved, alpha=-group["lr"])

    def _ratios(self, parameters: list[Tensor], moved: Sequence[Tensor]) -> list[Tensor]:
        low, high = self.spec.clip
        lengths = torch._foreach_norm(parameters)
        if high:
            torch._foreach_clamp_min_(lengths, low)
            torch._foreach_clamp_max_(lengths, high)
        pairs = zip(lengths, torch._foreach_norm(list(moved)), strict=True)
        return [torch.where((w > 0) & (u > 0), w / u, 1.0) for w, u in pairs]

    def _state(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state
