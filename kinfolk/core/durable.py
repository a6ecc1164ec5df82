"""Files that are either whole or not there: write aside, force to disk, rename.

A process may be killed and a machine may lose power at any moment. A reader therefore never sees a half-written
file under its final name, and what a rename replaced is intact until the moment it is replaced.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ASIDE = ".part"
"""The ending of a name that is still being written; whatever has it is left over from a killed process."""


def sync(path: Path) -> None:
    """Force a file or a folder's list of names to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def appearing(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """Give a name to write a file under; it appears under its own, complete and on disk, when the block ends well.

    What a killed process left is written over by the next; `shared` files, which several processes may write at once,
    have a name for each.
    """
    aside = path.with_name(f"{path.name}.{os.getpid()}{ASIDE}" if shared else path.name + ASIDE)
    try:
        yield aside
        sync(aside)
        aside.replace(path)
    except BaseException:
        # a full disk must not stay full because of the attempt
        aside.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write(path: Path, content: str | bytes) -> None:
    """Write a whole file."""
    with appearing(path) as aside:
        aside.write_bytes(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, value: Any) -> None:
    """Write plain data as JSON, the same bytes for the same data."""
    write(path, json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


def copy(source: Path, path: Path) -> None:
    """Copy a file."""
    with appearing(path) as aside:
        shutil.copyfile(source, aside)


@contextlib.contextmanager
def folder(path: Path) -> Iterator[Path]:
    """Give a folder to fill; it appears under its own name, complete and on disk, when the block ends well."""
    aside = path.with_name(path.name + ASIDE)
    remove(aside)
    try:
        aside.mkdir(parents=True)
        yield aside
        for file in sorted(aside.rglob("*")):
            sync(file)
        sync(aside)
        aside.replace(path)
    except BaseException:
        remove(aside)
        raise
    sync(path.parent)


def remove(path: Path) -> None:
    """Remove a file or folder if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
