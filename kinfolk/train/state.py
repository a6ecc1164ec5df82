"""State of a run as a checkpoint stores it: counters, weights, and the optimiser's state.

On disk every tensor is whole and has the name of its parameter, however many processes held it, so a run can go on
with another number of processes or another strategy.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from kinfolk.core.errors import CheckpointError
from kinfolk.objectives.measures.measure import measure_of
from kinfolk.runs.checkpoint import Saved, Tensors
from kinfolk.train.parallel import Team
from kinfolk.train.step import LossScale

_MODEL = "model."


@dataclasses.dataclass
class Counters:
    """How far a run is. `seconds` is the time of training steps, over all parts of an interrupted run."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    loss: float | None = None
    valid: dict[str, float] = dataclasses.field(default_factory=dict)
    bits_per_byte: float | None = None
    best: float | None = None
    best_step: int | None = None
    stale: int = 0

    def judge(self, valid: dict[str, float], metric: str = "") -> bool:
        """Take in a validation, judged by a metric, or else its first measure; return whether it is the best so far."""
        self.valid = valid
        name = metric or next(iter(valid))
        if measure_of(name).better(valid[name], self.best):
            self.best, self.best_step, self.stale = valid[name], self.step, 0
            return True
        self.stale += 1
        return False


def collect(
    learner: nn.Module, optimiser: torch.optim.Optimizer, team: Team
) -> tuple[dict[str, Tensors], dict[str, Any]]:
    """Return the tensors of a checkpoint by file, and the optimiser's scalars. All processes must call it."""
    files: dict[str, Tensors] = {"model": {}, "objective": {}, "optimiser": {}}
    for name, tensor in _distinct(learner):
        whole = _whole(tensor, team)
        if name.startswith(_MODEL):
            files["model"][name.removeprefix(_MODEL)] = whole
        else:
            files["objective"][name] = whole
    scalars: dict[str, Any] = {}
    for name, memory in _memories(optimiser):
        for key, value in memory.items():
            if isinstance(value, Tensor):
                files["optimiser"][f"{key}/{name}"] = _whole(value, team)
            else:
                scalars[f"{key}/{name}"] = value
    return files, scalars


def restore(
    saved: Saved, learner: nn.Module, optimiser: torch.optim.Optimizer, team: Team
) -> tuple[Counters, LossScale | None]:
    """Put a checkpoint back into a learner and its optimiser; return the counters and the loss scale."""
    weights = {f"{_MODEL}{name}": tensor for name, tensor in saved.tensors("model").items()}
    weights |= saved.tensors("objective")
    own = dict(_distinct(learner))
    if set(weights) != set(own):
        wrong = sorted(set(weights) ^ set(own))
        raise CheckpointError(f"{saved.path}: does not fit the model: {len(wrong)} names differ, e.g. {wrong[0]}")
    with torch.no_grad():
        for name, tensor in own.items():
            if weights[name].shape != tensor.shape:
                raise CheckpointError(
                    f"{saved.path}: {name} has shape {tuple(weights[name].shape)}, the model {tuple(tensor.shape)}"
                )
            tensor.copy_(team.like(weights[name], tensor))
    _restore_optimiser(saved, optimiser, team)
    scale = saved.state["scale"]
    return Counters(**saved.state["counters"]), LossScale(**scale) if scale else None


def _restore_optimiser(saved: Saved, optimiser: torch.optim.Optimizer, team: Team) -> None:
    values: dict[str, Any] = saved.tensors("optimiser") | saved.state["optimiser"]
    memories: dict[str, dict[str, Any]] = {}
    for label, value in values.items():
        key, name = label.split("/", 1)
        memories.setdefault(name, {})[key] = value
    for group in optimiser.param_groups:
        for name, parameter in zip(group["names"], group["params"], strict=True):
            for key, value in memories.pop(name, {}).items():
                if isinstance(value, Tensor):
                    value = (
                        team.like(value, parameter) if value.shape == parameter.shape else value.to(parameter.device)
                    )
                optimiser.state[parameter][key] = value
    if memories:
        raise CheckpointError(
            f"{saved.path}: the optimiser remembers {next(iter(memories))}, which is not trained here"
        )


def _memories(optimiser: torch.optim.Optimizer) -> list[tuple[str, dict[str, Any]]]:
    return [
        (name, optimiser.state[parameter])
        for group in optimiser.param_groups
        for name, parameter in zip(group["names"], group["params"], strict=True)
        if parameter in optimiser.state
    ]


def _distinct(learner: nn.Module) -> list[tuple[str, Tensor]]:
    """Return what a state dict holds, a tensor shared by two modules once, under its first name."""
    seen: set[int] = set()
    distinct = []
    for name, tensor in learner.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            distinct.append((name, tensor))
    return distinct


def _whole(tensor: Tensor, team: Team) -> Tensor:
    """Return a tensor as it goes to disk; the processes that do not write keep nothing."""
    whole = team.full(tensor.detach())
    return whole.cpu().contiguous() if team.main else whole.new_empty(0)
