"""Processor, cores and threads of this machine: asked, never measured, so that no answer depends on the load."""

import os
import platform
from pathlib import Path

FLOPS_PER_THREAD = 2e9
"""Work of a step below which one more thread costs more in waiting than it computes (about 30 ms of one core)."""

AMD = "AuthenticAMD"
"""What its processors say of their maker."""
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_CPU = Path("/proc/cpuinfo")


def cpu_field(name: str) -> str:
    """Return what Linux says of the first processor, such as its "vendor_id" or "flags"; "" elsewhere."""
    try:
        first = _CPU.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    except OSError:
        return ""
    pairs = (line.partition(":") for line in first.splitlines())
    return next((value.strip() for key, _, value in pairs if key.strip() == name), "")


def processor() -> str:
    """Return the name of the processor, as far as the system tells; with its family, since hosts hide the model."""
    name, family = cpu_field("model name"), cpu_field("cpu family")
    return f"{name}, family {family}" if name and family else name or platform.processor() or platform.machine()


def cores() -> int:
    """Return the cores this process may use, which a container or a batch system may have cut down."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text(encoding="ascii").split()
        return max(1, min(allowed, int(quota) // int(period)))
    except (OSError, ValueError):
        # no control groups here, or no quota ("max")
        return allowed


def threads_for(step_flops: float, processes: int = 1) -> int:
    """Return the threads of a process with steps of `step_flops` operations: its share of the cores, if they are busy.

    OMP_NUM_THREADS, where it is set, is an answer already.
    """
    setting = os.environ.get("OMP_NUM_THREADS", "")
    if setting.isdigit() and int(setting):
        return int(setting)
    useful = max(1, int(step_flops / FLOPS_PER_THREAD))
    return max(1, min(cores() // processes, useful))


def sleep_at_barriers() -> None:
    """Let OpenMP's threads sleep while they wait for each other; to be called before a tensor library is imported.

    By default they spin. On a machine with other work a spinning thread keeps the core that the one it waits for would
    need: two threads were then ten times slower than one. The results are the same bits either way.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
