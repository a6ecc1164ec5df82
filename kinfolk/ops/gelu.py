"""GELU in its tanh form, with one exponential where PyTorch's CPU kernel computes a hyperbolic tangent.

(1 + tanh z) / 2 is the logistic function of 2z, whose vectorised kernel takes a quarter of the time. The passes run
over pieces that stay in the cache, and the backward pass makes value and derivative from the same exponential.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

PIECE = 1 << 19
"""Numbers of one pass: the few tensors of a piece stay in the last cache, and calls are few."""
FEW = 1 << 14
CUBE, SCALE = 0.044715, 2 * math.sqrt(2 / math.pi)


def gelu_tanh(u: Tensor) -> Tensor:
    r"""Return $\frac{u}{2}(1 + \tanh z) = u\,\sigma(2z)$, $z = \sqrt{2/\pi}\,(u + 0.044715\,u^3)$, without a gradient.

    Hendrycks and Gimpel 2016, section 2. Reference: `kinfolk.ops.naive.gelu`.
    """
    if not _here(u):
        return F.gelu(u, approximate="tanh")
    out, scratch = torch.empty_like(u), u.new_empty(min(PIECE, u.numel()))
    for u_n, out_n in zip(u.view(-1).split(PIECE), out.view(-1).split(PIECE), strict=True):
        gate = _cubic(u_n, scratch[: len(u_n)]).mul_(SCALE).sigmoid_()
        torch.mul(u_n, gate, out=out_n)
    return out


def gelu_tanh_backward(u: Tensor, d_out: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return the activated values again and the gradient of `u`; `d_out` is written over.

    With $s = \sigma(2z)$ and $c = u + 0.044715\,u^3$ the derivative is $s + s(1-s)\,2\sqrt{2/\pi}\,(3c - 2u)$.
    """
    if not _here(u) or not d_out.is_contiguous():
        return F.gelu(u, approximate="tanh"), torch.ops.aten.gelu_backward(d_out, u, approximate="tanh")
    out = torch.empty_like(u)
    scratch = u.new_empty(3, min(PIECE, u.numel()))
    for u_n, out_n, d_n in zip(*(x.view(-1).split(PIECE) for x in (u, out, d_out)), strict=True):
        cubic, gate, slope = scratch[:, : len(u_n)]
        # u c' = u + 3 * 0.044715 u^3 = 3c - 2u
        _cubic(u_n, cubic)
        torch.mul(cubic, SCALE, out=gate).sigmoid_()
        torch.mul(u_n, gate, out=out_n)
        # 3c - 2u, then s - s^2, then their product beside s
        torch.lerp(u_n, cubic, 3.0, out=cubic)
        torch.addcmul(gate, gate, gate, value=-1.0, out=slope)
        torch.addcmul(gate, cubic, slope, value=SCALE, out=slope)
        d_n.mul_(slope)
    return out, d_out


def _here(u: Tensor) -> bool:
    """Tell whether the passes are worth it.

    Calls cost more than they save on a few numbers, one fused kernel is better on a GPU, and 16 bits need its care.
    """
    if torch.compiler.is_exporting():
        return False  # sizes are unknown, and a graph has one operator for it
    large, cpu = u.numel() >= FEW, u.device.type == "cpu"
    return large and cpu and u.dtype in (torch.float32, torch.float64) and u.is_contiguous()


def _cubic(u: Tensor, out: Tensor) -> Tensor:
    torch.mul(u, u, out=out)
    return torch.addcmul(u, out, u, value=CUBE, out=out)
