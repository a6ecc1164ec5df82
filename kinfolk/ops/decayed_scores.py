"""Decayed query-key products inside a chunk, computed in log space (gated linear attention)."""

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor

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
    length = q_BHLR.shape[-2]
    rows = []
    for start in range(0, length, TILE):
        at = slice(start, min(start + TILE, length))
        near = [x[..., at, :] for x in (q_BHLR, k_BHMR, q_log, k_log)]
        tile = _direct(near[0], near[1], near[2], near[3], pair[..., at, at])
        if start:
            border = k_log[..., start - 1 : start, :]
            # exp(c - d) = exp(c - border) exp(border - d), neither of which is above 1; exp(c) exp(-d) overflows
            q = q_BHLR[..., at, :] * (q_log[..., at, :] - border).exp()
            k = k_BHMR[..., :start, :] * (border - k_log[..., :start, :]).exp()
            tile = torch.cat([(q @ k.mT) * pair[..., at, :start], tile], -1)
        rows.append(torch.nn.functional.pad(tile, (0, length - at.stop)))
    return torch.cat(rows, -2)


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


def _direct(q: Tensor, k: Tensor, q_log: Tensor, k_log: Tensor, pair: Tensor) -> Tensor:
    # of pairs that are not shown the exponent may be positive: they are cleared, and must not overflow before
    decay = (q_log.unsqueeze(-2) - k_log.unsqueeze(-3)).clamp(max=0.0).exp()
    return (decay * q.unsqueeze(-2) * k.unsqueeze(-3)).sum(-1) * pair
