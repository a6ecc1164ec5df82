"""Files that are either whole or absent: write aside, sync, rename."""

import json
import os
from pathlib import Path
from typing import Any


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash at any moment, sees the old content or the new and nothing between."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def write_json(path: Path, value: Any) -> None:
    """Write plain data as JSON, the same bytes for the same data."""
    write_atomic(path, (json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True) + "\n").encode())
