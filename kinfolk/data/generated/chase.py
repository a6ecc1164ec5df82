"""Follow arrows as often as asked: questions of which it is known how many steps in a row they need."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.data.batches.mixing import mix
from kinfolk.data.generated.drawn import DrawnSplit, open_drawn
from kinfolk.data.generated.pairs import Symbols, content, within
from kinfolk.data.splits.split import Data, Indices
from kinfolk.data.tokenizers.tokenizer import N_SPECIALS

_FIRST_SIGN = 0x4E00
"""Where signs for arrows and questions are taken from: a block of writing with enough of them."""


@dataclasses.dataclass(frozen=True)
class Chase:
    """Arrows of a permutation of `places` in any order, then `queries`: where does one get from x in h hops?

    An arrow from i to j is one symbol, i * places + j; a query is one, places^2 + h * places + x. h is between `fewest`
    and `hops`, each query's own; h = 0 asks for x itself. Only queries have a tag, the place that is reached. Each hop
    looks up what the one before has found, so h hops need h looks in a row, whatever the width.
    """

    places: int = 6
    queries: int = 18
    fewest: int = 0
    hops: int = 3

    @property
    def alphabet(self) -> str:
        """A sign for each arrow and each query."""
        return "".join(chr(_FIRST_SIGN + i) for i in range(self.places * (self.places + self.hops + 1)))

    @property
    def classes(self) -> tuple[str, ...]:
        """The places."""
        return tuple(map(str, range(self.places)))

    def check(self) -> None:
        """Refuse numbers that make no task."""
        within("places", self.places, 2, 100)
        within("queries", self.queries, 1, 1 << 16)
        within("hops", self.hops, 0, 100)
        within("fewest", self.fewest, 0, self.hops)

    def draw(self, seed: int, numbers: Indices, tries: Indices) -> Symbols:
        """Draw a permutation, the order in which its arrows stand, and the queries."""

        def lots(n: int, what: int) -> NDArray[np.uint64]:
            return mix(seed, numbers[:, None], tries[:, None], np.arange(n), what)

        to, order = (lots(self.places, what).argsort(axis=1) for what in (0, 1))
        arrows = order * self.places + np.take_along_axis(to, order, axis=1)
        start = (lots(self.queries, 2) % np.uint64(self.places)).astype(np.int64)
        hops = self.fewest + (lots(self.queries, 3) % np.uint64(self.hops - self.fewest + 1)).astype(np.int64)
        asked = self.places * (self.places + hops) + start
        return Symbols(np.concatenate([arrows, asked], 1), np.full(len(numbers), self.places + self.queries))

    def identity(self, question: Symbols) -> NDArray[np.uint64]:
        """Return a hash of what is asked."""
        return content(question.symbols, question.lengths)

    def label(self, question: Symbols) -> Indices:
        """Return the place each query leads to: [N, queries]."""
        arrows, asked = question.symbols[:, : self.places], question.symbols[:, self.places :] - self.places**2
        to = np.empty_like(arrows)
        np.put_along_axis(to, arrows // self.places, arrows % self.places, axis=1)
        hops, at = np.divmod(asked, self.places)
        for n in range(self.hops):
            at = np.where(hops > n, np.take_along_axis(to, at, axis=1), at)
        return at


class ChaseSplit(DrawnSplit):
    """One part of it: arrows without a tag, queries with the place they lead to."""

    asks = "tags"

    def examples(self, indices: Indices) -> list[tuple[Any, ...]]:
        """Return the token ids of sequences, and the tags of their tokens."""
        # naming data must not load torch
        from kinfolk.core.batch import IGNORE

        question = self._questions(indices)
        tags = np.full(question.symbols.shape, IGNORE, np.int64)
        tags[:, self.task.places :] = self.task.label(question)
        return [(question.row(i) + N_SPECIALS, tags[i]) for i in range(len(indices))]


def open_chase(name: str, seed: int = 0) -> Data:
    """Return the task, e.g. `chase:hops=2`."""
    return open_drawn(name, seed, Chase(), ChaseSplit)
