"""The manifest of prepared data: what is in the folder, with the size and hash of every file."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from kinfolk.core.durable import digest, write_json
from kinfolk.core.errors import DataError
from kinfolk.data.preparing.shards import OFFSET, Shard
from kinfolk.data.splits.labels import LabelledSplit, LabelReading, class_names
from kinfolk.data.splits.split import Data, PairSplit, Split, TextSplit
from kinfolk.data.tokenizers.tokenizer import Tokenizer

FORMAT = "kinfolk-data"
VERSION = 1
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
BAD = "bad.jsonl"

# hashing this much takes about a tenth of a second; more is hashed only when asked for
_HASHED = 64 << 20


@dataclasses.dataclass(frozen=True)
class PreparedManifest:
    """What a prepared folder says about itself.

    splits: for each split `documents`, `tokens` (all ids, with specials), `scored` (ids a model is scored on), `bytes`
        (of their text), `unknown` (ids that are unk) and `shards` as [name, tokens, sequences]; of
        labelled rows also `labels`, how many rows have each.
    bad: how many rows could not be used, by reason. files: size and SHA-256 of every file.
    """

    kind: str
    dtype: str
    tokenizer: dict[str, Any]
    preparation: dict[str, Any]
    inputs: dict[str, int]
    splits: dict[str, dict[str, Any]]
    bad: dict[str, int]
    files: dict[str, dict[str, Any]]

    @property
    def bad_rows(self) -> int:
        """All rows that could not be used."""
        return sum(self.bad.values())

    def plain(self) -> dict[str, Any]:
        """Return the manifest as plain data."""
        return {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}

    def write(self, folder: Path) -> None:
        """Write the manifest: from now on the folder is prepared data."""
        write_json(folder / MANIFEST, self.plain())


def read_manifest(folder: Path) -> PreparedManifest:
    """Read and check the manifest of a folder, but not the files it names."""
    path = folder / MANIFEST
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None
    if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
        raise DataError(f"{path}: not the manifest of prepared data")
    version = data.pop("version", None)
    if version != VERSION:
        raise DataError(f"{path}: version {version!r} of the format; this program reads version {VERSION}")
    try:
        return PreparedManifest(**data)
    except TypeError as error:
        raise DataError(f"{path}: damaged: {error}") from None


def open_prepared(folder: Path, *, verify: bool = False) -> Data:
    """Open prepared data, after checking that every file is there and has its size.

    Hashes are checked too when that is quick; `verify=True` always checks them.
    """
    manifest = read_manifest(folder)
    total = 0
    for name, stated in manifest.files.items():
        total += _check_size(folder / name, int(stated["bytes"]))
    if verify or total <= _HASHED:
        for name, stated in manifest.files.items():
            if digest(folder / name) != stated["sha256"]:
                raise DataError(
                    f"{folder / name}: damaged: its content is not what the manifest says; prepare it again"
                )
    tokenizer = Tokenizer.load(folder / TOKENIZER)
    splits: dict[str, Split] = {name: _split(folder, manifest, tokenizer, name) for name in manifest.splits}
    return Data(str(folder), manifest.kind, tokenizer, digest(folder / MANIFEST), splits)


def _check_size(path: Path, stated: int) -> int:
    try:
        size = path.stat().st_size
    except OSError:
        raise DataError(f"{path}: missing, but the manifest names it; prepare the data again") from None
    if size != stated:
        raise DataError(f"{path}: damaged: {size} bytes, but the manifest says {stated}; prepare the data again")
    return size


def _split(folder: Path, manifest: PreparedManifest, tokenizer: Tokenizer, name: str) -> Split:
    stated = manifest.splits[name]
    dtype = np.dtype(manifest.dtype)
    shards = []
    for stem, tokens, sequences in stated["shards"]:
        sizes = (manifest.files[f"{stem}.bin"]["bytes"], manifest.files[f"{stem}.idx"]["bytes"])
        if sizes != (tokens * dtype.itemsize, (sequences + 1) * OFFSET.itemsize):
            raise DataError(f"{folder / MANIFEST}: damaged: the counts of {stem} do not fit its files")
        shards.append(Shard(folder / stem, dtype, tokens, sequences))
    if manifest.kind == "text":
        return TextSplit(name, tokenizer, shards, stated["bytes"])
    if manifest.kind == "labelled":
        every = (split.get("labels", {}) for split in manifest.splits.values())
        labels = LabelReading(manifest.preparation["labels"], class_names(every))
        return LabelledSplit(name, tokenizer, shards, stated, labels)
    return PairSplit(name, tokenizer, shards, stated["bytes"], stated["scored"])
