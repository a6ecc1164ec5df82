"""Convolutions over positions, one tap at a time, straight from the definition."""

import torch
from torch import Tensor


def dynamic_conv(x: Tensor, w: Tensor, left: int) -> Tensor:
    """y_ic = sum over t of w_iht x_(i + t - left)c with h the head of channel c. Shapes as in `ops.lightconv`."""
    per_head = x.shape[2] // w.shape[2]
    examples = []
    for b in range(len(x)):
        rows = []
        for i in range(w.shape[1]):
            channels = [_tap_sum(x[b, :, c], w[b, i, c // per_head], i - left) for c in range(x.shape[2])]
            rows.append(torch.stack(channels))
        examples.append(torch.stack(rows))
    return torch.stack(examples)


def depthwise_conv(x: Tensor, w: Tensor, left: int, n_out: int, same: Tensor | None = None) -> Tensor:
    """y_ic = sum over t of w_ct x_(i + t - left)c, of the taps that are not hidden."""
    examples = []
    for b in range(len(x)):
        rows = []
        for i in range(n_out):
            shown = w if same is None else w * same[b, i]
            rows.append(torch.stack([_tap_sum(x[b, :, c], shown[c], i - left) for c in range(x.shape[2])]))
        examples.append(torch.stack(rows))
    return torch.stack(examples)


def _tap_sum(x: Tensor, w: Tensor, first: int) -> Tensor:
    # so that a tap beyond the ends has a gradient too, of 0
    total = (x.sum() + w.sum()) * 0.0
    for t in range(len(w)):
        if 0 <= first + t < len(x):
            total = total + w[t] * x[first + t]
    return total
