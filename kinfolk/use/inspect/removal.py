r"""Head importance: gates on heads, the gradient of the loss by them, and the loss without each head.

$\mathrm{MHA}(x) = \sum_h \xi_h\, \mathrm{Att}_h(x) W^O_h$; importance is $E_x |\partial L(x) / \partial \xi_h|$, the
absolute value taken for each example (Michel et al. 2019, equations 1 and 2).
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kinfolk.core.batch import Batch
from kinfolk.layers.linear_maps import LinearMap
from kinfolk.layers.module import Linear
from kinfolk.objectives.learner import Learner

Gates = dict[str, Tensor]


def gates_of(model: nn.Module) -> Gates:
    """Return a gate of one for every head of every part that joins heads by an output map, by the part's path."""
    found = {}
    for path, module in model.named_modules():
        out, n_heads = getattr(module, "out", None), getattr(getattr(module, "spec", None), "n_heads", 0)
        if isinstance(out, Linear | LinearMap) and n_heads and out.in_features % n_heads == 0:
            found[path] = torch.ones(n_heads, dtype=out.weight.dtype, device=out.weight.device)
    return found


@contextlib.contextmanager
def gated(model: nn.Module, gates: Gates) -> Iterator[None]:
    """Multiply what heads give to their output map by gates [H], or [B, H] for each example."""
    handles = []
    for path, gate in gates.items():
        out: Any = model.get_submodule(path).out
        handles.append(out.register_forward_pre_hook(_hook(gate)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hook(gate: Tensor) -> Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...]]:
    def hook(module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x_BLD = given[0]
        n_heads = gate.shape[-1]
        wide = gate.view(-1, 1, n_heads, 1) if gate.ndim == 2 else gate.view(n_heads, 1)
        return ((x_BLD.unflatten(-1, (n_heads, -1)) * wide).flatten(-2), *given[1:])

    return hook


def importance(learner: Learner, batches: Sequence[Batch]) -> Gates:
    """Return how much the loss leans on each head: the mean over examples of the size of the gate's gradient."""
    sums: Gates = {path: torch.zeros_like(gate) for path, gate in gates_of(learner.model).items()}
    count = 0
    for batch in batches:
        for i in range(len(batch)):
            gates = {path: torch.ones_like(total, requires_grad=True) for path, total in sums.items()}
            with gated(learner.model, gates):
                loss = learner(batch.rows(slice(i, i + 1)))
            grads = torch.autograd.grad(loss.total / loss.count.clamp(min=1), list(gates.values()), allow_unused=True)
            for path, grad in zip(gates, grads, strict=True):
                sums[path] += 0 if grad is None else grad.abs()
            count += 1
    return {path: total / max(1, count) for path, total in sums.items()}


def removed(
    learner: Learner, batches: Sequence[Batch], tell: Callable[[int, int], None] | None = None
) -> tuple[float, Gates]:
    """Return the loss as it is, and for each head how much it rises without that head, in nats per target."""
    gates = gates_of(learner.model)
    whole = mean_loss(learner, batches)
    rises = {path: torch.zeros_like(gate) for path, gate in gates.items()}
    heads = [(path, h) for path, gate in gates.items() for h in range(len(gate))]
    for done, (path, h) in enumerate(heads):
        without = torch.ones_like(gates[path])
        without[h] = 0.0
        with gated(learner.model, {path: without}):
            rises[path][h] = mean_loss(learner, batches) - whole
        if tell is not None:
            tell(done + 1, len(heads))
    return whole, rises


@torch.no_grad()
def mean_loss(learner: Learner, batches: Sequence[Batch]) -> float:
    """Return the loss over some batches, in nats per target."""
    total = count = 0.0
    for batch in batches:
        loss = learner(batch)
        total, count = total + float(loss.total), count + float(loss.count)
    return total / max(1.0, count)
