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


class SpecOptimiser(torch.optim.Optimizer):
    """An optimiser written here: its hyperparameters are those of a spec, and one gradient makes one step."""

    def __init__(self, groups: list[dict[str, Any]], spec: Any) -> None:
        super().__init__(groups, {"lr": spec.lr})
        self.spec = spec

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Make one update from the gradients that are there."""
        assert closure is None, f"{self.spec.kind} needs one gradient for each step"
        for group in self.param_groups:
            self.update(group)

    def update(self, group: dict[str, Any]) -> None:
        """Update the parameters of one group; called without gradients."""
        raise NotImplementedError


def _unwrapped(method: Any) -> Any:
    while hasattr(method, "__wrapped__"):
        method = method.__wrapped__
    return method
