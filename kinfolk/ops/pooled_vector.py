"""Sequence pooling: first state, last real state, mean or maximum of the real ones."""

from typing import Literal, get_args

import torch
from torch import Tensor

from kinfolk.core.shapes import shaped

Pool = Literal["first", "last", "mean", "max"]
POOLS = get_args(Pool)


@shaped(out="BD")
def readout(x_BLD: Tensor, keep_BL: Tensor | None, pool: str) -> Tensor:
    r"""Pool the states of each sequence over its real positions; of one without any, the mean and the maximum are 0.

    "mean": $\sum_i k_i x_i / \max(1, \sum_i k_i)$. Cost: one operation per number, or none. Reference:
    `kinfolk.ops.naive.pooled_vector`.
    """
    if pool == "first":
        return x_BLD[:, 0]
    if keep_BL is None:
        return {"last": lambda: x_BLD[:, -1], "mean": lambda: x_BLD.mean(1), "max": lambda: x_BLD.amax(1)}[pool]()
    if pool == "last":
        places_L = torch.arange(x_BLD.shape[1], device=x_BLD.device)
        # 0 if nothing is real: then the first state
        last_B = (places_L * keep_BL).amax(1)
        return x_BLD[torch.arange(x_BLD.shape[0], device=x_BLD.device), last_B]
    if pool == "mean":
        # values at padding may be anything, and 0 * nan is nan
        sums_BD = x_BLD.masked_fill(~keep_BL[..., None], 0).sum(1)
        return sums_BD / keep_BL.sum(1, keepdim=True).clamp(min=1).to(x_BLD.dtype)
    highest_BD = x_BLD.masked_fill(~keep_BL[..., None], float("-inf")).amax(1)
    return highest_BD.masked_fill(~keep_BL.any(1, keepdim=True), 0)
