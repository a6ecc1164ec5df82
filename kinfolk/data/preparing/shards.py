"""Shards: token ids on disk, mapped into memory, with the place where every sequence begins.

A shard is two files. `x.bin` holds little-endian token ids one after another; `x.idx` holds n + 1 little-endian
64-bit offsets, so that sequence i is `ids[offsets[i]:offsets[i + 1]]`. For pairs the sequences alternate:
source, target, source, target.
"""

import hashlib
import os
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

OFFSET = np.dtype("<u8")


class ShardWriter:
    """Write one shard aside and move both files into place when all is on disk.

    Left by an exception, or by a crash, it leaves nothing under the final names.
    """

    def __init__(self, aside: Path, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.n_tokens = 0
        self.n_sequences = 0
        self._files = {suffix: _Hashed(aside.with_name(aside.name + suffix)) for suffix in (".bin", ".idx")}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.discard()

    def add(self, sequences: Iterable[NDArray[Any]]) -> None:
        """Append sequences of token ids."""
        arrays = list(sequences)
        if not arrays:
            return
        ends = self.n_tokens + np.cumsum([len(array) for array in arrays])
        if not self.n_sequences:
            self._files[".idx"].write(np.zeros(1, OFFSET))
        self._files[".bin"].write(np.concatenate(arrays).astype(self.dtype, copy=False))
        self._files[".idx"].write(ends.astype(OFFSET))
        self.n_tokens = int(ends[-1])
        self.n_sequences += len(arrays)

    def finish(self, final: Path) -> dict[str, dict[str, Any]]:
        """Sync, rename to `final.bin` and `final.idx`, and return the size and hash of each file."""
        return {
            final.name + suffix: file.finish(final.with_name(final.name + suffix))
            for suffix, file in self._files.items()
        }


class Shard:
    """One shard, mapped into memory when first touched. Pickles as its path, never as its content."""

    def __init__(self, stem: Path, dtype: np.dtype[Any], n_tokens: int, n_sequences: int) -> None:
        self.stem, self.dtype, self.n_tokens, self.n_sequences = stem, dtype, n_tokens, n_sequences

    @cached_property
    def ids(self) -> NDArray[Any]:
        """All token ids of the shard."""
        return _mapped(self.stem.with_name(self.stem.name + ".bin"), self.dtype)

    @cached_property
    def offsets(self) -> NDArray[Any]:
        """Where each sequence begins, and where the last one ends."""
        return _mapped(self.stem.with_name(self.stem.name + ".idx"), OFFSET)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("stem", "dtype", "n_tokens", "n_sequences")}


class _Hashed:
    """A file being written aside, hashed on the way."""

    def __init__(self, aside: Path) -> None:
        self.aside = aside
        self.size = 0
        self._hash = hashlib.sha256()
        self._file: BinaryIO = aside.open("wb")

    def write(self, array: NDArray[Any]) -> None:
        data = np.ascontiguousarray(array).data.cast("B")
        self._file.write(data)
        self._hash.update(data)
        self.size += len(data)

    def finish(self, final: Path) -> dict[str, Any]:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self.aside.replace(final)
        return {"bytes": self.size, "sha256": self._hash.hexdigest()}

    def discard(self) -> None:
        self._file.close()
        self.aside.unlink(missing_ok=True)


def _mapped(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    # an empty file cannot be mapped
    if path.stat().st_size == 0:
        return np.zeros(0, dtype)
    return np.memmap(path, dtype=dtype, mode="r")
