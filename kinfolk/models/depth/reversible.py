"""Reversible residual stacks (RevNet, Gomez et al. 2017; Reformer): inputs are found again from outputs.

The stream is two. A part reads one and adds to the other, so that what it added can be computed again and taken away:

    (a, b) -> (b, a + branch(b))        and back: (p, q) -> (q - branch(p), p)

The backward pass walks the stack from its end, computing every part's input from its output and running the part once
more for its gradient; nothing is kept but the last two streams. Dropout falls where it fell: the state of the random
numbers before every part is kept (a few kilobytes) and set again, and the caller's is left alone.
"""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.core.errors import SpecError
from kinfolk.layers.module import Dims, Linear, Module
from kinfolk.layers.residuals.residual import Residual, ResidualModule
from kinfolk.models.block import Block
from kinfolk.models.depth.depth import Depth, DepthWrapper
from kinfolk.models.depth.two_streams import Pair, coupled, mean_of, walk_lightly
from kinfolk.models.reader import LayerReader, LayerReading
from kinfolk.models.stack import Stack, StackModule, Walk

Join = Literal["mean", "concat", "wide"]


class Coupled(Residual, kind="coupled"):
    """Reversible residual, (a, b) -> (b, a + branch(b)), for an additive residual (Gomez et al. 2017, equation 6)."""

    of: Residual

    def __post_init__(self) -> None:
        if not self.of.additive:
            raise SpecError(
                f"residual: {self.of.kind!r} does not add a branch to the stream, so it cannot be undone; "
                "use 'pre-norm', 're-zero' or 'fixup'"
            )

    def build(self, dims: Dims) -> ResidualModule:
        return _Coupled(self, dims)

    def cost(self, dims: Dims) -> Cost:
        return self.of.cost(dims)


class _Coupled(ResidualModule):
    def __init__(self, spec: Coupled, dims: Dims) -> None:
        super().__init__()
        self.of: Any = spec.of.build(dims)

    def forward(self, pair: Pair, part: Module, ctx: Context, state: Any) -> tuple[Pair, Any]:
        y_BLD, state = self.of.branch(pair[1], part, ctx, state)
        return (pair[1], pair[0] + y_BLD), state

    def given(self, x: Tensor) -> Tensor:
        inner: Tensor = self.of.given(x)
        return inner


class CoupleStreams(DepthWrapper, kind="reversible"):
    """Reversible coupling of two streams: no activations are kept (Gomez et al. 2017; Kitaev et al. 2020, section 3).

    Both streams start as the embedding. `join` "mean" takes their mean before the norm; "concat" has a norm over
    both side by side and a map back to the model's width; "wide" has no map, and a head twice as wide (Trax, Hugging
    Face), which so cannot be tied. What is read of a layer (halting, layer mix, listeners) is the mean of both streams.
    A position of the stack is added to both before every run, and taken away again.
    In half precision what is found again drifts from what was; streams stay in float32 under autocast. A part that
    chooses (hashes, experts) chooses again from inputs that are equal to rounding: only a tie can fall otherwise.
    """

    reversible: ClassVar[bool] = True
    join: Join = "mean"

    def check(self, stack: Stack) -> None:
        for block in stack.blocks:
            self.block(block)
        if self.join != "mean" and any(wrapper.reads for wrapper in stack.wraps):
            raise SpecError(f"join: {self.join!r} is of the last layer, and the output is made of all; use 'mean'")

    def block(self, block: Block) -> Block:
        return block.replace(residual=Coupled(of=block.residual))

    def wrap(self, module: StackModule, stack: Stack, dims: Dims) -> None:
        d = dims.d_model
        if self.join == "concat":
            module.join = Linear(2 * d, d, bias=False)
        module.norm = stack.norm.build(d if self.join == "mean" else 2 * d)
        module.walk = _TwoStreams(self.join)

    def cost(self, cost: Cost, stack: Stack, dims: Dims, shape: Shape) -> Cost:
        d, norm = dims.d_model, stack.norm.cost(dims.d_model)
        closing = stack.norm.cost(d if self.join == "mean" else 2 * d)
        closing += linear(2 * d, d, False) if self.join == "concat" else Cost()
        return Cost(cost.params - norm.params, cost.flops - norm.flops + d, 2 * d) + closing

    @property
    def widens(self) -> int:
        return 2 if self.join == "wide" else 1


class Reversible(Stack, kind="reversible"):
    """Reversible stack, which keeps no activations (Gomez et al. 2017; Kitaev et al. 2020, section 3)."""

    join: Join = "mean"

    @classmethod
    def of(cls, depth: Depth, join: Join = "mean") -> Depth:
        """Return a depth made reversible."""
        return cls(**depth.unwrapped, join=join) if type(depth) is Stack else depth.wrap(CoupleStreams(join=join))

    @property
    def wraps(self) -> tuple[DepthWrapper, ...]:
        return (CoupleStreams(join=self.join),)


class _TwoStreams(Walk):
    def __init__(self, join: Join) -> None:
        self.join = join

    def __call__(
        self, stack: StackModule, x_BLD: Tensor, ctx: Context, states: list[Any] | None, readings: list[LayerReading]
    ) -> Pair:
        # a state for decoding must not be written twice, and sharded weights are whole only while a block runs
        decodes = states is not None and not stack.training
        sharded = any(hasattr(p, "full_tensor") for p in stack.blocks.parameters())
        walk = self.plainly if decodes or sharded or not torch.is_grad_enabled() else walk_lightly
        return walk(stack, (x_BLD, x_BLD), ctx, states, readings)

    def plainly(
        self, stack: StackModule, pair: Pair, ctx: Context, states: list[Any] | None, readings: list[LayerReading]
    ) -> Pair:
        """Run under ordinary autograd."""
        runs, own = dict(stack.runs()), readings[0]
        reads = [reading for reading in readings if type(reading.reader) is not LayerReader]
        for n in range(len(stack.order)):
            if states is None and own.reader.done(own.carry):
                break
            with ctx.scope(str(n)):
                for reading in reads:
                    reading.decide(n, mean_of(pair))
                if n in runs:
                    state = None if states is None else states[n]
                    pair = coupled(stack, n, pair, own.reader.active(own.carry), ctx.layer(n), state)
                for reading in reads:
                    reading.add(n, mean_of(pair))
                if n in runs and ctx.hears("hidden"):
                    ctx.tap("hidden", mean_of(pair))
        return pair

    def close(self, stack: StackModule, last: Any) -> Tensor:
        if isinstance(last, tuple):
            last = mean_of(last) if self.join == "mean" else torch.cat(last, -1)
        maps: list[Any] = [stack.norm, stack.join] if self.join == "concat" else [stack.norm]
        for one in maps:
            last = one(last)
        out: Tensor = last
        return out
