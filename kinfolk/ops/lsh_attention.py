"""LSH attention: queries attend to keys of their hash bucket, found by sorting (Kitaev et al. 2020).

Queries and keys are one vector, k = q / |q|. In each round every token is hashed; sorted by bucket and position,
those that may attend to each other are close together, so tiles of the sorted order hold all pairs, and nothing of size
L x L exists. The attention mask is a test on integers, one per token and round: its place in the sorted order, with
gaps where a bucket ends. Where several rounds find the same pair, the first keeps it, so that the rounds together are
one softmax over the union of their sets.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from kinfolk.core.bounds import PositiveInt
from kinfolk.core.device import full_precision, host
from kinfolk.core.errors import SpecError, suggest
from kinfolk.core.shapes import shaped
from kinfolk.core.spec import Spec

EPS = 1e-6
"""Added to the mean square of a vector before it becomes a key."""
DENSE = 1024
"""Up to this length, and while tiles would hold as many pairs, one masked product is cheaper than sorting."""
TILE_PAIRS = 1 << 18
"""Pairs that are scored at once: their masks stay in the cache."""
ROW_TOKENS = 1 << 15
"""Tokens, summed over examples and heads, that are worked on together."""
COUNTS = 1 << 23
"""Up to here float32 knows every half."""
# finite, since masks are multiplied by it and 0 * inf is nan
_HIDDEN = 1e30

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class BucketSight(Spec):
    """Axis: which keys of its hash bucket a query attends to (LSH attention)."""

    size: PositiveInt = 64


class RecentKeys(BucketSight, kind="recent"):
    """Nearest keys: the last `size` earlier tokens of its bucket, in both directions the next `size` too.

    Strictly causal: the distance to a token of the bucket does not depend on what comes later.
    """


class Chunks(BucketSight, kind="chunks"):
    """Chunks of `size` in the sorted order: its own and the one before, for the first the last (equation 11).

    `within` "bucket" hides tokens of other buckets (equation 16), "chunk" does not (Trax, Hugging Face). Later tokens
    are hidden from earlier ones, but they move the borders of chunks, and so which earlier ones are seen.
    """

    within: Literal["bucket", "chunk"] = "bucket"


@dataclasses.dataclass(frozen=True)
class Looking:
    """Mask and weights of LSH attention: the keys of a round, the direction, and how a pair counts.

    `repeats` "once" counts a pair once, however many rounds found it (appendix A); "each" once per round.
    """

    sight: BucketSight
    direction: str = "past"
    repeats: str = "once"
    scale: float = 1.0

    def __post_init__(self) -> None:
        for name, known in (("direction", ("past", "both")), ("repeats", ("once", "each"))):
            if getattr(self, name) not in known:
                raise SpecError(f"{name}: unknown {getattr(self, name)!r}{suggest(getattr(self, name), known)}")


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
    plan = _plan(buckets_BHrL, looking, keep_BL, group_BL)
    # what is hidden is too large a number for half precision
    with full_precision(q_BHLK):
        out: Tensor = _Hashed.apply(q_BHLK, v_BHLK, plan, looking)
    return out


def keys(q: Tensor) -> Tensor:
    """Return the keys of queries: vectors of length 1."""
    return q * _norm(q)


def _norm(q: Tensor) -> Tensor:
    # eps is inside the root and beside the mean, as in Trax: the length becomes sqrt(|q|^2 + K eps)
    return (q.square().mean(-1, keepdim=True) + EPS).rsqrt() * q.shape[-1] ** -0.5


def scores_per_query(length: int, looking: Looking, n_rounds: int) -> int:
    """Return how many scores a query costs at a length that is a multiple of the tiles."""
    return length if _short(length, looking, n_rounds) else n_rounds * _width(looking) * looking.sight.size


def _short(length: int, looking: Looking, n_rounds: int) -> bool:
    return length <= min(DENSE, n_rounds * _width(looking) * looking.sight.size)


def ranks(ids: Tensor) -> Tensor:
    """Return how many earlier entries of the last axis are equal to each."""
    ordered, order = ids.sort(dim=-1, stable=True)
    at = torch.arange(ids.shape[-1], device=ids.device)
    first = torch.where(_starts(ordered), at, 0).cummax(-1).values
    return torch.empty_like(order).scatter_(-1, order, at - first)


class _Plan(NamedTuple):
    """Plan of LSH attention: places in the sorted order of each round, in tiles.

    L is a token that sees no other and that none sees. With `union`, the one pass over the tokens in their own order
    holds the pairs of all rounds.
    """

    asks_BHrTm: Tensor  # the queries of each tile
    look_BTw: Tensor  # the tiles of their keys; T is an empty tile
    place_BHrL: Tensor  # the attention mask, see `_outside`
    wrap_BHrL: Tensor | None  # one more place that is seen, from first chunks
    union: bool


class _Sorted(NamedTuple):
    """The tokens of each round by document, bucket and position; padding comes last."""

    order_BHrL: Tensor
    run_BHrL: Tensor  # counts the buckets of the sorted order; every pad is alone in one
    document_BL: Tensor  # of the sorted tokens, the same in all rounds
    n_documents: int  # the most that a row can have, padding being one


class _Tiling(NamedTuple):
    """Tiles of sorted tokens: slots of the tokens, key tiles of each query tile, and places of the tokens."""

    slot_BL: Tensor
    look_BTw: Tensor
    place_BHrL: Tensor
    wrap_BHrL: Tensor | None


def _width(looking: Looking) -> int:
    """Return how many tiles of keys a tile of queries needs."""
    return 3 if isinstance(looking.sight, RecentKeys) and looking.direction == "both" else 2


@torch.no_grad()
def _plan(buckets_BHrL: Tensor, looking: Looking, keep_BL: Tensor | None, group_BL: Tensor | None) -> _Plan:
    length, n_rounds, size = buckets_BHrL.shape[3], buckets_BHrL.shape[2], looking.sight.size
    tokens = _sort(buckets_BHrL, looking.sight, keep_BL, group_BL)
    tiling = _chunked(tokens, size) if isinstance(looking.sight, Chunks) else _sliding(tokens, looking)
    place, wrap = (_by_token(x, tokens.order_BHrL) for x in (tiling.place_BHrL, tiling.wrap_BHrL))
    assert place is not None
    if _short(length, looking, n_rounds):
        here = torch.arange(length, device=place.device)
        asks = here.expand(*buckets_BHrL.shape[:2], 1, 1, length)
        return _Plan(asks, torch.zeros_like(here[:1])[None, None], place, wrap, union=True)
    n_slots = tiling.look_BTw.shape[1] * size
    asks = torch.full((*buckets_BHrL.shape[:3], n_slots), length, device=place.device)
    asks.scatter_(-1, tiling.slot_BL[:, None, None].expand_as(tokens.order_BHrL), tokens.order_BHrL)
    return _Plan(asks.unflatten(-1, (-1, size)), tiling.look_BTw, place, wrap, union=False)


def _sort(buckets_BHrL: Tensor, sight: BucketSight, keep_BL: Tensor | None, group_BL: Tensor | None) -> _Sorted:
    n_batch, length = len(buckets_BHrL), buckets_BHrL.shape[-1]
    document_BL = buckets_BHrL.new_zeros(n_batch, length) if group_BL is None else group_BL - group_BL.min()
    if keep_BL is not None:
        # padding counts as one more document, behind all others
        document_BL = torch.where(keep_BL, document_BL, document_BL.max() + 1)
    # the document first, then the bucket: one sort for both
    ids_BHrL = document_BL[:, None, None] * (buckets_BHrL.max() + 1) + buckets_BHrL
    # stable, so that the tokens of a bucket stay in the order of their positions
    sorted_BHrL, order_BHrL = ids_BHrL.sort(dim=-1, stable=True)
    document_BL = document_BL.sort(dim=-1).values
    starts_BHrL = _starts(sorted_BHrL)
    if isinstance(sight, Chunks) and sight.within == "chunk":
        starts_BHrL = _starts(document_BL)[:, None, None].expand_as(starts_BHrL)
    if keep_BL is not None:
        pad_BL = torch.arange(length, device=keep_BL.device) >= keep_BL.sum(1, keepdim=True)
        starts_BHrL = starts_BHrL | pad_BL[:, None, None]
    n_documents = (
        1 + (keep_BL is not None) + (0 if group_BL is None else int(host(group_BL).max() - host(group_BL).min()))
    )
    return _Sorted(order_BHrL, starts_BHrL.cumsum(-1), document_BL, n_documents)


def _sliding(tokens: _Sorted, looking: Looking) -> _Tiling:
    """Give each token a place so that it sees those less than `size` + 1 away: no bucket is as near to the next."""
    length, size = tokens.order_BHrL.shape[-1], looking.sight.size
    here_L = torch.arange(length, device=tokens.order_BHrL.device)
    n_tiles = -(-length // size)
    at_T = torch.arange(n_tiles, device=here_L.device)
    look_Tw = torch.stack([torch.where(at_T > 0, at_T - 1, n_tiles), at_T, at_T + 1][: _width(looking)], dim=-1)
    return _Tiling(here_L[None].expand_as(tokens.document_BL), look_Tw[None], here_L + size * tokens.run_BHrL, None)


def _chunked(tokens: _Sorted, size: int) -> _Tiling:
    """Cut every document into chunks, and give each token a place so that it sees its own and one less."""
    starts_BL = _starts(tokens.document_BL)
    here_L = torch.arange(starts_BL.shape[1], device=starts_BL.device)
    begin_BL = torch.where(starts_BL, here_L, 0).cummax(-1).values
    # the last token of the document: from behind, the first
    ends_BL = torch.where(_starts(tokens.document_BL.flip(-1)).flip(-1), here_L, len(here_L))
    end_BL = ends_BL.flip(-1).cummin(-1).values.flip(-1)
    rank_BL = here_L - begin_BL
    tile_BL = (rank_BL % size == 0).cumsum(-1) - 1
    first_BL, last_BL = tile_BL.gather(-1, begin_BL), tile_BL.gather(-1, end_BL)
    n_tiles = -(-len(here_L) // size)
    if tokens.n_documents > 1:
        # every document may begin a chunk; how many really do is not worth waiting for an accelerator
        n_most = n_tiles + tokens.n_documents - 1
        n_tiles = int(tile_BL.max()) + 1 if tile_BL.device.type == "cpu" else n_most
    before_BL = torch.where(last_BL > first_BL, last_BL, n_tiles)
    at_T = torch.arange(n_tiles, device=here_L.device)
    before_BT = (at_T - 1).repeat(len(starts_BL), 1).scatter_(-1, first_BL, before_BL)
    # two more for each bucket: no place of another one is the same or one less
    place_BHrL = tile_BL[:, None, None] + 2 * tokens.run_BHrL
    # the first chunk of a document also sees its last one, if the bucket of a token reaches there
    lead_BHrL = (begin_BL + (last_BL - first_BL) * size)[:, None, None].expand_as(place_BHrL)
    reaches = tokens.run_BHrL == tokens.run_BHrL.gather(-1, lead_BHrL)
    wraps = reaches & ((tile_BL == first_BL) & (last_BL > first_BL))[:, None, None]
    wrap_BHrL: Tensor | None = None
    # hardly any bucket reaches that far, and masks without a second place cost half; elsewhere looking would wait
    if wraps.device.type != "cpu" or torch.compiler.is_compiling() or bool(wraps.any()):
        wrap_BHrL = torch.where(wraps, place_BHrL.gather(-1, lead_BHrL), _nowhere(size) - 1)
    look_BTw = torch.stack([before_BT, at_T.expand_as(before_BT)], dim=-1)
    return _Tiling(tile_BL * size + rank_BL % size, look_BTw, place_BHrL, wrap_BHrL)


def _nowhere(size: int) -> int:
    """Return a place that no query sees."""
    return -2 * size - 2


def _starts(ordered: Tensor) -> Tensor:
    """Mark entries of the last axis that differ from the one before."""
    return F.pad(ordered[..., 1:] != ordered[..., :-1], (1, 0), value=True)


def _by_token(x_BHrL: Tensor | None, order_BHrL: Tensor) -> Tensor | None:
    """Bring what is known of sorted tokens back to the order of the tokens."""
    return None if x_BHrL is None else torch.empty_like(x_BHrL).scatter_(-1, order_BHrL, x_BHrL).int()


class _Rows(NamedTuple):
    """Some examples and heads as one flat row of tokens; behind the L tokens of each is one that no query sees."""

    q_nK: Tensor
    k_nK: Tensor
    v_nK: Tensor
    norm_n1: Tensor  # 1 / |q|
    place_rn: Tensor
    wrap_rn: Tensor | None
    asks_rtm: Tensor
    shows_rtk: Tensor
    union: bool


class _Hashed(torch.autograd.Function):
    """LSH attention by tiles of the sorted order. Saves inputs, output and one number per query, nothing sorted."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, v: Tensor, plan: _Plan, looking: Looking) -> Tensor:
        n_batch, n_heads, length, width = q.shape
        out = q.new_empty(n_batch, length, n_heads, width).transpose(1, 2)
        lse = q.new_empty(n_batch, n_heads, length, 1, dtype=_exact(q.dtype))
        for part in _parts(q):
            rows = _rows(q, v, plan, part, looking.sight.size)
            out_nK, lse_n1 = torch.zeros_like(rows.v_nK), torch.full_like(rows.norm_n1, -_HIDDEN)
            for a, s, bias in _tiles(rows, looking):
                q_t, k_t, v_t = _pick(rows.q_nK, a), _pick(rows.k_nK, s), _pick(rows.v_nK, s)
                o, z = _attend_tiles(q_t, k_t, v_t, bias, looking.scale)
                # join what the rounds so far found and what this one adds
                at, z = a.flatten(), z.reshape(-1, 1)
                old = lse_n1.index_select(0, at)
                new = torch.logaddexp(old, z)
                before = out_nK.index_select(0, at).mul_((old - new).exp_())
                out_nK.index_copy_(0, at, before.addcmul_(o.reshape(-1, width), (z - new).exp_()))
                lse_n1.index_copy_(0, at, new)
            # what was hidden everywhere keeps a normaliser near -1e30, which no score reaches
            alone_n1 = lse_n1 < -0.5 * _HIDDEN
            out[part] = _cut(torch.where(alone_n1, rows.v_nK, out_nK), out[part]).to(out.dtype)
            # so large that in the backward pass who attends to itself gives no weight to any key
            lse[part] = _cut(lse_n1.masked_fill(alone_n1, _HIDDEN), lse[part])
        ctx.save_for_backward(q, v, out, lse, *plan[:4])
        ctx.how = plan.union, looking
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Any, ...]:
        q, v, out, lse, asks, look, place, wrap = ctx.saved_tensors
        union, looking = ctx.how
        plan = _Plan(asks, look, place, wrap, union)
        dq, dv = torch.empty_like(q), torch.empty_like(v)
        for part in _parts(q):
            rows = _rows(q, v, plan, part, looking.sight.size)
            out_nK, d_out_nK, lse_n1 = (_flat(x[part]) for x in (out, d_out, lse))
            dq_nK, dk_nK = torch.zeros_like(rows.q_nK), torch.zeros_like(rows.q_nK)
            # a token that saw no other got its own value
            dv_nK = torch.where(lse_n1 > 0.5 * _HIDDEN, d_out_nK, 0.0)
            for a, s, bias in _tiles(rows, looking):
                q_t, out_t, d_out_t, lse_t = (_pick(x, a) for x in (rows.q_nK, out_nK, d_out_nK, lse_n1))
                k_t, v_t = _pick(rows.k_nK, s), _pick(rows.v_nK, s)
                grads = _attend_tiles_backward(d_out_t, (q_t, k_t, v_t), out_t, lse_t, bias, looking.scale)
                for into, where, grad in zip((dq_nK, dk_nK, dv_nK), (a, s, s), grads, strict=True):
                    into.index_add_(0, where.flatten(), grad.reshape(where.numel(), -1))
            # exactly, with n = 1 / sqrt(|q|^2 + K eps): dn/dq = -n^3 q, so dk/dq = n (1 - k k^T)
            along_n1 = (rows.k_nK * dk_nK).sum(-1, keepdim=True)
            dq_nK.addcmul_(dk_nK.addcmul_(rows.k_nK, along_n1, value=-1), rows.norm_n1)
            dq[part], dv[part] = (_cut(x, q[part]).to(q.dtype) for x in (dq_nK, dv_nK))
        return dq, dv, None, None


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


def _flat(x: Tensor) -> Tensor:
    """Lay the tokens of [b, h, L, K] in one row, each head followed by the token that no query sees."""
    return F.pad(x.to(_exact(x.dtype)), (0, 0, 0, 1)).flatten(0, 2)


def _cut(x_nK: Tensor, like: Tensor) -> Tensor:
    """Undo `_flat`."""
    return x_nK.unflatten(0, (*like.shape[:2], -1))[:, :, :-1]


def _pick(x_nK: Tensor, at: Tensor) -> Tensor:
    """Gather tokens into tiles."""
    return x_nK.index_select(0, at.flatten()).view(*at.shape, -1)


def _rows(q: Tensor, v: Tensor, plan: _Plan, part: tuple[slice, slice], size: int) -> _Rows:
    q_nK, v_nK = _flat(q[part]), _flat(v[part])
    norm_n1 = _norm(q_nK)
    length, asks = q.shape[2], plan.asks_BHrTm[part]
    n_row = len(asks) * asks.shape[1]
    # what float32 cannot count is counted in float64
    exact = q_nK.dtype if (size + 2) * (length + 1) < COUNTS else torch.float64

    def known(x: Tensor) -> Tensor:
        return F.pad(x[part].to(exact), (0, 1), value=_nowhere(size)).movedim(2, 0).flatten(1)

    look = plan.look_BTw[part[0]] if len(plan.look_BTw) > 1 else plan.look_BTw
    at = look.flatten(1)[:, None, None, :, None].expand(*asks.shape[:3], -1, asks.shape[-1])
    shows = F.pad(asks, (0, 0, 0, 1), value=length).gather(3, at).unflatten(3, look.shape[1:]).flatten(4)
    first = (length + 1) * torch.arange(n_row, device=q.device).view(*asks.shape[:2], 1, 1, 1)
    asks_rtm, shows_rtk = ((x + first).movedim(2, 0).flatten(1, 3) for x in (asks, shows))
    wrap = None if plan.wrap_BHrL is None else known(plan.wrap_BHrL)
    return _Rows(
        q_nK, q_nK * norm_n1, v_nK, norm_n1, known(plan.place_BHrL), wrap, asks_rtm, shows_rtk, union=plan.union
    )


def _tiles(rows: _Rows, looking: Looking) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield runs of tiles: their queries [t, m], their keys [t, k], and what is added to their scores [t, m, k]."""
    n_passes, n_tiles, n_asks = rows.asks_rtm.shape
    step = max(1, TILE_PAIRS // (n_asks * rows.shows_rtk.shape[-1]))
    for r in range(n_passes):
        for first in range(0, n_tiles, step):
            a, s = (x[r, first : first + step] for x in (rows.asks_rtm, rows.shows_rtk))
            yield a, s, _bias(rows, r, a, s, looking)


def _bias(rows: _Rows, r: int, a: Tensor, s: Tensor, looking: Looking) -> Tensor:
    """Return 0 for pairs of round r that no earlier round found, and a large negative number for all others.

    Arithmetic on floats: comparing and choosing take several times as long.
    """
    if not rows.union:
        bias = _outside(rows, r, a, s, looking)
        for other in range(r if looking.repeats == "once" else 0):
            # each earlier round that shows the pair adds 1
            bias.add_(1.0).sub_(_outside(rows, other, a, s, looking))
        bias.mul_(-_HIDDEN)
    elif looking.repeats == "once":
        bias = functools.reduce(Tensor.mul_, (_outside(rows, o, a, s, looking) for o in range(len(rows.place_rn))))
        bias.mul_(-_HIDDEN)
    else:
        bias = torch.stack([1.0 - _outside(rows, o, a, s, looking) for o in range(len(rows.place_rn))]).sum(0)
        # a weight times n is a score plus log n
        bias = bias.log_().clamp_(min=-_HIDDEN)
    if isinstance(looking.sight, Chunks) or looking.direction == "both":
        # of the pairs that are close, leave out a token with itself, and what comes later
        ahead = s.to(bias.dtype).unsqueeze(-2) - a.to(bias.dtype).unsqueeze(-1)
        same = ahead.abs_().clamp_(max=1).neg_() if looking.direction == "both" else ahead.clamp_(-1, 0)
        bias.sub_(same.add_(1.0), alpha=_HIDDEN)
    return bias.to(rows.q_nK.dtype)


def _outside(rows: _Rows, r: int, a: Tensor, s: Tensor, looking: Looking) -> Tensor:
    """Return 0 where a query attends to a key in round r, else 1: [t, m, k]."""
    if isinstance(looking.sight, Chunks):
        low, high = 0, 1
    else:
        low, high = (1 if looking.direction == "past" else -looking.sight.size), looking.sight.size
    shown = rows.place_rn[r, s].unsqueeze(-2)
    far = shown - (rows.place_rn[r, a] - (low + high) / 2).unsqueeze(-1)
    # places are integers, so that what is outside is at least 1 too far, and the clamp gives exactly 0 or 1
    far.abs_().sub_((high - low) / 2).clamp_(0, 1)
    if rows.wrap_rn is not None:
        far.mul_((shown - rows.wrap_rn[r, a].unsqueeze(-1)).abs_().clamp_(max=1))
    return far


def _fused(q: Tensor) -> bool:
    """Tell whether PyTorch's fused kernel for CPUs may be used; who switched it off gets plain products."""
    return q.device.type == "cpu" and torch.backends.cuda.flash_sdp_enabled()


def _attend_tiles(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attend within each tile; return the outputs and the logarithms of the sums of weights."""
    if _fused(q):
        o, z = _forward(q[:, None], k[:, None], v[:, None], 0.0, False, attn_mask=bias[:, None], scale=scale)
        return o, z
    scores = torch.baddbmm(bias, q, k.mT, alpha=scale)
    z = scores.logsumexp(-1)
    return scores.sub_(z.unsqueeze(-1)).exp_() @ v, z


def _attend_tiles_backward(
    d_out: Tensor, qkv: tuple[Tensor, Tensor, Tensor], out: Tensor, lse: Tensor, bias: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values, given the output and the sums over all rounds."""
    q, k, v = qkv
    if _fused(q):
        one = (x[:, None] for x in (d_out, q, k, v, out))
        dq, dk, dv = _backward(*one, lse[..., 0][:, None], 0.0, False, attn_mask=bias[:, None], scale=scale)
        return dq, dk, dv
    weights = torch.baddbmm(bias, q, k.mT, alpha=scale).sub_(lse).exp_()
    ds = (d_out @ v.mT).sub_((d_out * out).sum(-1, keepdim=True)).mul_(weights).mul_(scale)
    return ds @ k, ds.mT @ q, weights.mT @ d_out
