"""Compressed keys and values: projection over positions (Linformer) or strided convolution (Liu et al. 2018).

`ops.attend` attends to them as to any keys and values.
"""

import torch
from torch import Tensor

from kinfolk.core.shapes import shaped


@shaped(out="BHRK")
def compress_positions(x_BHLK: Tensor, e_HRM: Tensor, keep_BL: Tensor | None = None) -> Tensor:
    r"""Mix L positions into R: $c_r = \sum_{j \le L} e_{rj}\, x_j$, each head with its own map.

    The map has a column for every position that may ever come; shorter sequences use the first L of them (Wang et al.
    2020, section 4: $E_i K W_i^K$). Positions that are not kept count as zeros: afterwards it is too late to hide
    them. Cost: R products per number of x. Reference: `kinfolk.ops.naive.compressed_keys`.
    """
    n_examples, n_heads, length, width = x_BHLK.shape
    if keep_BL is not None:
        x_BHLK = x_BHLK.masked_fill(~keep_BL[:, None, :, None], 0.0)
    e_HRL = e_HRM[:, :, :length].to(x_BHLK.dtype)
    if n_heads == 1:
        # a map expanded over the batch is read in place, and x is kept as it is
        return torch.bmm(e_HRL.expand(n_examples, -1, -1), x_BHLK[:, 0]).unsqueeze(1)
    # examples side by side: one product per head, and one gradient of its map
    x_HLf = x_BHLK.permute(1, 2, 0, 3).reshape(n_heads, length, n_examples * width)
    return torch.bmm(e_HRL, x_HLf).unflatten(2, (n_examples, width)).permute(2, 0, 1, 3)


@shaped(out="BHnK")
def compress_windows(x_BHLK: Tensor, w_HKtK: Tensor, b_HK: Tensor | None = None) -> Tensor:
    r"""Turn every t positions into one: $c_n = \sum_t W_t\, x_{nt+t} + b$, each head with its own maps.

    A convolution whose stride is its width (Liu et al. 2018, memory-compressed attention). Positions that do not fill a
    window are left out, so that nothing is made of a window's beginning. Cost: K products per number of x. Reference:
    `kinfolk.ops.naive.compressed_keys`.
    """
    n_taps, width = w_HKtK.shape[2], x_BHLK.shape[-1]
    n_windows = x_BHLK.shape[2] // n_taps
    x_BHnf = x_BHLK[:, :, : n_windows * n_taps].unflatten(2, (n_windows, n_taps)).flatten(3)
    c_BHnK = x_BHnf @ w_HKtK.reshape(-1, width, n_taps * width).to(x_BHLK.dtype).mT
    return c_BHnK if b_HK is None else c_BHnK + b_HK.to(x_BHLK.dtype)[:, None]
