"""Pixel embeddings of the Image Transformer: row, column and channel, with a table for each channel."""

from typing import Literal

import torch
from torch import Tensor, nn

from kinfolk.core.bounds import NonNegativeInt, PositiveInt
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.core.grid import Grid
from kinfolk.layers.embeddings.embedding import EmbeddingModule, Tokens, TokensModule
from kinfolk.layers.module import Dims
from kinfolk.layers.positions.position import Heads, Position, PositionModule, sinusoids


class GridPosition(Position, kind="grid"):
    """Position embeddings of an image: row, column and channel of every value (Parmar et al. 2018, section 3.1).

    `table` "learned" adds a vector for each of the three (as Child et al. 2019, section 5.3); "sinusoid" gives half of
    the width to the row, the other half to the column and channel, counted together.
    """

    grid: Grid
    table: Literal["learned", "sinusoid"] = "learned"

    def build(self, dims: Dims, heads: Heads | None = None) -> PositionModule:
        return _LearnedGrid(self, dims) if self.table == "learned" else _SinusoidGrid(self, dims)

    def cost(self, dims: Dims, heads: Heads | None = None, scored: float = 0.0) -> Cost:
        vectors = self.rows(dims) + self.grid.columns + self.grid.channels if self.table == "learned" else 0
        return Cost(params=vectors * dims.d_model, flops=(3 if vectors else 1) * dims.d_model)

    def rows(self, dims: Dims) -> int:
        """Return how many rows `max_len` values take, whole blocks of them."""
        high = max(1, self.grid.block_height)
        return -(-self.grid.rows(dims.max_len) // high) * high


class _Placed(PositionModule):
    """Base of grid positions: the row, column and channel of every position."""

    limit: int

    def __init__(self, spec: GridPosition, dims: Dims) -> None:
        super().__init__()
        self.n_rows = spec.rows(dims)
        self.limit = self.n_rows * spec.grid.width
        self.place_3L: Tensor
        self.register_buffer("place_3L", torch.stack(spec.grid.place(torch.arange(self.limit))), persistent=False)

    def place(self, n: int, ctx: Context) -> tuple[Tensor, ...]:
        """Return where n values are, at the context's positions."""
        if ctx.pos_BL is not None:
            return self.place_3L[:, ctx.pos_BL].unbind()
        stop = ctx.start + n
        if stop > self.limit:
            raise ShapeError(f"value {stop - 1} is beyond the {self.limit} of the image: use a larger max_len")
        return self.place_3L[:, ctx.start : stop].unbind()


class _LearnedGrid(_Placed):
    def __init__(self, spec: GridPosition, dims: Dims) -> None:
        super().__init__(spec, dims)
        self.rows, self.columns, self.channels = (
            nn.Embedding(n, dims.d_model) for n in (self.n_rows, spec.grid.columns, spec.grid.channels)
        )

    def add(self, x_BLD: Tensor, ctx: Context, depth: int = 0) -> Tensor:
        row, column, channel = self.place(x_BLD.shape[1], ctx)
        return x_BLD + (self.rows(row) + self.columns(column) + self.channels(channel))


class _SinusoidGrid(_Placed):
    def __init__(self, spec: GridPosition, dims: Dims) -> None:
        super().__init__(spec, dims)
        self.n_channels, half = spec.grid.channels, dims.d_model // 2
        tables = (
            sinusoids(torch.arange(self.n_rows), half),
            sinusoids(torch.arange(spec.grid.width), dims.d_model - half),
        )
        self.down_LD: Tensor
        self.across_LD: Tensor
        for name, table in zip(("down_LD", "across_LD"), tables, strict=True):
            self.register_buffer(name, table.to(torch.get_default_dtype()), persistent=False)

    def add(self, x_BLD: Tensor, ctx: Context, depth: int = 0) -> Tensor:
        row, column, channel = self.place(x_BLD.shape[1], ctx)
        where = torch.cat([self.down_LD[row], self.across_LD[column * self.n_channels + channel]], -1)
        return x_BLD + where.to(x_BLD.dtype)


class Pixels(Tokens, kind="pixels"):
    """Pixel embeddings: a table of vectors for the values of each channel (Parmar et al. 2018, section 3.1).

    With `shift` 1 the token at a position is the value before, which is how a decoder reads what it predicts; the
    position is that of the value it predicts. With one channel it is `Tokens`.
    """

    channels: PositiveInt = 3
    shift: NonNegativeInt = 0

    def build(self, dims: Dims) -> EmbeddingModule:
        return _Pixels(self, dims)

    def table_cost(self, dims: Dims) -> Cost:
        return Cost(params=self.channels * dims.vocab_size * dims.d_model)


class _Pixels(TokensModule):
    def __init__(self, spec: Pixels, dims: Dims) -> None:
        super().__init__(spec, dims, nn.Embedding(spec.channels * dims.vocab_size, dims.d_model))
        self.spec, self.vocab_size = spec, dims.vocab_size

    @property
    def weight(self) -> Tensor:
        if self.spec.channels > 1:
            raise SpecError("head.weights: pixels of several channels have several tables to share; use 'untied'")
        return super().weight

    def forward(self, tokens_BL: Tensor, ctx: Context, segments_BL: Tensor | None = None) -> Tensor:
        if self.spec.channels > 1:
            # blocks are whole pixels wide, so channels take turns in every order
            at = ctx.positions(tokens_BL.shape[-1], tokens_BL.device) - self.spec.shift
            tokens_BL = tokens_BL + self.vocab_size * (at % self.spec.channels)
        x_BLD: Tensor = super().forward(tokens_BL, ctx, segments_BL)
        return x_BLD
