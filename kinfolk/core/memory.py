"""RAM: how much there is, the most this process held, and a refusal of what cannot fit before it is allocated."""

import functools
import re
import sys
from pathlib import Path

from kinfolk.core.errors import SpecError

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Where Linux says how much a container may have."""

_CLEAR = Path("/proc/self/clear_refs")


def resident() -> int:
    """Return the resident bytes of this process."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def forget_peak() -> None:
    """Let `peak_memory` begin here, where the system can (Linux)."""
    if _CLEAR.exists():
        _CLEAR.write_text("5", encoding="ascii")


@functools.cache
def total() -> int:
    """Return the bytes that this process may have at most: of the machine, its container and its own limit.

    What happens to be free is not asked: whether something is refused must not depend on how busy the machine is.
    """
    import psutil

    amounts = [int(psutil.virtual_memory().total)]
    for file in _LIMITS:
        try:
            amounts.append(int(Path(file).read_text(encoding="ascii")))
        except (OSError, ValueError):
            # no such limit, or "max"
            continue
    try:
        import resource

        soft = resource.getrlimit(resource.RLIMIT_AS)[0]
        amounts += [soft] if soft != resource.RLIM_INFINITY else []
    except (ImportError, OSError):
        pass
    return min(amount for amount in amounts if amount > 0)


def require(needed: float, where: str) -> None:
    """Raise if something needs more bytes than there are; `where` says what needs them, and the setting to change."""
    if needed > total():
        raise SpecError(f"{where} needs at least {_words(needed)}, and this machine has {_words(total())}")


def peak_memory() -> int:
    """Return the most resident bytes this process ever had, or since Linux was asked to forget them.

    Linux's VmHWM belongs to the program; getrusage's maxrss is inherited through fork and exec, so a child of a
    large parent would be charged for its parent.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return int(re.search(r"VmHWM:\s*(\d+) kB", status).group(1)) * 1024  # type: ignore[union-attr]
    except (OSError, AttributeError):
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def _words(amount: float) -> str:
    power = min(4, max(0, (len(f"{amount:.0f}") - 1) // 3))
    return f"{amount / 1000**power:,.1f} {('bytes', 'kB', 'MB', 'GB', 'TB')[power]}"
