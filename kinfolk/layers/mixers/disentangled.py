"""Disentangled attention of content and relative position: DeBERTa, both releases (He et al. 2021)."""

import functools
from typing import ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from kinfolk.core.bounds import NonNegativeInt
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape
from kinfolk.core.errors import SpecError
from kinfolk.layers.mixers.attention import Attention, SelfAttentionModule
from kinfolk.layers.module import Dims, Dropout, Linear, Module, borrow
from kinfolk.layers.norms.norm import NoNorm, Norm
from kinfolk.layers.part import PartModule
from kinfolk.layers.positions.position import NO_HOOKS, Heads, Hooks, Position, PositionModule
from kinfolk.ops.relative_position import distances, log_bucket, picked_by_keys, picked_scores

Term = Literal["c2p", "p2c"]
TERMS: tuple[Term, ...] = get_args(Term)


class Disentangled(Position, kind="disentangled"):
    r"""Disentangled $(q_i \cdot W_k P_{i-j} + k_j \cdot W_q P_{i-j}) / \sqrt{nK}$ (He et al. 2021, equations 2 to 4).

    $P$ has a row for each distance, one table for all layers, through `norm` if there is one. `terms`: "c2p", content
    looks at position, is the first product, "p2c" the second; $n$ is 1 + their number. Distances go from -`farthest`
    to `farthest` - 1 (0: the model's max_len), those beyond share the last rows. With `buckets` there are as many rows
    in each direction, half of them for a single distance and the others for more and more. `maps` "own": $W_k$, $W_q$
    are the position's, the first with a bias if `key_bias`; "attention": those of content.
    """

    terms: tuple[Term, ...] = TERMS
    farthest: NonNegativeInt = 0
    buckets: NonNegativeInt = 0
    maps: Literal["own", "attention"] = "own"
    norm: Norm = NoNorm()
    key_bias: bool = True

    explicit: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.buckets == 1:
            raise SpecError(f"buckets: {self.buckets} is not allowed; 0, or 2 and more")

    def rows(self, dims: Dims) -> int:
        """Return the number of rows in one direction."""
        return self.buckets or self.farthest or dims.max_len

    def build(self, dims: Dims, heads: Heads | None = None) -> PositionModule:
        heads = self.inside(heads)
        if self.buckets and (self.farthest or dims.max_len) - 1 <= self.buckets // 2:
            raise SpecError(f"farthest: {self.farthest or dims.max_len} leaves nothing to {self.buckets} buckets")
        return _Disentangled(self, dims, heads)

    def cost(self, dims: Dims, heads: Heads | None = None, scored: float = 0.0) -> Cost:
        heads = self.inside(heads)
        if not self.terms:
            return Cost()
        width, seen = heads.n_heads * heads.d_head, max(1.0, scored)
        # a sequence of `scored` keys has as many distances, and a row for each is mapped once for all of it
        rows = min(2.0 * self.rows(dims), 2 * seen - 1)
        total = Cost(kept=dims.d_model * rows / seen)
        if dims.shared.first(self._key(dims)):
            table = 2 * self.rows(dims) * dims.d_model
            total += Cost(params=table) + self.norm.cost(dims.d_model).scaled(2 * self.rows(dims) / seen)
        # through the maps of content go values too, which are not needed
        n_maps = len(self.terms) if self.maps == "own" else 3
        total += Cost(flops=n_maps * 2.0 * dims.d_model * width * rows / seen)
        for term in self.terms:
            biased = int(term == "p2c" or self.key_bias)
            own = width * dims.d_model + biased * width if self.maps == "own" else 0
            kept = width * rows / seen + heads.n_heads * rows + (width if term == "c2p" else 0)
            total += Cost(own, 2.0 * width * rows, kept)
        return total

    def _key(self, dims: Dims) -> tuple[object, ...]:
        return ("distances", self.rows(dims), self.norm)


class _Table(Module):
    """Embeddings of relative distances, from the most negative upwards."""

    def __init__(self, n: int, width: int, norm: Norm) -> None:
        super().__init__()
        self.table = nn.Embedding(n, width)
        self.norm = norm.build(width)

    def forward(self, at_R: Tensor) -> Tensor:
        rows_RD: Tensor = self.norm(self.table(at_R))
        return rows_RD


class _Disentangled(PositionModule):
    distances: _Table
    owner: "_DisentangledAttention | None"

    def __init__(self, spec: Disentangled, dims: Dims, heads: Heads) -> None:
        super().__init__()
        self.spec, self.heads, self.rows = spec, heads, spec.rows(dims)
        self.farthest = spec.farthest or dims.max_len
        self.dropout = Dropout(dims.dropout)
        self.owner = None
        if not spec.terms:
            return
        make = functools.partial(_Table, 2 * self.rows, dims.d_model, spec.norm)
        borrow(self, "distances", dims.shared.once(spec._key(dims), make))
        if spec.maps == "own":
            width = heads.n_heads * heads.d_head
            self.keys = Linear(dims.d_model, width, bias=spec.key_bias) if "c2p" in spec.terms else None
            self.queries = Linear(dims.d_model, width) if "p2c" in spec.terms else None

    def hooks(self, ctx: Context, n: int, causal: bool) -> Hooks:
        if not self.spec.terms:
            return NO_HOOKS
        # rows that positions below n can need
        first, last = self.row(torch.tensor([1 - n, n - 1])).tolist()
        at_R = torch.arange(first, last + 1, device=self.distances.table.weight.device)
        table_RD = self.dropout(self.distances(at_R))
        keys_HRK, queries_HRK = self._mapped(table_RD)
        return Hooks(bias=functools.partial(self._bias, _Rows(keys_HRK, queries_HRK, first)))

    def row(self, distance: Tensor) -> Tensor:
        """Return the row of each distance."""
        if self.spec.buckets:
            distance = log_bucket(distance, self.spec.buckets, self.farthest)
        return (distance + self.rows).clamp(0, 2 * self.rows - 1)

    def _mapped(self, table_RD: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the keys and the queries of distances, of all heads."""
        if self.spec.maps == "own":
            both = [None if a_map is None else a_map(table_RD) for a_map in (self.keys, self.queries)]
        else:
            if self.owner is None:
                raise SpecError("maps: 'attention' takes the maps of content, which only disentangled-attention lends")
            # whatever takes the place of the map by now
            queries, keys, _ = self.owner.qkv(table_RD).chunk(3, -1)
            both = [keys if "c2p" in self.spec.terms else None, queries if "p2c" in self.spec.terms else None]
        split = [None if x is None else x.unflatten(-1, (self.heads.n_heads, -1)).transpose(0, 1) for x in both]
        return split[0], split[1]

    def _bias(self, known: "_Rows", q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, heads: slice) -> Tensor:
        index = self.row(distances(q_pos, k_pos)) - known.first
        # distances outside the table belong to pairs that are not allowed
        index = index.clamp(0, known.n - 1)
        scale = ((1 + len(self.spec.terms)) * q.shape[-1]) ** -0.5
        bias: Tensor | None = None
        if known.keys_HRK is not None:
            bias = picked_scores(q * scale, known.keys_HRK[heads], index)
        if known.queries_HRK is not None:
            # the row of i - j here too, as in the released code; equation 4 of the paper has that of j - i
            other = picked_by_keys(k, known.queries_HRK[heads] * scale, index)
            bias = other if bias is None else bias + other
        assert bias is not None
        return bias


class _Rows(NamedTuple):
    """Keys and queries of distances, [heads, rows, K], from row `first` of the table on."""

    keys_HRK: Tensor | None
    queries_HRK: Tensor | None
    first: int

    @property
    def n(self) -> int:
        some = self.keys_HRK if self.keys_HRK is not None else self.queries_HRK
        assert some is not None
        return some.shape[1]


class DisentangledAttention(Attention, kind="disentangled-attention"):
    r"""Disentangled attention: all scores are divided by $\sqrt{nK}$, for n products (He et al. 2021, equation 4).

    `key_bias` false: queries and values have a bias and keys have none, as in the first release.
    """

    position: Position = Disentangled()
    key_bias: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.position, Disentangled):
            raise SpecError(f"position: {self.position.kind!r} does not keep distances apart; use 'disentangled'")
        if self.n_kv_heads not in (0, self.n_heads):
            raise SpecError(f"n_kv_heads: {self.n_kv_heads} heads of keys have no place here; use 0")

    def build(self, dims: Dims) -> PartModule:
        return _DisentangledAttention(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        width = self.n_heads * (self.d_head or dims.d_model // self.n_heads)
        less = Cost(params=-width if self.bias and not self.key_bias else 0)
        return super().cost(dims, shape) + less


class _DisentangledAttention(SelfAttentionModule):
    position: PositionModule

    def __init__(self, spec: DisentangledAttention, dims: Dims) -> None:
        super().__init__(spec, dims)
        if spec.bias and not spec.key_bias:
            self.qkv = _Keyless(dims.d_model, spec.n_heads * self.d_head)  # type: ignore[assignment]
        assert isinstance(self.position, _Disentangled)
        if self.position.spec.maps == "attention":
            borrow(self.position, "owner", self)
        n = 1 + len(self.position.spec.terms)
        self.scale = spec.scale or (n * self.d_head) ** -0.5


class _Keyless(Module):
    """Query, key and value projections without a bias of keys."""

    def __init__(self, d_in: int, width: int) -> None:
        super().__init__()
        # named as it is elsewhere, for those who look for maps of attention
        self.qkv = Linear(d_in, 3 * width, bias=False, packs=3)
        self.biases = nn.Parameter(torch.zeros(2 * width))

    @property
    def weight(self) -> Tensor:
        """The matrix of all three."""
        return self.qkv.weight

    def forward(self, x: Tensor) -> Tensor:
        of_queries, of_values = self.biases.chunk(2)
        mapped: Tensor = self.qkv(x)
        return mapped + torch.cat([of_queries, torch.zeros_like(of_queries), of_values])
