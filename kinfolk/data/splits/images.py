"""Images as rows of values: MNIST's and CIFAR's own files, and folders of image files.

An image is its values in raster order, row by row, pixel by pixel, channel by channel, as ids of the byte tokenizer.
Nothing is read before it is asked for: files are mapped, compressed ones and image files are unpacked once into the
cache. Images with classes are labelled data; without, or by the name `images:PATH`, rows to be modelled.
"""

import dataclasses
import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.core.errors import DataError
from kinfolk.core.rng import derive
from kinfolk.data.batches.mixing import mix
from kinfolk.data.files.image_files import is_folder_of_pictures, unpack_folder
from kinfolk.data.files.image_records import ImageSet, RecordFile
from kinfolk.data.files.image_sets import is_image_set, open_image_set
from kinfolk.data.files.names import split_name
from kinfolk.data.preparing.preparation import Preparation
from kinfolk.data.splits.split import Data, Indices, Split, fingerprint
from kinfolk.data.tokenizers.tokenizer import N_SPECIALS, Tokenizer

PREFIX = "images:"
SETTINGS = ("side", "channels")

_WHOLE = 64 << 20
_SAMPLES, _SAMPLE = 64, 1 << 14


class ImageSplit(Split):
    """Some of the images of a part. `height`, `width`, `channels` are those of every image."""

    ends = False

    def __init__(self, name: str, part: RecordFile, chosen: Indices, classes: tuple[str, ...]) -> None:
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
        """Values of one image."""
        return self.height * self.width * self.channels

    @property
    def n_tokens(self) -> int:
        return len(self) * self.n_values

    @property
    def n_bytes(self) -> int:
        """A value is a byte, so bits per byte are bits per dimension."""
        return self.n_tokens

    def lengths(self, indices: Indices) -> Indices:
        """Return the lengths of images as sequences: all the same."""
        return np.full(len(indices), self.n_values, np.int64)

    def rows(self, indices: Indices) -> list[NDArray[Any]]:
        """Return the values of images as ids."""
        images = (self.part.values(int(self.chosen[i])) for i in indices)
        return [values.astype(np.int64) + N_SPECIALS for values in images]

    def examples(self, indices: Indices) -> list[tuple[NDArray[Any], int]]:
        """Return the values of images as ids, and their classes."""
        assert self.part.labels is not None
        labels = self.part.labels[self.chosen[indices]]
        return list(zip(self.rows(indices), labels.tolist(), strict=True))


def is_images(name: str | Path) -> bool:
    """Tell whether a name asks for images, or a path holds some."""
    text, path = str(name), Path(name)
    return text.startswith(PREFIX) or is_image_set(path) or is_folder_of_pictures(path)


def open_images(name: str | Path, cache: Path, choices: Preparation) -> Data:
    """Open images: `PATH`, or `images:PATH` without their classes, or `images:side=32,channels=1:PATH`.

    side, channels: what image files are cut and scaled to; without them all must be of one size. Sets of one size
    take `channels=1`, which makes them grey.
    """
    path, numbers = _asked(str(name))
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    if is_image_set(path):
        images = open_image_set(path, cache)
        if "side" in numbers:
            raise DataError(f"{name}: side is for folders of image files; these have a size of their own")
        if numbers.get("channels") == 1:
            images = _grey(images)
    elif is_folder_of_pictures(path):
        images = unpack_folder(path, cache, choices, numbers)
    else:
        raise DataError(f"{path}: has no images (IDX, CIFAR's binary files, or image files as PNG and JPEG)")
    return _data(str(name), images, choices)


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


def _grey(images: ImageSet) -> ImageSet:
    def change(part: RecordFile) -> RecordFile:
        return dataclasses.replace(part, records=tuple(dataclasses.replace(r, grey=True) for r in part.records))

    return ImageSet(change(images.train), None if images.test is None else change(images.test), images.classes)


def _data(name: str, images: ImageSet, choices: Preparation) -> Data:
    classes = () if name.startswith(PREFIX) else images.classes
    n = len(images.train)
    if n == 0:
        raise DataError(f"{name}: has no image")
    lots = mix(derive(choices.seed, "valid"), np.arange(n))
    held = min(n - 1, max(1, round(choices.valid * n))) if choices.valid else 0
    order = np.argsort(lots, kind="stable")
    splits: dict[str, Split] = {
        "train": ImageSplit("train", images.train, np.sort(order[held:]), classes),
        "valid": ImageSplit("valid", images.train, np.sort(order[:held]), classes),
    }
    if images.test is not None:
        splits["test"] = ImageSplit("test", images.test, np.arange(len(images.test)), classes)
    content = [part and _content(part) for part in (images.train, images.test)]
    described = fingerprint(classes, choices.seed, held, *content, "v1")
    return Data(name, "labelled" if classes else "images", Tokenizer.byte(), described, splits)


def _content(part: RecordFile) -> list[Any]:
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
