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
from kinfolk.data.batches.mixing import mix, permute
from kinfolk.data.splits.split import Indices

MEGA = 50
"""Batches whose examples are sorted by length together."""

_CHUNK = 1 << 16

VERSION = 2
"""Version of the order that follows from (seed, epoch); recorded by runs; a run without one has version 1."""


@dataclasses.dataclass(frozen=True)
class BatchRows:
    """The examples of one batch: the number of each in the run, its epoch, and which example of the data it is."""

    number: Indices
    epoch: Indices
    example: Indices
    continues: bool = False  # each row goes on with the same row of the batch before


class BatchOrder(Protocol):
    """A rule that says which examples come when."""

    steps_per_epoch: int

    def at(self, step: int) -> BatchRows:
        """Return the examples of a batch."""


class InOrder:
    """0, 1, 2, …: every example once, the last batch short. For validation."""

    def __init__(self, n: int, batch_size: int) -> None:
        self.n, self.batch_size = n, batch_size
        self.steps_per_epoch = -(-n // batch_size)

    def at(self, step: int) -> BatchRows:
        """Return the next examples; after the last batch comes the first."""
        epoch, step = divmod(step, self.steps_per_epoch)
        example = np.arange(step * self.batch_size, min(self.n, (step + 1) * self.batch_size))
        return BatchRows(epoch * self.n + example, np.full_like(example, epoch), example)


class ByLength(InOrder):
    """Every example once, the longest first, which saves padding where the order does not matter. For scoring.

    An example keeps its number. Only those of the first `n_batches` batches are sorted, among themselves, so that
    these hold the same examples as without sorting; 0: all.
    """

    def __init__(self, n: int, batch_size: int, lengths: Callable[[Indices], Indices], n_batches: int = 0) -> None:
        super().__init__(n, batch_size)
        size = min(n, n_batches * batch_size or n)
        length = np.concatenate([lengths(np.arange(i, min(size, i + _CHUNK))) for i in range(0, size, _CHUNK)])
        self._sorted = np.argsort(-length, kind="stable")

    def at(self, step: int) -> BatchRows:
        rows = super().at(step)
        sorted_rows = rows.example < len(self._sorted)
        example = rows.example.copy()
        example[sorted_rows] = self._sorted[rows.example[sorted_rows]]
        return BatchRows(rows.number - rows.example + example, rows.epoch, example)


class Shuffled:
    """Another order every epoch, from the seed, in constant memory."""

    def __init__(self, n: int, batch_size: int, seed: int) -> None:
        self.n, self.batch_size, self.seed = n, batch_size, seed
        self.steps_per_epoch = -(-n // batch_size)

    def at(self, step: int) -> BatchRows:
        """Return the next examples of the endless line."""
        number = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        epoch, place = np.divmod(number, self.n)
        example = np.empty_like(number)
        for e in np.unique(epoch):
            example[epoch == e] = self.order(int(e), place[epoch == e])
        return BatchRows(number, epoch, example)

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

    def at(self, step: int) -> BatchRows:
        """Return the next example of every stream; after the last batch of an epoch all start afresh."""
        epoch, step = divmod(step, self.steps_per_epoch)
        row = np.arange(self.batch_size)
        number = (epoch * self.steps_per_epoch + step) * self.batch_size + row
        return BatchRows(number, np.full_like(row, epoch), row * self.steps_per_epoch + step, continues=step > 0)


class Grouped(Shuffled):
    """Length grouping: examples of similar length share a batch, and the batches come in random order.

    An epoch is shuffled and taken `MEGA` batches at a time; those examples are sorted by length, cut into batches, and
    the batches are permuted. The permutation is a function of (seed, epoch, which of these groups).

    permuted: False leaves the batches of a group longest first, which training follows in waves. Only runs that were
        begun with version 1 of the order read their data so.
    """

    def __init__(
        self, n: int, batch_size: int, seed: int, lengths: Callable[[Indices], Indices], *, permuted: bool = True
    ) -> None:
        super().__init__(n, batch_size, seed)
        self.lengths, self.permuted = lengths, permuted
        # consecutive steps ask for the same group
        self._newest: tuple[int, int, Indices] = (-1, -1, np.zeros(0, np.int64))

    def order(self, epoch: int, place: Indices) -> Indices:
        # a batch may hold the end of one epoch and the beginning of the next, so groups end where batches do
        before = epoch * self.n % self.batch_size if self.permuted else 0
        size = MEGA * self.batch_size
        group = (before + place) // size
        example = np.empty_like(place)
        for g in np.unique(group):
            start = max(0, int(g) * size - before)
            example[group == g] = self._group(epoch, start, min(self.n, (int(g) + 1) * size - before))[
                place[group == g] - start
            ]
        return example

    def _group(self, epoch: int, start: int, stop: int) -> Indices:
        """Return the examples of the places from `start` to `stop`, which are whole batches but at an epoch's ends."""
        if self._newest[:2] != (epoch, start):
            example = super().order(epoch, np.arange(start, stop))
            example = example[np.argsort(self.lengths(example), kind="stable")[::-1]]
            if self.permuted:
                batch = (epoch * self.n + np.arange(start, stop)) // self.batch_size
                batch -= batch[0]
                rank = permute(np.arange(batch[-1] + 1), int(batch[-1]) + 1, derive(self.seed, "groups", epoch, start))
                # the places in the order in which they are filled: batch by batch, from the longest examples on
                filled = np.argsort(rank[batch], kind="stable")
                example[filled] = example.copy()
            self._newest = (epoch, start, example)
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

    def at(self, step: int) -> BatchRows:
        """Return the examples of a batch."""
        epoch, step = divmod(step, self.steps_per_epoch)
        batch = step
        if self.shuffle:
            batch = int(permute(np.array([step]), self.steps_per_epoch, derive(self.seed, "batches", epoch))[0])
        places = np.arange(self._cuts[batch], self._cuts[batch + 1])
        example = self._order(epoch)[places]
        return BatchRows(epoch * len(self._lengths) + places, np.full_like(example, epoch), example)

    def _order(self, epoch: int) -> Indices:
        epoch = epoch if self.shuffle else 0
        if self._newest[0] != epoch:
            tie = mix(derive(self.seed, "ties", epoch), np.arange(len(self._lengths)))
            self._newest = (epoch, np.lexsort((tie, -self._lengths)))
        return self._newest[1]
