"""Tensors of a checkpoint by name: safetensors, one file or several, or what torch pickled, read as data only.

`view` maps a tensor from its file: nothing is read before it is used, and writing to it does not reach the file.
`read` makes a copy that leaves no trace of the file in memory, for tensors that are changed on the way.
"""

import json
import mmap
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kinfolk.core.errors import CheckpointError
from kinfolk.runs.huggingface.config import read_json

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED, PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"


class File:
    """One safetensors file. The library checks it and maps its tensors."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # left open: its tensors live in the mapping
            self._open: Any = safe_open(path, framework="pt")
            with path.open("rb") as file:
                self._start = 8 + int.from_bytes(file.read(8), "little")
                self._header = json.loads(file.read(self._start - 8))
            # asks for every tensor without reading any
            self.shapes: dict[str, tuple[int, ...]] = {n: tuple(self._header[n]["shape"]) for n in self._open.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise CheckpointError(f"{path}: cannot be read as safetensors: {error}") from None

    def view(self, name: str) -> Tensor:
        """Return a tensor that lives in the file."""
        x: Tensor = self._open.get_tensor(name)
        return x

    def dtype(self, name: str) -> torch.dtype:
        """Return the type of a tensor's numbers."""
        return self.view(name).dtype

    def read(self, name: str) -> Tensor:
        """Return a copy of a tensor, read and not mapped."""
        first, last = self._header[name]["data_offsets"]
        if first == last:
            return self.view(name).clone()
        # pages of its own go back to the system as soon as they are not needed; pieces of the heap may not
        buffer = mmap.mmap(-1, last - first)
        with self.path.open("rb", buffering=0) as file:
            file.seek(self._start + first)
            filled = 0
            while filled < last - first and (n := file.readinto(memoryview(buffer)[filled:])):
                filled += n
        if filled < last - first:
            raise CheckpointError(f"{self.path}: {name}: the file ends before its {last - first} bytes do")
        return torch.frombuffer(buffer, dtype=self.dtype(name)).view(self.shapes[name])


class Pickled:
    """One file of `torch.save`, opened by the loader that builds tensors and runs nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            mapped = zipfile.is_zipfile(path)
            tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
        # an unpickler that was given anything else than weights may raise anything
        except Exception as error:
            raise CheckpointError(
                f"{path}: refused: it is damaged, or holds other things than weights, and nothing of a file is ever "
                f"run: {str(error).strip().splitlines()[0]}"
            ) from None
        if not isinstance(tensors, dict) or not all(isinstance(x, Tensor) for x in tensors.values()):
            raise CheckpointError(f"{path}: holds no table of tensors")
        self._tensors: dict[str, Tensor] = tensors
        self.shapes = {str(name): tuple(x.shape) for name, x in tensors.items()}

    def view(self, name: str) -> Tensor:
        """Return a tensor that lives in the file."""
        return self._tensors[name]

    def read(self, name: str) -> Tensor:
        """Return a copy of a tensor."""
        return self._tensors[name].clone()

    def dtype(self, name: str) -> torch.dtype:
        """Return the type of a tensor's numbers."""
        return self._tensors[name].dtype


class Tensors:
    """All tensors of a folder, in any of its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        files = [opened(path) for path in _files(folder)]
        self.where: dict[str, File | Pickled] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}  # of every tensor
        for file in files:
            self.shapes |= file.shapes
            for name in file.shapes:
                if name in self.where:
                    raise CheckpointError(f"{folder}: {name} is in {self.where[name].path.name} and {file.path.name}")
                self.where[name] = file

    def view(self, name: str) -> Tensor:
        """Return a tensor that lives in its file."""
        return self.where[name].view(name)

    def read(self, name: str) -> Tensor:
        """Return a copy of a tensor."""
        return self.where[name].read(name)

    def dtype(self, name: str) -> torch.dtype:
        """Return the type of a tensor's numbers."""
        return self.where[name].dtype(name)


def opened(path: Path) -> File | Pickled:
    """Open a file of either kind."""
    return File(path) if path.suffix == ".safetensors" else Pickled(path)


def _files(folder: Path) -> list[Path]:
    for whole, index in ((WEIGHTS, INDEX), (PICKLED, PICKLED_INDEX)):
        if (folder / whole).is_file():
            return [folder / whole]
        if (folder / index).is_file():
            return _shards(folder, folder / index)
    raise CheckpointError(f"{folder}: no weights here (looked for {WEIGHTS}, {INDEX}, {PICKLED}, {PICKLED_INDEX})")


def _shards(folder: Path, index: Path) -> list[Path]:
    table = read_json(index)
    names = table.get("weight_map") if isinstance(table, dict) else None
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise CheckpointError(f"{index}: weight_map is missing or no table of file names")
    for name in sorted(set(names.values())):
        if Path(name).name != name or not (folder / name).is_file():
            raise CheckpointError(f"{index}: names {name!r}, which is not a file of this folder")
    return [folder / name for name in sorted(set(names.values()))]
