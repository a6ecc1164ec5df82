"""Axis Position: position encodings (sinusoidal, learned, depth-time) and their hooks.

Four places, the identity by default. `add` changes the embedding, `turn` the queries and keys, and `hooks` the scores
(`bias`) and the output (`value`) of attention. An embedding calls the first, attention the others.
"""

import math
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from kinfolk.core.bounds import NonNegativeInt, PositiveInt
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost
from kinfolk.core.device import wide
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.core.spec import Spec
from kinfolk.layers.module import Dims, Module
from kinfolk.ops.attention.scores import Hook


class Heads(NamedTuple):
    """Number and width of the query heads of an attention."""

    n_heads: int
    d_head: int


class Hooks(NamedTuple):
    """Hooks of a position encoding on scores and outputs; see `Scoring` in `ops/attention/scores.py`."""

    bias: Hook | None = None
    value: Hook | None = None


NO_HOOKS = Hooks()


class PositionModule(Module):
    """Base of position encodings: the identity in every hook."""

    limit: int | None = None  # positions it has, where they are bounded

    def add(self, x_BLD: Tensor, ctx: Context, depth: int = 0) -> Tensor:
        """Change the embedding of tokens at the context's positions, or what enters block number `depth`."""
        return x_BLD

    def turn(self, q_BHLK: Tensor, k_BGMK: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Change queries and keys, at the context's positions."""
        return q_BHLK, k_BGMK

    def hooks(self, ctx: Context, n: int, causal: bool) -> Hooks:
        """Return what changes scores and outputs of attention among positions below `n`."""
        return NO_HOOKS

    def kept_hooks(self, n: int, causal: bool) -> Hooks | None:
        """Return hooks that a decoding state may keep, for distances below `n`; None if they depend on the context."""
        return None


class Position(Spec):
    """Axis: position encodings. `explicit`: attention has to compute its scores, fused kernels have no hooks."""

    explicit: ClassVar[bool] = False

    def build(self, dims: Dims, heads: Heads | None = None) -> PositionModule:
        """Return the module; `heads` is given by attention."""
        raise NotImplementedError

    def cost(self, dims: Dims, heads: Heads | None = None, scored: float = 0.0) -> Cost:
        """Return its cost per token that scores `scored` keys."""
        return Cost()

    def inside(self, heads: Heads | None) -> Heads:
        """Return the heads that attention gives; of a position that is added to states there are none."""
        if heads is None:
            raise SpecError(f"position {self.kind!r} belongs to attention, not to an embedding")
        return heads


class NoPosition(Position, kind="none"):
    """No position encoding: order is known only from the attention mask, if at all."""

    def build(self, dims: Dims, heads: Heads | None = None) -> PositionModule:
        return PositionModule()


class Sinusoid(Position, kind="sinusoid"):
    r"""Sinusoids $P_{p,2i} = \sin(p / 10000^{2i/D}),\ P_{p,2i+1} = \cos(\ldots)$ (Vaswani et al. 2017, section 3.5).

    `layout` "interleaved" is the paper's; "halves" puts all sines first (Marian, Transformer-XL).
    """

    layout: Literal["interleaved", "halves"] = "interleaved"

    def build(self, dims: Dims, heads: Heads | None = None) -> PositionModule:
        return SinusoidModule(self, dims)

    def cost(self, dims: Dims, heads: Heads | None = None, scored: float = 0.0) -> Cost:
        return Cost(flops=dims.d_model)


def sinusoids(positions: Tensor, width: int, layout: str = "interleaved") -> Tensor:
    """Return the sinusoids of any positions in the widest type of their device: [..., width]."""
    rate = torch.exp(wide(torch.arange(0, width, 2, device=positions.device)) * (-math.log(1e4) / width))
    # in double precision: float32 knows an angle near 1e5 only to a hundredth
    angle = wide(positions).unsqueeze(-1) * rate
    pair = torch.stack([angle.sin(), angle.cos()], dim=-1 if layout == "interleaved" else -2)
    # an odd width has one sine more than cosines
    return pair.flatten(-2)[..., :width]


class SinusoidModule(PositionModule):
    """Sinusoidal position encoding: adds sines and cosines of the position."""

    def __init__(self, spec: "Sinusoid | DepthTime", dims: Dims) -> None:
        super().__init__()
        self.layout, self.width = spec.layout, dims.d_model
        self.table_LD: Tensor
        self.register_buffer("table_LD", self._rows(dims.max_len), persistent=False)

    def add(self, x_BLD: Tensor, ctx: Context, depth: int = 0) -> Tensor:
        stop = ctx.start + x_BLD.shape[1]
        if stop > len(self.table_LD):
            # twice as long as needed, so that decoding does not make it anew at every step
            self.table_LD = self._rows(2 * stop).to(self.table_LD)
        rows = self.table_LD[ctx.start : stop] if ctx.pos_BL is None else self.table_LD[ctx.pos_BL]
        return x_BLD + rows.to(x_BLD.dtype)

    def _rows(self, n: int) -> Tensor:
        return sinusoids(torch.arange(n), self.width, self.layout).to(torch.get_default_dtype())


class _DepthTime(SinusoidModule):
    def add(self, x_BLD: Tensor, ctx: Context, depth: int = 0) -> Tensor:
        if depth >= len(self.table_LD):
            self.table_LD = self._rows(2 * depth).to(self.table_LD)
        return super().add(x_BLD, ctx) + self.table_LD[depth].to(x_BLD.dtype)


class DepthTime(Position, kind="depth-time"):
    r"""Sinusoids of position and depth, $P^t_p = S_p + S_t$, before block $t = 1, 2, \dots$ (Dehghani et al. 2019).

    Section 2.1. The position of a stack: a block that runs again and again knows how often it has.
    """

    layout: Literal["interleaved", "halves"] = "interleaved"

    def build(self, dims: Dims, heads: Heads | None = None) -> PositionModule:
        return _DepthTime(self, dims)

    def cost(self, dims: Dims, heads: Heads | None = None, scored: float = 0.0) -> Cost:
        return Cost(flops=2.0 * dims.d_model)


class LearnedSteps(Position, kind="learned-steps"):
    """Learned depth embedding: a vector for each of `n` runs of a block, after the first `skip`.

    Dehghani et al. 2019 as published in code, where their sinusoids were replaced.
    """

    n: PositiveInt
    skip: NonNegativeInt = 0

    def build(self, dims: Dims, heads: Heads | None = None) -> PositionModule:
        return _LearnedSteps(self, dims)

    def cost(self, dims: Dims, heads: Heads | None = None, scored: float = 0.0) -> Cost:
        return Cost(self.n * dims.d_model if dims.shared.first(self) else 0, dims.d_model)


class _LearnedSteps(PositionModule):
    def __init__(self, spec: LearnedSteps, dims: Dims) -> None:
        super().__init__()
        self.table, self.skip = nn.Embedding(spec.n, dims.d_model), spec.skip

    def add(self, x_BLD: Tensor, ctx: Context, depth: int = 0) -> Tensor:
        row = depth - 1 - self.skip
        return x_BLD + self.table.weight[row] if 0 <= row < self.table.num_embeddings else x_BLD


class Learned(Position, kind="learned"):
    """Learned position embeddings, `max_len` of them (Gehring et al. 2017); positions beyond are refused."""

    def build(self, dims: Dims, heads: Heads | None = None) -> PositionModule:
        return _Learned(dims)

    def cost(self, dims: Dims, heads: Heads | None = None, scored: float = 0.0) -> Cost:
        return Cost(params=dims.max_len * dims.d_model, flops=dims.d_model)


class _Learned(PositionModule):
    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.table = nn.Embedding(dims.max_len, dims.d_model)
        self.limit = dims.max_len

    def add(self, x_BLD: Tensor, ctx: Context, depth: int = 0) -> Tensor:
        if ctx.pos_BL is not None:
            return x_BLD + self.table(ctx.pos_BL)
        stop = ctx.start + x_BLD.shape[1]
        if stop > self.table.num_embeddings:
            raise ShapeError(
                f"position {stop - 1} is beyond the {self.table.num_embeddings} learned ones: use a larger max_len"
            )
        return x_BLD + self.table.weight[ctx.start : stop]


class LearnedAtDepth(Position, kind="learned-at-depth"):
    """Learned positions of every layer: a table for each of `n_layers` blocks (Al-Rfou et al. 2018, section 3.3).

    The position of a stack: what a layer forgets about positions, the next gets again.
    """

    n_layers: PositiveInt

    def build(self, dims: Dims, heads: Heads | None = None) -> PositionModule:
        return _LearnedAtDepth(self, dims)

    def cost(self, dims: Dims, heads: Heads | None = None, scored: float = 0.0) -> Cost:
        # a stack asks once for each of its blocks
        return Cost(params=dims.max_len * dims.d_model, flops=dims.d_model)


class _LearnedAtDepth(PositionModule):
    def __init__(self, spec: LearnedAtDepth, dims: Dims) -> None:
        super().__init__()
        self.tables = nn.ModuleList(_Learned(dims) for _ in range(spec.n_layers))
        self.limit = dims.max_len

    def add(self, x_BLD: Tensor, ctx: Context, depth: int = 0) -> Tensor:
        table = self.tables[depth - 1]
        assert isinstance(table, _Learned)
        return table.add(x_BLD, ctx)
