"""Python's standard library as a corpus: text that every machine has."""

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from kinfolk.core.errors import DataError

# its tests, and what the user installed beside it, are not the library
_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


def stdlib_files(megabytes: int | None = None) -> list[Path]:
    """Return the .py files of the standard library, in an order that is the same everywhere.

    With a limit, about so much of it: files picked by a hash of their names, a mixture that is always the same.
    """
    root = Path(sysconfig.get_path("stdlib"))
    files = list(_sources(root))
    if megabytes is not None:
        files.sort(key=lambda file: hashlib.sha256(file.relative_to(root).as_posix().encode()).digest())
        left = megabytes * 1_000_000
        files = [file for file in files if (left := left - file.stat().st_size) >= 0]
    if not files:
        raise DataError(f"stdlib: this Python keeps no source of its standard library in {root}")
    return sorted(files)


def _sources(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        # in place: os.walk goes only where this list says
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))
