"""Treebanks in CoNLL-U: sentences with the head of every word, as sources whose parses reach the model.

A sentence is asked for its translation where every sentence has one (`# text_en = …`, as in parallel treebanks), and
for its parts of speech elsewhere. A treebank is small: it is read whole, and its lines are checked on the way.
"""

import dataclasses
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kinfolk.core.errors import DataError
from kinfolk.core.rng import derive
from kinfolk.data.batches.mixing import mix
from kinfolk.data.files.lines import numbered
from kinfolk.data.preparing.preparation import Preparation
from kinfolk.data.splits.split import Data, Indices, Split, fingerprint
from kinfolk.data.tokenizers.learn import make_tokenizer
from kinfolk.data.tokenizers.tokenizer import Tokenizer

R = TypeVar("R")

TRANSLATION = "# text_en ="
_COLUMNS = 10
_SHARES = 1 << 20


@dataclasses.dataclass(frozen=True)
class ParsedSentence:
    """Words, the number of each word's head from 0 on (-1: a root), parts of speech, and a translation if given.

    `relations` says of what kind each word's tie to its head is.
    """

    words: tuple[str, ...]
    heads: tuple[int, ...]
    tags: tuple[str, ...]
    translation: str = ""
    relations: tuple[str, ...] = ()


def is_treebank(path: Path) -> bool:
    """Tell by its name whether a file is a treebank."""
    return path.name.lower().removesuffix(".gz").endswith(".conllu")


def read_treebank(path: str | Path) -> list[ParsedSentence]:
    """Read a CoNLL-U file. What is wrong is named with its line; spans of words and empty nodes are passed over."""
    sentences = [sentence for sentence in _sentences(str(path)) if sentence.words]
    if not sentences:
        raise DataError(f"{path}: holds no sentence")
    return sentences


def open_treebank(path: Path, choices: Preparation) -> Data:
    """Return a treebank as pairs with parses."""
    sentences = read_treebank(path)
    translated = all(sentence.translation for sentence in sentences)
    targets = [s.translation if translated else " ".join(s.tags) for s in sentences]
    sample = (text for s, target in zip(sentences, targets, strict=True) for text in (" ".join(s.words), target))
    tokenizer = make_tokenizer(choices, sample)
    valid = held_out(len(sentences), choices)
    splits: dict[str, Split] = {}
    for name, mine in parted(list(zip(sentences, targets, strict=True)), valid).items():
        splits[name] = TreebankSplit(name, tokenizer, [s for s, _ in mine], [target for _, target in mine])
    content = [dataclasses.astuple(s) for s in sentences]
    described = fingerprint(content, tokenizer.to_json(), sorted(valid), "v1")
    return Data(str(path), "pairs", tokenizer, described, splits)


class TreebankSplit(Split):
    """Sentences as sources, with their parses, and what is asked of them as targets."""

    kind = "pairs"
    n_bytes: int = 0

    def __init__(self, name: str, tokenizer: Tokenizer, sentences: list[ParsedSentence], targets: list[str]) -> None:
        self.name, self.tokenizer = name, tokenizer
        self._heads = [np.array(s.heads, np.int64) for s in sentences]
        # a word after the first takes the space before it along
        pieces = [tokenizer.encode_batch([" " * (i > 0) + w for i, w in enumerate(s.words)]) for s in sentences]
        self._sources = [np.concatenate(words).astype(np.int64) for words in pieces]
        self._words = [np.repeat(np.arange(len(words)), [len(ids) for ids in words]) for words in pieces]
        self._targets = [ids.astype(np.int64) for ids in tokenizer.encode_batch(targets)]
        self.n_bytes = sum(len(text.encode()) for text in targets)

    def __len__(self) -> int:
        return len(self._sources)

    @property
    def n_tokens(self) -> int:
        """Tokens of all targets, each with its end."""
        return sum(map(len, self._targets)) + len(self)

    def lengths(self, indices: Indices) -> tuple[Indices, Indices]:
        """Return the lengths of the sources and of the targets."""
        sides = (self._sources, self._targets)
        source, target = (np.array([len(side[i]) for i in indices], dtype=np.int64) for side in sides)
        return source, target

    def pairs(self, indices: Indices) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        return [(self._sources[i], self._targets[i]) for i in indices]

    def parses(self, indices: Indices) -> list[tuple[Indices, Indices]]:
        """Return the head of each word of the sources, -1 of a root, and the word of each of their tokens."""
        return [(self._heads[i], self._words[i]) for i in indices]


def held_out(n: int, choices: Preparation) -> set[int]:
    """Return the sentences of the validation part: at least one of several, if any are wanted."""
    lots = mix(derive(choices.seed, "valid"), np.arange(n)) % np.uint64(_SHARES)
    count = min(n - 1, max(1, round(choices.valid * n))) if choices.valid else 0
    return set(np.argsort(lots, kind="stable")[:count].tolist())


def parted(rows: Sequence[R], valid: Container[int]) -> dict[str, list[R]]:
    """Return the rows to learn from, and those of the validation part, whose numbers are given."""
    return {
        part: [row for i, row in enumerate(rows) if (i in valid) == (part == "valid")] for part in ("train", "valid")
    }


def _sentences(path: str) -> Iterator[ParsedSentence]:
    """Yield sentences; a blank line ends one."""
    rows: list[tuple[int, list[str]]] = []
    translation, number = "", 0
    for number, line in numbered(path):
        if line.startswith("#"):
            if line.startswith(TRANSLATION):
                translation = line.removeprefix(TRANSLATION).strip()
        elif line:
            rows.append((number, _columns(path, number, line)))
        else:
            yield _sentence(path, rows, translation)
            rows, translation = [], ""
    yield _sentence(path, rows, translation)


def _columns(path: str, number: int, line: str) -> list[str]:
    columns = line.split("\t")
    if len(columns) != _COLUMNS:
        raise DataError(
            f"{path}:{number}: a word has {_COLUMNS} columns with tabs between them, this line has {len(columns)}"
        )
    return columns


def _sentence(path: str, rows: list[tuple[int, list[str]]], translation: str) -> ParsedSentence:
    # 3-4 spans two words that are written as one, 5.1 is a word that is not written at all
    rows = [(number, row) for number, row in rows if not ("-" in row[0] or "." in row[0])]
    for expected, (number, row) in enumerate(rows, 1):
        if row[0] != str(expected):
            raise DataError(f"{path}:{number}: words are numbered from 1 on: expected {expected}, found {row[0]!r}")
        if not row[1]:
            raise DataError(f"{path}:{number}: a word without a form")
    heads = tuple(_head(path, number, row, len(rows)) for number, row in rows)
    for start, (number, _) in enumerate(rows):
        at, steps = start, 0
        while at >= 0 and steps <= len(rows):
            at, steps = heads[at], steps + 1
        if at >= 0:
            raise DataError(f"{path}:{number}: the heads of word {start + 1} go round in a circle and reach no root")
    words, tags, relations = (tuple(row[column] for _, row in rows) for column in (1, 3, 7))
    return ParsedSentence(words, heads, tags, translation, relations)


def _head(path: str, number: int, row: list[str], n_words: int) -> int:
    """Return a head counted from 0 on, -1 for a root."""
    if not (row[6].isascii() and row[6].isdecimal()) or int(row[6]) > n_words:
        raise DataError(
            f"{path}:{number}: the head of {row[1]!r} should be a word from 1 to {n_words}, or 0 for a root, "
            f"found {row[6]!r}"
        )
    return int(row[6]) - 1
