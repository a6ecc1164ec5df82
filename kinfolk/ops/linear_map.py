"""Linear layer in single precision, by the library of products that uses the whole width of this processor."""

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from kinfolk.core.device import autocast_dtype
from kinfolk.core.machine import AMD, cpu_field
from kinfolk.core.shapes import shaped

LEAST = 1 << 21
"""Products from which the longer call (about 10 microseconds) is worth it."""
ZEN_5 = 26
"""The family of AMD's processors from which units are 512 bits wide."""


@shaped()
def linear_map(x: Tensor, w_DF: Tensor, b_D: Tensor | None = None) -> Tensor:
    r"""Return $y_d = \sum_f w_{df} x_f + b_d$.

    PyTorch multiplies single precision by MKL, which leaves AVX-512 unused on AMD's processors: 117 against oneDNN's
    268 GFLOP/s of one core where units are 512 bits wide (Zen 5); where they are 256 wide (Zen 4) both reach the peak,
    about 100. On the former oneDNN multiplies what is large enough, forward and backward; elsewhere, and in other
    types, this is `F.linear`. Sums are rounded in another order. Cost: 2 D F per row, twice that backward.
    Reference: `kinfolk.ops.naive.linear_map`.
    """
    # the size first: one token of decoding pays for this question alone
    if x.numel() * len(w_DF) < LEAST or not _usable(x, w_DF, b_D):
        return F.linear(x, w_DF, b_D)
    out: Tensor = _LinearMap.apply(x, w_DF, b_D)
    return out


def product(a_LR: Tensor, b_RM: Tensor) -> Tensor:
    """Return the product of two large matrices, without a gradient; each lies row by row, or column by column.

    Cost: 2 L R M.
    """
    return _wide(a_LR, b_RM.mT, None) if _usable(a_LR, b_RM, None) else a_LR @ b_RM


def linear_into(x_nF: Tensor, w_DF: Tensor, b_D: Tensor | None, out_nD: Tensor) -> None:
    r"""Write $y_n = W x_n + b$ where it belongs, without a gradient. Cost: 2 n D F."""
    if x_nF.numel() * len(w_DF) >= LEAST and _usable(x_nF, w_DF, b_D):
        # the copy of what lies in the cache takes less than MKL's narrower units do
        out_nD.copy_(_wide(x_nF, w_DF, b_D))
    elif b_D is None:
        torch.mm(x_nF, w_DF.mT, out=out_nD)
    else:
        torch.addmm(b_D, x_nF, w_DF.mT, out=out_nD)


def weight_gradient(dy_nD: Tensor, x_nF: Tensor) -> Tensor:
    r"""Return $\sum_n dy_n x_n^\top$, the gradient of a matrix, without a gradient of its own. Cost: 2 n D F."""
    if dy_nD.numel() * x_nF.shape[-1] < LEAST or not _usable(dy_nD, x_nF, None):
        return dy_nD.mT @ x_nF
    # a tall result is slower than a wide one
    tall = dy_nD.shape[-1] > x_nF.shape[-1]
    return product(x_nF.mT, dy_nD).mT if tall else product(dy_nD.mT, x_nF)


def add_weight_gradient(dy_nD: Tensor, x_nF: Tensor, sum_DF: Tensor) -> None:
    """Add the gradient of a matrix to what other rows gave. Cost: 2 n D F."""
    if dy_nD.numel() * x_nF.shape[-1] >= LEAST and _usable(dy_nD, x_nF, None):
        sum_DF += weight_gradient(dy_nD, x_nF)
    else:
        sum_DF.addmm_(dy_nD.mT, x_nF)


@functools.cache
def wide_products() -> bool:
    """Tell whether oneDNN multiplies with wider units than MKL uses here: a processor of AMD with all of AVX-512."""
    has = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    if not has or torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkl.is_available():
        return False
    family = cpu_field("cpu family")
    return cpu_field("vendor_id") == AMD and family.isdigit() and int(family) >= ZEN_5


class _LinearMap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, w)
        return _wide(x, w, b)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, w = ctx.saved_tensors
        dy = dy.contiguous()
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            dx = linear_map(dy, w.mT)
        if ctx.needs_input_grad[1]:
            dy_Dn, x_Fn = dy.flatten(0, -2).mT, x.flatten(0, -2).mT
            # a gradient may be asked for; a tall result is slower than a wide one
            dw = linear_map(x_Fn, dy_Dn).mT if len(w) > w.shape[1] else linear_map(dy_Dn, x_Fn)
        if ctx.needs_input_grad[2]:
            db = dy.flatten(0, -2).sum(0)
        return dx, dw, db


def _wide(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, w, b, "none", [], "")
    return y


def _usable(x: Tensor, w: Tensor, b: Tensor | None) -> bool:
    plain = x.dtype == w.dtype == torch.float32 and type(x) is Tensor and x.device.type == "cpu" == w.device.type
    if not plain or not wide_products() or torch.compiler.is_compiling() or autocast_dtype(x.device) is not None:
        return False
    # other strides are copied by a slow path
    return (b is None or b.dtype == x.dtype) and all(t.is_contiguous() or t.mT.is_contiguous() for t in (x, w))


@register_flop_formula(torch.ops.mkldnn._linear_pointwise)
def _flops(x: Any, w: Any, *others: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """Count the products, which PyTorch's counter does not know."""
    n = 1
    for size in x:
        n *= size
    return 2 * n * int(w[0])
