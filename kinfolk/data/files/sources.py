"""Input files: find them, know their format, and look at their first bytes before anything is read."""

import dataclasses
import gzip
import io
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kinfolk.core.errors import DataError

# any other ending is read as plain text
FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
BROKEN_GZIP = (gzip.BadGzipFile, EOFError, zlib.error)

_HEAD = 8192
_BLOCK = 1 << 20
_BOM = b"\xef\xbb\xbf"


@dataclasses.dataclass(frozen=True)
class Source:
    """One input file, or two that go line by line. `size` and `mtime` notice a file that changes on the way."""

    path: str
    format: str
    size: int
    mtime: int
    twin: "Source | None" = None

    @property
    def gzipped(self) -> bool:
        """Whether a file is compressed, and so can only be read from its beginning."""
        return self.path.endswith(".gz") or (self.twin is not None and self.twin.gzipped)

    @property
    def total(self) -> int:
        """Bytes on disk, of both files if there are two."""
        return self.size + (self.twin.size if self.twin else 0)

    def check_unchanged(self) -> None:
        """Refuse a file that is not what it was when the work was planned."""
        now = _source(Path(self.path))
        if (now.size, now.mtime) != (self.size, self.mtime):
            raise DataError(
                f"{self.path}: the file has changed since preparing began; delete the folder and begin again"
            )
        if self.twin is not None:
            self.twin.check_unchanged()

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> "Source":
        """Read what `dataclasses.asdict` gives."""
        return cls(**data | {"twin": cls.from_plain(data["twin"]) if data["twin"] else None})


READABLE = "text in UTF-8, .csv, .tsv, .jsonl, .parquet, .conll, .conllu, SQuAD's .json, each but .parquet also .gz"
"""The formats of text, as a refusal names them."""


def find_sources(inputs: Sequence[str | Path], *, pairs: bool) -> list[Source]:
    """Return the files named, and those in the folders named, in a fixed order; hidden files are left alone."""
    if not inputs:
        raise DataError("nothing to prepare: name at least one file or folder")
    sources = [_source(path) for given in inputs for path in _files(Path(given))]
    return _in_twos(sources) if pairs else sources


def unusable(source: Source) -> tuple[str, str] | None:
    """Return what makes a whole file unusable, seen in its first bytes: the reason and what was found, or None."""
    if source.format == "parquet" and source.size:
        return None
    try:
        head = _head(source.path)
    except DataError as error:
        return "broken gzip", str(error)
    if not head:
        return "empty file", ""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "binary file", "it looks like UTF-16; convert it to UTF-8"
    if b"\0" in head:
        return "binary file", f"NUL at byte {head.index(0)}; what can be read: {READABLE}"
    return None


def refuse_binary(path: str) -> None:
    """Refuse a file that is no text, with the formats that can be read."""
    head = _head(path)
    if b"\0" in head and not head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path}: a binary file (NUL at byte {head.index(0)}); what can be read: {READABLE}")


def _head(path: str) -> bytes:
    with open_bytes(path) as file:
        try:
            return file.read(_HEAD)
        except BROKEN_GZIP as error:
            raise DataError(f"{path}: broken gzip: {error}") from None


class Bytes(io.BufferedReader):
    """A file being read, decompressed on the way; `consumed` is how far it is read on disk."""

    def __init__(self, disk: io.FileIO, *, gzipped: bool) -> None:
        self._disk = disk
        super().__init__(_Unpacked(disk) if gzipped else disk, _BLOCK)

    @property
    def consumed(self) -> int:
        """Bytes of the file on disk read so far."""
        return self._disk.tell()

    def close(self) -> None:
        """Close the file, the decompressor included."""
        super().close()
        self._disk.close()


class _Unpacked(io.RawIOBase):
    """A gzip file unpacked step by step: when it turns out to be broken, all that came before has been handed out."""

    def __init__(self, disk: io.FileIO) -> None:
        self._gzip = gzip.GzipFile(fileobj=disk)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._gzip.readinto1(buffer)

    def tell(self) -> int:
        return self._gzip.tell()


def open_bytes(path: str, start: int = 0) -> Bytes:
    """Open a file for reading bytes from `start`; a byte-order mark at the beginning is passed over."""
    try:
        file = Bytes(io.FileIO(path), gzipped=path.endswith(".gz"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        if start:
            file.seek(start)
        elif file.peek(3)[:3] == _BOM:
            file.read(3)
    except BROKEN_GZIP as error:
        file.close()
        raise DataError(f"{path}: broken gzip: {error}") from None
    return file


def _files(given: Path) -> Iterator[Path]:
    if not given.is_dir():
        yield given
        return
    found = False
    for folder, folders, names in os.walk(given):
        # in place: os.walk goes only where this list says
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):
                found = True
                yield Path(folder, name)
    if not found:
        raise DataError(f"{given}: the folder holds no files")


def _source(path: Path) -> Source:
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    name = path.name.removesuffix(".gz")
    kind = FORMATS.get(Path(name).suffix.lower(), "text")
    if kind == "parquet" and path.name.endswith(".gz"):
        raise DataError(f"{path}: parquet is compressed inside; unpack the .gz first")
    return Source(str(path), kind, status.st_size, status.st_mtime_ns)


def _in_twos(sources: Sequence[Source]) -> list[Source]:
    """Join plain text files two by two: source, target, source, target; a table is pairs by itself."""
    joined: list[Source] = []
    waiting: Source | None = None
    for source in sources:
        if source.format != "text":
            joined.append(source)
        elif waiting is None:
            waiting = source
        else:
            joined.append(dataclasses.replace(waiting, format="lines", twin=source))
            waiting = None
    if waiting is not None:
        raise DataError(f"{waiting.path}: pairs need plain text files in twos, source then target; this one is alone")
    return joined
