"""Which examples come in which batch: a pure function of (seed, step), for text windows and for pairs alike.

The examples of epoch 0, 1, 2, … follow one another in one endless line, each epoch in its own order, and batch
number `step` is the next `batch_size` of that line. So every epoch holds every example exactly once, whatever
the batch size, and nothing has to be remembered between steps.
"""

import dataclasses
from collections.abc import Callable
from typing import Protocol

import numpy as np

from kinfolk.core.errors import DataError
from kinfolk.core.rng import derive
from kinfolk.data.mixing import mix, permute
from kinfolk.data.split import Indices

MEGA = 50
"""Batches that are sorted by length together."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """The examples of one batch: the number of each in the run, its epoch, and which example of the data it is."""

    number: Indices
    epoch: Indices
    example: Indices
    continues: bool = False  # each row goes on with the same row of the batch before


class Order(Protocol):
    """A rule that says which examples come when."""

    steps_per_epoch: int

    def at(self, step: int) -> Rows:
        """Return the examples of a batch."""


class InOrder:
    """0, 1, 2, …: every example once, the last batch short. For validation."""

    def __init__(self, n: int, batch_size: int) -> None:
        self.n, self.batch_size = n, batch_size
        self.steps_per_epoch = -(-n // batch_size)

    def at(self, step: int) -> Rows:
        """Return the next examples; after the last batch comes the first."""
        epoch, step = divmod(step, self.steps_per_epoch)
        example = np.arange(step * self.batch_size, min(self.n, (step + 1) * self.batch_size))
        return Rows(epoch * self.n + example, np.full_like(example, epoch), example)


class Shuffled:
    """Another order every epoch, from the seed, in constant memory."""

    def __init__(self, n: int, batch_size: int, seed: int) -> None:
        self.n, self.batch_size, self.seed = n, batch_size, seed
        self.steps_per_epoch = -(-n // batch_size)

    def at(self, step: int) -> Rows:
        """Return the next examples of the endless line."""
        number = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        epoch, place = np.divmod(number, self.n)
        example = np.empty_like(number)
        for e in np.unique(epoch):
            example[epoch == e] = self.order(int(e), place[epoch == e])
        return Rows(number, epoch, example)

    def order(self, epoch: int, place: Indices) -> Indices:
        """Return the examples at some places of an epoch."""
        return permute(place, self.n, derive(self.seed, "epoch", epoch))


class Contiguous:
    """As many streams as a batch has rows: a row goes on where the same row of the batch before ended.

    A stream is an equal share of consecutive examples. To train, every row has an example in every batch, and the few
    examples that do not make a whole batch are left out; `whole` keeps them, and rows run out of examples at the end:
    those from `n` on do not exist.
    """

    def __init__(self, n: int, batch_size: int, *, whole: bool = False) -> None:
        self.batch_size = min(n, batch_size) if whole else batch_size
        self.steps_per_epoch = -(-n // self.batch_size) if whole else n // self.batch_size

    def at(self, step: int) -> Rows:
        """Return the next example of every stream; after the last batch of an epoch all begin anew."""
        epoch, step = divmod(step, self.steps_per_epoch)
        row = np.arange(self.batch_size)
        number = (epoch * self.steps_per_epoch + step) * self.batch_size + row
        return Rows(number, np.full_like(row, epoch), row * self.steps_per_epoch + step, continues=step > 0)


class Grouped(Shuffled):
    """Shuffle, take 50 batches at a time, sort those by length, the longest first: hardly any padding."""

    def __init__(self, n: int, batch_size: int, seed: int, lengths: Callable[[Indices], Indices]) -> None:
        super().__init__(n, batch_size, seed)
        self.lengths = lengths
        # consecutive steps ask for the same 50 batches
        self._newest: tuple[int, int, Indices] = (-1, -1, np.zeros(0, np.int64))

    def order(self, epoch: int, place: Indices) -> Indices:
        """Return the examples at some places of an epoch."""
        size = MEGA * self.batch_size
        mega = place // size
        example = np.empty_like(place)
        for m in np.unique(mega):
            example[mega == m] = self._mega_batch(epoch, int(m))[place[mega == m] - m * size]
        return example

    def _mega_batch(self, epoch: int, m: int) -> Indices:
        if self._newest[:2] != (epoch, m):
            size = MEGA * self.batch_size
            example = super().order(epoch, np.arange(m * size, min(self.n, (m + 1) * size)))
            shortest_first = np.argsort(self.lengths(example), kind="stable")
            self._newest = (epoch, m, example[shortest_first[::-1]])
        return self._newest[2]


class Budgeted:
    """Batches of about equal cost: rows times the longest row stays within `budget` tokens.

    Batches are cut once from the examples sorted by length, so their number is the same in every epoch; an epoch
    draws anew which of the equally long examples meet, and the order of the batches. Takes 24 bytes
    of memory an example.
    """

    def __init__(self, lengths: Indices, budget: int, seed: int, *, shuffle: bool = True) -> None:
        self.seed, self.shuffle, self._lengths = seed, shuffle, lengths
        descending = np.sort(lengths)[::-1]
        if descending[0] > budget:
            raise DataError(f"a budget of {budget} tokens is less than the longest pair, {descending[0]} tokens")
        cuts = [0]
        while cuts[-1] < len(descending):
            cuts.append(min(len(descending), cuts[-1] + budget // int(descending[cuts[-1]])))
        self._cuts = np.array(cuts)
        self.steps_per_epoch = len(cuts) - 1
        self._newest: tuple[int, Indices] = (-1, np.zeros(0, np.int64))

    def at(self, step: int) -> Rows:
        """Return the examples of a batch."""
        epoch, step = divmod(step, self.steps_per_epoch)
        batch = step
        if self.shuffle:
            batch = int(permute(np.array([step]), self.steps_per_epoch, derive(self.seed, "batches", epoch))[0])
        places = np.arange(self._cuts[batch], self._cuts[batch + 1])
        example = self._order(epoch)[places]
        return Rows(epoch * len(self._lengths) + places, np.full_like(example, epoch), example)

    def _order(self, epoch: int) -> Indices:
        epoch = epoch if self.shuffle else 0
        if self._newest[0] != epoch:
            tie = mix(derive(self.seed, "ties", epoch), np.arange(len(self._lengths)))
            self._newest = (epoch, np.lexsort((tie, -self._lengths)))
        return self._newest[1]
