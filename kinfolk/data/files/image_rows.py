"""Rows of image files: those of a folder, one file, or those that a table names."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kinfolk.core.errors import DataError
from kinfolk.data.files.image_files import SUFFIXES, decode
from kinfolk.data.files.reader import FileRow
from kinfolk.data.files.readers import read_rows
from kinfolk.data.files.sources import files_below
from kinfolk.data.tokenizers.tokenizer import N_SPECIALS

FILE = "file"
Size = tuple[int, int, int]
"""Height, width and channels."""


def read_pictures(path: str, form: str = "", column: str = FILE) -> Iterator[FileRow | DataError]:
    """Yield a row with the name of a `file` for every image: of a folder, itself, or of a table's column."""
    place = Path(path)
    if place.is_dir():
        n = 0
        for n, file in enumerate(files_below(place), 1):
            yield FileRow(path, n, {FILE: str(file)})
        if not n:
            raise DataError(f"{path}: has no image")
    elif place.suffix.lower() in SUFFIXES:
        yield FileRow(path, 1, {FILE: path})
    else:
        for row in read_rows(path, form):
            if isinstance(row, FileRow) and column not in row.values and "text" in row.values:
                row.values[column] = row.values["text"]  # a list of names, one a line
            yield row


def pixels_of(row: FileRow, column: str, size: Size) -> NDArray[np.uint8]:
    """Return the values of the image that a row names, cut and scaled to a size; or refuse the row."""
    name = Path(row.text(column).strip())
    file = name if name.is_absolute() or name.exists() else Path(row.path).parent / name
    if not file.is_file():
        raise row.refuse(f"{name}: no such file")
    return decode(file, size[:2], size[2]).reshape(-1)


def ids(pictures: list[NDArray[np.uint8]]) -> NDArray[np.int64]:
    """Return the values of images as ids of the byte tokenizer: [images, values]."""
    return np.stack(pictures).astype(np.int64) + N_SPECIALS
