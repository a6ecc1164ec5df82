"""Convolutional transition of the Universal Transformer: two separable convolutions as a feed-forward."""

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from kinfolk.core.bounds import PositiveInt
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape
from kinfolk.core.errors import SpecError
from kinfolk.layers.mixers.convolution import RecentInputs, SeparableConv
from kinfolk.layers.module import Dims
from kinfolk.layers.part import FeedForward, PartModule
from kinfolk.layers.states.rows import SeveralStates


class ConvTransition(FeedForward, kind="conv-transition"):
    """Convolutional feed-forward: a separable convolution, a ReLU and another one (Dehghani et al. 2019, section 2.1).

    The first maps to `d_ff` channels. In a decoder both kernels reach into the past only, elsewhere both ways.
    """

    alone: ClassVar[bool] = False
    d_ff: PositiveInt
    kernels: tuple[PositiveInt, PositiveInt] = (3, 5)
    bias: bool = True

    def __post_init__(self) -> None:
        if any(kernel % 2 == 0 for kernel in self.kernels):
            raise SpecError(
                f"kernels: {self.kernels} are not allowed; they must be odd, to reach as far on either side"
            )

    def build(self, dims: Dims) -> PartModule:
        return _ConvTransition(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        first, second = self.convolutions(dims)
        inside = dataclasses.replace(dims, d_model=self.d_ff)
        return first.cost(dims, shape) + second.cost(inside, shape) + Cost(flops=self.d_ff)

    def convolutions(self, dims: Dims) -> tuple[SeparableConv, SeparableConv]:
        """Return the two, in the direction of the stack that is being built."""
        conv = SeparableConv(kernel=1, direction=dims.direction, bias=self.bias)
        widen, narrow = self.kernels
        return conv.replace(kernel=widen, d_out=self.d_ff), conv.replace(kernel=narrow, d_out=dims.d_model)


class _ConvTransition(PartModule):
    def __init__(self, spec: ConvTransition, dims: Dims) -> None:
        super().__init__()
        widen, narrow = spec.convolutions(dims)
        self.widen = widen.build(dims)
        # only the second convolution ends the residual branch, whose last map initialisations may scale
        self.widen.out.ends_branch = False  # type: ignore[union-attr]
        self.narrow = narrow.build(dataclasses.replace(dims, d_model=spec.d_ff))

    def forward(
        self, x_BLD: Tensor, ctx: Context, state: "TransitionInputs | None"
    ) -> tuple[Tensor, "TransitionInputs | None"]:
        u_BLF, _ = self.widen(x_BLD, ctx, None if state is None else state.first)
        y_BLD, _ = self.narrow(torch.relu(u_BLF), ctx, None if state is None else state.second)
        return y_BLD, state

    def new_state(self, batch_size: int, max_len: int) -> "TransitionInputs":
        return TransitionInputs(self.widen.new_state(batch_size, max_len), self.narrow.new_state(batch_size, max_len))


class TransitionInputs(SeveralStates):
    """Decoding state of the two convolutions: their last inputs."""

    def __init__(self, first: RecentInputs, second: RecentInputs) -> None:
        self.first, self.second = first, second

    @property
    def inner(self) -> list[RecentInputs]:
        return [self.first, self.second]
