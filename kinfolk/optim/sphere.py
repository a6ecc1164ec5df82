"""AdamW on the unit sphere: after each step every matrix is normalised again (nGPT, Loshchilov et al. 2024)."""

from typing import Any

import torch
from torch import nn

from kinfolk.core.bounds import NonNegativeFloat, Rate
from kinfolk.core.unit_rows import normalise_matrices
from kinfolk.optim.groups import Groups
from kinfolk.optim.optimiser import AdamW


class SphereAdamW(AdamW, kind="sphere-adamw"):
    """Adam without weight decay, then `normalise_matrices` (arXiv:2410.01131, section 2.6)."""

    betas: tuple[Rate, Rate] = (0.9, 0.95)
    weight_decay: NonNegativeFloat = 0.0

    def build(self, model: nn.Module, groups: Groups | None = None) -> torch.optim.Optimizer:
        """Make the optimiser of a model."""
        made = super().build(model, groups)
        plain = type(made)

        def step(self: torch.optim.Optimizer, closure: Any = None) -> None:
            plain.step(self, closure)
            normalise_matrices(model)

        made.__class__ = type(plain.__name__, (plain,), {"step": step})
        return made
