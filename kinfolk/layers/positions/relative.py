"""Relative position encodings inside attention: Shaw, Transformer-XL, T5 buckets, rotary, ALiBi.

Each works with any pattern, dense or sparse, and while decoding: it gets absolute positions and nothing else.
"""

import functools
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from kinfolk.core.annotations import DependencyTree
from kinfolk.core.bounds import Bounds, Fraction, NonNegativeInt, PositiveFloat, PositiveInt
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost
from kinfolk.core.errors import SpecError
from kinfolk.layers.module import Dims, Linear, borrow
from kinfolk.layers.positions.position import Heads, Hooks, Position, PositionModule, sinusoids
from kinfolk.layers.positions.rope_scaling import NoScaling, RopeScaling
from kinfolk.ops.relative_position import (
    bucket,
    distance_scores,
    distances,
    picked_scores,
    picked_values,
    rotate,
    slopes,
)


class Rotary(Position, kind="rotary"):
    """Rotary position embedding, RoPE: queries and keys turned by their positions (Su et al. 2021, section 3.2.2).

    `share` is the part of each head that turns, counted from its first channel (GPT-J, GPT-NeoX: partial RoPE).
    """

    base: PositiveFloat = 10000.0
    layout: Literal["interleaved", "halves"] = "interleaved"
    share: Fraction = 1.0
    scaling: RopeScaling = NoScaling()

    def build(self, dims: Dims, heads: Heads | None = None) -> PositionModule:
        width = self.inside(heads).d_head
        turned = int(self.share * width)
        if turned % 2 or not turned:
            raise SpecError(f"rotary: the part of a head that turns must be even, got {turned} of {width} channels")
        return RotaryModule(self, turned)

    def cost(self, dims: Dims, heads: Heads | None = None, scored: float = 0.0) -> Cost:
        width = self.inside(heads).n_heads * self.inside(heads).d_head
        return Cost(flops=6.0 * width, kept=2 * width)


class RotaryModule(PositionModule):
    """RoPE: rotates pairs of channels of queries and keys by angles that grow with the position."""

    def __init__(self, spec: Rotary, width: int) -> None:
        super().__init__()
        self.spec, self.width = spec, width
        self.scale = None if isinstance(spec.scaling, NoScaling) else spec.scaling.rates

    def turn(self, q_BHLK: Tensor, k_BGMK: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        pos = ctx.positions(q_BHLK.shape[2], q_BHLK.device)
        return self._turn(q_BHLK, pos), self._turn(k_BGMK, pos)

    def _turn(self, x_BHLK: Tensor, pos: Tensor) -> Tensor:
        whole = self.width == x_BHLK.shape[-1]
        y_BHLr = rotate(
            x_BHLK if whole else x_BHLK[..., : self.width], pos, self.spec.base, self.spec.layout, self.scale
        )
        if self.spec.scaling.magnitude != 1:
            y_BHLr = y_BHLr * self.spec.scaling.magnitude
        return y_BHLr if whole else torch.cat([y_BHLr, x_BHLK[..., self.width :]], -1)


class ALiBi(Position, kind="alibi"):
    """ALiBi: a penalty proportional to the distance, a slope per head, nothing learnt (Press et al. 2022)."""

    explicit: ClassVar[bool] = True

    def build(self, dims: Dims, heads: Heads | None = None) -> PositionModule:
        return ALiBiModule(self.inside(heads))

    def cost(self, dims: Dims, heads: Heads | None = None, scored: float = 0.0) -> Cost:
        return Cost(flops=2.0 * self.inside(heads).n_heads * scored)


class ALiBiModule(PositionModule):
    """ALiBi: adds a bias to scores that falls linearly with distance."""

    def __init__(self, heads: Heads) -> None:
        super().__init__()
        self.slopes_H: Tensor
        self.register_buffer("slopes_H", slopes(heads.n_heads), persistent=False)

    def hooks(self, ctx: Context, n: int, causal: bool) -> Hooks:
        return Hooks(bias=self._bias)

    def _bias(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, heads: slice) -> Tensor:
        # the paper's mask is causal, so its distances are never negative; here a later key is as far as an earlier one
        away = distances(q_pos, k_pos).abs()
        slope = self.slopes_H[heads].to(q.dtype)
        return -slope.view(-1, *[1] * (away.ndim - 2)) * away


class T5Buckets(Position, kind="t5-buckets"):
    """T5's relative bias: a learned number per head and bucket of distances, shared by layers (Raffel et al. 2020)."""

    n_buckets: Annotated[int, Bounds(2)] = 32
    farthest: PositiveInt = 128

    explicit: ClassVar[bool] = True

    def build(self, dims: Dims, heads: Heads | None = None) -> PositionModule:
        return T5BucketsModule(self, dims, self.inside(heads))

    def cost(self, dims: Dims, heads: Heads | None = None, scored: float = 0.0) -> Cost:
        n_heads = self.inside(heads).n_heads
        return Cost(params=self.n_buckets * n_heads if dims.shared.first(self) else 0, flops=n_heads * scored)


class T5BucketsModule(PositionModule):
    """T5's relative bias: adds a learned number for the bucket of each distance."""

    table: nn.Embedding

    def __init__(self, spec: T5Buckets, dims: Dims, heads: Heads) -> None:
        super().__init__()
        self.spec = spec
        table = dims.shared.once(spec, lambda: nn.Embedding(spec.n_buckets, heads.n_heads))
        if table.embedding_dim != heads.n_heads:
            found = f"{table.embedding_dim} and {heads.n_heads}"
            raise SpecError(f"n_heads: layers share the biases of {spec.kind!r}, so all have as many; found {found}")
        borrow(self, "table", table)

    def hooks(self, ctx: Context, n: int, causal: bool) -> Hooks:
        return Hooks(bias=functools.partial(self._bias, causal))

    def _bias(self, causal: bool, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, heads: slice) -> Tensor:
        which = bucket(distances(q_pos, k_pos)[:, 0], self.spec.n_buckets, self.spec.farthest, causal)
        return self.table.weight[:, heads][which].movedim(-1, 1)


class Shaw(Position, kind="shaw"):
    """Shaw's relative positions: a vector per distance, added to keys and values (Shaw et al. 2018, equations 3, 4).

    Distances are clipped to `clip`. Heads share the tables, layers do not. `values` "none" leaves values as they are.
    """

    clip: NonNegativeInt = 16
    values: Literal["learned", "none"] = "learned"

    explicit: ClassVar[bool] = True

    def build(self, dims: Dims, heads: Heads | None = None) -> PositionModule:
        return _Shaw(self, self.inside(heads))

    def cost(self, dims: Dims, heads: Heads | None = None, scored: float = 0.0) -> Cost:
        n_heads, d_head = self.inside(heads)
        tables, rows = 1 if self.values == "none" else 2, 2 * self.clip + 1
        flops = 2.0 * n_heads * d_head * rows * tables
        return Cost(params=tables * rows * d_head, flops=flops, kept=n_heads * (d_head + rows))


class _Shaw(PositionModule):
    def __init__(self, spec: Shaw, heads: Heads) -> None:
        super().__init__()
        self.spec = spec
        self.keys = nn.Embedding(2 * spec.clip + 1, heads.d_head)
        self.values = nn.Embedding(2 * spec.clip + 1, heads.d_head) if spec.values == "learned" else None

    def hooks(self, ctx: Context, n: int, causal: bool) -> Hooks:
        return Hooks(
            bias=functools.partial(self._bias, ctx), value=functools.partial(self._value, ctx) if self.values else None
        )

    def _bias(self, ctx: Context, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, heads: slice) -> Tensor:
        return picked_scores(q * q.shape[-1] ** -0.5, self.keys.weight, self._index(ctx, q_pos, k_pos))

    def _value(self, ctx: Context, weights: Tensor, v: Tensor, q_pos: Tensor, k_pos: Tensor, heads: slice) -> Tensor:
        assert self.values is not None
        return picked_values(weights, self.values.weight, self._index(ctx, q_pos, k_pos))

    def _index(self, ctx: Context, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """Return the row of the tables for each pair: its distance, or what the example says instead of it."""
        # j - i, as in the paper
        away = -distances(q_pos, k_pos)
        tree = ctx.annotation(DependencyTree)
        relation_BLM = None if tree is None else tree.relation_BLM
        if relation_BLM is not None:
            example = torch.arange(len(relation_BLM), device=away.device).view(-1, *[1] * (away.ndim - 2))
            away = relation_BLM[example, q_pos.unsqueeze(-1), k_pos.clamp(min=0).unsqueeze(-2)].unsqueeze(1)
        return away.clamp(-self.spec.clip, self.spec.clip) + self.spec.clip


class XL(Position, kind="xl"):
    r"""Transformer-XL's positions: $(q_i + u)\cdot k_j + (q_i + v)\cdot W_R R_{i-j}$ (Dai et al. 2019, section 3.3).

    $R$ are sinusoids of the distance, $u$ and $v$ one pair of vectors per head, "shared" by all layers or "per-layer".
    The first `apart` tokens of an encoder summarise all of it, so nothing is far from them: their pairs have no $R$.
    """

    biases: Literal["shared", "per-layer"] = "shared"
    apart: NonNegativeInt = 0

    explicit: ClassVar[bool] = True

    def build(self, dims: Dims, heads: Heads | None = None) -> PositionModule:
        if self.apart and dims.direction == "past":
            raise SpecError(f"apart: {self.apart} tokens cannot summarise a decoder, which has not seen the rest")
        return XLModule(self, dims, self.inside(heads))

    def cost(self, dims: Dims, heads: Heads | None = None, scored: float = 0.0) -> Cost:
        width = self.inside(heads).n_heads * self.inside(heads).d_head
        own = 2 * width if self.biases == "per-layer" or dims.shared.first(self) else 0
        flops = 2.0 * dims.d_model * width + 2.0 * width * scored
        return Cost(params=dims.d_model * width + own, flops=flops, kept=2 * width + dims.d_model)


class XLModule(PositionModule):
    """Transformer-XL's positions: scores contents and distances apart, each with a learned bias for queries."""

    biases: nn.Embedding

    def __init__(self, spec: XL, dims: Dims, heads: Heads) -> None:
        super().__init__()
        self.heads, self.apart = heads, spec.apart
        width = heads.n_heads * heads.d_head
        self.distance = Linear(dims.d_model, width, bias=False)
        # row 0 is u, row 1 is v; a table, so that it is drawn like the other weights
        if spec.biases == "shared":
            biases = dims.shared.once(spec, lambda: nn.Embedding(2, width))
            if biases.embedding_dim != width:
                found = f"{biases.embedding_dim} and {width}"
                raise SpecError(f"biases: 'shared' needs layers of one width, found {found}; use 'per-layer'")
            borrow(self, "biases", biases)
        else:
            self.biases = nn.Embedding(2, width)

    def hooks(self, ctx: Context, n: int, causal: bool) -> Hooks:
        return self.kept_hooks(n, causal, ctx.unit, ctx.pos_BL)

    def kept_hooks(self, n: int, causal: bool, unit: int = 1, pos_BL: Tensor | None = None) -> Hooks:
        low, dtype = 0 if causal else 1 - n, self.distance.weight.dtype
        # the farthest first: that is the order in which a query meets its keys
        away = torch.arange(n - 1, low - 1, -1, device=self.distance.weight.device)
        table_RD = sinusoids(unit * away, self.distance.in_features, "halves").to(dtype)
        table_HRK = self.distance(table_RD).unflatten(-1, (self.heads.n_heads, -1)).transpose(0, 1)
        return Hooks(bias=functools.partial(self._bias, _Distances(table_HRK, n - 1, pos_BL)))

    def _bias(self, known: "_Distances", q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, heads: slice) -> Tensor:
        scale = q.shape[-1] ** -0.5
        u_HK, v_HK = self.biases.weight.unflatten(1, (self.heads.n_heads, -1))[:, heads]
        between = [1] * (q.ndim - 3)
        u, v = (x.view(len(x), *between, x.shape[-1]) for x in (u_HK, v_HK))
        # q . k is the executor's; what u adds is one number for each key
        content = (k * (u * scale)).sum(-1).unsqueeze(-2)
        far = distance_scores((q + v) * scale, known.table_HRK[heads], known.high, q_pos, k_pos)
        return content + (far * known.between(q_pos, k_pos, self.apart) if self.apart else far)


class _Distances(NamedTuple):
    """A row for each distance from `high` downwards, and the positions of tokens in their documents, if packed."""

    table_HRK: Tensor
    high: int
    pos_BL: Tensor | None

    def between(self, q_pos: Tensor, k_pos: Tensor, apart: int) -> Tensor:
        """Tell which pairs have no token among the first `apart`."""
        q_in, k_in = ((pos if self.pos_BL is None else self.pos_BL[:, pos[0]]) >= apart for pos in (q_pos, k_pos))
        return (q_in.unsqueeze(-1) & k_in.unsqueeze(-2)).unsqueeze(1)
