"""How much memory this process holds; see `kinfolk.core.memory` for the most it held."""

from pathlib import Path

_CLEAR = Path("/proc/self/clear_refs")


def resident() -> int:
    """Return the resident bytes of this process."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def forget_peak() -> None:
    """Let `peak_memory` begin here, where the system can (Linux)."""
    if _CLEAR.exists():
        _CLEAR.write_text("5", encoding="ascii")
