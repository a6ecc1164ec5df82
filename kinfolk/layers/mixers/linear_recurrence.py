"""Linear attention with a decaying or self-correcting state: RetNet, GLA, HGRN2, DeltaNet, Gated DeltaNet, KDA.

They differ in the decay, in whether the state is added to or corrected (the delta rule), and in what surrounds the
recurrence: a short convolution, the activation of queries and keys, a norm of each head and an output gate. Training
is chunked and linear in the length; decoding keeps one matrix per head and the last inputs of the convolution.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.core.bounds import NonNegativeInt, PositiveInt
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.core.errors import SpecError
from kinfolk.layers.mixers.convolution import RecentInputs
from kinfolk.layers.mixers.decay import Decay, NoDecay
from kinfolk.layers.mixers.packing import refuse_pairs
from kinfolk.layers.mixers.short_conv import ShortConv, short_conv_cost
from kinfolk.layers.module import Dims, Linear
from kinfolk.layers.norms.norm import NoNorm, Norm, RMSNorm
from kinfolk.layers.part import Mixer, PartModule, only_past
from kinfolk.layers.positions.position import Heads, NoPosition, Position
from kinfolk.layers.states.rows import Axes
from kinfolk.ops import delta_rule, gated_linear_recurrence
from kinfolk.ops.chunk_scan import precision

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"swish": F.silu, "sigmoid": torch.sigmoid}


class LinearRecurrence(Mixer, kind="linear-recurrence"):
    """Linear attention over a state S of each head that decays, S = decay S + k v^T, or is corrected ("delta").

    `n_heads` heads of values; `n_key_heads` of queries and keys are shared by them (0: as many). `d_key` and `d_value`
    0 mean d_model / n_heads. `kernel` is the length of the short convolution over queries, keys and values (0: none).
    `update` "sum" adds, "delta" corrects, "signed-delta" corrects at rates up to 2, so that what a key finds may change
    sign (Grazzi et al. 2024).
    `features`: "plain", "swish" (of queries, keys and values), "swish-query" (of queries) or "swish-unit" (queries and
    keys then have length 1). Each head's output is normalised by `norm` and, with an output `gate`, multiplied by an
    activation of a map of the input, of `gate_rank` (0: full rank).
    """

    n_heads: PositiveInt
    n_key_heads: NonNegativeInt = 0
    d_key: NonNegativeInt = 0
    d_value: NonNegativeInt = 0
    decay: Decay = NoDecay()
    update: Literal["sum", "delta", "signed-delta"] = "sum"
    features: Literal["plain", "swish", "swish-query", "swish-unit"] = "plain"
    kernel: NonNegativeInt = 0
    position: Position = NoPosition()
    norm: Norm = RMSNorm()
    gate: Literal["none", "swish", "sigmoid"] = "none"
    gate_rank: NonNegativeInt = 0

    def __post_init__(self) -> None:
        if self.position.explicit:
            raise SpecError(f"position: {self.position.kind!r} scores pairs, which {self.kind!r} never makes")
        if self.n_key_heads and self.n_heads % self.n_key_heads:
            raise SpecError(f"n_key_heads: {self.n_key_heads} cannot be shared by {self.n_heads} heads")

    def build(self, dims: Dims) -> PartModule:
        return _LinearRecurrence(self, dims)

    def widths(self, dims: Dims) -> tuple[int, int, int]:
        """Return the number of key heads and the widths of a head's keys and values, or say why they cannot be."""
        if dims.d_model % self.n_heads and not (self.d_key and self.d_value):
            raise SpecError(
                f"{self.kind}: d_model {dims.d_model} is not a multiple of n_heads {self.n_heads}; give d_key, d_value"
            )
        even = dims.d_model // self.n_heads
        return self.n_key_heads or self.n_heads, self.d_key or even, self.d_value or even

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        n_keys, d_key, d_value = self.widths(dims)
        d_keys, d_values = self.n_heads * d_key, self.n_heads * d_value
        n_maps = 1 if self.decay.makes_keys else 2
        d_in = n_maps * n_keys * d_key + d_values
        total = linear(dims.d_model, d_in, False) + linear(d_values, dims.d_model, False)
        total += self.decay.cost(dims, self.n_heads, d_key) + self._gate_cost(dims, d_values)
        if self.kernel:
            total += short_conv_cost(d_in, self.kernel, False)
        work = delta_rule.work if self.update != "sum" else gated_linear_recurrence.work
        flops, n_states = work(shape.length, d_key, d_value, self.decay.by_channel)
        if self.update != "sum":
            total += linear(dims.d_model, self.n_heads, False, kept=False) + Cost(kept=2 * self.n_heads)
        decays = d_keys if self.decay.by_channel else self.n_heads * (not isinstance(self.decay, NoDecay))
        kept = 2 * d_keys + d_values + decays + n_states * self.n_heads * d_key * d_value / shape.length
        kept += self._features_kept(d_keys, d_values, d_in)
        norm = self.norm.cost(d_value)
        total += Cost(norm.params, self.n_heads * norm.flops, self.n_heads * norm.kept)
        return total + Cost(flops=self.n_heads * flops, kept=kept) + self.position.cost(dims, Heads(n_keys, d_key))

    def _gate_cost(self, dims: Dims, d_values: int) -> Cost:
        if self.gate == "none":
            return Cost()
        maps = linear(dims.d_model, d_values, False, kept=False)
        if self.gate_rank:
            maps = linear(dims.d_model, self.gate_rank, False, kept=False) + linear(self.gate_rank, d_values, True)
        return maps + Cost(flops=3.0 * d_values, kept=3 * d_values)

    def _features_kept(self, d_keys: int, d_values: int, d_in: int) -> float:
        if self.features == "plain":
            return 0.0
        return d_keys if self.features == "swish-query" else d_in + (2 * d_keys if self.features == "swish-unit" else 0)


class RecurrentMatrix(RecentInputs):
    """Decoding state: one matrix per head, and the last inputs of the convolution; of constant size."""

    held: ClassVar = {**RecentInputs.held, "memory_BHRK": Axes()}

    def __init__(self, x_BmD: Tensor, memory_BHRK: Tensor) -> None:
        super().__init__(x_BmD)
        self.memory_BHRK = memory_BHRK


class _LinearRecurrence(PartModule):
    def __init__(self, spec: LinearRecurrence, dims: Dims) -> None:
        super().__init__()
        only_past(spec, dims)
        self.spec = spec
        self.n_keys, self.d_key, self.d_value = spec.widths(dims)
        d_keys, d_values = self.n_keys * self.d_key, spec.n_heads * self.d_value
        self.parts = [d_keys] * (1 if spec.decay.makes_keys else 2) + [d_values]
        packs = len(self.parts) if d_keys == d_values else 1
        self.qkv = Linear(dims.d_model, sum(self.parts), bias=False, packs=packs)
        self.conv = ShortConv(sum(self.parts), spec.kernel, bias=False) if spec.kernel else None
        self.decay = spec.decay.build(dims, spec.n_heads, self.d_key)
        self.beta = Linear(dims.d_model, spec.n_heads, bias=False) if spec.update != "sum" else None
        self.largest = 2.0 if spec.update == "signed-delta" else 1.0
        self.position = spec.position.build(dims, Heads(self.n_keys, self.d_key))
        self.norm = None if isinstance(spec.norm, NoNorm) else spec.norm.build(self.d_value)
        self.gate = _gate(spec, dims, d_values)
        self.out = Linear(d_values, dims.d_model, bias=False, ends_branch=True)

    def forward(
        self, x_BLD: Tensor, ctx: Context, state: RecurrentMatrix | None
    ) -> tuple[Tensor, RecurrentMatrix | None]:
        refuse_pairs(ctx, self.spec.kind)
        qkv_BLD = self.qkv(x_BLD)
        swish = self.spec.features in ("swish", "swish-unit")
        if self.conv is not None:
            qkv_BLD = self.conv(qkv_BLD, ctx, state, "swish" if swish else "identity")
        elif swish:
            qkv_BLD = F.silu(qkv_BLD)
        log_decay = self.decay(x_BLD)
        q_BHLR, k_BHLR, v_BHLK = self._heads(qkv_BLD, log_decay, ctx)
        if self.beta is None:
            op = gated_linear_recurrence.gated_linear_recurrence
            y_BHLK, memory_BHRK = op(q_BHLR, k_BHLR, v_BHLK, log_decay, *carried(ctx, state))
        else:
            beta_BHL1 = self.beta(x_BLD).sigmoid().transpose(1, 2).unsqueeze(-1) * self.largest
            delta = delta_rule.delta_rule
            y_BHLK, memory_BHRK = delta(q_BHLR, k_BHLR, v_BHLK, beta_BHL1, log_decay, *carried(ctx, state))
        if state is not None:
            state.memory_BHRK = memory_BHRK
        return self.out(self._gated(y_BHLK.transpose(1, 2), x_BLD)), state

    def new_state(self, batch_size: int, max_len: int) -> RecurrentMatrix:
        """Return an empty state."""
        like = self.out.weight
        recent = like.new_zeros(batch_size, max(0, self.spec.kernel - 1), sum(self.parts))
        shape = batch_size, self.spec.n_heads, self.d_key, self.d_value
        return RecurrentMatrix(recent, like.new_zeros(shape, dtype=precision(like)))

    def _heads(self, qkv_BLD: Tensor, log_decay: Tensor, ctx: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of every head."""
        spec = self.spec
        q, *k, v = qkv_BLD.split_with_sizes(self.parts, dim=-1)
        q_BHLR, v_BHLK = (x.unflatten(-1, (-1, n)).transpose(1, 2) for x, n in ((q, self.d_key), (v, self.d_value)))
        if spec.decay.makes_keys:
            # 1 - exp(log_decay) would cancel where little is forgotten, decay close to 1
            k_BHLR = -torch.expm1(log_decay)
        else:
            k_BHLR = k[0].unflatten(-1, (-1, self.d_key)).transpose(1, 2)
        if spec.features == "swish-query":
            q_BHLR = F.silu(q_BHLR)
        if spec.features == "swish-unit":
            q_BHLR, k_BHLR = unit(q_BHLR), unit(k_BHLR)
        q_BHLR, k_BHLR = self.position.turn(q_BHLR, k_BHLR, ctx)
        if self.n_keys != spec.n_heads:
            times = spec.n_heads // self.n_keys
            q_BHLR, k_BHLR = (x.repeat_interleave(times, 1) for x in (q_BHLR, k_BHLR))
        return q_BHLR * self.d_key**-0.5, k_BHLR, v_BHLK

    def _gated(self, y_BLHK: Tensor, x_BLD: Tensor) -> Tensor:
        if self.norm is not None:
            y_BLHK = self.norm(y_BLHK.flatten(0, 1)).unflatten(0, y_BLHK.shape[:2])
        y_BLD = y_BLHK.flatten(2)
        return y_BLD if self.gate is None else y_BLD * ACTIVATIONS[self.spec.gate](self.gate(x_BLD))


def shown(ctx: Context, state: Any) -> Tensor | None:
    """Return which positions are real, where that matters: padding behind everything real changes nothing later."""
    if ctx.padding is None or (ctx.padding.right and state is None):
        return None
    return ctx.padding.keep_BL


def carried(ctx: Context, state: Any) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the state, the real positions and the documents for a recurrence; decoding reads one document."""
    if state is None:
        return None, shown(ctx, state), ctx.group_BL
    return state.memory_BHRK, shown(ctx, state), None


def unit(x: Tensor) -> Tensor:
    """Return vectors of length 1."""
    # inside the root: the gradient at a vector of zeros is finite
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def _gate(spec: LinearRecurrence, dims: Dims, d_values: int) -> nn.Module | None:
    if spec.gate == "none":
        return None
    if not spec.gate_rank:
        return Linear(dims.d_model, d_values, bias=False)
    return nn.Sequential(Linear(dims.d_model, spec.gate_rank, bias=False), Linear(spec.gate_rank, d_values))
