"""Mixture of experts: every token, every choice, one after the other."""

import torch
from torch import Tensor

from kinfolk.ops.experts import ExpertWeights
from kinfolk.ops.naive import gated_linear
from kinfolk.ops.naive.activated_linear import FORMULAS


def mix_experts(x: Tensor, expert: Tensor, gate: Tensor, weights: ExpertWeights, activation: str) -> Tensor:
    """Sum over a token's choices of gate times the expert's network; no expert adds nothing."""
    rows = []
    for t in range(len(x)):
        total = torch.zeros_like(x[t])
        for k in range(expert.shape[1]):
            e = int(expert[t, k])
            if e >= len(weights.widen_EFD):
                continue
            inner = weights.widen_EFD[e] @ x[t]
            if weights.widen_EF is not None:
                inner = inner + weights.widen_EF[e]
            half = len(inner) // 2
            gated = weights.gated
            inside = gated_linear.gate(inner[:half], inner[half:], activation) if gated else FORMULAS[activation](inner)
            y = weights.narrow_EDF[e] @ inside
            if weights.narrow_ED is not None:
                y = y + weights.narrow_ED[e]
            total = total + gate[t, k] * y
        rows.append(total)
    return torch.stack(rows)
