"""Depth that each position decides: adaptive computation time over the blocks of a stack.

After a position has halted its state stays as it is, others go on looking at it, and the rest of the block is not run
for it: active positions are taken out of their rows and put back. So time follows the number of steps.
"""

import functools
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.layers.halting import HaltingUnit, Pondering
from kinfolk.layers.mixers.attention import Attention, CrossAttention
from kinfolk.layers.mixers.query_subset import Some
from kinfolk.layers.module import Dims
from kinfolk.layers.part import FeedForward
from kinfolk.models.block import Block
from kinfolk.models.stack import DepthModule, Stack, StackModule
from kinfolk.ops.act import halt

CROWDED = 0.75
"""The share of active positions above which taking them out costs more than running all."""


class Halting(Pondering):
    """When positions halt, and what becomes of them.

    `accumulate` "mean" weighs the states of all steps (Graves 2016), "blend" is w s + (1 - w) out, whose weights add up
    to less than one (the published code of Dehghani et al. 2019). `scope` "sequence" has all positions of an example
    halt together, by their mean chance. `halted` "frozen" leaves a state as it is once its position has halted;
    "moving" goes on changing what others see.
    """

    accumulate: Literal["mean", "blend"] = "mean"
    scope: Literal["position", "sequence"] = "position"
    halted: Literal["frozen", "moving"] = "frozen"


class Universal(Stack, kind="universal"):
    """A stack whose positions halt, after all of `order` at the latest (Dehghani et al. 2019, section 2.2).

    The chance to halt is read from the state before a step. Where the first part of a block is attention and the
    others run at each position alone, halted positions are skipped; otherwise all are run, and halted ones put back.
    Its cost is that of the steps that are made at first.
    """

    halting: Halting = Halting()

    def build(self, dims: Dims) -> DepthModule:
        if self.halting.scope == "sequence" and dims.direction == "past":
            raise SpecError("scope: a decoder whose positions halt together would see the future; use 'position'")
        return _Universal(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        n, d = self.halting.steps_at_first(len(self.order)), dims.d_model
        begun = Stack(blocks=self.blocks, order=self.order[:n], norm=self.norm, position=self.position)
        run = begun.cost(dims, shape)
        unit, params = linear(d, 1, True), super().cost(dims, shape).params
        # a step keeps the state it came from; the sum is made of the states
        return Cost(params + unit.params, run.flops + n * (unit.flops + 2.0 * d), run.kept + n * d)


class _Universal(StackModule):
    def __init__(self, spec: Universal, dims: Dims) -> None:
        super().__init__(spec, dims)
        self.spec = spec.halting
        self.unit = HaltingUnit(dims.d_model, spec.halting.bias)
        self.skips = [spec.halting.halted == "frozen" and _skips(spec.blocks[i]) for i in spec.order]
        self.crowded = CROWDED
        # how many steps a pass makes depends on its data, and halted positions pass through the parts alone
        self.divided = frozenset(spec.order)

    def run(self, x_BLD: Tensor, ctx: Context, states: list[Any] | None, layers: list[Tensor] | None) -> Tensor:
        keep_BL = _kept(x_BLD, ctx)
        at, zeros_BL = _Progress(keep_BL), torch.zeros_like(x_BLD[..., 0])
        total_BL, steps_BL, rest_BL = zeros_BL, zeros_BL, zeros_BL
        s_BLD, out_BLD = x_BLD, torch.zeros_like(x_BLD)
        for n in range(len(self.order)):
            # while decoding, later tokens may make steps that these do not, and look at them
            if states is None and at.none:
                break
            with ctx.scope(str(n)):
                chance_BL = self._chances(s_BLD, keep_BL, ctx)
                weight_BL, total_BL, halts_BL = halt(chance_BL, total_BL, self.spec.eps, n == len(self.order) - 1)
                weight_BL = weight_BL * at.active_BL
                s_BLD = self._step(n, s_BLD, at, ctx.layer(n), None if states is None else states[n])
                out_BLD = self._add(out_BLD, s_BLD, weight_BL)
                steps_BL = steps_BL + at.active_BL
                rest_BL = rest_BL + weight_BL * (at.active_BL & halts_BL)
                at = _Progress(at.active_BL & ~halts_BL)
                ctx.tap("hidden", s_BLD)
            if layers is not None:
                layers.append(s_BLD)
        ctx.tap("steps", steps_BL)
        ctx.tap("remainders", rest_BL)
        n_real = keep_BL.sum().clamp(min=1)
        ctx.add_loss("ponder", self.spec.ponder * (steps_BL + rest_BL).sum() / n_real)
        out: Tensor = self.norm(out_BLD)
        return out

    def _chances(self, s_BLD: Tensor, keep_BL: Tensor, ctx: Context) -> Tensor:
        chance_BL: Tensor = self.unit(s_BLD)
        if self.spec.scope == "position":
            return chance_BL
        if ctx.group_BL is not None:
            raise ShapeError("positions that halt together cannot be packed with those of other documents")
        mean_B1 = (chance_BL * keep_BL).sum(1, keepdim=True) / keep_BL.sum(1, keepdim=True).clamp(min=1)
        return mean_B1.expand_as(chance_BL)

    def _add(self, out_BLD: Tensor, s_BLD: Tensor, weight_BL: Tensor) -> Tensor:
        weight_BL1 = weight_BL[..., None]
        if self.spec.accumulate == "blend":
            out_BLD = out_BLD * (1 - weight_BL1)
        return torch.addcmul(out_BLD, weight_BL1, s_BLD)

    def _step(self, n: int, s_BLD: Tensor, at: "_Progress", ctx: Context, states: list[Any] | None) -> Tensor:
        """Return the states after a step."""
        again = self.recompute == "blocks" and self.training and torch.is_grad_enabled()
        run = functools.partial(checkpoint, use_reentrant=False) if again else _call
        block: Any = self.blocks[self.order[n]]
        u_BLD = self.position.add(s_BLD, ctx, n + 1)
        # annotations are about all positions
        if self.skips[n] and not ctx.annotations and at.most <= self.crowded * s_BLD.shape[1]:
            stepped: Tensor = run(_run_some, block, u_BLD, s_BLD, at, ctx, states)
            return stepped
        new_BLD: Tensor = run(block, u_BLD, ctx, states)
        if at.all or self.spec.halted == "moving":
            return new_BLD
        return torch.where(at.active_BL[..., None], new_BLD, s_BLD)


class _Progress:
    """Which positions are active, and how many; of an accelerator, which would be waited for, that many may be."""

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
    some, others = Some.of(at.active_BL, at.most), [None] * (len(block.parts) - 1) if states is None else states[1:]
    inner = some.context(ctx, u_BLD.shape[1])
    return some.put(block(some.take(u_BLD), inner, [some.keys_values(everything), *others]), s_BLD)


def _skips(block: Block) -> bool:
    """Whether a block needs of a halted position nothing but its keys and values."""
    first, *others = block.parts
    alone = (isinstance(p, CrossAttention) or (isinstance(p, FeedForward) and p.alone) for p in others)
    return type(first) is Attention and all(alone)


def _kept(x_BLD: Tensor, ctx: Context) -> Tensor:
    if ctx.padding is not None:
        return ctx.padding.keep_BL
    return torch.ones(x_BLD.shape[:2], dtype=torch.bool, device=x_BLD.device)


def _call(block: Any, *arguments: Any) -> Any:
    return block(*arguments)
