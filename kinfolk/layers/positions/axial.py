"""Axial position embeddings: one learned vector for the row and one for the column (Reformer)."""

import math

import torch
from torch import Tensor, nn

from kinfolk.core.bounds import PositiveInt
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.layers.module import Dims
from kinfolk.layers.positions.position import Heads, Position, PositionModule


class AxialPositions(Position, kind="axial"):
    """Axial position embedding: row p // columns and column p % columns of a table (Kitaev et al. 2020, released code).

    `shape` is rows and columns, whose product is the number of positions; (): about a square of max_len. `widths` are
    those of the two vectors, which together are as wide as the model; (): halves.
    """

    shape: tuple[PositiveInt, ...] = ()
    widths: tuple[PositiveInt, ...] = ()

    def __post_init__(self) -> None:
        for name, pair in (("shape", self.shape), ("widths", self.widths)):
            if pair and len(pair) != 2:
                raise SpecError(f"{name}: {pair} should be two numbers")

    def sizes(self, dims: Dims) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return rows and columns, and the widths of both vectors."""
        side = math.isqrt(max(1, dims.max_len - 1)) + 1
        rows, columns = self.shape or (-(-dims.max_len // side), side)
        first, second = self.widths or (dims.d_model // 2, dims.d_model - dims.d_model // 2)
        if first + second != dims.d_model:
            raise SpecError(f"widths: {first} and {second} are not the {dims.d_model} of the model together")
        return (rows, columns), (first, second)

    def build(self, dims: Dims, heads: Heads | None = None) -> PositionModule:
        return _Axial(self, dims)

    def cost(self, dims: Dims, heads: Heads | None = None, scored: float = 0.0) -> Cost:
        (rows, columns), (first, second) = self.sizes(dims)
        return Cost(params=rows * first + columns * second, flops=dims.d_model)


class _Axial(PositionModule):
    def __init__(self, spec: AxialPositions, dims: Dims) -> None:
        super().__init__()
        (rows, columns), (first, second) = spec.sizes(dims)
        self.rows, self.columns = nn.Embedding(rows, first), nn.Embedding(columns, second)
        self.limit = rows * columns

    def add(self, x_BLD: Tensor, ctx: Context, depth: int = 0) -> Tensor:
        at = ctx.positions(x_BLD.shape[1], x_BLD.device)
        if ctx.pos_BL is None and ctx.start + x_BLD.shape[1] > self.rows.num_embeddings * self.columns.num_embeddings:
            raise ShapeError(
                f"position {ctx.start + x_BLD.shape[1] - 1} is beyond a table of {self.rows.num_embeddings} rows and "
                f"{self.columns.num_embeddings} columns"
            )
        n = self.columns.num_embeddings
        return x_BLD + torch.cat([self.rows(at // n), self.columns(at % n)], -1)
