"""Generalised advantage estimation (Schulman et al. 2016)."""

import torch
from torch import Tensor

from kinfolk.core.shapes import shaped


@shaped(out="BL")
def advantages(
    rewards_BL: Tensor, values_BL: Tensor, last_B: Tensor, ends_BL: Tensor, gamma: float, decay: float
) -> Tensor:
    r"""Return $A_t = \delta_t + \gamma\lambda (1 - e_t) A_{t+1}$ (Schulman et al. 2016, equation 16).

    $\delta_t = r_t + \gamma (1 - e_t) V_{t+1} - V_t$ is what a step brought beyond expectation; `last` is the value of
    what comes after the last step, `ends` is true where an episode ends, and `decay` is $\lambda$: 0 trusts the
    values, 1 the rewards. Cost: a few operations per step. Reference: `kinfolk.ops.naive.gae`.
    """
    goes_on_BL = (~ends_BL).to(values_BL.dtype)
    next_BL = torch.cat([values_BL[:, 1:], last_B[:, None]], 1)
    # nothing comes after an end: the next value belongs to another episode
    delta_BL = rewards_BL + gamma * goes_on_BL * next_BL - values_BL
    found_BL, running_B = torch.empty_like(delta_BL), torch.zeros_like(last_B)
    for t in reversed(range(delta_BL.shape[1])):
        running_B = delta_BL[:, t] + gamma * decay * goes_on_BL[:, t] * running_B
        found_BL[:, t] = running_B
    return found_BL
