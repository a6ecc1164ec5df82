"""Matrices on the unit sphere: their vectors of the model's width have length 1 (nGPT, Loshchilov et al. 2024)."""

import torch
from torch import nn


@torch.no_grad()
def normalise_matrices(model: nn.Module) -> None:
    """Divide every trainable matrix by the lengths of its vectors along the width of the model.

    arXiv:2410.01131, section 2.6, step 2. Those are rows of tables and of maps that read the stream, and columns of
    maps that end a branch.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding) and module.weight.requires_grad:
            axis = 0 if getattr(module, "ends_branch", False) else 1
            module.weight.div_(module.weight.norm(dim=axis, keepdim=True).clamp(min=1e-12))
