"""Additive attention scores, one pair at a time."""

import torch
from torch import Tensor


def additive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores of the queries [L, D] of one example for its keys [M, D]."""
    return torch.stack([torch.stack([(v * torch.tanh(q_i + k_j)).sum() for k_j in k]) for q_i in q])
