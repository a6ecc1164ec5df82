"""Adaptive computation time of one input, written as in the paper."""

import torch
from torch import Tensor


def weights(chances: list[Tensor], eps: float) -> list[Tensor]:
    """Return the weights of the steps up to the one that halts; the last chance is that of the last step allowed."""
    found: list[Tensor] = []
    rest = torch.ones_like(chances[0])
    for n, chance in enumerate(chances, 1):
        if n == len(chances) or (rest - chance).item() <= eps:
            return [*found, rest]
        found.append(chance)
        rest = rest - chance
    return found
