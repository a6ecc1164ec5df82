"""Activation and linear layer fused: the backward pass recomputes the activation from its input."""

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from kinfolk.core.shapes import shaped
from kinfolk.ops.gelu import gelu_tanh, gelu_tanh_backward
from kinfolk.ops.linear_map import linear_map, weight_gradient

Activation = Literal[
    "relu",
    "squared-relu",
    "gelu",
    "gelu-tanh",
    "swish",
    "clamped-swish",
    "elu",
    "selu",
    "sigmoid",
    "softplus",
    "tanh",
    "identity",
]

LIMIT = 7.0
"""Where "clamped-swish" stops to grow (OpenAI 2025, gpt-oss; its released code)."""


def clamped_swish(u: Tensor) -> Tensor:
    """Return c times sigmoid(1.702 c) for c = min(u, 7): nearly a GELU, with a bound."""
    u = u.clamp(max=LIMIT)
    return u * torch.sigmoid(1.702 * u)


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "squared-relu": lambda u: F.relu(u).square(),
    "gelu": F.gelu,
    "gelu-tanh": lambda u: F.gelu(u, approximate="tanh"),
    "swish": F.silu,
    "clamped-swish": clamped_swish,
    "elu": F.elu,
    "selu": F.selu,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "tanh": torch.tanh,
    "identity": lambda u: u,
}
"""Elementwise functions by the names that papers give them."""

Apply = Callable[[Tensor, Activation], Tensor]
ApplyAgain = Callable[[Tensor, Tensor, Activation], tuple[Tensor, Tensor]]


@shaped(out="BLD")
def activated_linear(u_BLF: Tensor, w_DF: Tensor, b_D: Tensor | None, activation: Activation) -> Tensor:
    r"""Return $W\,\phi(u) + b$ (Vaswani et al. 2017, equation 2, the second half).

    Autograd would keep $u$ and $\phi(u)$, the two widest tensors of a block; here $\phi(u)$ is recomputed in the
    backward pass, which costs one elementwise pass. Reference: `kinfolk.ops.naive.activated_linear`.
    """
    return recomputed_linear(u_BLF, (w_DF, b_D), activation, activate, activate_again)


def activate(u: Tensor, activation: Activation) -> Tensor:
    """Return the activated values, without a gradient."""
    return gelu_tanh(u) if activation == "gelu-tanh" else ACTIVATIONS[activation](u)


def activate_again(u: Tensor, d_value: Tensor, activation: Activation) -> tuple[Tensor, Tensor]:
    """Make the activated values again, and the gradient of what went in; `d_value` may be written over."""
    if activation == "gelu-tanh":
        return gelu_tanh_backward(u, d_value)
    if activation == "relu":
        # a graph of one node for each expert takes longer than its work
        return u.relu(), torch.ops.aten.threshold_backward(d_value, u, 0)
    with torch.enable_grad():
        leaf = u.detach().requires_grad_()
        value = ACTIVATIONS[activation](leaf)
    (du,) = torch.autograd.grad(value, leaf, d_value)
    return value.detach(), du


def recomputed_linear(
    u: Tensor, layer: tuple[Tensor, Tensor | None], activation: Activation, apply: Apply, apply_again: ApplyAgain
) -> Tensor:
    """Return the linear layer (W, b) of apply(u), and keep u alone for the backward pass, which calls `apply_again`."""
    if torch.is_grad_enabled():
        out: Tensor = _RecomputedLinear.apply(u, *layer, activation, apply, apply_again)
        return out
    return _linear(apply(u, activation), *layer)


class _RecomputedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, u: Tensor, w: Tensor, b: Tensor | None, activation: Activation, apply: Apply, apply_again: ApplyAgain
    ) -> Tensor:
        ctx.save_for_backward(u, w)
        ctx.activation, ctx.apply_again, ctx.has_bias = activation, apply_again, b is not None
        return _linear(apply(u, activation), w, b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        u, w = ctx.saved_tensors
        value, du = ctx.apply_again(u, linear_map(dy, w.to(dy.dtype).mT), ctx.activation)
        dy_flat = dy.flatten(0, -2)
        dw = weight_gradient(dy_flat, value.flatten(0, -2))
        db = dy_flat.sum(0).to(w.dtype) if ctx.has_bias else None
        return du, dw.to(w.dtype), db, None, None, None


def _linear(value: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    return linear_map(value, w.to(value.dtype), None if b is None else b.to(value.dtype))
