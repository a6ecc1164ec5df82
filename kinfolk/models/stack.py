"""Axis Depth: blocks own weights, and depth says how they run.

`Stack(blocks, order)` runs block `order[0]`, then `order[1]`, …: twelve layers that share their weights are one block
with `order=(0,) * 12`, two interleaved kinds of layer are `(0, 1) * 6`.
"""

import dataclasses
import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from kinfolk.core.bounds import NonNegativeInt
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape
from kinfolk.core.errors import SpecError
from kinfolk.core.spec import Spec
from kinfolk.layers.module import Dims, Module, Shared
from kinfolk.layers.norms.norm import NoNorm, Norm
from kinfolk.layers.positions.position import NoPosition, Position
from kinfolk.models.block import Block


class Depth(Spec):
    """Axis: `(x_BLD, ctx, states) -> x_BLD`."""

    def build(self, dims: Dims) -> "DepthModule":
        """Return the module."""
        raise NotImplementedError

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        """Return the cost of one pass."""
        raise NotImplementedError

    @property
    def n_layers(self) -> int:
        """How many times blocks run."""
        raise NotImplementedError

    @property
    def n_sublayers(self) -> int:
        """How many residual branches one pass adds up."""
        raise NotImplementedError

    @property
    def widens(self) -> int:
        """How many times as wide as the model the states are that it gives."""
        return 1


class DepthModule(Module):
    """What a model may ask of its depth."""

    recompute: str = "none"

    def forward(self, x_BLD: Tensor, ctx: Context, states: list[Any] | None) -> Tensor:
        return self.run(x_BLD, ctx, states, None)

    def run(self, x_BLD: Tensor, ctx: Context, states: list[Any] | None, layers: list[Tensor] | None) -> Tensor:
        """Return the output; where a list is given, append the hidden states after every run of a block to it."""
        raise NotImplementedError

    def layers(self, x_BLD: Tensor, ctx: Context, n: int) -> tuple[Tensor, list[Tensor]]:
        """Return the output, and the hidden states before the first of `n` layers and after each.

        A layer that did not run (layer drop, halting) leaves the states as they were.
        """
        each = [x_BLD]
        out_BLD = self.run(x_BLD, ctx, None, each)
        return out_BLD, each + each[-1:] * (n + 1 - len(each))

    def new_state(self, batch_size: int, max_len: int) -> list[Any]:
        """Return an empty state for every run of a block."""
        raise NotImplementedError

    def new_memory(self) -> list[Any]:
        """Return an empty memory of earlier segments for every run of a block."""
        raise NotImplementedError


class Stack(Depth, kind="stack"):
    """Blocks in an order, then a norm (pre-norm stacks need one, post-norm stacks have none).

    `position` is added before every run of a block, which it is told the number of: the first is 1.
    """

    blocks: tuple[Block, ...]
    order: tuple[NonNegativeInt, ...]
    norm: Norm = NoNorm()
    position: Position = NoPosition()

    def __post_init__(self) -> None:
        wrong = [i for i in self.order if i >= len(self.blocks)]
        if wrong or not self.order:
            raise SpecError(f"order: {wrong or 'nothing'} does not name any of {len(self.blocks)} blocks")

    def build(self, dims: Dims) -> DepthModule:
        return StackModule(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        total, seen = self.norm.cost(dims.d_model), set()
        dims = dataclasses.replace(dims, shared=Shared())
        for i in self.order:
            cost = self.blocks[i].cost(dims, shape) + self.position.cost(dims)
            total += cost.again() if i in seen else cost
            seen.add(i)
        return total

    @property
    def n_layers(self) -> int:
        return len(self.order)

    @property
    def n_sublayers(self) -> int:
        return sum(len(self.blocks[i].parts) for i in self.order)


class StackModule(DepthModule):
    """Runs blocks in their order.

    `divided` are the blocks that some process may leave out of a pass, or whose parts are called on their own: their
    weights cannot be gathered by the call of the block.
    """

    divided: frozenset[int] = frozenset()

    def __init__(self, spec: Stack, dims: Dims) -> None:
        super().__init__()
        dims = dataclasses.replace(dims, shared=Shared())
        self.blocks = nn.ModuleList(block.build(dims) for block in spec.blocks)
        self.shared = nn.ModuleList(dims.shared.modules.values())
        self.order = spec.order
        self.norm = spec.norm.build(dims.d_model)
        self.position = spec.position.build(dims)

    def run(self, x_BLD: Tensor, ctx: Context, states: list[Any] | None, layers: list[Tensor] | None) -> Tensor:
        again = self.recompute == "blocks" and self.training and torch.is_grad_enabled()
        blocks = list(self.blocks)
        call = functools.partial(checkpoint, use_reentrant=False) if again else _call
        for n, i in self.runs():
            block, state = blocks[i], None if states is None else states[n]
            with ctx.scope(str(n)):
                if layers is not None:
                    layers += layers[-1:] * (n + 1 - len(layers))
                x_BLD = call(block, self.position.add(x_BLD, ctx, n + 1), ctx.layer(n), state)
                ctx.tap("hidden", x_BLD)
            if layers is not None:
                layers.append(x_BLD)
        out: Tensor = self.norm(x_BLD)
        return out

    @property
    def units(self) -> list[nn.Module]:
        """The blocks that every process calls as a whole in every pass: what FSDP shards one by one."""
        return [block for i, block in enumerate(self.blocks) if i not in self.divided]

    def runs(self) -> list[tuple[int, int]]:
        """Return the runs of this pass by number, and the block of each."""
        return list(enumerate(self.order))

    def new_state(self, batch_size: int, max_len: int) -> list[Any]:
        blocks: list[Any] = list(self.blocks)
        return [blocks[i].new_state(batch_size, max_len) for i in self.order]

    def new_memory(self) -> list[Any]:
        blocks: list[Any] = list(self.blocks)
        return [blocks[i].new_memory() for i in self.order]


def _call(block: Any, *arguments: Any) -> Any:
    return block(*arguments)
