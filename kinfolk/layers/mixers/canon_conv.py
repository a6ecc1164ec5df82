"""Canon layers: short causal convolutions with a residual, before a part or inside it (Allen-Zhu 2025)."""

from typing import Any, ClassVar

from torch import Tensor

from kinfolk.core.bounds import PositiveInt
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape
from kinfolk.layers.feed_forwards.feed_forward import Gated, GatedModule
from kinfolk.layers.mixers.convolution import RecentInputs
from kinfolk.layers.mixers.short_conv import ShortConv, short_conv_cost
from kinfolk.layers.module import Dims
from kinfolk.layers.part import Mixer, Part, PartModule, only_past
from kinfolk.layers.states.rows import SeveralStates


class CanonConv(Mixer, kind="canon-conv"):
    """Canon-A and Canon-C: part(x + conv(x)) with a depthwise convolution over the last `kernel` positions.

    Allen-Zhu 2025 (Physics of Language Models: Part 4.1), Canon-A where `part` is attention and Canon-C where it is
    a feed-forward; Canon-B, on queries, keys and values, is `qkv-conv` with form "add", Canon-D `canon-gated`.
    """

    part: Part
    kernel: PositiveInt = 4

    def build(self, dims: Dims) -> PartModule:
        only_past(self, dims, "its convolution sees")
        return _CanonConv(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        added = Cost(flops=dims.d_model, kept=0)
        return short_conv_cost(dims.d_model, self.kernel, False) + added + self.part.cost(dims, shape)


class CanonGated(Gated, kind="canon-gated"):
    r"""Canon-D: $W_2\,(\phi(u) \odot v)$ with $(u, v) = (W x, V x) + \mathrm{conv}(W x, V x)$, `kernel` taps.

    Allen-Zhu 2025 (Physics of Language Models: Part 4.1): inside the feed-forward, before its activation.
    """

    alone: ClassVar[bool] = False
    kernel: PositiveInt = 4

    def build(self, dims: Dims) -> PartModule:
        only_past(self, dims, "its convolution sees")
        return _CanonGated(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        width = 2 * self.d_ff
        return super().cost(dims, shape) + short_conv_cost(width, self.kernel, False) + Cost(flops=width)


class _CanonGated(GatedModule):
    def __init__(self, spec: CanonGated, dims: Dims) -> None:
        super().__init__(spec, dims)
        self.kernel, self.width = spec.kernel, 2 * spec.d_ff
        self.conv = ShortConv(self.width, spec.kernel, bias=False)

    def forward(self, x_BLD: Tensor, ctx: Context, state: RecentInputs | None) -> tuple[Tensor, Any]:
        u_BLf = self.widen(x_BLD)
        u_BLf = u_BLf + self.conv(u_BLf, ctx, state)
        return self.narrow.after_gate(u_BLf, self.activation), state

    def new_state(self, batch_size: int, max_len: int) -> RecentInputs:
        return RecentInputs(self.conv.taps_Dt.new_zeros(batch_size, self.kernel - 1, self.width))


class ConvolvedState(SeveralStates):
    """The last inputs of the convolution, and the state of the part behind it."""

    def __init__(self, recent: RecentInputs, behind: Any) -> None:
        self.recent, self.behind = recent, behind

    @property
    def inner(self) -> list[Any]:
        return [self.recent, self.behind]


class _CanonConv(PartModule):
    def __init__(self, spec: CanonConv, dims: Dims) -> None:
        super().__init__()
        self.spec, self.kernel = spec, spec.kernel
        self.conv, self.part = ShortConv(dims.d_model, spec.kernel, bias=False), spec.part.build(dims)

    def forward(self, x_BLD: Tensor, ctx: Context, state: ConvolvedState | None) -> tuple[Tensor, Any]:
        x_BLD = x_BLD + self.conv(x_BLD, ctx, None if state is None else state.recent)
        y_BLD, behind = self.part(x_BLD, ctx, None if state is None else state.behind)
        if state is not None:
            state.behind = behind
        return y_BLD, state

    def new_state(self, batch_size: int, max_len: int) -> ConvolvedState:
        taps_Dt = self.conv.taps_Dt
        recent = RecentInputs(taps_Dt.new_zeros(batch_size, self.kernel - 1, len(taps_Dt)))
        return ConvolvedState(recent, self.part.new_state(batch_size, max_len))  # type: ignore[operator]
