"""Best answer span, span by span."""

import torch
from torch import Tensor


def best_span(begin_BL: Tensor, end_BL: Tensor, longest: int, threshold: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return the best span of each text and by how much it beats position 0, which means none."""
    spans, margins = [], []
    for begin_L, end_L in zip(begin_BL, end_BL, strict=True):
        length = len(begin_L)
        best, score = (0, 0), torch.tensor(-torch.inf, dtype=begin_L.dtype)
        for i in range(1, length):
            for j in range(i, min(i + longest, length)):
                if begin_L[i] + end_L[j] > score:
                    best, score = (i, j), begin_L[i] + end_L[j]
        margin = score - (begin_L[0] + end_L[0])
        spans.append(best if margin > threshold else (0, 0))
        margins.append(margin)
    return torch.tensor(spans), torch.stack(margins)
