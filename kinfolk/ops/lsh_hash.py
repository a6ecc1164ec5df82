"""Angular locality-sensitive hashing (LSH) by random rotations (Kitaev et al. 2020, section 2)."""

import math

import torch
from torch import Tensor

from kinfolk.core.device import full_precision


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
    rounds = []
    with full_precision(q_BHLK):
        for r in range(rotations_HKrj.shape[2]):
            # in the rotations' precision: rounding to 16 bits would move vectors between buckets
            turned_BHLj = q_BHLK.to(rotations_HKrj.dtype) @ rotations_HKrj[:, :, r]
            bucket, unit, first = torch.zeros_like(q_BHLK[..., 0], dtype=torch.long), 1, 0
            for half in (factor // 2 for factor in factors if factor > 1):
                mine_BHLj = turned_BHLj[..., first : first + half]
                # the largest of [y ; -y] is the largest |y|, on the side of its sign
                at_BHL1 = mine_BHLj.abs().argmax(-1, keepdim=True)
                below = mine_BHLj.gather(-1, at_BHL1) < 0
                bucket, unit, first = bucket + unit * (at_BHL1 + half * below)[..., 0], unit * 2 * half, first + half
            rounds.append(bucket)
    return torch.stack(rounds, dim=2)
