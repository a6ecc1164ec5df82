"""How much memory this process holds, and the most it held since a moment."""

import re
import sys
from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident() -> int:
    """Return the resident bytes of this process."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def peak() -> int:
    """Return the most resident bytes since `forget_peak`, or since the start where it cannot be forgotten.

    Linux's VmHWM belongs to the program; getrusage's maxrss is inherited through fork and exec, so a child of a
    large parent would be charged for its parent.
    """
    if _STATUS.exists():
        found = re.search(r"VmHWM:\s*(\d+) kB", _STATUS.read_text(encoding="ascii", errors="replace"))
        if found:
            return int(found[1]) * 1024
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def forget_peak() -> None:
    """Start to look for the peak from here on, where the system can (Linux)."""
    if _CLEAR.exists():
        _CLEAR.write_text("5", encoding="ascii")
