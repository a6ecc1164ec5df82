"""Multi-head self-attention and cross-attention (Vaswani et al. 2017).

They project, hand queries, keys and values to `ops.attend`, and project back. The attention mask is the pattern's,
positions belong to the position encoding, keys and values while decoding to the KV cache.
"""

import dataclasses
import functools
from typing import ClassVar, Literal, Protocol

import torch.nn.functional as F
from torch import Tensor

from kinfolk.core.bounds import NonNegativeFloat, NonNegativeInt, PositiveInt, Rate
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.layers.mixers.adaptive_span import Look, Span, Unlimited, faded
from kinfolk.layers.mixers.attention_cost import score_cost
from kinfolk.layers.mixers.qk_norm import norm_cost, norms_of
from kinfolk.layers.mixers.softmax import PlainSoftmax, Softmax
from kinfolk.layers.mixers.talking_heads import Silent, Talk
from kinfolk.layers.module import Dims, Linear
from kinfolk.layers.norms.norm import NoNorm, Norm
from kinfolk.layers.part import KeyValues, Mixer, PartModule, split_heads
from kinfolk.layers.positions.position import NO_HOOKS, Heads, Hooks, NoPosition, Position
from kinfolk.layers.states.kv_cache import MemorySlots, Ring, Slots
from kinfolk.ops.attention.attend import attend, scored_pairs
from kinfolk.ops.attention.scores import Scoring, View, plain_scoring
from kinfolk.ops.patterns.both_ways import BothWays
from kinfolk.ops.patterns.leaves import Full, Pattern
from kinfolk.ops.patterns.plan import pairs


class Attention(Mixer, kind="attention"):
    """Multi-head attention of a sequence to itself (Vaswani et al. 2017, section 3.2).

    `n_kv_heads` heads of keys and values are shared by the heads of queries: 0 means as many, 1 is multi-query (Shazeer
    2019), between is grouped-query (Ainslie et al. 2023). `d_head` 0 means d_model / n_heads, `scale`
    0 means 1 / sqrt(d_head). `dropout` falls on the weights. Heads look as far as the pattern lets them
    unless `span` says otherwise, and alone unless `talk` does. `qk_norm` normalises queries and keys before they are
    rotated (QK-norm, Henry et al. 2020), each head alone or all heads as one vector (`qk_norm_over`). `out_bias`
    false leaves the output projection without a bias. `softmax` says how scores become weights (softcap, sinks).
    """

    n_heads: PositiveInt
    n_kv_heads: NonNegativeInt = 0
    d_head: NonNegativeInt = 0
    pattern: Pattern = Full()
    position: Position = NoPosition()
    span: Span = Unlimited()
    talk: Talk = Silent()
    bias: bool = True
    dropout: Rate = 0.0
    scale: NonNegativeFloat = 0.0
    qk_norm: Norm = NoNorm()
    qk_norm_over: Literal["head", "heads"] = "head"
    out_bias: bool = True
    softmax: Softmax = PlainSoftmax()

    @property
    def reads_prefix(self) -> bool:
        # what is built on attention, spans and talking heads know one direction only
        return self.kind == Attention.kind and isinstance(self.span, Unlimited) and isinstance(self.talk, Silent)

    def build(self, dims: Dims) -> PartModule:
        return SelfAttentionModule(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        d_head, n_kv = widths(self, dims)
        d_q, d_kv = self.n_heads * d_head, n_kv * d_head
        maps = linear(dims.d_model, d_q + 2 * d_kv, self.bias) + linear(d_q, dims.d_model, self.bias and self.out_bias)
        maps += norm_cost(self, d_q, d_head) + norm_cost(self, d_kv, d_head)
        pattern = self.span.bounded(self.pattern, dims)
        seen = pairs(pattern, shape.length, shape.length) / shape.length
        explicit = any(one.explicit for one in (self.position, self.span, self.talk, self.softmax)) or self.dropout > 0
        scored = scored_pairs(pattern, shape.length, self.n_heads) / shape.length if explicit else 0.0
        where = self.position.cost(dims, Heads(self.n_heads, d_head), scored or seen)
        how = self.span.cost(dims, self.n_heads, scored) + self.talk.cost(self.n_heads, scored)
        how += self.softmax.cost(self.n_heads, scored)
        return maps + score_cost(d_q, d_kv, self, seen, scored) + where + how


class CrossAttention(Mixer, kind="cross-attention"):
    """Multi-head attention of a decoder to the encoder's states (Vaswani et al. 2017, section 3.2.3)."""

    n_heads: PositiveInt
    n_kv_heads: NonNegativeInt = 0
    d_head: NonNegativeInt = 0
    bias: bool = True
    dropout: Rate = 0.0
    scale: NonNegativeFloat = 0.0

    def build(self, dims: Dims) -> PartModule:
        return _CrossAttention(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        d_head, n_kv = widths(self, dims)
        d_q, d_kv = self.n_heads * d_head, n_kv * d_head
        per_query = linear(dims.d_model, d_q, self.bias) + linear(d_q, dims.d_model, self.bias)
        # the memory is projected once for the whole sequence of queries; its states are kept by the encoder
        per_key = linear(dims.d_model, 2 * d_kv, self.bias, kept=False).scaled(shape.memory / shape.length)
        scores = score_cost(d_q, 0, self, shape.memory, shape.memory if self.dropout else 0.0)
        return per_query + per_key + scores + Cost(kept=2 * d_kv * shape.memory / shape.length)


class SelfAttentionModule(PartModule):
    """Multi-head self-attention; queries, keys and values are one matrix product."""

    called_maps: ClassVar = ("qkv", "out")

    def __init__(self, spec: Attention, dims: Dims) -> None:
        super().__init__()
        self.spec = spec
        self.d_head, self.n_kv = widths(spec, dims)
        self.heads = [spec.n_heads, self.n_kv, self.n_kv]
        # maps of one width are initialised each alone; where keys are narrower, the packed map as one
        packs = 3 if self.n_kv == spec.n_heads else 1
        self.qkv = Linear(dims.d_model, sum(self.heads) * self.d_head, bias=spec.bias, packs=packs, projects=True)
        self.out = Linear(spec.n_heads * self.d_head, dims.d_model, bias=spec.bias and spec.out_bias, ends_branch=True)
        self.norms = norms_of(spec, self.n_kv, self.d_head)
        self.position = spec.position.build(dims, Heads(spec.n_heads, self.d_head))
        # distances have one meaning in training and in decoding, whether or not a prefix is read both ways
        self.causal = spec.pattern.causal and dims.prompt == "causal"
        self.span = spec.span.build(dims, spec.n_heads)
        self.talk = spec.talk.build(spec.n_heads, spec.pattern)
        self.softmax = spec.softmax.build(spec.n_heads)
        self.scale, self.d_cached = spec.scale or None, self.d_head

    def forward(
        self, x_BLD: Tensor, ctx: Context, state: Slots | KeyValues | None
    ) -> tuple[Tensor, Slots | KeyValues | None]:
        look, pattern = self.looking(x_BLD, ctx)
        if isinstance(state, KeyValues):
            q_BHLK, k_BGMK, v_BGMK, view = self._queries(x_BLD, ctx), state.k_BGMK, state.v_BGMK, state.view
        else:
            q_BHLK, k_BGLK, v_BGLK = self.heads_of(self.qkv(x_BLD), ctx)
            k_BGMK, v_BGMK, view = visible_keys(k_BGLK, v_BGLK, ctx, state, pattern)
        y_BHLK = self.attended((q_BHLK, k_BGMK, v_BGMK), (look, pattern), view, ctx)
        return self.out(y_BHLK.transpose(1, 2).flatten(2)), state

    def looking(self, x_BLD: Tensor, ctx: Context) -> tuple[Look, Pattern]:
        """Return the span of the heads, and the pattern of this pass."""
        look = self.span.look(self.spec.pattern, x_BLD, ctx)
        return look, look.pattern if ctx.visible_until is None else BothWays(of=look.pattern)

    def attended(
        self, qkv: tuple[Tensor, Tensor, Tensor], looking: tuple[Look, Pattern], view: View, ctx: Context
    ) -> Tensor:
        """Return the weighted values of all heads: [B, H, L, K]."""
        hooks = self.position.hooks(ctx, ctx.start + qkv[0].shape[2], self.causal)
        scoring = scoring_of(self, ctx, faded(hooks, looking[0], view), self.scale)
        scoring = self.softmax.weigh(self.talk.among_heads(scoring))
        return self.weighted(*qkv, looking[1], view, scoring)

    def weighted(self, q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, view: View, scoring: Scoring) -> Tensor:
        """Return the values of all heads, weighted: [B, H, L, K]."""
        return attend(q, k, v, pattern, view, scoring)

    def keys_values(self, x_BLD: Tensor, ctx: Context, state: Slots | None) -> KeyValues:
        k_BLGK, v_BLGK = self._mapped(x_BLD, slice(self.heads[0], None)).split_with_sizes(self.heads[1:], dim=2)
        k_BLGK = k_BLGK if self.norms is None else self.norms.keys(k_BLGK)
        k_BGLK, v_BGLK = k_BLGK.transpose(1, 2), v_BLGK.transpose(1, 2)
        _, k_BGLK = self.position.turn(k_BGLK, k_BGLK, ctx)
        return KeyValues(*visible_keys(k_BGLK, v_BGLK, ctx, state, self.spec.pattern))

    def heads_of(self, qkv_BLD: Tensor, ctx: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Cut queries, keys and values, side by side, into heads; normalise and rotate them."""
        packed_BLHK = qkv_BLD.unflatten(-1, (-1, self.d_head))
        q_BLHK, k_BLGK, v_BLGK = packed_BLHK.split_with_sizes(self.heads, dim=2)
        if self.norms is not None:
            q_BLHK, k_BLGK = self.norms(q_BLHK, k_BLGK)
        return *self.position.turn(q_BLHK.transpose(1, 2), k_BLGK.transpose(1, 2), ctx), v_BLGK.transpose(1, 2)

    def _queries(self, x_BLD: Tensor, ctx: Context) -> Tensor:
        q_BLHK = self._mapped(x_BLD, slice(self.heads[0]))
        q_BHLK = (q_BLHK if self.norms is None else self.norms.queries(q_BLHK)).transpose(1, 2)
        return self.position.turn(q_BHLK, q_BHLK, ctx)[0]

    def _mapped(self, x_BLD: Tensor, heads: slice) -> Tensor:
        """Apply the maps of some heads out of those that `qkv` packs: [B, L, H, K]."""
        rows = slice(*(None if n is None else n * self.d_head for n in (heads.start, heads.stop)))
        bias = None if self.qkv.bias is None else self.qkv.bias[rows]
        return F.linear(x_BLD, self.qkv.weight[rows], bias).unflatten(-1, (-1, self.d_head))

    def new_state(self, batch_size: int, max_len: int) -> Slots:
        """Return an empty KV cache; a ring buffer if the pattern has a bounded span that fits."""
        pattern = self.span.bounded(self.spec.pattern)
        if not pattern.causal:
            raise SpecError(f"{pattern} lets a query see later keys, so it cannot decode step by step")
        ring = pattern.span is not None and pattern.span < max_len
        size = pattern.span if ring and pattern.span is not None else max_len
        new = [self.qkv.zeros(batch_size, self.n_kv, size, self.d_cached) for _ in range(2)]
        return (Ring if ring else Slots)(*new)


class _CrossAttention(PartModule):
    called_maps: ClassVar = ("q", "kv", "out")

    def __init__(self, spec: CrossAttention, dims: Dims) -> None:
        super().__init__()
        self.spec = spec
        self.d_head, n_kv = widths(spec, dims)
        self.q = Linear(dims.d_model, spec.n_heads * self.d_head, bias=spec.bias, projects=True)
        self.kv = Linear(dims.d_model, 2 * n_kv * self.d_head, bias=spec.bias, packs=2, projects=True)
        self.out = Linear(spec.n_heads * self.d_head, dims.d_model, bias=spec.bias, ends_branch=True)

    def forward(self, x_BLD: Tensor, ctx: Context, state: MemorySlots | None) -> tuple[Tensor, MemorySlots | None]:
        if ctx.encoder_output is None:
            raise ShapeError("cross-attention needs the states of an encoder: call model(source, target)")
        k_BGMK, v_BGMK = self._memory(ctx, state)
        view, how = View(keep_BM=ctx.encoder_output.keep_BM), scoring_of(self, ctx, scale=self.spec.scale or None)
        y_BHLK = attend(split_heads(self.q(x_BLD), self.d_head), k_BGMK, v_BGMK, Full(), view, how)
        return self.out(y_BHLK.transpose(1, 2).flatten(2)), state

    def new_state(self, batch_size: int, max_len: int) -> MemorySlots:
        return MemorySlots()

    def _memory(self, ctx: Context, state: MemorySlots | None) -> tuple[Tensor, Tensor]:
        if state is not None and state.k_BGMK is not None and state.v_BGMK is not None:
            return state.k_BGMK, state.v_BGMK
        assert ctx.encoder_output is not None
        k, v = (split_heads(x, self.d_head) for x in self.kv(ctx.encoder_output.states_BMD).chunk(2, dim=-1))
        if state is not None:
            state.k_BGMK, state.v_BGMK = k, v
        return k, v


def widths(spec: Attention | CrossAttention, dims: Dims) -> tuple[int, int]:
    """Return the width of a head and the number of key heads, or say why they cannot be."""
    n_kv = spec.n_kv_heads or spec.n_heads
    if spec.n_heads < 1 or spec.n_heads % n_kv:
        raise SpecError(f"attention: {n_kv} key heads cannot be shared by {spec.n_heads} heads")
    if not spec.d_head and dims.d_model % spec.n_heads:
        raise SpecError(f"attention: d_model {dims.d_model} is not a multiple of n_heads {spec.n_heads}; give d_head")
    return spec.d_head or dims.d_model // spec.n_heads, n_kv


def visible_keys(
    k_BGLK: Tensor, v_BGLK: Tensor, ctx: Context, state: Slots | None, pattern: Pattern
) -> tuple[Tensor, Tensor, View]:
    """Return keys and values that queries may see, those in the KV cache included, and which of them."""
    if state is None:
        return k_BGLK, v_BGLK, _view(ctx, pattern)
    k_BGMK, v_BGMK, view = state.extend(k_BGLK, v_BGLK, ctx)
    return k_BGMK, v_BGMK, view if ctx.visible_until is None else dataclasses.replace(view, until_BL=ctx.visible_until)


def _view(ctx: Context, pattern: Pattern) -> View:
    """Say what hides keys while training. What a causal pattern hides anyway needs no mask."""
    # where only distances count, those of indices do: within a document both are the same
    padding, pos = ctx.padding, None if pattern.stationary else ctx.pos_BL
    hidden = padding is None or (padding.right and pattern.causal)
    return View(
        start=0,
        q_pos_BL=pos,
        k_pos_BM=pos,
        keep_BM=None if hidden or padding is None else padding.keep_BL,
        q_group_BL=ctx.group_BL,
        k_group_BM=ctx.group_BL,
        visible_BLM=ctx.visible_pairs,
        until_BL=ctx.visible_until,
    )


class HasDropout(Protocol):
    """A spec whose `dropout` falls on attention weights."""

    @property
    def dropout(self) -> float: ...


class ScoringModule(Protocol):
    """A module with such a spec."""

    training: bool

    @property
    def spec(self) -> HasDropout: ...


def scoring_of(module: ScoringModule, ctx: Context, hooks: Hooks = NO_HOOKS, scale: float | None = None) -> Scoring:
    """Return how a module scores query-key pairs in this pass: scale, dropout in training, hooks, and who listens."""
    if hooks is NO_HOOKS and ctx.taps is None and not module.training:
        return plain_scoring(scale)
    tap = functools.partial(ctx.tap, "weights") if ctx.hears("weights") else None
    tap_scores = functools.partial(ctx.tap, "scores") if ctx.asked("scores") else None
    dropout = module.spec.dropout if module.training else 0.0
    return Scoring(scale=scale, dropout=dropout, bias=hooks.bias, value=hooks.value, tap=tap, tap_scores=tap_scores)
