"""Decayed query-key products inside a chunk, computed in log space (gated linear attention)."""

import dataclasses

import torch
from torch import Tensor

from kinfolk.ops.linear_attention import Masks, Visibility

TILE = 8
"""Positions whose pairs are computed channel by channel where every channel decays by itself."""


@dataclasses.dataclass(frozen=True, eq=False)
class ChunkMasks:
    """What a chunk sees where several documents are packed: pairs of itself, and the state from before it."""

    of: Masks

    @property
    def pair(self) -> Tensor:
        """Pairs of a query and a key not later than it, of one document: [.., L, L]."""
        return self.of.pair

    def reading(self, q: Tensor) -> Tensor:
        """Clear queries of documents that began after the state."""
        return q if self.of.read is None else q * self.of.read.unsqueeze(-1)

    def writing(self, k: Tensor) -> Tensor:
        """Clear keys of documents that end inside the chunk."""
        return k if self.of.write is None else k * self.of.write.unsqueeze(-1)

    def carrying(self, state: Tensor) -> Tensor:
        """Clear the state where its document ends inside the chunk."""
        return state if self.of.carry is None else state * self.of.carry[..., None, None]


@dataclasses.dataclass(frozen=True, eq=False)
class Borders:
    """Where packed documents begin and end, by chunks of `chunk` positions."""

    group_BL: Tensor | None
    chunk: int

    def masks(self, at: slice, device: torch.device) -> ChunkMasks:
        """Return the masks of a chunk."""
        before = slice(at.start - self.chunk, at.start) if at.start else None
        return ChunkMasks(Visibility(None, self.group_BL).masks(at, before, device))


def exclusive(log: Tensor) -> Tensor:
    """Return sums up to the position before each, exactly as they were rounded there."""
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
        return (q_BHLR @ k_BHMR.mT) * (q_log - k_log.mT).masked_fill(~pair, -torch.inf).exp()
    length = q_BHLR.shape[-2]
    rows = []
    for start in range(0, length, TILE):
        at = slice(start, min(start + TILE, length))
        near = [x[..., at, :] for x in (q_BHLR, k_BHMR, q_log, k_log)]
        tile = _direct(near[0], near[1], near[2], near[3], pair[..., at, at])
        if start:
            border = k_log[..., start - 1 : start, :]
            q = q_BHLR[..., at, :] * (q_log[..., at, :] - border).exp()
            k = k_BHMR[..., :start, :] * (border - k_log[..., :start, :]).exp()
            tile = torch.cat([(q @ k.mT) * pair[..., at, :start], tile], -1)
        rows.append(torch.nn.functional.pad(tile, (0, length - at.stop)))
    return torch.cat(rows, -2)


def n_scores(chunks: list[slice], by_channel: bool) -> int:
    """Return how many pairs are scored in these chunks; with decays per channel, tiles of later keys are left out."""
    sizes = [at.stop - at.start for at in chunks]
    return sum(n * (n + min(n, TILE)) // 2 if by_channel else n * n for n in sizes)


def _direct(q: Tensor, k: Tensor, q_log: Tensor, k_log: Tensor, pair: Tensor) -> Tensor:
    # of pairs that are not shown the exponent may be positive: they are cleared, and must not overflow before
    decay = (q_log.unsqueeze(-2) - k_log.unsqueeze(-3)).clamp(max=0.0).exp()
    return (decay * q.unsqueeze(-2) * k.unsqueeze(-3)).sum(-1) * pair
