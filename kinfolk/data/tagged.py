"""The words of a treebank with their parts of speech: a tag of every word, to be found from the sentence."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.core.errors import DataError
from kinfolk.data.learn import make_tokenizer, needs_sample
from kinfolk.data.preparation import Preparation
from kinfolk.data.split import Data, Indices, Split
from kinfolk.data.tokenizer import Tokenizer
from kinfolk.data.treebank import Sentence, held_out, is_treebank, read_treebank

PREFIX = "tags:"


def is_tagged(name: str) -> bool:
    """Tell whether a name asks for the tags of a treebank."""
    return name.startswith(PREFIX)


def open_tagged(name: str, choices: Preparation) -> Data:
    """Return `tags:PATH`, sentences of a CoNLL-U file with a part of speech of every word."""
    path = Path(name.removeprefix(PREFIX))
    if not (path.is_file() and is_treebank(path)):
        raise DataError(f"{name}: tags are read from a treebank, a file that ends with .conllu or .conllu.gz")
    sentences = read_treebank(path)
    tokenizer = make_tokenizer(choices, (" ".join(s.words) for s in sentences) if needs_sample(choices) else ())
    tags = tuple(sorted({tag for s in sentences for tag in s.tags}))
    valid, splits = held_out(len(sentences), choices), dict[str, Split]()
    for part in ("train", "valid"):
        mine = [s for i, s in enumerate(sentences) if (i in valid) == (part == "valid")]
        splits[part] = TaggedSplit(part, tokenizer, mine, tags)
    content = [[s.words, s.tags] for s in sentences]
    described = json.dumps([content, tokenizer.to_json(), sorted(valid), "tags v1"])
    return Data(name, "labelled", tokenizer, hashlib.sha256(described.encode()).hexdigest(), splits)


class TaggedSplit:
    """Sentences, and the tag of the first token of every word; the other tokens of a word are not asked for one."""

    kind, asks = "labelled", "tags"

    def __init__(self, name: str, tokenizer: Tokenizer, sentences: list[Sentence], tags: tuple[str, ...]) -> None:
        # naming data must not load torch
        from kinfolk.core.batch import IGNORE

        self.name, self.tokenizer, self.classes = name, tokenizer, tags
        number = {tag: i for i, tag in enumerate(tags)}
        self._ids, self._tags = [], []
        for s in sentences:
            # a word after the first takes the space before it along
            words = tokenizer.encode_batch([" " * (i > 0) + word for i, word in enumerate(s.words)])
            self._ids.append(np.concatenate(words).astype(np.int64))
            found = np.full(len(self._ids[-1]), IGNORE, np.int64)
            # a word may have no token at all, where a vocabulary is small
            ends = np.cumsum([len(ids) for ids in words])
            for first, ids, tag in zip(ends - [len(ids) for ids in words], words, s.tags, strict=True):
                found[first : first + min(1, len(ids))] = number[tag]
            self._tags.append(found)
        self.n_bytes = sum(len(" ".join(s.words).encode()) for s in sentences)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def n_tokens(self) -> int:
        """Tokens of all sentences, each with its end."""
        return sum(map(len, self._ids)) + len(self)

    def lengths(self, indices: Indices) -> Indices:
        """Return the lengths of the sentences."""
        return np.array([len(self._ids[i]) for i in indices], dtype=np.int64)

    def examples(self, indices: Indices) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Return the token ids of sentences, and the tags of their tokens."""
        return [(self._ids[i], self._tags[i]) for i in indices]
