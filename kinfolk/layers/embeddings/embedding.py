"""Axis Embedding: token embeddings, segment embeddings and positions, from a batch to vectors."""

import dataclasses
import itertools
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from kinfolk.core.annotations import TokenIds
from kinfolk.core.bounds import NonNegativeInt, PositiveInt
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, linear
from kinfolk.core.errors import ShapeError
from kinfolk.core.spec import Spec
from kinfolk.layers.module import Dims, Dropout, Linear, Module
from kinfolk.layers.norms.norm import NoNorm, Norm
from kinfolk.layers.positions.position import NoPosition, Position


class EmbeddingModule(Module):
    """Base of embedding modules: the table that a tied head shares, and the way back to it."""

    @property
    def weight(self) -> Tensor:
        """The table that a tied head shares: [V, D], or narrower."""
        raise NotImplementedError

    def inside(self, tokens_BL: Tensor, ctx: Context) -> Context:
        """Return what the layers after it may know: of what has as many vectors as tokens, the same."""
        return ctx

    def inward(self, x_BLD: Tensor) -> Tensor:
        """Bring states to the width of the table, by the map that brought its vectors to the width of states."""
        return x_BLD

    def pieces(self, cutoffs: tuple[int, ...]) -> list[tuple[Tensor, Tensor | None]]:
        """Return the table cut at some ids, each piece with the matrix [D, width] after it, if there is one."""
        bounds = (0, *cutoffs, len(self.weight))
        return [(self.weight[first:stop], None) for first, stop in itertools.pairwise(bounds)]


class Embedding(Spec):
    """Axis: from tokens, or patches of an image, to vectors: `(tokens_BL, ctx) -> x_BLD`.

    The module's `weight` is what a tied head shares.
    """

    one_size: ClassVar[bool] = False  # what it reads is always as long as the model's max_len, as images are

    def build(self, dims: Dims) -> EmbeddingModule:
        """Return the module."""
        raise NotImplementedError

    def cost(self, dims: Dims) -> Cost:
        """Return its cost per token."""
        raise NotImplementedError

    def d_table(self, dims: Dims) -> int:
        """Return the width of the table that a tied head shares."""
        return dims.d_model

    def places(self, n: int) -> int:
        """Return how many vectors n tokens of the scored sequence become."""
        return n

    def source_places(self, n: int) -> int:
        """Return how many vectors n tokens of an encoder's source become."""
        return self.places(n)


class Tokens(Embedding, kind="tokens"):
    """Token embeddings plus positions (Vaswani et al. 2017, section 3.4), then a norm and dropout.

    `scale` "sqrt" multiplies the vectors by sqrt(d_model), which a table shared with the output layer needs to be
    beside sinusoids. `n_segments` adds a second table for the kind of segment a token belongs to (Devlin et al. 2019).
    """

    position: Position = NoPosition()
    scale: Literal["none", "sqrt"] = "none"
    norm: Norm = NoNorm()
    n_segments: NonNegativeInt = 0

    def build(self, dims: Dims) -> EmbeddingModule:
        return TokensModule(self, dims, nn.Embedding(dims.vocab_size, dims.d_model))

    def cost(self, dims: Dims) -> Cost:
        segments = Cost(params=self.n_segments * dims.d_model, flops=dims.d_model)
        dropout = Cost(kept=dims.d_model if dims.dropout else 0)
        around = self.position.cost(dims) + self.norm.cost(dims.d_model) + dropout
        return self.table_cost(dims) + segments + around

    def table_cost(self, dims: Dims) -> Cost:
        """Return the cost of the table alone."""
        return Cost(params=dims.vocab_size * dims.d_model)


class TokensModule(EmbeddingModule):
    """Token, segment and position embeddings, added; then a norm and dropout."""

    def __init__(self, spec: Tokens, dims: Dims, table: nn.Module) -> None:
        super().__init__()
        self.table = table
        self.segments = nn.Embedding(spec.n_segments, dims.d_model) if spec.n_segments else None
        self.position = spec.position.build(dims)
        self.norm = spec.norm.build(dims.d_model)
        self.dropout = Dropout(dims.dropout)
        self.scale = dims.d_model**0.5 if spec.scale == "sqrt" else 1.0

    @property
    def weight(self) -> Tensor:
        weight: Tensor = self.table.weight  # type: ignore[assignment]
        return weight

    def forward(self, tokens_BL: Tensor, ctx: Context, segments_BL: Tensor | None = None) -> Tensor:
        if tokens_BL.ndim != 2:
            raise ShapeError(f"tokens should have axes [batch, length], got shape {tuple(tokens_BL.shape)}")
        x_BLD = self.table(tokens_BL)
        if self.scale != 1.0:
            x_BLD = x_BLD * self.scale
        if self.segments is not None:
            # without a second segment, or a table that knows of one (RoBERTa's does not), all belong to the first
            alone = segments_BL is None or self.segments.num_embeddings == 1
            x_BLD = x_BLD + (self.segments.weight[0] if alone else self.segments(segments_BL))
        return self.dropout(self.norm(self.position.add(x_BLD, ctx)))


class ShownTokens(Tokens, kind="shown-tokens"):
    """Tokens whose ids layers may look up in tables of their own (value embeddings)."""

    def build(self, dims: Dims) -> EmbeddingModule:
        return _ShownTokens(self, dims, nn.Embedding(dims.vocab_size, dims.d_model))


class _ShownTokens(TokensModule):
    def inside(self, tokens_BL: Tensor, ctx: Context) -> Context:
        return ctx.annotate(TokenIds(tokens_BL))


class Outward(Module):
    """Projection from a narrow table to the width of the model, drawn so that vectors keep their size."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(d_out, d_in))

    def draw(self) -> None:
        """Draw it; as small as maps are drawn otherwise, positions would drown the words."""
        nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight)


class Factorised(Tokens, kind="factorised"):
    """Factorised embedding: a narrow table and a map to the model's width (Lan et al. 2020, section 3.1).

    A tied head goes the same way back, so that its logits have the rank of the narrow table.
    """

    d_inner: PositiveInt = 128

    def build(self, dims: Dims) -> EmbeddingModule:
        return _Factorised(self, dims)

    def table_cost(self, dims: Dims) -> Cost:
        return Cost(params=dims.vocab_size * self.d_inner) + linear(self.d_inner, dims.d_model, False)

    def d_table(self, dims: Dims) -> int:
        return self.d_inner


class _Factors(Module):
    def __init__(self, spec: Factorised, dims: Dims) -> None:
        super().__init__()
        self.inner = nn.Embedding(dims.vocab_size, spec.d_inner)
        self.outer = Outward(spec.d_inner, dims.d_model)

    def forward(self, tokens_BL: Tensor) -> Tensor:
        x_BLD: Tensor = self.outer(self.inner(tokens_BL))
        return x_BLD


class _Factorised(TokensModule):
    table: _Factors

    def __init__(self, spec: Factorised, dims: Dims) -> None:
        super().__init__(spec, dims, _Factors(spec, dims))

    @property
    def weight(self) -> Tensor:
        return self.table.inner.weight

    def inward(self, x_BLD: Tensor) -> Tensor:
        return nn.functional.linear(x_BLD, self.table.outer.weight.mT)

    def pieces(self, cutoffs: tuple[int, ...]) -> list[tuple[Tensor, Tensor | None]]:
        return [(table, self.table.outer.weight) for table, _ in super().pieces(cutoffs)]


class Projected(Embedding, kind="projected"):
    """Projected embedding: `d_inner` wide with positions, segments and norm, then a map to the model's width.

    Lan et al. 2020, section 3.1, and Clark et al. 2020, section 3.2, as their code has it; `Factorised` is narrow in
    the table alone.
    """

    of: Embedding
    d_inner: PositiveInt = 128

    def build(self, dims: Dims) -> EmbeddingModule:
        return ProjectedModule(self, dims)

    def cost(self, dims: Dims) -> Cost:
        return self.of.cost(dataclasses.replace(dims, d_model=self.d_inner)) + linear(self.d_inner, dims.d_model, True)

    def d_table(self, dims: Dims) -> int:
        return self.of.d_table(dataclasses.replace(dims, d_model=self.d_inner))


class ProjectedModule(EmbeddingModule):
    """A narrow embedding and its projection to the width of the model."""

    inner: EmbeddingModule

    def __init__(self, spec: Projected, dims: Dims) -> None:
        super().__init__()
        self.inner = spec.of.build(dataclasses.replace(dims, d_model=spec.d_inner))
        self.outer = Linear(spec.d_inner, dims.d_model)

    @property
    def weight(self) -> Tensor:
        return self.inner.weight

    def inward(self, x_BLD: Tensor) -> Tensor:
        return self.inner.inward(nn.functional.linear(x_BLD, self.outer.weight.mT))

    def forward(self, tokens_BL: Tensor, ctx: Context, segments_BL: Tensor | None = None) -> Tensor:
        x_BLD: Tensor = self.outer(self.inner(tokens_BL, ctx, segments_BL))
        return x_BLD


class Sides(Embedding, kind="sides"):
    """Separate source and target embeddings of an encoder-decoder; a tied head shares the target's table."""

    source: Embedding
    target: Embedding

    def build(self, dims: Dims) -> EmbeddingModule:
        return _Sides(self, dims)

    def cost(self, dims: Dims) -> Cost:
        return self.target.cost(dims) + Cost(params=self.source.cost(dims).params)

    def d_table(self, dims: Dims) -> int:
        return self.target.d_table(dims)

    def places(self, n: int) -> int:
        return self.target.places(n)

    def source_places(self, n: int) -> int:
        return self.source.places(n)


class _Sides(EmbeddingModule):
    def __init__(self, spec: Sides, dims: Dims) -> None:
        super().__init__()
        self.source, self.target = spec.source.build(dims), spec.target.build(dims)

    @property
    def weight(self) -> Tensor:
        return self.target.weight

    def inward(self, x_BLD: Tensor) -> Tensor:
        return self.target.inward(x_BLD)

    def pieces(self, cutoffs: tuple[int, ...]) -> list[tuple[Tensor, Tensor | None]]:
        return self.target.pieces(cutoffs)

    def forward(self, tokens_BL: Tensor, ctx: Context, segments_BL: Tensor | None = None) -> Tensor:
        x_BLD: Tensor = self._side(ctx)(tokens_BL, ctx, segments_BL)
        return x_BLD

    def inside(self, tokens_BL: Tensor, ctx: Context) -> Context:
        return self._side(ctx).inside(tokens_BL, ctx)

    def _side(self, ctx: Context) -> EmbeddingModule:
        # only a decoder that has an encoder has a memory to look at
        return self.source if ctx.encoder_output is None else self.target
