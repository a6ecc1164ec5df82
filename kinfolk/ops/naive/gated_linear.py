"""Gated linear unit and linear layer, one number at a time."""

import torch
from torch import Tensor

from kinfolk.ops.naive.activated_linear import FORMULAS


def gate(first: Tensor, second: Tensor, activation: str) -> Tensor:
    """phi(u_f) u_(F+f); with "clamped-swish" the other factor is 1 + u_(F+f), between -6 and 8."""
    if activation == "clamped-swish":
        second = 1 + torch.where(second > 7, 7 + 0 * second, torch.where(second < -7, 0 * second - 7, second))
    return FORMULAS[activation](first) * second


def gated_linear(u: Tensor, w: Tensor, b: Tensor | None, activation: str) -> Tensor:
    """y_d = sum over f of w_df phi(u_f) u_(F+f), plus b_d."""
    rows, width = [], w.shape[1]
    for row in u.flatten(0, -2):
        gated = [gate(row[f], row[width + f], activation) for f in range(width)]
        out = [sum((w[d, f] * gated[f] for f in range(width)), torch.zeros_like(w[0, 0])) for d in range(len(w))]
        rows.append(torch.stack(out) if b is None else torch.stack(out) + b)
    return torch.stack(rows).unflatten(0, u.shape[:-1])
