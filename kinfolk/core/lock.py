"""File lock of a folder: one process at a time. It goes away with the process that holds it, however that ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = ".lock"


@contextmanager
def locked(folder: Path, busy: Exception | None = None) -> Iterator[int]:
    """Hold the lock of a folder; if another process has it, raise `busy`, or wait without one.

    Yields the descriptor: the lock belongs to the open file, so a child that inherits it holds the folder too.
    """
    # 20 ms that most commands do not need
    from filelock import lock_descriptor

    with (folder / LOCK).open("a+b") as file:
        if not lock_descriptor(file.fileno(), blocking=busy is None) and busy is not None:
            raise busy
        # closing releases the lock here alone, where unlocking would take it from children as well
        yield file.fileno()
