"""Multi-task data: batches of several labelled files in turn, as often as each is large."""

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from kinfolk.core.errors import DataError
from kinfolk.core.rng import derive
from kinfolk.data.batches.order import BatchOrder, BatchRows
from kinfolk.data.splits.split import Data, Indices, Split

PREFIX, BETWEEN = "several:", " ; "


def name_of(names: Sequence[str]) -> str:
    """Return the name of several data together."""
    return PREFIX + BETWEEN.join(names)


def names_in(name: str) -> list[str]:
    """Return the names that `name_of` put together."""
    names = name.removeprefix(PREFIX).split(BETWEEN)
    if len(names) < 2:
        raise DataError(f"{name}: expected two names or more with {BETWEEN!r} between them")
    return names


def joined(name: str, parts: Sequence[Data]) -> Data:
    """Put data together: all of them to learn from, and the first one's own part to validate on."""
    first = parts[0]
    for other in parts:
        if other.kind != "labelled":
            raise DataError(f"{other.name}: is {other.kind}, and several tasks are learnt from labels")
        if not other.tokenizer.agrees(first.tokenizer):
            raise DataError(f"{other.name}: was prepared with another tokenizer than {first.name}")
    splits: dict[str, Split] = {"train": SeveralSplit([data.split("train") for data in parts])}
    splits["valid"] = first.split("valid")
    digest = hashlib.sha256(" ".join(["several v1", *(data.fingerprint for data in parts)]).encode())
    return Data(name, "labelled", first.tokenizer, digest.hexdigest(), splits)


class SeveralSplit(Split):
    """Parts of several data. Everything but its batches and its size is that of the first part."""

    kind = "several"

    def __init__(self, parts: Sequence[Split]) -> None:
        self.parts = tuple(parts)
        first = parts[0]
        self.name, self.tokenizer, self.asks, self.classes = first.name, first.tokenizer, first.asks, first.classes
        self.apart, self.ends, self.from_file, self.row = first.apart, first.ends, first.from_file, first.row
        self.picture, self.sentences = first.picture, first.sentences

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence of the first part, if known."""
        return self.parts[0].longest

    def lengths(self, indices: Indices) -> Any:
        """Return the lengths of texts of the first part; rows of the others have lengths of their own."""
        first = self.parts[0]
        return first.lengths(indices[indices < len(first)])

    def examples(self, indices: Indices) -> list[tuple[Any, ...]]:
        """Return examples of the first part."""
        return self.parts[0].examples(indices)

    def described(self) -> dict[str, Any]:
        """Return how the first part is read."""
        return self.parts[0].described()

    def words_cut(self, length: int) -> int:
        """Count the tagged words of the first part that are cut off."""
        return self.parts[0].words_cut(length)

    @property
    def n_tokens(self) -> int:
        return sum(part.n_tokens for part in self.parts)

    @property
    def n_bytes(self) -> int:
        return sum(part.n_bytes for part in self.parts)


@dataclasses.dataclass(frozen=True)
class Turn:
    """Rows of one part."""

    part: int
    rows: BatchRows

    @property
    def number(self) -> Indices:
        """The number of each row in the run."""
        return self.rows.number


class Turns:
    """In every epoch each part has as many turns as it has batches, in an order drawn from the seed."""

    def __init__(self, orders: Sequence[BatchOrder], seed: int) -> None:
        self.orders, self.seed = orders, seed
        self.steps_per_epoch = sum(order.steps_per_epoch for order in orders)
        # functions of the numbers alone, so that nothing is remembered between steps
        self._epoch = functools.lru_cache(maxsize=2)(self._drawn)

    def at(self, step: int) -> Turn:
        """Return the rows of a batch, and whose they are."""
        epoch, slot = divmod(step, self.steps_per_epoch)
        turns = self._epoch(epoch)
        part = int(turns[slot])
        before = int((turns[:slot] == part).sum())
        return Turn(part, self.orders[part].at(epoch * self.orders[part].steps_per_epoch + before))

    def _drawn(self, epoch: int) -> Indices:
        turns = np.repeat(np.arange(len(self.orders)), [order.steps_per_epoch for order in self.orders])
        drawn: Indices = np.random.default_rng(derive(self.seed, "turns", epoch)).permutation(turns)
        return drawn
