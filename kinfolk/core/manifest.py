"""The manifest of a model or run folder: the SHA-256 of every file that decides its result.

A file that was damaged or edited is refused when it is read, instead of giving other results without a word. Small
files are hashed when a folder is opened, weights by a thread while they are loaded. A file that is to be replaced has
two hashes in the manifest while that happens, so a process may be killed at any moment.
"""

import concurrent.futures
import contextlib
import dataclasses
import datetime
import hashlib
import json
import shlex
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kinfolk.core import durable
from kinfolk.core.errors import CheckpointError

NAME = "manifest.json"
INPUTS = ("spec.toml", "run.toml", "tokenizer.json", "knowledge.tsv", "start.safetensors", "chat_template.jinja")
"""What decides how a model is built, trained and read; a folder has some of these."""
PRODUCTS = ("model.safetensors", "result.json")
"""What a run leaves when it ends."""


class NoManifest(UserWarning):
    """A folder has no manifest: it was written by an earlier version."""


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Hashes by file name, the newest last, and the changes that a user has accepted."""

    files: Mapping[str, tuple[str, ...]]
    changes: tuple[Mapping[str, Any], ...] = ()

    def write(self, folder: Path) -> None:
        """Write it into a folder."""
        body = {"format": 1, "files": {k: list(v) for k, v in self.files.items()}, "changes": list(self.changes)}
        durable.write_json(folder / NAME, body | {"digest": _digest(body)})

    def including(self, hashes: Mapping[str, tuple[str, ...]]) -> "Manifest":
        """Return it with the hashes of some files set."""
        return dataclasses.replace(self, files={**self.files, **hashes})


def read(folder: Path) -> Manifest | None:
    """Read the manifest of a folder; None if it has none."""
    try:
        content = json.loads((folder / NAME).read_text(encoding="utf-8"))
        body = {key: value for key, value in content.items() if key != "digest"}
        if content["digest"] != _digest(body):
            raise ValueError("its content does not match its own hash")
        files = {str(name): tuple(map(str, hashes)) for name, hashes in content["files"].items()}
        return Manifest(files, tuple(content["changes"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{folder / NAME}: damaged ({error}); {_way_on(folder)}") from None


def create(folder: Path) -> None:
    """Hash what a folder holds and write its manifest."""
    Manifest({name: (durable.digest(folder / name),) for name in _present(folder)}).write(folder)


@contextlib.contextmanager
def replacing(folder: Path, name: str, digest: str) -> Iterator[None]:
    """Replace a file of a folder by one with this hash; before the block ends, both are accepted."""
    manifest = read(folder)
    if manifest is None:
        yield
        return
    manifest.including({name: (*manifest.files.get(name, ())[-1:], digest)}).write(folder)
    yield
    manifest.including({name: (digest,)}).write(folder)


def check(folder: Path, names: Iterable[str] = ("spec.toml",)) -> None:
    """Compare small files of a folder with its manifest; without one, say so."""
    names = tuple(names)
    manifest = read(folder)
    if manifest is None:
        text = f"{folder}: has no {NAME}, so a change of its files would not be noticed; {_way_on(folder)}"
        warnings.warn(text, NoManifest, stacklevel=3)
        return
    for name in names:
        if _matches(folder, name, manifest):
            continue
        # a run that is being trained may have replaced both between the two looks
        again = read(folder)
        if again is None or not _matches(folder, name, again):
            raise _refusal(folder / name)


@contextlib.contextmanager
def verifying(file: Path) -> Iterator[None]:
    """Hash a large file beside what the block does with it, and raise at its end if it is not what was written."""
    manifest = read(file.parent)
    if manifest is None or not file.is_file():
        yield
        return
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        digest = pool.submit(durable.digest, file)
        try:
            yield
        except Exception:
            # that it was damaged explains what went wrong with it
            if digest.result() not in manifest.files.get(file.name, ()):
                raise _refusal(file) from None
            raise
        if digest.result() not in manifest.files.get(file.name, ()):
            raise _refusal(file)


def unchanged(file: Path) -> bool:
    """Tell whether a file is what the manifest beside it says; without a manifest, it counts as unchanged."""
    manifest = read(file.parent)
    return manifest is None or _matches(file.parent, file.name, manifest)


def accept(folder: Path) -> list[str]:
    """Write the manifest anew from what is in the folder, record the change, and return the files that differ."""
    try:
        old = read(folder) or Manifest({})
    except CheckpointError:
        old = Manifest({})
    new = {name: (durable.digest(folder / name),) for name in _present(folder)}
    names = sorted(name for name in {*new, *old.files} if new.get(name, ())[-1:] != old.files.get(name, ())[-1:])
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    change = {
        "when": when,
        "command": shlex.join(["kin", *sys.argv[1:]]),
        "files": {name: {"from": list(old.files.get(name, ())), "to": list(new.get(name, ()))} for name in names},
    }
    Manifest(new, (*old.changes, change)).write(folder)
    return names


def _present(folder: Path) -> list[str]:
    return [name for name in (*INPUTS, *PRODUCTS) if (folder / name).is_file()]


def _matches(folder: Path, name: str, manifest: Manifest) -> bool:
    """Tell whether a file is as listed, or neither there nor listed."""
    hashes = manifest.files.get(name, ())
    if not (folder / name).is_file():
        return not hashes
    return durable.digest(folder / name) in hashes


def _refusal(file: Path) -> CheckpointError:
    reason = "is not what the run was written with (SHA-256 differs)" if file.is_file() else "is missing"
    return CheckpointError(f"{file}: {reason}; {_way_on(file.parent)}, if the change is meant")


def _way_on(folder: Path) -> str:
    return f"`kin resume {shlex.quote(str(folder))} --accept-changes` records what is there now"


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
