"""Angular LSH, one token and one direction at a time."""

import torch
from torch import Tensor


def hash_buckets(q: Tensor, rotations: Tensor, factors: tuple[int, ...]) -> Tensor:
    """h(x) = argmax over [xR ; -xR], one rotation per factor; the factors are the digits of the bucket's number."""
    n_batch, n_heads, length, _ = q.shape
    buckets = torch.zeros(n_batch, n_heads, rotations.shape[2], length, dtype=torch.long)
    for b, h, r, i in torch.cartesian_prod(*(torch.arange(n) for n in buckets.shape)).tolist():
        turned = [(q[b, h, i] * rotations[h, :, r, j]).sum() for j in range(rotations.shape[3])]
        first, unit, number = 0, 1, 0
        for factor in factors:
            mine = turned[first : first + factor // 2]
            both = [*mine, *(-x for x in mine)]
            number += unit * (max(range(len(both)), key=both.__getitem__) if both else 0)
            first, unit = first + factor // 2, unit * factor
        buckets[b, h, r, i] = number
    return buckets
