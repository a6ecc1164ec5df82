"""Decayed query-key products inside a chunk, computed in log space (gated linear attention)."""

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

TILE = 8
"""Positions whose pairs are computed channel by channel where every channel decays by itself."""


@dataclasses.dataclass(frozen=True, eq=False)
class ChunkMasks:
    """Masks of the chunks of a run, None where all is visible: pairs of a query and a key not later than it, of one
    document [.., c, c]; queries whose document began before the chunk and keys whose document reaches its end
    [n, B, 1, c, 1]; and states whose document goes on behind the chunk [n, B, 1, 1, 1]."""

    pair: Tensor
    read: Tensor | None = None
    write: Tensor | None = None
    carry: Tensor | None = None

    @classmethod
    def of(cls, group_BL: Tensor | None, at: slice, chunk: int, device: torch.device) -> "ChunkMasks":
        """Return the masks of the chunks of a run."""
        length = at.stop - at.start
        size = min(chunk, length)
        pair = torch.ones(size, size, dtype=torch.bool, device=device).tril_()
        if group_BL is None:
            return cls(pair)
        group_nBc = group_BL[:, at].unflatten(1, (-1, size)).movedim(1, 0)
        last_nB = group_nBc[..., -1]
        # before the first position of all there is no other document
        first_1B = group_BL[:, max(0, at.start - 1)][None]
        before_nB = torch.cat([first_1B, last_nB[:-1]])
        same = group_nBc.unsqueeze(-1) == group_nBc.unsqueeze(-2)
        read, write = (group_nBc == x.unsqueeze(-1) for x in (before_nB, last_nB))
        carry = (last_nB == before_nB)[..., None, None, None]
        read, write = (x.unsqueeze(2).unsqueeze(-1) for x in (read, write))
        return cls(pair & same.unsqueeze(2), read, write, carry)


def times(x: Tensor, mask: Tensor | None) -> Tensor:
    """Clear what a mask hides."""
    return x if mask is None else x * mask


def exclusive(log: Tensor) -> Tensor:
    """Return sums up to the position before each, exactly as they were rounded there."""
    # log - g would round differently, and a positive exponent could come of it
    return torch.nn.functional.pad(log[..., :-1, :], (0, 0, 1, 0))


def zero_padding(x: Tensor, keep_BL: Tensor | None) -> Tensor:
    """Clear padded positions of [B, H, L, R]."""
    return x if keep_BL is None else x.masked_fill(~keep_BL[:, None, :, None], 0.0)


def decayed_scores(q_BHLR: Tensor, k_BHMR: Tensor, q_log: Tensor, k_log: Tensor, pair: Tensor) -> Tensor:
    r"""Return $\sum_r q_{ir} k_{jr} \exp(c_{ir} - d_{jr})$ for the pairs that `pair` [.., L, M] shows, 0 for others.

    `q_log` $c$ and `k_log` $d$ are sums of log decays, [.., L, 1] for one decay per head and [.., L, R] for one per
    channel. All decays are at most 1 and no shown key is later than its query, so that no exponent is positive: with
    one decay per channel, a tile of queries and the keys before it meet at the log decay of the last of these keys,
    and pairs inside a tile are computed directly. Cost: L M R, and L TILE R exponentials with decays per channel.
    Reference: `kinfolk.ops.naive.decayed_scores`.
    """
    if q_log.shape[-1] == 1:
        return (q_BHLR @ k_BHMR.mT) * decays(q_log, k_log, pair)
    return scores_by_channel((q_BHLR,), k_BHMR, (q_log, k_log), pair)[0]


def scores_by_channel(
    queries: tuple[Tensor, ...], k_BHMR: Tensor, logs: tuple[Tensor, Tensor], pair: Tensor
) -> tuple[Tensor, ...]:
    """Return `decayed_scores` of several queries that decay alike, with one decay per channel.

    Decays are computed once for all queries, and again in the backward pass. Cost and reference as there.
    """
    scores: Tensor = _ChannelScores.apply(torch.stack(queries), k_BHMR, *logs, pair)
    return scores.unbind()


class _ChannelScores(torch.autograd.Function):
    """Scores [m, .., L, M] of m queries each."""

    @staticmethod
    def forward(ctx: Any, q_mLR: Tensor, k: Tensor, q_log: Tensor, k_log: Tensor, pair: Tensor) -> Tensor:
        scores = q_mLR.new_zeros(*q_mLR.shape[:-1], k.shape[-2])
        for at in _tiles(k):
            q, decay = q_mLR[..., at, :], _near(q_log, k_log, at)
            # one product of a matrix [keys, R] and a matrix [R, m] for each query of the tile
            near = decay.mul_(k[..., None, at, :]) @ q.movedim(0, -1)
            scores[..., at, at] = near.movedim(-1, 0)
            if at.start:
                q_far, k_far = _far(q_log, k_log, at)
                scores[..., at, : at.start] = (q * q_far) @ k_far.mul_(k[..., : at.start, :]).mT
        ctx.save_for_backward(q_mLR, k, q_log, k_log, pair)
        return scores.mul_(pair)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_scores: Tensor) -> tuple[Tensor | None, ...]:
        q_mLR, k, q_log, k_log, pair = ctx.saved_tensors
        d_scores, d_q, d_k = d_scores * pair, torch.empty_like(q_mLR), torch.zeros_like(k)
        for at in _tiles(k):
            q, decay, d_near = q_mLR[..., at, :], _near(q_log, k_log, at), d_scores[..., at, at]
            d_q[..., at, :] = (d_near.movedim(0, -2) @ (decay * k[..., None, at, :])).movedim(-2, 0)
            d_k[..., at, :] += (d_near.movedim(0, -1) @ q.movedim(0, -2)).mul_(decay).sum(-3)
            if at.start:
                q_far, k_far = _far(q_log, k_log, at)
                d_far, earlier = d_scores[..., at, : at.start], k[..., : at.start, :]
                d_q[..., at, :] += (d_far @ (k_far * earlier)).mul_(q_far)
                d_k[..., : at.start, :] += (d_far.mT @ (q * q_far)).sum(0).mul_(k_far)
        # every product has the factor exp(c_i - d_j): the gradient of an exponent is that of what it scales, times it
        return d_q, d_k, (q_mLR * d_q).sum(0).sum_to_size(q_log.shape), -(k * d_k).sum_to_size(k_log.shape), None


def _tiles(k: Tensor) -> list[slice]:
    length = k.shape[-2]
    return [slice(start, min(start + TILE, length)) for start in range(0, length, TILE)]


def _near(q_log: Tensor, k_log: Tensor, at: slice) -> Tensor:
    """Return the decays between all pairs of a tile, [.., L, M, R]."""
    # of pairs that are not shown the exponent may be positive: they are cleared, and must not overflow before
    return (q_log[..., at, None, :] - k_log[..., None, at, :]).clamp_(max=0.0).exp_()


def _far(q_log: Tensor, k_log: Tensor, at: slice) -> tuple[Tensor, Tensor]:
    """Return the decays of a tile's queries since the last key before it, and of all earlier keys until that one."""
    border = k_log[..., at.start - 1 : at.start, :]
    # exp(c - d) = exp(c - border) exp(border - d), neither of which is above 1; exp(c) exp(-d) overflows
    return (q_log[..., at, :] - border).exp_(), (border - k_log[..., : at.start, :]).exp_()


def decays(q_log: Tensor, k_log: Tensor, pair: Tensor) -> Tensor:
    """Return how far each key [.., M] has decayed at each query [.., L], 0 for pairs that are not shown."""
    # hidden pairs may have positive exponents; an exponential of -inf takes three times as long as one of 0
    return (q_log - k_log.mT).clamp_(max=0.0).exp_() * pair


class Decays(NamedTuple):
    """Decays of chunks under one decay per head: between pairs, since the beginning, until the end, and in all."""

    kept: Tensor
    read: Tensor
    write: Tensor
    carry: Tensor

    @classmethod
    def of(cls, log_decay: Tensor, masks: ChunkMasks) -> "Decays":
        """Return the decays of the chunks of a run, whose log decays are [.., c, 1]."""
        log = log_decay.cumsum(-2)
        last = log[..., -1:, :]
        read, write = times(log.exp(), masks.read), times((last - log).exp_(), masks.write)
        return cls(decays(log, log, masks.pair), read, write, times(last.exp(), masks.carry))


def summed_from_end(d_log: Tensor) -> Tensor:
    """Return the gradient of log decays from that of their sums: a position is in the sums from itself on."""
    return d_log.flip(-2).cumsum(-2).flip(-2)


def since(d_pairs: Tensor) -> Tensor:
    """Return the gradient of sums of log decays [.., L, 1] from that of the exponents of their pairs [.., L, L]."""
    # the exponent c_i - c_j has a plus in row i and a minus in column j
    return d_pairs.sum(-1, keepdim=True).sub_(d_pairs.sum(-2).unsqueeze(-1))


def n_scores(chunks: list[slice], by_channel: bool) -> int:
    """Return how many pairs are scored in these chunks; with decays per channel, tiles of later keys are left out."""
    sizes = [at.stop - at.start for at in chunks]
    return sum(n * (n + min(n, TILE)) // 2 if by_channel else n * n for n in sizes)
