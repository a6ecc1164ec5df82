"""A gate and a linear map, one number at a time."""

import torch
from torch import Tensor

from kinfolk.ops.naive.activated_linear import FORMULAS


def gated_linear(u: Tensor, w: Tensor, b: Tensor | None, activation: str) -> Tensor:
    """y_d = sum over f of w_df phi(u_f) u_(F+f), plus b_d."""
    rows, width = [], w.shape[1]
    for row in u.flatten(0, -2):
        gated = [FORMULAS[activation](row[f]) * row[width + f] for f in range(width)]
        out = [sum((w[d, f] * gated[f] for f in range(width)), torch.zeros_like(w[0, 0])) for d in range(len(w))]
        rows.append(torch.stack(out) if b is None else torch.stack(out) + b)
    return torch.stack(rows).unflatten(0, u.shape[:-1])
