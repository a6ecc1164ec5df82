"""Residual streams over depth: x0 skips, values of the first layer for all others, hyper-connections."""

from typing import Any

import torch
from torch import Tensor, nn

from kinfolk.core.bounds import PositiveInt
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape
from kinfolk.core.errors import SpecError
from kinfolk.layers.mixers.layer_values import LayerValues
from kinfolk.layers.module import Dims, Module
from kinfolk.models.depth.depth import DepthWrapper
from kinfolk.models.reader import LayerReading
from kinfolk.models.stack import Stack, StackModule, Walk


class EmbeddingSkip(DepthWrapper, kind="x0-skip"):
    r"""x0 skip: block l reads $a_l x_l + b_l x_0$, with two learned numbers per run, 1 and 0 at first.

    Jordan et al. 2024 (modded-nanogpt, a public record of training speed); $x_0$ is what the first block reads.
    """

    def check(self, stack: Stack) -> None:
        if stack.reversible:
            raise SpecError("x0-skip: a reversible stack cannot find its inputs again behind it")

    def wrap(self, module: StackModule, stack: Stack, dims: Dims) -> None:
        module.embedding_skip = _Shares(len(stack.order))
        module.walk = _SkipWalk(module.walk)

    def cost(self, cost: Cost, stack: Stack, dims: Dims, shape: Shape) -> Cost:
        n = stack.n_layers
        return cost + Cost(2 * n, 3.0 * n * dims.d_model, 0)


class _Shares(Module):
    """Learned shares of the stream and of the embedding, by run."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.shares_n2 = nn.Parameter(torch.zeros(n, 2))
        self.draw()

    def draw(self) -> None:
        """Begin as a stack without skips."""
        with torch.no_grad():
            self.shares_n2.copy_(torch.tensor([1.0, 0.0]))


class _Skipping:
    """View of a stack, in one pass, whose runs read the embedding too."""

    def __init__(self, stack: Any, first_BLD: Tensor) -> None:
        self._stack, self._first_BLD = stack, first_BLD

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stack, name)

    def step(self, n: int, x_BLD: Tensor, ctx: Context, states: list[Any] | None) -> Tensor:
        """Return the states after the n-th run."""
        stream, embedding = self._stack.embedding_skip.shares_n2[n].to(x_BLD.dtype)
        after_BLD: Tensor = self._stack.step(n, stream * x_BLD + embedding * self._first_BLD, ctx, states)
        return after_BLD


class _SkipWalk(Walk):
    def __init__(self, of: Walk) -> None:
        self.of = of

    def __call__(
        self, stack: Any, x_BLD: Tensor, ctx: Context, states: list[Any] | None, readings: list[LayerReading]
    ) -> Any:
        skipping: Any = _Skipping(stack, x_BLD)
        return self.of(skipping, x_BLD, ctx, states, readings)

    def close(self, stack: Any, last: Any) -> Tensor:
        return self.of.close(stack, last)


class ShareValues(DepthWrapper, kind="share-values"):
    """Value sharing: the first layer's values are handed to the layers above (ResFormer, RWKV-7; `LayerValues`)."""

    def check(self, stack: Stack) -> None:
        if stack.reversible:
            raise SpecError(
                "share-values: a reversible stack runs its layers apart from each other in its backward pass"
            )

    def wrap(self, module: StackModule, stack: Stack, dims: Dims) -> None:
        module.walk = _SharingWalk(module.walk)


class _SharingWalk(_SkipWalk):
    def __call__(
        self, stack: Any, x_BLD: Tensor, ctx: Context, states: list[Any] | None, readings: list[LayerReading]
    ) -> Any:
        return self.of(stack, x_BLD, ctx.annotate(LayerValues()), states, readings)


class HyperStreams(DepthWrapper, kind="hyper-streams"):
    """Streams of hyper-connections: `n` side by side, each the embedding at first, summed at the end (Zhu et al. 2024).

    The residuals of the blocks must be `hyper-connections` of as many streams.
    """

    n: PositiveInt = 4

    def check(self, stack: Stack) -> None:
        others = {b.residual.kind for b in stack.blocks if getattr(b.residual, "n", 0) != self.n}
        if others or stack.reversible:
            raise SpecError(f"hyper-streams: needs residuals 'hyper-connections' with n = {self.n} in every block")

    def wrap(self, module: StackModule, stack: Stack, dims: Dims) -> None:
        module.walk = _StreamWalk(module.walk, self.n)

    def cost(self, cost: Cost, stack: Stack, dims: Dims, shape: Shape) -> Cost:
        return cost + Cost(flops=float(self.n * dims.d_model))


class _StreamWalk(_SkipWalk):
    def __init__(self, of: Walk, n: int) -> None:
        super().__init__(of)
        self.n = n

    def __call__(
        self, stack: Any, x_BLD: Tensor, ctx: Context, states: list[Any] | None, readings: list[LayerReading]
    ) -> Any:
        last = self.of(stack, x_BLD.repeat(1, 1, self.n), ctx, states, readings)
        return last.unflatten(-1, (self.n, -1)).sum(-2)
