"""Associative recall, and a needle in a haystack: looking something up in what was read.

`a3b7c1?b` asks for what stood behind `b`: 7. The haystack is the same with noise between: small letters that mean
nothing, and somewhere among them a capital letter with its digit.
"""

import dataclasses
import string

import numpy as np
from numpy.typing import NDArray

from kinfolk.data.batches.mixing import Words, below, mix
from kinfolk.data.generated.drawn import LabelledTask, Symbols
from kinfolk.data.generated.task import task, within
from kinfolk.data.splits.split import Indices

_KEYS, _VALUES = string.ascii_lowercase, string.digits


@task("recall")
@dataclasses.dataclass(frozen=True)
class Recall(LabelledTask):
    """One to `pairs` pairs of a key and a value, no key twice, and the question for the value of one key."""

    pairs: int = 8
    keys: int = 26
    values: int = 10

    @property
    def alphabet(self) -> str:
        """The keys, the values and the question mark."""
        return _KEYS[: self.keys] + _VALUES[: self.values] + "?"

    @property
    def classes(self) -> tuple[str, ...]:
        """The values."""
        return tuple(_VALUES[: self.values])

    def check(self) -> None:
        within("keys", self.keys, 2, len(_KEYS))
        within("values", self.values, 2, len(_VALUES))
        within("pairs", self.pairs, 1, self.keys)

    def draw(self, seed: int, numbers: Indices, tries: Indices) -> Symbols:
        """Draw the pairs, and which of them is asked for."""
        words = mix(seed, numbers, tries)
        count = 1 + below(mix(0, words), self.pairs)
        keys = without_repetition(mix(1, words), self.keys, self.pairs)
        values = self.keys + below(mix(2, words[:, None], np.arange(self.pairs)), self.values)
        asked = np.take_along_axis(keys, below(mix(3, words), count)[:, None], axis=1)
        symbols = np.zeros((len(numbers), 2 * self.pairs + 2), np.int64)
        symbols[:, : 2 * self.pairs] = np.stack([keys, values], axis=2).reshape(len(numbers), -1)
        np.put_along_axis(symbols, 2 * count[:, None], self.keys + self.values, axis=1)
        np.put_along_axis(symbols, 2 * count[:, None] + 1, asked, axis=1)
        return Symbols(symbols, 2 * count + 2)

    def label(self, question: Symbols) -> Indices:
        """Return the value behind the first place of the key that is asked for."""
        return _value_behind(question) - self.keys


@task("needle")
@dataclasses.dataclass(frozen=True)
class Needle(LabelledTask):
    """`length` symbols: small letters, `needles` capital ones among them with a digit each, and which is asked for."""

    length: int = 256
    needles: int = 1

    alphabet = string.digits + string.ascii_uppercase + "?" + string.ascii_lowercase
    classes = tuple(string.digits)

    def check(self) -> None:
        within("length", self.length, 8, 1 << 16)
        within("needles", self.needles, 1, min(26, (self.length - 2) // 2))

    def draw(self, seed: int, numbers: Indices, tries: Indices) -> Symbols:
        """Draw the haystack, where the needles are and what they say, and which is asked for."""
        words = mix(seed, numbers, tries)
        hay = 37 + below(mix(0, words[:, None], np.arange(self.length)), 26)
        places = without_repetition(mix(1, words), (self.length - 2) // 2, self.needles)
        keys = 10 + without_repetition(mix(2, words), 26, self.needles)
        digits = below(mix(3, words[:, None], np.arange(self.needles)), 10)
        np.put_along_axis(hay, 2 * places, keys, axis=1)
        np.put_along_axis(hay, 2 * places + 1, digits, axis=1)
        hay[:, -2] = 36
        hay[:, -1] = np.take_along_axis(keys, below(mix(4, words), self.needles)[:, None], axis=1)[:, 0]
        return Symbols(hay, np.full(len(numbers), self.length))

    def label(self, question: Symbols) -> Indices:
        """Return the digit behind the capital letter that is asked for."""
        return _value_behind(question)


def _value_behind(question: Symbols) -> Indices:
    """Return the symbol behind the first place of the symbol that each row ends with."""
    last = np.take_along_axis(question.symbols, question.lengths[:, None] - 1, axis=1)
    first = (question.symbols == last).argmax(axis=1)
    behind: Indices = np.take_along_axis(question.symbols, first[:, None] + 1, axis=1)[:, 0]
    return behind


def without_repetition(words: Words, n: int, count: int) -> NDArray[np.int64]:
    """Draw `count` of `n` numbers for every word, in any order."""
    lots = mix(5, words[:, None], np.arange(n))
    return np.argsort(lots, axis=1)[:, :count]
