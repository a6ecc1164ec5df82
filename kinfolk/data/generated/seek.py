"""Extractive answers in generated text: the digits behind the first place of a letter, or none."""

import dataclasses
import string
from typing import Any

import numpy as np

from kinfolk.data.batches.mixing import below, mix
from kinfolk.data.generated.drawn import DrawnSplit, LabelledTask, Symbols
from kinfolk.data.generated.task import task, within
from kinfolk.data.splits.split import Indices
from kinfolk.data.tokenizers.tokenizer import N_SPECIALS

_DIGITS = len(string.digits)


class SeekSplit(DrawnSplit):
    """One part of it: two sequences, the letter and the text, and where the answer is."""

    asks = "span"

    @property
    def longest(self) -> int:
        length: int = self.task.length
        return length

    def lengths(self, indices: Indices) -> Any:
        """Return the lengths of what is asked, and of the texts."""
        text = super().lengths(indices) - 1
        return np.ones_like(text), text

    def examples(self, indices: Indices) -> list[tuple[Any, ...]]:
        """Return the letter, the text, and the answer's first and last place."""
        question = self._questions(indices)
        rows = [question.row(i) + N_SPECIALS for i in range(len(indices))]
        return [(row[:1], row[1:], span) for row, span in zip(rows, self.task.label(question), strict=True)]


@task("seek")
@dataclasses.dataclass(frozen=True)
class Seek(LabelledTask):
    """A letter, and a text of 1 to `length` digits and letters: `b` asked of `3a17b924c` is 924.

    Nine of ten times a letter is asked for that is in the text, if there is one behind the place that is looked at; so
    about one question in two has no answer. The first symbol of a question is the letter, the rest is the text.
    """

    length: int = 32
    letters: int = 10

    split = SeekSplit

    @property
    def alphabet(self) -> str:
        """Digits, then letters."""
        return string.digits + string.ascii_lowercase[: self.letters]

    def check(self) -> None:
        within("length", self.length, 1, 1 << 16)
        within("letters", self.letters, 1, 26)

    def draw(self, seed: int, numbers: Indices, tries: Indices) -> Symbols:
        """Draw a text, of which one symbol in five is a letter, and what is asked of it."""
        lengths = 1 + below(mix(seed, numbers, tries, 0), self.length)
        places = np.arange(1, self.length + 1)
        lots = [mix(seed, numbers[:, None], tries[:, None], places, k) for k in range(2)]
        text = np.where(lots[0] % np.uint64(5) == 0, _DIGITS + below(lots[1], self.letters), below(lots[1], _DIGITS))
        start = below(mix(seed, numbers, tries, 1), lengths)
        known = (text >= _DIGITS) & (places > start[:, None]) & (places <= lengths[:, None])
        seen = np.take_along_axis(text, known.argmax(axis=1)[:, None], axis=1)[:, 0]
        other = _DIGITS + below(mix(seed, numbers, tries, 2), self.letters)
        inside = known.any(axis=1) & (mix(seed, numbers, tries, 3) % np.uint64(10) < 9)
        return Symbols(np.concatenate([np.where(inside, seen, other)[:, None], text], 1), lengths + 1)

    def label(self, question: Symbols) -> Indices:
        """Return the first and the last place of the answer in the text: [N, 2], -1 where there is none."""
        letter, text = question.symbols[:, :1], question.symbols[:, 1:]
        places = np.arange(text.shape[1])
        real = places < question.lengths[:, None] - 1
        matches = (text == letter) & real
        after = np.where(matches.any(axis=1), matches.argmax(axis=1) + 1, text.shape[1])
        # the run of digits goes on until the first place that is none
        stops = (places >= after[:, None]) & ~((text < _DIGITS) & real)
        end = np.where(stops.any(axis=1), stops.argmax(axis=1), text.shape[1])
        return np.where((end > after)[:, None], np.stack([after, end - 1], 1), -1)
