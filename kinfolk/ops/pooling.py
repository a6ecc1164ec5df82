"""Mean pooling over runs of positions, and upsampling (Funnel-Transformer)."""

import torch
from torch import Tensor

from kinfolk.core.shapes import shaped


@shaped(out="BMD")
def pool(x_BLD: Tensor, slot_BL: Tensor, keep_BL: Tensor | None, n: int) -> Tensor:
    r"""Take the mean of all real positions of each of `n` slots; a slot without any is 0.

    $y_m = \sum_{i: s_i = m} k_i x_i / \max(1, \sum_{i: s_i = m} k_i)$. One row of slots, expanded
    to all examples, is the fast case. Cost: one addition per number. Reference: `kinfolk.ops.naive.pooling`.
    """
    real_BLD = x_BLD if keep_BL is None else x_BLD * keep_BL[..., None]
    sums_BMD = x_BLD.new_zeros(len(x_BLD), n, x_BLD.shape[2])
    if _alike(slot_BL):
        sums_BMD = sums_BMD.index_add(1, slot_BL[0], real_BLD)
    else:
        sums_BMD = sums_BMD.scatter_add(1, slot_BL[..., None].expand_as(x_BLD), real_BLD)
    return sums_BMD / count(slot_BL, keep_BL, n).clamp(min=1)[..., None].to(x_BLD.dtype)


@shaped(out="BLD")
def unpool(x_BMD: Tensor, slot_BL: Tensor) -> Tensor:
    """Copy each slot back to its positions. Reference: `kinfolk.ops.naive.pooling`."""
    if _alike(slot_BL):
        return x_BMD[:, slot_BL[0]]
    return x_BMD.gather(1, slot_BL[..., None].expand(-1, -1, x_BMD.shape[2]))


def count(slot_BL: Tensor, keep_BL: Tensor | None, n: int) -> Tensor:
    """Return how many real positions each of `n` slots has: [B, M]."""
    ones_BL = torch.ones_like(slot_BL) if keep_BL is None else keep_BL.long()
    return ones_BL.new_zeros(len(slot_BL), n).scatter_add(1, slot_BL, ones_BL)


def _alike(slot_BL: Tensor) -> bool:
    """Whether all examples have the same slots because they are one row."""
    return len(slot_BL) == 1 or slot_BL.stride(0) == 0
