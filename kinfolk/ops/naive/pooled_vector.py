"""Sequence pooling (first, last, mean, max), position by position."""

import torch
from torch import Tensor


def readout(x_BLD: Tensor, keep_BL: Tensor | None, pool: str) -> Tensor:
    """Return the first state, the last real one, or the mean or the maximum of the real ones."""
    rows = []
    for b in range(len(x_BLD)):
        real = [x_BLD[b, i] for i in range(x_BLD.shape[1]) if keep_BL is None or keep_BL[b, i]]
        if pool == "first":
            rows.append(x_BLD[b, 0])
        elif not real:
            rows.append(x_BLD[b, 0] if pool == "last" else 0 * x_BLD[b, 0])
        elif pool == "last":
            rows.append(real[-1])
        elif pool == "mean":
            rows.append(torch.stack(real).mean(0))
        else:
            rows.append(torch.stack(real).amax(0))
    return torch.stack(rows)
