"""Gated linear unit (GLU) and linear layer fused: the backward pass recomputes the gate."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from kinfolk.core.shapes import shaped
from kinfolk.ops.activated_linear import LIMIT, Activation, activate, activate_again


@shaped(out="BLD")
def gated_linear(u_BLf: Tensor, w_DF: Tensor, b_D: Tensor | None, activation: Activation) -> Tensor:
    r"""Return $W\,(\phi(u_1) \odot u_2) + b$ for $u = [u_1; u_2]$, the first half being the activated one.

    Shazeer 2020, equations 5 and 6. With "clamped-swish" $u_2$ is clamped to +-7 and 1 is added (gpt-oss). Autograd
    would keep five tensors of width F, here two are kept and the rest is made again in the backward pass.
    Reference: `kinfolk.ops.naive.gated_linear`.
    """
    if torch.is_grad_enabled():
        out: Tensor = _GatedLinear.apply(u_BLf, w_DF, b_D, activation)
        return out
    return _forward(u_BLf, w_DF, b_D, activation)


class _GatedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, w: Tensor, b: Tensor | None, activation: Activation) -> Tensor:
        ctx.save_for_backward(u, w)
        ctx.activation, ctx.has_bias = activation, b is not None
        return _forward(u, w, b, activation)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        u, w = ctx.saved_tensors
        value, du = gate_again(u, dy @ w.to(dy.dtype), ctx.activation)
        dy_flat = dy.flatten(0, -2)
        dw = dy_flat.mT @ value.flatten(0, -2)
        db = dy_flat.sum(0).to(w.dtype) if ctx.has_bias else None
        return du, dw.to(w.dtype), db, None


def _forward(u: Tensor, w: Tensor, b: Tensor | None, activation: Activation) -> Tensor:
    return F.linear(gate(u, activation), w.to(u.dtype), None if b is None else b.to(u.dtype))


def gate(u: Tensor, activation: Activation) -> Tensor:
    """Return the gated values of $u = [u_1; u_2]$, without a gradient."""
    inner, plain = u.chunk(2, -1)
    # contiguous numbers have a faster GELU than torch's
    inner = inner.contiguous() if activation == "gelu-tanh" else inner
    return activate(inner, activation) * _factor(plain, activation)


def gate_again(u: Tensor, d_value: Tensor, activation: Activation) -> tuple[Tensor, Tensor]:
    """Make the gated values again, and the gradient of what went in."""
    (inner, plain), du = u.chunk(2, -1), torch.empty_like(u)
    d_inner, d_plain = du.chunk(2, -1)
    factor = _factor(plain, activation)
    value, d_first = activate_again(inner.contiguous(), d_value * factor, activation)
    d_inner.copy_(d_first)
    torch.mul(d_value, value, out=d_plain)
    if activation == "clamped-swish":
        d_plain.mul_(plain.abs() <= LIMIT)
    return value * factor, du


def _factor(plain: Tensor, activation: Activation) -> Tensor:
    """Return what multiplies the activated half: the other half, clamped and one more where the activation is."""
    return plain.clamp(-LIMIT, LIMIT) + 1 if activation == "clamped-swish" else plain
