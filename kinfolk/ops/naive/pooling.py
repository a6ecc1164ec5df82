"""Mean pooling over slots and upsampling, position by position."""

import torch
from torch import Tensor


def pool(x_BLD: Tensor, slot_BL: Tensor, keep_BL: Tensor | None, n: int) -> Tensor:
    """Return the mean of the real positions of each slot."""
    rows = []
    for b in range(len(x_BLD)):
        slot_L = slot_BL[b]
        for m in range(n):
            real = [x_BLD[b, i] for i in range(x_BLD.shape[1]) if slot_L[i] == m and (keep_BL is None or keep_BL[b, i])]
            rows.append(torch.stack(real).mean(0) if real else 0 * x_BLD[b, 0])
    return torch.stack(rows).unflatten(0, (len(x_BLD), n))


def unpool(x_BMD: Tensor, slot_BL: Tensor) -> Tensor:
    """Copy each slot back to its positions."""
    rows = [torch.stack([x_BMD[b, m] for m in slot_BL[b]]) for b in range(len(x_BMD))]
    return torch.stack(rows)
