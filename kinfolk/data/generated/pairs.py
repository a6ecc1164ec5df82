"""Tasks made on the fly: copy, reverse, sort, duplication, addition and a made-up language, as pairs.

An example is a pure function of (seed, split, its number), so there is nothing to store and no end. Which split a
question may appear in is decided by a hash of the question itself, so train and valid are disjoint by
construction. Numbers are set after the name, e.g. `copy:length=16,symbols=20`.
"""

import dataclasses
import hashlib
import json
import string
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.core.errors import DataError
from kinfolk.core.rng import derive
from kinfolk.data.batches.mixing import mix
from kinfolk.data.files.names import split_name
from kinfolk.data.splits.split import Data, Indices, Split
from kinfolk.data.tokenizers.tokenizer import N_SPECIALS, Tokenizer

LETTERS = string.ascii_lowercase + string.ascii_uppercase + string.digits
DIGITS = string.digits + "+"

# one question in this many belongs to valid
HELD_OUT = 10
MOST_TRIES = 1000
_COUNTED = 1 << 16


@dataclasses.dataclass(frozen=True)
class Symbols:
    """Sequences of symbols, left-aligned in a matrix; what is behind the length means nothing.

    targets: the class of each symbol, -1 where none is asked for; None in tasks that ask for no classes of symbols.
    """

    symbols: Indices
    lengths: Indices
    targets: Indices | None = None

    def row(self, i: int) -> Indices:
        """Return one sequence."""
        return self.symbols[i, : self.lengths[i]]


@dataclasses.dataclass(frozen=True)
class Sequences:
    """Copy, reverse, sort or double a sequence of up to `length` symbols."""

    task: str
    length: int = 16
    symbols: int = 20

    @property
    def alphabet(self) -> str:
        """The symbols in their order."""
        return LETTERS[: self.symbols]

    def check(self) -> None:
        """Refuse numbers that make no task."""
        within("length", self.length, 1, 4096)
        within("symbols", self.symbols, 2, len(LETTERS))

    def draw(self, seed: int, numbers: Indices, tries: Indices) -> Symbols:
        """Draw one question for each number."""
        lengths = 1 + (mix(seed, numbers, tries, 0) % np.uint64(self.length)).astype(np.int64)
        places = np.arange(1, self.length + 1)
        symbols = mix(seed, numbers[:, None], tries[:, None], places) % np.uint64(self.symbols)
        return Symbols(symbols.astype(np.int64), lengths)

    def identity(self, question: Symbols) -> NDArray[np.uint64]:
        """Return a hash of what is asked."""
        return content(question.symbols, question.lengths)

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


@dataclasses.dataclass(frozen=True)
class Queries:
    """Multi-query associative recall (Arora et al. 2023, arXiv:2312.04927): pairs, then all keys in another order.

    `a3b7+ba` asks for 73: one to `pairs` pairs of a letter and a digit, no letter twice, a plus, and every letter once.
    """

    pairs: int = 8

    alphabet = DIGITS + string.ascii_lowercase

    def check(self) -> None:
        """Refuse numbers that make no task."""
        within("pairs", self.pairs, 1, 26)

    def draw(self, seed: int, numbers: Indices, tries: Indices) -> Symbols:
        """Draw keys, values, and the order of the questions."""
        words = mix(seed, numbers, tries)
        count = 1 + (mix(0, words) % np.uint64(self.pairs)).astype(np.int64)
        keys = 11 + np.argsort(mix(1, words[:, None], np.arange(26)), axis=1)[:, : self.pairs]
        values = (mix(2, words[:, None], np.arange(self.pairs)) % np.uint64(10)).astype(np.int64)
        given = Symbols(np.stack([keys, values], axis=2).reshape(len(numbers), -1), 2 * count)
        places = np.arange(self.pairs)
        # keys that are not there come last
        lots = np.where(places < count[:, None], mix(3, words[:, None], places) >> np.uint64(1), np.uint64(2**64 - 1))
        asked = Symbols(np.take_along_axis(keys, np.argsort(lots, axis=1), axis=1), count)
        return _concatenate(given, Symbols(np.full((len(numbers), 1), 10), np.ones(len(numbers), np.int64)), asked)

    def identity(self, question: Symbols) -> NDArray[np.uint64]:
        """Return a hash of what is asked."""
        return content(question.symbols, question.lengths)

    def answer(self, question: Symbols) -> Symbols:
        """Return the value behind each key that is asked for."""
        symbols = question.symbols
        count = (question.lengths - 1) // 3
        places = np.clip(2 * count[:, None] + 1 + np.arange(self.pairs), 0, symbols.shape[1] - 1)
        asked = np.take_along_axis(symbols, places, axis=1)
        first = (symbols[:, None, :] == asked[:, :, None]).argmax(axis=2)
        values = np.take_along_axis(symbols, np.clip(first + 1, 0, symbols.shape[1] - 1), axis=1)
        return Symbols(values, count)


@dataclasses.dataclass(frozen=True)
class Addition:
    """Add two integers of up to `digits` digits, written in base ten, the first digit first."""

    digits: int = 4

    alphabet = DIGITS

    def check(self) -> None:
        """Refuse numbers that make no task."""
        within("digits", self.digits, 1, 17)

    def draw(self, seed: int, numbers: Indices, tries: Indices) -> Symbols:
        """Draw one question for each number: how many digits first, so that short sums are as frequent as long ones."""
        a, b = (_decimal(self._operand(seed, numbers, tries, side), self.digits) for side in (0, 1))
        plus = Symbols(np.full((len(numbers), 1), 10), np.ones(len(numbers), np.int64))
        return _concatenate(a, plus, b)

    def identity(self, question: Symbols) -> NDArray[np.uint64]:
        """Return a hash of what is asked; 1+2 and 2+1 are the same question."""
        a, b = self._operands(question)
        return mix(0, np.minimum(a, b), np.maximum(a, b))

    def answer(self, question: Symbols) -> Symbols:
        """Return what is right."""
        a, b = self._operands(question)
        return _decimal(a + b, self.digits + 1)

    def _operand(self, seed: int, numbers: Indices, tries: Indices, side: int) -> Indices:
        digits = 1 + (mix(seed, numbers, tries, 2 * side) % np.uint64(self.digits)).astype(np.int64)
        low = np.where(digits == 1, 0, 10 ** (digits - 1))
        span = (10**digits - low).astype(np.uint64)
        return low + (mix(seed, numbers, tries, 2 * side + 1) % span).astype(np.int64)

    def _operands(self, question: Symbols) -> tuple[Indices, Indices]:
        plus = (question.symbols == 10).argmax(axis=1)
        return _value(question.symbols, np.zeros_like(plus), plus), _value(question.symbols, plus + 1, question.lengths)


@dataclasses.dataclass(frozen=True)
class Language:
    """Translate sentences of a made-up language, of up to `clauses` clauses, into another.

    A clause is subject, verb, object, an adjective before its noun; the other language says subject, object, verb, with
    adjectives behind, and has a word of its own for each. Words are letters: small ones are translated into capitals.
    """

    clauses: int = 3

    alphabet = LETTERS[:25] + LETTERS[26:51]

    def check(self) -> None:
        """Refuse numbers that make no task."""
        within("clauses", self.clauses, 1, 64)

    def draw(self, seed: int, numbers: Indices, tries: Indices) -> Symbols:
        """Draw one sentence for each number."""
        n_clauses = 1 + (mix(seed, numbers, tries, 0) % np.uint64(self.clauses)).astype(np.int64)
        parts = []
        for clause in range(self.clauses):
            there = clause < n_clauses
            for place, (first, stop) in enumerate((_AND, _ADJECTIVES, _NOUNS, _VERBS, _ADJECTIVES, _NOUNS)):
                lot = mix(seed, numbers, tries, 1 + 6 * clause + place)
                word = first + (lot % np.uint64(stop - first)).astype(np.int64)
                # every other noun has an adjective; the first clause follows on nothing
                said = {_ADJECTIVES: (lot >> np.uint64(32)) % np.uint64(2) == 0, _AND: np.full(len(lot), clause > 0)}
                spoken = there & said.get((first, stop), np.full(len(lot), True))
                parts.append(Symbols(word[:, None], spoken.astype(np.int64)))
        return _concatenate(*parts)

    def identity(self, question: Symbols) -> NDArray[np.uint64]:
        """Return a hash of what is asked."""
        return content(question.symbols, question.lengths)

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

Task = Sequences | Queries | Addition | Language

TASKS: dict[str, Task] = {
    "copy": Sequences("copy"),
    "queries": Queries(),
    "reverse": Sequences("reverse"),
    "sort": Sequences("sort"),
    "duplication": Sequences("duplication"),
    "addition": Addition(),
    "language": Language(),
}
SIZES = {"examples": 100_000, "valid": 1_000}


class Drawn:
    """One part of what is drawn: a hash of each question decides whether it may appear in training or in validation."""

    name: str
    seed: int
    task: Any

    def _questions(self, indices: Indices) -> Symbols:
        """Draw until the hash of every question says that it belongs to this split."""
        question = self._draw(indices, np.zeros_like(indices))
        left = np.flatnonzero(self._strange(question))
        for tries in range(1, MOST_TRIES):
            if not len(left):
                return question
            drawn = self._draw(indices[left], np.full(len(left), tries))
            question.symbols[left], question.lengths[left] = drawn.symbols, drawn.lengths
            if question.targets is not None and drawn.targets is not None:
                question.targets[left] = drawn.targets
            left = left[self._strange(drawn)]
        raise DataError(f"{self.task}: too few questions to hold some out for {self.name}; allow longer ones")

    def _draw(self, indices: Indices, tries: Indices) -> Symbols:
        question: Symbols = self.task.draw(self.seed, indices, tries)
        return question

    def _strange(self, question: Symbols) -> NDArray[np.bool_]:
        held_out = self.task.identity(question) % np.uint64(HELD_OUT) == 0
        strange: NDArray[np.bool_] = held_out != (self.name == "valid")
        return strange


class GeneratedSplit(Drawn, Split):
    """One part of a generated task."""

    kind = "pairs"

    def __init__(self, name: str, task: Task, tokenizer: Tokenizer, n: int, seed: int) -> None:
        self.name, self.task, self.tokenizer, self.n = name, task, tokenizer, n
        self.seed = derive(seed, "generated", name)

    def __len__(self) -> int:
        return self.n

    @cached_property
    def n_bytes(self) -> int:
        """Bytes of all targets: counted for the first 65,536 examples, the rest in proportion."""
        counted = min(self.n, _COUNTED)
        return int(self.lengths(np.arange(counted))[1].sum()) * self.n // counted

    @property
    def n_tokens(self) -> int:
        """Tokens of all targets, each with its end."""
        return self.n_bytes + self.n

    def lengths(self, indices: Indices) -> tuple[Indices, Indices]:
        """Return the lengths of the sources and of the targets."""
        question = self._questions(indices)
        return question.lengths, self.task.answer(question).lengths

    def pairs(self, indices: Indices) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        question = self._questions(indices)
        answer = self.task.answer(question)
        return [(question.row(i) + N_SPECIALS, answer.row(i) + N_SPECIALS) for i in range(len(indices))]


def is_task(name: str) -> bool:
    """Tell whether a name, with or without numbers, is one of the generated tasks."""
    return name.partition(":")[0] in TASKS


def open_task(name: str, seed: int = 0) -> Data:
    """Return a generated task, e.g. `copy` or `sort:length=8,symbols=10,examples=5000`."""
    fields = {field.name for field in dataclasses.fields(TASKS[name.partition(":")[0]])} - {"task"}
    base, given = split_name(name, fields | SIZES.keys())
    sizes = {key: given.pop(key, default) for key, default in SIZES.items()}
    task: Task = dataclasses.replace(TASKS[base], **given)  # type: ignore[arg-type]
    task.check()
    tokenizer = Tokenizer.characters(task.alphabet)
    splits: dict[str, Split] = {}
    for split, size in zip(("train", "valid"), sizes.values(), strict=True):
        within("examples" if split == "train" else "valid", size, 1, 1 << 60)
        splits[split] = GeneratedSplit(split, task, tokenizer, size, seed)
    described = json.dumps([base, dataclasses.asdict(task), sizes, seed, "v1"], sort_keys=True)
    return Data(name, "pairs", tokenizer, hashlib.sha256(described.encode()).hexdigest(), splits)


def within(what: str, value: int, low: int, high: int) -> None:
    """Refuse a number that is out of bounds."""
    if not low <= value <= high:
        raise DataError(f"{what} must be from {low} to {high}, not {value}")


def content(symbols: Indices, lengths: Indices) -> NDArray[np.uint64]:
    """Hash the symbols of each row up to its length."""
    places = np.arange(symbols.shape[1])
    words = np.where(places < lengths[:, None], mix(1, places, symbols), np.uint64(0))
    return mix(2, np.bitwise_xor.reduce(words, axis=1), lengths)


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
