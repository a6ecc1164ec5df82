"""Clipped PPO objective, case by case and action by action."""

import math

import torch
from torch import Tensor


def surrogate(log_probs_BL: Tensor, acted_BL: Tensor, advantages_BL: Tensor, clip: float) -> Tensor:
    """A good action counts up to 1 + clip, a bad one down to 1 - clip, and beyond that not at all."""
    rows = []
    for now, then, good in zip(log_probs_BL, acted_BL, advantages_BL, strict=True):
        row = []
        for new, old, advantage in zip(now, then, good, strict=True):
            ratio = torch.exp(new) / torch.exp(old)
            if advantage >= 0 and ratio > 1 + clip:
                ratio = 0 * ratio + 1 + clip
            elif advantage < 0 and ratio < 1 - clip:
                ratio = 0 * ratio + 1 - clip
            row.append(-ratio * advantage)
        rows.append(torch.stack(row))
    return torch.stack(rows)


def entropy(logits_BLV: Tensor) -> Tensor:
    """The mean surprise, over exponentials as they are."""
    out = logits_BLV.new_zeros(logits_BLV.shape[:2])
    for b, row in enumerate(logits_BLV.tolist()):
        for t, logits in enumerate(row):
            total = sum(math.exp(x) for x in logits)
            out[b, t] = sum(-math.exp(x) / total * math.log(math.exp(x) / total) for x in logits)
    return out


def gaussian(actions_BLV: Tensor, means_BLV: Tensor, log_stds_V: Tensor) -> Tensor:
    """The logarithm of a product of bell curves."""
    rows = []
    for acts, means in zip(actions_BLV.flatten(0, 1), means_BLV.flatten(0, 1), strict=True):
        density = torch.ones((), dtype=means.dtype)
        for action, mean, log_std in zip(acts, means, log_stds_V, strict=True):
            std = torch.exp(log_std)
            density = density * torch.exp(-((action - mean) ** 2) / (2 * std**2)) / (std * math.sqrt(2 * math.pi))
        rows.append(torch.log(density))
    return torch.stack(rows).view(actions_BLV.shape[:2])
