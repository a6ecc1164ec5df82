"""Labels of rows: read from a column, stored beside the text, and turned into class numbers by name."""

import copy
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.core.errors import DataError, suggest
from kinfolk.data.files.label_kinds import label_kind
from kinfolk.data.preparing.preparation import Preparation
from kinfolk.data.preparing.shards import Shard
from kinfolk.data.splits.split import Data, Indices, Shards, Split
from kinfolk.data.tokenizers.tokenizer import Tokenizer

MOST = 10_000


def written(label: str) -> NDArray[Any]:
    """Return a label as a shard stores it, after the text: its bytes, as if they were ids."""
    return np.frombuffer(label.encode(), np.uint8)


def class_names(counts: Iterable[Mapping[str, int]]) -> tuple[str, ...]:
    """Put the names of all classes in order: integers by value, anything else by the alphabet."""
    names = {name for count in counts for name in count}
    try:
        return tuple(sorted(names, key=int))
    except ValueError:
        return tuple(sorted(names))


def refuse_many(counts: Mapping[str, int], choices: Preparation) -> None:
    """Refuse a column that is no class of anything."""
    if len(counts) > MOST:
        such = ", ".join(map(repr, sorted(counts)[:3]))
        raise DataError(
            f"label_column: {choices.label_column!r} has more than {MOST:,} different labels, such as {such}; "
            "is it the right column? Numbers are read with labels = 'number'"
        )


@dataclasses.dataclass(frozen=True)
class LabelReading:
    """What the labels of a split are: their kind, and the names of classes in order."""

    kind: str
    classes: tuple[str, ...]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.classes)}

    def read(self, ids: NDArray[Any]) -> Any:
        """Return what a label means: a class, a number, or which classes hold."""
        return label_kind(self.kind).value(ids.astype(np.uint8).tobytes().decode(), self._numbers)


class LabelledSplit(Split):
    """Rows with a label, from shards in which the texts of a row, one or two, are followed by its label."""

    kind, from_file = "labelled", True
    n_bytes: int = 0
    n_tokens: int = 0

    def __init__(
        self, name: str, tokenizer: Tokenizer, shards: Sequence[Shard], stated: Mapping[str, Any], labels: LabelReading
    ) -> None:
        self.name, self.tokenizer, self.labels, self.classes = name, tokenizer, labels, labels.classes
        self.asks = labels.kind
        self.n_bytes, self.n_tokens, self.n = int(stated["bytes"]), int(stated["scored"]), int(stated["documents"])
        self._shards = Shards(shards)
        self.n_texts = self._shards.n_sequences // max(1, self.n) - 1

    def __len__(self) -> int:
        return self.n

    def renamed(self, classes: Sequence[str]) -> "LabelledSplit":
        """Return the same rows with other numbers for the same classes."""
        other = copy.copy(self)
        other.classes = tuple(classes)
        other.labels = dataclasses.replace(self.labels, classes=other.classes)
        return other

    def described(self) -> dict[str, Any]:
        """Return what must be known to read other rows in the same way."""
        return {"sequences": self.n_texts}

    def lengths(self, indices: Indices) -> Any:
        """Return the lengths of the texts; of two, both."""
        first = indices * (self.n_texts + 1)
        sides = tuple(self._shards.lengths(first + i) for i in range(self.n_texts))
        return sides if self.n_texts > 1 else sides[0]

    def examples(self, indices: Indices) -> list[tuple[Any, ...]]:
        """Return the token ids of texts, and their labels."""
        examples = []
        for i in map(int, indices):
            first = i * (self.n_texts + 1)
            parts = [self._shards.tokens(*self._shards.bounds(first + k)) for k in range(self.n_texts + 1)]
            examples.append((*parts[:-1], self.labels.read(parts[-1])))
        return examples


def with_classes(data: Data, classes: Sequence[str]) -> Data:
    """Number the classes of data as a model knows them; one that it does not know is refused."""
    own = data.split("train" if len(data.splits["train"]) else "valid").classes
    if own == tuple(classes):
        return data
    strange = [name for name in own if name not in classes]
    if strange:
        raise DataError(
            f"{data.name}: has the class {strange[0]!r}, which the model does not know{suggest(strange[0], classes)}"
        )
    return dataclasses.replace(data, splits={name: split.renamed(classes) for name, split in data.splits.items()})
