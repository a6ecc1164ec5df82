"""Files that are either whole or not there: write aside, force to disk, rename.

A process may be killed and a machine may lose power at any moment. A reader therefore never sees a half-written
file under its final name, and what a rename replaced is intact until the moment it is replaced.
"""

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from kinfolk.core.errors import TrainingError

ASIDE = ".part"
"""The ending of a name that is still being written; whatever has it is left over from a killed process."""


def sync(path: Path) -> None:
    """Force a file or a folder's list of names to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write(path: Path, text: str) -> None:
    """Write a whole text file atomically."""
    aside = path.with_name(path.name + ASIDE)
    with refusal(path):
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        sync(path.parent)


def copy(source: Path, path: Path) -> None:
    """Copy a file atomically."""
    aside = path.with_name(path.name + ASIDE)
    with refusal(path):
        shutil.copyfile(source, aside)
        sync(aside)
        aside.replace(path)
        sync(path.parent)


@contextlib.contextmanager
def folder(path: Path) -> Iterator[Path]:
    """Give a folder to fill; it appears under its own name, complete and on disk, when the block ends well."""
    aside = path.with_name(path.name + ASIDE)
    remove(aside)
    with refusal(path):
        try:
            aside.mkdir(parents=True)
            yield aside
            for file in sorted(aside.rglob("*")):
                sync(file)
            sync(aside)
            aside.replace(path)
        except BaseException:
            # a full disk must not stay full because of the attempt
            remove(aside)
            raise
        sync(path.parent)


@contextlib.contextmanager
def refusal(path: Path) -> Iterator[None]:
    """Turn the ways a disk refuses into one `TrainingError` that says what is still intact."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "space left" in str(error)
        why = "the disk is full" if full else f"the disk refused ({error})"
        raise TrainingError(
            f"{path}: cannot be written: {why}. What was written before is intact; "
            f"make room and go on with `kin resume`"
        ) from error


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
