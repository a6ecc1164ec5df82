"""Tasks on bytes: which class a text belongs to, and whether two texts belong together.

As the Long Range Arena has them (Tay et al. 2021), from any folder of labelled texts or table of pairs. Without one,
the texts are passages of the standard library of the Python that runs: from which package is this (`text`), is it
documentation or code (`prose`), are these two from the same module (`retrieval`)?
"""

import dataclasses
import functools
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from kinfolk.core.errors import DataError
from kinfolk.data.batches.mixing import mix
from kinfolk.data.files.names import split_name, split_path
from kinfolk.data.generated.documents import ByteDocument, Labelled, content, library, part, read_parts
from kinfolk.data.generated.made import MadeTask
from kinfolk.data.generated.rows import Made, SequenceRows, held_out
from kinfolk.data.generated.task import MOST_TRIES, task, within
from kinfolk.data.splits.split import Data, Indices, Split
from kinfolk.data.tokenizers.tokenizer import N_SPECIALS, Tokenizer

LENGTH = 1000
_SHORTEST = 200

Make = Callable[[int], tuple[list[bytes], int]]
"""What makes the texts of a question and its class from a number."""


@dataclasses.dataclass(frozen=True)
class _Passages(MadeTask):
    """Passages of up to `length` bytes that begin where a line begins, from documents of the standard library.

    columns: texts of an example, where they are read from a folder or a table instead; 0: they are not.
    """

    length: int = LENGTH

    columns: ClassVar[int] = 0

    @property
    def longest(self) -> int:
        """Bytes of the longest there may be."""
        return self.length

    def tokenizer(self) -> Tokenizer:
        """Return what turns bytes into ids."""
        return Tokenizer.byte()

    def check(self) -> None:
        within("length", self.length, 16, 1 << 16)

    def source(self) -> tuple[str, ...]:
        """Return a hash of the documents."""
        return (content(library()),)

    def open(self, name: str, seed: int) -> Data:
        front, path = split_path(name) if self.columns else (name, "")
        return _read(name, front, Path(path), self.columns) if path else super().open(name, seed)


@task("text")
@dataclasses.dataclass(frozen=True)
class Families(_Passages):
    """Which of the largest packages of the standard library a passage is from; all are as frequent.

    Or, as `text:PATH` and `text:length=4000:PATH`, the class of a text in a folder or a table.
    """

    families: int = 8

    columns = 1

    @property
    def classes(self) -> tuple[str, ...]:
        return _families()[: self.families]

    def check(self) -> None:
        super().check()
        within("families", self.families, 2, len(_families()))

    def draw(self, seed: int, numbers: Indices, *, valid: bool) -> Made:
        """Return the passages of these numbers."""
        pools = [_bodies(family, valid) for family in self.classes]
        return _drawn(seed, numbers, valid, _passages(pools, self.length))


@task("prose")
@dataclasses.dataclass(frozen=True)
class Prose(_Passages):
    """Whether a passage of the standard library is documentation or code; both are as frequent."""

    classes = ("code", "prose")

    def draw(self, seed: int, numbers: Indices, *, valid: bool) -> Made:
        """Return the passages of these numbers."""
        return _drawn(seed, numbers, valid, _passages(_kinds(valid), self.length))


@task("retrieval")
@dataclasses.dataclass(frozen=True)
class Modules(_Passages):
    """Whether two passages are from the same file of the standard library; half of them are.

    A file is cut in two anywhere, and one passage is from before the cut of a file, the other from behind the cut of
    the same file or of another. So a single passage tells nothing. Or, as `retrieval:PATH` and
    `retrieval:length=4000:PATH`, the pairs of a table.
    """

    classes = ("different", "same")
    apart = True
    columns = 2

    def check(self) -> None:
        super().check()
        if any(len(_long(self.length, valid)) < 2 for valid in (False, True)):
            raise DataError(f"length {self.length}: this Python's library has too few files that long")

    def draw(self, seed: int, numbers: Indices, *, valid: bool) -> Made:
        """Return the passages of these numbers."""
        bodies, length = _long(self.length, valid), self.length

        def make(word: int) -> tuple[list[bytes], int]:
            lots = mix(word, np.arange(6)).tolist()
            label, first = lots[0] % 2, lots[1] % len(bodies)
            other = first if label else (first + 1 + lots[2] % (len(bodies) - 1)) % len(bodies)
            before, behind = (
                length + int(mix(word, 6, file)) % (len(bodies[file]) - 2 * length + 1) for file in (first, other)
            )
            pair = [
                _passage(bodies[first][:before], lots[3], length),
                _passage(bodies[other][behind:], lots[4], length),
            ]
            return pair[:: -1 if lots[5] % 2 else 1], label

        return _drawn(seed, numbers, valid, make)


class ByteTextSplit(Split):
    """Labelled texts, or pairs of them, as they were given."""

    kind = "labelled"

    def __init__(self, name: str, examples: Sequence[Labelled], classes: tuple[str, ...], length: int) -> None:
        self.name, self.classes, self.tokenizer = name, classes, Tokenizer.byte()
        self.texts = tuple(zip(*(tuple(t[:length] for t in e.texts) for e in examples), strict=True))
        self.apart = len(self.texts) == 2
        self.labels = [classes.index(example.label) for example in examples]
        self.sizes = tuple(np.array([len(text) for text in side], np.int64) for side in self.texts)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def n_bytes(self) -> int:
        return int(sum(side.sum() for side in self.sizes))

    @property
    def n_tokens(self) -> int:
        """Tokens of all texts, each with its end."""
        return self.n_bytes + len(self) * len(self.texts)

    def lengths(self, indices: Indices) -> Any:
        """Return the lengths of the texts, or those of the first and those of the second."""
        lengths = tuple(side[indices] for side in self.sizes)
        return lengths[0] if len(lengths) == 1 else lengths

    def examples(self, indices: Indices) -> list[tuple[Any, ...]]:
        """Return the token ids of one text or two, and the class."""
        return [
            (*(np.frombuffer(side[i], np.uint8).astype(np.int64) + N_SPECIALS for side in self.texts), self.labels[i])
            for i in indices.tolist()
        ]


def _read(name: str, front: str, path: Path, columns: int) -> Data:
    """Read labelled texts of a folder or a table."""
    length = split_name(front, ["length"])[1].get("length", LENGTH)
    within("length", length, 1, 1 << 24)
    parts = read_parts(path, columns)
    classes = tuple(sorted({example.label for example in parts["train"]}))
    unknown = sorted({example.label for example in parts["valid"]} - set(classes))
    if unknown or len(classes) < 2:
        raise DataError(f"{path}: classes of train are {classes}, those of valid {unknown or classes}")
    splits: dict[str, Split] = {
        name: ByteTextSplit(name, examples, classes, length) for name, examples in parts.items()
    }
    digest = hashlib.sha256(json.dumps([classes, length, "v1"]).encode())
    for part_name, examples in parts.items():
        for example in examples:
            digest.update("\0".join([part_name, example.label]).encode("utf-8", "surrogateescape"))
            digest.update(b"\0".join([*example.texts, b""]))
    return Data(name, "labelled", Tokenizer.byte(), digest.hexdigest(), splits)


@functools.lru_cache(maxsize=1)
def _families() -> tuple[str, ...]:
    """Return the packages that have enough files to hold some out, the largest first."""
    sizes: dict[str, list[int]] = defaultdict(list)
    for document in library():
        if document.family and len(document.body) >= _SHORTEST:
            sizes[document.family].append(len(document.body))
    enough = {family: sum(found) for family, found in sizes.items() if len(found) >= 5}
    return tuple(sorted(enough, key=lambda family: (-enough[family], family)))


@functools.lru_cache(maxsize=64)
def _bodies(family: str, valid: bool) -> list[bytes]:
    documents = [document for document in library() if document.family == family and len(document.body) >= _SHORTEST]
    return [document.body for document in part(documents, valid=valid)]


@functools.lru_cache(maxsize=2)
def _kinds(valid: bool) -> list[list[bytes]]:
    documents: Sequence[ByteDocument] = part(library(), valid=valid)
    kinds = [document.code for document in documents], [document.prose for document in documents]
    return [[body for body in bodies if len(body) >= _SHORTEST] for bodies in kinds]


@functools.lru_cache(maxsize=8)
def _long(length: int, valid: bool) -> list[bytes]:
    return [document.body for document in part(library(), valid=valid) if len(document.body) >= 2 * length]


def _passages(pools: Sequence[list[bytes]], length: int) -> Make:
    """Return what draws a class, a document of it by its size, and a place in that."""
    ends = [np.cumsum([len(body) for body in pool]) for pool in pools]

    def make(word: int) -> tuple[list[bytes], int]:
        lots = mix(word, np.arange(3)).tolist()
        label = lots[0] % len(pools)
        body = pools[label][int(np.searchsorted(ends[label], lots[1] % int(ends[label][-1]), side="right"))]
        return [_passage(body, lots[2], length)], label

    return make


def _drawn(seed: int, numbers: Indices, valid: bool, make: Make) -> Made:
    """Make the questions of these numbers, each again until a hash of it says that it belongs to the split.

    Documents belong to a split already, but some passages, such as licences, are in many of them.
    """
    questions, labels = [], []
    for number in numbers.tolist():
        for tries in range(MOST_TRIES):
            texts, label = make(int(mix(seed, number, tries)))
            digest = hashlib.blake2b(b"\0".join(sorted(texts)), digest_size=8).digest()
            if held_out(np.array(int.from_bytes(digest, "big"), np.uint64)) == valid:
                break
        else:
            raise DataError("too few passages to hold some out; allow longer ones")
        questions.append(texts)
        labels.append(label)
    sides = zip(*questions, strict=True)
    return Made(tuple(map(SequenceRows.of, sides)), np.array(labels, np.int64))


def _passage(body: bytes, number: int, length: int) -> bytes:
    """Return up to `length` bytes from the beginning of some line, as many as there are where a body is short."""
    start = number % max(1, len(body) - length + 1)
    line = body.rfind(b"\n", 0, start) + 1
    return body[line : line + length]
