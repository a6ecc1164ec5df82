"""Gated linear attention, position by position, from the definition."""

import torch
from torch import Tensor


def gated_linear_recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    state: Tensor | None = None,
    keep: Tensor | None = None,
    group: Tensor | None = None,
    bonus: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """S = diag(exp g) S + k v^T and o = q^T S; with a bonus u, o = q^T (S before the update + diag(u) k v^T).

    Padded positions change nothing, and read as if they wrote nothing; a document begins with S = 0.
    """
    n_examples, n_heads, length, width = q.shape
    outs, states = [], []
    for b in range(n_examples):
        for h in range(n_heads):
            s = torch.zeros(width, v.shape[3], dtype=v.dtype) if state is None else state[b, h]
            for t in range(length):
                if group is not None and t and group[b, t] != group[b, t - 1]:
                    s = torch.zeros_like(s)
                real = keep is None or bool(keep[b, t])
                write = torch.outer(k[b, h, t], v[b, h, t]) * real
                if bonus is not None:
                    outs.append(q[b, h, t] @ (s + bonus[h][:, None] * write))
                s = (s * log_decay[b, h, t].exp()[:, None] if real else s) + write
                if bonus is None:
                    outs.append(q[b, h, t] @ s)
            states.append(s)
    shape = n_examples, n_heads
    return torch.stack(outs).unflatten(0, (*shape, length)), torch.stack(states).unflatten(0, shape)
