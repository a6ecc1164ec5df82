"""Forgetting attention, one pair at a time, from the definition."""

import torch
from torch import Tensor


def forgetting_attention(q: Tensor, k: Tensor, v: Tensor, log_gate: Tensor) -> Tensor:
    """Return softmax_j(q_i . k_j / sqrt(K) + sum of log f from j + 1 to i) v_j of one sequence, causal.

    Lin et al. 2025. q [H, L, K], k and v [G, L, K], log_gate [H, L]: [H, L, K].
    """
    share, heads = len(q) // len(k), []
    for h in range(len(q)):
        rows = []
        for i in range(q.shape[1]):
            scores = []
            for j in range(i + 1):
                decay = sum((log_gate[h, t] for t in range(j + 1, i + 1)), torch.zeros_like(log_gate[h, 0]))
                scores.append((q[h, i] * k[h // share, j]).sum() / q.shape[2] ** 0.5 + decay)
            shares = [score.exp() for score in scores]
            total = sum(shares, torch.zeros_like(shares[0]))
            zero = torch.zeros_like(v[0, 0])
            rows.append(sum((w / total * v[h // share, j] for j, w in enumerate(shares)), zero))
        heads.append(torch.stack(rows))
    return torch.stack(heads)
