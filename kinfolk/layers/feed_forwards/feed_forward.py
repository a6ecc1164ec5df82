"""Axis FeedForward: dense and gated MLPs (GLU), applied at each position alone."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from kinfolk.core.bounds import PositiveInt
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.core.errors import SpecError
from kinfolk.layers.module import Dims, Linear
from kinfolk.layers.part import FeedForward, PartModule
from kinfolk.ops.activated_linear import Activation, activated_linear


class Dense(FeedForward, kind="dense"):
    r"""Feed-forward network (MLP): $W_2\,\phi(W_1 x + b_1) + b_2$ (Vaswani et al. 2017, equation 2)."""

    d_ff: PositiveInt
    activation: Activation = "relu"
    bias: bool = True

    def build(self, dims: Dims) -> PartModule:
        return _Dense(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        widen = linear(dims.d_model, self.d_ff, self.bias, kept=True)
        return widen + linear(self.d_ff, dims.d_model, self.bias, kept=True) + Cost(flops=self.d_ff)


class _Dense(PartModule):
    called_maps: ClassVar = ("widen", "narrow")

    def __init__(self, spec: Dense, dims: Dims) -> None:
        super().__init__()
        self.activation = spec.activation
        self.widen = Linear(dims.d_model, spec.d_ff, bias=spec.bias)
        self.narrow = Linear(spec.d_ff, dims.d_model, bias=spec.bias, ends_branch=True)

    def forward(self, x_BLD: Tensor, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        u_BLF = self.widen(x_BLD)
        return self.narrow.after(u_BLF, self.activation), state


class ShiftedDense(Dense, kind="shifted-dense"):
    r"""MLP of Fixup: $W_2\,(\phi(W_1 x + b_1) + c) + b_2$ with one number c, 0 at first (Zhang et al. 2019)."""

    def build(self, dims: Dims) -> PartModule:
        return _ShiftedDense(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        return super().cost(dims, shape) + Cost(params=1)


class _ShiftedDense(_Dense):
    def __init__(self, spec: Dense, dims: Dims) -> None:
        super().__init__(spec, dims)
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, x_BLD: Tensor, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        u_BLF, weight_DF = self.widen(x_BLD), self.narrow.weight
        # the map of a constant is one vector for all positions, so it can join the bias
        bias_D = self.shift * weight_DF.sum(1)
        bias_D = bias_D if self.narrow.bias is None else bias_D + self.narrow.bias
        return activated_linear(u_BLF, weight_DF, bias_D, self.activation), state


class Gated(FeedForward, kind="gated"):
    r"""Gated linear unit (GLU): $W_2\,(\phi(W x) \odot V x)$ (Dauphin et al. 2017; Shazeer 2020, section 2).

    The activation names the member of the family: "sigmoid" GLU, "relu" ReGLU, "gelu-tanh" GEGLU, "swish" SwiGLU,
    "identity" the bilinear one (LiGLU). Three maps instead of two: at 2/3 of the width of `Dense` it has as many
    parameters, see `at_equal_parameters`.
    """

    d_ff: PositiveInt
    activation: Activation = "gelu-tanh"
    bias: bool = False

    @classmethod
    def at_equal_parameters(cls, dense: Dense, activation: Activation, bias: bool = False) -> "Gated":
        """Return one with as many weights as a dense one, to a rest of less than one row."""
        return cls(d_ff=max(1, dense.d_ff * 2 // 3), activation=activation, bias=bias)

    def build(self, dims: Dims) -> PartModule:
        return GatedModule(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        widen = linear(dims.d_model, 2 * self.d_ff, self.bias)
        narrow = linear(self.d_ff, dims.d_model, self.bias, kept=False)
        return widen + narrow + Cost(flops=2.0 * self.d_ff, kept=2 * self.d_ff)


class GatedModule(PartModule):
    """GLU whose gate and value are one matrix product."""

    called_maps: ClassVar = ("widen", "narrow")

    def __init__(self, spec: Gated, dims: Dims) -> None:
        super().__init__()
        self.activation = spec.activation
        self.widen = Linear(dims.d_model, 2 * spec.d_ff, bias=spec.bias, packs=2)
        self.narrow = Linear(spec.d_ff, dims.d_model, bias=spec.bias, ends_branch=True)

    def forward(self, x_BLD: Tensor, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        u_BLf = self.widen(x_BLD)
        return self.narrow.after_gate(u_BLf, self.activation), state


class Chunked(FeedForward, kind="chunked"):
    """Chunked feed-forward: `size` positions at a time (Kitaev et al. 2020, section 3).

    Its inside exists for one piece only, also in training: a piece is run again for its gradient, so nothing but the
    input is kept. What comes out is the same for any size.
    """

    part: FeedForward
    size: PositiveInt = 256

    def __post_init__(self) -> None:
        if not self.part.alone:
            raise SpecError(f"part: positions of {self.part.kind!r} compete, so they cannot come in pieces")

    def build(self, dims: Dims) -> PartModule:
        return _Chunked(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        inside = self.part.cost(dims, shape)
        return Cost(inside.params, inside.flops, dims.d_model)


class _Chunked(PartModule):
    def __init__(self, spec: Chunked, dims: Dims) -> None:
        super().__init__()
        self.part, self.size = spec.part.build(dims), spec.size

    def forward(self, x_BLD: Tensor, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        again = torch.is_grad_enabled() and x_BLD.requires_grad
        pieces = []
        for x_BlD in x_BLD.split(self.size, dim=1):
            if again:
                pieces.append(checkpoint(self._run, x_BlD, ctx, use_reentrant=False))
            else:
                pieces.append(self._run(x_BlD, ctx))
        return torch.cat(pieces, 1) if len(pieces) > 1 else pieces[0], state

    def _run(self, x_BlD: Tensor, ctx: Context) -> Tensor:
        y_BlD: Tensor = self.part(x_BlD, ctx, None)[0]
        return y_BlD
