"""Parameter names in checkpoints of other libraries, mapped in both directions.

A table says it for modules: `{"encoder.blocks.*.parts.0.out": "encoder.layer.*.attention.output.dense"}`. A star is the
number of a layer, and what a module owns (`weight`, `bias`) goes along. A value that is not a bare name is a `Place`,
which knows how to read our tensor from theirs and how to write theirs from ours; so an export is the inverse of an
import wherever the table is right at all.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from kinfolk.core.errors import CheckpointError

Get = Callable[[str], Tensor]
Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Place:
    """One tensor, as it is. `names` are theirs, without the leaf."""

    names: tuple[str, ...]
    copies: ClassVar[bool] = False

    @classmethod
    def at(cls, *names: str, **more: Any) -> "Place":
        """Return the place of these names."""
        return cls(names, **more)

    def read(self, get: Get, names: tuple[str, ...], shape: Shape) -> Tensor:
        """Return our tensor, of this shape if all is well."""
        return get(names[0])

    def write(self, x: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Return their tensors."""
        return {names[0]: x}


@dataclasses.dataclass(frozen=True)
class Turned(Place):
    """A matrix whose first axis is what comes in (GPT-2's Conv1D); a bias as it is."""

    copies: ClassVar[bool] = True

    def read(self, get: Get, names: tuple[str, ...], shape: Shape) -> Tensor:
        x = get(names[0])
        return x.mT.contiguous() if x.ndim > 1 else x

    def write(self, x: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        return {names[0]: x.mT.contiguous() if x.ndim > 1 else x}


@dataclasses.dataclass(frozen=True)
class Stacked(Place):
    """Several maps of equal height, one under the other: queries, keys and values; the two halves of a gate."""

    copies: ClassVar[bool] = True

    def read(self, get: Get, names: tuple[str, ...], shape: Shape) -> Tensor:
        return torch.cat([get(name) for name in names])

    def write(self, x: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        return {name: part.clone() for name, part in zip(names, x.chunk(len(names)), strict=True)}


@dataclasses.dataclass(frozen=True)
class PlacedRows(Stacked):
    """Several maps of these heights, one under the other: grouped queries, keys and values."""

    heights: Shape = ()

    def write(self, x: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        return {name: part.clone() for name, part in zip(names, x.split(self.heights), strict=True)}


@dataclasses.dataclass(frozen=True)
class Below(Place):
    """A table whose first rows are not used (positions that are counted from behind the padding's)."""

    skip: int = 0
    copies: ClassVar[bool] = True

    def read(self, get: Get, names: tuple[str, ...], shape: Shape) -> Tensor:
        return get(names[0])[self.skip :].clone()

    def write(self, x: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        return {names[0]: torch.cat([x.new_zeros(self.skip, *x.shape[1:]), x])}


@dataclasses.dataclass(frozen=True)
class Spread(Place):
    """One axis of size 1 more, at `axis`."""

    axis: int = 0

    def read(self, get: Get, names: tuple[str, ...], shape: Shape) -> Tensor:
        return get(names[0]).squeeze(self.axis)

    def write(self, x: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        return {names[0]: x.unsqueeze(self.axis)}


@dataclasses.dataclass(frozen=True)
class ByHead(Place):
    """Maps stored as [in, heads, width of a head], one or several under each other (Transformer-XL's children)."""

    n_heads: int = 1
    copies: ClassVar[bool] = True

    def read(self, get: Get, names: tuple[str, ...], shape: Shape) -> Tensor:
        return torch.cat([get(name).flatten(1).mT for name in names])

    def write(self, x: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        parts = (part.mT.unflatten(1, (self.n_heads, -1)).contiguous() for part in x.chunk(len(names)))
        return dict(zip(names, parts, strict=True))


@dataclasses.dataclass(frozen=True)
class HeadRows(Place):
    """Rows of all heads, each stored as [heads, width of a head], or several in one tensor [rows, heads, width]."""

    n_heads: int = 1
    copies: ClassVar[bool] = True

    def read(self, get: Get, names: tuple[str, ...], shape: Shape) -> Tensor:
        return torch.cat([get(name).reshape(-1, shape[-1]) for name in names])

    def write(self, x: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        rows = x.unflatten(1, (self.n_heads, -1))
        # the last name has what the others leave
        single = {name: rows[i].clone() for i, name in enumerate(names[:-1])}
        rest = rows[len(names) - 1 :]
        return single | {names[-1]: (rest[0] if len(rest) == 1 else rest).clone()}


@dataclasses.dataclass(frozen=True)
class InThrees(Place):
    """Maps to queries, keys and values in one, a head's three after the other's (DeBERTa)."""

    n_heads: int = 1
    copies: ClassVar[bool] = True

    def read(self, get: Get, names: tuple[str, ...], shape: Shape) -> Tensor:
        return get(names[0]).unflatten(0, (self.n_heads, 3, -1)).transpose(0, 1).flatten(0, 2)

    def write(self, x: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        return {names[0]: x.unflatten(0, (3, self.n_heads, -1)).transpose(0, 1).flatten(0, 2).contiguous()}


@dataclasses.dataclass(frozen=True)
class Patch(Place):
    """A map of patches stored as a convolution, [out, channels, rows, columns]; ours has channels last."""

    channels: int = 3
    copies: ClassVar[bool] = True

    def read(self, get: Get, names: tuple[str, ...], shape: Shape) -> Tensor:
        return get(names[0]).permute(0, 2, 3, 1).flatten(1)

    def write(self, x: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        side = math.isqrt(x.shape[1] // self.channels)
        return {names[0]: x.unflatten(1, (side, side, self.channels)).permute(0, 3, 1, 2).contiguous()}


@dataclasses.dataclass(frozen=True)
class BelowNothing(Place):
    """Vectors one under the other, the first of which they do not have: zero, as `Nothing`."""

    copies: ClassVar[bool] = True

    def read(self, get: Get, names: tuple[str, ...], shape: Shape) -> Tensor:
        parts = [get(name) for name in names]
        return torch.cat([torch.zeros_like(parts[0]), *parts])

    def write(self, x: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        first, *parts = x.chunk(len(names) + 1)
        if bool(first.any()):
            raise CheckpointError("the part for queries must be zero, because that kind of checkpoint has none")
        return {name: part.clone() for name, part in zip(names, parts, strict=True)}


@dataclasses.dataclass(frozen=True)
class Nothing(Place):
    """They have no such parameter: zero when it is read, and nothing but zero can be written."""

    def read(self, get: Get, names: tuple[str, ...], shape: Shape) -> Tensor:
        return torch.zeros(shape)

    def write(self, x: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        if bool(x.any()):
            raise CheckpointError("must be zero, because that kind of checkpoint has no place for it")
        return {}


Table = Mapping[str, "str | tuple[str, ...] | Place"]


@dataclasses.dataclass(frozen=True)
class PlacedRow:
    """One parameter of ours, the place of its table, and the full names of theirs."""

    ours: str
    place: Place
    theirs: tuple[str, ...]


def rows(table: Table, ours: Iterable[str]) -> list[PlacedRow]:
    """Find the place of every parameter of a model; one without a place is named."""
    patterns = [(re.compile(re.escape(key).replace(r"\*", r"(\d+)")), place_of(value)) for key, value in table.items()]
    places = {name: next((row for pattern in patterns if (row := _row(name, *pattern))), None) for name in ours}
    lost = [name for name, row in places.items() if row is None]
    if lost:
        raise CheckpointError(f"no place in that kind of checkpoint for {', '.join(lost[:8])}")
    return [row for row in places.values() if row is not None]


def place_of(value: "str | tuple[str, ...] | Place") -> Place:
    """Return the place a value of a table means: a name as it is, several names stacked."""
    if isinstance(value, Place):
        return value
    return Place.at(value) if isinstance(value, str) else Stacked(value)


def _row(name: str, pattern: re.Pattern[str], place: Place) -> PlacedRow | None:
    """Match a parameter, or the module that owns it."""
    match, leaf = pattern.fullmatch(name), ""
    if match is None:
        module, _, leaf = name.rpartition(".")
        match = pattern.fullmatch(module)
    if match is None:
        return None
    numbers = match.groups()

    def full(theirs: str) -> str:
        there = iter(numbers)
        filled = re.sub(r"\*", lambda _: next(there), theirs)
        return f"{filled}.{leaf}" if leaf else filled

    return PlacedRow(name, place, tuple(map(full, place.names)))
