"""Short causal convolution with its bias and activation, as it precedes recurrences (Mamba, Gated DeltaNet).

A tile of positions is convolved and activated while it is in the cache, and the backward pass does the same again: only
the input is kept.
"""

from collections.abc import Iterator
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from kinfolk.core.shapes import shaped
from kinfolk.ops.lightconv import depthwise_conv

TILE_BYTES = 256 << 10
"""Outputs of one tile stay below this: a core's cache holds them, their inputs and their gradients."""
Activation = Literal["identity", "swish"]


@shaped(out="BLD")
def short_conv(
    x_BMD: Tensor,
    w_Dt: Tensor,
    bias_D: Tensor | None,
    n_out: int,
    activation: Activation = "identity",
    same_BLt: Tensor | None = None,
) -> Tensor:
    r"""Return $\phi(b_c + \sum_t w_{c,t}\, s_{i,t}\, x_{i+t-T+1,c})$ for the last `n_out` positions of `x`.

    The last of the T taps is at the position itself, and $x$ is 0 before its first position. $s$ is 1 unless `same_BLt`
    hides a tap, never the last, from a position (Gu and Dao 2023, section 3.4). Cost: D T products per position; the
    input is kept. Reference: `kinfolk.ops.naive.short_conv`.
    """
    if torch.compiler.is_exporting():
        left = w_Dt.shape[1] - 1 - (x_BMD.shape[1] - n_out)
        y_BLD = depthwise_conv(x_BMD, w_Dt, left, n_out, same_BLt)
        y_BLD = y_BLD if bias_D is None else y_BLD + bias_D
        return F.silu(y_BLD) if activation == "swish" else y_BLD
    bias_D = None if bias_D is None else bias_D.to(x_BMD.dtype)
    out: Tensor = _ShortConv.apply(x_BMD, w_Dt.to(x_BMD.dtype), bias_D, n_out, activation, same_BLt)
    return out


class _ShortConv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, n_out: int, activation: Activation, same: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(x, w, bias, same)
        ctx.n_out, ctx.activation = n_out, activation
        y, w_tD = x.new_empty(len(x), n_out, x.shape[2]), w.mT.contiguous()
        for tile in _tiles(y):
            _convolve(x, w_tD, bias, (tile, n_out, same), y[:, tile])
            if activation == "swish":
                F.silu(y[:, tile], inplace=True)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, w, bias, same = ctx.saved_tensors
        n_out, before = ctx.n_out, x.shape[1] - ctx.n_out
        w_tD, dx, last = w.mT.contiguous(), x.new_empty(x.shape), w.shape[1] - 1
        dw_tD, d_bias = torch.zeros_like(w_tD), None if bias is None else torch.zeros_like(bias)
        dx[:, :before] = 0.0
        for tile in _tiles(dy):
            dz = dy[:, tile]
            if ctx.activation == "swish":
                z = torch.empty_like(dz, memory_format=torch.contiguous_format)
                _convolve(x, w_tD, bias, (tile, n_out, same), z)
                dz = torch.ops.aten.silu_backward(dz, z)
            if d_bias is not None:
                d_bias += dz.sum((0, 1))
            at = slice(before + tile.start, before + tile.stop)
            # what other tiles add to these inputs, they add later
            torch.mul(dz, w_tD[last], out=dx[:, at])
            dw_tD[last] += (dz * x[:, at]).sum((0, 1))
            for t, to, at in _earlier(last, tile, before):
                dz_t = _seen(dz[:, to.start - tile.start :], same, to, t)
                dx[:, at].addcmul_(dz_t, w_tD[t])
                dw_tD[t] += (dz_t * x[:, at]).sum((0, 1))
        return dx, dw_tD.mT, d_bias, None, None, None


def _convolve(
    x: Tensor, w_tD: Tensor, bias: Tensor | None, where: tuple[slice, int, Tensor | None], out: Tensor
) -> None:
    """Write the outputs of a tile before their activation."""
    tile, n_out, same = where
    last, before = len(w_tD) - 1, x.shape[1] - n_out
    x_now = x[:, before + tile.start : before + tile.stop]
    torch.mul(x_now, w_tD[last], out=out) if bias is None else torch.addcmul(bias, x_now, w_tD[last], out=out)
    for t, to, at in _earlier(last, tile, before):
        out[:, to.start - tile.start :].addcmul_(_seen(x[:, at], same, to, t), w_tD[t])


def _tiles(y_BLD: Tensor) -> Iterator[slice]:
    """Yield runs of positions that a core's cache holds; an accelerator, which would wait for each, takes all."""
    n_examples, length, width = y_BLD.shape
    fitting = TILE_BYTES // max(1, n_examples * width * y_BLD.element_size())
    size = max(1, fitting if y_BLD.device.type == "cpu" else length)
    for first in range(0, length, size):
        yield slice(first, min(first + size, length))


def _earlier(last: int, tile: slice, before: int) -> Iterator[tuple[int, slice, slice]]:
    """Yield each tap but the last, the outputs of a tile that it reaches, and the inputs that they read."""
    for t in range(last):
        move = before + t - last
        start = max(tile.start, -move)
        if start < tile.stop:
            yield t, slice(start, tile.stop), slice(start + move, tile.stop + move)


def _seen(x_BLD: Tensor, same: Tensor | None, to: slice, t: int) -> Tensor:
    return x_BLD if same is None else x_BLD * same[:, to, t, None]
