"""nGPT's block, one position and head at a time, from the paper's equations (Loshchilov et al. 2024)."""

import torch
from torch import Tensor


def unit(x: Tensor) -> Tensor:
    """Return a vector of length 1."""
    total = torch.zeros_like(x[0])
    for value in x:
        total = total + value * value
    return x / total.sqrt()


def spherical_step(x: Tensor, y: Tensor, size: Tensor) -> Tensor:
    """Return unit(x + |size| (unit(y) - x)) of each position (equations 10 and 11); x and y [L, D]."""
    return torch.stack([unit(x[i] + size.abs() * (unit(y[i]) - x[i])) for i in range(len(x))])


def unit_attention(q: Tensor, k: Tensor, v: Tensor, gain: Tensor) -> Tensor:
    """Return causal attention of unit queries and keys with gains (equations 15 to 17): all [H, L, K], gain [H, K]."""
    heads = []
    for h in range(len(q)):
        rows = []
        for i in range(q.shape[1]):
            query = unit(q[h, i]) * gain[h]
            scores = [(query * unit(k[h, j]) * gain[h]).sum() * q.shape[2] ** 0.5 for j in range(i + 1)]
            shares = torch.stack(scores).exp()
            total = torch.zeros_like(v[h, 0])
            for j in range(i + 1):
                total = total + shares[j] / shares.sum() * v[h, j]
            rows.append(total)
        heads.append(torch.stack(rows))
    return torch.stack(heads)


def scaled_gated(x: Tensor, gate: Tensor, value: Tensor, out: Tensor, gains: Tensor) -> Tensor:
    """Return W2 (silu(sqrt(D) s_v W x) s_u V x) of each position (equations 20 to 23); gate, value [F, D]."""
    rows = []
    for i in range(len(x)):
        v = len(x[i]) ** 0.5 * gains[0] * (gate @ x[i])
        rows.append(out @ (v / (1 + torch.exp(-v)) * gains[1] * (value @ x[i])))
    return torch.stack(rows)
