"""Accelerators of a comparison: one trial on each at a time, and the memory a trial takes of its own.

A child sees one device only, because its environment names it: no trial has to be told which it is.
"""

import os

VARIABLES = {"cuda": "CUDA_VISIBLE_DEVICES", "xpu": "ZE_AFFINITY_MASK"}
"""What restricts a process to some devices of a kind."""


def environments() -> list[dict[str, str]]:
    """Return what a child's environment has to say for each accelerator of this machine; none where there is none."""
    import torch

    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if device is None:
        return []
    variable = VARIABLES.get(device.type)
    if variable is None:
        return [{}]  # of this kind a machine has one
    n_devices = torch.accelerator.device_count()
    # where this process itself sees some only, these
    visible = os.environ.get(variable) or ",".join(map(str, range(n_devices)))
    return [{variable: name.strip()} for name in visible.split(",")[:n_devices]]


def peak_memory() -> int:
    """Return the most bytes of an accelerator that tensors of this process ever took; 0 where there is none."""
    import torch

    if not torch.accelerator.is_available():
        return 0
    if torch.accelerator.current_accelerator(check_available=True).type == "mps":  # type: ignore[union-attr]
        return int(torch.mps.driver_allocated_memory())
    return int(torch.accelerator.max_memory_allocated())
