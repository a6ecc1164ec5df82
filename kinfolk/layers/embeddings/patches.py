"""Patch embeddings of the Vision Transformer: squares of pixels as tokens, behind a class token."""

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor, nn

from kinfolk.core.bounds import FiniteFloat, NonNegativeInt, PositiveFloat, PositiveInt
from kinfolk.core.context import Context, Padding
from kinfolk.core.cost import Cost
from kinfolk.core.device import host, send
from kinfolk.core.errors import ShapeError
from kinfolk.layers.embeddings.embedding import Embedding, EmbeddingModule
from kinfolk.layers.module import Dims, Dropout, Linear
from kinfolk.layers.positions.position import Learned, Position
from kinfolk.ops.patches import cut, n_patches


class Patches(Embedding, kind="patches"):
    """Patch embeddings after a class token, with positions (Dosovitskiy et al. 2021, equation 1).

    Tokens are the values of an image `columns` wide in raster order, `first` the id of value 0 and `levels` the
    brightest value. A value v enters as (v / levels - mean) / std. A part of an image is its first values; what is
    missing in a patch is 0, and a patch without any value is padding. `position` counts the class token as 0.
    """

    one_size: ClassVar[bool] = True

    columns: PositiveInt
    channels: PositiveInt = 3
    patch: PositiveInt = 16
    position: Position = Learned()
    first: NonNegativeInt = 7
    levels: PositiveInt = 255
    mean: FiniteFloat = 0.5
    std: PositiveFloat = 0.5

    @property
    def d_patch(self) -> int:
        """Values of a patch."""
        return self.patch * self.patch * self.channels

    def places(self, n: int) -> int:
        return 1 + n_patches(n, self.columns, self.channels, self.patch)

    def build(self, dims: Dims) -> EmbeddingModule:
        return _Patches(self, dims)

    def cost(self, dims: Dims) -> Cost:
        n = self.places(dims.max_len)
        share = n / dims.max_len
        params = (self.d_patch + 2) * dims.d_model
        dropout = Cost(kept=dims.d_model if dims.dropout else 0)
        around = self.position.cost(dataclasses.replace(dims, max_len=n)) + dropout
        # a token is a value, of which a patch has many
        return Cost(params, 2.0 * dims.d_model, 1.0) + around.scaled(share)


class _Patches(EmbeddingModule):
    def __init__(self, spec: Patches, dims: Dims) -> None:
        super().__init__()
        self.spec = spec
        self.project = Linear(spec.d_patch, dims.d_model)
        self.token = nn.Embedding(1, dims.d_model)
        self.position = spec.position.build(dataclasses.replace(dims, max_len=spec.places(dims.max_len)))
        self.dropout = Dropout(dims.dropout)

    def forward(self, tokens_BL: Tensor, ctx: Context, segments_BL: Tensor | None = None) -> Tensor:
        spec, dtype = self.spec, self.project.weight.dtype
        if tokens_BL.ndim != 2:
            raise ShapeError(f"an image should have axes [batch, values], got shape {tuple(tokens_BL.shape)}")
        values_BL = ((tokens_BL - spec.first).to(dtype) / spec.levels - spec.mean) / spec.std
        if ctx.padding is not None:
            # after normalisation, what is missing would not be 0
            values_BL = values_BL * ctx.padding.keep_BL
        x_BLD = self.project(cut(values_BL, spec.columns, spec.channels, spec.patch))
        x_BLD = torch.cat([self.token.weight.expand(x_BLD.shape[0], 1, -1), x_BLD], 1)
        return self.dropout(self.position.add(x_BLD, Context()))

    def inside(self, tokens_BL: Tensor, ctx: Context) -> Context:
        spec, n = self.spec, tokens_BL.shape[1]
        if ctx.group_BL is not None or ctx.pos_BL is not None:
            raise ShapeError("images are not packed: each is a row of its own")
        if ctx.padding is None and n % (spec.columns * spec.channels) == 0:
            # whole rows leave no patch empty
            return ctx
        keep_BL = torch.ones(tokens_BL.shape, dtype=torch.bool) if ctx.padding is None else host(ctx.padding.keep_BL)
        real_BL = cut(keep_BL, spec.columns, spec.channels, spec.patch).any(-1)
        real_BL = torch.cat([torch.ones_like(real_BL[:, :1]), real_BL], 1)
        whole = not torch.compiler.is_exporting() and bool(real_BL.all())
        return ctx.replace(padding=None if whole else Padding.of(send(real_BL, tokens_BL.device)))
