"""Short causal convolution: one kernel of a few taps per channel, before a recurrence."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.core.context import Context
from kinfolk.core.cost import Cost
from kinfolk.layers.mixers.convolution import RecentInputs
from kinfolk.layers.module import Module
from kinfolk.ops.short_conv import Activation, short_conv


class ShortConv(Module):
    """Depthwise convolution over the last `kernel` positions of the same document, and an activation."""

    def __init__(self, width: int, kernel: int, bias: bool) -> None:
        super().__init__()
        self.taps_Dt = nn.Parameter(torch.zeros(width, kernel))
        self.bias_D = nn.Parameter(torch.zeros(width)) if bias else None

    def draw(self) -> None:
        """Draw as PyTorch's convolutions do."""
        bound = self.taps_Dt.shape[1] ** -0.5
        nn.init.uniform_(self.taps_Dt, -bound, bound)
        if self.bias_D is not None:
            nn.init.uniform_(self.bias_D, -bound, bound)

    def forward(
        self, x_BLD: Tensor, ctx: Context, state: RecentInputs | None, activation: Activation = "identity"
    ) -> Tensor:
        kernel, length = self.taps_Dt.shape[1], x_BLD.shape[1]
        if ctx.padding is not None and not ctx.padding.right:
            x_BLD = x_BLD.masked_fill(~ctx.padding.keep_BL[..., None], 0.0)
        same_BLt = None
        if ctx.group_BL is not None and state is None:
            # what is before the row belongs to no document
            near_BLt = F.pad(ctx.group_BL, (kernel - 1, 0), value=-1).unfold(1, kernel, 1)
            same_BLt = near_BLt == ctx.group_BL[..., None]
        if state is not None:
            x_BLD = state.extend(x_BLD, ctx)
        return short_conv(x_BLD, self.taps_Dt, self.bias_D, length, activation, same_BLt)


def short_conv_cost(width: int, kernel: int, bias: bool) -> Cost:
    """Return its cost; the input is kept."""
    return Cost(params=width * (kernel + bias), flops=2.0 * width * kernel, kept=width)
