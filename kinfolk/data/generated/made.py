"""Labelled tasks that decide by themselves how to draw a question of a split, and examples that are kept once made.

An example is a pure function of (seed, split, its number). Making one may take milliseconds, and a batch asks for
lengths before it asks for examples, a validation for the same examples again and again: the latest are kept.
"""

import dataclasses
import hashlib
import json
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from kinfolk.core.rng import derive
from kinfolk.data.files.names import split_name
from kinfolk.data.generated.pairs import SIZES, within
from kinfolk.data.generated.rows import Made
from kinfolk.data.splits.split import Data, Indices, Split
from kinfolk.data.tokenizers.tokenizer import N_SPECIALS, Tokenizer

_COUNTED = 256
_MOST_KEPT = 1 << 25
"""Symbols, and therefore bytes, that a split keeps before it forgets them all."""


class MadeTask:
    """Base of generated tasks: a frozen dataclass whose fields are the numbers that may be set.

    apart: of two sequences, each is encoded for itself.
    """

    apart: ClassVar[bool] = False

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the answers."""
        raise NotImplementedError

    @property
    def picture(self) -> tuple[int, int, int] | None:
        """Height, width and channels, where a question is an image."""
        return None

    @property
    def longest(self) -> int:
        """Symbols of the longest sequence there may be."""
        raise NotImplementedError

    def tokenizer(self) -> Tokenizer:
        """Return what turns symbols into ids: symbol s is the s-th after the specials."""
        raise NotImplementedError

    def check(self) -> None:
        """Refuse numbers that make no task."""

    def more(self) -> "dict[str, MadeTask]":
        """Return further splits by name."""
        return {}

    def source(self) -> str:
        """Return a hash of what examples are drawn from, where that is not in the numbers."""
        return ""

    def draw(self, seed: int, numbers: Indices, *, valid: bool) -> Made:
        """Return the questions of these numbers, all of one split, and their answers."""
        raise NotImplementedError


class Square(MadeTask):
    """What tasks with square images in shades of grey have in common."""

    size: int

    @property
    def picture(self) -> tuple[int, int, int]:
        return self.size, self.size, 1

    @property
    def longest(self) -> int:
        return self.size * self.size

    def tokenizer(self) -> Tokenizer:
        """Return what turns values of pixels into ids."""
        return Tokenizer.byte()


class MadeSplit(Split):
    """One part of a task. Images have `height`, `width` and `channels`, and no end; two texts are read apart."""

    kind = "labelled"
    longest: int = 0

    def __init__(self, name: str, task: MadeTask, tokenizer: Tokenizer, n: int, seed: int) -> None:
        self.name, self.task, self.tokenizer, self.n = name, task, tokenizer, n
        self.classes, self.ends, self.longest = task.classes, task.picture is None, task.longest
        self.apart, self.picture = task.apart, task.picture
        if task.picture is not None:
            self.height, self.width, self.channels = task.picture
        self.seed = derive(seed, "made", name)
        self._kept: dict[int, tuple[Any, ...]] = {}
        self._n_kept = 0

    def __len__(self) -> int:
        return self.n

    @cached_property
    def n_bytes(self) -> int:
        """Symbols of all questions: counted for the first 256, the rest in proportion."""
        counted = min(self.n, _COUNTED)
        lengths = self.lengths(np.arange(counted))
        return int(np.sum(lengths)) * self.n // counted

    @property
    def n_tokens(self) -> int:
        """Tokens of all questions, each with its end if it has one."""
        return self.n_bytes + self.n * self.ends

    def lengths(self, indices: Indices) -> Any:
        """Return the lengths of the sequences, or those of the first and those of the second."""
        if self.task.picture is not None:
            return np.full(len(indices), self.height * self.width * self.channels, np.int64)
        sides = [np.array(side, np.int64) for side in zip(*self._lengths(indices), strict=True)]
        return sides[0] if len(sides) == 1 else tuple(sides)

    def examples(self, indices: Indices) -> list[tuple[Any, ...]]:
        """Return the token ids of one sequence or two, and the class."""
        return [
            (*(side.astype(np.int64) + N_SPECIALS for side in sides), label) for *sides, label in self._made(indices)
        ]

    def __getstate__(self) -> dict[str, Any]:
        # another process makes its own
        return self.__dict__ | {"_kept": {}, "_n_kept": 0}

    def _lengths(self, indices: Indices) -> list[tuple[int, ...]]:
        return [tuple(map(len, sides)) for *sides, _ in self._made(indices)]

    def _made(self, indices: Indices) -> list[tuple[Any, ...]]:
        kept = self._kept
        found = {i: kept[i] for i in indices.tolist() if i in kept}
        missing = np.array(sorted(set(indices.tolist()) - found.keys()), np.int64)
        if len(missing):
            made = self.task.draw(self.seed, missing, valid=self.name != "train")
            # copies: a view would keep the whole array that it is a part of
            new = {
                number: (*(side[i].copy() for side in made.sides), int(made.labels[i]))
                for i, number in enumerate(missing.tolist())
            }
            found |= new
            self._keep(new)
        return [found[i] for i in indices.tolist()]

    def _keep(self, new: dict[int, tuple[Any, ...]]) -> None:
        size = sum(len(side) for *sides, _ in new.values() for side in sides)
        if self._n_kept + size > _MOST_KEPT:
            # a new one, and nothing is ever taken out: another thread may be reading the old one
            self._kept, self._n_kept = {}, 0
        if size <= _MOST_KEPT:
            self._kept.update(new)
            self._n_kept += size


def open_made(name: str, seed: int, task: Any) -> Data:
    """Return a task, its numbers set as the name says."""
    fields = {field.name for field in dataclasses.fields(task)}
    base, given = split_name(name, fields | SIZES.keys())
    sizes = {key: given.pop(key, default) for key, default in SIZES.items()}
    task = dataclasses.replace(task, **given)
    task.check()
    tokenizer = task.tokenizer()
    for key, size in sizes.items():
        within(key, size, 1, 1 << 60)
    parts = {"train": (task, sizes["examples"]), "valid": (task, sizes["valid"])}
    parts |= {part: (other, sizes["valid"]) for part, other in task.more().items()}
    splits: dict[str, Split] = {
        part: MadeSplit(part, asked, tokenizer, size, seed) for part, (asked, size) in parts.items()
    }
    described = json.dumps([base, dataclasses.asdict(task), sizes, seed, task.source(), "v1"], sort_keys=True)
    return Data(name, "labelled", tokenizer, hashlib.sha256(described.encode()).hexdigest(), splits)
