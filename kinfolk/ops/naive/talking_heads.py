"""Talking-heads attention, one pair at a time."""

import torch
from torch import Tensor

from kinfolk.ops.patterns.leaves import Pattern


def mix_heads(map_HH: Tensor, x: Tensor) -> Tensor:
    """y[b, h] = sum over g of map[h, g] x[b, g]."""
    return torch.stack([_mixed(map_HH, one) for one in x])


def attend(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, before_HH: Tensor, after_HH: Tensor) -> Tensor:
    """Products of all heads, mixed; a softmax for each head; weights of all heads, mixed; values. All [B, H, L, K]."""
    out = torch.zeros_like(v)
    for b in range(len(q)):
        for i in range(q.shape[2]):
            seen = [j for j in range(k.shape[2]) if bool(pattern.allows(torch.tensor(i), torch.tensor(j)))]
            products = [[(q[b, h, i] * k[b, h, j]).sum() / q.shape[-1] ** 0.5 for j in seen] for h in range(q.shape[1])]
            scores = _mixed(before_HH, torch.stack([torch.stack(one) for one in products]))
            weights = _mixed(after_HH, torch.stack([one.exp() / one.exp().sum() for one in scores]))
            for h in range(q.shape[1]):
                for place, j in enumerate(seen):
                    out[b, h, i] = out[b, h, i] + weights[h, place] * v[b, h, j]
    return out


def _mixed(map_HH: Tensor, x: Tensor) -> Tensor:
    rows = []
    for h in range(len(map_HH)):
        total = torch.zeros_like(x[0])
        for g in range(len(x)):
            total = total + map_HH[h, g] * x[g]
        rows.append(total)
    return torch.stack(rows)
