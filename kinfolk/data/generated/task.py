"""Generated tasks: examples made on the fly, opened by a name with numbers (`copy:length=16,symbols=20`).

An example is a pure function of (seed, split, its number), so there is nothing to store and no end. Which split a
question may appear in is decided by a hash of the question itself, so train and valid are disjoint by construction.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from kinfolk.core.errors import DataError
from kinfolk.core.rng import derive
from kinfolk.data.files.names import split_name
from kinfolk.data.splits.split import Data, Indices, Split, fingerprint
from kinfolk.data.tokenizers.tokenizer import Tokenizer

HELD_OUT = 10
"""One question in this many belongs to valid."""
MOST_TRIES = 1000
SIZES = MappingProxyType({"examples": 100_000, "valid": 1_000})


class TaskSplit(Split):
    """One part of a generated task.

    purpose: what its seed is derived for. counted: `n_bytes` is exact for this number of examples, and the rest is in
    proportion.
    """

    kind = "labelled"
    purpose: ClassVar[str]
    counted: ClassVar[int] = 1 << 16

    def __init__(self, name: str, task: Any, tokenizer: Tokenizer, n: int, seed: int) -> None:
        self.name, self.task, self.tokenizer, self.n = name, task, tokenizer, n
        self.classes = task.classes
        self.seed = derive(seed, self.purpose, name)

    def __len__(self) -> int:
        return self.n

    def scored(self, indices: Indices) -> Any:
        """Return the lengths of the sequences that count: all of them, or the targets of pairs."""
        return self.lengths(indices)

    @cached_property
    def n_bytes(self) -> int:
        """Bytes of the sequences: each symbol is one."""
        counted = min(self.n, self.counted)
        return int(np.sum(self.scored(np.arange(counted)))) * self.n // counted

    @property
    def n_tokens(self) -> int:
        """Tokens of the sequences, each example with its end if it has one."""
        return self.n_bytes + self.n * self.ends


class GeneratedTask:
    """Base of generated tasks: frozen dataclasses whose fields are the numbers that may be set in the name.

    sizes: the usual numbers of examples. objective: the kind of task that learns from it, where its labels do not tell.
    """

    split: ClassVar[type[TaskSplit]]
    sizes: ClassVar[Mapping[str, int]] = SIZES
    objective: ClassVar[str] = ""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the answers."""
        return ()

    def tokenizer(self) -> Tokenizer:
        """Return what turns symbols into ids: symbol s is the s-th after the specials."""
        raise NotImplementedError

    def check(self) -> None:
        """Refuse numbers that make no task."""

    def more(self) -> "dict[str, GeneratedTask]":
        """Return further splits by name."""
        return {}

    def source(self) -> tuple[str, ...]:
        """Return a hash of what examples are drawn from, where that is not in the numbers."""
        return ()

    def numbered(self, numbers: Mapping[str, int]) -> Self:
        """Return the task with other numbers."""
        return dataclasses.replace(self, **numbers)  # type: ignore[type-var]

    def open(self, name: str, seed: int) -> Data:
        """Return the data of this task, its numbers set as the name says."""
        fields = {field.name for field in dataclasses.fields(self)} - {"task"}  # type: ignore[arg-type]
        base, numbers = split_name(name, fields | SIZES.keys())
        sizes = {key: numbers.pop(key, self.sizes[key]) for key in SIZES}
        task = self.numbered(numbers)
        task.check()
        for key, size in sizes.items():
            within(key, size, 1, 1 << 60)
        tokenizer = task.tokenizer()
        parts = {"train": (task, sizes["examples"]), "valid": (task, sizes["valid"])}
        parts |= {part: (other, sizes["valid"]) for part, other in task.more().items()}
        splits: dict[str, Split] = {
            part: self.split(part, other, tokenizer, size, seed) for part, (other, size) in parts.items()
        }
        plain = dataclasses.asdict(task)  # type: ignore[call-overload]
        described = fingerprint(base, plain, sizes, seed, *task.source(), "v1")
        return Data(name, self.split.kind, tokenizer, described, splits, task=self.objective)


TASKS: dict[str, GeneratedTask] = {}
"""Tasks by name, of the modules that have been imported."""

C = TypeVar("C", bound=type[GeneratedTask])


def task(name: str) -> Callable[[C], C]:
    """Register a class of tasks, with its usual numbers, under a name."""

    def register(cls: C) -> C:
        TASKS[name] = cls()
        return cls

    return register


def within(what: str, value: int, low: int, high: int) -> None:
    """Refuse a number that is out of bounds."""
    if not low <= value <= high:
        raise DataError(f"{what} must be from {low} to {high}, not {value}")
