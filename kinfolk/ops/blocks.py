"""Sparse attention by gathered blocks: for each block of queries, only the blocks of keys that its pattern touches.

On CPU the fused kernel runs on the gathered tiles, forward and backward, and nothing of size L x M exists. Where the
key blocks of consecutive query blocks slide along by one (windows), they are read in place instead of copied.
Tiles are worked off in chunks of bounded size, and the backward pass gathers again instead of remembering.
"""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from kinfolk.ops import attend as executor
from kinfolk.ops.attend import Scoring, View
from kinfolk.ops.pattern import Pattern
from kinfolk.ops.plan import Extent, Group, Plan, extent, plan

CHUNK_BYTES = 24 << 20
"""Gathered keys and masks of one chunk stay below this, whatever the length."""

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def attend_blocks(
    q_BHLK: Tensor, k_BHMK: Tensor, v_BHMK: Tensor, pattern: Pattern, view: View, scoring: Scoring
) -> Tensor:
    """Attend by gathered blocks; the contract is that of `attend`. Reference: `kinfolk.ops.naive.attend`."""
    if q_BHLK.is_cuda and scoring.plain and view.plain:
        from kinfolk.ops.flex import attend_flex

        return attend_flex(q_BHLK, k_BHMK, v_BHMK, pattern, view.start, scoring.scale)
    n_q, n_k = q_BHLK.shape[2], k_BHMK.shape[2]
    tiling = plan(pattern, extent(pattern, n_q, n_k, view.start, executor.BLOCK))
    q_BHLK = _pad(q_BHLK, -n_q % tiling.extent.q_block)
    k_BHMK, v_BHMK = (_pad(x, -n_k % tiling.extent.k_block) for x in (k_BHMK, v_BHMK))
    if q_BHLK.device.type == "cpu" and scoring.plain and q_BHLK.dtype in (torch.float32, torch.float64):
        out_BHLK = _FusedBlocks.apply(q_BHLK, k_BHMK, v_BHMK, tiling, pattern, view, scoring.scale)
    else:
        out_BHLK = _explicit_blocks(q_BHLK, k_BHMK, v_BHMK, tiling, pattern, view, scoring)
    return out_BHLK[:, :, :n_q]


class _Tile(NamedTuple):
    """Some rows of a group: which of the group's rows, and the indices they read."""

    group: Group
    rows: slice
    q_at_rq: Tensor
    k_at_rk: Tensor


class _FusedBlocks(torch.autograd.Function):
    """The fused CPU kernel over gathered tiles. Saves inputs, output and one number per query, nothing gathered."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, tiling: Plan, pattern: Pattern, view: View, scale: float | None
    ) -> Tensor:
        out = torch.zeros_like(q)
        norms = []
        for example in range(len(q)):
            q_b, out_b = (_blocks(x[example], tiling.extent.q_block) for x in (q, out))
            for tile, bias in _tiles(tiling, pattern, view, example, q):
                k_t, v_t = (_gather(x[example], tile, tiling.extent) for x in (k, v))
                rows = _rows(tile)
                out_t, norm = _forward(q_b[rows], k_t, v_t, 0.0, False, attn_mask=bias, scale=scale)
                out_b[rows] = out_t
                norms.append(norm)
        ctx.save_for_backward(q, k, v, out, *norms)
        ctx.how = tiling, pattern, view, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Any, ...]:
        q, k, v, out, *norms = ctx.saved_tensors
        tiling, pattern, view, scale = ctx.how
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        norm = iter(norms)
        for example in range(len(q)):
            q_b, out_b, d_out_b, dq_b = (_blocks(x[example], tiling.extent.q_block) for x in (q, out, d_out, dq))
            for tile, bias in _tiles(tiling, pattern, view, example, q):
                k_t, v_t = (_gather(x[example], tile, tiling.extent) for x in (k, v))
                rows = _rows(tile)
                dq_t, dk_t, dv_t = _backward(
                    d_out_b[rows], q_b[rows], k_t, v_t, out_b[rows], next(norm), 0.0, False, attn_mask=bias, scale=scale
                )
                dq_b[rows] = dq_t
                _scatter_add(dk[example], dk_t, tile, tiling.extent)
                _scatter_add(dv[example], dv_t, tile, tiling.extent)
        return dq, dk, dv, None, None, None, None


def _explicit_blocks(
    q: Tensor, k: Tensor, v: Tensor, tiling: Plan, pattern: Pattern, view: View, scoring: Scoring
) -> Tensor:
    """Attend tile by tile under autograd: hooks, dropout, and devices without the fused kernel."""
    what = tiling.extent
    q_BHnqK = q.unflatten(2, (-1, what.q_block))
    k_BHnkK, v_BHnkK = (x.unflatten(2, (-1, what.k_block)) for x in (k, v))
    out_BHnqK = torch.zeros_like(q_BHnqK)
    for tile in _chunks(tiling, q):
        cols = tile.group.cols_rc[tile.rows].clamp(min=0).to(q.device)
        rows = tile.group.rows_r[tile.rows].to(q.device)
        k_BHrkK, v_BHrkK = (x[:, :, cols].flatten(3, 4) for x in (k_BHnkK, v_BHnkK))
        q_at, k_at = tile.q_at_rq.to(q.device), tile.k_at_rk.to(q.device)
        ok, pos = executor.allowed(pattern, view, q_at, k_at), executor.positions(view, q_at, k_at)
        out_t = executor.softmax_product(q_BHnqK[:, :, rows], k_BHrkK, v_BHrkK, ok, pos, scoring)
        out_BHnqK = out_BHnqK.index_copy(2, rows, out_t)
    return out_BHnqK.flatten(2, 3)


def _pad(x_BHLK: Tensor, n: int) -> Tensor:
    return F.pad(x_BHLK, (0, 0, 0, n)) if n else x_BHLK


def _blocks(x_HLK: Tensor, block: int) -> Tensor:
    """View [H, L, K] as [n, H, block, K]."""
    return x_HLK.unflatten(1, (-1, block)).transpose(0, 1)


def _rows(tile: _Tile) -> Tensor | slice:
    """Index the query blocks of a tile: by a slice where they are consecutive, so that nothing is copied."""
    rows = tile.group.rows_r[tile.rows]
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else rows


def _chunks(tiling: Plan, like: Tensor) -> Iterator[_Tile]:
    """Cut every group into runs of rows whose gathered keys, values and mask fit in a chunk."""
    what = tiling.extent
    in_q, in_k = torch.arange(what.q_block), torch.arange(what.k_block)
    for group in tiling.groups:
        n_keys = group.cols_rc.shape[1] * what.k_block
        per_row = n_keys * (2 * like.shape[1] * like.shape[-1] + what.q_block) * like.element_size()
        step = max(1, CHUNK_BYTES // per_row)
        for first in range(0, len(group.rows_r), step):
            rows = slice(first, min(first + step, len(group.rows_r)))
            # queries beyond the end are cut off afterwards; until then they stand in for the last one
            q_at = (group.rows_r[rows, None] * what.q_block + in_q).clamp(max=what.n_q - 1)
            cols = group.cols_rc[rows]
            k_at = cols[..., None] * what.k_block + in_k
            k_at = k_at.masked_fill((cols < 0)[..., None] | (k_at >= what.n_k), -1)
            yield _Tile(group, rows, q_at, k_at.flatten(1))


def _tiles(tiling: Plan, pattern: Pattern, view: View, example: int, like: Tensor) -> Iterator[tuple[_Tile, Tensor]]:
    """Yield tiles with their additive mask [rows or 1, 1, q, k]."""
    mine = _one_example(view, example)
    for tile in _chunks(tiling, like):
        if tile.group.alike and view.plain:
            yield (
                tile,
                _shared_mask(pattern, tuple(tile.q_at_rq[0].tolist()), tuple(tile.k_at_rk[0].tolist()), like.dtype),
            )
        else:
            ok = executor.allowed(pattern, mine, tile.q_at_rq, tile.k_at_rk)[0]
            yield tile, _additive(ok.unsqueeze(1), like.dtype)


@functools.lru_cache(maxsize=64)
def _shared_mask(pattern: Pattern, q_at: tuple[int, ...], k_at: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    ok = executor.allowed(pattern, executor.PLAIN_VIEW, torch.tensor([q_at]), torch.tensor([k_at]))
    return _additive(ok, dtype)


def _additive(ok: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(ok.shape, dtype=dtype).masked_fill_(~ok, -torch.inf)


def _one_example(view: View, example: int) -> View:
    def pick(x: Tensor | None) -> Tensor | None:
        return None if x is None else x[example : example + 1]

    return View(
        start=view.start,
        keep_BM=pick(view.keep_BM),
        q_group_BL=pick(view.q_group_BL),
        k_group_BM=pick(view.k_group_BM),
        visible_BLM=pick(view.visible_BLM),
    )


def _gather(x_HMK: Tensor, tile: _Tile, what: Extent) -> Tensor:
    """Return the keys or values of a tile as [r, H, c * block, K]: read in place if they slide, else copied."""
    cols_rc = tile.group.cols_rc[tile.rows]
    n_rows, n_columns = cols_rc.shape
    if tile.group.sliding:
        first, n_keys = int(cols_rc[0, 0]) * what.k_block, n_columns * what.k_block
        strip_HmK = x_HMK[:, first : first + (n_rows - 1) * what.q_block + n_keys]
        return strip_HmK.unfold(1, n_keys, what.q_block).permute(1, 0, 3, 2)
    x_rcHbK = _blocks(x_HMK, what.k_block)[cols_rc.clamp(min=0)]
    return x_rcHbK.transpose(1, 2).flatten(2, 3)


def _scatter_add(d_HMK: Tensor, d_tile: Tensor, tile: _Tile, what: Extent) -> None:
    """Add the gradients of a tile's keys or values to where they came from."""
    cols_rc = tile.group.cols_rc[tile.rows]
    n_rows, n_columns = cols_rc.shape
    d_nHbK, d_rHcbK = _blocks(d_HMK, what.k_block), d_tile.unflatten(2, (n_columns, what.k_block))
    if tile.group.sliding:
        first, step = int(cols_rc[0, 0]), what.q_block // what.k_block
        for c in range(n_columns):
            d_nHbK[first + c : first + c + (n_rows - 1) * step + 1 : step] += d_rHcbK[:, :, c]
        return
    # fillers were masked, so their gradient is zero and may land on block 0
    d_nHbK.index_add_(0, cols_rc.clamp(min=0).flatten(), d_rHcbK.transpose(1, 2).flatten(0, 1))
