"""Synthesizer attention: scores from the query alone or learned for each pair of positions (Tay et al. 2020).

A made-up score is itself a product of two vectors (of the query, or of its place; and of the key's place), so it runs
through `ops.attend` like any other, with its patterns, padding and memory for decoding; only a whole table of scores
has to be added pair by pair.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.core.bounds import PositiveInt, Rate
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.layers.module import Dims, Linear
from kinfolk.layers.part import Mixer, PartModule, split_heads, whole_heads
from kinfolk.layers.positions.position import Heads, NoPosition, Position
from kinfolk.layers.positions.relative import ALiBi, T5Buckets
from kinfolk.layers.states.kv_cache import Ring, Slots
from kinfolk.ops.attention.attend import attend, scored_pairs
from kinfolk.ops.attention.scores import Hook, Scoring, View
from kinfolk.ops.patterns.leaves import Full, Pattern
from kinfolk.ops.patterns.plan import pairs

FUSED_BLOCK = 32
"""Queries that the fused kernel takes at once: with vectors this wide, what it works on in vain counts."""
Form = Literal["dense", "dense-plus", "dense-plus-alpha", "factorized", "random", "random-plus", "random-plus-alpha"]


class Synthesizer(Mixer, kind="synthesizer"):
    r"""Synthesizer: $\mathrm{softmax}_j(b_{ij})\, v_j$ with scores $b$ that compare no tokens (Tay et al. 2020).

    "dense": $b_{ij} = w_j \cdot \mathrm{relu}(W_q x_i)$; "random": $b_{ij} = R_{ij}$, a learned table of each head;
    "factorized": $R = R_1 R_2^\top$ of `rank`. "plus" adds them to $q_i \cdot k_j / \sqrt{K}$; "plus-alpha" weighs the
    two with $s$ and $1 - s$, $s = \sigma(\alpha)$, one learned $\alpha$ per layer. There are `max_len` positions. A
    `position` that knows only distances is added to the scores (Narang et al. 2021).
    """

    n_heads: PositiveInt
    form: Form
    rank: PositiveInt = 8
    pattern: Pattern = Full()
    bias: bool = True
    dropout: Rate = 0.0
    position: Position = NoPosition()

    def __post_init__(self) -> None:
        if not isinstance(self.position, NoPosition | T5Buckets | ALiBi):
            raise SpecError(f"position: {self.position.kind!r} is more than a distance; use 't5-buckets' or 'alibi'")

    def build(self, dims: Dims) -> PartModule:
        return _Synthesizer(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        d, n_heads, n_pos = dims.d_model, self.n_heads, dims.max_len
        d_head = whole_heads(self, dims)
        table = {"dense": d_head, "factorized": 2 * n_heads * self.rank, "random": n_heads * n_pos}[self.source]
        own = Cost(params=n_pos * table + self.weighs)
        width = n_heads * self.width(d_head)
        seen, scored = self._pairs(shape.length)
        explicit = n_heads * scored * (2 if self.dropout else 1)
        # the maps are kept by what weighs them, and what a ReLU lets through by it
        weighed = self.n_maps * d * self.weighs + d * (self.source == "dense")
        scores = Cost(flops=4.0 * width * seen, kept=3 * width + n_heads + explicit + weighed)
        scores += self.position.cost(dims, Heads(n_heads, d_head), scored)
        return linear(d, self.n_maps * d, self.bias) + own + scores + linear(d, d, self.bias)

    def _pairs(self, length: int) -> tuple[float, float]:
        """Return how many keys a query works on, and how many of their scores are kept."""
        if self.dropout > 0 or self.source == "random" or self.position.explicit:
            scored = scored_pairs(self.pattern, length, self.n_heads) / length
            return scored, scored
        # the fused kernel takes queries by blocks, each up to the last key of its last query
        return min(length, pairs(self.pattern, length, length) / length + FUSED_BLOCK / 2), 0.0

    @property
    def source(self) -> str:
        """What the made-up scores are made of: "dense", "factorized" or "random"."""
        return self.form.split("-")[0]

    @property
    def compares(self) -> bool:
        """Whether tokens are compared as well."""
        return "plus" in self.form

    @property
    def weighs(self) -> bool:
        """Whether the two are weighed."""
        return "alpha" in self.form

    @property
    def n_maps(self) -> int:
        """How many of query, key and value there are; the value always."""
        return 1 + (self.compares or self.source == "dense") + self.compares

    def width(self, d_head: int) -> int:
        """How wide the vectors are whose products are the scores; at least as wide as a value."""
        return max(
            d_head, d_head * self.compares + {"dense": d_head, "factorized": self.rank, "random": 0}[self.source]
        )


class _Synthesizer(PartModule):
    def __init__(self, spec: Synthesizer, dims: Dims) -> None:
        super().__init__()
        self.spec, self.limit, self.n_positions = spec, dims.max_len, dims.max_len
        self.d_head = whole_heads(spec, dims)
        self.width = spec.width(self.d_head)
        self.inputs = Linear(dims.d_model, spec.n_maps * dims.d_model, bias=spec.bias, packs=spec.n_maps)
        self.out = Linear(dims.d_model, dims.d_model, bias=spec.bias, ends_branch=True)
        self.position = spec.position.build(dims, Heads(spec.n_heads, self.d_head))
        self.alpha = nn.Parameter(torch.zeros(1)) if spec.weighs else None
        # by position, of all heads: what a key's place, a query's place, or both together say
        of_key = {"dense": self.d_head, "factorized": spec.n_heads * spec.rank}.get(spec.source, 0)
        self.of_key = nn.Embedding(dims.max_len, of_key) if of_key else None
        self.of_query = nn.Embedding(dims.max_len, of_key) if spec.source == "factorized" else None
        self.of_pair = nn.Embedding(dims.max_len, spec.n_heads * dims.max_len) if spec.source == "random" else None

    def forward(self, x_BLD: Tensor, ctx: Context, state: Slots | None) -> tuple[Tensor, Slots | None]:
        stop = ctx.start + x_BLD.shape[1]
        if stop > self.n_positions and (ctx.pos_BL is None or state is not None):
            raise ShapeError(f"synthesizer: position {stop - 1} is beyond the {self.n_positions} it has scores for")
        q_BHLK, k_BHLK, v_BHLK = (self._widened(x) for x in self._vectors(x_BLD, ctx))
        if state is None:
            k_BHMK, v_BHMK, view = k_BHLK, v_BHLK, self._view(ctx)
        else:
            k_BHMK, v_BHMK, view = state.extend(k_BHLK, v_BHLK, ctx)
        dropout = self.spec.dropout if self.training else 0.0
        scoring = Scoring(scale=1.0, dropout=dropout, bias=self._bias(ctx, stop), tap=ctx.listener("weights"))
        y_BHLK = attend(q_BHLK, k_BHMK, v_BHMK, self.spec.pattern, view, scoring)[..., : self.d_head]
        return self.out(y_BHLK.transpose(1, 2).flatten(2)), state

    def new_state(self, batch_size: int, max_len: int) -> Slots:
        """Return an empty KV cache; a ring buffer if the pattern has a bounded span that fits."""
        pattern = self.spec.pattern
        if not pattern.causal:
            raise SpecError(f"{pattern} lets a query see later keys, so it cannot decode step by step")
        size = max_len if pattern.span is None else min(max_len, pattern.span)
        new = [self.out.weight.new_zeros(batch_size, self.spec.n_heads, size, self.width) for _ in range(2)]
        return (Slots if size == max_len else Ring)(*new)

    def _vectors(self, x_BLD: Tensor, ctx: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Return vectors of queries and keys whose products are the scores, and the values."""
        maps = [split_heads(x, self.d_head) for x in self.inputs(x_BLD).split(x_BLD.shape[2], dim=-1)]
        compared, made_up = self._shares()
        q_parts, k_parts, v_BHLK = [], [], maps[-1]
        if self.spec.compares:
            q_parts.append(maps[0] * (compared * self.d_head**-0.5))
            k_parts.append(maps[1])
        if self.of_key is not None:
            q_BHLr = maps[0].relu() if self.of_query is None else self._at_positions(self.of_query, v_BHLK, ctx)
            q_parts.append(q_BHLr * made_up)
            k_parts.append(self._at_positions(self.of_key, v_BHLK, ctx))
        # a table of pairs has no vectors: the products are 0, and the table is added to them
        nothing = [v_BHLK.new_zeros(1).expand_as(v_BHLK)]
        return torch.cat(q_parts or nothing, dim=-1), torch.cat(k_parts or nothing, dim=-1), v_BHLK

    def _shares(self) -> tuple[Tensor | float, Tensor | float]:
        """Return the weights of compared and of made-up scores."""
        if self.alpha is None:
            return 1.0, 1.0
        share = self.alpha.sigmoid()
        return 1.0 - share, share

    def _at_positions(self, table: nn.Embedding, like_BHLK: Tensor, ctx: Context) -> Tensor:
        """Look up what a table has for the context's positions: [B, H, L, r], the same for all heads if it has one."""
        n_examples, n_heads, length, _ = like_BHLK.shape
        width = self.d_head if self.of_query is None else self.spec.rank
        rows_BLd = table(ctx.positions(length, like_BHLK.device)).expand(n_examples, length, -1)
        return split_heads(rows_BLd, width).expand(-1, n_heads, -1, -1)

    def _widened(self, x_BHLK: Tensor) -> Tensor:
        missing = self.width - x_BHLK.shape[-1]
        return F.pad(x_BHLK, (0, missing)) if missing else x_BHLK

    def _bias(self, ctx: Context, n: int) -> Hook | None:
        """Return what is added to the products: a table of pairs, or what a distance says, or both."""
        made_up = None if self.of_pair is None else self._pairs
        far = self.position.hooks(ctx, n, self.spec.pattern.causal).bias
        if made_up is None or far is None:
            return made_up or far
        return lambda *tile: made_up(*tile) + far(*tile)

    def _pairs(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, heads: slice) -> Tensor:
        """Look up the scores of a tile of positions."""
        assert self.of_pair is not None
        # keys without a position are masked already
        k_pos = k_pos.clamp(min=0)
        if q_pos.ndim == 2 and len(q_pos) == len(k_pos) == 1:
            # rows first: the whole table of a long text is large, and a step of decoding needs one row of it
            rows_LHM = self.of_pair(q_pos[0]).unflatten(1, (self.spec.n_heads, -1))[:, heads]
            found_1HLM = rows_LHM.index_select(2, k_pos[0]).transpose(0, 1)[None]
        else:
            table_HMM = self.of_pair.weight.unflatten(1, (self.spec.n_heads, -1)).transpose(0, 1)[heads]
            found_1HLM = table_HMM[:, q_pos.unsqueeze(-1), k_pos.unsqueeze(-2)].movedim(0, 1)
        return found_1HLM * self._shares()[1]

    def _view(self, ctx: Context) -> View:
        """Say what hides keys while training, and the positions of pairs if their scores depend on them."""
        pattern, padding = self.spec.pattern, ctx.padding
        pos = ctx.pos_BL if self.of_pair is not None or not pattern.stationary else None
        hidden = padding is None or (padding.right and pattern.causal)
        return View(
            q_pos_BL=pos,
            k_pos_BM=pos,
            keep_BM=None if hidden or padding is None else padding.keep_BL,
            q_group_BL=ctx.group_BL,
            k_group_BM=ctx.group_BL,
            visible_BLM=ctx.visible_pairs,
        )
