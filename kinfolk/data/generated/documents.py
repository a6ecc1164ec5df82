"""Documents for the tasks on bytes: the standard library's own files, and the ones of a folder or a table.

A document belongs to one split, train or valid, so that nothing of what is asked in valid was ever read.
"""

import csv
import dataclasses
import functools
import hashlib
import json
import re
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from kinfolk.core.errors import DataError
from kinfolk.data.generated.stdlib import stdlib_files
from kinfolk.data.generated.task import HELD_OUT

TRAIN, VALID = ("train",), ("valid", "dev", "test")
"""What the folders or files of the two parts are called, where somebody has parted them already."""

# its modules are copies of each other, with other tables
_COPIES = "encodings"
# a documentation string begins a line; what is quoted later in one is data
_QUOTED = re.compile(rb'^[ \t]*[rRuU]?("""|\'\'\')(.*?)\1', re.DOTALL | re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class ByteDocument:
    """A name, the package it is from, and its bytes."""

    name: str
    family: str
    body: bytes

    @functools.cached_property
    def prose(self) -> bytes:
        """The documentation strings, one after another."""
        return b"\n".join(found[1].strip(b"\n") for found in _QUOTED.findall(self.body))

    @functools.cached_property
    def code(self) -> bytes:
        """What is left without them."""
        return _QUOTED.sub(b"", self.body)


@functools.lru_cache(maxsize=1)
def library() -> tuple[ByteDocument, ...]:
    """Return the files of the standard library; a module that is a file by itself has no family."""
    root = Path(sysconfig.get_path("stdlib"))
    documents = []
    for file in stdlib_files():
        name = file.relative_to(root)
        if name.parts[0] == _COPIES:
            continue
        documents.append(ByteDocument(name.as_posix(), name.parts[0] if len(name.parts) > 1 else "", file.read_bytes()))
    return tuple(documents)


def part(documents: Sequence[ByteDocument], *, valid: bool) -> list[ByteDocument]:
    """Return the documents of a split: by a hash of their names a fifth is held out, and at least one."""
    ranked = sorted(documents, key=lambda document: hashlib.sha256(document.name.encode()).digest())
    held = max(1, len(ranked) // 5)
    return ranked[:held] if valid else ranked[held:]


def content(documents: Sequence[ByteDocument]) -> str:
    """Return a hash of documents: another Python has another library."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(f"{document.name}\0{len(document.body)}\0".encode())
        digest.update(document.body)
    return digest.hexdigest()


@dataclasses.dataclass(frozen=True)
class Labelled:
    """One text or two with the name of a class; `sources` names the documents that the texts are from."""

    label: str
    texts: tuple[bytes, ...]
    sources: tuple[str, ...]


def read_parts(path: Path, columns: int) -> dict[str, list[Labelled]]:
    """Read labelled texts, and part them as they are parted, or else by their documents.

    A folder has a folder of files for each class, or those in `train` and in `valid`, `dev` or `test`; or it has files
    of these names, as `train.tsv`. A file is a table: see `read_table`.
    """
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    places = {"train": _named(path, TRAIN), "valid": _named(path, VALID)} if path.is_dir() else {}
    if places and all(places.values()):
        parts = {name: list(_read(found, columns)) for name, found in places.items() if found}
        common = set.intersection(*({example.label for example in examples} for examples in parts.values()))
        # a label that only one part has, as texts without any, cannot be learnt or not be asked for
        parts = {name: [e for e in examples if e.label in common] for name, examples in parts.items()}
    else:
        parts = _parted(list(_read(path, columns)))
    for name, examples in parts.items():
        if not examples:
            raise DataError(f"{path}: no example for {name}; put some into {path / name}, or give more documents")
    return parts


def read_table(path: Path, columns: int) -> Iterator[Labelled]:
    """Read rows of a label and one text or two, from .tsv, .csv (no heading) or .jsonl.

    Between the label and two texts may be the names of their documents. In JSON, the keys are `label` and `text`, or
    `a` and `b`, or `text1` and `text2`.
    """
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        if path.suffix in (".jsonl", ".json"):
            rows: Iterator[list[str]] = (_values(line, f"{path}:{i}") for i, line in enumerate(file, 1) if line.strip())
        else:
            csv.field_size_limit(sys.maxsize)
            rows = csv.reader(file, delimiter="," if path.suffix == ".csv" else "\t")
        for i, row in enumerate(rows, 1):
            if len(row) not in (1 + columns, 1 + 2 * columns):
                expected = f"a label and {columns} text{'s' * (columns > 1)}"
                raise DataError(f"{path}: row {i} has {len(row)} columns; expected {expected}")
            texts = tuple(text.encode("utf-8", "surrogateescape") for text in row[-columns:])
            names = row[1:-columns] or [hashlib.sha256(text).hexdigest() for text in texts]
            yield Labelled(row[0], texts, tuple(names))


def _named(path: Path, names: Sequence[str]) -> Path | None:
    return next((file for file in sorted(path.iterdir()) if file.name.partition(".")[0] in names), None)


def _read(path: Path, columns: int) -> Iterator[Labelled]:
    if path.is_file():
        yield from read_table(path, columns)
        return
    if columns != 1:
        raise DataError(f"{path}: pairs are read from a table, as pairs.tsv, or a folder with train.tsv and valid.tsv")
    folders = sorted(folder for folder in path.iterdir() if folder.is_dir())
    if len(folders) < 2:
        raise DataError(f"{path}: expected a folder of files for each class, found {len(folders)}")
    for folder in folders:
        for file in sorted(found for found in folder.rglob("*") if found.is_file()):
            body = file.read_bytes()
            yield Labelled(folder.name, (body,), (hashlib.sha256(body).hexdigest(),))


def _values(line: str, where: str) -> list[str]:
    try:
        row = json.loads(line)
        return [str(row["label"]), *(row[key] for key in ("text", "a", "b", "text1", "text2") if key in row)]
    except (ValueError, KeyError, TypeError):
        raise DataError(
            f'{where}: not a line like {{"label": …, "text": …}} or {{"label": …, "a": …, "b": …}}'
        ) from None


def _parted(examples: Sequence[Labelled]) -> dict[str, list[Labelled]]:
    """Part examples so that no document is in both parts: all that share one, however remotely, stay together."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while (above := parent.setdefault(name, name)) != name:
            # halve the way for the next lookup
            parent[name] = name = parent[above]
        return name

    for example in examples:
        for source in example.sources[1:]:
            parent[root(source)] = root(example.sources[0])
    parts: dict[str, list[Labelled]] = {"train": [], "valid": []}
    for example in examples:
        digest = hashlib.sha256(root(example.sources[0]).encode()).digest()
        parts["valid" if digest[0] * 256 + digest[1] < 65536 // HELD_OUT else "train"].append(example)
    return parts
