"""Parallel branches with a pre-norm of their own (GPT-NeoX)."""

from typing import Any

from torch import Tensor

from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape
from kinfolk.layers.module import Dims
from kinfolk.layers.norms.norm import LayerNorm, Norm
from kinfolk.layers.part import Mixer, Part, PartModule


class Normed(Mixer, kind="normed"):
    """Pre-norm of one branch, part(norm(x)), as in GPT-NeoX's parallel block (Black et al. 2022)."""

    part: Part
    norm: Norm = LayerNorm()

    def build(self, dims: Dims) -> PartModule:
        return _Normed(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        return self.norm.cost(dims.d_model) + self.part.cost(dims, shape)


class _Normed(PartModule):
    def __init__(self, spec: Normed, dims: Dims) -> None:
        super().__init__()
        self.norm, self.part = spec.norm.build(dims.d_model), spec.part.build(dims)

    def forward(self, x_BLD: Tensor, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        y_BLD, state = self.part(self.norm(x_BLD), ctx, state)
        return y_BLD, state

    def new_state(self, batch_size: int, max_len: int) -> Any:
        return self.part.new_state(batch_size, max_len)  # type: ignore[operator]

    def new_memory(self) -> Any:
        return self.part.new_memory()  # type: ignore[operator]
