r"""A stack that is read at all layers: what it gives is a learned mean of what each of them left.

$\gamma \sum_l s_l h_l$ with $s = \mathrm{softmax}(w)$ (Peters et al. 2019, section 3.1), the stream before the first
layer included. For features of a body that does not move: what a task needs may stand below the top.
"""

from typing import Any

import torch
from torch import Tensor, nn

from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape
from kinfolk.layers.module import Dims
from kinfolk.models.stack import DepthModule, Stack, StackModule


class LayerMix(Stack, kind="layer-mix"):
    """All layers begin with equal shares. With all of the share at the last one it is the stack itself."""

    @classmethod
    def of(cls, stack: Stack) -> "LayerMix":
        """Return a stack that is read at all layers."""
        fields: dict[str, Any] = {name: getattr(stack, name) for name in ("blocks", "order", "norm", "position")}
        return cls(**fields)

    def build(self, dims: Dims) -> DepthModule:
        return _LayerMix(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        n = self.n_layers + 1
        return super().cost(dims, shape) + Cost(n + 1, 2.0 * n * dims.d_model, n * dims.d_model)


class _LayerMix(StackModule):
    def __init__(self, spec: LayerMix, dims: Dims) -> None:
        super().__init__(spec, dims)
        self.layer_mix = nn.Parameter(torch.zeros(spec.n_layers + 1))
        self.layer_scale = nn.Parameter(torch.ones(1))

    def run(self, x_BLD: Tensor, ctx: Context, states: list[Any] | None, layers: list[Tensor] | None) -> Tensor:
        each = [x_BLD] if layers is None else layers
        super().run(x_BLD, ctx, states, each)
        each += each[-1:] * (len(self.layer_mix) - len(each))
        shares = self.layer_mix.softmax(0)
        ctx.tap("layers", shares)
        mixed_BLD = sum((share * h_BLD for share, h_BLD in zip(shares, each, strict=True)), torch.zeros_like(x_BLD))
        out: Tensor = self.norm(self.layer_scale * mixed_BLD)
        return out
