"""Transformer block: attention, cross-attention and feed-forward, each inside a residual connection."""

from typing import Any

from torch import Tensor, nn

from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape
from kinfolk.core.spec import Spec
from kinfolk.layers.module import Dims, Module
from kinfolk.layers.part import KeyValues, Part, PartModule
from kinfolk.layers.residuals.residual import Residual, ResidualModule


class Block(Spec):
    """Transformer block: self-attention and a feed-forward; in a decoder with cross-attention between them."""

    parts: tuple[Part, ...]
    residual: Residual

    def build(self, dims: Dims) -> "BlockModule":
        """Return the module."""
        return BlockModule(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        """Return the cost of one run of the block."""
        total = Cost()
        for part in self.parts:
            total += part.cost(dims, shape) + self.residual.cost(dims)
        return total


class BlockModule(Module):
    """Runs the parts of a block."""

    def __init__(self, spec: Block, dims: Dims) -> None:
        super().__init__()
        self.parts = nn.ModuleList(part.build(dims) for part in spec.parts)
        self.residuals = nn.ModuleList(spec.residual.build(dims) for _ in spec.parts)

    def forward(self, x_BLD: Tensor, ctx: Context, states: list[Any] | None) -> Tensor:
        """Run all parts; `states` holds one state per part and is brought up to date in place."""
        for i, (part, residual) in enumerate(zip(self.parts, self.residuals, strict=True)):
            before = None if states is None else states[i]
            x_BLD, state = ctx.within(str(i), residual, x_BLD, part, ctx, before)
            if states is not None:
                states[i] = state
        return x_BLD

    def keys_values(self, x_BLD: Tensor, ctx: Context, states: list[Any] | None) -> KeyValues:
        """Return keys and values of the first part, for queries of another sequence or of some positions."""
        part, residual = self.parts[0], self.residuals[0]
        assert isinstance(part, PartModule)
        assert isinstance(residual, ResidualModule)
        return part.keys_values(residual.given(x_BLD), ctx, None if states is None else states[0])

    def new_state(self, batch_size: int, max_len: int) -> list[Any]:
        """Return an empty state for each part."""
        parts: list[Any] = list(self.parts)
        return [part.new_state(batch_size, max_len) for part in parts]

    def new_memory(self) -> list[Any]:
        """Return an empty memory for each part."""
        parts: list[Any] = list(self.parts)
        return [part.new_memory() for part in parts]
