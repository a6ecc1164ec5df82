"""Axis Depth: a stack of Transformer blocks. Blocks own weights, an order says how often each runs (ALBERT, Lan 2019).

`Stack(blocks, order)` runs block `order[0]`, then `order[1]`, …: twelve layers that share their weights are one block
with `order=(0,) * 12`, two interleaved kinds of layer are `(0, 1) * 6`. Wrappers change how a stack runs, and combine:
layer drop says which runs are made, reversible coupling what the backward pass keeps, halting and layer mix what is
read of all layers.
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
from kinfolk.layers.module import Dims, Shared
from kinfolk.layers.norms.norm import NoNorm, Norm
from kinfolk.layers.positions.position import NoPosition, Position
from kinfolk.models.block import Block
from kinfolk.models.depth.depth import Depth, DepthModule, DepthWrapper
from kinfolk.models.reader import LayerReader, LayerReading


class Stack(Depth, kind="stack"):
    """Stack of Transformer blocks in an order, then a norm (pre-norm stacks need one, post-norm stacks have none).

    `position` is added before every run of a block and depends on its number: the first is 1.
    """

    blocks: tuple[Block, ...]
    order: tuple[NonNegativeInt, ...]
    norm: Norm = NoNorm()
    position: Position = NoPosition()

    def __post_init__(self) -> None:
        wrong = [i for i in self.order if i >= len(self.blocks)]
        if wrong or not self.order:
            raise SpecError(f"order: {wrong or 'nothing'} does not name any of {len(self.blocks)} blocks")
        readers = [wrapper.kind for wrapper in self.wraps if wrapper.reads]
        if len(readers) > 1:
            raise SpecError(
                f"wrappers: {' and '.join(map(repr, readers))} both say what the output is; use one of them"
            )
        for wrapper in self.wraps:
            wrapper.check(self)

    @property
    def wraps(self) -> tuple[DepthWrapper, ...]:
        """How its blocks run, the innermost rule first."""
        return ()

    @property
    def unwrapped(self) -> dict[str, Any]:
        """The fields of the plain stack inside."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(Stack)}

    def wrap(self, wrapper: DepthWrapper) -> "Stack":
        return Wrapped(**self.unwrapped, wrappers=(*self.wraps, wrapper))

    def build(self, dims: Dims) -> DepthModule:
        return StackModule(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        total, seen = self.norm.cost(dims.d_model), set()
        inside = dataclasses.replace(dims, shared=Shared())
        for i in self.order:
            cost = self.blocks[i].cost(inside, shape) + self.position.cost(inside)
            total += cost.again() if i in seen else cost
            seen.add(i)
        for wrapper in self.wraps:
            total = wrapper.cost(total, self, dims, shape)
        return total

    @property
    def n_layers(self) -> int:
        return len(self.order)

    @property
    def n_sublayers(self) -> int:
        return sum(len(self.blocks[i].parts) for i in self.order)

    @property
    def widens(self) -> int:
        return max((wrapper.widens for wrapper in self.wraps), default=1)

    @property
    def reversible(self) -> bool:
        return any(wrapper.reversible for wrapper in self.wraps)


class Wrapped(Stack, kind="wrapped"):
    """A stack that runs by several rules at once, the innermost first."""

    wrappers: tuple[DepthWrapper, ...]

    @property
    def wraps(self) -> tuple[DepthWrapper, ...]:
        return self.wrappers


class Walk:
    """Forward pass through the blocks of a stack: one stream, under ordinary autograd."""

    def __call__(
        self, stack: "StackModule", x_BLD: Tensor, ctx: Context, states: list[Any] | None, readings: list[LayerReading]
    ) -> Any:
        """Return the states after the last run; readings get those of all runs."""
        runs, own = dict(stack.runs()), readings[0]
        watching = [reading for reading in readings if reading.reader.watches]
        for n in range(len(stack.order)):
            # while decoding, later tokens may make runs that these do not, and attend to these
            if states is None and own.reader.done(own.carry):
                break
            with ctx.scope(str(n)):
                for reading in watching:
                    reading.decide(n, x_BLD)
                if n in runs:
                    state = None if states is None else states[n]
                    x_BLD = own.reader.step(stack, n, x_BLD, own.carry, ctx.layer(n), state)
                for reading in watching:
                    reading.add(n, x_BLD)
                if n in runs:
                    ctx.tap("hidden", x_BLD)
        return x_BLD

    def close(self, stack: "StackModule", last: Any) -> Tensor:
        """Return the output of the last states, or of what a reader made of all."""
        out: Tensor = stack.norm(last)
        return out


class StackModule(DepthModule):
    """Stack of Transformer blocks: runs them in their order.

    `divided` are the blocks that some process may leave out of a pass, or whose parts are called on their own: their
    weights cannot be gathered by the call of the block. `reader`, `walk` and `skips` are what wrappers change.
    """

    divided: frozenset[int] = frozenset()

    def __init__(self, spec: Stack, dims: Dims) -> None:
        super().__init__()
        inside = dataclasses.replace(dims, shared=Shared())
        blocks = (functools.reduce(lambda block, wrapper: wrapper.block(block), spec.wraps, b) for b in spec.blocks)
        self.blocks = nn.ModuleList(block.build(inside) for block in blocks)
        self.shared = nn.ModuleList(inside.shared.modules.values())
        self.order = spec.order
        self.norm = spec.norm.build(dims.d_model)
        self.position = spec.position.build(inside)
        self.reader, self.walk = LayerReader(), Walk()
        for wrapper in spec.wraps:
            wrapper.wrap(self, spec, inside)

    def run(self, x_BLD: Tensor, ctx: Context, states: list[Any] | None, reading: LayerReading | None = None) -> Tensor:
        own = LayerReading(self.reader)
        readings = [own] if reading is None else [own, reading]
        for one in readings:
            one.begin(x_BLD, ctx)
        last = self.walk(self, x_BLD, ctx, states, readings)
        return self.walk.close(self, own.result(last, ctx))

    def step(self, n: int, x_BLD: Tensor, ctx: Context, states: list[Any] | None) -> Tensor:
        """Return the states after the n-th run of a block, at all positions."""
        after_BLD: Tensor = self.call(self.blocks[self.order[n]], self.position.add(x_BLD, ctx, n + 1), ctx, states)
        return after_BLD

    def call(self, function: Any, *arguments: Any) -> Any:
        """Call a function, with gradient checkpointing where it is asked for."""
        if self.recompute == "blocks" and self.training and torch.is_grad_enabled():
            return checkpoint(function, *arguments, use_reentrant=False)
        return function(*arguments)

    @property
    def units(self) -> list[nn.Module]:
        """The blocks that every process calls as a whole in every pass: what FSDP shards one by one."""
        return [block for i, block in enumerate(self.blocks) if i not in self.divided]

    def runs(self) -> list[tuple[int, int]]:
        """Return the runs of this pass by number, and the block of each."""
        return [(n, i) for n, i in enumerate(self.order) if not self.skips(n)]

    def skips(self, n: int) -> bool:
        """Tell whether the n-th run is left out of this pass."""
        return False

    def new_state(self, batch_size: int, max_len: int) -> list[Any]:
        blocks: list[Any] = list(self.blocks)
        return [blocks[i].new_state(batch_size, max_len) for i in self.order]

    def new_memory(self) -> list[Any]:
        blocks: list[Any] = list(self.blocks)
        return [blocks[i].new_memory() for i in self.order]
