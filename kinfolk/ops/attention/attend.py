"""The one attention executor: the only place where softmax attention happens.

`attend` sends the famous cases to PyTorch's fused kernel, patterns that leave most pairs out to gathered blocks
(`ops/attention/blocks.py`; on CUDA, FlexAttention under the same predicate), and everything else to one masked product.
What is computed is always the same: a softmax over the pairs that the pattern and the view allow.
"""

import dataclasses
import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.core.device import alongside, arange
from kinfolk.core.shapes import shaped
from kinfolk.ops.patterns.leaves import Causal, Full, Pattern
from kinfolk.ops.patterns.plan import density

BLOCK = 128
"""Side of the tiles of the gathered path: large enough for the kernel, small enough to follow a pattern."""
DENSE_PAIRS = 1 << 20
"""Below this many pairs a mask is cheaper than a plan."""
DENSE_SHARE = 0.4
"""Above this share of touched tiles one masked product is cheaper than gathering."""
KEPT_PAIRS = 1 << 26
"""Explicit scores of more pairs, over heads and examples, are made again by the backward pass instead of kept."""
BIAS_PAIRS = 1 << 18
"""Without gradients, the bias of so many pairs of each head is made at once: no more than stays in the cache."""


@dataclasses.dataclass(frozen=True, eq=False)
class View:
    """Where queries and keys stand and what else hides a key. A query i stands at `start + i`, a key j at j."""

    start: int = 0
    q_pos_BL: Tensor | None = None  # instead of start + i, for each example
    k_pos_BM: Tensor | None = None  # instead of j; negative: nothing is there
    keep_BM: Tensor | None = None  # false: padding
    q_group_BL: Tensor | None = None  # a query sees only keys of its own group (packed documents)
    k_group_BM: Tensor | None = None
    visible_BLM: Tensor | None = None  # any further per-example rule
    until_BL: Tensor | None = None  # the index of the last key that each query may see

    @property
    def plain(self) -> bool:
        """True if nothing but the pattern hides a key."""
        # written out: asked for by every layer at every step of decoding
        return (
            self.q_pos_BL is None
            and self.k_pos_BM is None
            and self.keep_BM is None
            and self.q_group_BL is None
            and self.k_group_BM is None
            and self.visible_BLM is None
            and self.until_BL is None
        )


Hook = Callable[[Tensor, Tensor, Tensor, Tensor, slice], Tensor]
Change = Callable[[Tensor], Tensor]


@dataclasses.dataclass(frozen=True, eq=False)
class Scoring:
    """How a pair is scored and what is reported.

    `bias(q, k, q_pos, k_pos, heads)` is added to the scaled scores, `value(weights, v, q_pos, k_pos, heads)` to the
    output; both work on tiles: any axes may stand between the head axis and the last two. `before` the softmax the
    products of all heads, and `after` it their weights, may be made into others. `tap` receives the weights.
    """

    scale: float | None = None  # None: 1 / sqrt(K)
    dropout: float = 0.0
    bias: Hook | None = None
    value: Hook | None = None
    before: Change | None = None
    after: Change | None = None
    tap: Callable[[Tensor], None] | None = None
    heads: slice = dataclasses.field(default_factory=lambda: slice(None))  # which of the layer's heads these are

    @property
    def plain(self) -> bool:
        """True if a fused kernel can do it."""
        hooked = self.bias is not None or self.value is not None or self.before is not None or self.after is not None
        return not hooked and self.tap is None and self.dropout == 0.0

    def needs_whole_rows(self, pattern: Pattern) -> bool:
        """Tell whether all weights of a query must be there at once, which several sheets do not give."""
        return self.tap is not None or (self.after is not None and len(pattern.sheets()) > 1)


PLAIN_VIEW, PLAIN_SCORING = View(), Scoring()


@shaped(out="BHLK")
def attend(
    q_BHLK: Tensor,
    k_BGMK: Tensor,
    v_BGMK: Tensor,
    pattern: Pattern,
    view: View = PLAIN_VIEW,
    scoring: Scoring = PLAIN_SCORING,
) -> Tensor:
    r"""Attend within `pattern`.

    $o_i = \sum_{j \in S_i} \mathrm{softmax}_{j \in S_i}(s\, q_i \cdot k_j + b_{ij})\, v_j$ with $S_i$ the keys that the
    pattern and the view allow; Vaswani et al. 2017, equation 1, restricted to $S_i$ as in Child et al. 2019,
    equations 2 and 3. $s = 1/\sqrt{K}$ unless `scoring.scale` says otherwise. A query with an empty $S_i$ gets 0.
    G heads of keys and values are shared by H / G heads of queries each (Ainslie et al. 2023).

    Cost: L M for dense patterns, (touched blocks) x block^2 for sparse ones, without an L x M tensor in the forward
    pass, the backward pass or the planning. Reference: `kinfolk.ops.naive.attend`.
    """
    runs = pattern.by_head(q_BHLK.shape[1])
    if len(runs) == 1:
        return _attend(q_BHLK, k_BGMK, v_BGMK, runs[0][0], view, scoring)
    k_BHMK, v_BHMK = (share_heads(x, q_BHLK.shape[1]) for x in (k_BGMK, v_BGMK))
    return _attend_by_head(q_BHLK, k_BHMK, v_BHMK, runs, view, scoring)


def share_heads(x_BGMK: Tensor, n_heads: int) -> Tensor:
    """Repeat each of G heads for the H / G heads that share it."""
    n_groups = x_BGMK.shape[1]
    return x_BGMK if n_groups == n_heads else x_BGMK.repeat_interleave(n_heads // n_groups, dim=1)


def allowed(pattern: Pattern, view: View, q_at: Tensor, k_at: Tensor) -> Tensor:
    """Evaluate pattern and view on tiles of indices `q_at` [..., q] and `k_at` [..., k]: [B or 1, ..., q, k].

    An index of -1 in `k_at` is a filler and is never allowed.
    """
    q_pos, k_pos = positions(view, q_at, k_at)
    here = k_at.clamp(min=0)
    ok = pattern.allows(q_pos.unsqueeze(-1), k_pos.unsqueeze(-2)) & ((k_at >= 0) & (k_pos >= 0)).unsqueeze(-2)
    if view.keep_BM is not None:
        ok = ok & view.keep_BM[:, here].unsqueeze(-2)
    if view.q_group_BL is not None and view.k_group_BM is not None:
        ok = ok & (view.q_group_BL[:, q_at].unsqueeze(-1) == view.k_group_BM[:, here].unsqueeze(-2))
    if view.visible_BLM is not None:
        ok = ok & view.visible_BLM[:, q_at.unsqueeze(-1), here.unsqueeze(-2)]
    if view.until_BL is not None:
        ok = ok & (here.unsqueeze(-2) <= view.until_BL[:, q_at].unsqueeze(-1))
    return ok


def positions(view: View, q_at: Tensor, k_at: Tensor) -> tuple[Tensor, Tensor]:
    """Return the absolute positions of indices: [B or 1, ..., q] and [B or 1, ..., k]."""
    return alongside(functools.partial(_positions, view.start), q_at, k_at, view.q_pos_BL, view.k_pos_BM)


def _positions(
    start: int, q_at: Tensor, k_at: Tensor, q_own: Tensor | None, k_own: Tensor | None
) -> tuple[Tensor, ...]:
    q_pos = (q_at + start)[None] if q_own is None else q_own[:, q_at]
    return q_pos, k_at[None] if k_own is None else k_own[:, k_at.clamp(min=0)]


def softmax_product(
    q_BHLK: Tensor,
    k_BHMK: Tensor,
    v_BHMK: Tensor,
    ok_BLM: Tensor | None,
    pos: tuple[Tensor, Tensor],
    scoring: Scoring,
    normaliser: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attend explicitly: for hooks, dropout and taps, which a fused kernel does not have. Any axes may follow H.

    On request also returns the logarithm of the normaliser, -inf for a query that sees nothing.
    """
    scale = q_BHLK.shape[-1] ** -0.5 if scoring.scale is None else scoring.scale
    scores_BHLM = (q_BHLK * scale) @ k_BHMK.mT
    if scoring.before is not None:
        scores_BHLM = scoring.before(scores_BHLM)
    if scoring.bias is not None:
        scores_BHLM = scores_BHLM + scoring.bias(q_BHLK, k_BHMK, *pos, scoring.heads)
    if ok_BLM is not None:
        scores_BHLM = scores_BHLM.masked_fill(~ok_BLM.unsqueeze(1), -torch.inf)
    # a row that sees nothing would be 0 / 0: give it any finite scores and clear what comes of them
    empty_BHL1 = scores_BHLM.detach().amax(-1, keepdim=True) == -torch.inf
    scores_BHLM = scores_BHLM.masked_fill_(empty_BHL1, 0.0)
    weights_BHLM = scores_BHLM.softmax(-1)
    if scoring.after is not None:
        weights_BHLM = scoring.after(weights_BHLM)
    if scoring.tap is not None:
        scoring.tap(weights_BHLM.masked_fill(empty_BHL1, 0.0))
    if scoring.dropout:
        weights_BHLM = F.dropout(weights_BHLM, scoring.dropout)
    out_BHLK = weights_BHLM @ v_BHMK
    if scoring.value is not None:
        out_BHLK = out_BHLK + scoring.value(weights_BHLM, v_BHMK, *pos, scoring.heads)
    norm_BHL = scores_BHLM.logsumexp(-1).masked_fill(empty_BHL1[..., 0], -torch.inf) if normaliser else None
    return out_BHLK.masked_fill(empty_BHL1, 0.0), norm_BHL


def _attend(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, view: View, scoring: Scoring) -> Tensor:
    n_q, n_k = q.shape[2], k.shape[2]
    if view.plain and scoring.plain and isinstance(pattern, Causal | Full):
        sees_all = isinstance(pattern, Full) or (n_q == 1 and view.start >= n_k - 1)
        if sees_all or (view.start == 0 and n_q == n_k):
            return _fused(q, k, v, None, not sees_all, scoring.scale)
    most = torch.inf if keeps_too_much(q, n_q * n_k, scoring) else DENSE_SHARE
    if not scoring.needs_whole_rows(pattern) and _worth_gathering(pattern, view, n_q, n_k, most):
        from kinfolk.ops.attention.blocks import attend_blocks

        return attend_blocks(q, share_heads(k, q.shape[1]), share_heads(v, q.shape[1]), pattern, view, scoring)
    return _masked(q, k, v, pattern, view, scoring)


def _fused(q: Tensor, k: Tensor, v: Tensor, ok: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    shared = k.shape[1] != q.shape[1]
    return F.scaled_dot_product_attention(q, k, v, ok, is_causal=causal, scale=scale, enable_gqa=shared)


def _masked(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, view: View, scoring: Scoring) -> Tensor:
    q_at, k_at = (arange(0, x.shape[2], q.device) for x in (q, k))
    if scoring.bias is not None and not torch.is_grad_enabled() and dataclasses.replace(scoring, bias=None).plain:
        return _biased(q, share_heads(k, q.shape[1]), share_heads(v, q.shape[1]), pattern, view, scoring)
    everything = isinstance(pattern, Full) and view.plain
    ok_BLM = None if everything else allowed(pattern, view, q_at, k_at)
    if scoring.plain:
        return _fused(q, k, v, None if ok_BLM is None else ok_BLM.unsqueeze(1), False, scoring.scale)
    k, v = share_heads(k, q.shape[1]), share_heads(v, q.shape[1])
    return softmax_product(q, k, v, ok_BLM, positions(view, q_at, k_at), scoring)[0]


def _biased(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, view: View, scoring: Scoring) -> Tensor:
    """Attend without gradients, some queries at a time: a fused kernel takes a bias like a mask."""
    assert scoring.bias is not None
    n_q, n_k, out = q.shape[2], k.shape[2], []
    # rows at positions of their own stay whole: a bias knows its queries by where they stand
    in_step = view.q_pos_BL is None and view.k_pos_BM is None
    rows, past = max(1, BIAS_PAIRS // n_k) if in_step else n_q, pattern.causal and in_step
    for first in range(0, n_q, rows):
        last = min(first + rows, n_q)
        n_seen = min(n_k, view.start + last) if past else n_k
        at = arange(first, last, q.device), arange(0, n_seen, q.device)
        q_n, k_n, v_n = q[:, :, first:last], k[:, :, :n_seen], v[:, :, :n_seen]
        bias = scoring.bias(q_n, k_n, *positions(view, *at), scoring.heads)
        bias = bias.masked_fill(~allowed(pattern, view, *at).unsqueeze(1), -torch.inf)
        out.append(_fused(q_n, k_n, v_n, bias, False, scoring.scale))
    return torch.cat(out, 2)


def keeps_too_much(q_BHLK: Tensor, n_pairs: int, scoring: Scoring) -> bool:
    """Tell whether explicit scores of so many pairs of each head are too many to be kept for the backward pass."""
    n_scores = n_pairs * q_BHLK.shape[0] * q_BHLK.shape[1]
    return n_scores > KEPT_PAIRS and torch.is_grad_enabled() and not scoring.plain


def _worth_gathering(pattern: Pattern, view: View, n_q: int, n_k: int, most: float = DENSE_SHARE) -> bool:
    """Gather blocks if that leaves out most of a large score matrix; rows of their own positions cannot be planned."""
    if n_q * n_k < DENSE_PAIRS or view.q_pos_BL is not None or view.k_pos_BM is not None:
        return False
    return most > 1 or density(pattern, n_q, n_k, view.start, BLOCK) < most


def scored_pairs(pattern: Pattern, n: int, n_heads: int) -> float:
    """Return how many pairs the executor scores for each head where it makes scores explicitly."""
    total = 0.0
    for one, heads in pattern.by_head(n_heads):
        sparse = _worth_gathering(one, PLAIN_VIEW, n, n)
        total += (density(one, n, n, 0, BLOCK) if sparse else 1.0) * n * n * (heads.stop - heads.start)
    return total / n_heads


def _attend_by_head(
    q: Tensor, k: Tensor, v: Tensor, runs: tuple[tuple[Pattern, slice], ...], view: View, scoring: Scoring
) -> Tensor:
    """Run each pattern over its heads; the taps come together as one set of weights over all heads."""
    seen: list[Tensor] = []
    tap = None if scoring.tap is None else seen.append
    out = []
    for pattern, heads in runs:
        mine = dataclasses.replace(scoring, tap=tap, heads=heads)
        out.append(_attend(q[:, heads], k[:, heads], v[:, heads], pattern, view, mine))
    if scoring.tap is not None:
        scoring.tap(torch.cat(seen, dim=1))
    return torch.cat(out, dim=1)
