"""One training loop, and what it needs: steps, checkpoints, metrics, precision, several processes.

Names are imported when first used, so that reading a run's files does not import models.
`evaluate` and `calibrate` stand in the modules of their names.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinfolk.train.evaluate import Score, bits_per_byte
    from kinfolk.train.job import Job, Result, RunOptions
    from kinfolk.train.run import load_learner, resume, train

_HOME = {
    "Job": "job",
    "Result": "job",
    "RunOptions": "job",
    "Score": "evaluate",
    "bits_per_byte": "evaluate",
    "load_learner": "run",
    "resume": "run",
    "train": "run",
}

__all__ = [
    "Job",
    "Result",
    "RunOptions",
    "Score",
    "bits_per_byte",
    "load_learner",
    "resume",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
