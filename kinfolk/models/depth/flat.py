"""Static word embeddings without layers (word2vec, Mikolov et al. 2013): the baseline of contextual models."""

from typing import Any

from torch import Tensor

from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape
from kinfolk.layers.module import Dims
from kinfolk.models.depth.depth import Depth, DepthModule
from kinfolk.models.reader import LayerReading


class Flat(Depth, kind="flat"):
    """No layers: the embedding as it is, the baseline of contextual models."""

    def build(self, dims: Dims) -> DepthModule:
        return _Flat()

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        return Cost()

    @property
    def n_layers(self) -> int:
        return 0

    @property
    def n_sublayers(self) -> int:
        return 0


class _Flat(DepthModule):
    def run(self, x_BLD: Tensor, ctx: Context, states: list[Any] | None, reading: LayerReading | None = None) -> Tensor:
        if reading is not None:
            reading.begin(x_BLD, ctx)
        ctx.tap("hidden", x_BLD)
        return x_BLD

    def new_state(self, batch_size: int, max_len: int) -> list[Any]:
        return []

    def new_memory(self) -> list[Any]:
        return []
