"""Mixture of depths, one sequence and position at a time, from the definition (Raposo et al. 2024)."""

from collections.abc import Callable

import torch
from torch import Tensor


def mixture_of_depths(
    x: Tensor, scores: Tensor, n_chosen: int | None, block: Callable[[Tensor, list[int]], Tensor]
) -> Tensor:
    """Return x_i + r_i (block(X)_i - x_i) where chosen, else x_i (equation 1): x [L, D], scores [L].

    n_chosen: positions with the largest scores; None: those with a score above 0. block: from the chosen vectors, in
    their order, and their positions to as many vectors.
    """
    sizes = scores.tolist()
    if n_chosen is None:
        chosen = [i for i in range(len(x)) if sizes[i] > 0]
    else:
        chosen = sorted(sorted(range(len(x)), key=lambda i: -sizes[i])[:n_chosen])
    rows = [x[i] for i in range(len(x))]
    if chosen:
        after = block(torch.stack([x[i] for i in chosen]), chosen)
        for n, i in enumerate(chosen):
            rows[i] = x[i] + scores[i] * (after[n] - x[i])
    return torch.stack(rows)
