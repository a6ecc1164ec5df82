"""Attention masks as data (causal, window, strided, global, …): predicates over absolute positions.

    Causal() & (SameBlock(size=128) | Summary(block=128, width=8))

Here are the leaves; what a pattern answers and how patterns combine is `ops/patterns/algebra.py`. Positions are
absolute, so the same expression serves training, a cache, a ring buffer and packed examples.
"""

import torch
from torch import Tensor

from kinfolk.core.bounds import NonNegativeInt, PositiveInt
from kinfolk.ops.patterns.algebra import Both, Box, Either, Except, Pattern, PerHead
from kinfolk.ops.patterns.random_blocks import RandomBlocks

__all__ = [
    "Axial",
    "BlockWindow",
    "Both",
    "Box",
    "Causal",
    "Either",
    "Except",
    "Full",
    "Global",
    "Local1D",
    "Local2D",
    "Pattern",
    "PerHead",
    "Prefix",
    "RandomBlocks",
    "SameBlock",
    "Strided",
    "Summary",
    "Window",
]


class Full(Pattern, kind="full"):
    """Every pair."""

    @property
    def stationary(self) -> bool:
        return True

    def allows(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.ones_like(q + k, dtype=torch.bool)

    def fills(self, box: Box) -> Tensor:
        return self.touches(box)


class Causal(Pattern, kind="causal"):
    """A query sees itself and the past (the diagonal included: inputs are already shifted)."""

    @property
    def causal(self) -> bool:
        return True

    @property
    def stationary(self) -> bool:
        return True

    def allows(self, q: Tensor, k: Tensor) -> Tensor:
        return k <= q

    def touches(self, box: Box) -> Tensor:
        return box.k_low <= box.q_high

    def fills(self, box: Box) -> Tensor:
        return box.k_high <= box.q_low


class Window(Pattern, kind="window"):
    """Keys at most `left` before and `right` after the query, every `step`-th of them (dilated if above 1)."""

    left: NonNegativeInt
    right: NonNegativeInt = 0
    step: PositiveInt = 1

    @property
    def causal(self) -> bool:
        return self.right == 0

    @property
    def stationary(self) -> bool:
        return True

    @property
    def span(self) -> int | None:
        return self.left + 1

    @property
    def fold(self) -> int:
        return self.step

    def allows(self, q: Tensor, k: Tensor) -> Tensor:
        near = (k >= q - self.left) & (k <= q + self.right)
        return near if self.step == 1 else near & ((q - k) % self.step == 0)

    def touches(self, box: Box) -> Tensor:
        near = (box.k_high >= box.q_low - self.left) & (box.k_low <= box.q_high + self.right)
        return near & _multiple_between(box.q_low - box.k_high, box.q_high - box.k_low, self.step)

    def fills(self, box: Box) -> Tensor:
        near = (box.k_low >= box.q_high - self.left) & (box.k_high <= box.q_low + self.right)
        return near & (self.step == 1)


class Strided(Pattern, kind="strided"):
    """Every `stride`-th key counted from the query (Child et al. 2019, section 4.3, strided A2; a column)."""

    stride: PositiveInt

    @property
    def stationary(self) -> bool:
        return True

    @property
    def fold(self) -> int:
        return self.stride

    def allows(self, q: Tensor, k: Tensor) -> Tensor:
        return (q - k) % self.stride == 0

    def touches(self, box: Box) -> Tensor:
        return _multiple_between(box.q_low - box.k_high, box.q_high - box.k_low, self.stride)


class SameBlock(Pattern, kind="same-block"):
    """Keys in the query's own block (Child et al. 2019, section 4.3, fixed A1; a row)."""

    size: PositiveInt

    def allows(self, q: Tensor, k: Tensor) -> Tensor:
        return q // self.size == k // self.size

    def touches(self, box: Box) -> Tensor:
        q_low, q_high, k_low, k_high = (x // self.size for x in box)
        return (q_low <= k_high) & (k_low <= q_high)

    def fills(self, box: Box) -> Tensor:
        q_low, q_high, k_low, k_high = (x // self.size for x in box)
        return (q_low == q_high) & (k_low == k_high) & (q_low == k_low)


class Summary(Pattern, kind="summary"):
    """`width` keys of every block, ending `before` short of its end (Child et al. 2019, section 4.3, fixed A2)."""

    block: PositiveInt
    width: PositiveInt
    before: NonNegativeInt = 0

    @property
    def grain(self) -> int:
        return self.width

    def allows(self, q: Tensor, k: Tensor) -> Tensor:
        place = k % self.block
        high = self.block - self.before
        return ((place >= high - self.width) & (place < high)).expand_as(q + k)

    def touches(self, box: Box) -> Tensor:
        # slide so that the summary is [0, width) of each block, then ask whether the interval meets one
        first = self.block - self.before - self.width
        low, high = box.k_low - first, box.k_high - first
        meets = (low % self.block < self.width) | (low // self.block != high // self.block)
        return meets.expand_as(box.q_low + box.k_low)

    def fills(self, box: Box) -> Tensor:
        low = box.k_low - (self.block - self.before - self.width)
        within = low % self.block + (box.k_high - box.k_low) < self.width
        return within.expand_as(box.q_low + box.k_low)


class BlockWindow(Pattern, kind="block-window"):
    """Keys of the query's own block, `left` blocks before it and `right` after it (Zaheer et al. 2020, section 2)."""

    block: PositiveInt
    left: NonNegativeInt = 1
    right: NonNegativeInt = 1

    @property
    def span(self) -> int | None:
        # from the end of its own block to the start of the farthest
        return (self.left + 1) * self.block

    def allows(self, q: Tensor, k: Tensor) -> Tensor:
        away = q // self.block - k // self.block
        return (away <= self.left) & (away >= -self.right)

    def touches(self, box: Box) -> Tensor:
        q_low, q_high, k_low, k_high = (x // self.block for x in box)
        return (q_low - k_high <= self.left) & (q_high - k_low >= -self.right)

    def fills(self, box: Box) -> Tensor:
        q_low, q_high, k_low, k_high = (x // self.block for x in box)
        return (q_high - k_low <= self.left) & (q_low - k_high >= -self.right)


class Global(Pattern, kind="global"):
    """Positions `start` to `start + n - 1` see, and are seen by, everyone (Zaheer et al. 2020, section 2)."""

    n: NonNegativeInt
    start: NonNegativeInt = 0

    def allows(self, q: Tensor, k: Tensor) -> Tensor:
        return self._among(q, q) | self._among(k, k)

    def touches(self, box: Box) -> Tensor:
        return self._among(box.q_low, box.q_high) | self._among(box.k_low, box.k_high)

    def fills(self, box: Box) -> Tensor:
        return self._within(box.q_low, box.q_high) | self._within(box.k_low, box.k_high)

    def _within(self, low: Tensor, high: Tensor) -> Tensor:
        return (low >= self.start) & (high < self.start + self.n)

    def _among(self, low: Tensor, high: Tensor) -> Tensor:
        return (high >= self.start) & (low < self.start + self.n)


class Prefix(Pattern, kind="prefix"):
    """Everyone sees the first `n` positions; with `Causal() |` it is the prefix language model's mask."""

    n: NonNegativeInt

    def allows(self, q: Tensor, k: Tensor) -> Tensor:
        return (k < self.n).expand_as(q + k)

    def touches(self, box: Box) -> Tensor:
        return (box.k_low < self.n).expand_as(box.q_low + box.k_low)

    def fills(self, box: Box) -> Tensor:
        return (box.k_high < self.n).expand_as(box.q_low + box.k_low)


class Axial(Pattern, kind="axial"):
    """The query's own row or own column of a grid `width` wide (Ho et al. 2019)."""

    width: PositiveInt

    def _parts(self) -> Pattern:
        return SameBlock(size=self.width) | Strided(stride=self.width)

    def sheets(self) -> tuple[Pattern, ...]:
        return self._parts().sheets()

    def allows(self, q: Tensor, k: Tensor) -> Tensor:
        return self._parts().allows(q, k)

    def touches(self, box: Box) -> Tensor:
        return self._parts().touches(box)

    def fills(self, box: Box) -> Tensor:
        return self._parts().fills(box)


class Local1D(Pattern, kind="local-1d"):
    """Blocks of queries see themselves and the `memory` positions before them (Parmar et al. 2018, section 4.2)."""

    block: PositiveInt
    memory: NonNegativeInt

    @property
    def span(self) -> int | None:
        return self.block + self.memory

    def first_seen(self, q: int) -> int:
        return max(0, q // self.block * self.block - self.memory)

    def allows(self, q: Tensor, k: Tensor) -> Tensor:
        first = q // self.block * self.block
        return (k >= first - self.memory) & (k < first + self.block)

    def touches(self, box: Box) -> Tensor:
        first, last = box.q_low // self.block * self.block, box.q_high // self.block * self.block
        return (box.k_high >= first - self.memory) & (box.k_low < last + self.block)

    def fills(self, box: Box) -> Tensor:
        first, last = box.q_low // self.block * self.block, box.q_high // self.block * self.block
        return (box.k_low >= last - self.memory) & (box.k_high < first + self.block)


class Local2D(Pattern, kind="local-2d"):
    """Blocks of an image see themselves and what lies `above` and `beside` them (Parmar et al. 2018, section 4.2).

    Positions run in block-raster order: blocks row by row, pixels row by row inside a block. A query sees its own
    block up to itself, `beside` columns to the left in its block's rows, and the `above` rows over its block from
    `beside` columns left of the block to `beside` columns right of it. Every key precedes its query in that order.
    """

    width: PositiveInt
    block_height: PositiveInt
    block_width: PositiveInt
    above: NonNegativeInt
    beside: NonNegativeInt

    @property
    def causal(self) -> bool:
        return True

    def allows(self, q: Tensor, k: Tensor) -> Tensor:
        top, left, _, _ = self._place(q)
        k_top, k_left, k_row, k_column = self._place(k)
        own = (top == k_top) & (left == k_left) & (k <= q)
        near_left = (k_row >= top) & (k_row < top + self.block_height) & (k_column < left)
        near_left &= k_column >= left - self.beside
        over = (k_row < top) & (k_row >= top - self.above)
        over &= (k_column >= left - self.beside) & (k_column < left + self.block_width + self.beside)
        return own | near_left | over

    def touches(self, box: Box) -> Tensor:
        # in units of blocks: rows at most `back` above, columns at most `near` to either side
        back, near = -(-self.above // self.block_height), -(-self.beside // self.block_width)
        (q_top, q_bottom, q_left, q_right), (k_top, k_bottom, k_left, k_right) = (
            self._ranges(*box[:2]),
            self._ranges(*box[2:]),
        )
        rows = (k_top <= q_bottom) & (k_bottom >= q_top - back)
        columns = (k_left <= q_right + near) & (k_right >= q_left - near)
        return (box.k_low <= box.q_high) & rows & columns

    def _ranges(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the first and last row and column of blocks that an interval of positions meets."""
        area, across = self.block_height * self.block_width, -(-self.width // self.block_width)
        first, last = low // area, high // area
        top, bottom = first // across, last // across
        # an interval that goes on in another row may be anywhere in it
        one = top == bottom
        return top, bottom, torch.where(one, first % across, 0), torch.where(one, last % across, across - 1)

    def _place(self, position: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the top and left of a position's block, and its own row and column."""
        area = self.block_height * self.block_width
        block, inside = position // area, position % area
        across = -(-self.width // self.block_width)
        top, left = block // across * self.block_height, block % across * self.block_width
        return top, left, top + inside // self.block_width, left + inside % self.block_width


def _multiple_between(low: Tensor, high: Tensor, step: int) -> Tensor:
    """Tell whether a multiple of `step` lies in [low, high]."""
    # the division floors, also below zero: distances to later keys are negative
    return high // step * step >= low
