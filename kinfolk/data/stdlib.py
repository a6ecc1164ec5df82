"""Text that every machine has: the source of the running Python's own standard library."""

import sysconfig
from pathlib import Path

from kinfolk.core.errors import DataError

# not prose of the library itself: its tests, and what the user installed beside it
_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


def stdlib_files() -> list[Path]:
    """Return the .py files of the standard library, in an order that is the same everywhere."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(p for p in root.rglob("*.py") if not _LEFT_OUT & set(p.relative_to(root).parts))
    if not files:
        raise DataError(f"stdlib: this Python keeps no source of its standard library in {root}")
    return files
