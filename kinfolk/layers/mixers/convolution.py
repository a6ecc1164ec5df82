"""Convolutional mixers: lightweight, dynamic, separable and full convolutions (Wu et al. 2019).

They see `kernel` positions: the last ones ("past", strictly causal) or as many on either side ("both"). Padding counts
as nothing and so does what belongs to another packed document. While decoding they remember the last `kernel` - 1
inputs, so a token costs the same at any position.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.core.bounds import NonNegativeInt, PositiveInt, Rate
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.core.errors import SpecError
from kinfolk.layers.mixers.packing import refuse_pairs
from kinfolk.layers.module import Dims, Linear
from kinfolk.layers.part import Mixer, PartModule, whole_heads
from kinfolk.layers.states.rows import Axes, StateRows
from kinfolk.ops.lightconv import depthwise_conv, dynamic_conv
from kinfolk.ops.linear_attention import Direction


class Convolution(Mixer):
    """Axis: convolutions as mixers. Kernels of `kernel` taps over the past, or centred over "both" sides."""

    kernel: PositiveInt
    direction: Direction = "past"
    bias: bool = True

    def __post_init__(self) -> None:
        if self.direction == "both" and self.kernel % 2 == 0:
            raise SpecError(f"kernel: {self.kernel} is not allowed; with direction 'both' it must be odd")


class LightConv(Convolution, kind="light-conv"):
    r"""Lightweight convolution $W_o\,\mathrm{LightConv}(\mathrm{GLU}(W_i x))$ (Wu et al. 2019, section 3).

    `n_heads` kernels, each of them softmax-normalised over its taps and shared by neighbouring channels. `dropout`
    falls on the normalised taps (DropConnect).
    """

    n_heads: PositiveInt
    dropout: Rate = 0.0

    def build(self, dims: Dims) -> PartModule:
        return _LightConv(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        return _gated_cost(self, dims) + Cost(params=self.n_heads * self.kernel)


class DynamicConv(Convolution, kind="dynamic-conv"):
    r"""Dynamic convolution $W_o\,\mathrm{DynamicConv}(\mathrm{GLU}(W_i x))$ (Wu et al. 2019, section 4).

    As `LightConv`, but every position makes its own kernels by a linear map of its own gated input.
    """

    n_heads: PositiveInt
    dropout: Rate = 0.0

    def build(self, dims: Dims) -> PartModule:
        return _DynamicConv(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        taps = self.n_heads * self.kernel
        dropped = 2 * taps if self.dropout else 0
        # the map's input is the convolution's, which is kept already
        own = linear(dims.d_model, taps, False, kept=False) + Cost(flops=4.0 * taps, kept=taps + dropped)
        return _gated_cost(self, dims) + own


class SeparableConv(Convolution, kind="separable-conv"):
    """Separable convolution: a kernel per channel, then a map across channels (Chollet 2017; Kaiser et al. 2018).

    `d_out` is the width it maps to; 0 means the width it came with.
    """

    d_out: NonNegativeInt = 0

    def build(self, dims: Dims) -> PartModule:
        return _SeparableConv(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        depthwise = Cost(params=self.kernel * dims.d_model, flops=2.0 * self.kernel * dims.d_model, kept=dims.d_model)
        return depthwise + linear(dims.d_model, self.d_out or dims.d_model, self.bias)


class Conv(Convolution, kind="conv"):
    """Full convolution across positions and channels; `d_out` is the width it maps to, 0 the width it came with."""

    d_out: NonNegativeInt = 0

    def build(self, dims: Dims) -> PartModule:
        return _Conv(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        d_out = self.d_out or dims.d_model
        return linear(dims.d_model, self.kernel * d_out, False) + Cost(params=d_out if self.bias else 0)


class RecentInputs(StateRows):
    """Decoding state of a convolution: the last `kernel` - 1 inputs, zeros before the first."""

    held: ClassVar = {"x_BmD": Axes()}

    def __init__(self, x_BmD: Tensor) -> None:
        self.x_BmD = x_BmD

    def extend(self, x_BLD: Tensor, ctx: Context) -> Tensor:
        """Return old and new inputs, and remember the newest real ones."""
        n_old, x_BMD = self.x_BmD.shape[1], torch.cat([self.x_BmD, x_BLD], dim=1)
        if ctx.padding is None:
            # a copy: a view would keep all inputs
            self.x_BmD = x_BMD[:, x_BLD.shape[1] :].clone()
        else:
            # padding is behind: n real inputs end at n_old + n, so the newest n_old begin at n
            at_Bm = ctx.padding.keep_BL.sum(1, keepdim=True) + torch.arange(n_old, device=x_BLD.device)
            self.x_BmD = x_BMD.gather(1, at_Bm[..., None].expand(-1, -1, x_BLD.shape[2]))
        return x_BMD


class _Convolution(PartModule):
    """Base of convolutions: cuts out their inputs. A kind says how they are made (`inputs`) and mixed (`mix`)."""

    def __init__(self, spec: LightConv | DynamicConv | SeparableConv | Conv, dims: Dims) -> None:
        super().__init__()
        if dims.direction == "past" and spec.direction != "past":
            raise SpecError(f"direction: {spec.direction!r} would let a decoder see the future; use 'past'")
        self.spec = spec
        self.left = spec.kernel - 1 if spec.direction == "past" else spec.kernel // 2
        self.out = Linear(dims.d_model, dims.d_model, bias=spec.bias, ends_branch=True)

    def forward(self, x_BLD: Tensor, ctx: Context, state: RecentInputs | None) -> tuple[Tensor, RecentInputs | None]:
        refuse_pairs(ctx, self.spec.kind)
        x_BLD = self._without_padding(self.inputs(x_BLD), ctx)
        if state is None:
            y_BLD = self.mix(x_BLD, x_BLD, self.left, ctx)
        else:
            y_BLD = self.mix(x_BLD, state.extend(x_BLD, ctx), 0, ctx)
        return self.out(y_BLD), state

    def inputs(self, x_BLD: Tensor) -> Tensor:
        """Make what is convolved."""
        return x_BLD

    def mix(self, x_BLD: Tensor, x_BMD: Tensor, left: int, ctx: Context) -> Tensor:
        """Convolve x_BMD for the positions of x_BLD, the first of which reads from `left` positions before it on."""
        raise NotImplementedError

    def new_state(self, batch_size: int, max_len: int) -> RecentInputs:
        """Return a memory of zeros."""
        if self.spec.direction != "past":
            raise SpecError(
                f"a convolution of direction {self.spec.direction!r} cannot decode step by step; use 'past'"
            )
        return RecentInputs(self.out.weight.new_zeros(batch_size, self.spec.kernel - 1, self.out.in_features))

    def _without_padding(self, x_BLD: Tensor, ctx: Context) -> Tensor:
        """Clear padding, unless all of it is in the future of those who look into the past."""
        if ctx.padding is None or (ctx.padding.right and self.spec.direction == "past"):
            return x_BLD
        return x_BLD.masked_fill(~ctx.padding.keep_BL[..., None], 0.0)

    def _same(self, ctx: Context) -> Tensor | None:
        """Tell which taps stay in the position's own document: [B, L, t], or None if there is one document."""
        if ctx.group_BL is None:
            return None
        n_taps = self.spec.kernel
        # what is outside may count as the same document: inputs are 0 there
        near_BLt = F.pad(ctx.group_BL, (self.left, n_taps - 1 - self.left)).unfold(1, n_taps, 1)
        return near_BLt == ctx.group_BL[..., None]


class _GatedConv(_Convolution):
    """Base of lightweight and dynamic convolutions: kernels per head over a gated input."""

    spec: LightConv | DynamicConv

    def __init__(self, spec: LightConv | DynamicConv, dims: Dims) -> None:
        whole_heads(spec, dims)
        super().__init__(spec, dims)
        self.gated = Linear(dims.d_model, 2 * dims.d_model, bias=spec.bias, packs=2)

    def inputs(self, x_BLD: Tensor) -> Tensor:
        return F.glu(self.gated(x_BLD))

    def mix(self, x_BLD: Tensor, x_BMD: Tensor, left: int, ctx: Context) -> Tensor:
        w_BLHt = F.dropout(self.kernels(x_BLD).softmax(-1), self.spec.dropout, self.training)
        if ctx.hears("kernels"):
            ctx.tap("kernels", w_BLHt.expand(*x_BLD.shape[:2], -1, -1))
        same_BLt = self._same(ctx)
        if same_BLt is not None:
            # after the softmax: a hidden tap weighs on a 0, as one beyond the start does
            w_BLHt = w_BLHt * same_BLt.unsqueeze(2)
        return dynamic_conv(x_BMD, w_BLHt.expand(*x_BLD.shape[:2], -1, -1), left)

    def kernels(self, x_BLD: Tensor) -> Tensor:
        """Return the taps before their softmax: [B or 1, L or 1, H, t]."""
        raise NotImplementedError


class _LightConv(_GatedConv):
    def __init__(self, spec: LightConv, dims: Dims) -> None:
        super().__init__(spec, dims)
        self.taps = nn.Embedding(spec.n_heads, spec.kernel)

    def kernels(self, x_BLD: Tensor) -> Tensor:
        return self.taps.weight[None, None]


class _DynamicConv(_GatedConv):
    def __init__(self, spec: DynamicConv, dims: Dims) -> None:
        super().__init__(spec, dims)
        self.taps = Linear(dims.d_model, spec.n_heads * spec.kernel, bias=False)

    def kernels(self, x_BLD: Tensor) -> Tensor:
        return self.taps(x_BLD).unflatten(-1, (self.spec.n_heads, -1))


class _SeparableConv(_Convolution):
    def __init__(self, spec: SeparableConv, dims: Dims) -> None:
        super().__init__(spec, dims)
        self.out = Linear(dims.d_model, spec.d_out or dims.d_model, bias=spec.bias, ends_branch=True)
        self.taps_Dt = nn.Parameter(torch.zeros(dims.d_model, spec.kernel))

    def draw(self) -> None:
        """Draw kernels that keep the size of what they read."""
        nn.init.normal_(self.taps_Dt, std=self.spec.kernel**-0.5)

    def mix(self, x_BLD: Tensor, x_BMD: Tensor, left: int, ctx: Context) -> Tensor:
        return depthwise_conv(x_BMD, self.taps_Dt, left, x_BLD.shape[1], self._same(ctx))


class _Conv(_Convolution):
    def __init__(self, spec: Conv, dims: Dims) -> None:
        super().__init__(spec, dims)
        d_out = spec.d_out or dims.d_model
        self.out = Linear(dims.d_model, spec.kernel * d_out, bias=False, packs=spec.kernel, ends_branch=True)
        self.bias_D = nn.Parameter(torch.zeros(d_out)) if spec.bias else None

    def forward(self, x_BLD: Tensor, ctx: Context, state: RecentInputs | None) -> tuple[Tensor, RecentInputs | None]:
        refuse_pairs(ctx, self.spec.kind)
        n_out, n_taps, x_BLD = x_BLD.shape[1], self.spec.kernel, self._without_padding(x_BLD, ctx)
        # every input passes through the maps of all taps once; then what belongs to one position is added up
        if state is None:
            z_BMtD = self.out(x_BLD).unflatten(-1, (n_taps, -1))
            z_BMtD = F.pad(z_BMtD, (0, 0, 0, 0, self.left, n_taps - 1 - self.left))
        else:
            z_BMtD = self.out(state.extend(x_BLD, ctx)).unflatten(-1, (n_taps, -1))
        same_BLt = self._same(ctx)
        y_BLD: Tensor | float = 0.0 if self.bias_D is None else self.bias_D
        for t in range(n_taps):
            tap_BLD = z_BMtD[:, t : t + n_out, t]
            y_BLD = y_BLD + (tap_BLD if same_BLt is None else tap_BLD * same_BLt[..., t, None])
        assert isinstance(y_BLD, Tensor)
        return y_BLD, state


def _gated_cost(spec: LightConv | DynamicConv, dims: Dims) -> Cost:
    """Maps in and out, the gate, and two operations per channel and tap."""
    d = dims.d_model
    maps = linear(d, 2 * d, spec.bias) + linear(d, d, spec.bias)
    return maps + Cost(flops=5.0 * d + 2.0 * d * spec.kernel, kept=3 * d)
