"""Compressed keys and values of attention, one slot at a time, from the definition."""

import torch
from torch import Tensor


def compress_positions(x: Tensor, e: Tensor, keep: Tensor | None = None) -> Tensor:
    """c_r = sum over real j of e_rj x_j. Shapes as in `ops.compress`."""
    examples = []
    for b in range(len(x)):
        heads = []
        for h in range(x.shape[1]):
            real = [j for j in range(x.shape[2]) if keep is None or bool(keep[b, j])]
            # so that a slot of no positions has gradients too, of 0
            nothing = torch.zeros_like(x[b, h, 0]) + 0.0 * (e.sum() + x.sum())
            heads.append(torch.stack([sum((row[j] * x[b, h, j] for j in real), nothing) for row in e[h]]))
        examples.append(torch.stack(heads))
    return torch.stack(examples)


def compress_windows(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    """c_n = sum over t of W_t x_(n t + t), plus b, for the windows that are full."""
    n_taps = w.shape[2]
    n_windows = x.shape[2] // n_taps
    out = x.new_zeros(len(x), x.shape[1], n_windows, x.shape[3]) + 0.0 * (x.sum() + w.sum())
    for i in range(len(x)):
        for h in range(x.shape[1]):
            for n in range(n_windows):
                slot = torch.zeros_like(x[i, h, 0]) if b is None else b[h]
                for t in range(n_taps):
                    slot = slot + w[h, :, t] @ x[i, h, n * n_taps + t]
                here = torch.zeros_like(out)
                here[i, h, n] = 1.0
                out = out + here * slot
    return out
