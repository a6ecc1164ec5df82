"""Adaptive attention span: weights fall linearly to zero at the end of a learned span (Sukhbaatar et al. 2019)."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kinfolk.ops.relative_position import distances


def fade(q_pos: Tensor, k_pos: Tensor, reach: Tensor, ramp: int) -> Tensor:
    r"""Return $\log m_z(|i - j|)$ with $m_z(x) = \mathrm{clamp}((R + z - x) / R,\ 0,\ 1)$.

    Added to the scores before the softmax it makes the weights $m\,e^s / \sum m\,e^s$ (Sukhbaatar et al. 2019), without
    a quotient of small numbers. Positions are those of a tile, [B or 1, ..., q] and [B or 1, ..., k]; `reach` $z$
    broadcasts to [B, H, ..., q, 1]. Where the ramp has ended the result is -inf. The gradient goes to the reach,
    through keys on the ramp only. Saves positions and reach, nothing of the size of the result. Reference:
    `kinfolk.ops.naive.adaptive_span.fade`.
    """
    out: Tensor = _Fade.apply(q_pos, k_pos, reach, ramp)
    return out


class _Fade(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_pos: Tensor, k_pos: Tensor, reach: Tensor, ramp: int) -> Tensor:
        ctx.save_for_backward(q_pos, k_pos, reach)
        ctx.ramp = ramp
        # beyond the ramp log 0 = -inf, which a softmax makes a weight of exactly 0
        return (_left(q_pos, k_pos, reach, ramp) / ramp).clamp_(0, 1).log_()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Any, ...]:
        q_pos, k_pos, reach = ctx.saved_tensors
        left = _left(q_pos, k_pos, reach, ctx.ramp)
        # filled, not multiplied by 0: where the ramp has ended, the quotient may be 0 / 0
        d_reach = (d_out / left).masked_fill_((left <= 0) | (left >= ctx.ramp), 0.0)
        return None, None, d_reach.sum_to_size(reach.shape), None


def _left(q_pos: Tensor, k_pos: Tensor, reach: Tensor, ramp: int) -> Tensor:
    """Return the distance of a key to the end of the ramp."""
    return reach + (ramp - distances(q_pos, k_pos).abs())
