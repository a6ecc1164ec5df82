"""LSH attention: queries attend to keys of their hash bucket, found by sorting (Kitaev et al. 2020).

Queries and keys are one vector, k = q / |q|. In each round every token is hashed; sorted by bucket and position,
those that may attend to each other are close together, so tiles of the sorted order hold all pairs, and nothing of size
L x L exists. The attention mask is a test on integers, one per token and round: its place in the sorted order, with
gaps where a bucket ends (`ops.lsh_plan`). Where several rounds find the same pair, the first keeps it, so that the
rounds together are one softmax over the union of their sets.
"""

import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from kinfolk.core.device import full_precision
from kinfolk.core.shapes import shaped
from kinfolk.ops.lsh_plan import (
    BucketSight,
    Chunks,
    HashPlan,
    Looking,
    RecentKeys,
    Tiles,
    nowhere,
    plan,
    ranks,
    scores_per_query,
)

__all__ = ["BucketSight", "Chunks", "Looking", "RecentKeys", "attend_hashed", "keys", "ranks", "scores_per_query"]

EPS = 1e-6
"""Added to the mean square of a vector before it becomes a key."""
TILE_PAIRS = 1 << 19
"""Pairs that are scored at once: their masks stay in the cache."""
ROW_TOKENS = 1 << 13
"""Tokens, summed over examples and heads, that are worked on together."""
# finite, since masks are multiplied by it and 0 * inf is nan
_HIDDEN = 1e30

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@shaped(out="BHLK")
def attend_hashed(
    q_BHLK: Tensor,
    v_BHLK: Tensor,
    buckets_BHrL: Tensor,
    looking: Looking,
    keep_BL: Tensor | None = None,
    group_BL: Tensor | None = None,
) -> Tensor:
    r"""Attend to what the rounds of hashing find.

    $o_i = \sum_{j \in P_i} \mathrm{softmax}_{j \in P_i}(s\, q_i \cdot k_j)\, v_j$ with $k_j = q_j / |q_j|$ and $P_i$
    the union over rounds of the sets that `looking.sight` describes, without $i$ itself (Kitaev et al. 2020,
    appendix A, equations 11 to 16). A token whose $P_i$ is empty attends to itself: it gets $v_i$. Padding
    (`keep_BL` false) is never seen, nor are tokens of another group. With `looking.repeats` "each", $j$ weighs as
    often as rounds found it.

    Cost: rounds x L x 2 size scores (3 size for `RecentKeys` both ways), memory linear in L in both passes. Tokens move
    within tiles when other tokens come or go, so sums of long sequences agree to rounding, sets exactly.
    Reference: `kinfolk.ops.naive.lsh_attention`.
    """
    tiling, slot_BHrL = plan(buckets_BHrL, looking, keep_BL, group_BL)
    # what is hidden is too large a number for half precision
    with full_precision(q_BHLK):
        out: Tensor = _Hashed.apply(q_BHLK, v_BHLK, tiling, slot_BHrL, looking)
    return out


def keys(q: Tensor) -> Tensor:
    """Return the keys of queries: vectors of length 1."""
    return q * _norm(q)


def _norm(q: Tensor) -> Tensor:
    # eps is inside the root and beside the mean, as in Trax: the length becomes sqrt(|q|^2 + K eps)
    return (q.square().mean(-1, keepdim=True) + EPS).rsqrt() * q.shape[-1] ** -0.5


class _Rows(NamedTuple):
    """Some examples and heads as one flat row of tokens; behind the L tokens of each is one that no query sees."""

    qv_nK: Tensor  # queries beside values, gathered as one
    norm_n: Tensor  # 1 / |q|
    place_rn: Tensor  # doubled, so that the middle of any window is an integer
    wrap_rn: Tensor | None
    at_rbS: Tensor  # the flat token of each slot
    asks_rbS: Tensor  # the same, without copies
    position_rbS: Tensor  # and its position
    tiles: Tiles


class _Run(NamedTuple):
    """Consecutive tiles of some rows."""

    r: int
    rows: slice
    asks: slice  # the slots of their queries
    shows: slice  # the slots of their keys


class _Hashed(torch.autograd.Function):
    """LSH attention by tiles of the sorted order. Saves inputs, output and one number per query, nothing sorted."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, v: Tensor, laid: HashPlan, slot: Tensor, looking: Looking) -> Tensor:
        n_batch, n_heads, length, width = q.shape
        out = q.new_empty(n_batch, length, n_heads, width).transpose(1, 2)
        lse = q.new_empty(n_batch, n_heads, length, 1, dtype=_exact(q.dtype))
        for part in _parts(q):
            rows = _rows(q, v, laid, part, looking.sight.size)
            # every slot of every round, and the logarithm of its sum of weights
            out_rbSK = rows.qv_nK.new_empty(*rows.at_rbS.shape, width)
            lse_rbS = rows.qv_nK.new_empty(rows.at_rbS.shape)
            for run, qkv, bias in _runs(rows, looking):
                o, z = _attend_tiles(*qkv, bias, looking.scale)
                for into, x in ((out_rbSK, o), (lse_rbS, z)):
                    into[run.r, run.rows, run.asks].unflatten(1, (len(x), -1)).transpose(0, 1).copy_(x)
            # join the rounds of each token
            slot_nr = _everywhere(slot[part], out_rbSK.shape[2])
            lse_nr = lse_rbS.flatten().index_select(0, slot_nr.flatten()).view_as(slot_nr)
            lse_n1 = lse_nr.logsumexp(-1, keepdim=True)
            share_nr = lse_nr.sub_(lse_n1).exp_()
            out_nK = F.embedding_bag(slot_nr, out_rbSK.flatten(0, 2), mode="sum", per_sample_weights=share_nr)
            out_BHLK, lse_BHL1 = (x.view(*out[part].shape[:3], -1) for x in (out_nK, lse_n1))
            # what was hidden everywhere keeps a normaliser near -1e30, which no score reaches
            alone = lse_BHL1 < -0.5 * _HIDDEN
            out[part] = torch.where(alone, v[part], out_BHLK.to(out.dtype))
            # so large that in the backward pass who attends to itself gives no weight to any key
            lse[part] = lse_BHL1.masked_fill_(alone, _HIDDEN)
        ctx.save_for_backward(q, v, out, lse, *laid[:4])
        ctx.how = laid.tiles, looking
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Any, ...]:
        q, v, out, lse, at, asks, place, wrap = ctx.saved_tensors
        tiles, looking = ctx.how
        dq, dv, width = torch.empty_like(q), torch.empty_like(v), q.shape[-1]
        for part in _parts(q):
            rows = _rows(q, v, HashPlan(at, asks, place, wrap, tiles), part, looking.sight.size)
            both_nK, lse_n1 = _flat(d_out[part], out[part]), _flat(lse[part])
            grads_nK = torch.zeros(len(rows.qv_nK), 3 * width, dtype=rows.qv_nK.dtype, device=q.device)
            for run, qkv, bias in _runs(rows, looking):
                asking = rows.asks_rbS[run.r, run.rows, run.asks]
                both_t, lse_t = (
                    _pick(x, asking).unflatten(1, (len(bias), -1)).transpose(0, 1) for x in (both_nK, lse_n1)
                )
                found = _attend_tiles_backward(both_t, qkv, lse_t, bias, looking.scale)
                shows = rows.at_rbS[run.r, run.rows, run.shows]
                grads_nK.index_add_(0, shows.flatten(), _by_slot(found, shows.shape[1], tiles).flatten(0, 1))
            dq_nK, dk_nK, dv_nK = grads_nK.chunk(3, -1)
            # a token that saw no other got its own value
            dv_nK.add_(both_nK[:, :width] * (lse_n1 > 0.5 * _HIDDEN))
            # exactly, with n = 1 / sqrt(|q|^2 + K eps): dn/dq = -n^3 q, so dk/dq = n (1 - k k^T)
            norm_n1 = rows.norm_n[:, None]
            k_nK = rows.qv_nK[:, :width] * norm_n1
            along_n1 = (k_nK * dk_nK).sum(-1, keepdim=True)
            dq_nK.addcmul_(dk_nK.addcmul_(k_nK, along_n1, value=-1), norm_n1)
            for into, grad in ((dq, dq_nK), (dv, dv_nK)):
                into[part] = grad.unflatten(0, (*q[part].shape[:2], -1))[:, :, :-1].to(q.dtype)
        return dq, dv, None, None, None


def _parts(q: Tensor) -> Iterator[tuple[slice, slice]]:
    """Cut examples and heads into parts of bounded size."""
    n_batch, n_heads, length = q.shape[:3]
    n_rows = max(1, ROW_TOKENS // length)
    some, heads = max(1, n_rows // n_heads), min(n_rows, n_heads)
    for b in range(0, n_batch, some):
        for h in range(0, n_heads, heads):
            yield slice(b, b + some), slice(h, h + heads)


def _exact(dtype: torch.dtype) -> torch.dtype:
    """Return the precision to work in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _flat(*xs: Tensor) -> Tensor:
    """Lay the tokens of [b, h, L, K] side by side in one row, each head followed by the token that no query sees."""
    n_batch, n_heads, length, width = xs[0].shape
    row = xs[0].new_empty(n_batch, n_heads, length + 1, len(xs) * width, dtype=_exact(xs[0].dtype))
    row[:, :, length] = 0.0
    for x, into in zip(xs, row[:, :, :length].chunk(len(xs), -1), strict=True):
        into.copy_(x)
    return row.flatten(0, 2)


def _everywhere(slot_bHrL: Tensor, n_slots: int) -> Tensor:
    """Return the flat slots [n, r] of all tokens of some rows."""
    slot_brL = slot_bHrL.flatten(0, 1)
    n_rows, n_rounds = slot_brL.shape[:2]
    first_br = torch.arange(n_rows, device=slot_brL.device)[:, None] + n_rows * torch.arange(
        n_rounds, device=slot_brL.device
    )
    return (slot_brL + n_slots * first_br.int()[..., None]).transpose(1, 2).reshape(-1, n_rounds)


def _pick(x_nK: Tensor, at: Tensor) -> Tensor:
    """Gather tokens into slots."""
    return x_nK.index_select(0, at.flatten()).view(*at.shape, -1)


def _rows(q: Tensor, v: Tensor, laid: HashPlan, part: tuple[slice, slice], size: int) -> _Rows:
    qv_nK = _flat(q[part], v[part])
    length = q.shape[2]
    at_rbS, asks_rbS = (x[part].movedim(2, 0).flatten(1, 2) for x in (laid.at_BHrS, laid.asks_BHrS))

    def known(x: Tensor) -> Tensor:
        return F.pad(2 * x[part], (0, 1), value=2 * nowhere(size)).movedim(2, 0).flatten(1)

    first_b1 = (length + 1) * torch.arange(at_rbS.shape[1], dtype=at_rbS.dtype, device=q.device)[:, None]
    wrap = None if laid.wrap_BHrL is None else known(laid.wrap_BHrL)
    place, norm_n = known(laid.place_BHrL), _norm(qv_nK[:, : q.shape[-1]]).squeeze(-1)
    flat = at_rbS + first_b1, asks_rbS + first_b1
    return _Rows(qv_nK, norm_n, place, wrap, *flat, at_rbS.to(place.dtype), laid.tiles)


def _runs(rows: _Rows, looking: Looking) -> Iterator[tuple[_Run, tuple[Tensor, Tensor, Tensor], Tensor]]:
    """Yield runs of tiles, with their queries, keys and values, and with what is added to their scores.

    All are [tiles, rows, of a tile, ...]. What is yielded is overwritten by the next.
    """
    (side, tile_width, before, _), (n_passes, n_rows, n_slots) = rows.tiles, rows.at_rbS.shape
    n_tiles, pairs = n_slots // side - tile_width + 1, side * side * tile_width
    step, some = max(1, TILE_PAIRS // pairs), max(1, TILE_PAIRS // (pairs * n_tiles))
    step = -(-n_tiles // -(-n_tiles // step))
    room = _Room(rows.qv_nK)
    for r in range(n_passes):
        for row in range(0, n_rows, some):
            for first in range(0, n_tiles, step):
                last = min(first + step, n_tiles)
                asks = slice((first + before) * side, (last + before) * side)
                run = _Run(r, slice(row, row + some), asks, slice(first * side, (last + tile_width - 1) * side))
                yield run, _gathered(rows, run, room), _bias(rows, run, looking, room)


class _Room:
    """Tensors that are used again: memory asked for anew costs more than what is done in it."""

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.held: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        n = math.prod(shape)
        if name not in self.held or self.held[name].numel() < n:
            self.held[name] = self.like.new_empty(n, dtype=dtype)
        return self.held[name][:n].view(shape)


def _gathered(rows: _Rows, run: _Run, room: _Room) -> tuple[Tensor, Tensor, Tensor]:
    width = rows.qv_nK.shape[1] // 2
    at_bs = rows.at_rbS[run.r, run.rows, run.shows]
    at = at_bs.flatten()
    qv = torch.index_select(rows.qv_nK, 0, at, out=room("qv", len(at), 2 * width))
    norm_n1 = rows.norm_n.index_select(0, at)[:, None]
    q, v = qv.view(*at_bs.shape, -1).chunk(2, -1)
    k = torch.mul(qv[:, :width], norm_n1, out=room("k", len(at), width)).view_as(q)
    return _asking(q, run, rows.tiles), _windows(k, rows.tiles), _windows(v, rows.tiles)


def _asking(x: Tensor, run: _Run, tiles: Tiles) -> Tensor:
    """View the slots [rows, slots, ...] that ask: [tiles, rows, queries, ...]."""
    first = run.asks.start - run.shows.start
    return x[:, first : first + run.asks.stop - run.asks.start].unflatten(1, (-1, tiles.side)).transpose(0, 1)


def _windows(x: Tensor, tiles: Tiles) -> Tensor:
    """View the slots [rows, slots, ...] that each tile sees: [tiles, rows, keys, ...]."""
    return x.unfold(1, tiles.width * tiles.side, tiles.side).transpose(0, 1).movedim(-1, 2)


def _by_slot(grads: tuple[Tensor, Tensor, Tensor], n_slots: int, tiles: Tiles) -> Tensor:
    """Sum the gradients of what tiles read by slot: queries, keys and values side by side [rows, slots, 3K]."""
    dq, dk, dv = (x.transpose(0, 1) for x in grads)
    n_tiles, width = dq.shape[1], dq.shape[-1]
    total = dq.new_zeros(len(dq), n_slots // tiles.side, tiles.side, 3 * width)
    total[:, tiles.before : tiles.before + n_tiles, :, :width] = dq
    for x, first in ((dk, width), (dv, 2 * width)):
        for c, of_tile in enumerate(x.split(tiles.side, 2)):
            total[:, c : c + n_tiles, :, first : first + width] += of_tile
    return total.flatten(1, 2)


def _bias(rows: _Rows, run: _Run, looking: Looking, room: _Room) -> Tensor:
    """Return 0 for pairs of a round that no earlier round found, and a large negative number for all others.

    Arithmetic on the smallest integers that do: comparing and choosing take several times as long.
    """
    tiles, within = rows.tiles, _reach(looking)[1]
    times: Tensor | None = None
    if not tiles.union:
        far = _nearest(rows, run, range(run.r, run.r + 1), looking, room).sub_(within)
        if run.r and looking.repeats == "once":
            found = _nearest(rows, run, range(run.r), looking, room, "found")
            torch.maximum(far, found.neg_().add_(within + 1), out=far)
    elif looking.repeats == "once":
        far = _nearest(rows, run, range(len(rows.place_rn)), looking, room).sub_(within)
    else:
        near = (_nearest(rows, run, range(o, o + 1), looking, room) for o in range(len(rows.place_rn)))
        times = functools.reduce(torch.add, ((within + 1 - x).clamp_(0, 1) for x in near))
        far = 1 - times
    if isinstance(looking.sight, Chunks) or looking.direction == "both":
        # of the pairs that are close, leave out a token with itself, and what comes later
        at_bs = rows.position_rbS[run.r, run.rows, run.shows]
        ahead = torch.sub(*_facing(at_bs, at_bs, run, tiles), out=room("other", *far.shape, dtype=far.dtype))
        ahead = ahead.abs_().neg_() if looking.direction == "both" else ahead
        torch.maximum(far, ahead.add_(1), out=far)
    bias = room("bias", *far.shape).copy_(far.clamp_(0, 1)).mul_(-_HIDDEN)
    # a weight times n is a score plus log n
    return bias if times is None else bias.add_(times.clamp_(min=1).to(bias.dtype).log_())


def _reach(looking: Looking) -> tuple[int, int]:
    """Return the middle and the width of the window of places below its own that a query sees, in half places."""
    size = looking.sight.size
    if isinstance(looking.sight, Chunks):
        return 1, 1
    return (size + 1, size - 1) if looking.direction == "past" else (0, 2 * size)


def _nearest(rows: _Rows, run: _Run, rounds: range, looking: Looking, room: _Room, name: str = "far") -> Tensor:
    """Return how far a key is from the middle of what a query sees, in the nearest of some rounds."""
    at_bs = rows.at_rbS[run.r, run.rows, run.shows]
    middle, within = _reach(looking)
    nearest: Tensor | None = None
    for o in rounds:
        place_bs = rows.place_rn[o].index_select(0, at_bs.flatten()).view_as(at_bs)
        shown, asked = _facing(place_bs, place_bs - middle, run, rows.tiles)
        shape = (*asked.shape[:3], shown.shape[3])
        far = torch.sub(shown, asked, out=room(name if nearest is None else "other", *shape, dtype=shown.dtype)).abs_()
        nearest = far if nearest is None else torch.minimum(nearest, far, out=nearest)
        if rows.wrap_rn is not None:
            wrap_bs = rows.wrap_rn[o].index_select(0, at_bs.flatten()).view_as(at_bs)
            far = torch.sub(*_facing(place_bs, wrap_bs, run, rows.tiles), out=room("other", *shape, dtype=shown.dtype))
            torch.minimum(nearest, far.abs_().add_(within), out=nearest)
    assert nearest is not None
    return nearest


def _facing(shown_bs: Tensor, asked_bs: Tensor, run: _Run, tiles: Tiles) -> tuple[Tensor, Tensor]:
    """Lay keys and queries of tiles across each other: [tiles, rows, 1, keys] and [tiles, rows, queries, 1]."""
    return _windows(shown_bs, tiles).unsqueeze(2), _asking(asked_bs, run, tiles).unsqueeze(3)


def _fused(q: Tensor) -> bool:
    """Tell whether PyTorch's fused kernel for CPUs may be used; who switched it off gets plain products."""
    return q.device.type == "cpu" and torch.backends.cuda.flash_sdp_enabled()


def _attend_tiles(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attend within each tile; return the outputs and the logarithms of the sums of weights."""
    if _fused(q):
        o, z = _forward(q, k, v, 0.0, False, attn_mask=bias, scale=scale)
        return o, z
    scores = (q @ k.mT).mul_(scale).add_(bias)
    z = scores.logsumexp(-1)
    return scores.sub_(z.unsqueeze(-1)).exp_() @ v, z


def _attend_tiles_backward(
    both: Tensor, qkv: tuple[Tensor, Tensor, Tensor], lse: Tensor, bias: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values, given the output's and the sums of all rounds."""
    (d_out, out), (q, k, v) = both.chunk(2, -1), qkv
    if _fused(q):
        dq, dk, dv = _backward(d_out, q, k, v, out, lse[..., 0], 0.0, False, attn_mask=bias, scale=scale)
        return dq, dk, dv
    weights = (q @ k.mT).mul_(scale).add_(bias).sub_(lse).exp_()
    ds = (d_out @ v.mT).sub_((d_out * out).sum(-1, keepdim=True)).mul_(weights).mul_(scale)
    return ds @ k, ds.mT @ q, weights.mT @ d_out
