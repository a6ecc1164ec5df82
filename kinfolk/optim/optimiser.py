"""The optimiser axis: a spec that turns a model into a `torch.optim.Optimizer`.

A new optimiser is a class with `kind` and `make`; which parameters decay is decided here, once for all kinds.
"""

from typing import Annotated, Any, Literal

import torch
from torch import nn

from kinfolk.core.bounds import Bounds, NonNegativeFloat, PositiveFloat, Rate
from kinfolk.core.errors import SpecError
from kinfolk.core.spec import Spec
from kinfolk.optim.eager import eager
from kinfolk.optim.groups import Groups, Together


class Optimiser(Spec):
    """Axis: optimisers.

    lr: the peak learning rate; the schedule multiplies it.
    weight_decay: pulled towards zero by this share of lr at each step.
    decay: which parameters decay. "matrices": all but biases, gains and other vectors (GPT-2, BERT);
        "hidden": matrices, but not embeddings; "all": everything.
    """

    lr: PositiveFloat = 1e-3
    weight_decay: NonNegativeFloat = 0.0
    decay: Literal["matrices", "hidden", "all"] = "matrices"

    def build(self, model: nn.Module, groups: Groups | None = None) -> torch.optim.Optimizer:
        """Make the optimiser of a model's trainable parameters, in groups with and without decay."""
        return self.make(named_groups(model, self.decay, self.weight_decay, groups))

    def make(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Make the optimiser of ready groups (each has `params`, `names`, `decays` and `weight_decay`)."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it is made")


class AdamW(Optimiser, kind="adamw"):
    """Adam with decay taken out of the gradient (Loshchilov and Hutter 2019, algorithm 2), one fused kernel.

    betas: how much of the running mean of the gradient and of its square is kept.
    eps: added to the root of the mean square.
    """

    lr: PositiveFloat = 1e-3
    betas: tuple[Rate, Rate] = (0.9, 0.999)
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.01

    def make(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return eager(torch.optim.AdamW)(groups, lr=self.lr, betas=self.betas, eps=self.eps, fused=True)


class Adam(Optimiser, kind="adam"):
    """Adam (Kingma and Ba 2015) with the numbers of Vaswani et al. 2017, section 5.3.

    `weight_decay` is here the L2 term of the loss, as in the paper of Adam; `AdamW` separates the two.
    The learning rate is 1 because the schedule of that section, `InverseSqrt`, is the whole rate.
    """

    lr: PositiveFloat = 1.0
    betas: tuple[Rate, Rate] = (0.9, 0.98)
    eps: PositiveFloat = 1e-9

    def make(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return eager(torch.optim.Adam)(groups, lr=self.lr, betas=self.betas, eps=self.eps, fused=True)


class Momentum(Optimiser, kind="momentum"):
    """Gradient descent that goes on in the direction it had (Polyak 1964); `momentum` is the share that is kept."""

    lr: PositiveFloat = 3e-3
    momentum: Rate = 0.99

    def make(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return eager(torch.optim.SGD)(groups, lr=self.lr, momentum=self.momentum, fused=True)


class Adafactor(Optimiser, kind="adafactor"):
    r"""Second moments of a matrix from their sums over rows and columns (Shazeer and Stern 2018, algorithm 4).

    Memory grows with the sides of a matrix, not with its area. A step is at most `lr` times the root mean square of the
    weights; `rho` is the power $c$ in $\hat\beta_2 = 1 - t^c$, `threshold` clips the root mean square of an update.
    """

    lr: PositiveFloat = 1e-2
    rho: Annotated[float, Bounds(-1, 0)] = -0.8
    eps: PositiveFloat = 1e-3
    threshold: PositiveFloat = 1.0

    def make(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return eager(torch.optim.Adafactor)(
            groups, lr=self.lr, beta2_decay=self.rho, eps=(None, self.eps), d=self.threshold, weight_decay=0.0
        )


def named_groups(
    model: nn.Module, decay: str, weight_decay: float, groups: Groups | None = None
) -> list[dict[str, Any]]:
    """Split a model's trainable parameters into those that decay and those that do not, and by how they move.

    A parameter shared by two modules appears once. `names` travels with the group so that a checkpoint can
    store the optimiser's memory by parameter name instead of by position, and `places` so that sums over all
    parameters are taken in one order, however they are grouped.
    """
    embeddings = embeddings_of(model)
    moves = (groups or Together()).moves(name for name, _ in model.named_parameters())
    made: dict[Any, dict[str, Any]] = {}
    for place, (name, parameter) in enumerate(model.named_parameters()):
        move = moves[name]
        if not parameter.requires_grad or move is None:
            continue
        decays = decay == "all" or (parameter.ndim >= 2 and not (decay == "hidden" and id(parameter) in embeddings))
        empty = {"params": [], "names": [], "places": [], "decays": decays}
        empty |= {"weight_decay": weight_decay if decays else 0.0, "lr_scale": move.scale}
        group = made.setdefault((not decays, *move), empty | {"turns": move.turns, "turn": move.turn})
        group["params"].append(parameter)
        group["names"].append(name)
        group["places"].append((not decays, place))
    if not made:
        raise SpecError(f"{type(model).__name__} has no trainable parameter")
    return [made[key] for key in sorted(made)]


def embeddings_of(model: nn.Module) -> set[int]:
    """Return the identities of parameters that embed something."""
    tables = (m for m in model.modules() if isinstance(m, nn.Embedding) or "Embedding" in type(m).__name__)
    return {id(p) for m in tables for p in m.parameters(recurse=False)}
