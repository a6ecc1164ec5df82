"""Segment-level recurrence: attention to cached states of earlier segments (Transformer-XL, Dai et al. 2019).

In training the memory is hidden states without a gradient, projected anew by the weights of each step (Dai et al.
2019, section 3.2). While decoding and in evaluation weights do not change, so that keys, values and the keys of
distances are kept as they are projected, which is the same and saves most of the work.
"""

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.core.context import Context
from kinfolk.core.device import arange, host, remember, send
from kinfolk.core.errors import SpecError
from kinfolk.layers.mixers.attention import Attention, SelfAttentionModule, scoring_of
from kinfolk.layers.module import Dims
from kinfolk.layers.part import PartModule
from kinfolk.layers.positions.position import Hooks
from kinfolk.layers.states.kv_cache import Ring, Rolling
from kinfolk.ops.attention.attend import attend
from kinfolk.ops.attention.scores import View
from kinfolk.ops.patterns.leaves import Pattern


class SegmentAttention(Attention, kind="segment-attention"):
    r"""Segment-level recurrence: attention to $[\mathrm{sg}(m) \circ h]$, memory and segment (Dai et al. 2019, 3.2).

    The memory holds the inputs of the positions that the pattern may still look at, whatever the length of a segment.
    Distances must be said relatively. In a pre-norm block the segment memory has passed the norm.
    """

    def build(self, dims: Dims) -> PartModule:
        if not self.pattern.causal:
            raise SpecError(f"segment-attention: {self.pattern} lets a query see later keys, which are not there yet")
        return _SegmentAttention(self, dims)


def remembering(look: Attention) -> SegmentAttention:
    """Give an attention a memory."""
    fields = {field.name: getattr(look, field.name) for field in dataclasses.fields(look)}
    return SegmentAttention(**fields)


class Recollection:
    """Segment memory: inputs at the positions before a segment; `keep` false at gaps, `group` the packed document.

    Groups count from the document that the segment goes on with, so that older ones are negative. What a segment adds
    waits in `_newest` until the step is over.
    """

    def __init__(self) -> None:
        self.x_BMD: Tensor | None = None
        self.keep_BM: Tensor | None = None
        self.group_BM: Tensor | None = None
        self._newest: tuple[Tensor, Tensor | None, Tensor | None] | None = None

    def past(self, x_BLD: Tensor) -> Tensor:
        """Return the segment memory, empty at the beginning."""
        return x_BLD[:, :0].detach() if self.x_BMD is None else self.x_BMD.to(x_BLD.dtype)

    def masks(self, ctx: Context, n: int) -> tuple[Tensor | None, Tensor | None]:
        """Return which of the remembered and the `n` new positions are real, and their documents; None: all, one."""
        keep_BL = None if ctx.padding is None else ctx.padding.keep_BL
        return _joined(self.keep_BM, keep_BL, self._size, n, True), _joined(
            self.group_BM, ctx.group_BL, self._size, n, 0
        )

    def note(self, x_BLD: Tensor, ctx: Context, n_kept: int) -> None:
        """Take note of a segment: the last `n_kept` positions are what the next one may see."""
        keep_BM, group_BM = self.masks(ctx, x_BLD.shape[1])
        # no gradient crosses the border of a segment
        x_BMD = torch.cat([self.past(x_BLD), x_BLD.detach()], 1)
        first = max(0, x_BMD.shape[1] - n_kept)
        keep_BM = None if keep_BM is None else keep_BM[:, first:]
        group_BM = None if group_BM is None else group_BM[:, first:] - group_BM[:, -1:]
        # a copy: a view would hold on to all that it is a part of
        self._newest = x_BMD[:, first:].clone(), keep_BM, group_BM

    def settle(self) -> None:
        """Remember the segment that was noted."""
        if self._newest is not None:
            self.x_BMD, self.keep_BM, self.group_BM = self._newest
            self._newest = None

    def forget(self, rows_B: Tensor) -> None:
        """Reset these examples."""
        if self.x_BMD is None or not bool(rows_B.any()):
            return
        if bool(rows_B.all()):
            self.x_BMD = self.keep_BM = self.group_BM = None
            return
        old = torch.ones_like(self.x_BMD[..., 0], dtype=torch.bool) if self.keep_BM is None else self.keep_BM
        self.keep_BM = old & ~send(rows_B, old.device)[:, None]

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint has to hold."""
        if self.x_BMD is None:
            return {}
        shape, device = self.x_BMD.shape[:2], self.x_BMD.device
        keep = torch.ones(shape, dtype=torch.bool, device=device) if self.keep_BM is None else self.keep_BM
        group = torch.zeros(shape, dtype=torch.long, device=device) if self.group_BM is None else self.group_BM
        return {"x": self.x_BMD, "keep": keep, "group": group}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Be what `tensors` said."""
        self.x_BMD, keep, group = (tensors.get(name) for name in ("x", "keep", "group"))
        self.keep_BM = None if keep is None or bool(keep.all()) else keep
        self.group_BM = None if group is None or not bool(group.any()) else group

    @property
    def _size(self) -> tuple[int, int]:
        return (0, 0) if self.x_BMD is None else (self.x_BMD.shape[0], self.x_BMD.shape[1])


def _joined(old: Tensor | None, new: Tensor | None, size: tuple[int, int], n: int, filler: int) -> Tensor | None:
    """Join two masks of positions, either of which may be left out if it holds nothing but the filler."""
    if old is None and new is None:
        return None
    if new is None:
        assert old is not None
        new = old.new_full((size[0], n), filler)
    if old is None:
        old = new.new_full((len(new), size[1]), filler)
    return torch.cat([old, new], 1)


class _SegmentAttention(SelfAttentionModule):
    def forward(self, x_BLD: Tensor, ctx: Context, state: object) -> tuple[Tensor, object]:  # type: ignore[override]
        if isinstance(state, Recollection):
            return self._segment(x_BLD, ctx, state), state
        if isinstance(state, Rolling) and state.fits(ctx):
            return self._go_on(x_BLD, ctx, state), state
        return super().forward(x_BLD, ctx, state.ring if isinstance(state, Rolling) else None)[0], state

    def new_memory(self) -> Recollection:
        return Recollection()

    def new_state(self, batch_size: int, max_len: int) -> Rolling:  # type: ignore[override]
        """Return room for what may be seen twice over, so that it has to be moved now and then only."""
        ring = super().new_state(batch_size, max_len)
        room = 2 * ring.k_BGMK.shape[2] if isinstance(ring, Ring) else max_len
        return Rolling(ring, room, self.spec.pattern)

    def _segment(self, x_BLD: Tensor, ctx: Context, memory: Recollection) -> Tensor:
        pattern, n = self.spec.pattern, x_BLD.shape[1]
        past_BMD, stop = memory.past(x_BLD), ctx.start + n
        keep_BM, group_BM = memory.masks(ctx, n)
        memory.note(x_BLD, ctx, stop - pattern.first_seen(stop))
        q_BHLK, k_BGLK, v_BGLK = self._heads(self.qkv(x_BLD), self.heads)
        q_BHLK, k_BGLK = self.position.turn(q_BHLK, k_BGLK, ctx)
        if past_BMD.shape[1]:
            # queries are not remembered, so the memory passes through the maps of keys and values only
            d_q, bias = self.heads[0] * self.d_head, self.qkv.bias
            packed = F.linear(past_BMD, self.qkv.weight[d_q:], None if bias is None else bias[d_q:])
            old_k, old_v = self._heads(packed, self.heads[1:])
            before = ctx.replace(start=ctx.start - past_BMD.shape[1])
            old_k = self.position.turn(old_k, old_k, before)[1]
            k_BGLK, v_BGLK = torch.cat([old_k, k_BGLK], 2), torch.cat([old_v, v_BGLK], 2)
        n_keys = k_BGLK.shape[2]
        view = positioned(pattern, ctx.start, n, n_keys, x_BLD.device)
        # right padding needs no mask of its own: a causal pattern hides what it is to hide
        keep_BM = None if memory.keep_BM is None and ctx.padding is not None and ctx.padding.right else keep_BM
        group_BL = None if group_BM is None else group_BM[:, n_keys - n :]
        view = View(view.start, view.q_pos_BL, view.k_pos_BM, keep_BM, group_BL, group_BM, ctx.visible_pairs)
        hooks = self.position.hooks(ctx, n_keys, True)
        return self._attend(q_BHLK, k_BGLK, v_BGLK, ctx, view, hooks)

    def _go_on(self, x_BLD: Tensor, ctx: Context, state: Rolling) -> Tensor:
        q_BHLK, k_BGLK, v_BGLK = self._heads(self.qkv(x_BLD), self.heads)
        q_BHLK, k_BGLK = self.position.turn(q_BHLK, k_BGLK, ctx)
        k_BGMK, v_BGMK = state.append(k_BGLK, v_BGLK, ctx.start)
        n, n_keys = x_BLD.shape[1], k_BGMK.shape[2]
        if state.hooks is None or state.n_hooks < n_keys:
            state.n_hooks = max(n_keys, min(2 * n_keys, state.room))
            state.hooks = self.position.kept_hooks(state.n_hooks, True)
        hooks = state.hooks or self.position.hooks(ctx, n_keys, True)
        view = positioned(self.spec.pattern, ctx.start, n, n_keys, x_BLD.device)
        return self._attend(q_BHLK, k_BGMK, v_BGMK, ctx, view, hooks)

    def _heads(self, packed_BLD: Tensor, heads: list[int]) -> list[Tensor]:
        packed_BLHK = packed_BLD.unflatten(-1, (-1, self.d_head))
        return [x.transpose(1, 2) for x in packed_BLHK.split_with_sizes(heads, dim=2)]

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, ctx: Context, view: View, hooks: Hooks) -> Tensor:
        scoring = scoring_of(self, ctx, hooks, self.spec.scale or None)
        y_BHLK = attend(q, k, v, self.spec.pattern, view, scoring)
        return self.out(y_BHLK.transpose(1, 2).flatten(2))


def positioned(pattern: Pattern, start: int, n: int, n_keys: int, device: torch.device) -> View:
    """Say that `n` queries are at `start`, `start + 1`, … and keys at the `n_keys` positions that end with them."""
    if pattern.stationary or n_keys == start + n:
        return View(start=n_keys - n)
    stop = start + n
    q_pos, k_pos = (arange(stop - m, stop, device) for m in (n, n_keys))
    return View(q_pos_BL=_row(q_pos), k_pos_BM=_row(k_pos))


def _row(x_L: Tensor) -> Tensor:
    return x_L[None] if x_L.device.type == "cpu" else remember(x_L[None], host(x_L)[None])
