"""Memory check before building: parameters in closed form against RAM and the header of the weights."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from kinfolk.core import memory
from kinfolk.core.errors import CheckpointError
from kinfolk.core.plain import to_plain
from kinfolk.models.cost import cost
from kinfolk.models.model_spec import Model

TABLE = 1 << 30
"""Bytes of a computed table that a model may have however few weights it has."""


def check_memory(spec: Model) -> None:
    """Raise if no machine of this size holds the model; on the meta device nothing is held."""
    if torch.get_default_device().type != "meta":
        params = cost(spec, 1).params
        memory.require(4 * params, f"model: {params:,} parameters")
        memory.require(table_bytes(spec), "model: a table as long as the largest number of the spec")


def check_size(spec: Model, file: Path) -> None:
    """Raise if a spec describes a model far larger than its file of weights, before anything is allocated for it.

    Whether every tensor fits is said by `load_weights`; closed form and file may differ by buffers and tied weights.
    """
    try:
        with safe_open(file, framework="pt") as tensors:
            stored = sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
    except (SafetensorError, OSError):
        # damaged or missing, which is said when it is read
        return
    if (described := cost(spec, 1).params) > 4 * stored + 1_000_000:
        raise CheckpointError(
            f"{file} does not fit the model: it holds {stored:,} numbers, the spec says {described:,} parameters"
        )
    if table_bytes(spec) > max(TABLE, 64 * stored):
        raise CheckpointError(
            f"{file} does not fit the model: a number of the spec is too large for {stored:,} weights"
        )


def table_bytes(model: Model) -> int:
    """Return the bytes of the largest table that a number of a spec may lead to, in float64 while it is computed.

    Tables of positions and random features are no parameters, and as long as one of the numbers of a spec.
    """
    return 8 * model.d_model * max(_numbers(to_plain(model)))


def _numbers(value: Any, key: str = "") -> Iterator[int]:
    """Yield the integers of plain data, without seeds."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _numbers(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from _numbers(item, key)
    elif isinstance(value, int) and key != "seed":
        yield value
