r"""Scalar mix: the output is a learned weighted mean of all layers (ELMo; Peters et al. 2019, section 3.1).

$\gamma \sum_l s_l h_l$ with $s = \mathrm{softmax}(w)$, the embedding included. For features of a frozen model: what a
task needs may be below the top layer.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape
from kinfolk.layers.module import Dims
from kinfolk.models.depth.depth import Depth, DepthWrapper
from kinfolk.models.reader import AllLayers, LayerReader
from kinfolk.models.stack import Stack, StackModule


class MixLayers(DepthWrapper, kind="layer-mix"):
    """Scalar mix: all layers begin with equal shares. With all of the share at the last one it is the stack itself."""

    reads: ClassVar[bool] = True

    def wrap(self, module: StackModule, stack: Stack, dims: Dims) -> None:
        module.layer_mix = nn.Parameter(torch.zeros(stack.n_layers + 1))
        module.layer_scale = nn.Parameter(torch.ones(1))
        module.reader = _LayerMix(module)

    def cost(self, cost: Cost, stack: Stack, dims: Dims, shape: Shape) -> Cost:
        n = stack.n_layers + 1
        return cost + Cost(n + 1, 2.0 * n * dims.d_model, n * dims.d_model)


class LayerMix(Stack, kind="layer-mix"):
    """Scalar mix: a stack that is read at all layers."""

    @classmethod
    def of(cls, depth: Depth) -> Depth:
        """Return a depth that is read at all layers."""
        return cls(**depth.unwrapped) if type(depth) is Stack else depth.wrap(MixLayers())

    @property
    def wraps(self) -> tuple[DepthWrapper, ...]:
        return (MixLayers(),)


class _LayerMix(AllLayers):
    def __init__(self, stack: Any) -> None:
        super().__init__(len(stack.order))
        self.stack = stack

    @property
    def streaming(self) -> LayerReader:
        return _Streaming(self.stack.layer_mix.softmax(0))

    def result(self, last: Any, carry: Any, total: Any, ctx: Context) -> Tensor:
        shares = self.stack.layer_mix.softmax(0)
        ctx.tap("layers", shares)
        if isinstance(total, list):
            states = self.every(total)
            pairs = zip(shares, states, strict=True)
            total = sum((share * h_BLD for share, h_BLD in pairs), torch.zeros_like(states[0]))
        mixed_BLD: Tensor = self.stack.layer_scale * total
        return mixed_BLD


class _Streaming(LayerReader):
    """Scalar mix as a running sum, one layer at a time."""

    def __init__(self, shares: Tensor) -> None:
        self.shares = shares

    @property
    def weights(self) -> list[Tensor]:
        return [self.shares]

    def start(self, x_BLD: Tensor) -> Tensor:
        return self.shares[0] * x_BLD

    def add(self, n: int, after_BLD: Tensor, carry: Any, total: Tensor) -> Tensor:
        return total + self.shares[n + 1] * after_BLD
