"""Scores of query-key pairs: positions and masks (`View`), scale, bias and hooks (`Scoring`), the explicit softmax.

What every path of the executor (`ops/attention/attend.py`) shares. Softmax attention is called through `attend` alone.
"""

import dataclasses
import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.core.device import alongside
from kinfolk.ops.patterns.leaves import Pattern


@dataclasses.dataclass(frozen=True, eq=False)
class View:
    """Positions of queries and keys, and further masks. A query i is at `start + i`, a key j at j."""

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
    """Scoring of query-key pairs (scale, bias, hooks, dropout), and what is reported.

    `bias(q, k, q_pos, k_pos, heads)` is added to the scaled scores, `value(weights, v, q_pos, k_pos, heads)` to the
    output; both work on tiles: any axes may be between the head axis and the last two. `before` the softmax the
    products of all heads, and `after` it their weights, may be made into others. `tap` receives the weights, and
    `tap_scores` the scaled products with their gradients; both are computed beside the output and do not change it.
    """

    scale: float | None = None  # None: 1 / sqrt(K)
    dropout: float = 0.0
    bias: Hook | None = None
    value: Hook | None = None
    before: Change | None = None
    after: Change | None = None
    sink_H: Tensor | None = None  # a logit of each head that takes a share and has no value
    tap: Callable[[Tensor], None] | None = None
    tap_scores: Callable[[Tensor], None] | None = None
    heads: slice = dataclasses.field(default_factory=lambda: slice(None))  # which of the layer's heads these are

    @property
    def plain(self) -> bool:
        """True if a fused kernel can do it."""
        hooked = self.bias is not None or self.value is not None or self.before is not None or self.after is not None
        return not hooked and self.sink_H is None and self.dropout == 0.0

    def needs_whole_rows(self, pattern: Pattern) -> bool:
        """Tell whether all weights of a query must be there at once, which several sheets do not give."""
        changed = self.after is not None or self.sink_H is not None
        return changed and len(pattern.sheets()) > 1

    @property
    def quiet(self) -> "Scoring":
        """The same without listeners."""
        return dataclasses.replace(self, tap=None, tap_scores=None)


PLAIN_VIEW, PLAIN_SCORING = View(), Scoring()


@functools.lru_cache(maxsize=64)
def plain_scoring(scale: float | None) -> Scoring:
    """Return the scoring of a scale alone: one object for the layers and steps of decoding."""
    return Scoring(scale=scale)


@functools.lru_cache(maxsize=64)
def view_from(start: int) -> View:
    """Return the view of queries from a position on: one object for the layers of a step."""
    return View(start=start)


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
    """Attend explicitly: for hooks and dropout, which a fused kernel does not have. Any axes may follow H.

    On request also returns the logarithm of the normaliser (log-sum-exp), -inf for a query that sees nothing.
    """
    weights_BHLM, scores_BHLM, empty_BHL1 = softmax_weights(q_BHLK, k_BHMK, ok_BLM, pos, scoring)
    if scoring.dropout:
        # a rate above 0 is given in training only
        weights_BHLM = F.dropout(weights_BHLM, scoring.dropout)
    out_BHLK = weights_BHLM @ v_BHMK
    if scoring.value is not None:
        out_BHLK = out_BHLK + scoring.value(weights_BHLM, v_BHMK, *pos, scoring.heads)
    norm_BHL = scores_BHLM.logsumexp(-1).masked_fill(empty_BHL1[..., 0], -torch.inf) if normaliser else None
    return out_BHLK.masked_fill(empty_BHL1, 0.0), norm_BHL


def softmax_weights(
    q_BHLK: Tensor, k_BHMK: Tensor, ok_BLM: Tensor | None, pos: tuple[Tensor, Tensor], scoring: Scoring
) -> tuple[Tensor, Tensor, Tensor]:
    """Return attention weights before dropout, the masked scores, and which queries see nothing."""
    scores_BHLM = products(q_BHLK, k_BHMK, scoring)
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
    if scoring.sink_H is not None:
        sink_H = scoring.sink_H[scoring.heads].view(-1, *(1,) * (scores_BHLM.ndim - 2))
        # one more logit in the softmax: e^lse / (e^lse + e^sink) = sigmoid(lse - sink)
        weights_BHLM = weights_BHLM * torch.sigmoid(scores_BHLM.logsumexp(-1, keepdim=True) - sink_H)
    return weights_BHLM if scoring.after is None else scoring.after(weights_BHLM), scores_BHLM, empty_BHL1


def products(q_BHLK: Tensor, k_BHMK: Tensor, scoring: Scoring) -> Tensor:
    """Return the scaled dot products. Queries are scaled first: in float16 the products alone could overflow."""
    scale = q_BHLK.shape[-1] ** -0.5 if scoring.scale is None else scoring.scale
    return (q_BHLK * scale) @ k_BHMK.mT


def keeps_too_much(q_BHLK: Tensor, n_pairs: int, scoring: Scoring, most: int) -> bool:
    """Tell whether the backward pass recomputes explicit scores: `n_pairs` per head are more than `most` in all."""
    n_scores = n_pairs * q_BHLK.shape[0] * q_BHLK.shape[1]
    return n_scores > most and torch.is_grad_enabled() and not scoring.plain
