"""Product-key memory: a feed-forward that looks values up by pairs of keys (Lample et al. 2019)."""

from typing import Annotated, Any

import torch
from torch import Tensor, nn

from kinfolk.core.bounds import Bounds, PositiveInt
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.core.errors import SpecError
from kinfolk.layers.module import Dims, Linear
from kinfolk.layers.part import FeedForward, PartModule
from kinfolk.ops.product_keys import product_key_memory


class ProductKey(FeedForward, kind="product-key"):
    """Product-key memory: values of the best of n x n keys, weighted by a softmax over them (Lample et al. 2019).

    `n_keys` of each half make n_keys ** 2 values; `n_best` of them are read by each of `n_heads` heads, whose results
    are added up. Each half of a query of width `d_key` is normalised by itself: the batch norm of the paper would mix
    examples, and positions with later ones.
    """

    n_keys: PositiveInt = 512
    n_heads: PositiveInt = 4
    n_best: PositiveInt = 32
    d_key: Annotated[int, Bounds(2)] = 256

    def __post_init__(self) -> None:
        if self.d_key % 2:
            raise SpecError(f"d_key: {self.d_key} is not allowed; a query has two halves")
        if self.n_best > self.n_keys**2:
            raise SpecError(f"n_best: {self.n_best} is not allowed; there are {self.n_keys**2} values")

    def build(self, dims: Dims) -> PartModule:
        return _ProductKey(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        d, n_read = self.n_heads * self.d_key, self.n_heads * self.n_best
        query = linear(dims.d_model, d, True) + Cost(params=2 * self.d_key, flops=8.0 * d, kept=2 * d)
        memory = Cost(params=self.n_keys * d + self.n_keys**2 * dims.d_model, flops=2.0 * self.n_keys * d)
        return query + memory + Cost(flops=2.0 * n_read * dims.d_model, kept=n_read)


class _ProductKey(PartModule):
    def __init__(self, spec: ProductKey, dims: Dims) -> None:
        super().__init__()
        self.spec, half = spec, spec.d_key // 2
        self.query = Linear(dims.d_model, spec.n_heads * spec.d_key, packs=spec.n_heads)
        self.norms = nn.ModuleList(nn.LayerNorm(half) for _ in range(2))
        self.left, self.right = (nn.Parameter(torch.zeros(spec.n_heads, spec.n_keys, half)) for _ in range(2))
        self.values_VD = nn.Parameter(torch.zeros(spec.n_keys**2, dims.d_model))

    def draw(self) -> None:
        """Draw keys uniformly and values as long as states, on average."""
        for keys in (self.left, self.right):
            nn.init.uniform_(keys, -(self.spec.d_key**-0.5), self.spec.d_key**-0.5)
        nn.init.normal_(self.values_VD, std=self.values_VD.shape[1] ** -0.5)

    def forward(self, x_BLD: Tensor, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        q_LHK = self.query(x_BLD.flatten(0, 1)).unflatten(-1, (self.spec.n_heads, -1))
        halves = [norm(half) for norm, half in zip(self.norms, q_LHK.chunk(2, -1), strict=True)]
        y_LD, weight_LHk, place_LHk = product_key_memory(
            torch.cat(halves, -1), self.left, self.right, self.values_VD, self.spec.n_best
        )
        ctx.tap("read", weight_LHk.unflatten(0, x_BLD.shape[:2]))
        ctx.tap("places", place_LHk.unflatten(0, x_BLD.shape[:2]))
        return y_LD.view_as(x_BLD), state
