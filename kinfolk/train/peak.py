"""How fast this device multiplies matrices, measured: what a model's speed is a share of."""

import time
from collections.abc import Callable

import torch

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def gemm_flops(device: torch.device, precision: str = "fp32", *, size: int = 1024, seconds: float = 0.2) -> float:
    """Return the most floating-point operations per second that a square product reaches.

    The best of many short runs, because everything that disturbs a measurement makes it slower.
    """
    torch.manual_seed(0)
    a = torch.randn(size, size, device=device).to(_DTYPES[precision])
    b, out = a.clone(), torch.empty_like(a)
    return 2 * size**3 / best_time(lambda: torch.mm(a, b, out=out), device, seconds=seconds)


def best_time(work: Callable[[], object], device: torch.device, *, seconds: float = 0.2, most: int = 1000) -> float:
    """Return the shortest time of a piece of work, tried for about `seconds` and at most so many times.

    Unless it is tried only once, the first time warms up and does not count.
    """
    best, spent, tried = _timed(work, device), 0.0, 1
    if most > 1:
        best = float("inf")
    while tried < most and (tried < 3 or spent < seconds):
        took = _timed(work, device)
        best, spent, tried = min(best, took), spent + took, tried + 1
    return best


def _timed(work: Callable[[], object], device: torch.device) -> float:
    _finish(device)
    start = time.perf_counter()
    work()
    _finish(device)
    return time.perf_counter() - start


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
