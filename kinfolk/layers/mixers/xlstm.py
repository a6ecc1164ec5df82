"""xLSTM's mixers: mLSTM (a matrix memory with exponential input gates, chunked) and sLSTM (scalar memories, recurrent).

Both forget by gates made from the input and are normalised by a state of their own. mLSTM reads its memory like linear
attention, so that training is chunked; sLSTM's gates read its last output, so that it runs position by position.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.core.bounds import NonNegativeFloat, PositiveFloat, PositiveInt
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.layers.mixers.linear_recurrence import carried
from kinfolk.layers.mixers.packing import refuse_pairs
from kinfolk.layers.module import Dims, Linear
from kinfolk.layers.part import Mixer, PartModule, only_past, whole_heads
from kinfolk.layers.states.rows import Axes, StateRows
from kinfolk.ops import gated_linear_recurrence
from kinfolk.ops.chunk_scan import precision


class MLSTM(Mixer, kind="mlstm"):
    r"""mLSTM: $C_t = f_t C_{t-1} + i_t k_t v_t^\top$, read as $C_t^\top q_t / \max(|n_t^\top q_t|, 1)$.

    $n_t = f_t n_{t-1} + i_t k_t$ is one more column of C. Beck et al. 2024 (xLSTM), section 2.3, as in xLSTM 7B
    (Beck et al. 2025): $i = e^{c \tanh(\tilde i / c)}$ with the bound c = `cap`, $f = \sigma(c \tanh(\tilde f / c))$,
    one of each per head; queries and keys `share` as wide as the model, a norm of each head, and a sigmoid output gate.
    The bound keeps $i$ below $e^c$, so that no further stabiliser is needed in single precision.
    """

    n_heads: PositiveInt
    share: PositiveFloat = 0.5
    cap: PositiveFloat = 15.0
    eps: NonNegativeFloat = 1e-6

    def build(self, dims: Dims) -> PartModule:
        return _MLSTM(self, dims)

    def widths(self, dims: Dims) -> tuple[int, int]:
        """Return the widths of a head's keys and values, or say why they cannot be."""
        d_value = whole_heads(self, dims)
        return max(1, round(d_value * self.share)), d_value

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        d_key, d_value = self.widths(dims)
        d, n = dims.d_model, self.n_heads
        maps = linear(d, 2 * n * d_key + 2 * d, False) + linear(d, d, False) + linear(d, 2 * n, True, kept=False)
        flops, n_states = gated_linear_recurrence.work(shape.length, d_key, d_value + 1, False)
        states = n_states * n * d_key * (d_value + 1) / shape.length
        kept = 4 * n * d_key + 7 * d + 6 * n + states
        return maps + Cost(d, n * flops + 12.0 * d, kept)


class SLSTM(Mixer, kind="slstm"):
    r"""sLSTM: $c_t = f_t c_{t-1} + i_t z_t$, $n_t = f_t n_{t-1} + i_t$, $h_t = o_t c_t / n_t$ (Beck et al. 2024, 2.2).

    $i = e^{\tilde i}$, $f = \sigma(\tilde f)$, $z = \tanh(\tilde z)$, $o = \sigma(\tilde o)$, all made from the input
    and from $h_{t-1}$ of the same head. Gates are stabilised by their running maximum $m_t = \max(\log f_t + m_{t-1},
    \tilde i_t)$, which cancels. A norm of each head and an output map close it. It runs position by position.
    """

    n_heads: PositiveInt
    eps: NonNegativeFloat = 1e-6

    def build(self, dims: Dims) -> PartModule:
        return _SLSTM(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        d, d_head = dims.d_model, dims.d_model // self.n_heads
        maps = linear(d, 4 * d, True) + linear(d, d, False)
        return maps + Cost(4 * d * d_head + d, 8.0 * d * d_head + 30.0 * d, 22 * d)


class _LSTMBase(PartModule):
    """Base of mLSTM and sLSTM: the past only, heads that divide the model, a norm of each head without a bias."""

    def __init__(self, spec: Any, dims: Dims) -> None:
        super().__init__()
        only_past(spec, dims)
        whole_heads(spec, dims)
        self.spec, self.n_heads, self.width = spec, spec.n_heads, dims.d_model
        self.gain_D = nn.Parameter(torch.ones(dims.d_model))
        self.out = Linear(dims.d_model, dims.d_model, bias=False, ends_branch=True)

    def normed(self, h_BLHK: Tensor) -> Tensor:
        """Normalise each head: [B, L, D]."""
        return F.layer_norm(h_BLHK, h_BLHK.shape[-1:], eps=self.spec.eps).flatten(2) * self.gain_D


class MatrixMemory(StateRows):
    """Decoding state of mLSTM: one matrix per head, its normaliser as the last column."""

    held: ClassVar = {"memory_BHRK": Axes()}

    def __init__(self, memory_BHRK: Tensor) -> None:
        self.memory_BHRK = memory_BHRK


class _MLSTM(_LSTMBase):
    def __init__(self, spec: MLSTM, dims: Dims) -> None:
        super().__init__(spec, dims)
        self.d_key, self.d_value = spec.widths(dims)
        self.parts = [spec.n_heads * self.d_key] * 2 + [dims.d_model] * 2
        self.inner = Linear(dims.d_model, sum(self.parts), bias=False)
        self.gates = Linear(dims.d_model, 2 * spec.n_heads)

    def draw(self) -> None:
        """Begin with small input gates, and forget gates from 3 to 6 (the released code)."""
        with torch.no_grad():
            self.gates.bias[: self.n_heads] = -10.0
            self.gates.bias[self.n_heads :] = torch.linspace(3.0, 6.0, self.n_heads)

    def forward(self, x_BLD: Tensor, ctx: Context, state: MatrixMemory | None) -> tuple[Tensor, Any]:
        refuse_pairs(ctx, self.spec.kind)
        q, k, v, o = self.inner(x_BLD).split_with_sizes(self.parts, -1)
        exact, cap = precision(x_BLD), self.spec.cap
        gates_BHLn = (torch.tanh(self.gates(x_BLD).to(exact) / cap) * cap).unflatten(-1, (2, -1)).permute(0, 3, 1, 2)
        # the cap bounds an input gate by e^15, about 3 million: sums stay far inside single precision
        write_BHL1, keep_BHL1 = gates_BHLn[..., :1].exp(), F.logsigmoid(gates_BHLn[..., 1:])
        q_BHLR, k_BHLR, v_BHLK = (x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2).to(exact) for x in (q, k, v))
        # one more value of 1 makes the recurrence sum up the normaliser beside the memory
        v_BHLK = F.pad(v_BHLK, (0, 1), value=1.0)
        y_BHLK, memory = gated_linear_recurrence.gated_linear_recurrence(
            q_BHLR * self.d_key**-0.5, k_BHLR * write_BHL1, v_BHLK, keep_BHL1, *carried(ctx, state)
        )
        if state is not None:
            state.memory_BHRK = memory
        # 1, where stabilised forms have e^-m: here nothing was divided by e^m
        h_BHLK = y_BHLK[..., :-1] / y_BHLK[..., -1:].abs().clamp(min=1.0)
        return self.out(torch.sigmoid(o) * self.normed(h_BHLK.transpose(1, 2)).to(x_BLD.dtype)), state

    def new_state(self, batch_size: int, max_len: int) -> MatrixMemory:
        """Return an empty state."""
        like = self.out.weight
        return MatrixMemory(
            like.new_zeros(batch_size, self.n_heads, self.d_key, self.d_value + 1, dtype=precision(like))
        )


class ScalarMemories(StateRows):
    """Decoding state of sLSTM: output, cell, normaliser and stabiliser of every channel."""

    held: ClassVar = {"cells_B4D": Axes()}

    def __init__(self, cells_B4D: Tensor) -> None:
        self.cells_B4D = cells_B4D


class _SLSTM(_LSTMBase):
    def __init__(self, spec: SLSTM, dims: Dims) -> None:
        super().__init__(spec, dims)
        d_head = dims.d_model // spec.n_heads
        self.inner = Linear(dims.d_model, 4 * dims.d_model, packs=4)
        self.recurrent_HKn = nn.Parameter(torch.zeros(spec.n_heads, d_head, 4 * d_head))
        self.draw()

    def draw(self) -> None:
        """Draw the recurrent maps; forget gates begin from 3 to 6."""
        nn.init.normal_(self.recurrent_HKn, std=0.02)
        with torch.no_grad():
            self.inner.bias.view(4, -1)[1] = torch.linspace(3.0, 6.0, self.width)

    def forward(self, x_BLD: Tensor, ctx: Context, state: ScalarMemories | None) -> tuple[Tensor, Any]:
        refuse_pairs(ctx, self.spec.kind)
        exact = precision(x_BLD)
        inner_BLnD = self.inner(x_BLD).to(exact).unflatten(-1, (4, -1))
        cells = self._start(x_BLD) if state is None else state.cells_B4D
        keep_BL = None if ctx.padding is None else ctx.padding.keep_BL
        outs = []
        for t in range(x_BLD.shape[1]):
            if t and state is None and ctx.group_BL is not None:
                same_B11 = (ctx.group_BL[:, t] == ctx.group_BL[:, t - 1])[:, None, None]
                cells = torch.where(same_B11, cells, self._start(x_BLD))
            after = self._step(inner_BLnD[:, t], cells)
            cells = after if keep_BL is None else torch.where(keep_BL[:, t, None, None], after, cells)
            outs.append(after[:, 0])
        if state is not None:
            state.cells_B4D = cells
        h_BLHK = torch.stack(outs, 1).unflatten(-1, (self.n_heads, -1))
        return self.out(self.normed(h_BLHK).to(x_BLD.dtype)), state

    def _step(self, inner_BnD: Tensor, cells_B4D: Tensor) -> Tensor:
        h, c, n, m = cells_B4D.unbind(1)
        before_HBK = h.unflatten(-1, (self.n_heads, -1)).transpose(0, 1)
        own = (before_HBK @ self.recurrent_HKn.to(h.dtype)).unflatten(-1, (4, -1)).permute(1, 2, 0, 3).flatten(2)
        i, f, z, o = (inner_BnD + own).unbind(1)
        log_f = F.logsigmoid(f) + m
        largest = torch.maximum(i, log_f)
        # one of the two is e^0 = 1, so that n is at least 1 from the first step on
        write, keep = torch.exp(i - largest), torch.exp(log_f - largest)
        c, n = keep * c + write * torch.tanh(z), keep * n + write
        return torch.stack([torch.sigmoid(o) * c / n, c, n, largest], 1)

    def _start(self, x_BLD: Tensor) -> Tensor:
        cells = x_BLD.new_zeros(len(x_BLD), 4, self.width, dtype=precision(x_BLD))
        # nothing is kept of what was before: its weight is e^-inf, here the smallest that gives no NaN
        cells[:, 3] = -1e4
        return cells

    def new_state(self, batch_size: int, max_len: int) -> ScalarMemories:
        """Return an empty state."""
        return ScalarMemories(self._start(self.out.weight.new_zeros(batch_size, 0, 0)))
