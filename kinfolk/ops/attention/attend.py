"""The one attention executor: the only place where softmax attention happens.

`attend` sends the famous cases to PyTorch's fused kernel, patterns that leave most pairs out to gathered blocks
(`ops/attention/blocks.py`; on CUDA, FlexAttention under the same predicate), and everything else to one masked product.
What is computed is always the same: a softmax over the pairs that the pattern and the view allow.
"""

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.core.device import arange
from kinfolk.core.shapes import shaped
from kinfolk.ops.attention import scores
from kinfolk.ops.attention.blocks import Tiling, attend_blocks
from kinfolk.ops.attention.scores import (
    PLAIN_SCORING,
    PLAIN_VIEW,
    Scoring,
    View,
    allowed,
    keeps_too_much,
    positions,
    share_heads,
)
from kinfolk.ops.patterns.leaves import Causal, Full, Pattern
from kinfolk.ops.patterns.plan import density

BLOCK = 128
"""Side of the tiles of the gathered path: large enough for the kernel, small enough to follow a pattern."""
DENSE_PAIRS = 1 << 20
"""Below this many pairs a mask is cheaper than a plan."""
DENSE_SHARE = 0.4
"""Above this share of touched tiles one masked product is cheaper than gathering."""
KEPT_PAIRS = 1 << 26
"""Explicit scores of more pairs, over heads and examples, are recomputed by the backward pass instead of kept."""
BIAS_PAIRS = 1 << 18
"""Pairs of a head whose bias is made at once without gradients: no more than stays in the cache."""


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
    if scoring.tap is not None or scoring.tap_scores is not None:
        _report(q_BHLK, share_heads(k_BGMK, q_BHLK.shape[1]), runs, view, scoring)
        scoring = scoring.quiet
    if len(runs) == 1:
        return _attend(q_BHLK, k_BGMK, v_BGMK, runs[0][0], view, scoring)
    k_BHMK, v_BHMK = (share_heads(x, q_BHLK.shape[1]) for x in (k_BGMK, v_BGMK))
    out = []
    for one, heads in runs:
        own = dataclasses.replace(scoring, heads=heads)
        out.append(_attend(q_BHLK[:, heads], k_BHMK[:, heads], v_BHMK[:, heads], one, view, own))
    return torch.cat(out, dim=1)


def _attend(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, view: View, scoring: Scoring) -> Tensor:
    n_q, n_k = q.shape[2], k.shape[2]
    if view.plain and scoring.plain and isinstance(pattern, Causal | Full):
        # a step of decoding: the one query comes after all keys
        sees_all = isinstance(pattern, Full) or (n_q == 1 and view.start >= n_k - 1)
        # the kernel's causal mask is aligned at the first key, so queries behind a cache cannot use it
        if sees_all or (view.start == 0 and n_q == n_k):
            return fused(q, k, v, None, not sees_all, scoring.scale)
    # scores that are recomputed anyway are computed tile by tile, whatever the pattern
    most = torch.inf if keeps_too_much(q, n_q * n_k, scoring, KEPT_PAIRS) else DENSE_SHARE
    if not scoring.needs_whole_rows(pattern) and _worth_gathering(pattern, view, n_q, n_k, most):
        k, v = share_heads(k, q.shape[1]), share_heads(v, q.shape[1])
        return attend_blocks(q, k, v, pattern, view, scoring, Tiling(BLOCK, KEPT_PAIRS))
    return _masked(q, k, v, pattern, view, scoring)


def fused(q: Tensor, k: Tensor, v: Tensor, ok: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    """Run the fused kernel: softmax attention under a mask, an additive bias, or neither; k and v may be grouped."""
    shared = k.shape[1] != q.shape[1]
    return F.scaled_dot_product_attention(q, k, v, ok, is_causal=causal, scale=scale, enable_gqa=shared)


def _masked(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, view: View, scoring: Scoring) -> Tensor:
    q_at, k_at = (arange(0, x.shape[2], q.device) for x in (q, k))
    if scoring.bias is not None and not torch.is_grad_enabled() and dataclasses.replace(scoring, bias=None).plain:
        return _biased(q, share_heads(k, q.shape[1]), share_heads(v, q.shape[1]), pattern, view, scoring)
    everything = isinstance(pattern, Full) and view.plain
    ok_BLM = None if everything else allowed(pattern, view, q_at, k_at)
    if scoring.plain:
        return fused(q, k, v, None if ok_BLM is None else ok_BLM.unsqueeze(1), False, scoring.scale)
    k, v = share_heads(k, q.shape[1]), share_heads(v, q.shape[1])
    return scores.softmax_product(q, k, v, ok_BLM, positions(view, q_at, k_at), scoring)[0]


def _biased(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, view: View, scoring: Scoring) -> Tensor:
    """Attend without gradients, some queries at a time: a fused kernel takes a bias like a mask."""
    assert scoring.bias is not None
    n_q, n_k, out = q.shape[2], k.shape[2], []
    # rows at positions of their own stay whole: a bias knows its queries by position
    in_step = view.q_pos_BL is None and view.k_pos_BM is None
    rows, past = max(1, BIAS_PAIRS // n_k) if in_step else n_q, pattern.causal and in_step
    for first in range(0, n_q, rows):
        last = min(first + rows, n_q)
        n_seen = min(n_k, view.start + last) if past else n_k
        at = arange(first, last, q.device), arange(0, n_seen, q.device)
        q_n, k_n, v_n = q[:, :, first:last], k[:, :, :n_seen], v[:, :, :n_seen]
        bias = scoring.bias(q_n, k_n, *positions(view, *at), scoring.heads)
        # -inf, not a large number: a row without any key then gets 0 from the kernel, not a mean of values
        bias = bias.masked_fill(~allowed(pattern, view, *at).unsqueeze(1), -torch.inf)
        out.append(fused(q_n, k_n, v_n, bias, False, scoring.scale))
    return torch.cat(out, 2)


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


Runs = tuple[tuple[Pattern, slice], ...]


def _report(q: Tensor, k: Tensor, runs: Runs, view: View, scoring: Scoring) -> None:
    """Compute scores and weights for listeners. The output is computed apart, by the path it takes without them."""
    if scoring.tap_scores is not None:
        scoring.tap_scores(scores.products(q, k, scoring))
    if scoring.tap is None:
        return
    weights, at = [], [arange(0, x.shape[2], q.device) for x in (q, k)]
    with torch.no_grad():
        for pattern, heads in runs:
            mine = dataclasses.replace(scoring, heads=heads)
            ok, pos = allowed(pattern, view, *at), positions(view, *at)
            each, _, empty = scores.softmax_weights(q[:, heads], k[:, heads], ok, pos, mine)
            weights.append(each.masked_fill(empty, 0.0))
    scoring.tap(weights[0] if len(weights) == 1 else torch.cat(weights, dim=1))
