"""Masked sequence to sequence pre-training (MASS, Song et al. 2019)."""

from typing import ClassVar

import numpy as np

from kinfolk.core.bounds import Probability
from kinfolk.core.errors import SpecError
from kinfolk.objectives.corruption import Corruption, Halves, Row, ended
from kinfolk.objectives.objective import Vocabulary


class MaskedFragment(Corruption, kind="masked-fragment"):
    """Hide a fragment of round(share * n) tokens; the decoder reads nothing but the fragment, shifted by one.

    Its first input is the token before the fragment, and every token keeps the position it has in the text. One in
    five fragments begins the text, one in five ends it (`at_start`, `at_end`), the others lie anywhere. Of its tokens
    the encoder sees `as_mask` as [MASK], `as_random` as any token, and the rest as they are, as in the released code.
    A fragment of one token is nearly masked language modelling, one of all tokens a language model.
    """

    share: Probability = 0.5
    at_start: Probability = 0.2
    at_end: Probability = 0.2
    as_mask: Probability = 0.8
    as_random: Probability = 0.1

    measured: ClassVar[str] = "fragment-token"

    def __post_init__(self) -> None:
        for first, second in (("at_start", "at_end"), ("as_mask", "as_random")):
            if getattr(self, first) + getattr(self, second) > 1:
                raise SpecError(f"{first}, {second}: together they are more than all")

    def divide(self, row: Row, draw: np.random.Generator, vocabulary: Vocabulary) -> Halves:
        first, n = self.fragment(len(row), draw)
        hidden = slice(first, first + n)
        source, target, lot = row.copy(), row[hidden], draw.random(n)
        other = draw.choice(vocabulary.ordinary, n)
        shown = np.where(lot < self.as_mask + self.as_random, other, target)
        source[hidden] = np.where(lot < self.as_mask, vocabulary.mask, shown)
        return Halves(ended(source, vocabulary), target, int(row[first - 1]) if first else None, first)

    def fragment(self, n: int, draw: np.random.Generator) -> tuple[int, int]:
        """Draw where the fragment of n tokens begins, and say how long it is."""
        length = min(max(round(self.share * n), 1), n)
        lot, anywhere = draw.random(), int(draw.integers(0, n - length + 1))
        if lot < self.at_start:
            return 0, length
        return (n - length, length) if lot < self.at_start + self.at_end else (anywhere, length)
