"""Positions in a dependency tree that is given with the example (Wang et al. 2019): absolute and relative.

Without a parse a sentence is a chain from the left, in which depth is the position and relations are distances.
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from kinfolk.core.annotations import DependencyTree
from kinfolk.core.bounds import NonNegativeInt
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost
from kinfolk.layers.module import Dims, Linear
from kinfolk.layers.positions.position import Heads, Hooks, Position, PositionModule, sinusoids
from kinfolk.layers.positions.relative import Shaw
from kinfolk.ops.attention.scores import Hook


class Syntax(Position, kind="syntax"):
    r"""Tree positions $\tanh(U S_p + V S_d)$: sinusoids of position p and depth d in the parse (Wang et al. 2019).

    Added to the embedding.
    """

    def build(self, dims: Dims, heads: Heads | None = None) -> PositionModule:
        return _Syntax(dims)

    def cost(self, dims: Dims, heads: Heads | None = None, scored: float = 0.0) -> Cost:
        return Cost(params=2 * dims.d_model**2, flops=4.0 * dims.d_model**2, kept=2 * dims.d_model)


class _Syntax(PositionModule):
    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.sequence, self.structure = (Linear(dims.d_model, dims.d_model, bias=False) for _ in range(2))

    def add(self, x_BLD: Tensor, ctx: Context, depth: int = 0) -> Tensor:
        where = ctx.positions(x_BLD.shape[1], x_BLD.device)
        tree = ctx.annotation(DependencyTree)
        deep = where if tree is None else tree.depth_BL
        seq, structure = (sinusoids(at, x_BLD.shape[-1]).to(x_BLD.dtype) for at in (where, deep))
        return x_BLD + torch.tanh(self.sequence(seq) + self.structure(structure))


class TreeShaw(Position, kind="tree-shaw"):
    """Shaw's relative positions for distances in the sentence, and for relations in its parse; both are added.

    Wang et al. 2019. `clip` and `values` are those of `Shaw`.
    """

    clip: NonNegativeInt = 16
    values: Literal["learned", "none"] = "learned"

    explicit: ClassVar[bool] = True

    @property
    def one(self) -> Shaw:
        """What there are two of."""
        return Shaw(clip=self.clip, values=self.values)

    def build(self, dims: Dims, heads: Heads | None = None) -> PositionModule:
        return _TreeShaw(self, dims, heads)

    def cost(self, dims: Dims, heads: Heads | None = None, scored: float = 0.0) -> Cost:
        once = self.one.cost(dims, heads, scored)
        return once + once


class _TreeShaw(PositionModule):
    def __init__(self, spec: TreeShaw, dims: Dims, heads: Heads | None) -> None:
        super().__init__()
        self.sequence, self.structure = spec.one.build(dims, heads), spec.one.build(dims, heads)

    def hooks(self, ctx: Context, n: int, causal: bool) -> Hooks:
        sequence = self.sequence.hooks(ctx.without(DependencyTree), n, causal)
        structure = self.structure.hooks(ctx, n, causal)
        return Hooks(_sum(sequence.bias, structure.bias), _sum(sequence.value, structure.value))


def _sum(one: Hook | None, other: Hook | None) -> Hook | None:
    if one is None or other is None:
        return None

    def both(a: Tensor, b: Tensor, q_pos: Tensor, k_pos: Tensor, heads: slice) -> Tensor:
        return one(a, b, q_pos, k_pos, heads) + other(a, b, q_pos, k_pos, heads)

    return both
