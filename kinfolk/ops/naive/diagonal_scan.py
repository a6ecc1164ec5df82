"""Diagonal linear recurrence, position by position, from the definition."""

import torch
from torch import Tensor


def diagonal_scan(
    log_decay: Tensor, x: Tensor, state: Tensor | None = None, group: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """h = exp(g) h + x; a document begins with h = 0."""
    rows, ends = [], []
    for b in range(len(x)):
        h, row = torch.zeros_like(x[b, 0]) if state is None else state[b, 0], []
        for t in range(x.shape[1]):
            if group is not None and t and group[b, t] != group[b, t - 1]:
                h = torch.zeros_like(h)
            h = log_decay[b, t].exp() * h + x[b, t]
            row.append(h)
        rows.append(torch.stack(row))
        ends.append(h[None])
    return torch.stack(rows), torch.stack(ends)


def selective_scan(
    x: Tensor,
    step: Tensor,
    write: Tensor,
    read: Tensor,
    gate: Tensor,
    weights: tuple[Tensor, Tensor, Tensor],
    state: Tensor | None = None,
    group: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """With dt = softplus(step + bias), h[d, r] = exp(dt_d rate[d, r]) h[d, r] + dt_d x_d write_r and
    y_d = (sum over r of read_r h[d, r] + skip_d x_d) silu(gate_d)."""
    (rate, bias, skip), rows, ends = weights, [], []
    for b in range(len(x)):
        h, row = torch.zeros_like(rate) if state is None else state[b], []
        for t in range(x.shape[1]):
            if group is not None and t and group[b, t] != group[b, t - 1]:
                h = torch.zeros_like(h)
            dt = (1 + (step[b, t] + bias).exp()).log()
            h = (dt[:, None] * rate).exp() * h + torch.outer(dt * x[b, t], write[b, t])
            row.append((h @ read[b, t] + skip * x[b, t]) * gate[b, t] * gate[b, t].sigmoid())
        rows.append(torch.stack(row))
        ends.append(h)
    return torch.stack(rows), torch.stack(ends)
