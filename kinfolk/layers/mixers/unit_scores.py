"""Queries and keys on the unit sphere with a shared gain, behind the rotation (nGPT, Loshchilov et al. 2024)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.core.context import Context
from kinfolk.core.cost import Cost
from kinfolk.layers.mixers.attention_extras import Extra, ExtraModule, HeadWidths
from kinfolk.layers.module import Dims


class UnitScores(Extra, kind="unit-scores"):
    r"""nGPT's scores $(s \odot \hat q) \cdot (s \odot \hat k)$ of unit vectors, one gain s for each channel of a head.

    Loshchilov et al. 2024 (nGPT, arXiv:2410.01131), equations 15 and 16: s begins at 1 and is stored times
    $D^{-1/2}$, so that the optimiser moves it as fast as unit vectors. Heads that share keys share the gain.
    """

    def build(self, dims: Dims, heads: HeadWidths, scale: float) -> ExtraModule:
        return _UnitScores(dims, heads)

    def cost(self, dims: Dims, heads: HeadWidths) -> Cost:
        n = heads.n_heads + heads.n_kv
        return Cost(heads.n_kv * heads.d_head, 5.0 * n * heads.d_head, n * (2 * heads.d_head + 1))


class _UnitScores(ExtraModule):
    def __init__(self, dims: Dims, heads: HeadWidths) -> None:
        super().__init__()
        self.stored, self.share = dims.d_model**-0.5, heads.n_heads // heads.n_kv
        self.gain_G1K = nn.Parameter(torch.full((heads.n_kv, 1, heads.d_head), self.stored))

    def draw(self) -> None:
        """Begin with a gain of 1."""
        nn.init.constant_(self.gain_G1K, self.stored)

    def scored(self, q: Tensor, k: Tensor, x_BLD: Tensor, ctx: Context, state: None) -> tuple[Tensor, Tensor]:
        gain_G1K = (self.gain_G1K / self.stored).to(q.dtype)
        return F.normalize(q, dim=-1) * gain_G1K.repeat_interleave(self.share, 0), F.normalize(k, dim=-1) * gain_G1K
