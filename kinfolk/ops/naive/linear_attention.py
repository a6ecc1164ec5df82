"""Kernel attention one pair at a time, straight from the definition."""

from collections.abc import Callable

import torch
from torch import Tensor

Phi = Callable[[Tensor], Tensor]


def kernel_attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    phi: Phi,
    direction: str = "both",
    keep: Tensor | None = None,
    group: Tensor | None = None,
) -> Tensor:
    """o_i = sum over j in S_i of w_ij v_j / sum of w_ij with w_ij = phi(q_i) . phi(k_j); 0 when S_i is empty.

    `phi` takes one vector. S_i holds the real keys of i's group, none later than i for the direction "past".
    """

    def sees(b: int, i: int, j: int) -> bool:
        if direction == "past" and j > i:
            return False
        return (keep is None or bool(keep[b, j])) and (group is None or bool(group[b, i] == group[b, j]))

    def row(b: int, h: int, i: int) -> Tensor:
        seen = [j for j in range(k.shape[2]) if sees(b, i, j)]
        if not seen:
            return torch.zeros_like(v[b, h, 0])
        weights = [(phi(q[b, h, i]) * phi(k[b, h, j])).sum() for j in seen]
        total = sum((w * v[b, h, j] for w, j in zip(weights, seen, strict=True)), torch.zeros_like(v[b, h, 0]))
        return total / torch.stack(weights).sum()

    n_examples, n_heads, length, _ = q.shape
    return torch.stack(
        [
            torch.stack([torch.stack([row(b, h, i) for i in range(length)]) for h in range(n_heads)])
            for b in range(n_examples)
        ]
    )
