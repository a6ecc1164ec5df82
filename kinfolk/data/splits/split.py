"""What training reads: a stream of tokens, or pairs of sequences, behind two small interfaces."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kinfolk.core.errors import DataError, suggest
from kinfolk.data.preparing.shards import Shard
from kinfolk.data.tokenizers.tokenizer import Tokenizer

Indices = NDArray[np.int64]
_COUNTED = 1 << 22


@runtime_checkable
class Split(Protocol):
    """One part of the data, train or valid.

    `n_tokens` counts what a model is scored on (for pairs: targets with their end), and `n_bytes` the UTF-8
    bytes of text those tokens stand for, so bits per byte = nats per token / ln 2 * n_tokens / n_bytes.
    """

    kind: str
    name: str
    tokenizer: Tokenizer

    @property
    def n_tokens(self) -> int:
        """How many tokens a model is scored on."""

    @property
    def n_bytes(self) -> int:
        """How many bytes of text those tokens stand for."""

    def __len__(self) -> int:
        """How many documents or pairs there are."""


class Pairs(Split, Protocol):
    """A split of (source, target) pairs, without specials."""

    def lengths(self, indices: Indices) -> tuple[Indices, Indices]:
        """Return the lengths of the sources and of the targets."""

    def pairs(self, indices: Indices) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Return the token ids of sources and targets."""


class Labelled(Split, Protocol):
    """A split of sequences, without specials, each with a label. Its kind is "labelled".

    A label is the number of a class, a float for regression, or a row of floats, 1 where a class holds. `n_tokens`
    counts what is read, ends included: what is scored is one label of each sequence. A split whose `ends` is False
    (images) has sequences without an end, and they get none. One whose `asks` is "tags" has as many labels as tokens,
    IGNORE where a token has none; if it is "span", a label is the first and the last token of an answer, -1 for none.
    """

    classes: tuple[str, ...]

    def lengths(self, indices: Indices) -> Indices:
        """Return the lengths of the sequences."""

    def examples(self, indices: Indices) -> list[tuple[NDArray[Any], Any]]:
        """Return the token ids of sequences and their labels."""


class LabelledPairs(Split, Protocol):
    """A split of two sequences with one label. Its kind is "labelled" too."""

    classes: tuple[str, ...]

    def lengths(self, indices: Indices) -> tuple[Indices, Indices]:
        """Return the lengths of the first sequences and of the second."""

    def examples(self, indices: Indices) -> list[tuple[NDArray[Any], NDArray[Any], Any]]:
        """Return the token ids of both sequences and their labels."""


@runtime_checkable
class Parsed(Protocol):
    """Pairs whose sources are parsed."""

    def parses(self, indices: Indices) -> list[tuple[Indices, Indices]]:
        """Return the head of each word of the sources, -1 of a root, and the word of each of their tokens."""


@dataclasses.dataclass(frozen=True)
class Data:
    """A dataset: its splits, its tokenizer, and the hash that names its content.

    halved: validate on one half of the valid split; the other judges, see `kinfolk.data.batches.halves`.
    """

    name: str
    kind: str
    tokenizer: Tokenizer
    fingerprint: str
    splits: dict[str, Split]
    halved: bool = False

    def split(self, name: str) -> Split:
        """Return "train" or "valid"."""
        if name not in self.splits:
            raise DataError(f"{self.name}: no split {name!r}{suggest(name, self.splits)}")
        split = self.splits[name]
        if not len(split):
            hint = "it needs at least two documents, and a text below 512 bytes is a single one"
            raise DataError(f"{self.name}: the {name} part is empty: {hint}; give more text, or a file to validate on")
        return split


class Shards:
    """Several shards as one sequence of sequences."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        # an empty shard would make two shards begin at the same place
        self.shards = [shard for shard in shards if shard.n_sequences]
        self.first_token = np.cumsum([0, *(shard.n_tokens for shard in self.shards)], dtype=np.int64)
        self.first_sequence = np.cumsum([0, *(shard.n_sequences for shard in self.shards)], dtype=np.int64)

    @property
    def n_tokens(self) -> int:
        """All tokens of all shards."""
        return int(self.first_token[-1])

    @property
    def n_sequences(self) -> int:
        """All sequences of all shards."""
        return int(self.first_sequence[-1])

    def tokens(self, start: int, stop: int) -> NDArray[Any]:
        """Return tokens by their place in the whole stream, across shards where need be."""
        pieces = []
        for i in range(self._holding(self.first_token, start), len(self.shards)):
            base = int(self.first_token[i])
            if base >= stop:
                break
            pieces.append(self.shards[i].ids[max(start - base, 0) : stop - base])
        return pieces[0] if len(pieces) == 1 else np.concatenate([np.zeros(0, np.uint16), *pieces])

    def bounds(self, sequence: int) -> tuple[int, int]:
        """Return where a sequence begins and ends in the whole stream."""
        i = self._holding(self.first_sequence, sequence)
        local = sequence - int(self.first_sequence[i])
        start, stop = self.shards[i].offsets[local : local + 2]
        base = int(self.first_token[i])
        return base + int(start), base + int(stop)

    def holding(self, place: int) -> int:
        """Return the sequence that a token of the whole stream belongs to."""
        i = self._holding(self.first_token, place)
        local = int(np.searchsorted(self.shards[i].offsets, place - int(self.first_token[i]), side="right")) - 1
        return int(self.first_sequence[i]) + local

    def lengths(self, sequences: Indices) -> Indices:
        """Return the lengths of many sequences."""
        lengths = np.zeros(len(sequences), np.int64)
        where = np.searchsorted(self.first_sequence, sequences, side="right") - 1
        for i in np.unique(where):
            here = where == i
            local, offsets = sequences[here] - self.first_sequence[i], self.shards[i].offsets
            lengths[here] = offsets[local + 1].astype(np.int64) - offsets[local].astype(np.int64)
        return lengths

    def begins(self, start: int, stop: int) -> Indices:
        """Return where sequences begin, of those that begin in `start < x < stop` of the whole stream."""
        found = [np.zeros(0, np.int64)]
        for i in range(self._holding(self.first_token, start), len(self.shards)):
            base = int(self.first_token[i])
            if base >= stop:
                break
            offsets = self.shards[i].offsets[:-1]
            low = np.searchsorted(offsets, max(start - base + 1, 0))
            high = np.searchsorted(offsets, stop - base)
            found.append(base + offsets[low:high].astype(np.int64))
        return np.concatenate(found)

    @staticmethod
    def _holding(first: Indices, place: int) -> int:
        return int(np.searchsorted(first, place, side="right")) - 1


class TextSplit:
    """Documents one after another, each between `bos` and `eos`, read as a ring of tokens."""

    kind = "text"

    def __init__(self, name: str, tokenizer: Tokenizer, shards: Sequence[Shard], n_bytes: int) -> None:
        self.name, self.tokenizer, self.n_bytes = name, tokenizer, n_bytes
        self._shards = Shards(shards)

    def __len__(self) -> int:
        return self._shards.n_sequences

    @property
    def n_tokens(self) -> int:
        """All tokens, specials included."""
        return self._shards.n_tokens

    def document(self, index: int) -> NDArray[Any]:
        """Return the tokens of one document, `bos` and `eos` included."""
        return self._shards.tokens(*self._shards.bounds(index))

    def document_at(self, place: int) -> int:
        """Return the document that a token of the stream belongs to."""
        return self._shards.holding(place)

    def counts(self) -> Indices:
        """Count how often each id occurs, a piece of the stream at a time."""
        total = np.zeros(self.tokenizer.vocab_size, np.int64)
        for start in range(0, self.n_tokens, _COUNTED):
            total += np.bincount(self.window(start, min(_COUNTED, self.n_tokens - start)), minlength=len(total))
        return total

    def bounds(self, index: int) -> tuple[int, int]:
        """Return where in the stream a document begins and ends."""
        return self._shards.bounds(index)

    def window(self, start: int, width: int) -> NDArray[Any]:
        """Return `width` tokens of the stream from `start`; after the last token comes the first."""
        tokens = self._shards.tokens(start, min(start + width, self.n_tokens))
        if len(tokens) == width:
            return tokens
        return np.concatenate([tokens, self.window(0, width - len(tokens))])

    def begins(self, start: int, width: int) -> Indices:
        """Return where in a window documents begin, its first token aside."""
        stop = start + width
        inside = self._shards.begins(start, min(stop, self.n_tokens)) - start
        if stop <= self.n_tokens:
            return inside
        seam = self.n_tokens - start
        return np.concatenate([inside, [seam], seam + self.begins(0, stop - self.n_tokens)])


class PairSplit:
    """Pairs of sequences from shards in which sources and targets alternate."""

    kind = "pairs"

    def __init__(self, name: str, tokenizer: Tokenizer, shards: Sequence[Shard], n_bytes: int, n_tokens: int) -> None:
        self.name, self.tokenizer, self.n_bytes, self.n_tokens = name, tokenizer, n_bytes, n_tokens
        self._shards = Shards(shards)

    def __len__(self) -> int:
        return self._shards.n_sequences // 2

    def lengths(self, indices: Indices) -> tuple[Indices, Indices]:
        """Return the lengths of the sources and of the targets."""
        return self._shards.lengths(2 * indices), self._shards.lengths(2 * indices + 1)

    def pairs(self, indices: Indices) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Return the token ids of sources and targets."""
        bounds = self._shards.bounds
        return [
            (self._shards.tokens(*bounds(2 * i)), self._shards.tokens(*bounds(2 * i + 1))) for i in map(int, indices)
        ]
