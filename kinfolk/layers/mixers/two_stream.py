"""Two-stream attention: a content stream and a query stream (XLNet, Yang et al. 2019).

A query is at the position it predicts but is no key, so that the two streams are one sequence: first the
content, then the questions, and `ctx.visible_pairs` says which content each of both may look at. The mathematics is
that of any attention. Without `visible_BLM` there are no questions, and all see all.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.core.annotations import Segments
from kinfolk.core.bounds import NonNegativeInt
from kinfolk.core.context import Context, Padding
from kinfolk.core.cost import Cost, Shape
from kinfolk.core.errors import SpecError
from kinfolk.layers.mixers.attention import Attention, SelfAttentionModule, scoring_of
from kinfolk.layers.mixers.segment_attention import Recollection
from kinfolk.layers.module import Dims
from kinfolk.layers.part import PartModule
from kinfolk.layers.positions.position import Heads, Hooks, PositionModule
from kinfolk.layers.positions.relative import XL, XLModule
from kinfolk.ops.attention.attend import attend
from kinfolk.ops.attention.scores import View
from kinfolk.ops.patterns.leaves import Full


class TwoStreamAttention(Attention, kind="two-stream-attention"):
    """Two-stream attention to content in both directions and to `memory` positions before it (sections 2.3 and 2.4).

    The segment memory is the content that a layer read, without a gradient, as in Transformer-XL. Distances must be
    said relatively, since a memory has no place in the sequence.
    """

    memory: NonNegativeInt = 0

    def build(self, dims: Dims) -> PartModule:
        if not isinstance(self.pattern, Full):
            raise SpecError(
                f"two-stream-attention: the attention mask comes from the batch, not from the pattern {self.pattern}"
            )
        return _TwoStreamAttention(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        # the table of distances has a row for each in either direction; those of one are counted by the position
        width = self.n_heads * (self.d_head or dims.d_model // self.n_heads)
        rows = Cost(flops=2.0 * width * (dims.d_model + shape.length), kept=2 * width + dims.d_model)
        return super().cost(dims, shape) + rows


class _TwoStreamAttention(SelfAttentionModule):
    spec: TwoStreamAttention

    def forward(self, x_BLD: Tensor, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        memory = state if isinstance(state, Recollection) else Recollection()
        n_content = x_BLD.shape[1] if ctx.visible_pairs is None else ctx.visible_pairs.shape[2]
        content_BMD, own = x_BLD[:, :n_content], _of_content(ctx, n_content)
        past_BMD = memory.past(x_BLD)
        keep_BM, group_BM = memory.masks(own, n_content)
        if self.spec.memory and isinstance(state, Recollection):
            memory.note(content_BMD, own, self.spec.memory)
        q_BHLK, k_BGMK, v_BGMK = self._project(x_BLD, torch.cat([past_BMD, content_BMD], 1))
        hooks = self.position.hooks(ctx, k_BGMK.shape[2], False)
        scoring = scoring_of(self, ctx, hooks, self.spec.scale or None)
        content = View(
            past_BMD.shape[1], None, None, keep_BM, _own_group(ctx, group_BM, x_BLD), group_BM, ctx.visible_pairs
        )
        out = [
            attend(q_BHLK[:, :, rows], k_BGMK, v_BGMK, self.spec.pattern, view, scoring)
            for rows, view in _streams(content, ctx, n_content, x_BLD.shape[1])
        ]
        y_BHLK = out[0] if len(out) == 1 else torch.cat(out, 2)
        return self.out(y_BHLK.transpose(1, 2).flatten(2)), state

    def new_memory(self) -> Recollection | None:
        return Recollection() if self.spec.memory else None

    def _project(self, x_BLD: Tensor, seen_BMD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries are of all positions, keys and values of what is seen alone."""
        d_q, bias = self.heads[0] * self.d_head, self.qkv.bias
        b_q, b_kv = (None, None) if bias is None else (bias[:d_q], bias[d_q:])
        q_BLD = F.linear(x_BLD, self.qkv.weight[:d_q], b_q)
        k_BMD, v_BMD = F.linear(seen_BMD, self.qkv.weight[d_q:], b_kv).chunk(2, -1)
        q, k, v = (x.unflatten(-1, (-1, self.d_head)).transpose(1, 2) for x in (q_BLD, k_BMD, v_BMD))
        return q, k, v


def _of_content(ctx: Context, n: int) -> Context:
    """Narrow the masks to the content."""
    keep_BL = None if ctx.padding is None else ctx.padding.keep_BL[:, :n]
    group_BL = None if ctx.group_BL is None else ctx.group_BL[:, :n]
    return ctx.replace(padding=None if keep_BL is None else Padding(keep_BL, True), group_BL=group_BL)


def _own_group(ctx: Context, group_BM: Tensor | None, x_BLD: Tensor) -> Tensor | None:
    """Return the documents of all positions, where keys are of different ones."""
    if group_BM is None or ctx.group_BL is not None:
        return ctx.group_BL
    return group_BM.new_zeros(x_BLD.shape[:2])


def _streams(whole: View, ctx: Context, n_content: int, n: int) -> Iterator[tuple[slice, View]]:
    """Yield the rows of content, which are consecutive, then those of questions, which are anywhere."""
    for rows in (slice(0, n_content), slice(n_content, n)):
        if rows.start == rows.stop:
            continue
        visible_BLM, group_BL, pos_BL = whole.visible_BLM, whole.q_group_BL, None
        if visible_BLM is not None:
            # nothing that is remembered is hidden
            visible_BLM = F.pad(visible_BLM[:, rows], (whole.start, 0), value=True)
        if rows.start:
            assert ctx.pos_BL is not None
            pos_BL = ctx.pos_BL[:, rows] + whole.start
        group_BL = None if group_BL is None else group_BL[:, rows]
        yield rows, dataclasses.replace(whole, q_pos_BL=pos_BL, q_group_BL=group_BL, visible_BLM=visible_BLM)


class XLSegments(XL, kind="xl-segments"):
    r"""Relative segments: distances of Transformer-XL, and $(q_i + b)\cdot s_{ij}$ (Yang et al. 2019, section 2.5).

    $s_{ij}$ is one vector if two positions are of the same segment and another if not; the segment memory belongs to
    the first segment. Where nothing is said about segments there is no such term.
    """

    def build(self, dims: Dims, heads: Heads | None = None) -> PositionModule:
        return _XLSegments(self, dims, self.inside(heads))

    def cost(self, dims: Dims, heads: Heads | None = None, scored: float = 0.0) -> Cost:
        heads = self.inside(heads)
        width = heads.n_heads * heads.d_head
        return super().cost(dims, heads, scored) + Cost(params=3 * width, kept=width)


class _XLSegments(XLModule):
    def __init__(self, spec: XLSegments, dims: Dims, heads: Heads) -> None:
        super().__init__(spec, dims, heads)
        # row 0 is b, row 1 the same segment, row 2 another; a table, so that it is drawn like the other weights
        self.segments = nn.Embedding(3, heads.n_heads * heads.d_head)

    def hooks(self, ctx: Context, n: int, causal: bool) -> Hooks:
        far = super().hooks(ctx, n, causal).bias
        assert far is not None
        segments = ctx.annotation(Segments)
        segments_BL = None if segments is None else segments.segments_BL
        if segments_BL is None:
            return Hooks(bias=far)
        # a question is about the segment of its position, so that the content knows all
        n_own = segments_BL.shape[1] if ctx.visible_pairs is None else ctx.visible_pairs.shape[2]
        own_BL = segments_BL[:, :n_own]
        other_BLM = own_BL.unsqueeze(-1) != F.pad(own_BL, (n - n_own, 0)).unsqueeze(-2)
        near = functools.partial(self._near, other_BLM, n - n_own)
        return Hooks(bias=lambda *tile: far(*tile) + near(*tile))

    def _near(
        self, other_BLM: Tensor, first: int, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, heads: slice
    ) -> Tensor:
        b_HK, same_HK, other_HK = self.segments.weight.unflatten(1, (self.heads.n_heads, -1))[:, heads]
        between = [1] * (q.ndim - 3)
        b, *vectors = (x.view(len(x), *between, x.shape[-1]) for x in (b_HK, same_HK, other_HK))
        asks = (q + b) * q.shape[-1] ** -0.5
        same, other = ((asks * x).sum(-1, keepdim=True) for x in vectors)
        example = torch.arange(len(other_BLM), device=q.device).view(-1, *[1] * q_pos.ndim)
        i, j = (q_pos - first).clamp(0, other_BLM.shape[1] - 1), k_pos.clamp(0, other_BLM.shape[2] - 1)
        return torch.where(other_BLM[example, i.unsqueeze(-1), j.unsqueeze(-2)].unsqueeze(1), other, same)
