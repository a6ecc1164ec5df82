"""Token embedding shared by encoder and decoder, with positions of their own (BART, MASS)."""

from torch import Tensor

from kinfolk.core.context import Context
from kinfolk.core.cost import Cost
from kinfolk.layers.embeddings.embedding import Embedding, EmbeddingModule, Tokens
from kinfolk.layers.module import Dims


class TwoSided(Embedding, kind="two-sided"):
    """Token table shared by encoder and decoder, with positions, norm and segments of their own (Lewis et al. 2020)."""

    tokens: Tokens

    def build(self, dims: Dims) -> EmbeddingModule:
        return _TwoSided(self, dims)

    def cost(self, dims: Dims) -> Cost:
        one = self.tokens.cost(dims)
        return one + Cost(params=one.params - self.tokens.table_cost(dims).params)

    def d_table(self, dims: Dims) -> int:
        return self.tokens.d_table(dims)


class _TwoSided(EmbeddingModule):
    def __init__(self, spec: TwoSided, dims: Dims) -> None:
        super().__init__()
        self.source, self.target = spec.tokens.build(dims), spec.tokens.build(dims)
        # owned once, by the encoder's side
        del self.target.table
        self.target.__dict__["table"] = self.source.table

    @property
    def weight(self) -> Tensor:
        return self.source.weight

    def forward(self, tokens_BL: Tensor, ctx: Context, segments_BL: Tensor | None = None) -> Tensor:
        # the decoder is what attends to an encoder
        side = self.source if ctx.encoder_output is None else self.target
        x_BLD: Tensor = side(tokens_BL, ctx, segments_BL)
        return x_BLD
