"""Generalised advantage estimation: the sum over later steps of the same episode, as it is defined."""

import torch
from torch import Tensor


def advantages(
    rewards_BL: Tensor, values_BL: Tensor, last_B: Tensor, ends_BL: Tensor, gamma: float, decay: float
) -> Tensor:
    r"""$A_t = \sum_k (\gamma\lambda)^k \delta_{t+k}$, up to the end of the episode."""
    n_rows, n = rewards_BL.shape
    out = torch.zeros_like(values_BL)
    for b in range(n_rows):
        for t in range(n):
            total = 0.0
            for k in range(t, n):
                after = last_B[b].item() if k + 1 == n else values_BL[b, k + 1].item()
                over = bool(ends_BL[b, k])
                delta = rewards_BL[b, k].item() + (0.0 if over else gamma * after) - values_BL[b, k].item()
                total += (gamma * decay) ** (k - t) * delta
                if over:
                    break
            out[b, t] = total
    return out
