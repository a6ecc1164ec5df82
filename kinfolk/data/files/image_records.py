"""Images of one size as records of a memory-mapped file, several files as one set."""

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kinfolk.core.errors import DataError

# the luma of red, green and blue
GREY = np.array([0.2989, 0.5870, 0.1140])


@dataclasses.dataclass(frozen=True)
class Records:
    """Images of one size in one file: `n` records of `stride` bytes after `offset`, each with its values at `begins`.

    planar: a record holds one channel after the other, as CIFAR's do, and not pixel after pixel.
    grey: channels are put together when read.
    """

    path: str
    n: int
    height: int
    width: int
    channels: int
    offset: int = 0
    stride: int = 0
    begins: int = 0
    planar: bool = False
    grey: bool = False

    def __post_init__(self) -> None:
        size = Path(self.path).stat().st_size
        expected = self.offset + self.n * self.record
        if size < expected:
            raise DataError(f"{self.path}: is cut short: {self.n:,} images take {expected:,} bytes, it has {size:,}")

    @property
    def n_values(self) -> int:
        """Values of an image as it is stored."""
        return self.height * self.width * self.channels

    @property
    def record(self) -> int:
        """Bytes of a record."""
        return self.stride or self.n_values

    @cached_property
    def _bytes(self) -> NDArray[np.uint8]:
        shape = (self.n, self.record)
        return np.memmap(self.path, np.uint8, "r", self.offset, shape) if self.n else np.zeros(shape, np.uint8)

    def __getstate__(self) -> dict[str, Any]:
        # another process maps the file itself
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def values(self, index: int) -> NDArray[np.uint8]:
        """Return the values of an image in raster order."""
        pixels = np.asarray(self._bytes[index, self.begins : self.begins + self.n_values])
        if self.planar:
            pixels = pixels.reshape(self.channels, -1).T.reshape(-1)
        if self.grey and self.channels == 3:
            pixels = np.rint(pixels.reshape(-1, 3) @ GREY).astype(np.uint8)
        return pixels

    def column(self, at: int) -> NDArray[np.uint8]:
        """Return one byte of every record: where the labels are."""
        return np.asarray(self._bytes[:, at])


@dataclasses.dataclass(frozen=True)
class RecordFile:
    """Images of several files as one list, with the class of each where there is one."""

    records: tuple[Records, ...]
    labels: NDArray[np.int64] | None

    def __post_init__(self) -> None:
        shapes = {(r.height, r.width, 1 if r.grey else r.channels) for r in self.records}
        if len(shapes) > 1:
            raise DataError(f"{self.records[0].path}: images of several sizes in one set: {sorted(shapes)}")

    def __len__(self) -> int:
        return sum(r.n for r in self.records)

    @cached_property
    def first(self) -> NDArray[np.int64]:
        """The number of the first image of every file."""
        return np.cumsum([0, *(r.n for r in self.records)], dtype=np.int64)

    def values(self, index: int) -> NDArray[np.uint8]:
        """Return the values of an image."""
        file = int(np.searchsorted(self.first, index, side="right")) - 1
        return self.records[file].values(index - int(self.first[file]))


@dataclasses.dataclass(frozen=True)
class ImageSet:
    """What a reader found: the training part, a test part if there is one, and the names of classes."""

    train: RecordFile
    test: RecordFile | None
    classes: tuple[str, ...]

    @classmethod
    def of(cls, parts: Mapping[str, RecordFile], classes: tuple[str, ...]) -> Self:
        """Return the set of parts by name; a test part alone is a set like any other."""
        test = parts.get("test")
        train = parts.get("train") or test or parts["train"]
        return cls(train, None if test is train else test, classes)
