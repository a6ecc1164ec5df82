"""Relative position encodings in scores and values (Shaw et al. 2018; Transformer-XL).

All work on tiles: `q` is [B, H, …, q, K], positions are [B or 1, …, q] and [B or 1, …, k], results [B, H, …, q, k],
whatever the distance. Nothing of size (queries x keys x K) is ever made.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.core.device import host, known_on_host, send, wide


def distances(q_pos: Tensor, k_pos: Tensor) -> Tensor:
    """Return query position minus key position, with an axis for heads: [B or 1, 1, …, q, k]."""
    return (q_pos.unsqueeze(-1) - k_pos.unsqueeze(-2)).unsqueeze(1)


def bucket(distance: Tensor, n_buckets: int, farthest: int, causal: bool) -> Tensor:
    r"""Return the T5 bucket of each distance (Raffel et al. 2020, section 2.1; the released code).

    Half of the buckets hold one distance each, the other half grow in size logarithmically up to `farthest`, beyond
    which all share the last. With both directions, later keys use the upper half of the buckets. Reference:
    `kinfolk.ops.naive.relative_position.bucket`.
    """
    offset = torch.zeros_like(distance)
    if causal:
        away = distance.clamp(min=0)
    else:
        n_buckets //= 2
        offset, away = (distance < 0) * n_buckets, distance.abs()
    exact = n_buckets // 2
    # in single precision, as in the released code, whose rounding decides the edges of buckets; log 0 is not used
    ratio = torch.log(away.clamp(min=1).float() / exact) / math.log(farthest / exact)
    grown = (exact + (ratio * (n_buckets - exact)).long()).clamp(max=n_buckets - 1)
    return offset + torch.where(away < exact, away, grown)


def log_bucket(distance: Tensor, n_buckets: int, farthest: int) -> Tensor:
    r"""Return the bucket of each distance, $-n$ to $n$ (He et al. 2021; DeBERTa's second release).

    Distances below half of `n_buckets` are their own; beyond, buckets grow in size logarithmically up to `farthest`.
    Single precision decides the edges, as in the released code.
    Reference: `kinfolk.ops.naive.relative_position.log_bucket`.
    """
    half, away = n_buckets // 2, distance.abs()
    ratio = torch.log(away.clamp(min=half).float() / half) / torch.log(torch.tensor((farthest - 1) / half))
    grown = (torch.ceil(ratio * (half - 1)) + half).long() * distance.sign()
    return torch.where(away <= half, distance, grown)


def slopes(n_heads: int) -> Tensor:
    r"""Return ALiBi's slopes (Press et al. 2022, section 3): $2^{-8h/H}$; between powers of two, some of the next."""
    closest = 1 << (n_heads.bit_length() - 1)
    own = [2.0 ** (-8 * (h + 1) / closest) for h in range(closest)]
    # every other slope of twice as many heads, from the first on, as in the released code
    between = [2.0 ** (-8 * (h + 1) / (2 * closest)) for h in range(0, 2 * closest, 2)]
    return torch.tensor(own + between[: n_heads - closest])


def rotate(
    x_BHLK: Tensor, pos: Tensor, base: float, layout: str, scale: Callable[[Tensor, float], Tensor] | None = None
) -> Tensor:
    r"""Turn each pair of channels by an angle proportional to the position (Su et al. 2021, equation 34).

    Channel pair i turns by $p\,\mathrm{base}^{-2i/K}$, so $q_i \cdot k_j$ depends on $i - j$ only. `layout`
    "interleaved" pairs neighbours (the paper), "halves" pairs channel i with i + K/2. `pos` is [L] or [B, L]. `scale`
    makes other rates of these (`kinfolk.layers.positions.rope_scaling`).
    Reference: `kinfolk.ops.naive.relative_position.rotate`.
    """
    width = x_BHLK.shape[-1]
    rate = base ** (-wide(torch.arange(0, width, 2, device=x_BHLK.device)) / width)
    rate = rate if scale is None else scale(rate, base)
    # in double precision: float32 knows an angle near 1e5 only to a hundredth
    angle = wide(pos).unsqueeze(-1) * rate
    # rows at positions of their own turn by angles of their own, the same in all heads
    angle = angle.unsqueeze(1) if pos.ndim == 2 else angle
    sin, cos = angle.sin().to(x_BHLK.dtype), angle.cos().to(x_BHLK.dtype)
    if layout == "interleaved":
        a, b = x_BHLK[..., 0::2], x_BHLK[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    a, b = x_BHLK.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def picked_scores(q: Tensor, table_RK: Tensor, index: Tensor) -> Tensor:
    """Return q_i . table[index_ij] for every pair: products with the whole table, then one pick per pair.

    `table_RK` is [R, K] or [H, R, K]; `index` broadcasts to [B, H, …, q, k]. Cost: (queries x R) products.
    Reference: `kinfolk.ops.naive.relative_position.picked_scores`.
    """
    if table_RK.ndim == 3:
        table_RK = table_RK.view(table_RK.shape[0], *[1] * (q.ndim - 4), *table_RK.shape[1:])
    every = q @ table_RK.mT
    return every.gather(-1, index.expand(*every.shape[:-1], index.shape[-1]))


def picked_by_keys(k: Tensor, table_RK: Tensor, index: Tensor) -> Tensor:
    """Return k_j . table[index_ij] for every pair; `k` is [B, H, …, k, K], the rest and the cost as `picked_scores`.

    Reference: `kinfolk.ops.naive.relative_position.picked_by_keys`.
    """
    if table_RK.ndim == 3:
        table_RK = table_RK.view(table_RK.shape[0], *[1] * (k.ndim - 4), *table_RK.shape[1:])
    every = table_RK @ k.mT
    return every.gather(-2, index.expand(*every.shape[:-2], *index.shape[-2:]))


def picked_values(weights: Tensor, table_RK: Tensor, index: Tensor) -> Tensor:
    """Return the sum over j of weights_ij table[index_ij]: weights collected by index, then one product.

    Reference: `kinfolk.ops.naive.relative_position.picked_values`.
    """
    by_index = weights.new_zeros(*weights.shape[:-1], len(table_RK))
    return by_index.scatter_add(-1, index.expand_as(weights), weights) @ table_RK


def distance_scores(q: Tensor, table_HRK: Tensor, high: int, q_pos: Tensor, k_pos: Tensor) -> Tensor:
    """Return q_i . table[high - (q_pos_i - k_pos_j)]: a table whose rows are distances from `high` downwards.

    Where both positions are consecutive the scores are those of all distances, each row shifted by one against the
    row above it (Dai et al. 2019, appendix B); elsewhere they are picked from just the distances that a tile has.
    Distances outside the table belong to pairs that are not allowed, and get a number without meaning.
    Reference: `kinfolk.ops.naive.relative_position.distance_scores`.
    """
    if torch.compiler.is_exporting() or not (known_on_host(q_pos) and known_on_host(k_pos)):
        # a graph knows no numbers, and to read those of an accelerator takes longer than to pick from the whole table
        whole = (high - distances(q_pos, k_pos)).clamp(0, table_HRK.shape[1] - 1)
        return picked_scores(q, table_HRK, whole)
    q_at, k_at = host(q_pos), host(k_pos)
    if q_pos.ndim == 2 and len(q_pos) == len(k_pos) == 1 and _consecutive(q_at) and _consecutive(k_at):
        farthest = int(q_at[0, -1] - k_at[0, 0])
        # from the largest distance of the tile down; a causal table ends at 0
        n_rows = min(table_HRK.shape[1] - (high - farthest), q_pos.shape[1] + k_pos.shape[1] - 1)
        if high >= farthest and n_rows >= k_pos.shape[1]:
            rows_HRK = table_HRK.narrow(1, high - farthest, n_rows)
            return shifted(q @ rows_HRK.mT, k_pos.shape[1])
    index = (high - distances(q_at, k_at)).clamp(0, table_HRK.shape[1] - 1)
    first, last = int(index.min()), int(index.max())
    n_pairs = index.shape[-1] + index.shape[-2]
    if last - first < 4 * n_pairs or last - first + 1 == table_HRK.shape[1]:
        return picked_scores(q, table_HRK[:, first : last + 1], send(index - first, q.device))
    some, place = torch.unique(index, return_inverse=True)
    return picked_scores(q, table_HRK[:, send(some, q.device)], send(place, q.device))


def shifted(every_BHLR: Tensor, n_keys: int) -> Tensor:
    """Return x[i, j] = every[i, L - 1 - i + j] for the first `n_keys` of j; past the end of a row, anything.

    Without gradients it is another view of the same numbers, with them one copy. Reference:
    `kinfolk.ops.naive.relative_position.shifted`.
    """
    *lead, n_q, n_rows = every_BHLR.shape
    if not every_BHLR.requires_grad:
        every_BHLR = every_BHLR.contiguous()
        outer = [n_q * n_rows * math.prod(lead[i + 1 :]) for i in range(len(lead))]
        # row i is read from i R + (L - 1 - i) = i (R - 1) + (L - 1) on
        start = every_BHLR.storage_offset() + n_q - 1
        return every_BHLR.as_strided((*lead, n_q, n_keys), (*outer, n_rows - 1, 1), start)
    # with a zero before each row, read in rows of L: each row then begins one number earlier (Dai et al. 2019, appendix
    # B)
    wide = F.pad(every_BHLR, (1, 0)).reshape(*lead, n_rows + 1, n_q)
    return wide[..., 1:, :].reshape(*lead, n_q, n_rows)[..., :n_keys]


def _consecutive(position: Tensor) -> bool:
    return bool((position.diff(dim=-1) == 1).all())
