"""Ragged sequences in one flat array: what the generators of tasks hand over."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kinfolk.data.batches.mixing import Words, mix
from kinfolk.data.generated.task import HELD_OUT
from kinfolk.data.splits.split import Indices


@dataclasses.dataclass(frozen=True)
class SequenceRows:
    """Sequences of symbols one after another: row i is `flat[starts[i] : starts[i + 1]]`."""

    flat: NDArray[np.uint8]
    starts: Indices

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, i: int) -> NDArray[np.uint8]:
        return self.flat[self.starts[i] : self.starts[i + 1]]

    @property
    def lengths(self) -> Indices:
        """How long each row is."""
        return np.diff(self.starts)

    @classmethod
    def of(cls, rows: Sequence[bytes]) -> "SequenceRows":
        """Return sequences of bytes, a symbol each."""
        starts = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)])
        return cls(np.frombuffer(b"".join(rows), np.uint8), starts)

    @classmethod
    def gather(cls, pieces: Sequence["SequenceRows"], order: Indices) -> "SequenceRows":
        """Return the rows of several pieces as one, row `order[i]` at place i."""
        starts = np.concatenate([[0], np.cumsum(np.concatenate([piece.lengths for piece in pieces]))])
        flat = np.concatenate([piece.flat for piece in pieces])
        lengths = np.diff(starts)[order]
        begins = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        # where each symbol comes from: its place in its row, counted from the row's old start
        source = np.arange(begins[-1]) + np.repeat(starts[order] - begins[:-1], lengths)
        return cls(flat[source], begins)


@dataclasses.dataclass(frozen=True)
class Made:
    """Questions of one sequence or two, and the number of the class that each belongs to."""

    sides: tuple[SequenceRows, ...]
    labels: Indices


def held_out(identity: Words) -> NDArray[np.bool_]:
    """Tell by the hash of a question whether it belongs to valid."""
    return mix(3, identity) % np.uint64(HELD_OUT) == 0


def pictures(images: NDArray[np.uint8]) -> SequenceRows:
    """Return images as rows of pixels."""
    n, size = len(images), images[0].size if len(images) else 0
    return SequenceRows(images.reshape(-1), np.arange(n + 1) * size)
