"""Training and validation data in two files, read in the same way and with the same tokenizer."""

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path

from kinfolk.core.errors import DataError, suggest
from kinfolk.data.files.label_kinds import label_kind
from kinfolk.data.files.reader import Document, FileSpan
from kinfolk.data.files.readers import find_sources, read
from kinfolk.data.preparing.manifest import MANIFEST, TOKENIZER, open_prepared, read_manifest
from kinfolk.data.preparing.preparation import Preparation
from kinfolk.data.splits.split import Data, Split

Make = Callable[[Path, Preparation], Path]
"""From a file and choices to the folder of what is prepared."""
GO_ON = "; unknown=add in the name of the data (--unknown-classes add) learns with it"


def open_beside(name: str, path: Path, valid: Path, choices: Preparation, make: Make, *, add: bool = False) -> Data:
    """Return what a file, or a prepared folder, has to learn from, with another file to validate on.

    add: learn with a class that only the second file has, instead of refusing it.
    """
    if (valid / MANIFEST).is_file():
        raise DataError(f"{valid}: is prepared already; validation takes a raw file, or the folder's own part")
    if not valid.exists():
        raise DataError(f"{valid}: no such file or folder")
    folder = path if (path / MANIFEST).is_file() else make(path, dataclasses.replace(choices, valid=0.0))
    learnt = open_prepared(folder)
    stated = read_manifest(folder).preparation | {"tokenizer": str(folder / TOKENIZER), "vocab": None, "valid": 0.0}
    same = Preparation(**stated, on_bad=choices.on_bad)
    held = open_prepared(make(valid, same))
    split = held.split("train")
    classes, own = learnt.split("train").classes, split.classes
    strange = [label for label in own if label not in classes]
    learns = learnt.split("train")
    if strange and add:
        classes = (*classes, *strange)
        learns = learns.renamed(classes)
    elif strange:
        where = line_with(valid, strange[0], same)
        raise DataError(
            f"{where}: the class {strange[0]!r} is not among those to learn from{suggest(strange[0], classes)}{GO_ON}"
        )
    split = split.renamed(classes) if own != classes else split
    split.name = "valid"
    both = hashlib.sha256(f"{learnt.fingerprint} {held.fingerprint}".encode()).hexdigest()
    splits: dict[str, Split] = {"train": learns, "valid": split}
    return Data(name, learnt.kind, learnt.tokenizer, both, splits)


def line_with(path: Path, label: str, choices: Preparation) -> str:
    """Return the file and the line of the first row with a label."""
    for source in find_sources([path], pairs=False):
        reader = read(source, FileSpan(0, line=0, size=source.total), choices, 0)
        for item in reader:
            if isinstance(item, Document) and label in label_kind(choices.labels).names(item.label):
                return f"{source.path}:{reader.number(reader.line)}"
    return str(path)
