"""Deterministic operators, so that a run gives the same bits every time, and TF32 products."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.deterministic


@contextlib.contextmanager
def repeatable() -> Iterator[None]:
    """Ask for deterministic operators; where there is none, PyTorch warns and the run goes on."""
    settings: Any = torch.utils.deterministic
    old, fill = torch.get_deterministic_debug_mode(), settings.fill_uninitialized_memory
    # the same switch as `use_deterministic_algorithms`, which imports the compiler: seconds in every process
    torch.set_deterministic_debug_mode("warn")
    # filling new tensors would only find errors, at a cost
    settings.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(old)
        settings.fill_uninitialized_memory = fill


@contextlib.contextmanager
def products(precision: str) -> Iterator[None]:
    """Multiply fp32 matrices with the 10-bit mantissa of TF32 where that is the precision, and in full elsewhere."""
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = cudnn
