"""Random feature maps, one number at a time, and orthogonal rows by Gram-Schmidt."""

import math

import torch
from torch import Tensor


def exponential(x: Tensor, w: Tensor) -> Tensor:
    """phi_r = exp(w_r . x' - |x'|^2 / 2) with x' = x / K^(1/4), of one vector."""
    short = x / len(x) ** 0.25
    return torch.stack([((row * short).sum() - (short * short).sum() / 2).exp() for row in w])


def rectified(x: Tensor, w: Tensor) -> Tensor:
    """phi_r = max(0, w_r . x) / sqrt(R) + 0.001, of one vector."""
    return torch.stack([(row * x).sum().clamp(min=0) / math.sqrt(len(w)) + 1e-3 for row in w])


def elu(x: Tensor) -> Tensor:
    """phi_k = x_k + 1 above zero and exp(x_k) below, of one vector."""
    return torch.stack([number + 1 if number > 0 else number.exp() for number in x])


def haar(normal: Tensor) -> Tensor:
    """Make the columns of a matrix orthonormal in their order, and return them as rows."""
    rows: list[Tensor] = []
    for column in normal.mT:
        rest = column
        for row in rows:
            rest = rest - (row * column).sum() * row
        rows.append(rest / (rest * rest).sum().sqrt())
    return torch.stack(rows)
