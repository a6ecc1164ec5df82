"""Pictures as rows of values: MNIST's and CIFAR's own files, and folders of picture files.

A picture is its values in raster order, row by row, pixel by pixel, channel by channel, as ids of the byte tokenizer.
Nothing is read before it is asked for: files are mapped, compressed ones and picture files are unpacked once into the
cache. Pictures with classes are labelled data; without, or by the name `images:PATH`, rows to be modelled.
"""

import dataclasses
import hashlib
import json
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.core.errors import DataError
from kinfolk.core.rng import derive
from kinfolk.data.batches.mixing import mix
from kinfolk.data.files.names import split_name
from kinfolk.data.preparing.preparation import Preparation
from kinfolk.data.splits.split import Data, Indices, Split
from kinfolk.data.tokenizers.tokenizer import N_SPECIALS, Tokenizer

PREFIX = "images:"
SETTINGS = ("side", "channels")
# the luma of red, green and blue
GREY = np.array([0.2989, 0.5870, 0.1140])

_WHOLE = 64 << 20
_SAMPLES, _SAMPLE = 64, 1 << 14


@dataclasses.dataclass(frozen=True)
class Records:
    """Pictures of one size in one file: `n` records of `stride` bytes after `offset`, each with its values at `begins`.

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
            raise DataError(f"{self.path}: is cut short: {self.n:,} pictures take {expected:,} bytes, it has {size:,}")

    @property
    def n_values(self) -> int:
        """Values of a picture as it is stored."""
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
        """Return the values of a picture in raster order."""
        found = np.asarray(self._bytes[index, self.begins : self.begins + self.n_values])
        if self.planar:
            found = found.reshape(self.channels, -1).T.reshape(-1)
        if self.grey and self.channels == 3:
            found = np.rint(found.reshape(-1, 3) @ GREY).astype(np.uint8)
        return found

    def column(self, at: int) -> NDArray[np.uint8]:
        """Return one byte of every record: where labels stand."""
        return np.asarray(self._bytes[:, at])


@dataclasses.dataclass(frozen=True)
class Part:
    """Pictures of several files as one list, with the class of each where there is one."""

    records: tuple[Records, ...]
    labels: NDArray[np.int64] | None

    def __post_init__(self) -> None:
        shapes = {(r.height, r.width, 1 if r.grey else r.channels) for r in self.records}
        if len(shapes) > 1:
            raise DataError(f"{self.records[0].path}: pictures of several sizes in one set: {sorted(shapes)}")

    def __len__(self) -> int:
        return sum(r.n for r in self.records)

    @cached_property
    def first(self) -> Indices:
        """The number of the first picture of every file."""
        return np.cumsum([0, *(r.n for r in self.records)], dtype=np.int64)

    def values(self, index: int) -> NDArray[np.uint8]:
        """Return the values of a picture."""
        file = int(np.searchsorted(self.first, index, side="right")) - 1
        return self.records[file].values(index - int(self.first[file]))


@dataclasses.dataclass(frozen=True)
class ImageSet:
    """What a reader found: the training part, a test part if there is one, and the names of classes."""

    train: Part
    test: Part | None
    classes: tuple[str, ...]


class ImageSplit(Split):
    """Some of the pictures of a part. `height`, `width`, `channels` are those of every picture."""

    ends = False

    def __init__(self, name: str, part: Part, chosen: Indices, classes: tuple[str, ...]) -> None:
        self.name, self.part, self.chosen, self.classes = name, part, chosen, classes
        self.kind = "labelled" if classes else "images"
        self.tokenizer = Tokenizer.byte()
        one = part.records[0]
        self.height, self.width, self.channels = one.height, one.width, 1 if one.grey else one.channels
        self.picture = (self.height, self.width, self.channels)

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def n_values(self) -> int:
        """Values of one picture."""
        return self.height * self.width * self.channels

    @property
    def n_tokens(self) -> int:
        """All values of all pictures."""
        return len(self) * self.n_values

    @property
    def n_bytes(self) -> int:
        """A value is a byte, so bits per byte are bits per dimension."""
        return self.n_tokens

    def lengths(self, indices: Indices) -> Indices:
        """Return the lengths of pictures as sequences: all the same."""
        return np.full(len(indices), self.n_values, np.int64)

    def rows(self, indices: Indices) -> list[NDArray[Any]]:
        """Return the values of pictures as ids."""
        found = (self.part.values(int(self.chosen[i])) for i in indices)
        return [values.astype(np.int64) + N_SPECIALS for values in found]

    def examples(self, indices: Indices) -> list[tuple[NDArray[Any], int]]:
        """Return the values of pictures as ids, and their classes."""
        assert self.part.labels is not None
        labels = self.part.labels[self.chosen[indices]]
        return list(zip(self.rows(indices), labels.tolist(), strict=True))


def is_images(name: str | Path) -> bool:
    """Tell whether a name asks for pictures, or a path holds some."""
    from kinfolk.data.files.image_files import is_folder_of_pictures
    from kinfolk.data.files.image_sets import is_image_set

    text, path = str(name), Path(name)
    return text.startswith(PREFIX) or is_image_set(path) or is_folder_of_pictures(path)


def open_images(name: str | Path, cache: Path, choices: Preparation) -> Data:
    """Open pictures: `PATH`, or `images:PATH` without their classes, or `images:side=32,channels=1:PATH`.

    side, channels: what picture files are cut and scaled to; without them all must be of one size. Sets of one size
    take `channels=1`, which makes them grey.
    """
    from kinfolk.data.files.image_files import is_folder_of_pictures, unpack_folder
    from kinfolk.data.files.image_sets import is_image_set, open_image_set

    path, numbers = _asked(str(name))
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    if is_image_set(path):
        found = open_image_set(path, cache)
        if "side" in numbers:
            raise DataError(f"{name}: side is for folders of picture files; these have a size of their own")
        if numbers.get("channels") == 1:
            found = _grey(found)
    elif is_folder_of_pictures(path):
        found = unpack_folder(path, cache, choices, numbers)
    else:
        raise DataError(f"{path}: holds no pictures (IDX, CIFAR's binary files, or picture files as PNG and JPEG)")
    return _data(str(name), found, choices)


def _asked(name: str) -> tuple[Path, dict[str, int]]:
    """Return the path that a name asks for, and its numbers."""
    if not name.startswith(PREFIX):
        return Path(name), {}
    match = re.fullmatch(r"((?:[a-z_]+=[^,:/]*,?)+):(.+)", name.removeprefix(PREFIX))
    if match is None:
        return Path(name.removeprefix(PREFIX)), {}
    numbers = split_name(PREFIX + match[1], SETTINGS)[1]
    if numbers.get("channels", 3) not in (1, 3) or numbers.get("side", 1) < 1:
        raise DataError(f"{name}: channels must be 1 or 3, and side at least 1")
    return Path(match[2]), numbers


def _grey(found: ImageSet) -> ImageSet:
    def change(part: Part) -> Part:
        return dataclasses.replace(part, records=tuple(dataclasses.replace(r, grey=True) for r in part.records))

    return ImageSet(change(found.train), None if found.test is None else change(found.test), found.classes)


def _data(name: str, found: ImageSet, choices: Preparation) -> Data:
    classes = () if name.startswith(PREFIX) else found.classes
    n = len(found.train)
    if n == 0:
        raise DataError(f"{name}: holds no picture")
    lots = mix(derive(choices.seed, "valid"), np.arange(n))
    held = min(n - 1, max(1, round(choices.valid * n))) if choices.valid else 0
    order = np.argsort(lots, kind="stable")
    splits: dict[str, Split] = {
        "train": ImageSplit("train", found.train, np.sort(order[held:]), classes),
        "valid": ImageSplit("valid", found.train, np.sort(order[:held]), classes),
    }
    if found.test is not None:
        splits["test"] = ImageSplit("test", found.test, np.arange(len(found.test)), classes)
    described = [classes, choices.seed, held, _content(found.train), found.test and _content(found.test), "v1"]
    fingerprint = hashlib.sha256(json.dumps(described).encode()).hexdigest()
    return Data(name, "labelled" if classes else "images", Tokenizer.byte(), fingerprint, splits)


def _content(part: Part) -> list[Any]:
    """Describe the content of a part; of long files some of their bytes, evenly spread."""
    labels = "" if part.labels is None else hashlib.sha256(part.labels.tobytes()).hexdigest()
    seen: list[Any] = [labels]
    for r in part.records:
        size, digest = Path(r.path).stat().st_size, hashlib.sha256()
        with Path(r.path).open("rb") as file:
            if size <= _WHOLE:
                digest = hashlib.file_digest(file, "sha256")
            for i in range(_SAMPLES if size > _WHOLE else 0):
                file.seek((size - _SAMPLE) * i // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE))
        seen.append([r.n, r.height, r.width, r.channels, r.planar, r.grey, size, digest.hexdigest()])
    return seen
