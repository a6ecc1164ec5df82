"""Delta rule of linear attention, position by position, from the definition."""

import torch
from torch import Tensor


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor,
    state: Tensor | None = None,
    keep: Tensor | None = None,
    group: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """S decays, what k finds in it is replaced by v to the degree beta, and o = q^T S."""
    outs, states = [], []
    for b in range(len(q)):
        for h in range(q.shape[1]):
            s = torch.zeros(q.shape[3], v.shape[3], dtype=v.dtype) if state is None else state[b, h]
            for t in range(q.shape[2]):
                if group is not None and t and group[b, t] != group[b, t - 1]:
                    s = torch.zeros_like(s)
                if keep is None or keep[b, t]:
                    s = s * log_decay[b, h, t].exp()[:, None]
                    s = s + torch.outer(k[b, h, t], beta[b, h, t] * (v[b, h, t] - k[b, h, t] @ s))
                outs.append(q[b, h, t] @ s)
            states.append(s)
    return torch.stack(outs).unflatten(0, q.shape[:3]), torch.stack(states).unflatten(0, q.shape[:2])


def generalised_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    removed: tuple[Tensor, Tensor],
    log_decay: Tensor,
    state: Tensor | None = None,
    keep: Tensor | None = None,
    group: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """S = (diag(exp g) + b a^T) S + k v^T and o = q^T S, with `removed` = (a, b)."""
    outs, states = [], []
    for i in range(len(q)):
        for h in range(q.shape[1]):
            s = torch.zeros(q.shape[3], v.shape[3], dtype=v.dtype) if state is None else state[i, h]
            for t in range(q.shape[2]):
                if group is not None and t and group[i, t] != group[i, t - 1]:
                    s = torch.zeros_like(s)
                if keep is None or keep[i, t]:
                    a, b = (x[i, h, t] for x in removed)
                    change = torch.diag(log_decay[i, h, t].exp()) + torch.outer(b, a)
                    s = change @ s + torch.outer(k[i, h, t], v[i, h, t])
                outs.append(q[i, h, t] @ s)
            states.append(s)
    return torch.stack(outs).unflatten(0, q.shape[:3]), torch.stack(states).unflatten(0, q.shape[:2])
