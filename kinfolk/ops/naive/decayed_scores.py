"""Decayed query-key products, one pair at a time."""

import torch
from torch import Tensor


def decayed_scores(q: Tensor, k: Tensor, q_log: Tensor, k_log: Tensor, pair: Tensor) -> Tensor:
    """The sum over r of q_ir k_jr exp(c_ir - d_jr), or 0 where a pair is not shown."""
    rows = []
    for i in range(q.shape[-2]):
        row = []
        for j in range(k.shape[-2]):
            decay = (q_log[..., i, :] - k_log[..., j, :]).exp() if pair[i, j] else torch.zeros_like(q_log[..., i, :])
            row.append((q[..., i, :] * k[..., j, :] * decay).sum(-1))
        rows.append(torch.stack(row, -1))
    return torch.stack(rows, -2)
