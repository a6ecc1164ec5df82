"""Random blocks: the pattern of BigBird, drawn by a pure hash (Zaheer et al. 2020, section 2)."""

import torch
from torch import Tensor

from kinfolk.core.bounds import NonNegativeInt, PositiveInt
from kinfolk.ops.patterns.algebra import Box, Pattern


class RandomBlocks(Pattern, kind="random"):
    """Each block of queries sees `n` blocks of keys, drawn by a pure hash of (seed, query block) (Zaheer et al. 2020).

    Drawn without replacement, one from each of `n` equal strata of the `among` first key blocks. With `among=0`
    they come from the blocks before the query's own, which is causal and does not depend on the length.
    """

    block: PositiveInt
    n: PositiveInt
    among: NonNegativeInt = 0
    seed: NonNegativeInt = 0

    @property
    def causal(self) -> bool:
        return self.among == 0

    @property
    def grain(self) -> int:
        return self.block

    @property
    def q_grain(self) -> int:
        return self.block

    def allows(self, q: Tensor, k: Tensor) -> Tensor:
        return self._block_allows(q // self.block, k // self.block)

    def touches(self, box: Box) -> Tensor:
        q_low, q_high, k_low, k_high = (x // self.block for x in box)
        hit = torch.zeros_like(q_low + k_low, dtype=torch.bool)
        for dq in range(int((q_high - q_low).max()) + 1):
            for dk in range(int((k_high - k_low).max()) + 1):
                inside = (q_low + dq <= q_high) & (k_low + dk <= k_high)
                hit |= inside & self._block_allows(q_low + dq, k_low + dk)
        return hit

    def fills(self, box: Box) -> Tensor:
        q_low, q_high, k_low, k_high = (x // self.block for x in box)
        return (q_low == q_high) & (k_low == k_high) & self._block_allows(q_low, k_low)

    def _block_allows(self, q_block: Tensor, k_block: Tensor) -> Tensor:
        n_blocks = torch.full_like(q_block, self.among) if self.among else q_block
        at_least_one = n_blocks.clamp(min=1)
        stratum = (k_block * self.n).div(at_least_one, rounding_mode="floor")
        # with fewer blocks than n, each is a stratum of its own and always picked
        low = -(-(stratum * at_least_one) // self.n)
        high = -(-((stratum + 1) * at_least_one) // self.n)
        pick = low + _hash(q_block, stratum, self.seed) % (high - low).clamp(min=1)
        return (pick == k_block) & (k_block < n_blocks) & (k_block >= 0)


def _hash(a: Tensor, b: Tensor, seed: int) -> Tensor:
    """Mix two integers and a seed into a non-negative one; constants below 2**63 keep int64 arithmetic exact."""
    # FlexAttention counts in int32, where the same products would overflow
    a, b = a.long(), b.long()
    x = a * 0x9E3779B97F4A7C1 + b * 0x3C6EF372FE94F82 + (seed * 0x2545F4914F6CDD1) % (1 << 61)
    for shift, factor in ((29, 0x3F58476D1CE4E5B9), (32, 0x14D049BB133111EB)):
        # a shift of int64 copies the sign; the mask makes it the logical shift of splitmix64
        x = (x ^ ((x >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return (x ^ (x >> 31)) & ((1 << 62) - 1)
