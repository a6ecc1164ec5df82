"""Input files as bytes: size and date before reading, and reading, decompressed on the way."""

import dataclasses
import gzip
import io
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kinfolk.core.errors import DataError

BROKEN_GZIP = (gzip.BadGzipFile, EOFError, zlib.error)

HEAD = 8192
"""Bytes that show whether a file is text."""
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
        now = stat(Path(self.path))
        if (now.st_size, now.st_mtime_ns) != (self.size, self.mtime):
            raise DataError(
                f"{self.path}: the file has changed since preparing began; delete the folder and begin again"
            )
        if self.twin is not None:
            self.twin.check_unchanged()

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> "Source":
        """Read what `dataclasses.asdict` gives."""
        return cls(**data | {"twin": cls.from_plain(data["twin"]) if data["twin"] else None})


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


def stat(path: Path) -> os.stat_result:
    """Return what the file system says of a file, or refuse it."""
    try:
        return path.stat()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def files_below(root: Path) -> Iterator[Path]:
    """Yield the files of a folder and of those in it, in their order; what is hidden stays so."""
    for folder, folders, names in os.walk(root):
        # in place: os.walk goes only where this list says
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(names) if not name.startswith("."))


def head_of(path: str) -> bytes:
    """Return the first bytes of a file, which show whether it is text; a broken gzip file is refused."""
    with open_bytes(path) as file:
        try:
            return file.read(HEAD)
        except BROKEN_GZIP as error:
            raise DataError(f"{path}: broken gzip: {error}") from None
