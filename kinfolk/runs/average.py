"""Checkpoint averaging: the mean of the weights of several checkpoints of a run (Vaswani et al. 2017, section 6.1)."""

from pathlib import Path

import torch
from torch import Tensor

from kinfolk.core.errors import CheckpointError
from kinfolk.runs.checkpoint import Checkpoints, name, verify


def averaged(out: Path, n: int) -> dict[str, Tensor]:
    """Return the mean of the newest `n` checkpoints' weights, taken in float64; a damaged one is refused."""
    checkpoints = Checkpoints(out / "checkpoints")
    steps = sorted(checkpoints.steps())[-n:]
    if n < 1 or len(steps) < n:
        raise CheckpointError(
            f"{out}: {len(steps)} checkpoints are kept, so the mean of {n} cannot be had; "
            "train with training.keep_last and training.save_every set for it"
        )
    sums: dict[str, Tensor] = {}
    kinds: dict[str, torch.dtype] = {}
    for step in steps:
        for key, x in verify(checkpoints.folder / name(step)).tensors("model").items():
            kinds[key] = x.dtype
            sums[key] = sums[key] + x.double() if key in sums else x.double()
    return {key: (x / n).to(kinds[key]) for key, x in sums.items()}
