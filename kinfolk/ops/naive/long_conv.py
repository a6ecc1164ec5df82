"""Long causal convolution, one product at a time, straight from the definition."""

import torch
from torch import Tensor


def long_conv(x: Tensor, h: Tensor) -> Tensor:
    """y_i = sum over j up to i of h_(i - j) x_j. Shapes as in `ops.long_conv`."""
    examples = []
    for b in range(len(x)):
        rows = []
        for i in range(x.shape[1]):
            total = torch.zeros_like(x[b, 0])
            for j in range(i + 1):
                total = total + h[i - j] * x[b, j]
            rows.append(total)
        examples.append(torch.stack(rows))
    return torch.stack(examples)
