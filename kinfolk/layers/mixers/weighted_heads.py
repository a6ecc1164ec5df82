"""Weighted Transformer: every attention head has a feed-forward branch, and branches are summed (Ahmed et al. 2017)."""

from typing import Any

import torch
from torch import Tensor, nn

from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape
from kinfolk.core.errors import SpecError
from kinfolk.layers.mixers.attention import Attention, CrossAttention
from kinfolk.layers.module import Dims, Linear, Module
from kinfolk.layers.part import FeedForward, Mixer, PartModule


class Branched(Mixer, kind="branched"):
    r"""Branched attention $\sum_i \alpha_i\,\mathrm{think}(\kappa_i\,\mathrm{head}_i W^O_i)$ (Ahmed et al. 2017).

    It replaces an attention and the feed-forward after it; all heads share the feed-forward. $\kappa$
    and $\alpha$ are positive and add up to one by a softmax, where the paper projects them after every step. They are
    drawn uniformly and normalised.
    """

    look: Mixer
    think: FeedForward

    def __post_init__(self) -> None:
        if not isinstance(self.look, Attention | CrossAttention):
            raise SpecError(f"look: {self.look.kind!r} has no heads to branch; use 'attention' or 'cross-attention'")
        if not self.think.alone:
            raise SpecError(f"think: positions of {self.think.kind!r} compete, so heads cannot share it")

    def build(self, dims: Dims) -> PartModule:
        module: Any = self.look.build(dims)
        # what joins the heads is what branches change; all else about looking stays
        module.out = _Branches(self, module.out.in_features, dims)
        joined: PartModule = module
        return joined

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        n, d, look, think = self._n_heads, dims.d_model, self.look.cost(dims, shape), self.think.cost(dims, shape)
        unbiased = Cost(params=-d if self.look.bias else 0)  # type: ignore[attr-defined]
        # the sum keeps what every branch made of its head
        joined = Cost(params=2 * n, flops=2.0 * n * d, kept=n * d)
        return look + unbiased + think.scaled(n) + joined

    @property
    def _n_heads(self) -> int:
        n: int = self.look.n_heads  # type: ignore[attr-defined]
        return n


class _Branches(Module):
    """Weighted branches in place of the output map: [B, L, heads side by side] -> [B, L, D]."""

    def __init__(self, spec: Branched, width: int, dims: Dims) -> None:
        super().__init__()
        n = spec._n_heads
        self.join = Linear(width, dims.d_model, bias=False)
        self.think = spec.think.build(dims)
        self.shares_2H = nn.Parameter(torch.zeros(2, n))

    def draw(self) -> None:
        """Draw shares that are uniform before they are normalised."""
        # a softmax of logarithms divides what was drawn by its sum
        self.shares_2H.data.uniform_(1e-3, 1.0).log_()

    def forward(self, y_BLd: Tensor) -> Tensor:
        before_H, after_H = self.shares_2H.softmax(1)
        n = len(after_H)
        # the share of a head is one number, so it can be in its map
        w_HKD = (self.join.weight.unflatten(1, (n, -1)) * before_H[:, None]).permute(1, 2, 0)
        y_HTK = y_BLd.flatten(0, 1).unflatten(1, (n, -1)).transpose(0, 1)
        # branches are examples to the feed-forward, which knows of each position alone
        u_HTD, _ = self.think(y_HTK @ w_HKD, Context(), None)
        return torch.tensordot(after_H.to(u_HTD.dtype), u_HTD, 1).unflatten(0, y_BLd.shape[:2])
