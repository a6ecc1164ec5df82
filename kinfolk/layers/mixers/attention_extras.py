"""Axis Extra: what attention does besides the softmax: convolution of q, k, v, forget gate, output gate.

Primer and Canon convolve queries, keys and values, the Forgetting Transformer lets scores decay, gated attention
multiplies the output. They combine: `ExtendedAttention(extras=(...))`.
"""

from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.core.bounds import PositiveInt, Probability
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, linear
from kinfolk.core.errors import SpecError
from kinfolk.core.spec import Spec
from kinfolk.layers.mixers.convolution import RecentInputs
from kinfolk.layers.mixers.layer_values import first_values, leave_values
from kinfolk.layers.mixers.short_conv import ShortConv, short_conv_cost
from kinfolk.layers.module import Dims, Linear, Module
from kinfolk.layers.part import only_past
from kinfolk.layers.states.rows import Axes, StateRows


class HeadWidths(NamedTuple):
    """Heads of queries, heads of keys and values, and the width of each."""

    n_heads: int
    n_kv: int
    d_head: int

    @property
    def packed(self) -> int:
        """Width of queries, keys and values side by side."""
        return (self.n_heads + 2 * self.n_kv) * self.d_head


class ExtraModule(Module):
    """Base of extras: the identity in every hook, without a state."""

    def packed(self, qkv_BLD: Tensor, ctx: Context, state: Any) -> Tensor:
        """Change queries, keys and values before they are cut into heads."""
        return qkv_BLD

    def scored(self, q: Tensor, k: Tensor, x_BLD: Tensor, ctx: Context, state: Any) -> tuple[Tensor, Tensor]:
        """Change queries [B, H, L, K] and keys [B, G, L, K] just before their products; they may become wider."""
        return q, k

    def valued(self, v_BGLK: Tensor, ctx: Context) -> Tensor:
        """Change values."""
        return v_BGLK

    def output(self, y_BLD: Tensor, x_BLD: Tensor) -> Tensor:
        """Change the values of all heads side by side, before the output map."""
        return y_BLD

    def new_state(self, batch_size: int, like: Tensor) -> Any:
        """Return its decoding state; None: it has none."""
        return None


class Extra(Spec):
    """Axis: what is added to attention: gates, a convolution of queries and keys, values of the first layer.

    `widens`: how many channels a head of keys gets besides its own.
    """

    def build(self, dims: Dims, heads: HeadWidths, scale: float) -> ExtraModule:
        """Return the module; products of queries and keys are multiplied by `scale`."""
        raise NotImplementedError

    def cost(self, dims: Dims, heads: HeadWidths) -> Cost:
        """Return what it adds to the cost of attention."""
        raise NotImplementedError

    def widens(self, heads: HeadWidths) -> int:
        """Return how many channels keys have besides their own."""
        return 0


class QKVConv(Extra, kind="qkv-conv"):
    r"""Causal depthwise convolution of queries, keys and values over `kernel` positions.

    So et al. 2021 (Primer): the convolution replaces its input ("replace", `kernel` 3). Allen-Zhu 2025
    (Physics of Language Models 4.1), Canon-B: it is added to it ("add", `kernel` 4).
    """

    kernel: PositiveInt = 3
    form: Literal["replace", "add"] = "replace"

    def build(self, dims: Dims, heads: HeadWidths, scale: float) -> ExtraModule:
        only_past(self, dims, "its convolution sees")
        return _QKVConv(self, heads)

    def cost(self, dims: Dims, heads: HeadWidths) -> Cost:
        return short_conv_cost(heads.packed, self.kernel, False)


class _QKVConv(ExtraModule):
    def __init__(self, spec: QKVConv, heads: HeadWidths) -> None:
        super().__init__()
        self.adds, self.width, self.kernel = spec.form == "add", heads.packed, spec.kernel
        self.conv = ShortConv(heads.packed, spec.kernel, bias=False)

    def packed(self, qkv_BLD: Tensor, ctx: Context, state: Any) -> Tensor:
        y_BLD: Tensor = self.conv(qkv_BLD, ctx, state)
        return qkv_BLD + y_BLD if self.adds else y_BLD

    def new_state(self, batch_size: int, like: Tensor) -> RecentInputs:
        return RecentInputs(like.new_zeros(batch_size, self.kernel - 1, self.width))


class ForgetGate(Extra, kind="forget-gate"):
    r"""Forget gate: scores $q_i \cdot k_j / \sqrt{d} + \sum_{t=j+1}^{i} \log f_t$ with $f_t = \sigma(w^\top x_t + b)$.

    Lin et al. 2025 (Forgetting Transformer). The sum is $F_i - F_j$ with $F$ the sum from the start,
    and $F_i$ is the same for all keys of a query: so a key has $-F_j$ as one channel more, for each head of queries
    that shares it, and the fused kernels compute it. In half precisions $F_j$ is three channels that add up to it.
    Padding is not counted. Reference: `kinfolk.ops.naive.forgetting_attention`.
    """

    def build(self, dims: Dims, heads: HeadWidths, scale: float) -> ExtraModule:
        if dims.direction != "past":
            raise SpecError(f"{self.kind}: scores decay towards the past, so it belongs into a decoder")
        return _ForgetGate(dims, heads, scale)

    def cost(self, dims: Dims, heads: HeadWidths) -> Cost:
        return linear(dims.d_model, heads.n_heads, True, kept=False) + Cost(
            flops=4.0 * heads.n_heads, kept=heads.n_heads
        )

    def widens(self, heads: HeadWidths) -> int:
        return heads.n_heads // heads.n_kv


class ForgottenTotal(StateRows):
    """Decoding state of forget gates: the sum of their logarithms so far, per head."""

    held: ClassVar = {"total_BH1": Axes()}

    def __init__(self, total_BH1: Tensor) -> None:
        self.total_BH1 = total_BH1


class _ForgetGate(ExtraModule):
    def __init__(self, dims: Dims, heads: HeadWidths, scale: float) -> None:
        super().__init__()
        self.gate = Linear(dims.d_model, heads.n_heads)
        self.share, self.scale = heads.n_heads // heads.n_kv, scale

    def scored(
        self, q: Tensor, k: Tensor, x_BLD: Tensor, ctx: Context, state: ForgottenTotal | None
    ) -> tuple[Tensor, Tensor]:
        exact = torch.promote_types(q.dtype, torch.float32)
        log_BHL = F.logsigmoid(self.gate(x_BLD).to(exact)).transpose(1, 2)
        if ctx.padding is not None:
            log_BHL = log_BHL.masked_fill(~ctx.padding.keep_BL[:, None], 0.0)
        # over all positions, so in single precision at least: bfloat16 cannot add 1 to 256
        total_BHL = log_BHL.cumsum(-1)
        if state is not None:
            total_BHL = total_BHL + state.total_BH1.to(exact)
            state.total_BH1 = total_BHL[..., -1:]
        sums = _parts(-total_BHL.unflatten(1, (-1, self.share)).transpose(2, 3), k.dtype)
        own_H1s = torch.eye(self.share, dtype=q.dtype, device=q.device).repeat(k.shape[1], 1).unsqueeze(1)
        # the scale of scores multiplies these channels too, and is taken back here
        one = (own_H1s / self.scale).expand(len(q), -1, q.shape[2], -1)
        return torch.cat([q, *[one] * len(sums)], -1), torch.cat([k, *sums], -1)

    def new_state(self, batch_size: int, like: Tensor) -> ForgottenTotal:
        exact = torch.promote_types(like.dtype, torch.float32)
        return ForgottenTotal(like.new_zeros(batch_size, self.gate.out_features, 1, dtype=exact))


def _parts(x: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Return tensors of a type whose sum is x: one, or three where the type has fewer digits."""
    parts = []
    # three numbers of 8 bits (bfloat16) have the 24 of single precision
    for _ in range(1 if x.dtype == dtype else 3):
        parts.append(x.to(dtype))
        x = x - parts[-1].to(x.dtype)
    return parts


class HeadGate(Extra, kind="head-gate"):
    r"""Gated attention: $y \odot \sigma(W x)$ behind the softmax, before the output map (Qiu et al. 2025, G1).

    Equation 5. `by` "channel": one gate per channel of every head, the paper's best; "head": one per head.
    """

    by: Literal["channel", "head"] = "channel"

    def build(self, dims: Dims, heads: HeadWidths, scale: float) -> ExtraModule:
        return _HeadGate(self, dims, heads)

    def cost(self, dims: Dims, heads: HeadWidths) -> Cost:
        width = heads.n_heads * heads.d_head
        n_gates = width if self.by == "channel" else heads.n_heads
        return linear(dims.d_model, n_gates, False, kept=False) + Cost(flops=3.0 * width, kept=width + n_gates)


class _HeadGate(ExtraModule):
    def __init__(self, spec: HeadGate, dims: Dims, heads: HeadWidths) -> None:
        super().__init__()
        n_gates = heads.n_heads * (heads.d_head if spec.by == "channel" else 1)
        self.gate, self.d_head, self.by = Linear(dims.d_model, n_gates, bias=False), heads.d_head, spec.by

    def output(self, y_BLD: Tensor, x_BLD: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(x_BLD))
        return y_BLD * (gate if self.by == "channel" else gate.repeat_interleave(self.d_head, -1))


class ValueResidual(Extra, kind="value-residual"):
    r"""Value residual: $\lambda_1 v_1 + \lambda_2 v_l$ in layer l, v_1 the first layer's (Zhou et al. 2024, ResFormer).

    Two learned numbers per layer, `share` and 1 - `share` at first; `role` "gives" is the first layer, whose values
    stay as they are. The stack hands them on (`share-values`).
    """

    role: Literal["gives", "takes"] = "takes"
    share: Probability = 0.5

    def build(self, dims: Dims, heads: HeadWidths, scale: float) -> ExtraModule:
        return _FirstValues() if self.role == "gives" else _ValueResidual(self)

    def cost(self, dims: Dims, heads: HeadWidths) -> Cost:
        width = heads.n_kv * heads.d_head
        return Cost() if self.role == "gives" else Cost(2, 3.0 * width, width)


class _FirstValues(ExtraModule):
    def valued(self, v_BGLK: Tensor, ctx: Context) -> Tensor:
        leave_values(v_BGLK, ctx)
        return v_BGLK


class _ValueResidual(ExtraModule):
    def __init__(self, spec: ValueResidual) -> None:
        super().__init__()
        self.share, self.shares_2 = spec.share, nn.Parameter(torch.zeros(2))
        self.draw()

    def draw(self) -> None:
        """Begin with the shares of the spec."""
        with torch.no_grad():
            self.shares_2.copy_(torch.tensor([self.share, 1 - self.share]))

    def valued(self, v_BGLK: Tensor, ctx: Context) -> Tensor:
        first_BGLK = first_values(ctx)
        if first_BGLK is None:
            return v_BGLK
        first, own = self.shares_2.to(v_BGLK.dtype)
        return first * first_BGLK + own * v_BGLK
