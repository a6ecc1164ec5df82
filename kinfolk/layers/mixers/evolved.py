"""Parts of the Evolved Transformer: parallel branches, separable convolutions, gated linear unit (So et al. 2019).

So, Liang and Le 2019 found these cells by a search; what is narrower than its neighbour is filled up with zeros at the
end of its channels.
"""

import dataclasses
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.core.errors import SpecError
from kinfolk.layers.mixers.convolution import Conv, SeparableConv
from kinfolk.layers.module import Dims, Dropout, Linear
from kinfolk.layers.norms.norm import LayerNorm, Norm
from kinfolk.layers.part import FeedForward, Mixer, Part, PartModule
from kinfolk.layers.states.rows import SeveralStates
from kinfolk.ops.activated_linear import ACTIVATIONS, Activation


class GatedUnit(FeedForward, kind="gated-unit"):
    r"""GLU as wide as its input: $(W_a x + b_a) \odot \sigma(W_b x + b_b)$ (Dauphin et al. 2017)."""

    bias: bool = True

    def build(self, dims: Dims) -> PartModule:
        return _GatedUnit(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        d = dims.d_model
        return linear(d, 2 * d, self.bias) + Cost(flops=2.0 * d, kept=2 * d)


class _GatedUnit(PartModule):
    def __init__(self, spec: GatedUnit, dims: Dims) -> None:
        super().__init__()
        self.both = Linear(dims.d_model, 2 * dims.d_model, bias=spec.bias, packs=2, ends_branch=True)

    def forward(self, x_BLD: Tensor, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        return F.glu(self.both(x_BLD)), state


class Branches(Mixer, kind="branches"):
    """Parallel branches: the sum of parts that read the same input."""

    parts: tuple[Part, ...]

    def build(self, dims: Dims) -> PartModule:
        return _Branches(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        # the input is one, and is kept once
        total = Cost(flops=(len(self.parts) - 1) * dims.d_model, kept=-(len(self.parts) - 1) * dims.d_model)
        for part in self.parts:
            total += part.cost(dims, shape)
        return total


class _Several(PartModule):
    """Base of parts made of parts: their states side by side."""

    parts: nn.ModuleList

    def new_state(self, batch_size: int, max_len: int) -> "States":
        """Return an empty state for each."""
        parts: list[Any] = list(self.parts)
        return States([part.new_state(batch_size, max_len) for part in parts])

    def new_memory(self) -> Any:
        """Return an empty memory for each, if any has one."""
        parts: list[Any] = list(self.parts)
        memories = [part.new_memory() for part in parts]
        return States(memories) if any(memory is not None for memory in memories) else None

    def run(self, i: int, x_BLD: Tensor, ctx: Context, state: "States | None") -> Tensor:
        """Run one of the parts, and keep its state up to date."""
        with ctx.scope(str(i)):
            y_BLD, new = self.parts[i](x_BLD, ctx, None if state is None else state.each[i])
        if state is not None:
            state.each[i] = new
        out: Tensor = y_BLD
        return out


class States(SeveralStates):
    """Decoding states or segment memories of several parts."""

    def __init__(self, each: list[Any]) -> None:
        self.each = each

    @property
    def inner(self) -> list[Any]:
        return self.each

    def forget(self, rows_B: Tensor) -> None:
        """Reset these examples."""
        for state in self.kept:
            state.forget(rows_B)

    def settle(self) -> None:
        """Remember a segment."""
        for state in self.kept:
            state.settle()


class _Branches(_Several):
    def __init__(self, spec: Branches, dims: Dims) -> None:
        super().__init__()
        self.parts = nn.ModuleList(part.build(dims) for part in spec.parts)

    def forward(self, x_BLD: Tensor, ctx: Context, state: States | None) -> tuple[Tensor, States | None]:
        y_BLD = self.run(0, x_BLD, ctx, state)
        for i in range(1, len(self.parts)):
            y_BLD = y_BLD + self.run(i, x_BLD, ctx, state)
        return y_BLD, state


class ConvBranches(Mixer, kind="conv-branches"):
    """Convolution branches: last(norm(dropout(f(left(x))) + dropout(g(right(x))))), each of the three a convolution.

    `activations` name f and g. A convolution with a kernel of 1 is a map of each position alone.
    """

    left: Mixer
    right: Mixer
    last: Mixer
    activations: tuple[Activation, Activation] = ("relu", "relu")
    norm: Norm = LayerNorm()

    def __post_init__(self) -> None:
        for name in ("left", "right", "last"):
            if not isinstance(getattr(self, name), Conv | SeparableConv):
                kind = getattr(self, name).kind
                raise SpecError(f"{name}: {kind!r} does not map to any width; use 'conv' or 'separable-conv'")

    def build(self, dims: Dims) -> PartModule:
        return _ConvBranches(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        inside, d = self.inside(dims), dims.d_model
        total = self.left.cost(dims, shape) + self.right.cost(dims, shape) + self.norm.cost(inside.d_model)
        total += self.last.cost(inside, shape) + Cost(flops=inside.d_model, kept=-d)
        for part, activation in ((self.left, self.activations[0]), (self.right, self.activations[1])):
            width = _width(part, d)
            kept = (0 if activation == "identity" else width) + (width if dims.dropout else 0)
            total += Cost(flops=width, kept=kept)
        return total

    def inside(self, dims: Dims) -> Dims:
        """Return the dims of the last convolution: the width of the wider branch."""
        return dataclasses.replace(dims, d_model=max(_width(part, dims.d_model) for part in (self.left, self.right)))


class _ConvBranches(_Several):
    def __init__(self, spec: ConvBranches, dims: Dims) -> None:
        super().__init__()
        inside = spec.inside(dims)
        if _width(spec.last, inside.d_model) > dims.d_model:
            raise SpecError(f"last: {_width(spec.last, inside.d_model)} channels do not fit d_model {dims.d_model}")
        parts: list[Any] = [spec.left.build(dims), spec.right.build(dims), spec.last.build(inside)]
        for part in parts[:2]:
            # only the last convolution ends the residual branch, whose last map initialisations may scale
            part.out.ends_branch = False
        self.parts = nn.ModuleList(parts)
        self.norm, self.dropout = spec.norm.build(inside.d_model), Dropout(dims.dropout)
        self.activations, self.widths = spec.activations, (inside.d_model, dims.d_model)

    def forward(self, x_BLD: Tensor, ctx: Context, state: States | None) -> tuple[Tensor, States | None]:
        left_BLF, right_BLF = (
            _filled(self.dropout(ACTIVATIONS[name](self.run(i, x_BLD, ctx, state))), self.widths[0])
            for i, name in enumerate(self.activations)
        )
        y_BLD = self.run(2, self.norm(left_BLF + right_BLF), ctx, state)
        return _filled(y_BLD, self.widths[1]), state


def _width(part: Part, d_in: int) -> int:
    """Return the width that a convolution maps to."""
    assert isinstance(part, Conv | SeparableConv)
    return part.d_out or d_in


def _filled(x_BLD: Tensor, width: int) -> Tensor:
    """Fill up with zeros at the end of the channels."""
    return x_BLD if x_BLD.shape[-1] == width else F.pad(x_BLD, (0, width - x_BLD.shape[-1]))
