"""Value embeddings: a table of tokens of its own for the values of some layers (Jordan et al. 2024, modded-nanogpt)."""

import torch
from torch import Tensor, nn

from kinfolk.core.annotations import TokenIds
from kinfolk.core.bounds import NonNegativeInt, Probability
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost
from kinfolk.core.errors import ShapeError
from kinfolk.layers.mixers.attention_extras import Extra, ExtraModule, HeadWidths
from kinfolk.layers.module import Dims, borrow


class ValueEmbedding(Extra, kind="value-embedding"):
    r"""Value embeddings: $\lambda_1 v + \lambda_2 E_{token}$ with a table E as wide as the values of all heads.

    Koszarsky 2024 in modded-nanogpt (github.com/KellerJordan/modded-nanogpt, record 14 of 2024-12-04). Two learned
    numbers per layer, 1 - `share` and `share` at first. Layers of one stack that name the same `table` share it. The
    ids come from the embedding `shown-tokens`.
    """

    table: NonNegativeInt = 0
    share: Probability = 0.5

    def build(self, dims: Dims, heads: HeadWidths, scale: float) -> ExtraModule:
        return _ValueEmbedding(self, dims, heads.n_kv * heads.d_head)

    def cost(self, dims: Dims, heads: HeadWidths) -> Cost:
        width = heads.n_kv * heads.d_head
        n_rows = dims.vocab_size if dims.shared.first(self._key(width)) else 0
        return Cost(2 + n_rows * width, 3.0 * width, 2 * width)

    def _key(self, width: int) -> tuple[str, int, int]:
        return self.kind, self.table, width


class _ValueEmbedding(ExtraModule):
    def __init__(self, spec: ValueEmbedding, dims: Dims, width: int) -> None:
        super().__init__()
        self.spec, self.shares_2 = spec, nn.Parameter(torch.zeros(2))
        self.table: nn.Embedding
        made = dims.shared.once(spec._key(width), lambda: nn.Embedding(dims.vocab_size, width))
        borrow(self, "table", made)
        self.draw()

    def draw(self) -> None:
        """Begin with the shares of the spec."""
        with torch.no_grad():
            self.shares_2.copy_(torch.tensor([1 - self.spec.share, self.spec.share]))

    def valued(self, v_BGLK: Tensor, ctx: Context) -> Tensor:
        tokens = ctx.annotation(TokenIds)
        if tokens is None:
            raise ShapeError(f"{self.spec.kind}: has no ids of tokens to look up; use the embedding 'shown-tokens'")
        own, other = self.shares_2.to(v_BGLK.dtype)
        e_BLD = self.table(tokens.ids_BL).to(v_BGLK.dtype)
        return own * v_BGLK + other * e_BLD.unflatten(-1, (-1, v_BGLK.shape[-1])).transpose(1, 2)
