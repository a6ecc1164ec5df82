"""How many trials run side by side, and with how many threads each.

Trials share nothing, so cores filled with one-thread trials lose nothing to waiting for each other, while the
threads of one small model wait after every operator. So: as many trials as there are cores, unless there
are fewer trials than cores or their memory does not fit; the cores left over become threads. Every trial of
a comparison has the same number of threads, or their tokens per second could not be compared.
"""

import dataclasses
import os

FLOPS_PER_THREAD = 2e9
"""Work of a step below which one more thread costs more in waiting than it computes (about 30 ms of one core)."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """`jobs` trials at a time, `threads` threads each."""

    jobs: int
    threads: int

    def __str__(self) -> str:
        trials = "1 trial at a time" if self.jobs == 1 else f"{self.jobs} trials side by side"
        return f"{trials}, {self.threads} thread{'s' * (self.threads > 1)} each"


def choose(
    *,
    trials: int,
    step_flops: float,
    trial_bytes: float,
    cores: int | None = None,
    memory: float | None = None,
    jobs: int | None = None,
    threads: int | None = None,
) -> Layout:
    """Choose a layout; `jobs` and `threads` are what the user fixed, the rest is what the machine has.

    step_flops: operations of one step of the smallest contestant; trial_bytes: memory of the largest one.
    """
    cores = cores or available_cores()
    memory = available_memory() if memory is None else memory
    if jobs is None:
        fitting = max(1, int(0.8 * memory / trial_bytes)) if trial_bytes else cores
        jobs = max(1, min(trials, fitting, cores // (threads or 1)))
    if threads is None:
        useful = max(1, int(step_flops / FLOPS_PER_THREAD))
        threads = max(1, min(cores // jobs, useful))
    return Layout(jobs, threads)


def available_cores() -> int:
    """Return the cores this process may use, which a container or a batch system may have cut down."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_memory() -> float:
    """Return the bytes that can be had without swapping."""
    import psutil

    return float(psutil.virtual_memory().available)
