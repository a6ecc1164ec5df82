"""Folders of image files, one sub-folder per class, unpacked once into one file of bytes.

`DIR/cat/1.png`, `DIR/dog/2.jpg`: two classes. `DIR/1.png`: images without classes. `DIR/train/cat/…` beside
`DIR/test/cat/…`: two parts. Pillow decodes; one image is in memory at a time.
"""

import hashlib
import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.core import durable
from kinfolk.core.durable import write_json
from kinfolk.core.errors import DataError, MissingExtraError
from kinfolk.core.lock import locked
from kinfolk.data.files.image_records import ImageSet, RecordFile, Records
from kinfolk.data.files.sources import files_below
from kinfolk.data.preparing.preparation import Preparation

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
PARTS = {"train": "train", "training": "train", "test": "test", "val": "test", "valid": "test", "validation": "test"}
MANIFEST = "images.json"

_LOOKED_AT = 200
# as large as any photograph; beyond it a small file may unpack to fill the memory
_MOST_PIXELS = 1 << 27
_MODES = {1: "L", 3: "RGB"}


def is_folder_of_pictures(path: Path) -> bool:
    """Look at the first files of a folder and of its sub-folders: the first that is there decides."""
    if not path.is_dir():
        return False
    level = [path]
    for _ in range(3):
        below = []
        for folder in level:
            entries = sorted(e for e in folder.iterdir() if not e.name.startswith("."))[:_LOOKED_AT]
            if files := [entry for entry in entries if entry.is_file()]:
                return files[0].suffix.lower() in SUFFIXES
            below += [entry for entry in entries if entry.is_dir()]
        level = below[:_LOOKED_AT]
    return False


def unpack_folder(path: Path, cache: Path, choices: Preparation, numbers: dict[str, int]) -> ImageSet:
    """Decode every image of a folder into the cache, unless that was done before, and open what is there."""
    files, classes = _find(path)
    seen = [[str(f), f.stat().st_size, f.stat().st_mtime_ns, part, label] for f, part, label in files]
    key = hashlib.sha256(json.dumps([seen, numbers, choices.on_bad, "v1"]).encode()).hexdigest()[:16]
    folder = cache / f"{path.resolve().name}-{key}"
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        if not (folder / MANIFEST).is_file():
            _unpack(files, folder, choices, numbers)
    facts = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    return ImageSet.of({name: _part(folder, name, facts, bool(classes)) for name in facts["n"]}, classes)


File = tuple[Path, str, int]


def _find(path: Path) -> tuple[list[File], tuple[str, ...]]:
    """Return every image file with its part and class, and the names of classes."""
    folders = [entry for entry in _visible(path) if entry.is_dir()]
    parts: dict[str, Path] = {PARTS[f.name.lower()]: f for f in folders if f.name.lower() in PARTS}
    if "train" not in parts or len(parts) != len(folders):
        parts = {"train": path}
    names = {f.name for root in parts.values() for f in _visible(root) if f.is_dir()}
    classes = tuple(sorted(names))
    images: list[File] = []
    for part, root in parts.items():
        for file in files_below(root):
            inside = file.relative_to(root).parts
            if classes and len(inside) == 1:
                raise DataError(f"{file}: is beside folders of classes and belongs to none of them")
            images.append((file, part, classes.index(inside[0]) if classes else -1))
    if not images:
        raise DataError(f"{path}: has no image")
    return images, classes


def _visible(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))


def _unpack(files: list[File], folder: Path, choices: Preparation, numbers: dict[str, int]) -> None:
    """Write the values of all images of a part one after another, and last of all what there is."""
    square = (numbers["side"],) * 2 if "side" in numbers else None
    shape: tuple[int, ...] | None = None
    first: Path | None = None
    counts: dict[str, int] = {}
    bad: list[str] = []
    for part in sorted({part for _, part, _ in files}):
        labels = []
        with (folder / f"{part}.bin").open("wb") as out:
            for file, _, label in (f for f in files if f[1] == part):
                try:
                    values = decode(file, square, numbers.get("channels", shape[2] if shape else None))
                    if shape is not None and values.shape != shape:
                        raise DataError(
                            f"{file}: is {_size(values.shape)}, but {first} is {_size(shape)}; images of several "
                            "sizes need one to be scaled to: images:side=32:PATH"
                        )
                except DataError as error:
                    if choices.on_bad == "stop":
                        raise
                    bad.append(str(error))
                    continue
                shape, first = values.shape, first or file
                out.write(values.tobytes())
                labels.append(label)
            out.flush()
            os.fsync(out.fileno())
        np.array(labels, "<i8").tofile(folder / f"{part}.labels")
        counts[part] = len(labels)
    if shape is None:
        raise DataError(f"{files[0][0].parent}: no image can be read; the first: {bad[0]}")
    if bad:
        warnings.warn(f"{len(bad):,} images were skipped, the first: {bad[0]}", stacklevel=4)
    write_json(folder / MANIFEST, {"n": counts, "shape": shape, "skipped": len(bad)})


def _part(folder: Path, name: str, facts: dict[str, Any], labelled: bool) -> RecordFile:
    height, width, channels = facts["shape"]
    records = Records(str(folder / f"{name}.bin"), facts["n"][name], height, width, channels)
    labels = np.fromfile(folder / f"{name}.labels", "<i8").astype(np.int64)
    return RecordFile((records,), labels if labelled else None)


def decode(file: Path, size: tuple[int, int] | None = None, channels: int | None = None) -> NDArray[np.uint8]:
    """Return an image as [height, width, channels].

    size: height and width that its middle is scaled to, as much of it as has those proportions.
    channels: 1 is grey, 3 is colour; None takes what the image has.
    """
    image_module = _pillow(f"{file}: reading it")
    if file.suffix.lower() not in SUFFIXES:
        raise DataError(f"{file}: not an image; supported are {', '.join(SUFFIXES)}")
    try:
        with image_module.open(file) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise DataError(f"{file}: {image.width} x {image.height} pixels are too many")
            wanted = channels or (1 if image.mode in ("1", "L", "I", "I;16", "F") else 3)
            plain = image.convert(_MODES[wanted])
    # Pillow raises many kinds of error on damaged files
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise DataError(f"{file}: cannot be read as an image: {error}") from None
    if size is not None and size != (plain.height, plain.width):
        height, width = size
        # the largest part in the middle with the proportions asked for; cut first, as a filter looks beyond its box
        scale = min(plain.height / height, plain.width / width)
        high, wide = max(1, round(height * scale)), max(1, round(width * scale))
        left, top = (plain.width - wide) // 2, (plain.height - high) // 2
        middle = plain.crop((left, top, left + wide, top + high))
        plain = middle.resize((width, height), image_module.Resampling.LANCZOS, reducing_gap=3.0)
    return np.asarray(plain, np.uint8).reshape(plain.height, plain.width, wanted)


def write_png(path: Path, values: NDArray[np.uint8]) -> None:
    """Write an image [height, width, channels] as PNG."""
    image = _pillow("writing images").fromarray(values[..., 0] if values.shape[2] == 1 else values)
    with durable.appearing(path) as aside:
        image.save(aside, format="PNG")


def _pillow(why: str) -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("data", why) from None
    return Image


def _size(shape: tuple[int, ...]) -> str:
    height, width, channels = shape
    return f"{width} x {height} pixels of {channels} channel{'s' if channels > 1 else ''}"
