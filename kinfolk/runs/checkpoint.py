"""Checkpoints: complete or absent, hashed, and a damaged one is never used.

    checkpoints/step-000200/model.safetensors       the weights
                            optimiser.safetensors   what the optimiser remembers, by parameter name
                            memory.safetensors      what a model remembers of the segments before, row by row
                            state.json              counters, scalars, and the SHA-256 of the files and of itself
    checkpoints/best                                a link to the step with the best validation

There is no random state to store: batches and dropout are pure functions of (seed, step).
"""

import dataclasses
import hashlib
import json
import re
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from kinfolk.core.errors import CheckpointError, TrainingError
from kinfolk.runs import durable

FORMAT = 1
STATE, WEIGHTS = "state.json", "model.safetensors"
_NAME = re.compile(r"step-(\d{6,})")

Tensors = dict[str, Tensor]


class DamagedCheckpoint(UserWarning):
    """A checkpoint does not match its hashes and an older one is used."""


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint on disk whose hashes have been checked."""

    path: Path
    state: dict[str, Any]

    @property
    def step(self) -> int:
        """The number of updates made."""
        return int(self.state["step"])

    def tensors(self, file: str) -> Tensors:
        """Read one of its files; one that was not saved has no tensors."""
        return load_file(self.path / f"{file}.safetensors") if f"{file}.safetensors" in self.state["files"] else {}


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run: the newest `keep_last` and the best."""

    folder: Path
    keep_last: int = 2

    def save(self, step: int, files: Mapping[str, Tensors], state: Mapping[str, Any]) -> Path:
        """Write one checkpoint atomically; a step that is there already is left alone."""
        path = self.folder / name(step)
        if path.exists():
            return path
        self.folder.mkdir(parents=True, exist_ok=True)
        self._check_room(files, path)
        with durable.folder(path) as aside:
            hashes = {}
            for file, tensors in files.items():
                if tensors:
                    target = aside / f"{file}.safetensors"
                    save_file(tensors, target)
                    hashes[target.name] = durable.digest(target)
            body = {"format": FORMAT, "step": step, **state, "files": hashes}
            (aside / STATE).write_text(json.dumps(body | {"digest": _digest(body)}, indent=1), encoding="utf-8")
        return path

    def newest(self) -> Saved | None:
        """Return the newest checkpoint that is whole, or None; damaged ones are set aside with a warning."""
        damaged = []
        for step in sorted(self.steps(), reverse=True):
            path = self.folder / name(step)
            try:
                saved = verify(path)
            except CheckpointError as error:
                damaged.append(str(error))
                continue
            for problem in damaged:
                warnings.warn(f"{problem}; going on from step {step}", DamagedCheckpoint, stacklevel=2)
            self._set_aside_after(step)
            return saved
        if damaged:
            raise CheckpointError("; ".join(damaged) + ": no checkpoint is whole, so the run cannot go on")
        return None

    def best(self) -> Saved | None:
        """Return the checkpoint with the best validation, checked; None if there is none."""
        link = self.folder / "best"
        return verify(self.folder / link.readlink()) if link.is_symlink() and link.exists() else None

    def mark_best(self, step: int | None) -> None:
        """Point `best` at a step, or at nothing when that step is not there."""
        link, aside = self.folder / "best", self.folder / f"best{durable.ASIDE}"
        durable.remove(aside)
        if step is None or not (self.folder / name(step)).exists():
            durable.remove(link)
            return
        with durable.refusal(link):
            aside.symlink_to(name(step))
            aside.replace(link)
            durable.sync(self.folder)

    def prune(self) -> None:
        """Remove what is neither among the newest nor the best, and what a killed process left."""
        keep = set(sorted(self.steps())[-self.keep_last :])
        link = self.folder / "best"
        best = link.readlink().name if link.is_symlink() else ""
        for step in self.steps():
            if step not in keep and name(step) != best:
                # renamed first: a folder that is half removed must not look like a damaged checkpoint
                path = self.folder / name(step)
                path.replace(path.with_name(path.name + durable.ASIDE))
        for leftover in self.folder.glob(f"*{durable.ASIDE}"):
            durable.remove(leftover)

    def steps(self) -> list[int]:
        """Return the steps that have a folder."""
        matches = (_NAME.fullmatch(path.name) for path in self.folder.glob("step-*"))
        return [int(match.group(1)) for match in matches if match]

    def _set_aside_after(self, step: int) -> None:
        for later in self.steps():
            if later > step:
                path = self.folder / name(later)
                durable.remove(path.with_name(f"{path.name}.damaged"))
                path.replace(path.with_name(f"{path.name}.damaged"))

    def _check_room(self, files: Mapping[str, Tensors], path: Path) -> None:
        needed = sum(x.numel() * x.element_size() for tensors in files.values() for x in tensors.values())
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise TrainingError(
                f"{path}: the disk is full: the checkpoint needs {needed / 1e6:.0f} MB, {free / 1e6:.0f} MB are free. "
                f"What was written before is intact; make room and go on, with `kin resume` or a comparison's own "
                f"command"
            )


def name(step: int) -> str:
    """Return the folder name of a step."""
    return f"step-{step:06d}"


def adopt(path: Path, folder: Path) -> None:
    """Copy a checkpoint of another run, checked, so that a run goes on from it."""
    verify(path)
    folder.mkdir(parents=True, exist_ok=True)
    with durable.folder(folder / path.name) as aside:
        for file in path.iterdir():
            shutil.copyfile(file, aside / file.name)


def verify(path: Path) -> Saved:
    """Return a checkpoint after comparing every hash, or say what is wrong with it."""
    try:
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
        body = {key: value for key, value in state.items() if key != "digest"}
        if state["digest"] != _digest(body):
            raise CheckpointError(f"{path / STATE}: its content does not match its hash")
        if state["format"] != FORMAT:
            raise CheckpointError(f"{path / STATE}: format {state['format']}, this version reads format {FORMAT}")
        for file, wanted in state["files"].items():
            if durable.digest(path / file) != wanted:
                raise CheckpointError(f"{path / file}: its content does not match its hash")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise CheckpointError(f"{path}: damaged checkpoint ({error})") from None
    return Saved(path, state)


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def weights_file(out: Path) -> Path:
    """Return the file with the best weights that a run has so far: its own in the end, before that a checkpoint's."""
    file = out / WEIGHTS
    if file.exists():
        return file
    checkpoints = Checkpoints(out / "checkpoints")
    saved = checkpoints.best() or checkpoints.newest()
    if saved is None:
        raise CheckpointError(f"{out}: the run has no checkpoint yet")
    return saved.path / WEIGHTS
