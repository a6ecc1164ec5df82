"""Multi-query associative recall (MQAR) of zoology: key-value pairs, then the keys again (Arora et al. 2023).

`queries` (`kinfolk.data.generated.pairs`) is the same question as a translation; this is its published form.
"""

import dataclasses

import numpy as np

from kinfolk.data.batches.mixing import below, fraction, mix
from kinfolk.data.generated.drawn import Symbols, TokenTask, signs
from kinfolk.data.generated.recall import without_repetition
from kinfolk.data.generated.task import task, within
from kinfolk.data.splits.split import Indices


@task("mqar")
@dataclasses.dataclass(frozen=True)
class MultiQueryRecall(TokenTask):
    """`pairs` keys with their values, then every key once more, at which its value is asked for.

    arXiv:2312.04927, figure 2, as in zoology's `multiquery_ar`. Symbols 1 to vocab / 2 - 1 are keys, those from
    vocab / 2 on are values, no key and no value twice. Behind the pairs every second place may hold a query; place
    i does with a weight of i^(a - 1), a = 0.01, so most follow soon. All others hold symbol 0, or any with `noise` 1.
    Figure 2 has a vocabulary of 8,192, and (length, pairs) of (64, 4), (128, 8), (256, 16) and (512, 64).
    """

    length: int = 64
    pairs: int = 4
    vocab: int = 1024
    noise: int = 0

    @property
    def alphabet(self) -> str:
        """A sign for each symbol."""
        return signs(self.vocab)

    @property
    def classes(self) -> tuple[str, ...]:
        """The values."""
        return tuple(map(str, range(self.vocab // 2, self.vocab)))

    @property
    def n_symbols(self) -> int:
        """Symbols of a sequence."""
        return self.length

    def check(self) -> None:
        within("vocab", self.vocab, 4, 1 << 14)
        within("length", self.length, 4, 1 << 16)
        within("pairs", self.pairs, 1, min(self.length // 4, self.vocab // 2 - 1))
        within("noise", self.noise, 0, 1)

    def draw(self, seed: int, numbers: Indices, tries: Indices, *, train: bool) -> Symbols:
        """Draw pairs, the places of the queries, and what is elsewhere."""
        words, n, half = mix(seed, numbers, tries), len(numbers), self.vocab // 2
        keys = 1 + without_repetition(mix(0, words), half - 1, self.pairs)
        values = without_repetition(mix(1, words), self.vocab - half, self.pairs)
        symbols = np.zeros((n, self.length), np.int64)
        if self.noise:
            symbols = below(mix(2, words[:, None], np.arange(self.length)), self.vocab)
        targets = np.full((n, self.length), -1)
        symbols[:, : 2 * self.pairs] = np.stack([keys, half + values], axis=2).reshape(n, -1)
        # the smallest exponential variables with these rates are places drawn one after the other
        space = (self.length - 2 * self.pairs) // 2
        rates = np.arange(1, space + 1) ** (_POWER - 1)
        lots = -np.log1p(-fraction(mix(3, words[:, None], np.arange(space)))) / rates
        places = 2 * self.pairs + 2 * np.argsort(lots, axis=1)[:, : self.pairs]
        np.put_along_axis(symbols, places, keys, axis=1)
        np.put_along_axis(targets, places, values, axis=1)
        return Symbols(symbols, np.full(n, self.length), targets)


_POWER = 0.01
