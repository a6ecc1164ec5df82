"""Held-out batches for choosing and for judging: `valid` and `test`, or two disjoint halves of `valid`.

What chose a hyperparameter must not judge it. Data without a test split is divided by batches, which works for every
kind of data: every other batch validates and the rest judges. Contiguous text, whose rows go on from batch to batch,
is cut in the middle instead.
"""

import dataclasses
from typing import Any, Protocol

from kinfolk.core.batch import Batch
from kinfolk.core.errors import DataError
from kinfolk.data.batches.batches import Batches
from kinfolk.data.splits.split import Data

TEST = "test"


class HeldOut(Protocol):
    """Numbered batches, each example once."""

    @property
    def steps_per_epoch(self) -> int:
        """How many batches hold every example once."""

    def at(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        """Return this process's rows of one batch."""


@dataclasses.dataclass(frozen=True)
class Half:
    """One half of the batches of a split that is not shuffled; `second` is the one that judges."""

    batches: Batches
    second: bool

    @property
    def steps_per_epoch(self) -> int:
        """How many batches hold every example of this half once."""
        return (self.batches.steps_per_epoch + (not self.second)) // 2

    def at(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        """Return this process's rows of one batch of this half."""
        if self.batches.order == "contiguous":
            first = (self.batches.steps_per_epoch + 1) // 2
            return self.batches.at(step + first * self.second, rank, world)
        return self.batches.at(2 * step + self.second, rank, world)


def validation(data: Data, **reading: Any) -> HeldOut:
    """Return the batches of every validation: of the valid split, or of the half of it that does not judge."""
    batches = Batches(split=data.split("valid"), shuffle=False, **reading)
    return _half(batches, False, data.name) if data.halved else batches


def judging(data: Data, **reading: Any) -> HeldOut:
    """Return the batches that a verdict is on: of the test split, or the second half of the valid split."""
    if TEST in data.splits:
        return Batches(split=data.split(TEST), shuffle=False, **reading)
    return _half(Batches(split=data.split("valid"), shuffle=False, **reading), True, data.name)


def halved(data: Data) -> Data:
    """Return data that validates on what does not judge: unchanged with a test split, else on a half of `valid`."""
    return data if TEST in data.splits else dataclasses.replace(data, halved=True)


def _half(batches: Batches, second: bool, name: str) -> Half:
    if batches.steps_per_epoch == 1:
        rows = len(batches.at(0))
        if rows == 1:
            raise DataError(
                f"{name}: the valid part is a single example, which cannot both choose and judge; give more data, a "
                f"file to validate on, or --tune off"
            )
        # one batch is two of half its rows
        batches = dataclasses.replace(batches, batch_size=(rows + 1) // 2)
    return Half(batches, second)
