"""RWKV-6 and RWKV-7: time mixing (linear attention with data-dependent decay, generalised delta rule), channel mixing.

Every map reads a mix of a token and the one before it (token shift). Training is chunked and linear in the length;
decoding keeps one matrix per head and the last input.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.core.bounds import NonNegativeFloat, NonNegativeInt, PositiveInt
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.core.errors import SpecError
from kinfolk.layers.mixers.convolution import RecentInputs
from kinfolk.layers.mixers.layer_values import first_values, leave_values
from kinfolk.layers.mixers.linear_recurrence import RecurrentMatrix, carried
from kinfolk.layers.mixers.packing import refuse_pairs
from kinfolk.layers.module import Dims, Linear, Module
from kinfolk.layers.part import Mixer, PartModule, only_past, whole_heads
from kinfolk.ops import delta_rule, gated_linear_recurrence
from kinfolk.ops.chunk_scan import precision

SLOWEST = 0.6065306597126334
"""exp(-1/2): RWKV-7's log decay lies between its negative and 0."""


class Rwkv6(Mixer, kind="rwkv6"):
    r"""Time mixing of RWKV-6 (Peng et al. 2024, Eagle and Finch, section 4.2).

    $S_t = \mathrm{diag}(w_t) S_{t-1} + k_t v_t^\top$, read with a bonus u for the present token,
    $o_t = r_t^\top (S_{t-1} + \mathrm{diag}(u) k_t v_t^\top)$, then a norm of each head and a swish gate. Five inputs
    are mixes of x_t and x_{t-1} whose shares depend on both, by maps of rank `mix_rank`;
    $w = \exp(-\exp(w_0 + B \tanh(A x)))$ with maps of rank `decay_rank`.
    """

    n_heads: PositiveInt
    mix_rank: PositiveInt = 32
    decay_rank: PositiveInt = 64
    eps: NonNegativeFloat = 64e-5

    def build(self, dims: Dims) -> PartModule:
        return _Rwkv6(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        d = dims.d_model
        d_head = d // self.n_heads
        total = linear(d, 5 * self.mix_rank, False)
        for _ in range(5):
            total += linear(d, d, False)
        total += Cost(5 * self.mix_rank * d, 10.0 * self.mix_rank * d, 5 * self.mix_rank + 5 * d)
        total += linear(d, self.decay_rank, False) + linear(self.decay_rank, d, False)
        flops, n_states = gated_linear_recurrence.work(shape.length, d_head, d_head, True)
        states = n_states * d * d_head / shape.length
        return total + Cost(10 * d, self.n_heads * flops + 30.0 * d, 12 * d + states)


class Rwkv7(Mixer, kind="rwkv7"):
    r"""Time mixing of RWKV-7 (Peng et al. 2025, Goose, section 4): a generalised delta rule.

    $S_t = (\mathrm{diag}(w_t) - \hat\kappa_t (a_t \odot \hat\kappa_t)^\top)$ acts on the state before $v_t^\top k_t$
    is added, with a removal key $\hat\kappa$ of length 1, a rate $a$ and a decay $w = \exp(-e^{-1/2} \sigma(\cdot))$ of
    each channel, all made from the input by maps of low rank (`decay_rank`, `rate_rank`). `value_rank` 0 is the first
    layer; others move their values towards those of the first, which the stack hands on (`share-values`). A norm of
    each head, a bonus for the
    present token and a gate of rank `gate_rank` close it.
    """

    n_heads: PositiveInt
    decay_rank: PositiveInt = 64
    rate_rank: PositiveInt = 64
    value_rank: NonNegativeInt = 0
    gate_rank: PositiveInt = 128
    eps: NonNegativeFloat = 64e-5

    def build(self, dims: Dims) -> PartModule:
        return _Rwkv7(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        d = dims.d_model
        d_head = d // self.n_heads
        total = Cost()
        for _ in range(4):
            total += linear(d, d, False)
        ranks = self.decay_rank, self.rate_rank, self.gate_rank
        for rank in (*ranks, *[self.value_rank] * bool(self.value_rank)):
            total += linear(d, rank, False) + linear(rank, d, False)
        # values have their input in common with the map of their shares
        total += Cost(kept=-d if self.value_rank else 0)
        flops, n_states = delta_rule.general_work(shape.length, d_head, d_head)
        states = n_states * d * d_head / shape.length
        mixes = 6 + 2 + 3 + 2 + bool(self.value_rank)  # shifts, biases, scales of keys and bonus, the norm, values
        return total + Cost(mixes * d, self.n_heads * flops + 40.0 * d, (20 + 2 * bool(self.value_rank)) * d + states)


class ChannelMix(Mixer, kind="channel-mix"):
    r"""Channel mixing: $W_v\,\mathrm{relu}(W_k x')^2$ of a mix x' of two neighbours (Peng et al. 2023, RWKV).

    `gate` "sigmoid" multiplies by $\sigma(W_r x'')$, as up to RWKV-6; RWKV-7 has none.
    """

    d_ff: PositiveInt
    gate: Literal["none", "sigmoid"] = "none"

    def build(self, dims: Dims) -> PartModule:
        return _ChannelMix(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        d = dims.d_model
        total = linear(d, self.d_ff, False) + linear(self.d_ff, d, False) + Cost(d, 4.0 * d + 2 * self.d_ff, d)
        total += Cost(kept=self.d_ff)
        return total if self.gate == "none" else total + linear(d, d, False) + Cost(d, 4.0 * d, 2 * d)


class TokenShift(Module):
    """Token shift: x_t + m (x_{t-1} - x_t), with a share m of each channel for each of `n` readers."""

    def __init__(self, n: int, width: int) -> None:
        super().__init__()
        self.shares_nD = nn.Parameter(torch.zeros(n, width))

    def draw(self) -> None:
        """Let the first channels read the token before, the last ones the token itself."""
        with torch.no_grad():
            width = self.shares_nD.shape[1]
            self.shares_nD.copy_(1 - torch.arange(width) / max(1, width))

    def change(self, x_BLD: Tensor, ctx: Context, state: RecentInputs | None) -> tuple[Tensor, Tensor]:
        """Return x without what padding says, and x_{t-1} - x_t; a document begins with zeros."""
        if ctx.padding is not None and not ctx.padding.right:
            x_BLD = x_BLD.masked_fill(~ctx.padding.keep_BL[..., None], 0.0)
        if state is not None:
            return x_BLD, state.extend(x_BLD, ctx)[:, :-1] - x_BLD
        before_BLD = F.pad(x_BLD[:, :-1], (0, 0, 1, 0))
        if ctx.group_BL is not None:
            same_BL = ctx.group_BL[:, 1:] == ctx.group_BL[:, :-1]
            before_BLD = before_BLD * F.pad(same_BL, (1, 0))[..., None]
        return x_BLD, before_BLD - x_BLD


class _TimeMix(PartModule):
    """Base of time mixing: what RWKV-6 and RWKV-7 share."""

    def __init__(self, spec: Any, dims: Dims) -> None:
        super().__init__()
        only_past(spec, dims)
        whole_heads(spec, dims)
        d = dims.d_model
        self.spec, self.n_heads, self.width = spec, spec.n_heads, d
        self.r, self.k, self.v = (Linear(d, d, bias=False, projects=True) for _ in range(3))
        self.out = Linear(d, d, bias=False, ends_branch=True)
        self.decay_down, self.decay_up = Linear(d, spec.decay_rank, bias=False), Linear(spec.decay_rank, d)
        self.norm = nn.GroupNorm(spec.n_heads, d, eps=spec.eps)

    def draw(self) -> None:
        """Let channels forget at speeds from slow to fast."""
        with torch.no_grad():
            self.decay_up.bias.copy_(-6.0 + 5.0 * torch.arange(self.width) / max(1, self.width - 1))

    def heads(self, x_BLD: Tensor) -> Tensor:
        """Cut into heads: [B, H, L, K]."""
        return x_BLD.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def normed(self, y_BHLK: Tensor) -> Tensor:
        """Normalise each head, side by side: [B, L, D]."""
        y_BLD = y_BHLK.transpose(1, 2).flatten(2)
        # groups are heads and positions are examples: a LayerNorm of each head
        out_BLD: Tensor = self.norm(y_BLD.flatten(0, 1)).unflatten(0, y_BLD.shape[:2])
        return out_BLD

    def new_state(self, batch_size: int, max_len: int) -> RecurrentMatrix:
        """Return an empty state."""
        like, d_head = self.out.weight, self.width // self.n_heads
        memory = like.new_zeros(batch_size, self.n_heads, d_head, d_head, dtype=precision(like))
        return RecurrentMatrix(like.new_zeros(batch_size, 1, self.width), memory)


class _Rwkv6(_TimeMix):
    def __init__(self, spec: Rwkv6, dims: Dims) -> None:
        super().__init__(spec, dims)
        d, rank = dims.d_model, spec.mix_rank
        self.shift = TokenShift(6, d)
        self.mix_down = Linear(d, 5 * rank, bias=False)
        self.mix_up_5rD = nn.Parameter(torch.empty(5, rank, d))
        self.g = Linear(d, d, bias=False)
        self.bonus_HK = nn.Parameter(torch.zeros(spec.n_heads, d // spec.n_heads))
        self.draw()

    def draw(self) -> None:
        super().draw()
        nn.init.uniform_(self.mix_up_5rD, -0.01, 0.01)

    def forward(self, x_BLD: Tensor, ctx: Context, state: RecurrentMatrix | None) -> tuple[Tensor, Any]:
        refuse_pairs(ctx, self.spec.kind)
        x_BLD, change_BLD = self.shift.change(x_BLD, ctx, state)
        first, *shares = self.shift.shares_nD
        narrow = torch.tanh(self.mix_down(torch.addcmul(x_BLD, change_BLD, first))).unflatten(-1, (5, -1))
        own_5BLD = torch.einsum("blnr,nrd->nbld", narrow, self.mix_up_5rD.to(narrow.dtype))
        w, k, v, r, g = (x_BLD + change_BLD * (m + own) for m, own in zip(shares, own_5BLD, strict=True))
        # w = exp(-exp(.)) is below 1 for any input; summed over positions, so in single precision at least
        log_decay = -torch.exp(self.decay_up(torch.tanh(self.decay_down(w))).to(precision(w)))
        q_BHLK, k_BHLK, v_BHLK = (self.heads(to(x)) for to, x in ((self.r, r), (self.k, k), (self.v, v)))
        op = gated_linear_recurrence.gated_linear_recurrence
        y_BHLK, memory = op(q_BHLK, k_BHLK, v_BHLK, self.heads(log_decay), *carried(ctx, state), bonus_HR=self.bonus_HK)
        if state is not None:
            state.memory_BHRK = memory
        return self.out(self.normed(y_BHLK) * F.silu(self.g(g))), state


class _Rwkv7(_TimeMix):
    def __init__(self, spec: Rwkv7, dims: Dims) -> None:
        super().__init__(spec, dims)
        d = dims.d_model
        self.shift = TokenShift(6, d)
        self.rate_down, self.rate_up = Linear(d, spec.rate_rank, bias=False), Linear(spec.rate_rank, d)
        self.gate_down, self.gate_up = (
            Linear(d, spec.gate_rank, bias=False),
            Linear(spec.gate_rank, d, bias=False),
        )
        self.value_down = Linear(d, spec.value_rank, bias=False) if spec.value_rank else None
        self.value_up = Linear(spec.value_rank, d) if spec.value_rank else None
        # scales of the removal key and of what the rate takes from keys, and the bonus
        self.scales_3D = nn.Parameter(torch.zeros(3, d))
        self.draw()

    def draw(self) -> None:
        super().draw()
        with torch.no_grad():
            self.scales_3D.copy_(torch.tensor([0.85, 1.0, 0.0])[:, None])

    def forward(self, x_BLD: Tensor, ctx: Context, state: RecurrentMatrix | None) -> tuple[Tensor, Any]:
        refuse_pairs(ctx, self.spec.kind)
        x_BLD, change_BLD = self.shift.change(x_BLD, ctx, state)
        r, w, k, v, a, g = (torch.addcmul(x_BLD, change_BLD, m) for m in self.shift.shares_nD)
        log_decay = -SLOWEST * torch.sigmoid(self.decay_up(torch.tanh(self.decay_down(w))))
        rate = torch.sigmoid(self.rate_up(self.rate_down(a)))
        keys, values = self.k(k), self._values(v, ctx)
        of_removal, of_rate, of_bonus = self.scales_3D
        removal_BHLK = F.normalize(self.heads(keys * of_removal), dim=-1)
        # lerp(1, a, alpha): a key is written by the rate at which it removes
        keys = keys * (1 + (rate - 1) * of_rate)
        r_BHLK, k_BHLK, v_BHLK, rate_BHLK, log_BHLK = map(self.heads, (self.r(r), keys, values, rate, log_decay))
        # the operator adds b a^T, so the sign of the removal is in a
        y_BHLK, memory = delta_rule.generalised_delta_rule(
            r_BHLK, k_BHLK, v_BHLK, (-removal_BHLK, removal_BHLK * rate_BHLK), log_BHLK, *carried(ctx, state)
        )
        if state is not None:
            state.memory_BHRK = memory
        bonus_BHL1 = (r_BHLK * k_BHLK * of_bonus.unflatten(0, (self.n_heads, 1, -1))).sum(-1, keepdim=True)
        y_BLD = self.normed(y_BHLK) + (bonus_BHL1 * v_BHLK).transpose(1, 2).flatten(2)
        return self.out(y_BLD * self.gate_up(torch.sigmoid(self.gate_down(g)))), state

    def _values(self, v_BLD: Tensor, ctx: Context) -> Tensor:
        values: Tensor = self.v(v_BLD)
        if self.value_down is None or self.value_up is None:
            leave_values(values, ctx)
            return values
        first = first_values(ctx)
        share = torch.sigmoid(self.value_up(self.value_down(v_BLD)))
        return values if first is None else values + (first - values) * share


class _ChannelMix(PartModule):
    def __init__(self, spec: ChannelMix, dims: Dims) -> None:
        super().__init__()
        if dims.direction != "past":
            raise SpecError(f"{spec.kind}: it reads the token before, so it belongs into a decoder")
        d = dims.d_model
        self.spec, self.gated, self.width = spec, spec.gate != "none", d
        self.shift = TokenShift(1 + self.gated, d)
        self.widen = Linear(d, spec.d_ff, bias=False)
        self.narrow = Linear(spec.d_ff, d, bias=False, ends_branch=True)
        self.gate = Linear(d, d, bias=False) if self.gated else None

    def forward(self, x_BLD: Tensor, ctx: Context, state: RecentInputs | None) -> tuple[Tensor, Any]:
        refuse_pairs(ctx, "channel-mix")
        x_BLD, change_BLD = self.shift.change(x_BLD, ctx, state)
        k, *r = (torch.addcmul(x_BLD, change_BLD, m) for m in self.shift.shares_nD)
        y_BLD = self.narrow.after(self.widen(k), "squared-relu")
        return y_BLD if self.gate is None else torch.sigmoid(self.gate(r[0])) * y_BLD, state

    def new_state(self, batch_size: int, max_len: int) -> RecentInputs:
        """Return an empty state."""
        return RecentInputs(self.widen.weight.new_zeros(batch_size, 1, self.width))
