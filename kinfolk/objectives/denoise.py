"""Write a text again from what noise has left of it, or what is missing from it.

Lewis et al. 2020, section 2.2; Raffel et al. 2020, section 3.3.
"""

from typing import ClassVar

import numpy as np

from kinfolk.core.errors import SpecError
from kinfolk.objectives.corruption import Corruption, Halves, Row, ended, known_share
from kinfolk.objectives.noise import Infilling, Masking, Noise, Permutation, Shuffling
from kinfolk.objectives.objective import Objective, Vocabulary
from kinfolk.objectives.span import SpanCorruption


class Denoising(Corruption, kind="denoising"):
    """The whole text from what `noise` has left of it, each in its turn; the default is what BART was trained with."""

    noise: tuple[Noise, ...] = (Permutation(), Infilling())

    def __post_init__(self) -> None:
        if not self.noise:
            raise SpecError("noise: without any the text is only copied; name at least one")

    def divide(self, row: Row, draw: np.random.Generator, vocabulary: Vocabulary) -> Halves:
        noisy = row
        for noise in self.noise:
            noisy = noise.apply(noisy, draw, vocabulary)
        # masks where nothing is missing could make it longer than what a model takes
        noisy = noisy[: len(row)]
        return Halves(ended(noisy, vocabulary), ended(row, vocabulary))


class DropTokens(Corruption, kind="drop-tokens"):
    """Lose each token with probability `share`; the target is what was lost, in order (Raffel et al. 2020)."""

    share: float = 0.15

    measured: ClassVar[str] = "lost-token"

    def __post_init__(self) -> None:
        known_share("share", self.share)

    def divide(self, row: Row, draw: np.random.Generator, vocabulary: Vocabulary) -> Halves:
        lost = draw.random(len(row)) < self.share
        return Halves(ended(row[~lost], vocabulary), ended(row[lost], vocabulary))


class PrefixLM(Corruption, kind="prefix-lm"):
    """The rest of a text from its beginning, cut anywhere (Raffel et al. 2020; Liu et al. 2018)."""

    measured: ClassVar[str] = "suffix-token"
    whole: ClassVar[bool] = False

    def divide(self, row: Row, draw: np.random.Generator, vocabulary: Vocabulary) -> Halves:
        cut = int(draw.integers(1, len(row))) if len(row) > 1 else len(row)
        return Halves(ended(row[:cut], vocabulary), ended(row[cut:], vocabulary))


T5_TABLE: dict[str, Objective] = {
    "prefix-lm": PrefixLM(),
    "bert-style": Denoising(noise=(Masking(as_random=0.1),)),
    "deshuffling": Denoising(noise=(Shuffling(),)),
    "iid-mask": Denoising(noise=(Masking(),)),
    "replace-spans": SpanCorruption(noise="tokens"),
    "drop-tokens": DropTokens(),
    "random-spans": SpanCorruption(),
}
"""The objectives that T5's paper compares, by the names of its table 3, and the one that it settles on."""
