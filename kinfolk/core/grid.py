"""Order of the values of an image in one sequence: which position is which row, column and channel.

An image of H rows, W columns and C channels is H·W·C values in raster order: row by row, in a row pixel by pixel, in a
pixel channel by channel. Block-raster order goes block by block instead, and in raster order inside each.
"""

import functools

import torch
from torch import Tensor

from kinfolk.core.bounds import NonNegativeInt, PositiveInt
from kinfolk.core.errors import DataError, SpecError
from kinfolk.core.spec import Spec


class Grid(Spec):
    """An image `columns` pixels wide, of any height. Blocks, where there are any, are counted in pixels."""

    columns: PositiveInt
    channels: PositiveInt = 1
    block_height: NonNegativeInt = 0  # 0 and 0: raster order
    block_width: NonNegativeInt = 0

    def __post_init__(self) -> None:
        if (self.block_height > 0) != (self.block_width > 0):
            raise SpecError(
                f"a block of {self.block_height} x {self.block_width} pixels is none; 0 x 0 is raster order"
            )
        if self.block_width and self.columns % self.block_width:
            raise SpecError(
                f"blocks {self.block_width} wide do not fill {self.columns} columns; use one of "
                f"{', '.join(str(n) for n in range(1, self.columns + 1) if self.columns % n == 0)}"
            )

    @property
    def width(self) -> int:
        """Values of a row."""
        return self.columns * self.channels

    def rows(self, n: int) -> int:
        """Return how many rows n values take."""
        return -(-n // self.width)

    def place(self, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the row, column and channel of positions in this order."""
        if not self.block_width:
            row, inside = position // self.width, position % self.width
            return row, inside // self.channels, inside % self.channels
        across, wide = self.columns // self.block_width, self.block_width * self.channels
        block, inside = position // (self.block_height * wide), position % (self.block_height * wide)
        column = block % across * self.block_width + inside % wide // self.channels
        return block // across * self.block_height + inside // wide, column, inside % self.channels

    def order(self, n: int) -> Tensor:
        """Return where in raster order the first n positions are; n values must be whole blocks."""
        row = self.width * max(1, self.block_height)
        if self.block_width and n % row:
            raise DataError(
                f"{n} values are no whole rows of blocks: an image {self.columns} columns wide of {self.channels} "
                f"channels has a multiple of {row} if blocks are {self.block_height} high"
            )
        return _order(self, n)

    def inverse(self, n: int) -> Tensor:
        """Return where in this order the first n values of raster order are."""
        return self.order(n).argsort()


@functools.lru_cache(maxsize=64)
def _order(grid: Grid, n: int) -> Tensor:
    row, column, channel = grid.place(torch.arange(n))
    return (row * grid.columns + column) * grid.channels + channel
