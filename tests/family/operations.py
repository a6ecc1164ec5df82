"""PyTorch's counter of floating-point operations, taught what it does not know."""

import contextlib
import math

import torch
from torch.utils.flop_counter import FlopCounterMode


@contextlib.contextmanager
def counted_operations():
    """Count operations inside; gives a function that returns their number.

    The counter knows products only. It is taught triangular systems and Fourier transforms.
    """
    aten = torch.ops.aten
    taught = {aten.linalg_solve_triangular: _solved, aten._fft_r2c: _transformed, aten._fft_c2r: _transformed}
    with FlopCounterMode(display=False, custom_mapping=taught) as counter:
        yield counter.get_total_flops


def _solved(lower, right, *_, out_shape=None, **__):
    return lower[-1] * torch.Size(out_shape).numel()


def _transformed(real, dims, *_, out_shape=None, **__):
    real = max(real, out_shape, key=lambda shape: shape[dims[0]])
    return 2.5 * torch.Size(real).numel() * math.log2(real[dims[0]])
