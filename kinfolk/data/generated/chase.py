"""Follow arrows as often as asked: questions of which it is known how many steps in a row they need."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from kinfolk.data.batches.mixing import mix
from kinfolk.data.generated.drawn import TokenSplit, open_drawn, signs
from kinfolk.data.generated.pairs import Symbols, content, within
from kinfolk.data.splits.split import Data, Indices


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
        return signs(self.places * (self.places + self.hops + 1))

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

    @property
    def n_symbols(self) -> int:
        """Symbols of a sequence."""
        return self.places + self.queries

    def draw(self, seed: int, numbers: Indices, tries: Indices, *, train: bool) -> Symbols:
        """Draw a permutation, the order of its arrows, and the queries."""

        def lots(n: int, what: int) -> NDArray[np.uint64]:
            return mix(seed, numbers[:, None], tries[:, None], np.arange(n), what)

        to, order = (lots(self.places, what).argsort(axis=1) for what in (0, 1))
        arrows = order * self.places + np.take_along_axis(to, order, axis=1)
        start = (lots(self.queries, 2) % np.uint64(self.places)).astype(np.int64)
        hops = self.fewest + (lots(self.queries, 3) % np.uint64(self.hops - self.fewest + 1)).astype(np.int64)
        asked = self.places * (self.places + hops) + start
        symbols = np.concatenate([arrows, asked], 1)
        targets = np.full(symbols.shape, -1)
        targets[:, self.places :] = self.label(symbols)
        return Symbols(symbols, np.full(len(numbers), self.n_symbols), targets)

    def identity(self, question: Symbols) -> NDArray[np.uint64]:
        """Return a hash of what is asked."""
        return content(question.symbols, question.lengths)

    def label(self, symbols: Indices) -> Indices:
        """Return the place each query leads to: [N, queries]."""
        arrows, asked = symbols[:, : self.places], symbols[:, self.places :] - self.places**2
        to = np.empty_like(arrows)
        np.put_along_axis(to, arrows // self.places, arrows % self.places, axis=1)
        hops, at = np.divmod(asked, self.places)
        for n in range(self.hops):
            at = np.where(hops > n, np.take_along_axis(to, at, axis=1), at)
        return at


def open_chase(name: str, seed: int = 0) -> Data:
    """Return the task, e.g. `chase:hops=2`."""
    return open_drawn(name, seed, Chase(), TokenSplit)
