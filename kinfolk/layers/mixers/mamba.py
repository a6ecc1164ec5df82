"""Selective state-space mixers: Mamba (a decay of every channel and state) and Mamba-2 (a decay of every head).

Both widen the input, convolve it over a few positions, run a recurrence whose step, input and output maps come from
the input itself, and gate the result. They are blocks of their own: no feed-forward follows.
"""

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.core.bounds import NonNegativeInt, PositiveFloat, PositiveInt
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.core.errors import SpecError
from kinfolk.layers.mixers.convolution import RecentInputs
from kinfolk.layers.mixers.decay import check_steps, draw_steps
from kinfolk.layers.mixers.linear_recurrence import RecurrentMatrix, carried, shown
from kinfolk.layers.mixers.packing import refuse_pairs
from kinfolk.layers.mixers.short_conv import ShortConv, short_conv_cost
from kinfolk.layers.module import Dims, Linear
from kinfolk.layers.norms.norm import NoNorm, Norm, RMSNorm
from kinfolk.layers.part import Mixer, PartModule, only_past
from kinfolk.layers.states.rows import Axes
from kinfolk.ops.chunk_scan import chunks_of, precision
from kinfolk.ops.diagonal_scan import CHUNK, selective_scan
from kinfolk.ops.gated_linear_recurrence import gated_linear_recurrence, work


class Mamba(Mixer, kind="mamba"):
    """Mamba: selective state-space model (Gu and Dao 2023, algorithm 2 and section 3.4).

    The inner width is `expand` d_model; every channel has `d_state` numbers of state and a step of its own, made
    through `rank` numbers (0: d_model / 16, rounded up). `kernel` is the length of the convolution. Steps are drawn
    from [`least`, `most`]. `norm` normalises what the input makes: those numbers, B and C (Jamba).
    """

    d_state: PositiveInt = 16
    expand: PositiveInt = 2
    kernel: PositiveInt = 4
    rank: NonNegativeInt = 0
    least: PositiveFloat = 0.001
    most: PositiveFloat = 0.1
    norm: Norm = NoNorm()

    def __post_init__(self) -> None:
        check_steps(self.least, self.most)

    def build(self, dims: Dims) -> PartModule:
        return _Mamba(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        width, rank = self.expand * dims.d_model, self.rank_of(dims)
        maps = linear(dims.d_model, 2 * width, False) + linear(width, rank + 2 * self.d_state, False)
        maps += linear(rank, width, True) + linear(width, dims.d_model, False)
        n_states = len(chunks_of(shape.length, CHUNK))
        # the gate, steps, B and C; the other inputs of the scan and its output are those of maps and the convolution
        kept = 2 * width + 2 * self.d_state + n_states * width * self.d_state / shape.length
        scan = Cost(width * (self.d_state + 1), 2.0 * width * self.d_state + 10.0 * width, kept)
        norms = self.norm.cost(rank) + self.norm.cost(self.d_state) + self.norm.cost(self.d_state)
        return maps + norms + scan + short_conv_cost(width, self.kernel, True)

    def rank_of(self, dims: Dims) -> int:
        """Return how many numbers a step is made from."""
        return self.rank or math.ceil(dims.d_model / 16)


class RecurrentVector(RecentInputs):
    """Decoding state: a few numbers per channel, and the last inputs of the convolution; of constant size."""

    held: ClassVar = {**RecentInputs.held, "memory_BDR": Axes()}

    def __init__(self, x_BmD: Tensor, memory_BDR: Tensor) -> None:
        super().__init__(x_BmD)
        self.memory_BDR = memory_BDR


class _Mamba(PartModule):
    def __init__(self, spec: Mamba, dims: Dims) -> None:
        super().__init__()
        only_past(spec, dims)
        self.spec, self.width = spec, spec.expand * dims.d_model
        self.parts = [spec.rank_of(dims), spec.d_state, spec.d_state]
        self.inner = Linear(dims.d_model, 2 * self.width, bias=False, packs=2)
        self.conv = ShortConv(self.width, spec.kernel, bias=True)
        self.selective = Linear(self.width, sum(self.parts), bias=False)
        self.norms = nn.ModuleList(spec.norm.build(width) for width in self.parts)
        self.step = Linear(self.parts[0], self.width, bias=False)
        self.step_bias_D = nn.Parameter(torch.zeros(self.width))
        self.log_rate_DR = nn.Parameter(torch.zeros(self.width, spec.d_state))
        self.skip_D = nn.Parameter(torch.ones(self.width))
        self.out = Linear(self.width, dims.d_model, bias=False, ends_branch=True)

    def draw(self) -> None:
        """Begin with rates 1, 2, 3, … (S4D-Real) and a whole skip; draw steps."""
        rates = torch.arange(1, self.spec.d_state + 1, dtype=self.log_rate_DR.dtype)
        with torch.no_grad():
            self.log_rate_DR.copy_(rates.log().expand_as(self.log_rate_DR))
            self.skip_D.fill_(1.0)
        draw_steps(self.step_bias_D, self.spec.least, self.spec.most)

    def forward(
        self, x_BLD: Tensor, ctx: Context, state: RecurrentVector | None
    ) -> tuple[Tensor, RecurrentVector | None]:
        refuse_pairs(ctx, self.spec.kind)
        x_BLD, gate_BLD = self.inner(x_BLD).chunk(2, dim=-1)
        x_BLD = self.conv(x_BLD, ctx, state, "swish")
        made = self.selective(x_BLD).split_with_sizes(self.parts, dim=-1)
        step_BLR, write_BLR, read_BLR = (norm(part) for norm, part in zip(self.norms, made, strict=True))
        step_BLD, keep_BL = self.step(step_BLR), shown(ctx, state)
        if keep_BL is not None:
            # after softplus a step of 0, which neither decays nor writes
            step_BLD = step_BLD.masked_fill(~keep_BL.unsqueeze(-1), -math.inf)
        where = (None, ctx.group_BL) if state is None else (state.memory_BDR, None)
        # stored as logarithms, rates stay negative
        weights = -self.log_rate_DR.exp(), self.step_bias_D, self.skip_D
        y_BLD, memory_BDR = selective_scan(x_BLD, step_BLD, write_BLR, read_BLR, gate_BLD, weights, *where)
        if state is not None:
            state.memory_BDR = memory_BDR
        return self.out(y_BLD), state

    def new_state(self, batch_size: int, max_len: int) -> RecurrentVector:
        """Return an empty state."""
        like = self.out.weight
        recent = like.new_zeros(batch_size, self.spec.kernel - 1, self.width)
        return RecurrentVector(recent, like.new_zeros(batch_size, self.width, self.spec.d_state, dtype=precision(like)))


class Mamba2(Mixer, kind="mamba2"):
    """Mamba-2 (SSD): one decay per head and step, one B and C for all heads (Dao and Gu 2024, section 7).

    The inner width is `expand` d_model in `n_heads` heads, each with `d_state` x d_head numbers of state. The result is
    gated and then normalised over all heads. Rates are drawn from [1, `largest`], steps from [`least`, `most`].
    """

    n_heads: PositiveInt
    d_state: PositiveInt = 128
    expand: PositiveInt = 2
    kernel: PositiveInt = 4
    norm: RMSNorm = RMSNorm(eps=1e-5)
    largest: PositiveFloat = 16.0
    least: PositiveFloat = 0.001
    most: PositiveFloat = 0.1

    def __post_init__(self) -> None:
        check_steps(self.least, self.most, self.largest)

    def build(self, dims: Dims) -> PartModule:
        return _Mamba2(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        width, d_both = self.width(dims), self.width(dims) + 2 * self.d_state
        d_head = width // self.n_heads
        maps = linear(dims.d_model, width + d_both + self.n_heads, False) + linear(width, dims.d_model, False)
        flops, n_states = work(shape.length, self.d_state, d_head, False, sharing=self.n_heads)
        # the convolution's output before and after its activation, values times steps, the gate and both its factors
        kept = 2 * d_both + 4 * width + 4 * self.n_heads + n_states * width * self.d_state / shape.length
        own = Cost(3 * self.n_heads, self.n_heads * flops + 8.0 * width, kept)
        return maps + own + short_conv_cost(d_both, self.kernel, True) + self.norm.cost(width)

    def width(self, dims: Dims) -> int:
        """Return the inner width, or say why it cannot be."""
        if self.expand * dims.d_model % self.n_heads:
            raise SpecError(
                f"{self.kind}: n_heads {self.n_heads} does not divide the inner width {self.expand * dims.d_model}"
            )
        return self.expand * dims.d_model


class _Mamba2(PartModule):
    def __init__(self, spec: Mamba2, dims: Dims) -> None:
        super().__init__()
        only_past(spec, dims)
        width, n_heads = spec.width(dims), spec.n_heads
        self.spec, self.d_head = spec, width // n_heads
        self.parts = [width, spec.d_state, spec.d_state]
        self.inner = Linear(dims.d_model, width + sum(self.parts) + n_heads, bias=False)
        self.conv = ShortConv(sum(self.parts), spec.kernel, bias=True)
        self.step_bias_H = nn.Parameter(torch.zeros(n_heads))
        self.log_rate_H = nn.Parameter(torch.zeros(n_heads))
        self.skip_H = nn.Parameter(torch.ones(n_heads))
        self.norm = spec.norm.build(width)
        self.out = Linear(width, dims.d_model, bias=False, ends_branch=True)

    def draw(self) -> None:
        """Draw rates and steps, and begin with a whole skip."""
        with torch.no_grad():
            self.log_rate_H.uniform_(1.0, self.spec.largest).log_()
            self.skip_H.fill_(1.0)
        draw_steps(self.step_bias_H, self.spec.least, self.spec.most)

    def forward(
        self, x_BLD: Tensor, ctx: Context, state: RecurrentMatrix | None
    ) -> tuple[Tensor, RecurrentMatrix | None]:
        refuse_pairs(ctx, self.spec.kind)
        width, n_heads = self.parts[0], self.spec.n_heads
        gate_BLD, both_BLD, step_BLH = self.inner(x_BLD).split_with_sizes([width, sum(self.parts), n_heads], dim=-1)
        x_BLD, k_BLR, q_BLR = self.conv(both_BLD, ctx, state, "swish").split_with_sizes(self.parts, dim=-1)
        step_BHL1 = F.softplus(step_BLH + self.step_bias_H).transpose(1, 2).unsqueeze(-1)
        x_BHLK = x_BLD.unflatten(-1, (n_heads, -1)).transpose(1, 2)
        log_decay = -self.log_rate_H.exp()[:, None, None] * step_BHL1
        # Euler's rule: the step scales what is written; the skip reads the input as it is
        y_BHLK, memory_BHRK = gated_linear_recurrence(
            q_BLR.unsqueeze(1), k_BLR.unsqueeze(1), x_BHLK * step_BHL1, log_decay, *carried(ctx, state)
        )
        if state is not None:
            state.memory_BHRK = memory_BHRK
        y_BLD = (y_BHLK + self.skip_H[:, None, None] * x_BHLK).transpose(1, 2).flatten(2)
        return self.out(self.norm(y_BLD * F.silu(gate_BLD))), state

    def new_state(self, batch_size: int, max_len: int) -> RecurrentMatrix:
        """Return an empty state."""
        like, spec = self.out.weight, self.spec
        recent = like.new_zeros(batch_size, spec.kernel - 1, sum(self.parts))
        shape = batch_size, spec.n_heads, spec.d_state, self.d_head
        return RecurrentMatrix(recent, like.new_zeros(shape, dtype=precision(like)))
