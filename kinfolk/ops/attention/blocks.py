"""Sparse attention by gathered blocks: for each block of queries, only the blocks of keys that its pattern touches.

On CPU the fused kernel runs on the gathered tiles, forward and backward, and nothing of size L x M exists. Where the
key blocks of consecutive query blocks slide along by one (windows), they are read in place instead of copied.
Tiles are worked off in chunks of bounded size, and the backward pass gathers again instead of remembering.

Where a plan has several sheets, each gives an output and the logarithm of its normaliser; the outputs are averaged by
the normalisers, which is one softmax over all sheets. In the backward pass each sheet gets the common output and
normaliser, and its gradients are then those of its pairs in the common softmax.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from kinfolk.core.device import send
from kinfolk.ops.attention import scores
from kinfolk.ops.attention.scores import PLAIN_VIEW, Scoring, View, allowed, keeps_too_much, positions
from kinfolk.ops.patterns.leaves import Full, Pattern
from kinfolk.ops.patterns.plan import Extent, Sheet, TileGroup, TilePlan, plan

CHUNK_BYTES = 24 << 20
"""Gathered keys and masks of one chunk stay below this, whatever the length."""

EVERYTHING = Full()

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class Tiling(NamedTuple):
    """Side of a tile, and how many explicit scores are kept for the backward pass: more are recomputed."""

    block: int
    kept_pairs: int


def attend_blocks(
    q_BHLK: Tensor, k_BHMK: Tensor, v_BHMK: Tensor, pattern: Pattern, view: View, scoring: Scoring, tiling: Tiling
) -> Tensor:
    """Attend by gathered blocks; the contract is that of `attend`. Reference: `kinfolk.ops.naive.attend`."""
    if scoring.plain and view.plain and _has_flex(q_BHLK.device):
        from kinfolk.ops.attention import flex

        with contextlib.suppress(flex.CompilationLimitError):
            return flex.attend_flex(q_BHLK, k_BHMK, v_BHMK, pattern, view.start, scoring.scale)
    blocks = plan(pattern, q_BHLK.shape[2], k_BHMK.shape[2], view.start, tiling.block)
    if q_BHLK.device.type == "cpu" and scoring.plain and q_BHLK.dtype in (torch.float32, torch.float64):
        out: Tensor = _FusedBlocks.apply(q_BHLK, k_BHMK, v_BHMK, blocks, view, scoring.scale)
        return out
    return _explicit_blocks(q_BHLK, k_BHMK, v_BHMK, blocks, view, scoring, tiling.kept_pairs)


def _has_flex(device: torch.device) -> bool:
    """Tell whether FlexAttention has kernels for a device, the backward pass included."""
    return device.type == "cuda"


class _Tile(NamedTuple):
    """Some rows of a tile group, with the indices of their queries and keys."""

    group: TileGroup
    rows: slice
    q_at_rq: Tensor
    k_at_rk: Tensor


class _FusedBlocks(torch.autograd.Function):
    """The fused CPU kernel over gathered tiles. Saves inputs, output and one number per query, nothing gathered."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, tiling: TilePlan, view: View, scale: float | None) -> Tensor:
        outs, norms = zip(*(_sheet_forward(q, k, v, sheet, view, scale) for sheet in tiling.sheets), strict=True)
        out, norm = _combine(outs, norms)
        ctx.save_for_backward(q, k, v, out, norm)
        ctx.how = tiling, view, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Any, ...]:
        saved, (tiling, view, scale) = ctx.saved_tensors, ctx.how
        total: list[Tensor] = []
        for sheet in tiling.sheets:
            grads = _sheet_backward(saved, d_out, sheet, view, scale)
            total = [a.add_(b) for a, b in zip(total, grads, strict=True)] if total else list(grads)
        return *total, None, None, None


def _sheet_forward(
    q: Tensor, k: Tensor, v: Tensor, sheet: Sheet, view: View, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Return the output of one sheet and the logarithm of its normaliser [B, L, H]."""
    what, like = sheet.extent, q
    q, k, v = _fold_q(q, what), _fold_k(k, what), _fold_k(v, what)
    out, norm = torch.zeros_like(q), q.new_zeros(q.shape[0], q.shape[2], q.shape[1])
    for example in range(len(q)):
        q_b, out_b = (_blocks(x[example], what.q_block) for x in (q, out))
        norm_b = norm[example].unflatten(0, (-1, what.q_block)).transpose(1, 2)
        norm_b.fill_(-torch.inf)
        for tile, bias in _tiles(sheet, view, example, like):
            k_t, v_t = (_gather(x[example], tile, what) for x in (k, v))
            rows = _rows(tile)
            out_b[rows], norm_t = _forward(q_b[rows], k_t, v_t, 0.0, False, attn_mask=bias, scale=scale)
            # the kernel says 0 for a query that sees nothing here
            norm_b[rows] = norm_t if bias is None else norm_t.masked_fill(bias.amax(-1) == -torch.inf, -torch.inf)
    return _unfold(out, 2, what), _unfold(norm, 1, what)


def _sheet_backward(
    saved: tuple[Tensor, ...], d_out: Tensor, sheet: Sheet, view: View, scale: float | None
) -> tuple[Tensor, ...]:
    """Return the gradients that the pairs of one sheet give to queries, keys and values."""
    what, like = sheet.extent, saved[0]
    q, out, d_out = (_fold_q(x, what) for x in (saved[0], saved[3], d_out))
    k, v = (_fold_k(x, what) for x in saved[1:3])
    norm = _fold(saved[4], 1, what.q_order, what.q_block, what.fold)
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for example in range(len(q)):
        q_b, out_b, d_out_b, dq_b = (_blocks(x[example], what.q_block) for x in (q, out, d_out, dq))
        norm_b = norm[example].unflatten(0, (-1, what.q_block)).transpose(1, 2)
        for tile, bias in _tiles(sheet, view, example, like):
            k_t, v_t = (_gather(x[example], tile, what) for x in (k, v))
            r = _rows(tile)
            dq_b[r], dk_t, dv_t = _backward(
                d_out_b[r], q_b[r], k_t, v_t, out_b[r], norm_b[r], 0.0, False, attn_mask=bias, scale=scale
            )
            _scatter_add(dk[example], dk_t, tile, what)
            _scatter_add(dv[example], dv_t, tile, what)
    return _unfold(dq, 2, what), _unfold_k(dk, what), _unfold_k(dv, what)


def _combine(outs: tuple[Tensor, ...], norms: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Average the outputs of sheets by their normalisers; who sees nothing at all gets 0."""
    if len(outs) == 1:
        # finite, since the backward pass takes exp(score - norm), and -inf less -inf is nan
        return outs[0], norms[0].masked_fill(norms[0] == -torch.inf, 0.0)
    norm_BLH = torch.stack(norms).logsumexp(0)
    norm_BLH = norm_BLH.masked_fill(norm_BLH == -torch.inf, 0.0)
    # exp(n - norm): at most 1, and 0 for a sheet in which the query sees nothing
    shares = ((n - norm_BLH).exp().transpose(1, 2).unsqueeze(-1) for n in norms)
    return sum((o * s for o, s in zip(outs, shares, strict=True)), torch.zeros_like(outs[0])), norm_BLH


def _explicit_blocks(
    q: Tensor, k: Tensor, v: Tensor, blocks: TilePlan, view: View, scoring: Scoring, kept_pairs: int
) -> Tensor:
    """Attend tile by tile under autograd: hooks, dropout, and devices without the fused kernel."""
    several = len(blocks.sheets) > 1
    sheets = (_explicit_sheet(q, k, v, sheet, view, scoring, (several, kept_pairs)) for sheet in blocks.sheets)
    outs, norms = zip(*sheets, strict=True)
    return _combine(outs, norms)[0] if several else outs[0]


def _explicit_sheet(
    q: Tensor, k: Tensor, v: Tensor, sheet: Sheet, view: View, scoring: Scoring, kept: tuple[bool, int]
) -> tuple[Tensor, Tensor]:
    normaliser, kept_pairs = kept
    what = sheet.extent
    q_BHnqK = _fold_q(q, what).unflatten(2, (-1, what.q_block))
    k_BHnkK, v_BHnkK = (_fold_k(x, what).unflatten(2, (-1, what.k_block)) for x in (k, v))
    again = keeps_too_much(q, sheet.scores, scoring, kept_pairs)
    rows, outs, norms = [], [], []
    for tile in _chunks(sheet, q):
        given = q_BHnqK, k_BHnkK, v_BHnkK, tile, sheet.pattern, view, scoring, normaliser
        out_t, norm_t = checkpoint(_explicit_tile, *given, use_reentrant=False) if again else _explicit_tile(*given)
        rows.append(tile.group.rows_r[tile.rows])
        outs.append(out_t)
        norms += [] if norm_t is None else [norm_t]
    # blocks that see nothing are in no tile
    out_BHnqK, norm_BHnq = torch.zeros_like(q_BHnqK), torch.full_like(q_BHnqK[..., 0], -torch.inf)
    if rows:
        rows_r = send(torch.cat(rows), q.device)
        out_BHnqK = out_BHnqK.index_copy(2, rows_r, torch.cat(outs, 2))
    if norms:
        norm_BHnq = norm_BHnq.index_copy(2, rows_r, torch.cat(norms, 2))
    return _unfold(out_BHnqK.flatten(2, 3), 2, what), _unfold(norm_BHnq.flatten(2, 3).transpose(1, 2), 1, what)


def _explicit_tile(
    q_BHnqK: Tensor,
    k_BHnkK: Tensor,
    v_BHnkK: Tensor,
    tile: _Tile,
    pattern: Pattern,
    view: View,
    scoring: Scoring,
    normaliser: bool,
) -> tuple[Tensor, Tensor | None]:
    device = q_BHnqK.device
    cols, rows = tile.group.cols_rc[tile.rows], send(tile.group.rows_r[tile.rows], device)
    k_BHrkK, v_BHrkK = (_pick(x, cols).flatten(3, 4) for x in (k_BHnkK, v_BHnkK))
    q_at, k_at = send(tile.q_at_rq, device), send(tile.k_at_rk, device)
    ok = allowed(pattern, view, q_at, k_at)
    pos = positions(view, q_at, k_at)
    q_BHrqK = q_BHnqK.index_select(2, rows)
    return scores.softmax_product(q_BHrqK, k_BHrkK, v_BHrkK, ok, pos, scoring, normaliser)


def _pick(x_BHnkK: Tensor, cols_rc: Tensor) -> Tensor:
    """Return some blocks of keys or values for each row; read in place for a single row of consecutive blocks."""
    n_rows, n_columns = cols_rc.shape
    first = int(cols_rc[0, 0])
    if n_rows == 1 and first >= 0 and int(cols_rc[0, -1]) - first == n_columns - 1:
        return x_BHnkK[:, :, None, first : first + n_columns]
    at = send(cols_rc.flatten().clamp(min=0), x_BHnkK.device)
    return x_BHnkK.index_select(2, at).unflatten(2, cols_rc.shape)


def _fold(x: Tensor, dim: int, order: Tensor, block: int, fold: int) -> Tensor:
    """Put an axis into folded order, filled up to whole blocks."""
    if fold > 1:
        x = x.index_select(dim, send(order, x.device))
    missing = -x.shape[dim] % block
    return F.pad(x, (0, 0) * (x.ndim - 1 - dim) + (0, missing)) if missing else x


def _fold_q(x_BHLK: Tensor, what: Extent) -> Tensor:
    return _fold(x_BHLK, 2, what.q_order, what.q_block, what.fold)


def _fold_k(x_BHMK: Tensor, what: Extent) -> Tensor:
    return _fold(x_BHMK, 2, what.k_order, what.k_block, what.fold)


def _unfold(x: Tensor, dim: int, what: Extent) -> Tensor:
    """Bring the queries' axis back into its own order and length."""
    x = x.narrow(dim, 0, what.n_q)
    return x if what.fold == 1 else x.index_select(dim, send(what.q_order.argsort(), x.device))


def _unfold_k(x_BHMK: Tensor, what: Extent) -> Tensor:
    x_BHMK = x_BHMK.narrow(2, 0, what.n_k)
    return x_BHMK if what.fold == 1 else x_BHMK.index_select(2, send(what.k_order.argsort(), x_BHMK.device))


def _blocks(x_HLK: Tensor, block: int) -> Tensor:
    """View [H, L, K] as [n, H, block, K]."""
    return x_HLK.unflatten(1, (-1, block)).transpose(0, 1)


def _rows(tile: _Tile) -> Tensor | slice:
    """Index the query blocks of a tile: by a slice where they are consecutive, so that nothing is copied."""
    rows = tile.group.rows_r[tile.rows]
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else rows


def _chunks(sheet: Sheet, like: Tensor) -> Iterator[_Tile]:
    """Cut every group into runs of rows whose gathered keys, values and mask fit in a chunk."""
    what = sheet.extent
    in_q, in_k = torch.arange(what.q_block), torch.arange(what.k_block)
    for group in sheet.groups:
        n_keys = group.cols_rc.shape[1] * what.k_block
        # keys and values of all heads, and the mask of every query
        per_row = n_keys * (2 * like.shape[1] * like.shape[-1] + what.q_block) * like.element_size()
        step = max(1, CHUNK_BYTES // per_row)
        for first in range(0, len(group.rows_r), step):
            rows = slice(first, min(first + step, len(group.rows_r)))
            # queries beyond the end are cut off afterwards; until then they repeat the last one
            q_at = (group.rows_r[rows, None] * what.q_block + in_q).clamp(max=what.n_q - 1)
            cols = group.cols_rc[rows]
            k_at = cols[..., None] * what.k_block + in_k
            there = (cols >= 0)[..., None] & (k_at < what.n_k)
            k_at = what.k_order[k_at.clamp(0, what.n_k - 1)].masked_fill(~there, -1)
            yield _Tile(group, rows, what.q_order[q_at], k_at.flatten(1))


def _tiles(sheet: Sheet, view: View, example: int, like: Tensor) -> Iterator[tuple[_Tile, Tensor | None]]:
    """Yield tiles with their additive mask [rows or 1, 1, q, k], or without one where every pair is allowed."""
    mine = _one_example(view, example)
    for tile in _chunks(sheet, like):
        pattern = EVERYTHING if tile.group.filled else sheet.pattern
        if tile.group.filled and view.plain and bool((tile.k_at_rk >= 0).all()):
            yield tile, None
        elif tile.group.alike and view.plain:
            at = tuple((x[0] + start).tolist() for x, start in ((tile.q_at_rq, view.start), (tile.k_at_rk, 0)))
            yield tile, _shared_mask(pattern, *map(tuple, at), like.dtype)
        else:
            ok = allowed(pattern, mine, tile.q_at_rq, tile.k_at_rk)[0]
            yield tile, _additive(ok.unsqueeze(1), like.dtype)


@functools.lru_cache(maxsize=64)
def _shared_mask(pattern: Pattern, q_pos: tuple[int, ...], k_pos: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    ok = allowed(pattern, PLAIN_VIEW, torch.tensor([q_pos]), torch.tensor([k_pos]))
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
        until_BL=pick(view.until_BL),
    )


def _gather(x_HMK: Tensor, tile: _Tile, what: Extent) -> Tensor:
    """Return the keys or values of a tile as [r, H, c * block, K]: read in place if they slide, else copied."""
    cols_rc = tile.group.cols_rc[tile.rows]
    n_rows, n_columns = cols_rc.shape
    if tile.group.sliding:
        first, n_keys = int(cols_rc[0, 0]) * what.k_block, n_columns * what.k_block
        strip_HmK = x_HMK[:, first : first + (n_rows - 1) * what.q_block + n_keys]
        return strip_HmK.unfold(1, n_keys, what.q_block).permute(1, 0, 3, 2)
    # heads last, as the maps of a layer leave them: whole rows are copied, and only once
    x_rcbHK = x_HMK.transpose(0, 1).unflatten(0, (-1, what.k_block))[cols_rc.clamp(min=0)]
    return x_rcbHK.flatten(1, 2).transpose(1, 2)


def _scatter_add(d_HMK: Tensor, d_tile: Tensor, tile: _Tile, what: Extent) -> None:
    """Add the gradients of a tile's keys or values to where they came from."""
    cols_rc = tile.group.cols_rc[tile.rows]
    n_rows, n_columns = cols_rc.shape
    d_nHbK, d_rHcbK = _blocks(d_HMK, what.k_block), d_tile.unflatten(2, (n_columns, what.k_block))
    if tile.group.sliding:
        first, step = int(cols_rc[0, 0]), what.q_block // what.k_block
        # consecutive rows share key blocks, so one column at a time: within it every row has another block
        for c in range(n_columns):
            d_nHbK[first + c : first + c + (n_rows - 1) * step + 1 : step] += d_rHcbK[:, :, c]
        return
    # fillers were masked, so their gradient is zero and may land on block 0
    d_nHbK.index_add_(0, cols_rc.clamp(min=0).flatten(), d_rHcbK.transpose(1, 2).flatten(0, 1))
