"""Child processes of this package: they find no more code than their parent does, and end when it ends."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

PARENT = "KINFOLK_PARENT"
"""Where the process id of a launcher is left for its workers."""


def safe_path() -> list[str]:
    """Return the option that keeps the working folder out of a child's module path, unless it is in this one's.

    `python -m` looks for modules in the working folder first, `kin` does not: a worker that is started inside a
    folder of somebody else's must not import a json.py that lies there.
    """
    here = Path.cwd()
    return [] if any(Path(entry or ".").absolute() == here for entry in sys.path) else ["-P"]


def end_with_parent(grace: float = 60.0, every: float = 0.5) -> None:
    """Interrupt this process when the launcher named in the environment is gone, even by SIGKILL.

    grace: seconds for saving; a worker that waits for another one that is gone already would never end by itself.
    """
    parent = int(os.environ.get(PARENT, "0"))
    if not parent:
        return

    def watch() -> None:
        # an orphan is given another parent
        while os.getppid() == parent:
            time.sleep(every)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(grace)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
