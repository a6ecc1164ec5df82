"""Differential attention, one head and pair at a time, from the definition."""

import torch
from torch import Tensor


def differential_attention(q: Tensor, k: Tensor, v: Tensor, factors: Tensor, start: float) -> Tensor:
    """Return (1 - l0) norm((A1 - l A2) V) of one sequence, causal (Ye et al. 2024, equations 1 to 3).

    q [H, L, K], k and v [G, L, K] with an even number of heads: softmax h is paired with softmax h + H / 2, and the
    values of a pair are two heads side by side. `factors` [4, K]: a1, b1, a2, b2; `start`: l0. [H / 2, L, 2 K].
    """
    n_pairs, length, eps = len(q) // 2, q.shape[1], 1e-5
    share, half = len(q) // len(k), len(k) // 2
    factor = torch.exp((factors[0] * factors[1]).sum()) - torch.exp((factors[2] * factors[3]).sum()) + start
    heads = []
    for h in range(n_pairs):
        rows = []
        for i in range(length):
            ahead, behind = (_weights(q[n, i], k[n // share, : i + 1]) for n in (h, h + n_pairs))
            total = torch.zeros(2 * q.shape[2], dtype=q.dtype)
            g = h // share
            for j in range(i + 1):
                value = torch.cat([v[g, j], v[g + half, j]])
                total = total + (ahead[j] - factor * behind[j]) * value
            mean = sum((y * y for y in total), torch.zeros_like(total[0])) / len(total)
            rows.append((1 - start) * total / (mean + eps).sqrt())
        heads.append(torch.stack(rows))
    return torch.stack(heads)


def _weights(q: Tensor, keys: Tensor) -> Tensor:
    shares = [torch.exp((q * key).sum() / len(q) ** 0.5) for key in keys]
    total = sum(shares, torch.zeros_like(shares[0]))
    return torch.stack([share / total for share in shares])
