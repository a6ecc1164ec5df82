"""The layout of a comparison: trials side by side, and threads of each.

Trials share nothing, so cores filled with one-thread trials lose nothing to waiting for each other, while the
threads of one small model wait after every operator. So: as many trials as there are cores, unless there
are fewer trials than cores or their memory does not fit; the cores left over become threads. Every trial of
a comparison has the same number of threads, or their tokens per second could not be compared.
"""

import dataclasses

from kinfolk.core import machine


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
    free: float | None = None,
    jobs: int | None = None,
    threads: int | None = None,
) -> Layout:
    """Choose a layout; `jobs` and `threads` are what the user fixed, the rest is what the machine has.

    step_flops: operations of one step of the smallest contestant; trial_bytes: memory of the largest one.
    memory, free: of the machine, and what is left of it now. Threads, on which sums depend, follow from the first; what
    happens to be free only keeps trials from running side by side.
    """
    cores = cores or machine.cores()
    if memory is None or free is None:
        memory, free = memories()
    fixed = jobs
    if jobs is None:
        jobs = max(1, min(trials, _fitting(memory, trial_bytes), cores // (threads or 1)))
    if threads is None:
        useful = max(1, int(step_flops / machine.FLOPS_PER_THREAD))
        threads = max(1, min(cores // jobs, useful))
    return Layout(fixed or min(jobs, _fitting(free, trial_bytes)), threads)


def _fitting(memory: float, trial_bytes: float) -> int:
    return max(1, int(0.8 * memory / max(1.0, trial_bytes)))


def memories() -> tuple[float, float]:
    """Return the bytes of the machine, and those that can be had now without swapping."""
    import psutil

    memory = psutil.virtual_memory()
    return float(memory.total), float(memory.available)
