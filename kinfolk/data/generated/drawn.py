"""Labelled examples made on the fly: each a pure function of (seed, split, its number).

As in `kinfolk.data.generated.pairs`, a hash of the question decides which split it may appear in, so train and valid
are disjoint by construction.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kinfolk.core.rng import derive
from kinfolk.data.files.names import split_name
from kinfolk.data.generated.pairs import SIZES, Drawn, Symbols, within
from kinfolk.data.splits.split import Data, Indices, Split
from kinfolk.data.tokenizers.tokenizer import N_SPECIALS, Tokenizer

_COUNTED = 1 << 16
_FIRST_SIGN = 0x4E00


class DrawnQuestion(Protocol):
    """A task: a frozen dataclass whose fields are the numbers that may be set."""

    @property
    def alphabet(self) -> str:
        """The symbols in their order."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the answers."""

    def check(self) -> None:
        """Refuse numbers that make no task."""

    def draw(self, seed: int, numbers: Indices, tries: Indices) -> Symbols:
        """Draw one question for each number."""

    def identity(self, question: Symbols) -> NDArray[np.uint64]:
        """Return a hash of what is asked."""

    def label(self, question: Symbols) -> Indices:
        """Return the class of each question."""


class DrawnSplit(Drawn, Split):
    """One part of a labelled task."""

    kind = "labelled"

    def __init__(self, name: str, task: DrawnQuestion, tokenizer: Tokenizer, n: int, seed: int) -> None:
        self.name, self.task, self.tokenizer, self.n = name, task, tokenizer, n
        self.classes = task.classes
        self.seed = derive(seed, "drawn", name)

    def __len__(self) -> int:
        return self.n

    @cached_property
    def n_bytes(self) -> int:
        """Bytes of all sequences: counted for the first 65,536, the rest in proportion."""
        counted = min(self.n, _COUNTED)
        return int(np.sum(self.lengths(np.arange(counted)))) * self.n // counted

    @property
    def n_tokens(self) -> int:
        """Tokens of all sequences, each with its end."""
        return self.n_bytes + self.n

    def lengths(self, indices: Indices) -> Any:
        """Return the lengths of the sequences."""
        return self._questions(indices).lengths

    def examples(self, indices: Indices) -> list[tuple[Any, ...]]:
        """Return the token ids of sequences and their classes."""
        question = self._questions(indices)
        labels = self.task.label(question)
        return [(question.row(i) + N_SPECIALS, int(labels[i])) for i in range(len(indices))]


class TokenSplit(DrawnSplit):
    """One part of a task that asks for classes of symbols: `draw` of the task gives them as targets.

    The task has a fixed `length`, and may train on other targets than it is scored on (`draw(..., train=)`).
    """

    asks = "tags"

    @property
    def longest(self) -> int:
        """Symbols of every sequence."""
        length: int = self.task.n_symbols
        return length

    def lengths(self, indices: Indices) -> Any:
        """Return the lengths of the sequences."""
        return np.full(len(indices), self.longest)

    def examples(self, indices: Indices) -> list[tuple[Any, ...]]:
        """Return the token ids of sequences, and the classes of their tokens."""
        # naming data must not load torch
        from kinfolk.core.batch import IGNORE

        question = self._questions(indices)
        assert question.targets is not None
        targets = np.where(question.targets < 0, IGNORE, question.targets)
        return [(question.row(i) + N_SPECIALS, targets[i]) for i in range(len(indices))]

    def _draw(self, indices: Indices, tries: Indices) -> Symbols:
        question: Symbols = self.task.draw(self.seed, indices, tries, train=self.name == "train")
        return question


def signs(n: int) -> str:
    """Return as many characters: a block of writing that has enough of them."""
    return "".join(chr(_FIRST_SIGN + i) for i in range(n))


def open_drawn(
    name: str, seed: int, task: Any, make: type[DrawnSplit] = DrawnSplit, default: Mapping[str, int] = SIZES
) -> Data:
    """Return a labelled task, its numbers set as the name says; `default` are its numbers of examples."""
    fields = {field.name for field in dataclasses.fields(task)}
    base, given = split_name(name, fields | SIZES.keys())
    sizes = {key: given.pop(key, default[key]) for key in SIZES}
    task = dataclasses.replace(task, **given)
    task.check()
    tokenizer = Tokenizer.characters(task.alphabet)
    splits: dict[str, Split] = {}
    for split, (key, size) in zip(("train", "valid"), sizes.items(), strict=True):
        within(key, size, 1, 1 << 60)
        splits[split] = make(split, task, tokenizer, size, seed)
    described = json.dumps([base, dataclasses.asdict(task), sizes, seed, "v1"], sort_keys=True)
    return Data(name, "labelled", tokenizer, hashlib.sha256(described.encode()).hexdigest(), splits)
