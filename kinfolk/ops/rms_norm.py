"""RMSNorm that stores its input and one number for each position (Zhang and Sennrich 2019)."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kinfolk.core.shapes import shaped


@shaped(out="BLD")
def rms_norm(x_BLD: Tensor, gain_D: Tensor, n_seen: int, eps: float) -> Tensor:
    r"""Return $g\,x\,/\sqrt{\frac{1}{n}\sum_{d<n} x_d^2 + \epsilon}$, the mean over the first $n$ channels only.

    Zhang and Sennrich 2019; with $n < D$ their partial form (pRMSNorm). Autograd would keep the divided
    values as well. Cost: a few elementwise passes. Reference: `kinfolk.ops.naive.rms_norm`.
    """
    if torch.is_grad_enabled():
        out: Tensor = _RMSNorm.apply(x_BLD, gain_D, n_seen, eps)
        return out
    return _scale(x_BLD, n_seen, eps).mul(x_BLD).mul_(gain_D)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, n_seen: int, eps: float) -> Tensor:
        scale = _scale(x, n_seen, eps)
        ctx.save_for_backward(x, gain, scale)
        ctx.n_seen = n_seen
        return scale.mul(x).mul_(gain)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, gain, scale = ctx.saved_tensors
        n = ctx.n_seen
        each = dy * x
        # every channel is divided, so every channel pulls at the scale; only the first n are pulled back, by
        # ds/dx = -s^3 x / n
        pull = (each @ gain.to(each.dtype))[..., None].mul_(scale**3 / n)
        d_gain = each.mul_(scale).flatten(0, -2).sum(0)
        dx = dy.mul(gain).mul_(scale)
        dx[..., :n].addcmul_(x[..., :n], pull.to(x.dtype), value=-1.0)
        return dx, d_gain.to(gain.dtype), None, None


def _scale(x: Tensor, n_seen: int, eps: float) -> Tensor:
    """Return one over the root mean square, [..., 1]; 16 bits are squared and summed in 32."""
    seen = x[..., :n_seen]
    seen = seen.float() if seen.element_size() < 4 else seen
    # one reduction; `square().mean()` would write a tensor of squares
    norm = torch.linalg.vector_norm(seen, dim=-1, keepdim=True)
    return norm.square_().div_(n_seen).add_(eps).rsqrt_().to(x.dtype)
