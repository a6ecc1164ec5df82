"""What is given of a picture and what is asked: by hand on small ones."""

import pytest
import torch

from kinfolk.core.batch import Batch
from kinfolk.core.errors import DataError, SpecError
from kinfolk.core.grid import Grid
from kinfolk.core.rng import Rng
from kinfolk.objectives.image import Completion, PixelByPixel, SuperResolution, shrunk
from kinfolk.objectives.objective import Vocabulary

GRID = Grid(columns=4, channels=2)
BLOCKS = Grid(columns=4, channels=2, block_height=2, block_width=2)
VOCABULARY = Vocabulary(263)


def picture(rows=4, batch=2):
    return torch.randint(7, 263, (batch, rows * 8), generator=torch.Generator().manual_seed(rows))


def prepared(objective, tokens, **more):
    return objective.prepare(Batch(index=torch.arange(len(tokens)), tokens=tokens, **more), Rng(0), VOCABULARY)


@pytest.mark.parametrize("grid", [GRID, BLOCKS], ids=["raster", "blocks"])
def test_every_value_is_asked_once_in_the_order_of_the_grid(grid):
    values = picture()
    batch = prepared(PixelByPixel(grid=grid), values)
    assert torch.equal(batch.targets[:, grid.inverse(32)], values)
    assert (batch.tokens[:, 0] == VOCABULARY.bos).all()
    assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])
    assert batch.source is None


def test_an_opening_token_labels_and_a_full_mask_change_nothing():
    objective, values = PixelByPixel(grid=BLOCKS), picture()
    want = prepared(objective, values)
    opened = torch.cat([torch.full((2, 1), VOCABULARY.bos), values], 1)
    keep = torch.ones(2, 32, dtype=torch.bool)
    for got in (prepared(objective, opened), prepared(objective, values, labels=torch.tensor([0, 1]), keep=keep)):
        assert torch.equal(got.tokens, want.tokens)
        assert torch.equal(got.targets, want.targets)
        assert got.keep is None
        assert got.labels is None
    keep[0, -1] = False
    with pytest.raises(DataError, match="of one size"):
        prepared(objective, values, keep=keep)


def test_a_small_picture_has_the_means_of_squares():
    values = picture()
    by_hand = torch.zeros(2, 2, 2, 2, dtype=torch.long)
    for b in range(2):
        for r in range(2):
            for c in range(2):
                for k in range(2):
                    square = [values[b, ((2 * r + i) * 4 + 2 * c + j) * 2 + k].item() for i in (0, 1) for j in (0, 1)]
                    by_hand[b, r, c, k] = round(sum(square) / 4)
    assert torch.equal(shrunk(values, GRID, 2), by_hand.flatten(1))
    assert torch.equal(shrunk(values, GRID, 1), values)
    flat = torch.full((1, 32), 99)
    assert (shrunk(flat, GRID, 4) == 99).all()


@pytest.mark.parametrize("grid", [GRID, BLOCKS], ids=["raster", "blocks"])
def test_super_resolution_asks_for_the_picture_from_the_small_one(grid):
    values = picture()
    batch = prepared(SuperResolution(grid=grid, factor=2), values)
    assert torch.equal(batch.source, shrunk(values, GRID, 2))
    assert torch.equal(batch.targets[:, grid.inverse(32)], values)
    with pytest.raises(DataError, match=r"24 values are no whole squares of 2 x 2 .* multiple of 16"):
        shrunk(picture(3), GRID, 2)


@pytest.mark.parametrize("grid", [GRID, BLOCKS], ids=["raster", "blocks"])
@pytest.mark.parametrize(("given", "rows"), [(0.5, 2), (0.01, 1), (0.99, 3)])
def test_completion_divides_a_picture_and_joins_it_again(grid, given, rows):
    objective, values = Completion(grid=grid, given=given), picture(8)
    n = 8 * 2 * rows if grid is BLOCKS else {2: 32, 1: 8, 3: 56}[rows]
    batch = prepared(objective, values)
    assert torch.equal(batch.source, values[:, :n])
    lower = batch.targets[:, grid.inverse(64 - n)]
    assert torch.equal(lower, values[:, n:])
    assert torch.equal(objective.join(values, lower), values)


def test_what_cannot_be_divided_is_refused():
    for make, said in (
        (lambda: Completion(grid=GRID, given=1.0), "given: 1.0 is not allowed"),
        (lambda: SuperResolution(grid=GRID, factor=3), "factor: 3 does not divide the 4 columns"),
    ):
        with pytest.raises(SpecError, match=said):
            make()
    with pytest.raises(DataError, match="16 values cannot be divided: there are 16 in every row of blocks"):
        prepared(Completion(grid=BLOCKS), picture(2))
