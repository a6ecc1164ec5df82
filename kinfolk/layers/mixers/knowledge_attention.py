"""Knowledge attention and recontextualisation over candidate entities of mentions (KnowBERT, Peters et al. 2019)."""

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.core.annotations import Mentions
from kinfolk.core.batch import IGNORE
from kinfolk.core.bounds import NonNegativeFloat, PositiveInt
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.core.device import host
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.layers.module import Dims, Dropout, Linear, Module, borrow
from kinfolk.layers.norms.norm import LayerNorm, Norm
from kinfolk.layers.part import Mixer, PartModule
from kinfolk.layers.residuals.residual import Residual, ResidualModule, dropout_cost
from kinfolk.ops.attention.attend import attend
from kinfolk.ops.attention.scores import View
from kinfolk.ops.patterns.leaves import Full

HIDDEN = -1e4
"""The score of a candidate that is not there."""
RARE = 1e-6
"""Added to a prior before its logarithm is taken."""


class KnowledgeAttention(Mixer, kind="knowledge-attention"):
    r"""KAR of KnowBERT: mentions attend to each other and to entities, then words to mentions (Peters et al. 2019).

    Section 3.3: states become $d_E$ wide, a mention is a weighted mean of its tokens' (equation 1), and mentions pass
    through a layer of attention among themselves. A candidate is scored by a layer of `d_score` from its product with
    the mention and the logarithm of its prior (equation 3); a mention gets the mean of its candidates' vectors by the
    softmax of scores (equation 4). Words pass through a layer of attention to mentions, and come back to the width
    of the model by the pseudo-inverse of the map they came by, before learning begins.

    `linker` "softmax" learns which candidate is meant, where batches say it, by cross-entropy; "margin" by scores above
    `margin` for the right one and below -`margin` for others, and candidates with scores below 0 are not looked at:
    a mention without any gets a vector that means nothing. `weight` is that of this loss. `frozen` keeps the vectors of
    entities as they are.
    """

    n_entities: PositiveInt
    d_entity: PositiveInt = 200
    n_heads: PositiveInt = 4
    d_ff: PositiveInt = 1024
    d_score: PositiveInt = 100
    linker: Literal["softmax", "margin"] = "softmax"
    margin: NonNegativeFloat = 0.2
    weight: NonNegativeFloat = 1.0
    frozen: bool = False

    def __post_init__(self) -> None:
        if self.d_entity % self.n_heads:
            raise SpecError(f"d_entity: {self.d_entity} is not a multiple of n_heads {self.n_heads}")

    def build(self, dims: Dims) -> PartModule:
        return _KnowledgeAttention(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        """Return the cost of words, and of a single mention with a single candidate, whatever a text names."""
        d, e = dims.d_model, self.d_entity
        norm = LayerNorm().cost(e)
        words = linear(d, e, True) + linear(e, 1, False) + linear(e, d, True) + self._layer(dims, asks=True)
        score = linear(2, self.d_score, True) + linear(self.d_score, 1, self.linker == "margin")
        span = norm + norm + norm + score + Cost(params=e if self.linker == "margin" else 0)
        span += self._layer(dims, asks=True) + self._layer(dims, asks=False) + linear(e, 2 * e, True)
        table = Cost(params=self.n_entities * e)
        return words + table + span.scaled(1 / shape.length)

    def _layer(self, dims: Dims, asks: bool) -> Cost:
        """Return the cost of one who asks in a layer of attention; of one who is asked, what is not the other's."""
        e = self.d_entity
        if not asks:
            return linear(e, 2 * e, True)
        norm, kept = LayerNorm().cost(e), Cost(kept=2 * e + self.d_ff)
        maps = linear(e, e, True) + linear(e, e, True) + linear(e, self.d_ff, True) + linear(self.d_ff, e, True)
        return maps + norm + norm + kept


class _KnowledgeAttention(PartModule):
    def __init__(self, spec: KnowledgeAttention, dims: Dims) -> None:
        super().__init__()
        e = spec.d_entity
        self.spec, self.dropout = spec, Dropout(dims.dropout)
        self.inward = Linear(dims.d_model, e)
        # a bias would be the same for all tokens of a mention
        self.pooling = Linear(e, 1, bias=False)
        self.span_norm, self.entity_norm, self.known_norm = (LayerNorm().build(e) for _ in range(3))
        self.among, self.across = _Layer(spec, dims), _Layer(spec, dims)
        self.entities = nn.Embedding(spec.n_entities, e)
        self.entities.weight.requires_grad_(not spec.frozen)
        self.score = nn.ModuleList([Linear(2, spec.d_score), Linear(spec.d_score, 1, bias=spec.linker == "margin")])
        self.nothing = nn.Parameter(torch.zeros(e)) if spec.linker == "margin" else None
        # after the map it undoes, which must be drawn before it
        self.outward = _Undoing(self.inward)

    def forward(self, x_BLD: Tensor, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        told = mentions_of(ctx, x_BLD)
        if ctx.annotation(Mentions) is not None:
            self._refuse_unknown(told)
        h_BLE = self.inward(x_BLD)
        s_BSE = self.span_norm(span_means(h_BLE, self.pooling(h_BLE)[..., 0], told.spans_BS2))
        s_BSE = self.among(s_BSE, s_BSE, told.real)
        e_BSCE = self.entity_norm(self.entities(told.entities_BSC.clamp(min=0)))
        score_BSC = self._scores(s_BSE, e_BSCE, told)
        weights_BSC = self._weights(score_BSC, told)
        ctx.tap("links", weights_BSC)
        meant_BSE = (weights_BSC[..., None] * e_BSCE).sum(2)
        if self.nothing is not None:
            meant_BSE = meant_BSE + (1 - weights_BSC.sum(-1, keepdim=True)) * self.nothing
        s_BSE = self.known_norm(s_BSE + self.dropout(meant_BSE))
        if told.links_BS is not None and self.spec.weight:
            ctx.add_loss("linking", self.spec.weight * self._loss(score_BSC, told))
        return self.outward(self.across(h_BLE, s_BSE, told.real)), state

    def _refuse_unknown(self, told: Mentions) -> None:
        most = int(host(told.entities_BSC).max())
        if most >= self.spec.n_entities:
            raise ShapeError(f"knowledge-attention: entity {most} is beyond the n_entities {self.spec.n_entities}")

    def _scores(self, s_BSE: Tensor, e_BSCE: Tensor, told: Mentions) -> Tensor:
        """Score every candidate from its product with the mention and its prior."""
        product_BSC = (s_BSE.unsqueeze(2) * e_BSCE).sum(-1) / math.sqrt(s_BSE.shape[-1])
        both_BSC2 = torch.stack([product_BSC, (told.priors_BSC.to(product_BSC) + RARE).log()], -1)
        first, last = self.score
        scores: Tensor = last(F.relu(first(both_BSC2)))[..., 0]
        return scores.masked_fill(told.entities_BSC < 0, HIDDEN)

    def _weights(self, score_BSC: Tensor, told: Mentions) -> Tensor:
        """Share a mention among its candidates, or among those that are likely at all."""
        there_BSC = told.entities_BSC >= 0
        if self.spec.linker == "margin":
            there_BSC = there_BSC & (score_BSC > 0)
            score_BSC = score_BSC.masked_fill(~there_BSC, HIDDEN)
        # HIDDEN is finite, so a softmax over no candidate at all is even, not nan, and is cleared here
        return score_BSC.softmax(-1) * there_BSC

    def _loss(self, score_BSC: Tensor, told: Mentions) -> Tensor:
        """Return the mean loss of the mentions whose meaning is said."""
        assert told.links_BS is not None
        said_BS = (told.links_BS != IGNORE) & told.real
        n = said_BS.sum().clamp(min=1)
        links_BS = torch.where(said_BS, told.links_BS, 0)
        if self.spec.linker == "softmax":
            losses_BS = -score_BSC.log_softmax(-1).gather(-1, links_BS[..., None])[..., 0]
            return torch.where(said_BS, losses_BS, 0.0).sum() / n
        right_BSC = F.one_hot(links_BS, score_BSC.shape[-1]).bool()
        signed_BSC = torch.where(right_BSC, -score_BSC, score_BSC)
        losses_BSC = F.relu(signed_BSC + self.spec.margin) * (told.entities_BSC >= 0)
        return torch.where(said_BS, losses_BSC.sum(-1), 0.0).sum() / n


class _Layer(Module):
    """Encoder layer in the width of entities; queries and keys may be two sequences (post-norm, GELU)."""

    def __init__(self, spec: KnowledgeAttention, dims: Dims) -> None:
        super().__init__()
        e = spec.d_entity
        self.d_head, self.dropout = e // spec.n_heads, Dropout(dims.dropout)
        self.q, self.kv, self.out = Linear(e, e), Linear(e, 2 * e, packs=2), Linear(e, e)
        self.widen, self.narrow = Linear(e, spec.d_ff), Linear(spec.d_ff, e)
        self.look_norm, self.think_norm = LayerNorm().build(e), LayerNorm().build(e)

    def forward(self, x_BLE: Tensor, seen_BSE: Tensor, keep_BS: Tensor) -> Tensor:
        packed = (self.q(x_BLE), *self.kv(seen_BSE).chunk(2, -1))
        q, k, v = (y.unflatten(-1, (-1, self.d_head)).transpose(1, 2) for y in packed)
        y_BLE = attend(q, k, v, Full(), View(keep_BM=keep_BS)).transpose(1, 2).flatten(2)
        x_BLE = self.look_norm(x_BLE + self.dropout(self.out(y_BLE)))
        out: Tensor = self.think_norm(x_BLE + self.dropout(self.narrow(F.gelu(self.widen(x_BLE)))))
        return out


class _Undoing(Module):
    """Linear layer that begins as the pseudo-inverse of another."""

    there: Linear

    def __init__(self, there: Linear) -> None:
        super().__init__()
        borrow(self, "there", there)
        self.weight = nn.Parameter(torch.zeros(there.in_features, there.out_features))
        self.bias = nn.Parameter(torch.zeros(there.in_features))

    def draw(self) -> None:
        """Begin where going there and back is a projection."""
        with torch.no_grad():
            # once, in double precision: there and back is a projection to the last digit of float32
            self.weight.copy_(torch.linalg.pinv(self.there.weight.double()))
            self.bias.copy_(-self.weight @ self.there.bias)

    def forward(self, x_BLE: Tensor) -> Tensor:
        return F.linear(x_BLE, self.weight, self.bias)


def span_means(h_BLE: Tensor, score_BL: Tensor, spans_BS2: Tensor) -> Tensor:
    """Return the mean of the states of each span by the softmax of their scores; 0 of a span that is not there."""
    at_L = torch.arange(h_BLE.shape[1], device=h_BLE.device)
    inside_BSL = (at_L >= spans_BS2[..., :1]) & (at_L <= spans_BS2[..., 1:])
    # not -inf: the softmax of a span that is not there would be NaN, and 0 * NaN is NaN
    score_BSL = score_BL[:, None].masked_fill(~inside_BSL, torch.finfo(score_BL.dtype).min)
    return (score_BSL.softmax(-1) * inside_BSL) @ h_BLE


def mentions_of(ctx: Context, x_BLD: Tensor) -> Mentions:
    """Return the mentions of a text; without any, one that is masked, so that every weight gets a gradient."""
    if (mentions := ctx.annotation(Mentions)) is not None:
        return mentions
    none = torch.full((len(x_BLD), 1, 1), -1, device=x_BLD.device)
    return Mentions(none.expand(-1, -1, 2), none, torch.zeros_like(none, dtype=x_BLD.dtype))


class WhereKnown(Residual, kind="where-known"):
    """Post-norm residual in examples that have mentions; elsewhere x, as if the part were not there."""

    norm: Norm = LayerNorm()

    def build(self, dims: Dims) -> ResidualModule:
        return _WhereKnown(self, dims)

    def cost(self, dims: Dims) -> Cost:
        return self.norm.cost(dims.d_model) + dropout_cost(dims)


class _WhereKnown(ResidualModule):
    def __init__(self, spec: WhereKnown, dims: Dims) -> None:
        super().__init__()
        self.norm, self.dropout = spec.norm.build(dims.d_model), Dropout(dims.dropout)

    def forward(self, x: Tensor, part: Module, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        y, state = part(x, ctx, state)
        told_B = mentions_of(ctx, x).real.any(1)
        return torch.where(told_B[:, None, None], self.norm(x + self.dropout(y)), x), state
