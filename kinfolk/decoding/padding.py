"""Rows of token ids of unequal lengths as one padded batch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kinfolk.core.batch import Batch
from kinfolk.core.device import CPU, send


def batch_of(rows: Sequence[Sequence[int]], device: torch.device) -> Batch:
    """Return rows of any lengths as one batch, padded on the right."""
    tokens_BL = padded(rows, CPU)
    keep_BL = tokens_BL >= 0
    keep = None if bool(keep_BL.all()) else send(keep_BL, device)
    return Batch(index=torch.arange(len(rows)), tokens=send(tokens_BL.clamp(min=0), device), keep=keep)


def padded(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Write rows into a matrix, -1 behind the shorter ones."""
    n = max(map(len, rows))
    return send(torch.tensor([[*row, *[-1] * (n - len(row))] for row in rows]), device)
