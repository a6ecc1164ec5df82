"""Funnel-Transformer: layers over ever shorter pooled sequences, and upsampling to full length (Dai et al. 2020).

Neighbours are pooled inside their document only, and padding has no part in a mean: a slot is real if any of its
positions is.
"""

import dataclasses
from typing import Any, Literal

import torch
from torch import Tensor, nn

from kinfolk.core.bounds import NonNegativeInt, PositiveInt
from kinfolk.core.context import Context, Padding
from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.core.device import host, send
from kinfolk.core.encoder_output import EncoderOutput
from kinfolk.core.errors import SpecError
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.packing import refuse_pairs
from kinfolk.layers.module import Dims, Module
from kinfolk.layers.part import KeyValues
from kinfolk.layers.positions.position import NoPosition
from kinfolk.layers.positions.relative import XL
from kinfolk.models.bridge import Bridge
from kinfolk.models.depth.depth import Depth, DepthModule, DepthWrapper
from kinfolk.models.reader import LayerReading
from kinfolk.models.stack import Stack, StackModule
from kinfolk.ops.attention.scores import View
from kinfolk.ops.patterns.leaves import Full
from kinfolk.ops.pooling import count, pool, unpool


class Funnel(Depth, kind="funnel"):
    """Funnel-Transformer: layers over ever shorter sequences, then over the whole one again (Dai et al. 2020).

    Between two `levels` every `pool` neighbours become their mean, but for the first `apart` positions, which are kept
    as they are (a token that summarises all, [CLS]). The first layer of a level has the means as queries and in its
    residual, and `keys` of the "longer" sequence, or like all others those of the "pooled" one. At the end every
    position gets its slot's vector, added to what the first level left, and passes through `top`. With `pool` 1
    nothing is lost, so nothing is added: it is a stack of all layers. Distances of position "xl" are those of the text,
    which one of any other kind counts in slots.
    """

    levels: tuple[Stack, ...]
    top: Stack | None = None
    pool: PositiveInt = 2
    apart: NonNegativeInt = 1
    keys: Literal["longer", "pooled"] = "longer"

    def __post_init__(self) -> None:
        if not self.levels:
            raise SpecError("levels: a funnel has at least one")
        for look in map(_first, self.levels[1:] if self.keys == "longer" else ()):
            able = type(look) is Attention and look.pattern == Full() and isinstance(look.position, NoPosition | XL)
            if not able:
                raise SpecError(
                    f"levels: the first part of a level asks a longer sequence, which {look.kind!r} of this kind "
                    "cannot; use 'attention' to all positions, with position 'xl' or positions in the embedding"
                )

    @property
    def readable(self) -> bool:
        return False

    def build(self, dims: Dims) -> DepthModule:
        if dims.direction == "past":
            raise SpecError("a funnel pools what comes later, so it cannot be a decoder")
        return _Funnel(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        total, n, n_all = Cost(), shape.length, shape.length
        for i, level in enumerate(self.levels):
            longer, n = n, self.shorter(n) if i else n
            here = level.cost(dims, Shape(n)).scaled(n / shape.length)
            asking = self._asking(dims, level, n, longer) if i and self.keys == "longer" else Cost()
            total += here + (asking + _both_ways(dims, level, n)).scaled(1 / shape.length)
        if self.top is None:
            return total
        return total + self.top.cost(dims, shape) + _both_ways(dims, self.top, n_all).scaled(1 / n_all)

    def _asking(self, dims: Dims, level: Stack, n: int, longer: int) -> Cost:
        """Return what the first layer of a level costs more, at all `n` positions, for keys of `longer` ones."""
        look = _first(level)
        near, far = look.cost(dims, Shape(n)), look.cost(dims, Shape(longer))
        d_kv = (look.n_kv_heads or look.n_heads) * (look.d_head or dims.d_model // look.n_heads)
        keys = linear(dims.d_model, 2 * d_kv, False) + Cost(kept=2 * d_kv)
        flops = (far.flops - near.flops) * n + keys.flops * longer
        # with its table of distances, which are as many as those of the longer sequence
        more = _tables(dims, look, 2 * (self.pool - 1) * n, n) if isinstance(look.position, XL) else Cost()
        return Cost(0, flops, (far.kept - near.kept) * n + keys.kept * longer) + more

    def shorter(self, n: int) -> int:
        """Return how many slots n positions have."""
        # the rest divided by the pool, rounded up
        return n if n <= self.apart else self.apart - (self.apart - n) // self.pool

    def first(self, slot: Tensor) -> Tensor:
        """Return the first position of a slot, of those that are pooled."""
        return self.apart + self.pool * (slot - self.apart)

    @property
    def n_layers(self) -> int:
        return sum(stack.n_layers for stack in self._stacks)

    @property
    def n_sublayers(self) -> int:
        return sum(stack.n_sublayers for stack in self._stacks)

    def wrap(self, wrapper: DepthWrapper) -> "Funnel":
        if wrapper.reads or wrapper.widens > 1:
            raise SpecError(f"levels: {wrapper.kind!r} of one level would not be that of the funnel")
        levels = tuple(level.wrap(wrapper.of_level(i)) for i, level in enumerate(self.levels))
        top = None if self.top is None else self.top.wrap(wrapper.of_level(len(levels)))
        return self.replace(levels=levels, top=top)

    @property
    def reversible(self) -> bool:
        return any(stack.reversible for stack in self._stacks)

    @property
    def _stacks(self) -> tuple[Stack, ...]:
        return self.levels if self.top is None else (*self.levels, self.top)


class _Funnel(DepthModule):
    def __init__(self, spec: Funnel, dims: Dims) -> None:
        super().__init__()
        self.spec = spec
        self.levels = nn.ModuleList(level.build(dims) for level in spec.levels)
        self.top = None if spec.top is None else spec.top.build(dims)
        if spec.keys == "longer":
            for level in self.levels[1:]:
                assert isinstance(level, StackModule)
                # keys and values of the longer sequence are made outside the block that attends to them
                level.divided = frozenset({level.order[0]})

    def run(self, x_BLD: Tensor, ctx: Context, states: list[Any] | None, reading: LayerReading | None = None) -> Tensor:
        if reading is not None:
            raise SpecError("the layers of a funnel have sequences of different lengths, so they cannot be read")
        first_BLD, x_BLD, slots, _ = self.narrow(x_BLD, ctx)
        if self.spec.pool > 1 and slots:
            # from the shortest sequence back to the longest
            for slot_BL in reversed(slots):
                x_BLD = unpool(x_BLD, slot_BL)
            x_BLD = first_BLD + x_BLD
        return x_BLD if self.top is None else self._run(len(self.levels), self.top, x_BLD, ctx, None)

    def narrow(self, x_BLD: Tensor, ctx: Context) -> tuple[Tensor, Tensor, list[Tensor], Context]:
        """Return what the first level left and what the last, the slots on the way, and the context at its end."""
        refuse_pairs(ctx, self.spec.kind)
        x_BLD = self._run(0, self.levels[0], x_BLD, ctx, None)
        first_BLD, slots, inner = x_BLD, [], ctx
        for i, level in enumerate(self.levels[1:], 1):
            assert isinstance(level, StackModule)
            cut = _Cut.of(inner, x_BLD, self.spec)
            asks = self.spec.keys == "longer" and not level.skips(0)
            wide = self._wide(level, x_BLD, inner, cut) if asks else None
            x_BLD, within = pool(x_BLD, cut.slot_BL, cut.keep_BL, cut.n), cut.inner
            if wide is not None:
                # its queries are every pool-th token of the longer sequence
                asking = cut.inner.replace(unit=inner.unit, start=(self.spec.pool - 1) * cut.n, pos_BL=None)
                within = _Asking(**vars(cut.inner), asking=asking)
            x_BLD, inner = self._run(i, level, x_BLD, within, wide), cut.inner
            slots.append(cut.slot_BL)
        return first_BLD, x_BLD, slots, inner

    def _run(self, i: int, level: Any, x_BLD: Tensor, ctx: Context, wide: KeyValues | None) -> Tensor:
        level.recompute = self.recompute
        states: list[Any] | None = None
        if wide is not None:
            states = [[None] * len(level.blocks[n].parts) for n in level.order]
            states[0][0] = wide
        with ctx.scope(str(i)):
            out: Tensor = level(x_BLD, ctx, states)
        return out

    def _wide(self, level: Any, x_BLD: Tensor, ctx: Context, cut: "_Cut") -> KeyValues:
        """Return keys and values of the longer sequence for the first layer of a level."""
        block = level.blocks[level.order[0]]
        view = View(
            keep_BM=None if ctx.padding is None else ctx.padding.keep_BL,
            q_group_BL=cut.inner.group_BL,
            k_group_BM=ctx.group_BL,
        )
        if isinstance(block.parts[0].spec.position, XL):
            n_all, device = x_BLD.shape[1], x_BLD.device
            at_BM, k_pos_BM = (
                c.positions(n, device).expand(len(x_BLD), n) for c, n in ((cut.inner, cut.n), (ctx, n_all))
            )
            q_pos_BM = torch.where(at_BM < self.spec.apart, at_BM, self.spec.first(at_BM))
            view = dataclasses.replace(view, q_pos_BL=q_pos_BM[: 1 if ctx.pos_BL is None else None], k_pos_BM=k_pos_BM)
        return dataclasses.replace(block.keys_values(x_BLD, ctx, None), view=view)

    def new_state(self, batch_size: int, max_len: int) -> list[Any]:
        raise SpecError("a funnel pools what comes later, so it cannot decode step by step")

    def new_memory(self) -> list[Any]:
        return []


class Narrowest(Bridge, kind="narrowest"):
    """Pooled encoder output: the last level of a funnel, fewer states for a decoder (Narang et al. 2021)."""

    def check(self, encoder: Depth | None, decoder: Depth | None) -> None:
        _narrow(encoder)

    def build(self, encoder: Depth | None, decoder: Depth | None) -> Module:
        return _Narrowest()

    def seen(self, encoder: Depth, n: int) -> int:
        for _ in _narrow(encoder).levels[1:]:
            n = _narrow(encoder).shorter(n)
        return n


class _Narrowest(Module):
    def forward(self, encoder: Any, x_BMD: Tensor, ctx: Context) -> EncoderOutput:
        _, x_BMD, _, inner = encoder.narrow(x_BMD, ctx)
        return EncoderOutput(x_BMD, None if inner.padding is None else inner.padding.keep_BL)


def _narrow(encoder: Depth | None) -> Funnel:
    if not isinstance(encoder, Funnel) or encoder.top is not None:
        raise SpecError(
            "bridge: 'narrowest' needs an encoder of kind 'funnel' that does not widen again: without a top"
        )
    return encoder


@dataclasses.dataclass(frozen=True, eq=False)
class _Asking(Context):
    """Context of a level whose first layer has queries of another sequence than its keys."""

    asking: Context | None = None

    def layer(self, n: int) -> Context:
        return self.asking if n == 0 and self.asking is not None else super().layer(n)


@dataclasses.dataclass
class _Cut:
    """Pooling of one sequence: the slot of each position, and the context of the shorter sequence."""

    slot_BL: Tensor
    keep_BL: Tensor | None
    n: int
    inner: Context

    @classmethod
    def of(cls, ctx: Context, x_BLD: Tensor, spec: Funnel) -> "_Cut":
        """Cut the sequence of a context; only packed documents need a look at where they begin."""
        n_all, keep_BL = x_BLD.shape[1], None if ctx.padding is None else ctx.padding.keep_BL
        if ctx.pos_BL is None and ctx.group_BL is None:
            slot_1L = _slots(torch.arange(n_all, device=x_BLD.device)[None], spec)
            slot_BL, n = slot_1L.expand(len(x_BLD), -1), spec.shorter(n_all)
            padding = None if keep_BL is None or ctx.padding is None else Padding(count(slot_BL, keep_BL, n) > 0, False)
            return cls(slot_BL, keep_BL, n, ctx.replace(padding=padding, unit=ctx.unit * spec.pool))
        # the host works it out: how many slots there are decides about shapes
        device, group_BL = x_BLD.device, None if ctx.group_BL is None else host(ctx.group_BL)
        at_BL = host(ctx.positions(n_all, device)).expand(len(x_BLD), n_all)
        to_BL = _slots(at_BL, spec)
        begins_BL = torch.ones_like(at_BL, dtype=torch.bool)
        begins_BL[:, 1:] = to_BL[:, 1:] != to_BL[:, :-1]
        if group_BL is not None:
            begins_BL[:, 1:] |= group_BL[:, 1:] != group_BL[:, :-1]
        slot_BL = begins_BL.cumsum(1) - 1
        n = int(slot_BL.max()) + 1
        pos_BM = send(to_BL.new_zeros(len(to_BL), n).scatter(1, slot_BL, to_BL), device)
        group_BM = None
        if group_BL is not None:
            group_BM = send(group_BL.new_full((len(to_BL), n), -1).scatter(1, slot_BL, group_BL), device)
        slot_BL = send(slot_BL, device)
        real_BM = count(slot_BL, keep_BL, n) > 0
        unit = ctx.unit * spec.pool
        inner = ctx.replace(padding=Padding(real_BM, False), pos_BL=pos_BM, group_BL=group_BM, unit=unit)
        return cls(slot_BL, keep_BL, n, inner)


def _slots(at_BL: Tensor, spec: Funnel) -> Tensor:
    """Return the slot of every position of a document."""
    pooled_BL = spec.apart + (at_BL - spec.apart).div(spec.pool, rounding_mode="floor")
    return torch.where(at_BL < spec.apart, at_BL, pooled_BL)


def _first(level: Stack) -> Any:
    """Return the part that runs first."""
    return level.blocks[level.order[0]].parts[0]


def _both_ways(dims: Dims, stack: Stack, n: int) -> Cost:
    """Return what distances in both directions cost all `n` tokens more than those in one."""
    looks = [part for i in stack.order for part in stack.blocks[i].parts if isinstance(part, Attention)]
    tables = (_tables(dims, look, n - 1, n) for look in looks if isinstance(look.position, XL))
    return sum(tables, start=Cost())


def _tables(dims: Dims, look: Attention, rows: int, n: int) -> Cost:
    """Return the cost of `rows` further rows in a table of distances, and of their products with `n` queries."""
    width = look.n_heads * (look.d_head or dims.d_model // look.n_heads)
    return Cost(0, 2.0 * width * rows * (dims.d_model + n), rows * (width + dims.d_model))
