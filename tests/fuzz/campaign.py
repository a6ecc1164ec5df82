"""Fuzz campaigns: seeded cases in forked workers, each within a bound of processor time and memory.

A case is a function of a random generator. It returns, or raises: `KinfolkError` is a refusal, anything else is
unexpected. A worker that takes too long is killed, and one that asks for too much memory gets a `MemoryError`
from a limit of the kernel, so no case can take the machine with it.
"""

import collections
import dataclasses
import os
import random
import resource
import select
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from kinfolk.core.errors import KinfolkError

GOOD = ("accepted", "refused")
ASLEEP = 20
"""A worker that waits for something that never comes uses no processor: after so many times its limit it hangs too."""


@dataclasses.dataclass
class Report:
    """Counts of outcomes, and a few lines about each failure."""

    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    failures: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        counts = ", ".join(f"{n} {outcome}" for outcome, n in sorted(self.counts.items()))
        return "\n".join([counts, *self.failures[:20]])


def run(
    case: Callable[[random.Random], object], seeds: Sequence[int], *, seconds: float = 60.0, megabytes: int = 1500
) -> Report:
    """Run a case for every seed; the counts are printed, and an outcome that is not good is in the failures."""
    # what all cases need is made before the workers are forked
    getattr(case, "setup", lambda: None)()
    report, left = Report(), list(seeds)
    while left:
        done = _worker(case, left, seconds, megabytes, report)
        left = left[done:]
    print(f"{case.__name__}: {report}")  # noqa: T201
    return report


def _worker(
    case: Callable[[random.Random], object], seeds: Sequence[int], seconds: float, megabytes: int, report: Report
) -> int:
    """Run cases in one forked process until it ends; return how many seeds are settled."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _child(case, seeds, megabytes, writing)
    os.close(writing)
    settled, rest, fate, used, quiet = 0, b"", "", 0.0, 0.0
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while not fate and settled < len(seeds):
            began = time.monotonic()
            ready, _, _ = select.select([pipe], [], [], seconds)
            if not ready:
                # on a busy machine a minute may pass with nothing done: what counts is what the worker has had of it
                quiet += time.monotonic() - began
                if _processor_seconds(child) - used < seconds and quiet < ASLEEP * seconds:
                    continue
            used, quiet = _processor_seconds(child), 0.0
            chunk = pipe.read(1 << 16) if ready else b""
            if not chunk:
                fate = "died" if ready else "hang"
            *lines, rest = (rest + chunk).split(b"\0")
            for line in lines:
                settled += 1
                _note(report, line.decode(errors="replace"))
    if fate == "hang":
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if settled < len(seeds):
        _note(report, f"{fate}\tseed {seeds[settled]}: status {status} after {seconds:g} s")
        settled += 1
    return settled


def _processor_seconds(process: int) -> float:
    times = psutil.Process(process).cpu_times()
    return float(times.user + times.system)


def _note(report: Report, line: str) -> None:
    outcome, _, about = line.partition("\t")
    report.counts[outcome] += 1
    if outcome not in GOOD:
        report.failures.append(f"{outcome}: {about}")


def _child(case: Callable[[random.Random], object], seeds: Sequence[int], megabytes: int, writing: int) -> None:
    # what a case prints is not asked for
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    status = Path("/proc/self/status").read_text(encoding="ascii")
    used = int(status.partition("VmData:")[2].split()[0])
    resource.setrlimit(resource.RLIMIT_DATA, ((used << 10) + (megabytes << 20),) * 2)
    for seed in seeds:
        os.write(writing, f"{_outcome(case, seed)}\0".encode(errors="replace"))
    os._exit(0)


def _outcome(case: Callable[[random.Random], object], seed: int) -> str:
    began = time.monotonic()
    try:
        case(random.Random(seed))
        return "accepted"
    except KinfolkError as error:
        # a message is for people: one that nobody can read says nothing
        return "refused" if 5 < len(str(error)) < 5000 else f"unreadable\tseed {seed}: {str(error)[:200]}"
    except BaseException as error:
        memory = isinstance(error, MemoryError) or "can't allocate memory" in str(error)
        place = [f"{f.filename.rpartition('/')[2]}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)[-4:]]
        about = f"{type(error).__name__}: {str(error)[:200]} at {' < '.join(reversed(place))}"
        return f"{'memory' if memory else 'unexpected'}\tseed {seed}: {about} ({time.monotonic() - began:.1f} s)"
