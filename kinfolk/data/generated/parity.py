"""Whether a row of bits has an even or an odd number of ones."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from kinfolk.data.batches.mixing import mix
from kinfolk.data.generated.drawn import open_drawn
from kinfolk.data.generated.pairs import Symbols, content, within
from kinfolk.data.splits.split import Data, Indices


@dataclasses.dataclass(frozen=True)
class Parity:
    """Rows of 1 to `length` bits. Every bit counts: a model that overlooks one is right half of the time."""

    length: int = 16

    alphabet = "01"
    classes = ("even", "odd")

    def check(self) -> None:
        """Refuse numbers that make no task."""
        within("length", self.length, 1, 1 << 16)

    def draw(self, seed: int, numbers: Indices, tries: Indices) -> Symbols:
        """Draw a length, then as many bits."""
        lengths = 1 + (mix(seed, numbers, tries, 0) % np.uint64(self.length)).astype(np.int64)
        bits = mix(seed, numbers[:, None], tries[:, None], np.arange(1, self.length + 1)) % np.uint64(2)
        return Symbols(bits.astype(np.int64), lengths)

    def identity(self, question: Symbols) -> NDArray[np.uint64]:
        """Return a hash of the bits."""
        return content(question.symbols, question.lengths)

    def label(self, question: Symbols) -> Indices:
        """Return 1 where the number of ones is odd."""
        inside = np.arange(question.symbols.shape[1]) < question.lengths[:, None]
        labels: Indices = (question.symbols * inside).sum(axis=1) % 2
        return labels


def open_parity(name: str, seed: int = 0) -> Data:
    """Return the task, e.g. `parity:length=8,examples=5000`."""
    return open_drawn(name, seed, Parity())
