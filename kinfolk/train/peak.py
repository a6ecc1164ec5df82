"""Peak throughput of matrix products on this device, measured: MFU is a share of it."""

import functools
import time
from collections.abc import Callable

import torch

from kinfolk.core.device import synchronize
from kinfolk.ops.linear_map import linear_into
from kinfolk.train.repeatable import products

_DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SIZES = {"cpu": 1024}
"""Side of the matrices by device: large enough to fill it."""
LARGE = 8192
"""Side on accelerators, where a product of 1,024 is over before the device is busy."""


@functools.cache
def gemm_flops(device: torch.device, precision: str = "fp32", *, size: int = 0, seconds: float = 0.2) -> float:
    """Return the most floating-point operations per second that a square product reaches, by the library that trains.

    The best of many short runs, because everything that disturbs a measurement makes it slower. Measured once in a
    process: runs that follow one another have one machine.
    """
    size = size or SIZES.get(device.type, LARGE)
    a = torch.linspace(-1, 1, size * size, device=device).view(size, size).to(_DTYPES[precision])
    b, out = a.clone(), torch.empty_like(a)
    with products(precision):
        return 2 * size**3 / best_time(lambda: linear_into(a, b, None, out), device, seconds=seconds)


def best_time(work: Callable[[], object], device: torch.device, *, seconds: float = 0.2) -> float:
    """Return the shortest time of a piece of work, tried for about `seconds`.

    The first time warms up and counts only when it took longer than that.
    """
    best, spent = _timed(work, device), 0.0
    if best > seconds:
        return best
    while spent < seconds:
        took = _timed(work, device)
        best, spent = min(best, took), spent + took
    return best


def _timed(work: Callable[[], object], device: torch.device) -> float:
    synchronize(device)
    start = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - start
