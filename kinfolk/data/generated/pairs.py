"""Generated pairs: copy, reverse, sort, duplication, addition, queries and a made-up language."""

import dataclasses
import string
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.data.batches.mixing import Words, below, mix
from kinfolk.data.generated.drawn import DrawnSplit, DrawnTask, Symbols
from kinfolk.data.generated.task import TASKS, task, within
from kinfolk.data.splits.split import Indices
from kinfolk.data.tokenizers.tokenizer import N_SPECIALS

LETTERS = string.ascii_lowercase + string.ascii_uppercase + string.digits
DIGITS = string.digits + "+"


class GeneratedSplit(DrawnSplit):
    """One part of a task that asks for a sequence."""

    kind = "pairs"
    purpose = "generated"

    def scored(self, indices: Indices) -> Indices:
        return self.lengths(indices)[1]

    def lengths(self, indices: Indices) -> tuple[Indices, Indices]:
        """Return the lengths of the sources and of the targets."""
        question = self._questions(indices)
        return question.lengths, self.task.answer(question).lengths

    def pairs(self, indices: Indices) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        question = self._questions(indices)
        answer = self.task.answer(question)
        return [(question.row(i) + N_SPECIALS, answer.row(i) + N_SPECIALS) for i in range(len(indices))]


class PairTask(DrawnTask):
    """A task that asks for a sequence."""

    split = GeneratedSplit

    def answer(self, question: Symbols) -> Symbols:
        """Return what is right."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Sequences(PairTask):
    """Copy, reverse, sort or double a sequence of up to `length` symbols."""

    task: str
    length: int = 16
    symbols: int = 20

    @property
    def alphabet(self) -> str:
        """The symbols in their order."""
        return LETTERS[: self.symbols]

    def check(self) -> None:
        within("length", self.length, 1, 4096)
        within("symbols", self.symbols, 2, len(LETTERS))

    def draw(self, seed: int, numbers: Indices, tries: Indices) -> Symbols:
        """Draw one question for each number."""
        lengths = 1 + below(mix(seed, numbers, tries, 0), self.length)
        places = np.arange(1, self.length + 1)
        return Symbols(below(mix(seed, numbers[:, None], tries[:, None], places), self.symbols), lengths)

    def answer(self, question: Symbols) -> Symbols:
        """Return what is right."""
        symbols, lengths = question.symbols, question.lengths
        places = np.arange(symbols.shape[1])
        if self.task == "reverse":
            turned = np.clip(lengths[:, None] - 1 - places, 0, None)
            symbols = np.take_along_axis(symbols, turned, axis=1)
        elif self.task == "sort":
            symbols = np.sort(np.where(places < lengths[:, None], symbols, self.symbols), axis=1)
        elif self.task == "duplication":
            return _concatenate(question, question)
        return Symbols(symbols, lengths)


@task("queries")
@dataclasses.dataclass(frozen=True)
class Queries(PairTask):
    """Multi-query associative recall (Arora et al. 2023, arXiv:2312.04927): pairs, then all keys in another order.

    `a3b7+ba` asks for 73: one to `pairs` pairs of a letter and a digit, no letter twice, a plus, and every letter once.
    """

    pairs: int = 8

    alphabet = DIGITS + string.ascii_lowercase

    def check(self) -> None:
        within("pairs", self.pairs, 1, 26)

    def draw(self, seed: int, numbers: Indices, tries: Indices) -> Symbols:
        """Draw keys, values, and the order of the questions."""
        words = mix(seed, numbers, tries)
        count = 1 + below(mix(0, words), self.pairs)
        keys = 11 + np.argsort(mix(1, words[:, None], np.arange(26)), axis=1)[:, : self.pairs]
        values = below(mix(2, words[:, None], np.arange(self.pairs)), 10)
        given = Symbols(np.stack([keys, values], axis=2).reshape(len(numbers), -1), 2 * count)
        places = np.arange(self.pairs)
        # keys that are not there come last
        lots = np.where(places < count[:, None], mix(3, words[:, None], places) >> np.uint64(1), np.uint64(2**64 - 1))
        asked = Symbols(np.take_along_axis(keys, np.argsort(lots, axis=1), axis=1), count)
        return _concatenate(given, Symbols(np.full((len(numbers), 1), 10), np.ones(len(numbers), np.int64)), asked)

    def answer(self, question: Symbols) -> Symbols:
        """Return the value behind each key that is asked for."""
        symbols = question.symbols
        count = (question.lengths - 1) // 3
        places = np.clip(2 * count[:, None] + 1 + np.arange(self.pairs), 0, symbols.shape[1] - 1)
        asked = np.take_along_axis(symbols, places, axis=1)
        first = (symbols[:, None, :] == asked[:, :, None]).argmax(axis=2)
        values = np.take_along_axis(symbols, np.clip(first + 1, 0, symbols.shape[1] - 1), axis=1)
        return Symbols(values, count)


@task("addition")
@dataclasses.dataclass(frozen=True)
class Addition(PairTask):
    """Add two integers of up to `digits` digits, written in base ten, the first digit first."""

    digits: int = 4

    alphabet = DIGITS

    def check(self) -> None:
        within("digits", self.digits, 1, 17)

    def draw(self, seed: int, numbers: Indices, tries: Indices) -> Symbols:
        """Draw one question for each number: how many digits first, so that short sums are as frequent as long ones."""
        a, b = (_decimal(self._operand(seed, numbers, tries, side), self.digits) for side in (0, 1))
        plus = Symbols(np.full((len(numbers), 1), 10), np.ones(len(numbers), np.int64))
        return _concatenate(a, plus, b)

    def identity(self, question: Symbols) -> Words:
        """Return a hash of what is asked; 1+2 and 2+1 are the same question."""
        a, b = self._operands(question)
        return mix(0, np.minimum(a, b), np.maximum(a, b))

    def answer(self, question: Symbols) -> Symbols:
        """Return what is right."""
        a, b = self._operands(question)
        return _decimal(a + b, self.digits + 1)

    def _operand(self, seed: int, numbers: Indices, tries: Indices, side: int) -> Indices:
        digits = 1 + below(mix(seed, numbers, tries, 2 * side), self.digits)
        low = np.where(digits == 1, 0, 10 ** (digits - 1))
        return low + below(mix(seed, numbers, tries, 2 * side + 1), 10**digits - low)

    def _operands(self, question: Symbols) -> tuple[Indices, Indices]:
        plus = (question.symbols == 10).argmax(axis=1)
        return _value(question.symbols, np.zeros_like(plus), plus), _value(question.symbols, plus + 1, question.lengths)


@task("language")
@dataclasses.dataclass(frozen=True)
class Language(PairTask):
    """Translate sentences of a made-up language, of up to `clauses` clauses, into another.

    A clause is subject, verb, object, an adjective before its noun; the other language says subject, object, verb, with
    adjectives behind, and has a word of its own for each. Words are letters: small ones are translated into capitals.
    """

    clauses: int = 3

    alphabet = LETTERS[:25] + LETTERS[26:51]

    def check(self) -> None:
        within("clauses", self.clauses, 1, 64)

    def draw(self, seed: int, numbers: Indices, tries: Indices) -> Symbols:
        """Draw one sentence for each number."""
        n_clauses = 1 + below(mix(seed, numbers, tries, 0), self.clauses)
        parts = []
        for clause in range(self.clauses):
            there = clause < n_clauses
            for place, (first, stop) in enumerate((_AND, _ADJECTIVES, _NOUNS, _VERBS, _ADJECTIVES, _NOUNS)):
                lot = mix(seed, numbers, tries, 1 + 6 * clause + place)
                word = first + below(lot, stop - first)
                # every other noun has an adjective; the first clause follows on nothing
                said = {_ADJECTIVES: (lot >> np.uint64(32)) % np.uint64(2) == 0, _AND: np.full(len(lot), clause > 0)}
                spoken = there & said.get((first, stop), np.full(len(lot), True))
                parts.append(Symbols(word[:, None], spoken.astype(np.int64)))
        return _concatenate(*parts)

    def answer(self, question: Symbols) -> Symbols:
        """Return the translation: each word goes to its place in the clause and is looked up."""
        words, lengths = question.symbols, question.lengths
        at = np.broadcast_to(np.arange(words.shape[1]), words.shape)
        joins = (words == _AND[0]) | (at >= lengths[:, None])
        verbs, adjectives = ((words >= first) & (words < stop) for first, stop in (_VERBS, _ADJECTIVES))
        start = np.maximum.accumulate(np.where(joins, at + 1, 0), axis=1)
        verb = np.maximum.accumulate(np.where(verbs, at, -1), axis=1)
        after = np.minimum.accumulate(np.where(joins, at, words.shape[1])[:, ::-1], axis=1)[:, ::-1]
        # the subject keeps its place, the object begins where the verb stood, the verb ends the clause
        place = np.where(verb >= start, verb, start) + adjectives
        place = np.where(joins, at, np.where(verbs, after - 1, place))
        out = np.empty_like(words)
        np.put_along_axis(out, place, _DICTIONARY[words], axis=1)
        return Symbols(out, lengths)


_NOUNS, _ADJECTIVES, _VERBS, _AND = (0, 12), (12, 18), (18, 24), (24, 25)
# a word of the same kind, five further on
_DICTIONARY = np.concatenate(
    [25 + first + (np.arange(stop - first) + 5) % (stop - first) for first, stop in (_NOUNS, _ADJECTIVES, _VERBS, _AND)]
)

for _name in ("copy", "reverse", "sort", "duplication"):
    TASKS[_name] = Sequences(_name)


def _decimal(values: Indices, width: int) -> Symbols:
    """Write integers of up to `width` digits as rows of digits, the first digit first."""
    lengths = np.ones(len(values), np.int64)
    for power in range(1, width):
        lengths += values >= 10**power
    power = np.clip(lengths[:, None] - 1 - np.arange(width), 0, None)
    return Symbols(values[:, None] // 10**power % 10, lengths)


def _value(symbols: Indices, start: Indices, stop: Indices) -> Indices:
    """Read the number written in each row from `start` to `stop`."""
    value = np.zeros(len(symbols), np.int64)
    for place in range(symbols.shape[1]):
        inside = (place >= start) & (place < stop)
        value = np.where(inside, 10 * value + symbols[:, place], value)
    return value


def _concatenate(*parts: Symbols) -> Symbols:
    width = sum(part.symbols.shape[1] for part in parts)
    # what is behind the length of a part goes to a last column, which is thrown away
    out = np.zeros((len(parts[0].lengths), width + 1), np.int64)
    start = np.zeros(len(out), np.int64)
    for part in parts:
        places = np.arange(part.symbols.shape[1])
        inside = places < part.lengths[:, None]
        np.put_along_axis(out, np.where(inside, start[:, None] + places, width), part.symbols, axis=1)
        start = start + part.lengths
    return Symbols(out[:, :width], start)
