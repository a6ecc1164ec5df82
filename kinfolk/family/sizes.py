"""Three sizes for every relative. `base` has the numbers of its paper; `tiny` and `small` are for a laptop.

The smaller sizes have no dropout: within minutes no model comes near to learning its data by heart. Their training is
short, and the same for all relatives but for what a relative is known by (its schedule, its objective), so that a
comparison compares relatives and not how carefully their learning rates were set.
"""

import dataclasses
from typing import Any

from kinfolk.optim.schedule import FlatInverseSqrt, InverseSqrt
from kinfolk.optim.training import Training


@dataclasses.dataclass(frozen=True)
class Size:
    """Numbers for a relative's function, and changes to its training."""

    numbers: dict[str, Any]
    training: dict[str, Any]


DEFAULT_SIZE = "tiny"
"""Where none is named, in Python and on the command line."""

SIZES = {
    "tiny": Size(
        {
            "d_model": 128,
            "n_layers": 2,
            "n_heads": 4,
            "d_ff": 512,
            "vocab_size": 263,
            "max_len": 512,
            "dropout": 0.0,
            "image_width": 16,
            "channels": 1,
            "patch": 4,
            "n_routed": 16,
        },
        {"steps": 400, "batch_size": 16, "length": 128},
    ),
    "small": Size(
        {
            "d_model": 256,
            "n_layers": 4,
            "n_heads": 4,
            "d_ff": 1024,
            "vocab_size": 8192,
            "max_len": 1024,
            "dropout": 0.0,
            "image_width": 32,
            "channels": 1,
            "patch": 4,
            "n_routed": 32,
        },
        {"steps": 2000, "batch_size": 16, "length": 256},
    ),
    "base": Size({}, {}),
}


def fit(training: Training, size: Size) -> Training:
    """Shorten a paper's training to a size: fewer steps, a warm-up in proportion, a rate for a small model."""
    if not size.training:
        return training
    # the inverse square root is the whole rate; a tenth of it peaks near 1e-3 at these widths and steps
    lr = 0.1 if isinstance(training.schedule, InverseSqrt | FlatInverseSqrt) else 1e-3
    return training.replace(
        optimiser=training.optimiser.replace(lr=lr), schedule=training.schedule.replace(warmup=0.1), **size.training
    )
