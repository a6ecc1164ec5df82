"""Product-key memory (Lample et al. 2019) of n x n values: every key is scored."""

import torch
from torch import Tensor


def product_key_memory(q: Tensor, left: Tensor, right: Tensor, values: Tensor, n_best: int) -> tuple[Tensor, Tensor]:
    """Score all pairs, take the best, softmax, add up; also return the places, best first."""
    n, half = left.shape[1], q.shape[-1] // 2
    rows, places = [], []
    for t in range(len(q)):
        total = torch.zeros_like(values[0])
        for h in range(q.shape[1]):
            scores = [
                (q[t, h, :half] * left[h, i]).sum() + (q[t, h, half:] * right[h, j]).sum()
                for i in range(n)
                for j in range(n)
            ]
            best = sorted(range(n * n), key=lambda v: -scores[v].item())[:n_best]
            weights = torch.stack([scores[v] for v in best]).exp()
            weights = weights / weights.sum()
            for w, v in zip(weights, best, strict=True):
                total = total + w * values[v]
            places.append(best)
        rows.append(total)
    return torch.stack(rows), torch.tensor(places).unflatten(0, (len(q), -1))
