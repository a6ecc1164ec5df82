"""What chooses and what judges are disjoint, together they are the whole valid part, for every kind of data."""

import dataclasses

import pytest

from kinfolk.core.errors import DataError
from kinfolk.data import Batches, open_data
from kinfolk.data.batches.halves import halved, judging, validation


@pytest.mark.parametrize("name", ["stdlib:megabytes=1", "copy:valid=50", "parity:valid=50", "copy:valid=3"])
@pytest.mark.parametrize("order", ["shuffled", "contiguous"])
def test_two_halves_are_disjoint_and_complete(name: str, order: str) -> None:
    data = halved(open_data(name))
    reading = {"batch_size": 4, "length": 32, "order": order}
    parts = [validation(data, **reading), judging(data, **reading)]
    rows = [
        [
            tuple(row.tolist()) + tuple(index.tolist())
            for b in map(part.at, range(part.steps_per_epoch))
            for row, index in zip(b.tokens, b.index.view(-1, 1), strict=True)
        ]
        for part in parts
    ]
    indices = [{row[-1] for row in half} for half in rows]
    assert not indices[0] & indices[1]
    whole = Batches(split=data.split("valid"), shuffle=False, **reading)
    every = {int(i) for step in range(whole.steps_per_epoch) for i in whole.at(step).index}
    assert indices[0] | indices[1] == every
    assert abs(parts[0].steps_per_epoch - parts[1].steps_per_epoch) <= 1


def test_a_single_example_cannot_do_both() -> None:
    data = halved(open_data("copy:valid=1"))
    with pytest.raises(DataError, match="cannot both choose and judge"):
        judging(data, batch_size=4, length=32)


def test_a_test_split_leaves_valid_whole() -> None:
    data = open_data("copy:valid=50")
    other = dataclasses.replace(data, splits=data.splits | {"test": open_data("reverse:valid=9").split("valid")})
    assert halved(other) is other
    assert validation(other, batch_size=50).at(0).index.tolist() == list(range(50))
    assert len(judging(other, batch_size=50).at(0)) == 9
