"""Positions on a grid: each is its row's vector beside its column's."""

import pytest
import torch

import kinfolk as kf
from kinfolk.core.context import Context
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.layers.module import Dims
from kinfolk.layers.positions.axial import AxialPositions

DIMS = Dims(6, 20, 10, 0.0, 1)


@pytest.mark.parametrize(
    ("spec", "columns", "first"),
    [
        (AxialPositions(shape=(3, 4), widths=(2, 4)), 4, 2),
        (AxialPositions(), 4, 3),
        (AxialPositions(shape=(5, 2)), 2, 3),
    ],
)
def test_a_position_is_a_row_and_a_column(spec, columns, first):
    module = spec.build(DIMS)
    x = torch.zeros(2, 10, 6)
    got = module.add(x, Context())
    for p in range(10):
        want = torch.cat([module.rows.weight[p // columns], module.columns.weight[p % columns]])
        assert torch.equal(got[1, p], want)
        assert len(module.rows.weight[0]) == first
    assert torch.equal(module.add(x[:, :3], Context(start=5)), got[:, 5:8])
    places = torch.tensor([[7, 2], [0, 9]])
    assert torch.equal(module.add(x[:, :2], Context(pos_BL=places))[0], got[0, [7, 2]])
    assert spec.cost(DIMS).params == sum(p.numel() for p in module.parameters())


def test_what_does_not_fit_is_refused():
    with pytest.raises(SpecError, match="widths: 2 and 3 are not the 6"):
        AxialPositions(widths=(2, 3)).build(DIMS)
    with pytest.raises(SpecError, match="shape:"):
        AxialPositions(shape=(3,))
    with pytest.raises(ShapeError, match="position 12 is beyond a table of 3 rows and 4 columns"):
        AxialPositions(shape=(3, 4)).build(DIMS).add(torch.zeros(1, 13, 6), Context())
    path = {"model.embedding.position": {"kind": "axial", "shape": [2, 4]}}
    assert kf.build(kf.relative("gpt2", size="tiny", max_len=8, **path)).limit == 8
