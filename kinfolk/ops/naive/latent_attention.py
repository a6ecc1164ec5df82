"""Multi-head latent attention, one position, head and pair at a time, from the definition."""

from collections.abc import Mapping

import torch
from torch import Tensor

from kinfolk.ops.naive.relative_position import rotate
from kinfolk.ops.naive.rms_norm import rms_norm

EPS = 1e-6
"""Of the norms of latents."""


def latent_attention(x: Tensor, weights: Mapping[str, Tensor], n_heads: int, d_rope: int) -> Tensor:
    """Return the output for one sequence x [L, D], causal, rotary positions in the interleaved layout.

    DeepSeek-AI 2024 (DeepSeek-V2), equations 9 to 19. `weights`: q_down [Rq, D], q_gain [Rq], q_up [H (Kn + Kr), Rq],
    kv_down [R + Kr, D], kv_gain [R], kv_up [H (Kn + Kv), R], out [D, H Kv]; without q_down, queries are maps of x.
    """
    queries, keys, values = [], [], []
    rank = len(weights["kv_gain"])
    for t in range(len(x)):
        c_q = x[t]
        if "q_down" in weights:
            c_q = rms_norm((weights["q_down"] @ x[t])[None], weights["q_gain"], len(weights["q_gain"]), EPS)[0]
        narrow = weights["kv_down"] @ x[t]
        latent, shared = rms_norm(narrow[None, :rank], weights["kv_gain"], rank, EPS)[0], narrow[rank:]
        q, up = (weights["q_up"] @ c_q).view(n_heads, -1), (weights["kv_up"] @ latent).view(n_heads, -1)
        d_nope = q.shape[1] - d_rope
        queries.append([torch.cat([q[h, :d_nope], _turned(q[h, d_nope:], t)]) for h in range(n_heads)])
        keys.append([torch.cat([up[h, :d_nope], _turned(shared, t)]) for h in range(n_heads)])
        values.append([up[h, d_nope:] for h in range(n_heads)])
    rows = []
    for t in range(len(x)):
        heads = []
        for h in range(n_heads):
            q = queries[t][h]
            shares = [torch.exp((q * keys[j][h]).sum() / len(q) ** 0.5) for j in range(t + 1)]
            total = sum(shares, torch.zeros_like(shares[0]))
            zero = torch.zeros_like(values[0][h])
            heads.append(sum((share / total * values[j][h] for j, share in enumerate(shares)), zero))
        rows.append(weights["out"] @ torch.cat(heads))
    return torch.stack(rows)


def _turned(x: Tensor, position: int) -> Tensor:
    return rotate(x, position, 10000.0, "interleaved")
