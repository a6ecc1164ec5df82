"""Image patches: an image cut into squares, each flattened to a vector (Vision Transformer)."""

import torch.nn.functional as F
from torch import Tensor


def n_patches(n: int, width: int, channels: int, patch: int) -> int:
    """Return how many patches n values in raster order touch the rows of, `width` columns wide."""
    rows = -(-n // (width * channels))
    return -(-rows // patch) * -(-width // patch)


def cut(values_BL: Tensor, width: int, channels: int, patch: int) -> Tensor:
    r"""Cut values in raster order into squares of `patch` pixels a side, row by row: [B, N, patch * patch * channels].

    $y_{n, (i P + j) C + c} = x_{((r P + i) W + s P + j) C + c}$ for the patch $n$ in row $r$ and column $s$ of patches:
    inside a patch row, column, channel. What lies beyond the values, below or on the right, is 0. Dosovitskiy et al.
    2021, equation 1. Cost: one copy. Reference: `kinfolk.ops.naive.patches`.
    """
    row = width * channels
    rows = -(-values_BL.shape[1] // row)
    down, right = -rows % patch, -width % patch
    flat = F.pad(values_BL, (0, rows * row - values_BL.shape[1]))
    picture = F.pad(flat.unflatten(1, (rows, width, channels)), (0, 0, 0, right, 0, down))
    tiles = picture.unflatten(2, (-1, patch)).unflatten(1, (-1, patch))
    # [B, R, P, S, P, C] to [B, R, S, P, P, C]
    return tiles.transpose(2, 3).flatten(3).flatten(1, 2)
