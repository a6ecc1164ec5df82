"""Batch rows of decoding states: selection (beam search) and joining (continuous batching), for every kind of state."""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.core.device import send
from kinfolk.core.errors import ShapeError


class Axes(NamedTuple):
    """Layout of a cached tensor: batch axis, capacity axis (if any), fill value."""

    rows: int = 0
    room: int | None = None
    empty: float = 0.0


class StateRows:
    """Base of decoding states: it names the tensors with batch rows, and selects and joins them."""

    held: ClassVar[Mapping[str, Axes]] = {}
    rewinds: ClassVar[bool] = False
    """Whether reading on from an earlier position drops what was read behind it."""

    def select(self, rows_B: Tensor) -> None:
        """Make example i a copy of example `rows[i]`."""
        for name, axes in self.held.items():
            setattr(self, name, chosen(getattr(self, name), rows_B, axes.rows))

    def join(self, other: Self) -> None:
        """Append the examples of another state of the same layer, each as far as it has come."""
        for name, axes in self.held.items():
            setattr(self, name, appended(getattr(self, name), getattr(other, name), axes))


class SeveralStates(StateRows):
    """Decoding states of several parts as one; a part without a state is left out."""

    @property
    def inner(self) -> list[Any]:
        """The states, None for a part without."""
        raise NotImplementedError

    @property
    def kept(self) -> list[Any]:
        """The states that there are."""
        return [state for state in self.inner if state is not None]

    def select(self, rows_B: Tensor) -> None:
        for state in self.kept:
            state.select(rows_B)

    def join(self, other: Self) -> None:
        for state, another in zip(self.kept, other.kept, strict=True):
            state.join(another)


def chosen(value: Any, rows_B: Tensor, axis: int) -> Any:
    """Return some rows of a tensor, of several, or of nothing."""
    if isinstance(value, tuple):
        return tuple(chosen(one, rows_B, axis) for one in value)
    return None if value is None else value.index_select(axis, send(rows_B, value.device))


def appended(value: Any, other: Any, axes: Axes) -> Any:
    """Return tensors with the rows of others behind their own; the one with less room is filled up."""
    if isinstance(value, tuple) and len(value) == len(other):
        return tuple(appended(a, b, axes) for a, b in zip(value, other, strict=True))
    if value is None and other is None:
        return None
    if not isinstance(value, Tensor) or not isinstance(other, Tensor):
        raise ShapeError("rows that have read something cannot join rows that have not")
    if axes.room is not None:
        size = max(value.shape[axes.room], other.shape[axes.room])
        value, other = (filled(x, axes.room, size, axes.empty) for x in (value, other))
    return torch.cat([value, other], axes.rows)


def filled(x: Tensor, axis: int, size: int, empty: float = 0.0) -> Tensor:
    """Fill an axis up at its end."""
    missing = size - x.shape[axis]
    return x if missing == 0 else F.pad(x, (0, 0) * (x.ndim - 1 - axis) + (0, missing), value=empty)
