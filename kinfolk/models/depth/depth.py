"""Axis Depth: contract of encoder and decoder stacks, and of the wrappers that change how their blocks run."""

from typing import Any, ClassVar

from torch import Tensor

from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape
from kinfolk.core.errors import SpecError
from kinfolk.core.spec import Spec
from kinfolk.layers.module import Dims, Module
from kinfolk.models.block import Block
from kinfolk.models.reader import AllLayers, LayerReading


class Depth(Spec):
    """Axis: a stack of blocks: `(x_BLD, ctx, states) -> x_BLD`."""

    def build(self, dims: Dims) -> "DepthModule":
        """Return the module."""
        raise NotImplementedError

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        """Return the cost of one pass."""
        raise NotImplementedError

    def wrap(self, wrapper: "DepthWrapper") -> "Depth":
        """Return a depth that runs by one rule more."""
        raise SpecError(f"{self.kind!r} has no blocks whose runs {wrapper.kind!r} could change")

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

    @property
    def reversible(self) -> bool:
        """Whether its blocks find their inputs again from their outputs."""
        return False

    @property
    def readable(self) -> bool:
        """Whether the hidden states of all layers have one length, so that a reader can add them up."""
        return True


class DepthWrapper(Spec):
    """Axis: how the blocks of a stack run: reversible, dropped, halting. They combine; the first is the innermost.

    reads: its output is made of all layers. skips: some runs are not made. reversible: its stack keeps no activations.
    looks_ahead: in training, what happens at a position depends on later ones.
    """

    reads: ClassVar[bool] = False
    skips: ClassVar[bool] = False
    reversible: ClassVar[bool] = False
    looks_ahead: ClassVar[bool] = False

    def check(self, stack: Any) -> None:
        """Refuse a stack that cannot run so."""

    def block(self, block: Block) -> Block:
        """Return a block as it is built."""
        return block

    def wrap(self, module: Any, stack: Any, dims: Dims) -> None:
        """Change how a module runs; its own weights become attributes of the module."""
        raise NotImplementedError

    def cost(self, cost: Cost, stack: Any, dims: Dims, shape: Shape) -> Cost:
        """Return the cost of a pass that costs `cost` without it."""
        return cost

    def of_level(self, level: int) -> "DepthWrapper":
        """Return the wrapper of one of several stacks that follow each other."""
        return self

    @property
    def widens(self) -> int:
        """How many times as wide as the model the states are that it gives."""
        return 1


class DepthModule(Module):
    """Base of depth modules: run the blocks, with a state for decoding or a reader of all layers."""

    recompute: str = "none"

    def forward(self, x_BLD: Tensor, ctx: Context, states: list[Any] | None) -> Tensor:
        return self.run(x_BLD, ctx, states)

    def run(self, x_BLD: Tensor, ctx: Context, states: list[Any] | None, reading: LayerReading | None = None) -> Tensor:
        """Return the output; a reading gets the hidden states of all layers."""
        raise NotImplementedError

    def layers(self, x_BLD: Tensor, ctx: Context, n: int) -> tuple[Tensor, list[Tensor]]:
        """Return the output, and the hidden states before the first of `n` layers and after each."""
        every = AllLayers(n)
        reading = LayerReading(every)
        return self.run(x_BLD, ctx, None, reading), every.every(reading.total)

    def new_state(self, batch_size: int, max_len: int) -> list[Any]:
        """Return an empty state for every run of a block."""
        raise NotImplementedError

    def new_memory(self) -> list[Any]:
        """Return an empty memory of earlier segments for every run of a block."""
        raise NotImplementedError
