"""Gated linear unit (GLU) and linear layer fused: the backward pass recomputes the gate."""

import torch
from torch import Tensor

from kinfolk.core.shapes import shaped
from kinfolk.ops.activated_linear import LIMIT, Activation, activate, activate_again, recomputed_linear


@shaped(out="BLD")
def gated_linear(u_BLf: Tensor, w_DF: Tensor, b_D: Tensor | None, activation: Activation) -> Tensor:
    r"""Return $W\,(\phi(u_1) \odot u_2) + b$ for $u = [u_1; u_2]$, the first half being the activated one.

    Shazeer 2020, equations 5 and 6. With "clamped-swish" $u_2$ is clamped to +-7 and 1 is added (gpt-oss). Autograd
    would keep five tensors of width F, here two are kept and the rest is recomputed in the backward pass.
    Reference: `kinfolk.ops.naive.gated_linear`.
    """
    return recomputed_linear(u_BLf, (w_DF, b_D), activation, gate, gate_again)


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
        # a clamp passes the gradient at its limits, as autograd's does
        d_plain.mul_(plain.abs() <= LIMIT)
    return value * factor, du


def _factor(plain: Tensor, activation: Activation) -> Tensor:
    """Return what multiplies the activated half: the other half, clamped and one more where the activation is."""
    return plain.clamp(-LIMIT, LIMIT) + 1 if activation == "clamped-swish" else plain
