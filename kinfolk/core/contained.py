"""Symbolic links inside a run folder: refuse those that lead out of it, and whatever is no ordinary file.

A run may come from elsewhere. Its lock, its metrics and its checkpoints are written to and removed, which must never
happen to a file of the user's that a link inside the run points at.
"""

import os
import stat
from pathlib import Path

from kinfolk.core.errors import CheckpointError


def check(folder: Path) -> None:
    """Raise if something inside a folder is a link that leads outside, or neither file nor folder.

    The folder itself may be reached by a link: that link is the user's.
    """
    if not folder.is_dir():
        return
    root = folder.resolve()
    waiting = [root]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            waiting += [Path(entry.path) for entry in entries if _is_folder(entry, root)]


def _is_folder(entry: "os.DirEntry[str]", root: Path) -> bool:
    """Tell whether an entry is a folder to look into, and raise if it does not belong into the run."""
    if entry.is_symlink():
        target = Path(os.path.realpath(entry.path))
        if root not in target.parents:
            raise CheckpointError(f"{entry.path}: a link that leads out of the run, to {target}")
        return False
    try:
        mode = entry.stat(follow_symlinks=False).st_mode
    except FileNotFoundError:
        # a run that is being trained writes aside and renames
        return False
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        raise CheckpointError(f"{entry.path}: neither a file nor a folder, so it does not belong into a run")
    return stat.S_ISDIR(mode)
