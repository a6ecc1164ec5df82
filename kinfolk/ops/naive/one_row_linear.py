"""Linear layer as a sum of scaled columns, one column at a time."""

import torch
from torch import Tensor


def one_row_linear(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    """y = b + sum over i of x_i times column i of w, for every row of x."""
    rows = []
    for row in x.flatten(0, -2):
        y = torch.zeros_like(w[:, 0]) if b is None else b.clone()
        for i in range(len(row)):
            y = y + row[i] * w[:, i]
        rows.append(y)
    return torch.stack(rows).unflatten(0, x.shape[:-1])
