"""Relative position encodings, one pair at a time."""

import math

import torch
from torch import Tensor


def bucket(distance: int, n_buckets: int, farthest: int, causal: bool) -> int:
    """Return the T5 bucket of one distance (query minus key)."""
    first = 0
    if not causal:
        n_buckets //= 2
        first = n_buckets if distance < 0 else 0
    away = max(distance, 0) if causal else abs(distance)
    exact = n_buckets // 2
    if away < exact:
        return first + away
    # single precision, as in the released code: the edge of a bucket is decided by rounding
    ratio = torch.log(torch.tensor(float(away)) / exact) / math.log(farthest / exact)
    return first + min(n_buckets - 1, exact + int(ratio * (n_buckets - exact)))


def log_bucket(distance: int, n_buckets: int, farthest: int) -> int:
    """Return DeBERTa's bucket of one distance (query minus key)."""
    half, away = n_buckets // 2, abs(distance)
    if away <= half:
        return distance
    # single precision, as in the released code
    ratio = torch.log(torch.tensor(float(away)) / half) / torch.log(torch.tensor((farthest - 1) / half))
    grown = int(torch.ceil(ratio * (half - 1))) + half
    return grown if distance > 0 else -grown


def rotate(x: Tensor, pos: int, base: float, layout: str) -> Tensor:
    """Turn the channel pairs of one vector."""
    width, out = len(x), torch.zeros_like(x)
    for i in range(width // 2):
        a, b = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + width // 2)
        angle = pos * base ** (-2 * i / width)
        out[a] = x[a] * math.cos(angle) - x[b] * math.sin(angle)
        out[b] = x[a] * math.sin(angle) + x[b] * math.cos(angle)
    return out


def picked_scores(q: Tensor, table: Tensor, index: Tensor) -> Tensor:
    """q [H, L, K], table [H, R, K], index [L, M]: the product of each query with the row its pair picks."""
    n_heads, n_q, _ = q.shape
    rows = [
        [[q[h, i] @ table[h, index[i, j]] for j in range(index.shape[1])] for i in range(n_q)] for h in range(n_heads)
    ]
    return torch.stack([torch.stack([torch.stack(row) for row in head]) for head in rows])


def picked_by_keys(k: Tensor, table: Tensor, index: Tensor) -> Tensor:
    """k [H, M, K], table [H, R, K], index [L, M]: the product of each key with the row its pair picks."""
    n_q, n_k = index.shape
    rows = [[[k[h, j] @ table[h, index[i, j]] for j in range(n_k)] for i in range(n_q)] for h in range(len(k))]
    return torch.stack([torch.stack([torch.stack(row) for row in head]) for head in rows])


def picked_values(weights: Tensor, table: Tensor, index: Tensor) -> Tensor:
    """weights [H, L, M], table [R, K], index [L, M]: the weighted sum of the rows that pairs pick."""
    out = []
    for h in range(weights.shape[0]):
        rows = [
            sum(weights[h, i, j] * table[index[i, j]] for j in range(index.shape[1])) for i in range(index.shape[0])
        ]
        out.append(torch.stack(rows))  # type: ignore[arg-type]
    return torch.stack(out)


def distance_scores(q: Tensor, table: Tensor, high: int, q_pos: list[int], k_pos: list[int]) -> Tensor:
    """q [H, L, K], table [H, R, K] with distances from `high` downwards: each query with the row of its distance."""
    index = torch.tensor([[high - (i - j) for j in k_pos] for i in q_pos])
    return picked_scores(q, table, index)


def shifted(every: Tensor, n_keys: int) -> Tensor:
    """every [L, R]: row i moved to the left by L - 1 - i, and only what lies inside the row; NaN elsewhere."""
    n_q, n_rows = every.shape
    rows = []
    for i in range(n_q):
        at = [n_q - 1 - i + j for j in range(n_keys)]
        rows.append(torch.stack([every[i, t] if t < n_rows else every.new_tensor(math.nan) for t in at]))
    return torch.stack(rows)
