"""Optimisers without torch.compile: their methods as PyTorch defines them, without the wrappers for its compiler.

PyTorch wraps four methods of every optimiser, and `step` of most, in calls that import the compiler (`torch._dynamo`,
about three seconds of processor time) to mark a graph break. No optimiser is compiled here, so nothing is lost.
"""

import functools
from typing import Any, TypeVar

import torch

Made = TypeVar("Made", bound=torch.optim.Optimizer)

WRAPPED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


@functools.cache
def eager(cls: type[Made]) -> type[Made]:
    """Return `cls` with the functions behind its wrappers; `step` runs without gradients, as behind its own."""
    methods = {name: _unwrapped(getattr(cls, name)) for name in WRAPPED}
    return type(cls.__name__, (cls,), methods | {"step": torch.no_grad()(_unwrapped(cls.step))})


def _unwrapped(method: Any) -> Any:
    while hasattr(method, "__wrapped__"):
        method = method.__wrapped__
    return method
