"""malloc thresholds of glibc: keep freed memory for speed, or return it to the system for a small process.

Large tensors come and go every step. By default glibc asks the system for each and returns it, and half of the time of
block-sparse attention goes into page faults. Keeping freed memory avoids that at a larger resident size.
"""

import ctypes
import functools
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


@functools.cache
def _mallopt() -> object:
    if not sys.platform.startswith("linux"):
        return None
    try:
        return ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return None


def _set(threshold: int) -> bool:
    mallopt = _mallopt()
    if not callable(mallopt):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, threshold)) and bool(mallopt(_M_TRIM_THRESHOLD, threshold))


def favour_speed() -> bool:
    """Keep freed memory. Returns false where the allocator has no such dial; nothing changes then."""
    return _set(1 << 30)


def favour_memory() -> bool:
    """Give freed memory back at once."""
    return _set(1 << 20)
