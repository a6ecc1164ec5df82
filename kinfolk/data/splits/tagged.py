"""Sequence tagging: sentences with a tag of every word, from a treebank or a CoNLL file."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kinfolk.core.errors import DataError, suggest
from kinfolk.data.files.conll import ENDINGS, is_conll, read_conll, read_tag_rows
from kinfolk.data.files.treebank import ParsedSentence as ParsedSentence
from kinfolk.data.files.treebank import held_out, is_treebank, parted, read_treebank
from kinfolk.data.preparing.preparation import Preparation
from kinfolk.data.splits.asking import DataRequest
from kinfolk.data.splits.beside import GO_ON
from kinfolk.data.splits.split import Data, Indices, Split, fingerprint
from kinfolk.data.splits.text_labels import TextLabels
from kinfolk.data.tokenizers.learn import make_tokenizer
from kinfolk.data.tokenizers.tokenizer import Tokenizer

PREFIX = "tags:"


class TaggedSentence(Protocol):
    """Words with tags."""

    @property
    def words(self) -> tuple[str, ...]:
        """The words."""

    @property
    def tags(self) -> tuple[str, ...]:
        """The tag of each."""


def is_tagged(name: str) -> bool:
    """Tell whether a name asks for the tags of words."""
    return name.startswith(PREFIX)


def open_tagged(
    name: str,
    path: Path,
    choices: Preparation,
    valid: Path | None = None,
    columns: Any = None,
    *,
    add: bool = False,
) -> Data:
    """Return sentences of a file with a tag of every word; those held out for validation from a file of their own.

    columns: which hold the words and the tags, where a file does not say so itself: see `kinfolk.data.files.conll`.
    add: learn with a tag that only the second file has, instead of refusing it.
    """
    sentences = read_tagged(path, *(columns or ("", "")))
    parts: dict[str, Sequence[TaggedSentence]]
    if valid is None:
        parts = dict(parted(sentences, held_out(len(sentences), choices)))
    else:
        parts = {"train": sentences, "valid": read_tagged(valid, *(columns or ("", "")))}
    tags = tuple(sorted({tag for s in (*sentences, *(parts["valid"] if add else ())) for tag in s.tags}))
    _refuse_strange(valid, parts["valid"], tags)
    tokenizer = make_tokenizer(choices, (" ".join(s.words) for s in sentences))
    splits: dict[str, Split] = {part: TaggedSplit(part, tokenizer, mine, tags) for part, mine in parts.items()}
    content = {part: [[s.words, s.tags] for s in mine] for part, mine in parts.items()}
    return Data(name, "labelled", tokenizer, fingerprint(content, tokenizer.to_json(), "tags v2"), splits)


def read_tagged(path: Path, words: str = "", tags: str = "") -> Sequence[TaggedSentence]:
    """Read sentences with tags from any file that has them."""
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    if is_treebank(path):
        return read_treebank(path)
    if is_conll(path):
        return read_conll(path, words, tags)
    if path.name.lower().removesuffix(".gz").endswith((".jsonl", ".ndjson")):
        return read_tag_rows(path, words or "tokens", tags or "tags")
    raise DataError(
        f"{path}: tags are read from files that end with .conllu, .jsonl, {', '.join(ENDINGS)}, or these .gz"
    )


def _refuse_strange(path: Path | None, sentences: Sequence[Any], tags: tuple[str, ...]) -> None:
    """Refuse a tag that nothing to learn from has, where validation has a file of its own."""
    names = set(tags)
    for s in sentences if path is not None else ():
        for i, tag in enumerate(s.tags):
            if tag not in names:
                where = str(path) if isinstance(s, ParsedSentence) else f"{path}:{s.line_of(i)}"
                raise DataError(f"{where}: the tag {tag!r} is not among those to learn from{suggest(tag, tags)}{GO_ON}")


def pieces_of(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[NDArray[np.int64], Indices]:
    """Return the token ids of words, and where each word begins: every word has a token, an unknown one if need be."""
    # a word after the first takes the space before it along
    encoded = tokenizer.encode_batch([" " * (i > 0) + word for i, word in enumerate(words)])
    pieces = [ids.astype(np.int64) if len(ids) else np.array([tokenizer.unk]) for ids in encoded]
    ends = np.cumsum([len(ids) for ids in pieces])
    return np.concatenate([np.zeros(0, np.int64), *pieces]), np.concatenate([[0], ends[:-1]]).astype(np.int64)


class Tags(TextLabels, kind="tags", per_token=True):
    """A tag of each word: a CoNLL file, a treebank, or JSON lines with lists of words and tags."""

    def in_file(self, what: DataRequest) -> bool:
        """Tell by the name, or by a list of words in the first row."""
        if is_conll(what.path) or is_treebank(what.path):
            return True
        return isinstance(what.first_row.get(what.settings.get("text", "tokens")), list)

    def open(self, name: str, what: DataRequest, choices: Preparation, valid: Path | None) -> Data:
        columns = (what.settings.get("text", ""), what.settings.get("label", ""))
        return open_tagged(name, what.path, choices, valid, columns, add=what.adds_unknown)


class TaggedSplit(Split):
    """Sentences, and the tag of the first token of every word; the other tokens of a word are not asked for one."""

    kind, asks, from_file = "labelled", "tags", True
    n_bytes: int = 0
    sentences: Sequence[TaggedSentence] = ()

    def __init__(
        self, name: str, tokenizer: Tokenizer, sentences: Sequence[TaggedSentence], tags: tuple[str, ...]
    ) -> None:
        self.name, self.tokenizer, self.classes = name, tokenizer, tags
        self.sentences = sentences
        number = {tag: i for i, tag in enumerate(tags)}
        both = [pieces_of(tokenizer, s.words) for s in sentences]
        self._ids, self._firsts = [ids for ids, _ in both], [firsts for _, firsts in both]
        self._numbers = [np.array([number[tag] for tag in s.tags], np.int64) for s in sentences]
        self.n_bytes = sum(len(" ".join(s.words).encode()) for s in sentences)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def n_tokens(self) -> int:
        """Tokens of all sentences, each with its end."""
        return sum(map(len, self._ids)) + len(self)

    def renamed(self, classes: Sequence[str]) -> "TaggedSplit":
        """Return the same sentences with other numbers for the same tags."""
        other = copy.copy(self)
        other.classes = tuple(classes)
        table = np.array([other.classes.index(tag) for tag in self.classes], np.int64)
        other._numbers = [table[numbers] for numbers in self._numbers]
        return other

    def described(self) -> dict[str, Any]:
        """Return what must be known to read other sentences in the same way."""
        return {"asks": self.asks}

    def joined(self, other: "TaggedSplit") -> "TaggedSplit":
        """Return the sentences of both, one split after the other."""
        return TaggedSplit(self.name, self.tokenizer, [*self.sentences, *other.sentences], self.classes)

    def lengths(self, indices: Indices) -> Indices:
        """Return the lengths of the sentences."""
        return np.array([len(self._ids[i]) for i in indices], dtype=np.int64)

    def examples(self, indices: Indices) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Return the token ids of sentences, and the tags of their tokens."""
        # naming data must not load torch
        from kinfolk.core.batch import IGNORE

        examples = []
        for i in map(int, indices):
            tags = np.full(len(self._ids[i]), IGNORE, np.int64)
            tags[self._firsts[i]] = self._numbers[i]
            examples.append((self._ids[i], tags))
        return examples

    def words_cut(self, length: int) -> int:
        """Count the words that are cut off where sentences keep `length` tokens."""
        return sum(int((firsts >= length).sum()) for firsts in self._firsts)
