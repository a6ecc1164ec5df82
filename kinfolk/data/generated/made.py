"""Generated tasks that decide themselves how to draw a question of a split, with a cache of recent examples.

An example is a pure function of (seed, split, its number). Making one may take milliseconds, and a batch asks for
lengths before it asks for examples, a validation for the same examples again and again: the latest are kept.
"""

from typing import Any, ClassVar

import numpy as np

from kinfolk.data.generated.rows import Made
from kinfolk.data.generated.task import GeneratedTask, TaskSplit
from kinfolk.data.splits.split import Indices
from kinfolk.data.tokenizers.tokenizer import N_SPECIALS, Tokenizer

_MOST_KEPT = 1 << 25
"""Symbols, and therefore bytes, that a split keeps before it forgets them all."""


class MadeSplit(TaskSplit):
    """One part of a task. Images have `height`, `width` and `channels`, and no end; two texts are read apart."""

    purpose = "made"
    counted = 256
    longest: int = 0

    def __init__(self, name: str, task: Any, tokenizer: Tokenizer, n: int, seed: int) -> None:
        super().__init__(name, task, tokenizer, n, seed)
        self.ends, self.longest, self.apart, self.picture = task.picture is None, task.longest, task.apart, task.picture
        if task.picture is not None:
            self.height, self.width, self.channels = task.picture
        self._kept: dict[int, tuple[Any, ...]] = {}
        self._n_kept = 0

    def lengths(self, indices: Indices) -> Any:
        """Return the lengths of the sequences, or those of the first and those of the second."""
        if self.task.picture is not None:
            return np.full(len(indices), self.height * self.width * self.channels, np.int64)
        lengths = [tuple(map(len, sides)) for *sides, _ in self._made(indices)]
        sides = [np.array(side, np.int64) for side in zip(*lengths, strict=True)]
        return sides[0] if len(sides) == 1 else tuple(sides)

    def examples(self, indices: Indices) -> list[tuple[Any, ...]]:
        """Return the token ids of one sequence or two, and the class."""
        return [
            (*(side.astype(np.int64) + N_SPECIALS for side in sides), label) for *sides, label in self._made(indices)
        ]

    def __getstate__(self) -> dict[str, Any]:
        # another process makes its own
        return self.__dict__ | {"_kept": {}, "_n_kept": 0}

    def _made(self, indices: Indices) -> list[tuple[Any, ...]]:
        kept = self._kept
        examples = {i: kept[i] for i in indices.tolist() if i in kept}
        missing = np.array(sorted(set(indices.tolist()) - examples.keys()), np.int64)
        if len(missing):
            drawing = self.task.draw(self.seed, missing, valid=self.name != "train")
            # copies: a view would keep the whole array that it is a part of
            new = {
                number: (*(side[i].copy() for side in drawing.sides), int(drawing.labels[i]))
                for i, number in enumerate(missing.tolist())
            }
            examples |= new
            self._keep(new)
        return [examples[i] for i in indices.tolist()]

    def _keep(self, new: dict[int, tuple[Any, ...]]) -> None:
        size = sum(len(side) for *sides, _ in new.values() for side in sides)
        if self._n_kept + size > _MOST_KEPT:
            # a new one, and nothing is ever taken out: another thread may be reading the old one
            self._kept, self._n_kept = {}, 0
        if size <= _MOST_KEPT:
            self._kept.update(new)
            self._n_kept += size


class MadeTask(GeneratedTask):
    """A task that decides by itself how to draw a question of a split.

    apart: of two sequences, each is encoded for itself.
    """

    split = MadeSplit
    apart: ClassVar[bool] = False

    @property
    def picture(self) -> tuple[int, int, int] | None:
        """Height, width and channels, where a question is an image."""
        return None

    @property
    def longest(self) -> int:
        """Symbols of the longest sequence there may be."""
        raise NotImplementedError

    def source(self) -> tuple[str, ...]:
        return ("",)

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
