"""Parity: whether a row of bits has an even or an odd number of ones."""

import dataclasses

import numpy as np

from kinfolk.data.batches.mixing import below, mix
from kinfolk.data.generated.drawn import LabelledTask, Symbols
from kinfolk.data.generated.task import task, within
from kinfolk.data.splits.split import Indices


@task("parity")
@dataclasses.dataclass(frozen=True)
class Parity(LabelledTask):
    """Rows of 1 to `length` bits. Every bit counts: a model that overlooks one is right half of the time."""

    length: int = 16

    alphabet = "01"
    classes = ("even", "odd")

    def check(self) -> None:
        within("length", self.length, 1, 1 << 16)

    def draw(self, seed: int, numbers: Indices, tries: Indices) -> Symbols:
        """Draw a length, then as many bits."""
        lengths = 1 + below(mix(seed, numbers, tries, 0), self.length)
        return Symbols(below(mix(seed, numbers[:, None], tries[:, None], np.arange(1, self.length + 1)), 2), lengths)

    def label(self, question: Symbols) -> Indices:
        """Return 1 where the number of ones is odd."""
        inside = np.arange(question.symbols.shape[1]) < question.lengths[:, None]
        labels: Indices = (question.symbols * inside).sum(axis=1) % 2
        return labels
