"""File lock of a folder: one process at a time. It goes away with the process that holds it, however that ends."""

import errno
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = ".lock"
UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def locked(folder: Path, busy: Exception | None = None) -> Iterator[int]:
    """Hold the lock of a folder; if another process has it, raise `busy`, or wait without one.

    Yields the descriptor: the lock belongs to the open file, so a child that inherits it holds the folder too.
    A network file system that knows no locks gives a warning and no protection.
    """
    with (folder / LOCK).open("a+b") as file:
        if not _acquire(file.fileno(), folder, blocking=busy is None) and busy is not None:
            raise busy
        # closing releases the lock here alone, where unlocking would take it from children as well
        yield file.fileno()


def _acquire(descriptor: int, folder: Path, *, blocking: bool) -> bool:
    # 20 ms that most commands do not need
    from filelock import lock_descriptor

    try:
        return lock_descriptor(descriptor, blocking=blocking)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        warnings.warn(
            f"{folder}: this file system has no file locks; let one process at a time work here", stacklevel=4
        )
        return True
