import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfolk.core.errors import DataError, SpecError
from kinfolk.core.grid import Grid
from kinfolk.ops.patterns.leaves import Local2D


def in_blocks(rows, columns, channels, high, wide):
    """Every value's place in raster order, block by block, by counting."""
    order = []
    for top in range(0, rows, high):
        for left in range(0, columns, wide):
            for row in range(top, top + high):
                for column in range(left, left + wide):
                    order += [(row * columns + column) * channels + channel for channel in range(channels)]
    return order


@settings(deadline=None, max_examples=50)
@given(*(st.integers(1, 4) for _ in range(4)), st.integers(1, 3))
def test_blocks_are_counted_as_by_hand(down, across, high, wide, channels):
    grid = Grid(columns=across * wide, channels=channels, block_height=high, block_width=wide)
    n = down * high * grid.width
    order = grid.order(n)
    assert order.tolist() == in_blocks(down * high, across * wide, channels, high, wide)
    assert torch.equal(order[grid.inverse(n)], torch.arange(n))
    row, column, channel = grid.place(torch.arange(n))
    assert torch.equal((row * grid.columns + column) * channels + channel, order)


def test_raster_order_is_no_order_at_all():
    grid = Grid(columns=5, channels=3)
    assert torch.equal(grid.order(47), torch.arange(47))
    row, column, channel = grid.place(torch.tensor([0, 14, 15, 46]))
    assert (row.tolist(), column.tolist(), channel.tolist()) == ([0, 0, 1, 3], [0, 4, 0, 0], [0, 2, 0, 1])
    assert [grid.rows(n) for n in (1, 15, 16)] == [1, 1, 2]


def test_the_pattern_of_two_dimensions_counts_the_same_way():
    grid = Grid(columns=6, channels=3, block_height=2, block_width=3)
    pattern = Local2D(width=grid.width, block_height=2, block_width=9, above=1, beside=3)
    _, _, row, column = pattern._place(torch.arange(4 * 18))
    ours = grid.place(torch.arange(4 * 18))
    assert torch.equal(row, ours[0])
    assert torch.equal(column, ours[1] * 3 + ours[2])


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"columns": 0}, "columns: 0 is not allowed; at least 1"),
        ({"columns": 4, "block_height": 2}, "0 x 0 is raster order"),
        ({"columns": 12, "block_height": 2, "block_width": 5}, "use one of 1, 2, 3, 4, 6, 12"),
    ],
)
def test_grids_that_are_none(numbers, said):
    with pytest.raises(SpecError, match=said):
        Grid(**numbers)


def test_half_a_row_of_blocks_is_refused():
    grid = Grid(columns=4, channels=3, block_height=2, block_width=2)
    with pytest.raises(DataError, match=r"36 values are no whole rows of blocks.* multiple of 24"):
        grid.order(36)
