"""One training loop, and what it needs: steps, checkpoints, metrics, precision, several processes.

Names are imported when first used, so that reading a run's files does not import models.
`evaluate` and `calibrate` are in the modules of their names.
"""

import sys
import types
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinfolk.runs.options import RunOptions
    from kinfolk.train.evaluate import MeanScore, bits_per_byte
    from kinfolk.train.job import Result, TrainingJob
    from kinfolk.train.run import resume, train

_HOME = {
    "TrainingJob": "kinfolk.train.job",
    "Result": "kinfolk.train.job",
    "RunOptions": "kinfolk.runs.options",
    "MeanScore": "kinfolk.train.evaluate",
    "bits_per_byte": "kinfolk.train.evaluate",
    "resume": "kinfolk.train.run",
    "train": "kinfolk.train.run",
}

__all__ = [
    "MeanScore",
    "Result",
    "RunOptions",
    "TrainingJob",
    "bits_per_byte",
    "resume",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


class _Verb(types.ModuleType):
    """This package, which can be called: `kf.train` is the function even after an import made it the package."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from kinfolk.train.public import train as verb

        return verb(*args, **kwargs)


sys.modules[__name__].__class__ = _Verb
