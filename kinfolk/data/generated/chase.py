"""Pointer chasing (k-hop lookup): follow arrows of a permutation, a known number of steps in a row."""

import dataclasses

import numpy as np

from kinfolk.data.batches.mixing import Words, below, mix
from kinfolk.data.generated.drawn import Symbols, TokenTask, signs
from kinfolk.data.generated.task import task, within
from kinfolk.data.splits.split import Indices


@task("chase")
@dataclasses.dataclass(frozen=True)
class Chase(TokenTask):
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

        def lots(n: int, what: int) -> Words:
            return mix(seed, numbers[:, None], tries[:, None], np.arange(n), what)

        to, order = (lots(self.places, what).argsort(axis=1) for what in (0, 1))
        arrows = order * self.places + np.take_along_axis(to, order, axis=1)
        start = below(lots(self.queries, 2), self.places)
        hops = self.fewest + below(lots(self.queries, 3), self.hops - self.fewest + 1)
        queries = self.places * (self.places + hops) + start
        symbols = np.concatenate([arrows, queries], 1)
        targets = np.full(symbols.shape, -1)
        targets[:, self.places :] = self.reached(symbols)
        return Symbols(symbols, np.full(len(numbers), self.n_symbols), targets)

    def reached(self, symbols: Indices) -> Indices:
        """Return the place each query leads to: [N, queries]."""
        arrows, queries = symbols[:, : self.places], symbols[:, self.places :] - self.places**2
        to = np.empty_like(arrows)
        np.put_along_axis(to, arrows // self.places, arrows % self.places, axis=1)
        hops, at = np.divmod(queries, self.places)
        for n in range(self.hops):
            at = np.where(hops > n, np.take_along_axis(to, at, axis=1), at)
        return at
