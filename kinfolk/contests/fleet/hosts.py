"""Names of workers: the host, the process, and whether that process is known to be gone."""

import functools
import hashlib
import os
import re
import socket
import time
import uuid
from pathlib import Path

NAME = re.compile(r"(?P<host>.+)-(?P<space>[0-9a-f]{8})-(?P<pid>\d+)-[0-9a-f]{6}")


DRIVER = "driver."
"""What the name of a claim begins with that a driver holds on behalf of a node."""


def worker_name(prefix: str = "") -> str:
    """Return a name that no other worker has: host, space of process ids, process, and a part of a random number."""
    return f"{prefix}{host()}-{space()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"


def host() -> str:
    """Return the name of this host as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:40]


@functools.cache
def space() -> str:
    """Return what tells apart hosts, boots and containers in which one process id means different processes."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        text = boot + str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        # nothing is known of the processes of such a host, so each of ours is in a space of its own
        text = uuid.uuid4().hex
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def is_gone(worker: str) -> bool:
    """Tell whether a worker was a process of this host that does not exist any more."""
    match = NAME.fullmatch(worker)
    if match is None or match["space"] != space():
        return False
    try:
        os.kill(int(match["pid"]), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


SKEW = 30.0
"""Seconds between this host's clock and that of a shared folder from which on it is worth a line."""


def skew(folder: Path) -> float:
    """Return how many seconds this host's clock is ahead of the clock that stamps files in a folder."""
    probe = folder / f".clock-{worker_name()}"
    probe.touch()
    stamp = probe.stat().st_mtime
    probe.unlink()
    return time.time() - stamp
