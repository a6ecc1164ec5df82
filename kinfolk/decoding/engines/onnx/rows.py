"""The decoding state of an exported model: KV cache and recurrent tensors by name, and the position of each row."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kinfolk.decoding.engines.onnx.session import Array, held
from kinfolk.runs.onnx_export import ExportRecord

NOWHERE = -1
"""Position of a key that does not exist."""


class DecodingRows:
    """The state of some rows. Rows may be chosen, repeated, and joined with those of another state."""

    def __init__(self, about: ExportRecord, tensors: dict[str, Any], start_B: Array, seen_BP: Array) -> None:
        self.about, self.tensors, self.start_B, self.seen_BP = about, tensors, start_B, seen_BP
        self.memory: dict[str, Any] = {}  # what an encoder said
        self.bound: Any = None  # the call that was made last, with its places

    def __len__(self) -> int:
        return len(self.start_B)

    def advance(self, n_new: int) -> None:
        """Move each row on by as many tokens."""
        if not self.about.fused:
            self.seen_BP = np.concatenate([self.seen_BP, self.start_B[:, None] + np.arange(n_new)], 1)
        self.start_B = self.start_B + n_new

    def select(self, rows_B: Array) -> None:
        """Make row i a copy of row `rows[i]`."""
        self.start_B, self.seen_BP, self.bound = self.start_B[rows_B], self.seen_BP[rows_B], None
        self.memory = {name: held(value.numpy()[rows_B]) for name, value in self.memory.items()}
        for kept in self.about.state:
            value = self.tensors[kept.name].numpy()
            self.tensors[kept.name] = held(np.take(value, rows_B, kept.axes.index("batch")))


def joined(parts: Sequence[DecodingRows]) -> DecodingRows:
    """Return the rows of several states as one; where one is shorter than another, there is nothing."""
    about = parts[0].about
    tensors = {}
    for kept in about.state:
        values = [part.tensors[kept.name].numpy() for part in parts]
        for axis, name in enumerate(kept.axes):
            if name in ("past", "memory"):
                values = _level(values, axis)
        tensors[kept.name] = held(np.concatenate(values, kept.axes.index("batch")))
    seen = np.concatenate(_level([part.seen_BP for part in parts], 1, NOWHERE))
    whole = DecodingRows(about, tensors, np.concatenate([part.start_B for part in parts]), seen)
    for name in parts[0].memory:
        # behind the end of a source nothing is real
        whole.memory[name] = held(np.concatenate(_level([part.memory[name].numpy() for part in parts], 1)))
    return whole


def _level(values: list[Array], axis: int, fill: int = 0) -> list[Array]:
    """Make arrays equally long along an axis."""
    longest = max(value.shape[axis] for value in values)
    out = []
    for value in values:
        missing = [(0, 0)] * value.ndim
        missing[axis] = (0, longest - value.shape[axis])
        out.append(np.pad(value, missing, constant_values=fill))
    return out
