"""Differences of two model specs, as paths and values."""

import dataclasses
from typing import Any

from kinfolk.core.spec import Spec

PRACTICE = ("z_loss", "init", "dropout")
"""What is of account in training alone: a model that differs in it is the same function."""


def differences(a: Any, b: Any, path: str = "model", free: tuple[str, ...] = ()) -> list[str]:
    """Return one line for each place where `b` is another function than `a` says."""
    if isinstance(a, Spec) and type(a) is type(b):
        names = [field.name for field in dataclasses.fields(a) if field.name not in (*PRACTICE, *free)]
        return [line for n in names for line in differences(getattr(a, n), getattr(b, n), f"{path}.{n}")]
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return [line for i, pair in enumerate(zip(a, b, strict=True)) for line in differences(*pair, f"{path}[{i}]")]
    return [] if a == b else [f"{path} is {b!r}, and there is only room for {a!r}"]
