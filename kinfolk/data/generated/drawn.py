"""Generated tasks drawn as matrices of symbols, many at a time: each question again until it fits its split.

The hash of a question (`identity`) decides whether it may appear in training or in validation.
"""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.core.errors import DataError
from kinfolk.data.batches.mixing import Words, mix
from kinfolk.data.generated.task import HELD_OUT, MOST_TRIES, GeneratedTask, TaskSplit
from kinfolk.data.splits.split import Indices
from kinfolk.data.tokenizers.tokenizer import N_SPECIALS, Tokenizer

_FIRST_SIGN = 0x4E00


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


class DrawnTask(GeneratedTask):
    """A task whose symbols are the characters of an alphabet; `draw(seed, numbers, tries)` makes their questions."""

    @property
    def alphabet(self) -> str:
        """The symbols in their order."""
        raise NotImplementedError

    def tokenizer(self) -> Tokenizer:
        return Tokenizer.characters(self.alphabet)

    def identity(self, question: Symbols) -> Words:
        """Return a hash of what is asked."""
        return content(question.symbols, question.lengths)


class DrawnSplit(TaskSplit):
    """One part of what is drawn: a sequence and its class, which `label` of the task tells."""

    purpose = "drawn"

    def lengths(self, indices: Indices) -> Any:
        """Return the lengths of the sequences."""
        return self._questions(indices).lengths

    def examples(self, indices: Indices) -> list[tuple[Any, ...]]:
        """Return the token ids of sequences and their classes."""
        question = self._questions(indices)
        labels = self.task.label(question)
        return [(question.row(i) + N_SPECIALS, int(labels[i])) for i in range(len(indices))]

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


class TokenSplit(DrawnSplit):
    """One part of a task that asks for classes of symbols: `draw` of the task gives them as targets.

    The task has a fixed number of symbols, `n_symbols`, and may train on other targets than it is scored on
    (`draw(..., train=)`).
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


class LabelledTask(DrawnTask):
    """A task that asks for the class of a whole sequence."""

    split = DrawnSplit

    def label(self, question: Symbols) -> Indices:
        """Return the class of each question."""
        raise NotImplementedError


class TokenTask(DrawnTask):
    """A task that asks for classes of symbols, of which every sequence has `n_symbols`; its `draw` takes `train`."""

    split = TokenSplit


def signs(n: int) -> str:
    """Return as many characters: a block of writing that has enough of them."""
    return "".join(chr(_FIRST_SIGN + i) for i in range(n))


def content(symbols: Indices, lengths: Indices) -> Words:
    """Hash the symbols of each row up to its length."""
    places = np.arange(symbols.shape[1])
    words = np.where(places < lengths[:, None], mix(1, places, symbols), np.uint64(0))
    return mix(2, np.bitwise_xor.reduce(words, axis=1), lengths)
