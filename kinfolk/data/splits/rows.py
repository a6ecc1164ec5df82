"""Unlabelled rows for prediction: cut, padded and framed exactly as in training."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.core.batch import IGNORE
from kinfolk.data.splits.split import Indices, Split
from kinfolk.data.splits.tagged import pieces_of
from kinfolk.data.tokenizers.tokenizer import Tokenizer
from kinfolk.data.tokenizers.unknown import warn_of_unknown


class TextRows(Split):
    """One or two texts of each row; the label is a blank that is not scored."""

    kind = "labelled"
    n_bytes: int = 0
    n_tokens: int = 0

    def __init__(
        self, tokenizer: Tokenizer, texts: Sequence[tuple[str, ...]], classes: Sequence[str], blank: Any
    ) -> None:
        self.name, self.tokenizer, self.classes, self.blank = "rows", tokenizer, tuple(classes), blank
        self.n_texts = len(texts[0])
        coded = tokenizer.encode_batch([text for row in texts for text in row])
        warn_of_unknown(tokenizer, coded, "the rows")
        ids = iter(coded)
        self._ids = [tuple(next(ids) for _ in row) for row in texts]
        self.n_tokens = sum(len(x) + 1 for row in self._ids for x in row)
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self._ids)

    def lengths(self, indices: Indices) -> Any:
        """Return the lengths of the texts; of two, both."""
        sides = tuple(np.array([len(self._ids[i][k]) for i in indices], np.int64) for k in range(self.n_texts))
        return sides if self.n_texts > 1 else sides[0]

    def longer_side(self, indices: Indices) -> Indices:
        """Return the length of the longer text of each row."""
        longer: Indices = np.maximum.reduce(self.sides(indices))
        return longer

    def examples(self, indices: Indices) -> list[tuple[Any, ...]]:
        """Return the token ids of texts, and a blank."""
        return [(*self._ids[i], self.blank) for i in indices]


class WordRows(Split):
    """Words of each row, a long row in several parts of at most `length` tokens with their end."""

    kind, asks = "labelled", "tags"
    n_bytes: int = 0
    n_tokens: int = 0

    def __init__(
        self, tokenizer: Tokenizer, rows: Sequence[Sequence[str]], classes: Sequence[str], length: int
    ) -> None:
        self.name, self.tokenizer, self.classes = "rows", tokenizer, tuple(classes)
        self._ids: list[NDArray[np.int64]] = []
        self.firsts: list[Indices] = []
        self.row_of: list[int] = []
        for number, words in enumerate(rows):
            ids, firsts = pieces_of(tokenizer, words)
            for part, begins in _parts(ids, firsts, length - 1):
                self._ids.append(part)
                self.firsts.append(begins)
                self.row_of.append(number)
        self.n_parted = len(self.row_of) - len(set(self.row_of))
        self.n_tokens, self.n_bytes = sum(map(len, self._ids)) + len(self), 0

    def __len__(self) -> int:
        return len(self._ids)

    def lengths(self, indices: Indices) -> Indices:
        """Return the lengths of the parts."""
        return np.array([len(self._ids[i]) for i in indices], np.int64)

    def examples(self, indices: Indices) -> list[tuple[Any, Any]]:
        """Return the token ids of parts, and no tags."""
        return [(self._ids[i], np.full(len(self._ids[i]), IGNORE)) for i in map(int, indices)]


def _parts(ids: NDArray[np.int64], firsts: Indices, room: int) -> list[tuple[NDArray[np.int64], Indices]]:
    """Cut tokens before words, so that no part has more than `room`; a word that is longer alone loses its end."""
    ends = np.append(firsts[1:], len(ids))
    parts, start = [], 0
    while start < len(firsts):
        stop = start + 1
        while stop < len(firsts) and ends[stop] - firsts[start] <= room:
            stop += 1
        part = ids[firsts[start] : ends[stop - 1]][: max(1, room)]
        parts.append((part, firsts[start:stop] - firsts[start]))
        start = stop
    return parts
