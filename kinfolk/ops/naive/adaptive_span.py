"""Adaptive attention span, one pair at a time."""

import math

import torch
from torch import Tensor

from kinfolk.ops.patterns.leaves import Pattern


def mask(distance: int, reach: Tensor, ramp: int) -> Tensor:
    """m = clamp((R + z - x) / R, 0, 1)."""
    share = (ramp + reach - distance) / ramp
    # multiples of the share, so that the reach has a gradient of 0 there, and not none
    return share * 0 if share <= 0 else share * 0 + 1 if share >= 1 else share


def fade(q_pos: Tensor, k_pos: Tensor, reach: Tensor, ramp: int) -> Tensor:
    """Return log m of every pair of positions [q] and [k], for a reach [H]."""
    out = []
    for z in reach:
        for i in q_pos.tolist():
            shares = [mask(abs(i - j), z, ramp) for j in k_pos.tolist()]
            out.append(torch.stack([m.log() if m > 0 else torch.full_like(z, -math.inf) for m in shares]))
    return torch.stack(out).unflatten(0, (len(reach), len(q_pos)))


def attend(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, reach_BHL: Tensor, ramp: int) -> Tensor:
    """Multiply the softmax over all that the pattern allows by m and make it sum to 1 again. All else [B, H, L, K]."""
    out = torch.zeros_like(v)
    for b in range(len(q)):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                seen = [j for j in range(k.shape[2]) if bool(pattern.allows(torch.tensor(i), torch.tensor(j)))]
                weights = torch.stack([(q[b, h, i] * k[b, h, j]).sum() / q.shape[-1] ** 0.5 for j in seen]).softmax(0)
                kept = torch.stack([mask(abs(i - j), reach_BHL[b, h, i], ramp) for j in seen]) * weights
                for place, j in enumerate(seen):
                    out[b, h, i] = out[b, h, i] + kept[place] / kept.sum() * v[b, h, j]
    return out
