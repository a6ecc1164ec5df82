"""Lightweight, dynamic and depthwise convolution over positions (Wu et al. 2019).

Both read any neighbours that exist and zeros beyond the ends, so a caller pads nothing. They keep their inputs for the
backward pass and nothing else; all that is larger is made a few tiles at a time.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from kinfolk.core.shapes import shaped

CHUNK_BYTES = 4 << 20
"""Band matrices, or the positions, of one chunk stay below this."""


@shaped(out="BLD")
def dynamic_conv(x_BMD: Tensor, w_BLHt: Tensor, left: int) -> Tensor:
    r"""Mix neighbours under weights that each position and each head has for itself.

    $y_{i,c} = \sum_t w_{i,h(c),t}\, x_{i+t-\text{left},c}$ with $h(c) = \lfloor cH/D \rfloor$: channels of a head lie
    together, $0 \le \text{left} < t$, and $x$ is 0 outside of its positions (Wu et al. 2019, section 4). Weights that
    are alike at all positions make it a lightweight convolution (section 3); pass them expanded.

    For each tile of positions the weights are on the diagonals of a band matrix, and one product does the tile.
    Cost: at most about twice the D t products per position, in the memory of one chunk.
    Reference: `kinfolk.ops.naive.lightconv`.
    """
    if torch.compiler.is_exporting():
        width = x_BMD.shape[2] // w_BLHt.shape[2]
        return _tap_by_tap(x_BMD, [w.repeat_interleave(width, -1) for w in w_BLHt.unbind(-1)], left, w_BLHt.shape[1])
    out: Tensor = _DynamicConv.apply(x_BMD, w_BLHt.to(x_BMD.dtype), left)
    return out


@shaped(out="BLD")
def depthwise_conv(x_BMD: Tensor, w_Dt: Tensor, left: int, n_out: int, same_BLt: Tensor | None = None) -> Tensor:
    r"""Mix neighbours under one kernel per channel.

    $y_{i,c} = \sum_t w_{c,t}\, s_{i,t}\, x_{i+t-\text{left},c}$ for `n_out` positions $i$, with $s = 1$ unless
    `same_BLt` hides a tap from a position; $x$ is 0 outside of its positions (Wu et al. 2019, section 2). Cost: D t
    products per position. Reference: `kinfolk.ops.naive.lightconv`.
    """
    if torch.compiler.is_exporting() and same_BLt is None:
        return _tap_by_tap(x_BMD, list(w_Dt.unbind(-1)), left, n_out)
    out: Tensor = _DepthwiseConv.apply(x_BMD, w_Dt.to(x_BMD.dtype), left, n_out, same_BLt)
    return out


def _tap_by_tap(x_BMD: Tensor, weights: list[Tensor], left: int, n_out: int) -> Tensor:
    """Convolve for a graph, which has neither tiles nor lengths: weights of each tap are [B, L, D] or [D]."""
    # as many zeros behind as there are taps: the last output may read past the end
    padded = F.pad(x_BMD, (0, 0, left, len(weights)))
    return torch.stack([w * padded[:, t : t + n_out] for t, w in enumerate(weights)]).sum(0)


class _Tiles(NamedTuple):
    """Tiling of positions: n tiles of c outputs, each of which reads c + t - 1 inputs."""

    n: int
    c: int
    m: int
    step: int

    def chunks(self) -> Iterator[slice]:
        for first in range(0, self.n, self.step):
            yield slice(first, min(first + self.step, self.n))


class _DynamicConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, left: int) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.left = left
        n_out, cut = w.shape[1], _cut(w)
        x_BnHmK, w_BncHt, band = _tiled(x, left, w, cut), _whole(w, cut), _Band(w, cut)
        y_BncHK = x.new_empty(len(x), cut.n, cut.c, w.shape[2], x_BnHmK.shape[-1])
        for some in cut.chunks():
            y_BncHK[:, some] = (band.fill(w_BncHt[:, some]) @ x_BnHmK[:, some]).transpose(2, 3)
        return y_BncHK.flatten(3).flatten(1, 2)[:, :n_out]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, w = ctx.saved_tensors
        n_taps, cut = w.shape[3], _cut(w)
        x_BnHmK, w_BncHt, band = _tiled(x, ctx.left, w, cut), _whole(w, cut), _Band(w, cut)
        dy_BncHK = _whole(dy.unflatten(2, (w.shape[2], -1)), cut)
        # a tile reads into the next one and no further, since t - 1 <= c
        dx_BncHK = dy.new_zeros(len(x), cut.n + 1, *dy_BncHK.shape[2:])
        dw_BncHt = torch.empty_like(w_BncHt, memory_format=torch.contiguous_format)
        for some in cut.chunks():
            dy_BnHcK = dy_BncHK[:, some].transpose(2, 3)
            dx_BnmHK = (band.fill(w_BncHt[:, some]).mT @ dy_BnHcK).transpose(2, 3)
            dx_BncHK[:, some] += dx_BnmHK[:, :, : cut.c]
            dx_BncHK[:, some.start + 1 : some.stop + 1, : n_taps - 1] += dx_BnmHK[:, :, cut.c :]
            dw_BncHt[:, some] = _diagonals(dy_BnHcK @ x_BnHmK[:, some].mT, n_taps).transpose(2, 3)
        dx_BMD = _window(dx_BncHK.flatten(3).flatten(1, 2), ctx.left, x.shape[1])
        return dx_BMD, dw_BncHt.flatten(1, 2)[:, : w.shape[1]], None


class _Band:
    """Band matrices [B, n, H, c, m], allocated once: every chunk writes the same diagonals, the rest stays 0."""

    def __init__(self, w: Tensor, cut: _Tiles) -> None:
        self.band = w.new_zeros(len(w), min(cut.step, cut.n), w.shape[2], cut.c, cut.m)

    def fill(self, w_BncHt: Tensor) -> Tensor:
        band = self.band[:, : w_BncHt.shape[1]]
        _diagonals(band, w_BncHt.shape[-1]).copy_(w_BncHt.transpose(2, 3))
        return band


def _diagonals(band_BnHcm: Tensor, n_taps: int) -> Tensor:
    """View what is at (i, i + t) of each matrix as [..., c, t]."""
    size, stride = band_BnHcm.shape, band_BnHcm.stride()
    return band_BnHcm.as_strided((*size[:-1], n_taps), (*stride[:-2], stride[-2] + 1, 1))


def _cut(w: Tensor) -> _Tiles:
    n_examples, n_out, n_heads, n_taps = w.shape
    # as wide as the kernel: narrower tiles would read each input more than twice, wider ones multiply more zeros
    c = max(16, -(-(n_taps - 1) // 16) * 16)
    m = c + n_taps - 1
    step = max(1, CHUNK_BYTES // (n_examples * n_heads * c * m * w.element_size()))
    return _Tiles(-(-n_out // c), c, m, step)


def _whole(x_BL: Tensor, cut: _Tiles) -> Tensor:
    """Cut [B, L, ...] into tiles [B, n, c, ...], the last one filled up with zeros."""
    missing = cut.n * cut.c - x_BL.shape[1]
    whole = F.pad(x_BL, (0, 0) * (x_BL.ndim - 2) + (0, missing)) if missing else x_BL
    return whole.unflatten(1, (cut.n, cut.c))


def _tiled(x: Tensor, left: int, w: Tensor, cut: _Tiles) -> Tensor:
    """View the inputs that each tile reads as [B, n, H, m, K]; neighbouring tiles overlap."""
    wanted = cut.n * cut.c + w.shape[3] - 1
    # a negative padding cuts off inputs that no output reads
    padded = F.pad(x, (0, 0, left, wanted - left - x.shape[1]))
    return padded.unflatten(2, (w.shape[2], -1)).unfold(1, cut.m, cut.c).mT


def _window(dx: Tensor, left: int, n: int) -> Tensor:
    """Return the gradients of the `n` inputs; those that were not read have none."""
    missing = left + n - dx.shape[1]
    return (F.pad(dx, (0, 0, 0, missing)) if missing > 0 else dx)[:, left : left + n]


class _DepthwiseConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, left: int, n_out: int, same: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, w, same)
        ctx.left = left
        y, w_tD = x.new_zeros(len(x), n_out, x.shape[2]), w.mT.contiguous()
        for t, to, at in _taps(x, w, left, n_out):
            y[:, to].addcmul_(_seen(x[:, at], same, to, t), w_tD[t])
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, w, same = ctx.saved_tensors
        dx, w_tD = torch.zeros_like(x), w.mT.contiguous()
        dw_tD = torch.zeros_like(w_tD)
        for t, to, at in _taps(x, w, ctx.left, dy.shape[1]):
            dy_t = _seen(dy[:, to], same, to, t)
            dx[:, at].addcmul_(dy_t, w_tD[t])
            dw_tD[t] += (dy_t * x[:, at]).sum((0, 1))
        return dx, dw_tD.mT, None, None, None


def _taps(x: Tensor, w: Tensor, left: int, n_out: int) -> Iterator[tuple[int, slice, slice]]:
    """Yield for each chunk of outputs and each tap: the tap, which outputs it reaches, and the inputs they read."""
    step = max(1, CHUNK_BYTES // 8 // (len(x) * x.shape[2] * x.element_size()))
    for first in range(0, n_out, step):
        for t in range(w.shape[1]):
            move = t - left
            start, stop = max(first, -move), min(first + step, n_out, x.shape[1] - move)
            if start < stop:
                yield t, slice(start, stop), slice(start + move, stop + move)


def _seen(x_BLD: Tensor, same: Tensor | None, to: slice, t: int) -> Tensor:
    return x_BLD if same is None else x_BLD * same[:, to, t, None]
