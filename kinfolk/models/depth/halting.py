"""Adaptive computation time (ACT) over depth: each position decides how often blocks run (Universal Transformer).

After a position has halted its state stays as it is, others go on attending to it, and the rest of the block is not run
for it: active positions are taken out of their rows and put back. So time follows the number of steps.
"""

from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.layers.halting import HaltingUnit, Pondering
from kinfolk.layers.mixers.attention import Attention, CrossAttention
from kinfolk.layers.mixers.query_subset import QuerySubset
from kinfolk.layers.module import Dims
from kinfolk.layers.part import FeedForward
from kinfolk.models.block import Block
from kinfolk.models.depth.depth import Depth, DepthWrapper
from kinfolk.models.reader import LayerReader
from kinfolk.models.stack import Stack, StackModule
from kinfolk.ops.act import halt

CROWDED = 0.75
"""The share of active positions above which taking them out costs more than running all."""


class Halting(Pondering):
    """Dynamic halting: when positions halt, and what becomes of them.

    `accumulate` "mean" weighs the states of all steps (Graves 2016), "blend" is w s + (1 - w) out, whose weights add up
    to less than one (the published code of Dehghani et al. 2019). `scope` "sequence" has all positions of an example
    halt together, by their mean chance. `halted` "frozen" leaves a state as it is once its position has halted;
    "moving" goes on changing what others see.
    """

    accumulate: Literal["mean", "blend"] = "mean"
    scope: Literal["position", "sequence"] = "position"
    halted: Literal["frozen", "moving"] = "frozen"


class HaltingDepth(DepthWrapper, kind="halting"):
    """Dynamic halting over depth (ACT), at the latest after the whole `order` (Dehghani et al. 2019, section 2.2).

    The chance to halt is read from the state before a step. Where the first part of a block is attention and the
    others run at each position alone, halted positions are skipped; otherwise all are run, and halted ones put back.
    The cost is that of the steps that are made at first.
    """

    reads: ClassVar[bool] = True
    halting: Halting = Halting()

    def check(self, stack: Stack) -> None:
        if self.halting.accumulate == "blend" and stack.reversible:
            raise SpecError(
                "accumulate: 'blend' needs the sums of all steps, which a reversible stack lacks; use 'mean'"
            )

    def wrap(self, module: StackModule, stack: Stack, dims: Dims) -> None:
        if self.halting.scope == "sequence" and dims.direction == "past":
            raise SpecError("scope: a decoder whose positions halt together would see the future; use 'position'")
        skippable = [self.halting.halted == "frozen" and _skippable(stack.blocks[i]) for i in stack.order]
        module.unit = HaltingUnit(dims.d_model, self.halting.bias)
        module.reader = _Halting(self.halting, module, skippable)
        # how many steps a pass makes depends on its data, and halted positions pass through the parts alone
        module.divided = frozenset(stack.order)

    def cost(self, cost: Cost, stack: Stack, dims: Dims, shape: Shape) -> Cost:
        n, d = self.halting.steps_at_first(len(stack.order)), dims.d_model
        run = Stack(**{**stack.unwrapped, "order": stack.order[:n]}).cost(dims, shape)
        unit = linear(d, 1, True)
        # a step keeps the state it came from; the sum is made of the states
        return Cost(cost.params + unit.params, run.flops + n * (unit.flops + 2.0 * d), run.kept + n * d)


class Universal(Stack, kind="universal"):
    """Universal Transformer with ACT: a stack whose positions halt (Dehghani et al. 2019, section 2.2)."""

    halting: Halting = Halting()

    @classmethod
    def of(cls, depth: Depth, halting: Halting) -> Depth:
        """Return a depth whose positions halt."""
        if type(depth) is Stack:
            return cls(**depth.unwrapped, halting=halting)
        return depth.wrap(HaltingDepth(halting=halting))

    @property
    def wraps(self) -> tuple[DepthWrapper, ...]:
        return (HaltingDepth(halting=self.halting),)


class _Ponder(NamedTuple):
    """Carry of ACT: sums over the steps of each position, [B, L], and the positions active in a step and after it."""

    chances: Tensor
    steps: Tensor
    rest: Tensor
    weight: Tensor
    keep: Tensor
    now: "_Progress"
    later: "_Progress"


class _Halting(LayerReader):
    def __init__(self, spec: Halting, stack: Any, skippable: list[bool]) -> None:
        self.spec, self.stack, self.skippable, self.crowded = spec, stack, skippable, CROWDED

    @property
    def weights(self) -> list[Tensor]:
        return list(self.stack.unit.parameters())

    @property
    def streaming(self) -> LayerReader | None:
        return self if self.spec.accumulate == "mean" else None

    def begin(self, x_BLD: Tensor, ctx: Context) -> _Ponder:
        if self.spec.scope == "sequence" and ctx.group_BL is not None:
            raise ShapeError("positions that halt together cannot be packed with those of other documents")
        keep_BL, zeros_BL = _kept(x_BLD, ctx), torch.zeros_like(x_BLD[..., 0])
        at = _Progress(keep_BL)
        return _Ponder(zeros_BL, zeros_BL, zeros_BL, zeros_BL, keep_BL, at, at)

    def start(self, x_BLD: Tensor) -> Tensor:
        return torch.zeros_like(x_BLD)

    def done(self, carry: _Ponder) -> bool:
        return carry.later.none

    def active(self, carry: _Ponder) -> Tensor | None:
        return carry.now.active_BL if self.spec.halted == "frozen" else None

    def decide(self, n: int, before_BLD: Tensor, carry: _Ponder) -> _Ponder:
        now, last = carry.later, n == len(self.stack.order) - 1
        chance_BL = self._chances(before_BLD, carry.keep)
        weight_BL, total_BL, halts_BL = halt(chance_BL, carry.chances, self.spec.eps, last)
        # the sum of chances goes on growing after a position has halted, to no effect
        weight_BL = weight_BL * now.active_BL
        rest_BL = carry.rest + weight_BL * (now.active_BL & halts_BL)
        later = _Progress(now.active_BL & ~halts_BL)
        return _Ponder(total_BL, carry.steps + now.active_BL, rest_BL, weight_BL, carry.keep, now, later)

    def step(self, stack: Any, n: int, x_BLD: Tensor, carry: _Ponder, ctx: Context, states: list[Any] | None) -> Tensor:
        at = carry.now
        # annotations are about all positions
        if self.skippable[n] and not ctx.annotations and at.most <= self.crowded * x_BLD.shape[1]:
            block, u_BLD = stack.blocks[stack.order[n]], stack.position.add(x_BLD, ctx, n + 1)
            stepped: Tensor = stack.call(_run_some, block, u_BLD, x_BLD, at, ctx, states)
            return stepped
        after_BLD: Tensor = stack.step(n, x_BLD, ctx, states)
        if at.all or self.spec.halted == "moving":
            return after_BLD
        return torch.where(at.active_BL[..., None], after_BLD, x_BLD)

    def add(self, n: int, after_BLD: Tensor, carry: _Ponder, total: Tensor) -> Tensor:
        weight_BL1 = carry.weight[..., None]
        if self.spec.accumulate == "blend":
            total = total * (1 - weight_BL1)
        return torch.addcmul(total, weight_BL1, after_BLD)

    def result(self, last: Any, carry: _Ponder, total: Tensor, ctx: Context) -> Tensor:
        ctx.tap("steps", carry.steps)
        ctx.tap("remainders", carry.rest)
        n_real = carry.keep.sum().clamp(min=1)
        ctx.add_loss("ponder", self.spec.ponder * (carry.steps + carry.rest).sum() / n_real)
        return total

    def _chances(self, s_BLD: Tensor, keep_BL: Tensor) -> Tensor:
        chance_BL: Tensor = self.stack.unit(s_BLD)
        if self.spec.scope == "position":
            return chance_BL
        mean_B1 = (chance_BL * keep_BL).sum(1, keepdim=True) / keep_BL.sum(1, keepdim=True).clamp(min=1)
        return mean_B1.expand_as(chance_BL)


class _Progress:
    """Active positions and their number; on an accelerator, which is not waited for, an upper bound."""

    def __init__(self, active_BL: Tensor) -> None:
        self.active_BL = active_BL
        if active_BL.device.type != "cpu":
            self.most, self.none, self.all = active_BL.shape[1], False, False
            return
        n_B = active_BL.sum(1)
        # one wait for the device instead of three
        self.most, fewest = torch.stack([n_B.amax(), n_B.amin()]).tolist()
        self.none, self.all = self.most == 0, fewest == active_BL.shape[1]


def _run_some(
    block: Any, u_BLD: Tensor, s_BLD: Tensor, at: _Progress, ctx: Context, states: list[Any] | None
) -> Tensor:
    """Run a block for active positions only; all have keys and values."""
    everything = block.keys_values(u_BLD, ctx, states)
    if at.none:
        return s_BLD
    some, others = (
        QuerySubset.of(at.active_BL, at.most),
        [None] * (len(block.parts) - 1) if states is None else states[1:],
    )
    inner = some.context(ctx, u_BLD.shape[1])
    return some.put(block(some.take(u_BLD), inner, [some.keys_values(everything), *others]), s_BLD)


def _skippable(block: Block) -> bool:
    """Whether a block needs of a halted position nothing but its keys and values."""
    first, *others = block.parts
    alone = (isinstance(p, CrossAttention) or (isinstance(p, FeedForward) and p.alone) for p in others)
    return type(first) is Attention and all(alone)


def _kept(x_BLD: Tensor, ctx: Context) -> Tensor:
    if ctx.padding is not None:
        return ctx.padding.keep_BL
    return torch.ones(x_BLD.shape[:2], dtype=torch.bool, device=x_BLD.device)
