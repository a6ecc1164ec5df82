"""Splits: the examples that training and evaluation read, behind one base class."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.core.errors import DataError, suggest
from kinfolk.data.preparing.shards import Shard
from kinfolk.data.tokenizers.tokenizer import Tokenizer

Indices = NDArray[np.int64]
_COUNTED = 1 << 22


class Split:
    """One part of the data, train or valid: the base of every split, with what most of them need not say.

    kind: what an example is, and so how batches are made of it: "text" (a stream of documents), "pairs" (source and
        target), "labelled" (one or two sequences and a label), "images" (images without labels), "several" (parts).
    asks: of labelled examples, what a label is: the number of one "class", a row of 0 and 1 for the "classes" that
        hold, a "number", "tags" of all tokens (IGNORE where one has none), or the "span" of an answer, its first and
        last token, -1 for none. classes: their names. apart: two sequences are encoded each for itself.
    ends: sequences end with an EOS token. from_file: sequences come from a file, so that those longer than what is
        read are cut, and counted; generated ones are as long as was asked for. row: the most tokens of a whole row,
        special tokens included, where that is known; 0: as many as its sequences.
    `picture`: height, width and channels, where sequences are images.
    sentences: the words and tags behind tagged tokens. parts: the splits that this one consists of.
    """

    kind: str = "text"
    name: str
    tokenizer: Tokenizer
    asks: str = "class"
    classes: tuple[str, ...] = ()
    apart: bool = False
    ends: bool = True
    from_file: bool = False
    row: int = 0
    picture: tuple[int, int, int] | None = None
    sentences: Sequence[Any] | None = None
    parts: "tuple[Split, ...]" = ()

    @property
    def n_tokens(self) -> int:
        """Tokens that a model is scored on (of pairs: targets with their end); of labelled ones, all that are read."""
        raise NotImplementedError

    @property
    def n_bytes(self) -> int:
        """Bytes of UTF-8 that those tokens represent: bits per byte = nats per token / ln 2 * n_tokens / n_bytes."""
        raise NotImplementedError

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence there may be; 0: not known without looking."""
        return 0

    def __len__(self) -> int:
        """How many documents, pairs or examples there are."""
        raise NotImplementedError

    def lengths(self, indices: Indices) -> Any:
        """Return the lengths of sequences without special tokens; of two in an example, those of both."""
        raise NotImplementedError

    def sides(self, indices: Indices) -> tuple[Indices, ...]:
        """Return the lengths of the first sequences of examples, and of the second where they have two."""
        lengths = self.lengths(indices)
        return lengths if isinstance(lengths, tuple) else (lengths,)

    def pairs(self, indices: Indices) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Return the token ids of sources and targets, without special tokens."""
        raise NotImplementedError

    def examples(self, indices: Indices) -> list[tuple[Any, ...]]:
        """Return the token ids of one sequence or two, without special tokens, and the label."""
        raise NotImplementedError

    def rows(self, indices: Indices) -> list[NDArray[Any]]:
        """Return the values of images without labels, as ids."""
        raise NotImplementedError

    def parses(self, indices: Indices) -> list[tuple[Indices, Indices]] | None:
        """Return the head of each word of parsed sources, -1 of a root, and the word of each token; else None."""
        return None

    def counts(self) -> Indices | None:
        """Count how often each id occurs; None where that is not known."""
        return None

    def described(self) -> dict[str, Any]:
        """Return what must be known to read other examples in the same way, for run.toml."""
        return {}

    def words_cut(self, length: int) -> int:
        """Count the tagged words that are cut off where sentences keep `length` tokens."""
        return 0

    def renamed(self, classes: Sequence[str]) -> "Split":
        """Return the same examples with other numbers for the same classes."""
        own = ", ".join(self.classes)
        raise DataError(f"{self.name}: its classes are {own}, and they cannot become {', '.join(classes)}")

    def joined(self, other: Any) -> "Split | None":
        """Return the examples of both as one split, where metrics need them together; None: one after the other."""
        return None

    def whole_of(self, index: int) -> int:
        """Return the number of what an example is a window of: itself, where it is whole."""
        return index

    def first(self, n: int) -> list[NDArray[Any]]:
        """Return the token ids of the first n examples."""
        if self.kind == "pairs":
            return [ids for pair in self.pairs(np.arange(min(n, len(self)))) for ids in pair]
        if self.kind == "labelled":
            examples = self.examples(np.arange(min(n, len(self))))
            return [np.asarray(ids) for example in examples for ids in example[:-1]]
        return []

    def in_words(self, index: int) -> str:
        """Return an example as text."""
        if self.picture is not None:
            return f"image {index + 1} of the {self.name} part"
        *sequences, _ = self.examples(np.array([index]))[0]
        return "\n".join(self.tokenizer.decode(ids) for ids in sequences)


@dataclasses.dataclass(frozen=True)
class Data:
    """A dataset: its splits, its tokenizer, and the hash that names its content.

    halved: validate on one half of the valid split; the other judges, see `kinfolk.data.batches.halves`.
    task: the kind of its task, where the name of the data says one; "": as its labels say.
    """

    name: str
    kind: str
    tokenizer: Tokenizer
    fingerprint: str
    splits: dict[str, Split]
    halved: bool = False
    task: str = ""

    def split(self, name: str) -> Split:
        """Return "train" or "valid"."""
        if name not in self.splits:
            raise DataError(f"{self.name}: no split {name!r}{suggest(name, self.splits)}")
        split = self.splits[name]
        if not len(split):
            hint = "it needs at least two documents, and a text below 512 bytes is a single one"
            raise DataError(f"{self.name}: the {name} part is empty: {hint}; give more text, or a file to validate on")
        return split


def fingerprint(*content: Any) -> str:
    """Return the hash that names data of this content: plain data, with dictionaries in the order of their keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


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
        places = [np.zeros(0, np.int64)]
        for i in range(self._holding(self.first_token, start), len(self.shards)):
            base = int(self.first_token[i])
            if base >= stop:
                break
            offsets = self.shards[i].offsets[:-1]
            low = np.searchsorted(offsets, max(start - base + 1, 0))
            high = np.searchsorted(offsets, stop - base)
            places.append(base + offsets[low:high].astype(np.int64))
        return np.concatenate(places)

    @staticmethod
    def _holding(first: Indices, place: int) -> int:
        return int(np.searchsorted(first, place, side="right")) - 1


class TextSplit(Split):
    """Documents one after another, each between `bos` and `eos`, read as a ring of tokens."""

    n_bytes: int = 0

    def __init__(self, name: str, tokenizer: Tokenizer, shards: Sequence[Shard], n_bytes: int) -> None:
        self.name, self.tokenizer, self.n_bytes = name, tokenizer, n_bytes
        self._shards = Shards(shards)

    def __len__(self) -> int:
        return self._shards.n_sequences

    @property
    def n_tokens(self) -> int:
        return self._shards.n_tokens

    def document(self, index: int) -> NDArray[Any]:
        """Return the tokens of one document, `bos` and `eos` included."""
        return self._shards.tokens(*self._shards.bounds(index))

    def first(self, n: int) -> list[NDArray[Any]]:
        """Return the token ids of the first documents; they are long, so a twentieth of n."""
        return [self.document(i) for i in range(min(n // 20, len(self)))]

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


class PairSplit(Split):
    """Pairs of sequences from shards in which sources and targets alternate."""

    kind = "pairs"
    n_bytes: int = 0
    n_tokens: int = 0

    def __init__(self, name: str, tokenizer: Tokenizer, shards: Sequence[Shard], n_bytes: int, n_tokens: int) -> None:
        self.name, self.tokenizer, self.n_bytes, self.n_tokens = name, tokenizer, n_bytes, n_tokens
        self._shards = Shards(shards)

    def __len__(self) -> int:
        return self._shards.n_sequences // 2

    def lengths(self, indices: Indices) -> tuple[Indices, Indices]:
        """Return the lengths of the sources and of the targets."""
        return self._shards.lengths(2 * indices), self._shards.lengths(2 * indices + 1)

    def pairs(self, indices: Indices) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        bounds = self._shards.bounds
        return [
            (self._shards.tokens(*bounds(2 * i)), self._shards.tokens(*bounds(2 * i + 1))) for i in map(int, indices)
        ]
