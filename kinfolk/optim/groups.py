"""Axis Groups: parameter groups, frozen weights, layer-wise learning-rate decay, gradual unfreezing.

Fine-tuning has many tactics of this kind. Each is a value here, read by the optimiser as data; the loop knows none of
them. A group waits until its turn, and what waits has no gradient.
"""

import fnmatch
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from kinfolk.core.bounds import NonNegativeFloat, NonNegativeInt, PositiveFloat
from kinfolk.core.errors import SpecError
from kinfolk.core.spec import Spec

_BLOCK = re.compile(r"(encoder|decoder)\.(?:.*?\.)?blocks\.(\d+)\.")


class Move(NamedTuple):
    """How a parameter moves: its share of the learning rate, and after how many turns of which length it begins.

    A turn is a number of steps, or below 1 a share of all steps.
    """

    scale: float = 1.0
    turns: int = 0
    turn: float = 0.0


class Groups(Spec):
    """Axis: parameter groups: learning rates by depth, layers that stay frozen."""

    def move(self, name: str, depth: int, top: int) -> Move | None:
        """Return how a parameter of this name and depth moves; None: not at all.

        Depth 0 is the embedding, 1 to `top` - 1 are the blocks, those of an encoder first, and `top` is the head.
        """
        raise NotImplementedError

    def moves(self, names: Iterable[str]) -> dict[str, Move | None]:
        """Return how each of these parameters moves."""
        names = list(names)
        depth = depths(names)
        top = 1 + max((depth[name] for name in names if _BLOCK.match(_bare(name))), default=0)
        return {name: self.move(_bare(name), depth[name], top) for name in names}

    def freeze(self, model: nn.Module) -> None:
        """Take the gradients from what never moves."""
        moves = self.moves(name for name, _ in model.named_parameters())
        if not any(moves.values()):
            raise SpecError(f"groups: {self.kind!r} leaves no parameter that moves")
        for name, parameter in model.named_parameters():
            if moves[name] is None:
                parameter.requires_grad_(False)


class Together(Groups, kind="together"):
    """Everything moves alike."""

    def move(self, name: str, depth: int, top: int) -> Move | None:
        return Move()


class SomeWeights(Groups, kind="some"):
    """Only what has one of these names moves; a star matches anything.

    `head.*` alone is feature extraction with a frozen body; with `*bias` it is BitFit (Ben Zaken et al. 2022).
    """

    names: tuple[str, ...] = ("head.*", "partner.*")

    def move(self, name: str, depth: int, top: int) -> Move | None:
        return Move() if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.names) else None


class HeadFirst(Groups, kind="head-first"):
    """First the head alone, then everything (Peters et al. 2019); `alone` is a number of steps, or a share of all.

    `scale` is the body's share of the learning rate.
    """

    alone: NonNegativeFloat = 0.3
    scale: PositiveFloat = 1.0

    def move(self, name: str, depth: int, top: int) -> Move | None:
        return Move() if depth == top else Move(self.scale, 1 if self.alone else 0, self.alone)


class LayerWise(Groups, kind="layer-wise"):
    r"""Each block moves `factor` times as far as the one above it: $\eta^{l-1} = \xi\,\eta^l$.

    factor: 1 / 2.6 in ULMFiT (Howard and Ruder 2018, section 3.2), 0.95 for BERT (Sun et al. 2019, section 5.3.3).
    gap: by how many factors the top block is behind the head: 0 in Sun et al., 1 in ULMFiT, 2 in ELECTRA's code.
    turn: gradual unfreezing: the head begins, and after each turn the next block below; a number of steps, or a share
        of all. 0: all begin at once.
    """

    factor: PositiveFloat = 0.95
    gap: NonNegativeInt = 0
    turn: NonNegativeFloat = 0.0

    def move(self, name: str, depth: int, top: int) -> Move | None:
        below = 0 if depth == top else top - 1 - depth + self.gap
        return Move(self.factor**below, top - depth if self.turn else 0, self.turn)


def depths(names: Iterable[str]) -> dict[str, int]:
    """Return the depth of each parameter in a model, by its name.

    What a stack has besides blocks counts with its last block, but tables that its blocks share are below them.
    """
    names = list(names)
    found = {name: match for name in names if (match := _BLOCK.match(_bare(name)))}
    blocks = sorted({(m[1] == "decoder", int(m[2])) for m in found.values()})
    number = {block: i + 1 for i, block in enumerate(blocks)}
    last = {stack: max((n for (s, _), n in number.items() if s == stack), default=0) for stack in (False, True)}
    depth = {}
    for name in names:
        first, _, rest = _bare(name).partition(".")
        if name in found:
            depth[name] = number[found[name][1] == "decoder", int(found[name][2])]
        elif first in ("encoder", "decoder"):
            depth[name] = 0 if rest.startswith(("shared.", "position.")) else last[first == "decoder"]
        elif first == "bridge":
            depth[name] = last[False]
        else:
            depth[name] = len(blocks) + 1 if first in ("head", "partner") else 0
    return depth


def waits(group: Mapping[str, Any], step: int, total: int) -> bool:
    """Tell whether a group's turn is still to come at an update (the first is 1)."""
    turns, turn = group.get("turns", 0), group.get("turn", 0.0)
    return step <= turns * (turn * total if turn < 1 else turn)


def in_order(optimiser: torch.optim.Optimizer) -> list[nn.Parameter]:
    """Return all parameters in an order that does not depend on how they are grouped, so that sums do not either."""
    groups = optimiser.param_groups
    if not all("places" in group for group in groups):
        return [p for group in groups for p in group["params"]]
    placed = [pair for group in groups for pair in zip(group["places"], group["params"], strict=True)]
    return [p for _, p in sorted(placed, key=lambda pair: pair[0])]


def _bare(name: str) -> str:
    """Return the name of a parameter in its model, where a learner holds that."""
    return name.removeprefix("model.")
