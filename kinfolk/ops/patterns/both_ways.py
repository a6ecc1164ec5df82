"""Bidirectional attention masks: whether a pattern sees later keys, and its symmetric closure for a prefix."""

import torch
from torch import Tensor

from kinfolk.ops.patterns.algebra import Box, Pattern, PerHead

SEARCHED = 8192
"""Positions in which a pattern is searched for queries that see later keys."""
BOXES = 32
"""Boxes on each side of that search."""


def later_pair(pattern: Pattern, n: int) -> tuple[int, int] | None:
    """Return a query and a later key that it sees, among n positions; None if there is no such pair.

    Boxes above the diagonal that `touches` cannot rule out are evaluated pair by pair, up to `SEARCHED` positions.
    """
    if isinstance(pattern, PerHead):
        return next((pair for p in pattern.patterns if (pair := later_pair(p, n)) is not None), None)
    if pattern.causal:
        return None
    n = min(n, SEARCHED)
    side = max(1, -(-n // BOXES))
    low = torch.arange(0, n, side)
    high = (low + side).clamp(max=n) - 1
    box = Box(low[:, None], high[:, None], low[None, :], high[None, :])
    for i, j in pattern.touches(box).triu().nonzero().tolist():
        q, k = torch.arange(int(low[i]), int(high[i]) + 1), torch.arange(int(low[j]), int(high[j]) + 1)
        pairs = (pattern.allows(q[:, None], k) & (k > q[:, None])).nonzero()
        if len(pairs):
            return int(q[pairs[0, 0]]), int(k[pairs[0, 1]])
    return None


class BothWays(Pattern, kind="both-ways"):
    """Pairs that `of` allows in either direction: its symmetric closure, in which a prefix is read."""

    of: Pattern

    @property
    def stationary(self) -> bool:
        return self.of.stationary

    @property
    def grain(self) -> int:
        return min(self.of.grain, self.of.q_grain)

    @property
    def q_grain(self) -> int:
        return self.grain

    @property
    def fold(self) -> int:
        return self.of.fold

    def allows(self, q: Tensor, k: Tensor) -> Tensor:
        return self.of.allows(q, k) | self.of.allows(k, q)

    def touches(self, box: Box) -> Tensor:
        return self.of.touches(box) | self.of.touches(_turned(box))

    def fills(self, box: Box) -> Tensor:
        return self.of.fills(box) | self.of.fills(_turned(box))

    def by_head(self, n_heads: int) -> tuple[tuple[Pattern, slice], ...]:
        return tuple((BothWays(of=pattern), heads) for pattern, heads in self.of.by_head(n_heads))


def _turned(box: Box) -> Box:
    """Exchange queries and keys."""
    return Box(box.k_low, box.k_high, box.q_low, box.q_high)
