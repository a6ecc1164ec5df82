"""Discretised mixture of logistics, value by value, from the definition."""

import math

import torch
from torch import Tensor


def mixture(scores_LR: Tensor, value_L: Tensor, highest: int) -> Tensor:
    """Return the log-probability of each value: the mass between the middles to its neighbours."""
    n, found = scores_LR.shape[1] // 3, []
    for scores_R, value in zip(scores_LR, value_L.tolist(), strict=True):
        weights = scores_R[:n].exp() / scores_R[:n].exp().sum()
        total = scores_R.new_zeros(())
        for k in range(n):
            mean, scale = scores_R[n + k], max(scores_R[2 * n + k], scores_R.new_tensor(-7.0)).exp()
            low = -math.inf if value == 0 else 2 * value / highest - 1 - 1 / highest
            high = math.inf if value == highest else 2 * value / highest - 1 + 1 / highest
            total = total + weights[k] * _between(low, high, mean, scale)
        found.append(total.log())
    return torch.stack(found)


def _between(low: float, high: float, mean: Tensor, scale: Tensor) -> Tensor:
    """Return the probability of a range; above the mean as a difference of what is left above, which is small there."""
    if low > float(mean.detach()):
        return _below(-low, -mean, scale) - _below(-high, -mean, scale)
    return _below(high, mean, scale) - _below(low, mean, scale)


def _below(x: float, mean: Tensor, scale: Tensor) -> Tensor:
    """Return the probability of less than x."""
    return torch.sigmoid((x - mean) / scale) if math.isfinite(x) else mean.new_tensor(float(x > 0))
