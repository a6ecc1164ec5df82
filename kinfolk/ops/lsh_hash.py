"""Angular locality-sensitive hashing (LSH) by random rotations (Kitaev et al. 2020, section 2)."""

import math

import torch
from torch import Tensor

from kinfolk.core.device import full_precision

PROJECTIONS = 1 << 20
"""Projections that exist at once."""


def rotations(seed: int, n_heads: int, width: int, n_rounds: int, factors: tuple[int, ...]) -> Tensor:
    """Draw Gaussian directions with the generator of a seed: [H, K, rounds, directions], for each factor half of it."""
    generator = torch.Generator().manual_seed(seed)
    n_directions = sum(factor // 2 for factor in factors)
    return torch.randn(n_heads, width, n_rounds, n_directions, generator=generator)


def bucket_factors(length: int, size: int) -> tuple[int, ...]:
    """Return about 2 length / size buckets, a power of two: so `size` is twice what a bucket holds (section 2).

    More than 64 are the pairs of two hashes with a root of as many buckets each, which costs that much less.
    """
    power = max(1, round(math.log2(2 * max(1, length) / size)))
    return (2**power,) if power <= 6 else (2 ** (power // 2), 2 ** (power - power // 2))


@torch.no_grad()
def hash_buckets(q_BHLK: Tensor, rotations_HKrj: Tensor, factors: tuple[int, ...]) -> Tensor:
    r"""Hash vectors by angle: $h(x) = \mathrm{argmax}([xR; -xR])$, [B, H, rounds, L] (section 2).

    Several factors are the digits of a bucket's number, the first counts ones. A factor of 1 hashes nothing.
    No gradient flows. Reference: `kinfolk.ops.naive.lsh_hash`.
    """
    with full_precision(q_BHLK):
        # all rounds in one product, of few enough heads that it stays small
        some = max(1, PROJECTIONS // (len(q_BHLK) * q_BHLK.shape[2] * rotations_HKrj[0, 0].numel() + 1))
        parts = zip(q_BHLK.split(some, 1), rotations_HKrj.split(some), strict=True)
        return torch.cat([_hashed(*part, factors) for part in parts], dim=1)


def _hashed(q_BHLK: Tensor, rotations_HKrj: Tensor, factors: tuple[int, ...]) -> Tensor:
    # in the rotations' precision: rounding to 16 bits would move vectors between buckets
    turned_BHLn = q_BHLK.to(rotations_HKrj.dtype) @ rotations_HKrj.flatten(2)
    turned_BHLrj = turned_BHLn.unflatten(-1, rotations_HKrj.shape[2:])
    bucket_BHLr = turned_BHLrj.new_zeros(turned_BHLrj.shape[:-1], dtype=torch.long)
    unit, first = 1, 0
    for half in (factor // 2 for factor in factors if factor > 1):
        mine_BHLrj = turned_BHLrj[..., first : first + half]
        # the largest of [y ; -y] is the largest |y|, on the side of its sign
        at_BHLr1 = mine_BHLrj.abs().argmax(-1, keepdim=True)
        below = mine_BHLrj.gather(-1, at_BHLr1) < 0
        bucket_BHLr += unit * (at_BHLr1 + half * below)[..., 0]
        unit, first = unit * 2 * half, first + half
    return bucket_BHLr.movedim(-1, 2).contiguous()
