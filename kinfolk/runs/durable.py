"""Atomic writes of a run's files; a disk that refuses them is reported with what is still intact."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from kinfolk.core import durable
from kinfolk.core.durable import ASIDE, digest, remove, sync
from kinfolk.core.errors import TrainingError

__all__ = ["ASIDE", "copy", "digest", "folder", "refusal", "remove", "sync", "write"]


def write(path: Path, text: str) -> None:
    """Write a whole text file."""
    with refusal(path):
        durable.write(path, text)


def copy(source: Path, path: Path) -> None:
    """Copy a file."""
    with refusal(path):
        durable.copy(source, path)


@contextlib.contextmanager
def folder(path: Path) -> Iterator[Path]:
    """Give a folder to fill; it appears under its own name, complete and on disk, when the block ends well."""
    with refusal(path), durable.folder(path) as aside:
        yield aside


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
            f"make room and go on, with `kin resume` or a comparison's own command"
        ) from error
