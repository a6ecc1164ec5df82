"""Linear layer, one number at a time."""

import torch
from torch import Tensor


def linear_map(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    """y_d = sum over f of w_df x_f, plus b_d."""
    rows = []
    for row in x.flatten(0, -2):
        out = [sum((w[d, f] * row[f] for f in range(len(row))), torch.zeros_like(w[0, 0])) for d in range(len(w))]
        rows.append(torch.stack(out) if b is None else torch.stack(out) + b)
    return torch.stack(rows).unflatten(0, x.shape[:-1])
