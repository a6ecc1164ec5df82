"""Hyena: gated long convolutions whose kernels a small network makes from the position (Poli et al. 2023)."""

import itertools
import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from kinfolk.core.bounds import PositiveFloat, PositiveInt
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.layers.mixers.convolution import RecentInputs
from kinfolk.layers.mixers.packing import by_document, refuse_pairs
from kinfolk.layers.mixers.short_conv import ShortConv, short_conv_cost
from kinfolk.layers.module import Dims, Linear, Module
from kinfolk.layers.part import Mixer, PartModule, only_past
from kinfolk.layers.states.rows import Axes
from kinfolk.ops.long_conv import long_conv, work

FAST, SLOW, TARGET = 0.3, 1.5, 1e-2
"""Windows fall to `TARGET` within 0.3 to 1.5 times the longest sequence, each channel at its own rate."""


class Hyena(Mixer, kind="hyena"):
    r"""Hyena operator: $y = W_o\,(x^1 \odot (h * (x^2 \odot v)))$ with $x^1, x^2, v$ short convolutions of maps of x.

    Poli et al. 2023 (arXiv:2302.10866), definition 3.1 with order 2; `order` N has N - 1 long convolutions with a gate
    before each. A kernel is $h_t = \mathrm{FFN}(t) \cdot \mathrm{window}(t)$ plus a skip (equation 7): an MLP of
    `width` with three sine layers of frequency `sine` reads the position as `n_features` sines and cosines, and the
    window decays exponentially. Positions are counted in `max_len`s of the model.

    Training costs L log L. Decoding keeps every input of the long convolutions and costs as much as the position for
    each token: no constant state is exact for it.
    """

    order: PositiveInt = 2
    kernel: PositiveInt = 3
    width: PositiveInt = 64
    n_features: PositiveInt = 33
    sine: PositiveFloat = 14.0

    def __post_init__(self) -> None:
        if self.order < 2:
            raise SpecError(f"order: {self.order} leaves no long convolution; use 2 or more")
        if self.n_features < 3 or self.n_features % 2 == 0:
            raise SpecError(f"n_features: {self.n_features} is not allowed; one for time, and pairs of sine and cosine")

    def build(self, dims: Dims) -> PartModule:
        only_past(self, dims, "its convolutions see")
        return _Hyena(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        d, n = dims.d_model, (self.order - 1) * dims.d_model
        inner = (self.order + 1) * d
        maps = linear(d, inner, True) + linear(d, d, True) + short_conv_cost(inner, self.kernel, True)
        net = linear(self.n_features, self.width, True) + linear(self.width, n, False)
        net += linear(self.width, self.width, True) + linear(self.width, self.width, True)
        # made once for all rows, and again in the backward pass
        net = Cost(net.params + self.width + n, net.flops, n)
        return maps + net + Cost(flops=n * (work(shape.length) + 5.0), kept=4 * n + d)


class _Filter(Module):
    """Implicit filter: an MLP makes kernels of any length from positions."""

    def __init__(self, spec: Hyena, dims: Dims) -> None:
        super().__init__()
        n, sizes = (spec.order - 1) * dims.d_model, [spec.n_features, *[spec.width] * 3]
        self.unit, self.n_bands, self.sine = dims.max_len, (spec.n_features - 1) // 2, spec.sine
        self.layers = nn.ModuleList(Linear(a, b) for a, b in itertools.pairwise(sizes))
        self.out = Linear(spec.width, n, bias=False)
        self.rate_W = nn.Parameter(torch.full((spec.width,), spec.sine))
        self.skip_D = nn.Parameter(torch.zeros(n))

    def draw(self) -> None:
        """Draw the skip; begin with one frequency."""
        nn.init.constant_(self.rate_W, self.sine)
        nn.init.normal_(self.skip_D)

    def forward(self, length: int) -> Tensor:
        """Return kernels [L, D]; the skip is part of the first tap."""
        like = self.rate_W
        # bfloat16 knows integers up to 256
        position_L = torch.arange(length, device=like.device, dtype=torch.promote_types(like.dtype, torch.float32))
        time_L1 = (position_L / max(1, self.unit - 1)).unsqueeze(1)
        # as in the released code: the lowest band is not quite 0, and features are the parts of e^(-i angle)
        bands = torch.linspace(1e-4, self.n_bands - 1, self.n_bands, device=like.device, dtype=time_L1.dtype)
        angle_LF = (2 * math.pi / self.unit) * position_L.unsqueeze(1) * bands
        z_LF = torch.cat([time_L1, angle_LF.cos(), -angle_LF.sin()], 1).to(like.dtype)
        h_LD: Tensor = checkpoint(self._net, z_LF, use_reentrant=False) if torch.is_grad_enabled() else self._net(z_LF)
        ends = math.log(TARGET) / SLOW, math.log(TARGET) / FAST
        rates = torch.linspace(*ends, h_LD.shape[1], device=like.device, dtype=time_L1.dtype)
        h_LD = h_LD * torch.exp(time_L1 * rates).to(h_LD.dtype)
        first_L1 = (position_L == 0).to(h_LD.dtype).unsqueeze(1)
        return torch.addcmul(h_LD, first_L1, self.skip_D.to(h_LD.dtype))

    def _net(self, z_LF: Tensor) -> Tensor:
        for layer in self.layers:
            z_LF = torch.sin(self.rate_W * layer(z_LF))
        h_LD: Tensor = self.out(z_LF)
        return h_LD


class ConvolvedInputs(RecentInputs):
    """Decoding state: all inputs of the long convolutions, the last ones of the short convolution."""

    held: ClassVar = {**RecentInputs.held, "u_BMD": Axes(room=1)}

    def __init__(self, x_BmD: Tensor, u_BMD: Tensor) -> None:
        super().__init__(x_BmD)
        self.u_BMD = u_BMD
        self.kernels: Tensor | None = None  # the same for all rows


class _Hyena(PartModule):
    def __init__(self, spec: Hyena, dims: Dims) -> None:
        super().__init__()
        self.spec, self.d_model, inner = spec, dims.d_model, (spec.order + 1) * dims.d_model
        self.inner = Linear(dims.d_model, inner, packs=spec.order + 1)
        self.conv = ShortConv(inner, spec.kernel, bias=True)
        self.filter = _Filter(spec, dims)
        self.out = Linear(dims.d_model, dims.d_model, ends_branch=True)

    def forward(
        self, x_BLD: Tensor, ctx: Context, state: ConvolvedInputs | None
    ) -> tuple[Tensor, ConvolvedInputs | None]:
        refuse_pairs(ctx, self.spec.kind)
        if state is None:
            return by_document(self._whole, x_BLD, ctx), None
        *gates, v_BLD = self._short(x_BLD, ctx, state)
        kernels_MD = self._kernels(state)
        for n, gate_BLD in enumerate(reversed(gates[1:])):
            at = slice(n * self.d_model, (n + 1) * self.d_model)
            v_BLD = _extended(v_BLD * gate_BLD, state.u_BMD[..., at], kernels_MD[:, at], ctx)
        return self.out(v_BLD * gates[0]), state

    def _short(self, x_BLD: Tensor, ctx: Context, state: ConvolvedInputs | None) -> tuple[Tensor, ...]:
        return self.conv(self.inner(x_BLD), ctx, state).chunk(self.spec.order + 1, dim=-1)

    def _whole(self, x_BLD: Tensor, ctx: Context) -> Tensor:
        """Mix rows of one document each, from its first position on."""
        *gates, v_BLD = self._short(x_BLD, ctx, None)
        kernels = self.filter(x_BLD.shape[1]).chunk(self.spec.order - 1, dim=-1)
        for kernel_LD, gate_BLD in zip(kernels, reversed(gates[1:]), strict=True):
            u_BLD = v_BLD * gate_BLD
            if ctx.padding is not None and not ctx.padding.right:
                u_BLD = u_BLD.masked_fill(~ctx.padding.keep_BL[..., None], 0.0)
            v_BLD = long_conv(u_BLD, kernel_LD)
        y_BLD: Tensor = self.out(v_BLD * gates[0])
        return y_BLD

    def _kernels(self, state: ConvolvedInputs) -> Tensor:
        n = state.u_BMD.shape[1]
        if state.kernels is None or len(state.kernels) < n:
            state.kernels = self.filter(n)
        return state.kernels

    def new_state(self, batch_size: int, max_len: int) -> ConvolvedInputs:
        """Return room for the inputs of all positions."""
        like = self.out.weight
        recent = like.new_zeros(batch_size, self.spec.kernel - 1, (self.spec.order + 1) * self.d_model)
        return ConvolvedInputs(recent, like.new_zeros(batch_size, max_len, (self.spec.order - 1) * self.d_model))


def _extended(u_BLD: Tensor, past_BMD: Tensor, kernel_MD: Tensor, ctx: Context) -> Tensor:
    """Write new inputs behind those of earlier positions, in place, and convolve at the new positions."""
    n, stop = u_BLD.shape[1], ctx.start + u_BLD.shape[1]
    if stop > past_BMD.shape[1]:
        raise ShapeError(f"position {stop - 1} does not fit a state made for {past_BMD.shape[1]} positions")
    if ctx.pos_BL is None:
        past_BMD[:, ctx.start : stop] = u_BLD.to(past_BMD.dtype)
        seen_BMD = past_BMD[:, :stop]
        # several positions by one transform over all inputs, a single one by a sum over them
        if n > 1:
            return long_conv(seen_BMD, kernel_MD[:stop])[:, ctx.start :].to(u_BLD.dtype)
        return (seen_BMD * kernel_MD[:stop].flip(0)).sum(1, keepdim=True).to(u_BLD.dtype)
    rows_B1 = torch.arange(len(u_BLD), device=u_BLD.device)[:, None]
    past_BMD[rows_B1, ctx.pos_BL] = u_BLD.to(past_BMD.dtype)
    # rows at positions of their own: each has its kernel turned around from there
    back_BLM = ctx.pos_BL[..., None] - torch.arange(stop, device=u_BLD.device)
    outputs = []
    for back_BM in back_BLM.unbind(1):
        taps_BMD = kernel_MD[back_BM.clamp(min=0)].masked_fill((back_BM < 0)[..., None], 0.0)
        outputs.append((past_BMD[:, :stop] * taps_BMD).sum(1))
    return torch.stack(outputs, 1).to(u_BLD.dtype)
