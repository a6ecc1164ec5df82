"""The process in which one contestant is measured: reads a task, does the work, writes a sample.

    python -m kinfolk.bench.child < task.json > sample.json

The allocator and the number of threads are set before anything large is imported, the same for ours and for peers.
"""

import dataclasses
import gc
import importlib
import json
import os
import statistics
import sys
import time
from typing import Any

from kinfolk.bench import limits
from kinfolk.bench.contest import BenchContestant, BenchSample, BenchTask, Work
from kinfolk.core import allocator
from kinfolk.core.memory import forget_peak, peak_memory, resident

ALLOCATORS = {"default": lambda: True, "speed": allocator.favour_speed, "memory": allocator.favour_memory}
ENOUGH = 15.0
"""Seconds of steps after which no further one is begun."""


def main() -> None:
    """Do the task read from standard input."""
    given = json.load(sys.stdin)
    task = BenchTask(**given | {"contestant": BenchContestant(**given["contestant"])})
    # what a library prints must not end up in the sample
    out, sys.stdout = sys.stdout, sys.stderr
    json.dump(dataclasses.asdict(measure(task)), out)


def measure(task: BenchTask) -> BenchSample:
    """Do one task in this process."""
    bound_memory()
    ALLOCATORS[task.allocator]()
    subject: Any = importlib.import_module(f"kinfolk.bench.{task.subject}")
    if task.threads and subject.ENGINE:
        import torch

        torch.set_num_threads(task.threads)
    work: Work = subject.prepare(task.contestant, task.sizes)
    gc.collect()
    before, so_far = resident(), peak_memory()
    forget_peak()
    seconds, value = timed(work)
    most = peak_memory()
    return BenchSample(
        seconds=seconds,
        units=work.units,
        flops=work.flops,
        parameters=work.parameters,
        growth_bytes=max(0, most - before),
        peak_bytes=max(most, so_far),
        gemm=limits.gemm() if work.flops else 0.0,
        value=value,
        read_bytes=work.read_bytes,
        bandwidth=limits.bandwidth() if work.read_bytes else 0.0,
    )


def timed(work: Work) -> tuple[float, float | None]:
    """Return the median seconds of the work's steps, and what the last one returned if that is a number.

    After `ENOUGH` seconds the step that is running is the last one: a long step varies less than a short one, and one
    that took twice as long needs no second.
    """
    took, result, begun = [], None, time.perf_counter()
    for n in range(work.warm_up + work.steps):
        start = time.perf_counter()
        result = work.step()
        late = start - begun > ENOUGH or time.perf_counter() - start > 2 * ENOUGH
        if n >= work.warm_up or late:
            took.append(time.perf_counter() - start)
        if late:
            break
    return statistics.median(took), float(result) if isinstance(result, int | float) else None


def bound_memory(share: float = 0.85) -> None:
    """Let an allocation fail that the machine has no memory for, instead of the machine."""
    try:
        import resource

        most = int(share * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        resource.setrlimit(resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    except (ImportError, ValueError, OSError):
        pass  # elsewhere the system has its own ways


def environment(threads: int) -> dict[str, str]:
    """Return the environment of a child: its threads, no progress bars, no network."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    quiet = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    # the allocator is set in the child; a setting from outside would speak for one and not be stated
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    return inherited | dict.fromkeys(names, str(threads)) | quiet


if __name__ == "__main__":
    main()
