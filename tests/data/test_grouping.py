"""Length grouping saves padding, and leaves the order of batches random; scoring is sorted by length."""

import numpy as np
import pytest

from kinfolk.data import Batches, Data, open_data
from kinfolk.data.splits.several import SeveralSplit
from tests.data import test_batches
from tests.data.test_batches import Make, decoded, same

pairs = test_batches.pairs


def widths(batches: Batches, steps: range) -> list[int]:
    """Return how many positions the longer side of each batch has."""
    return [max(b.tokens.shape[1], 0 if b.source is None else b.source.shape[1]) for b in map(batches.at, steps)]


SORTING = {
    "pairs": {"batch_size": 8},
    "budget": {"budget": 500},
    "labelled": {"batch_size": 16},
    "two texts": {"batch_size": 16},
    "several": {"batch_size": 16},
}


@pytest.fixture(params=SORTING)
def grouped(request: pytest.FixtureRequest, pairs: Data) -> Make:
    """Return a maker of the batches of one kind of data that is grouped by length."""
    name: str = request.param
    listops = open_data("listops:length=64,shortest=4,examples=1500").split("train")
    logic = open_data("logic:operators=9,examples=1500").split("train")
    splits = {"labelled": listops, "two texts": logic, "several": SeveralSplit([listops, logic])}
    return lambda **more: Batches(
        splits.get(name, pairs.split("train")), **SORTING[name] | {"grouping": "length"} | more
    )  # type: ignore[arg-type]


def test_grouped_batches_come_in_random_order(grouped: Make) -> None:
    """The length of a batch must not tell that of the next: long to short, training follows the length in waves."""
    batches, epochs = grouped(), []
    for epoch in range(3):
        # a group of batches begins with every epoch
        start = epoch * batches.steps_per_epoch + 1
        widest = widths(batches, range(start, start + 48))
        falling = np.corrcoef(np.arange(48), widest)[0, 1]
        following = np.corrcoef(widest[:-1], widest[1:])[0, 1]
        assert abs(falling) < 0.5
        assert abs(following) < 0.5
        assert len(set(widest)) > 5
        epochs.append(widest)
    assert epochs[0] != epochs[1] != epochs[2]
    assert widths(grouped(seed=1), range(1, 49)) != epochs[0]


@pytest.mark.parametrize("batch_size", [16, 17])
def test_grouping_saves_padding_in_every_epoch(pairs: Data, batch_size: int) -> None:
    """Whether or not an epoch ends where a batch does."""
    grouped, mixed = (Batches(pairs.split("train"), batch_size=batch_size, grouping=g) for g in ("length", "none"))
    steps = grouped.steps_per_epoch
    for count in (steps, 3 * steps):
        assert grouped.padding(count) < 0.6 * mixed.padding(count)


def test_pairs_are_grouped_by_default_and_labelled_examples_are_not(pairs: Data) -> None:
    labelled = open_data("listops:length=64,shortest=4,examples=400").split("train")
    for split, grouping in ((pairs.split("train"), "length"), (labelled, "none")):
        usual, same_as = Batches(split, batch_size=16), Batches(split, batch_size=16, grouping=grouping)
        assert all(same(usual.at(step), same_as.at(step)) for step in range(5))


def test_version_1_sorts_batches_by_length(pairs: Data) -> None:
    """Runs that were begun so go on so."""
    widest = widths(Batches(pairs.split("train"), batch_size=16, grouping="sorted"), range(50))
    assert widest == sorted(widest, reverse=True)


@pytest.mark.parametrize("n_batches", [0, 3, 1000])
def test_scoring_by_length_changes_the_order_alone(pairs: Data, n_batches: int) -> None:
    """The first batches hold the examples that they held, each with its number, and hardly any padding."""
    split = pairs.split("train")
    plain, by_length = (Batches(split, batch_size=16, shuffle=False, by_length=n) for n in (None, n_batches))
    assert by_length.steps_per_epoch == plain.steps_per_epoch
    steps = min(n_batches or plain.steps_per_epoch, plain.steps_per_epoch)
    rows: list[dict[int, tuple[str, str]]] = []
    for batches in (plain, by_length):
        seen: dict[int, tuple[str, str]] = {}
        for batch in map(batches.at, range(steps)):
            assert batch.source is not None
            assert batch.source_keep is not None
            assert batch.keep is not None
            sides = zip(batch.source, batch.source_keep, batch.tokens, batch.keep, strict=True)
            texts = [(decoded(split, s, k), decoded(split, t, m)) for s, k, t, m in sides]
            seen |= dict(zip(batch.index.tolist(), texts, strict=True))
        rows.append(seen)
    assert rows[0] == rows[1]
    assert len(rows[0]) == min(16 * steps, len(split))
    assert by_length.padding(steps) < (0.6 if steps > 3 else 0.9) * plain.padding(steps)
    if 0 < n_batches < plain.steps_per_epoch:
        assert same(by_length.at(n_batches), plain.at(n_batches))


def test_the_widest_batch_is_found_before_training(grouped: Make) -> None:
    batches = grouped()
    widest = widths(batches, range(min(50, batches.steps_per_epoch)))
    assert widest[batches.widest()] == max(widest)
