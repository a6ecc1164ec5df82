"""Short causal convolution, one tap at a time, straight from the definition."""

import torch
from torch import Tensor

from kinfolk.ops.naive.lightconv import depthwise_conv


def short_conv(
    x: Tensor, w: Tensor, bias: Tensor | None, n_out: int, activation: str, same: Tensor | None = None
) -> Tensor:
    """y = phi(bias + sum over t of w_t x_(i + t - T + 1)) for the last positions i; silu(z) is z sigmoid(z)."""
    z = depthwise_conv(x, w, w.shape[1] - 1 - (x.shape[1] - n_out), n_out, same)
    z = z if bias is None else z + bias
    return z * torch.sigmoid(z) if activation == "swish" else z
