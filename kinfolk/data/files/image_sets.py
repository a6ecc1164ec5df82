"""Sets of images in files of their own: IDX, as MNIST has it, and the binary files of CIFAR-10 and CIFAR-100.

Each file is checked before it is used: its first bytes, its size, and that every label is a class.
"""

import gzip
import hashlib
import os
import re
import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kinfolk.core import durable
from kinfolk.core.errors import DataError
from kinfolk.data.files.image_records import ImageSet, RecordFile, Records
from kinfolk.data.files.sources import BROKEN_GZIP

_IDX = re.compile(r"(.*?)[-_.]?images[-_.]idx3[-_.]ubyte(\.gz)?$", re.IGNORECASE)
_TEST = re.compile(r"t10k|test", re.IGNORECASE)
_UBYTE = 8
_CIFAR = {"train": ("data_batch_*.bin", "train.bin"), "test": ("test_batch.bin", "test.bin")}
_SIDE, _COLOURS = 32, 3
_NAMES = ("batches.meta.txt", "fine_label_names.txt")


def is_image_set(path: Path) -> bool:
    """Tell by the names of files whether they are a set that is read here."""
    return bool(_idx_files(path)) or any(_cifar_files(path).values())


def open_image_set(path: Path, cache: Path) -> ImageSet:
    """Read a file, or a folder of them."""
    return _open_idx(_idx_files(path), cache) if _idx_files(path) else _open_cifar(path)


def _idx_files(path: Path) -> list[Path]:
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [file for file in files if _IDX.match(file.name) and file.is_file()]


def _open_idx(files: list[Path], cache: Path) -> ImageSet:
    images: dict[str, Path] = {}
    for file in files:
        # the same set may lie there compressed and not; either will do
        images.setdefault("test" if _TEST.search(file.name) else "train", file)
    parts = {name: _idx_part(file, cache) for name, file in images.items()}
    labels = [part.labels for part in parts.values()]
    n_classes = max((int(x.max()) + 1 for x in labels if x is not None and len(x)), default=0)
    if any(x is None for x in labels):
        parts, n_classes = {name: RecordFile(part.records, None) for name, part in parts.items()}, 0
    return ImageSet.of(parts, tuple(map(str, range(n_classes))))


def _idx_part(file: Path, cache: Path) -> RecordFile:
    pixels = _unpacked(file, cache)
    n, height, width = _idx_sizes(pixels, file, 3)
    records = Records(str(pixels), n, height, width, 1, offset=16)
    twin = re.sub(r"images([-_.])idx3", r"labels\1idx1", file.name)
    candidates = [file.with_name(name) for name in (twin, twin.removesuffix(".gz"), f"{twin}.gz")]
    labels = next((path for path in candidates if path.is_file()), None)
    return RecordFile((records,), None if labels is None else _idx_labels(labels, cache, file, n))


def _idx_labels(file: Path, cache: Path, images: Path, n: int) -> NDArray[np.int64]:
    plain = _unpacked(file, cache)
    (count,) = _idx_sizes(plain, file, 1)
    if count != n:
        raise DataError(f"{file}: {count:,} labels for the {n:,} images of {images.name}")
    labels = np.fromfile(plain, np.uint8, offset=8)[:n]
    if len(labels) < n:
        raise DataError(f"{file}: is cut short: {n:,} labels are promised, {len(labels):,} are there")
    return labels.astype(np.int64)


def _idx_sizes(plain: Path, file: Path, axes: int) -> list[int]:
    """Return the sizes that the head of an IDX file gives: two zeros, the type, the number of axes, each size."""
    with plain.open("rb") as opened:
        head = opened.read(4 + 4 * axes)
    if len(head) < 4 + 4 * axes or head[:2] != b"\0\0":
        raise DataError(f"{file}: not an IDX file: it begins with {head[:4].hex(' ') or 'nothing'}")
    if head[2] != _UBYTE or head[3] != axes:
        raise DataError(
            f"{file}: IDX type {head[2]} with {head[3]} axes; read here are bytes (type 8) with {axes} axes"
        )
    return [int(x) for x in np.frombuffer(head[4:], ">u4")]


def _unpacked(file: Path, cache: Path) -> Path:
    """Return a file that can be mapped: itself, or what it holds, unpacked once into the cache."""
    if file.suffix != ".gz":
        return file
    stat = file.stat()
    key = hashlib.sha256(f"{os.path.abspath(file)} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:16]  # noqa: PTH100
    plain = cache / f"{file.stem}-{key}.bin"
    if not plain.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        try:
            with durable.appearing(plain, shared=True) as aside, gzip.open(file) as packed, aside.open("wb") as out:
                shutil.copyfileobj(packed, out, 1 << 20)
        except BROKEN_GZIP as error:
            raise DataError(f"{file}: broken gzip: {error}") from None
    return plain


def _cifar_files(path: Path) -> dict[str, list[Path]]:
    if path.is_dir():
        return {part: sorted(f for glob in globs for f in path.glob(glob)) for part, globs in _CIFAR.items()}
    named = path.is_file() and any(path.match(glob) for globs in _CIFAR.values() for glob in globs)
    return {"train": [path] if named else [], "test": []}


def _open_cifar(path: Path) -> ImageSet:
    files, folder = _cifar_files(path), path if path.is_dir() else path.parent
    n_labels = _labels_of_record([*files["train"], *files["test"]])
    names = next((folder / name for name in _NAMES if (folder / name).is_file()), None)
    usual = map(str, range(10 if n_labels == 1 else 100))
    classes = tuple(names.read_text(encoding="utf-8").split()) if names is not None else tuple(usual)
    return ImageSet.of({part: _cifar_part(found, n_labels, classes) for part, found in files.items() if found}, classes)


def _labels_of_record(files: list[Path]) -> int:
    """Return how many labels precede each image: one in CIFAR-10, two in CIFAR-100; by the sizes of files."""
    values = _SIDE * _SIDE * _COLOURS
    for n_labels in (1, 2):
        if all(file.stat().st_size % (n_labels + values) == 0 for file in files):
            return n_labels
    sizes = ", ".join(f"{file.name} {file.stat().st_size:,}" for file in files)
    raise DataError(f"{files[0].parent}: no file of CIFAR: records have {1 + values} or {2 + values} bytes ({sizes})")


def _cifar_part(files: list[Path], n_labels: int, classes: tuple[str, ...]) -> RecordFile:
    stride = n_labels + _SIDE * _SIDE * _COLOURS
    records, labels = [], []
    for file in files:
        n = file.stat().st_size // stride
        one = Records(str(file), n, _SIDE, _SIDE, _COLOURS, stride=stride, begins=n_labels, planar=True)
        # the last byte before the values is the fine label
        fine = one.column(n_labels - 1).astype(np.int64)
        if n and fine.max() >= len(classes):
            at = int(np.argmax(fine >= len(classes)))
            raise DataError(f"{file}: image {at} has label {fine[at]}, but there are {len(classes)} classes")
        records.append(one)
        labels.append(fine)
    return RecordFile(tuple(records), np.concatenate(labels))
