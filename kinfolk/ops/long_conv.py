"""Long causal convolution by FFT: a kernel as long as the sequence, for every channel (Hyena, Poli et al. 2023)."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kinfolk.core.shapes import shaped
from kinfolk.ops.chunk_scan import precision


@shaped(out="BLD")
def long_conv(x_BLD: Tensor, h_LD: Tensor) -> Tensor:
    r"""Return $y_i = \sum_{j \le i} h_{i-j}\, x_j$ of each channel.

    Poli et al. 2023 (arXiv:2302.10866), remark 3.1: a product of spectra of length 2 L, so that nothing wraps around.
    At least single precision. Cost: about 15 L D log2(2 L), three transforms of a channel. The inputs are kept; the
    backward pass transforms again. Reference: `kinfolk.ops.naive.long_conv`.
    """
    out: Tensor = _LongConv.apply(x_BLD, h_LD)
    return out


def work(length: int) -> float:
    """Return operations per position and channel: a real transform of n numbers takes 2.5 n log2 n."""
    n = 2 * length
    return 3 * 2.5 * n * (n - 1).bit_length() / length


class _LongConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, h: Tensor) -> Tensor:
        ctx.save_for_backward(x, h)
        y = _whole(_spectrum(x) * _spectrum(h), x.shape[1])
        return y.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, h = ctx.saved_tensors
        g = _spectrum(grad)
        # a correlation is a convolution with what is turned around
        dx = _whole(g * _spectrum(h).conj(), x.shape[1])
        # summed over examples before the transform, which is linear: one inverse transform for all
        dh = _whole((g * _spectrum(x).conj()).sum(0), x.shape[1])
        return dx.to(x.dtype), dh.to(h.dtype)


def _spectrum(x: Tensor) -> Tensor:
    """Transform along positions, the last axis but one, with as many zeros behind them."""
    return torch.fft.rfft(x.to(precision(x)), n=2 * x.shape[-2], dim=-2)


def _whole(spectrum: Tensor, length: int) -> Tensor:
    return torch.fft.irfft(spectrum, n=2 * length, dim=-2).narrow(-2, 0, length)
