"""Recurrent mixers: LSTM and GRU, the baselines that attention replaced.

Their state has constant size, so a step of decoding costs the same at any position.
"""

import dataclasses
import functools
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.flop_counter import register_flop_formula

from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape
from kinfolk.core.device import full_precision, host
from kinfolk.core.encoder_output import RecurrentOutput
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.layers.mixers.packing import by_document, refuse_pairs
from kinfolk.layers.module import Dims, Dropout, Module
from kinfolk.layers.part import Mixer, PartModule
from kinfolk.layers.residuals.residual import Residual, ResidualModule
from kinfolk.layers.states.carried_state import Recurrence, go_on
from kinfolk.layers.states.rows import Axes, StateRows

Direction = Literal["past", "both", "future"]


class Chained(Residual, kind="chained"):
    """No residual, dropout(part(x)): as recurrent layers are stacked (Zaremba et al. 2014, section 3.1)."""

    def build(self, dims: Dims) -> ResidualModule:
        return _Chained(dims)

    def cost(self, dims: Dims) -> Cost:
        return Cost(flops=dims.d_model if dims.dropout else 0, kept=dims.d_model if dims.dropout else 0)


class _Chained(ResidualModule):
    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.dropout = Dropout(dims.dropout)

    def forward(self, x: Tensor, part: Module, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        y, state = part(x, ctx, state)
        return self.dropout(y), state


class Recurrent(Mixer):
    """Axis: recurrent networks as mixers. `direction` "both" reads from either end, with half of the channels each,
    "future" from the last token to the first. A decoder begins with what its encoder ended with, where a bridge
    hands it over.
    """

    n_gates: ClassVar[int]
    keeps: ClassVar[float]  # numbers kept per channel; what a fused layer keeps as bytes of its own is not among them

    direction: Direction = "past"

    def build(self, dims: Dims) -> PartModule:
        return RecurrentModule(self, dims)

    def cell(self, d_in: int, d_out: int, both: bool) -> nn.RNNBase:
        """Return PyTorch's module."""
        raise NotImplementedError

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        n, h = (2, dims.d_model // 2) if self.direction == "both" else (1, dims.d_model)
        maps = n * self.n_gates * (dims.d_model * h + h * h)
        params = maps + n * self.n_gates * 2 * h
        return Cost(params, 2.0 * maps + 8.0 * dims.d_model, self.keeps * dims.d_model)


class LSTM(Recurrent, kind="lstm"):
    """Long short-term memory with forget gates (Hochreiter and Schmidhuber 1997; Gers et al. 2000): `torch.nn.LSTM`."""

    n_gates: ClassVar[int] = 4
    keeps: ClassVar[float] = 2.0

    def cell(self, d_in: int, d_out: int, both: bool) -> nn.RNNBase:
        return nn.LSTM(d_in, d_out, batch_first=True, bidirectional=both)


class GRU(Recurrent, kind="gru"):
    """Gated recurrent units (Cho et al. 2014), the reset gate after the map as in cuDNN: `torch.nn.GRU`."""

    n_gates: ClassVar[int] = 3
    keeps: ClassVar[float] = 8.0

    def cell(self, d_in: int, d_out: int, both: bool) -> nn.RNNBase:
        return nn.GRU(d_in, d_out, batch_first=True, bidirectional=both)


class Carried(StateRows):
    """Recurrent state of each example: one tensor, or two (output and cell), [1, B, D]."""

    held: ClassVar = {"values": Axes(rows=1)}

    def __init__(self, values: tuple[Tensor, ...]) -> None:
        self.values, self.begun = values, False

    def begin(self, ctx: Context) -> None:
        """Before the first token: take what an encoder hands over, if one does."""
        if not self.begun:
            self.values, self.begun = handed_over(ctx, self.values), True

    def keep(self, new: tuple[Tensor, ...], fresh_B: Tensor | None) -> None:
        """Remember a new state where there is one."""
        if fresh_B is not None:
            new = tuple(torch.where(fresh_B[:, None], n, o) for n, o in zip(new, self.values, strict=True))
        self.values = new


@dataclasses.dataclass(eq=False)
class FinalState:
    """Final state of a recurrent layer, output and cell side by side, for a decoder to start from. Empty at first."""

    end_BS: Tensor | None = None


class RecurrentModule(PartModule):
    """LSTM or GRU of PyTorch, over real tokens."""

    def __init__(self, spec: Recurrent, dims: Dims) -> None:
        super().__init__()
        self.spec, self.both = spec, spec.direction == "both"
        if spec.direction != "past" and dims.direction == "past":
            raise SpecError(f"direction: {spec.direction!r} would let a decoder see the future; use 'past'")
        if self.both and dims.d_model % 2:
            raise SpecError(f"{spec.kind}: d_model {dims.d_model} cannot be halved; use direction 'past'")
        self.cell = spec.cell(dims.d_model, dims.d_model // (1 + self.both), self.both)

    def draw(self) -> None:
        """Draw the cell."""
        draw_cell(self.cell)

    def forward(self, x_BLD: Tensor, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        refuse_pairs(ctx, self.spec.kind)
        if x_BLD.device.type != "cpu":
            return self._run(x_BLD, ctx, state)
        # autocast would hand a bfloat16 LSTM to oneDNN, which has none on CPUs without AVX-512: there it raises
        with full_precision(x_BLD):
            return self._run(x_BLD.to(next(self.cell.parameters()).dtype), ctx, state)

    def _run(self, x_BLD: Tensor, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        if isinstance(state, Recurrence):
            return go_on(self.cell, x_BLD, ctx, state, self.cell.hidden_size), state
        if state is None or isinstance(state, FinalState):
            return by_document(functools.partial(self._read, final=state), x_BLD, ctx), state
        keep_BL = None if ctx.padding is None else ctx.padding.keep_BL
        state.begin(ctx)
        return self._go_on(x_BLD, keep_BL, state), state

    def new_state(self, batch_size: int, max_len: int) -> Carried:
        """Return zeros."""
        if self.spec.direction != "past":
            raise SpecError(
                f"{self.spec.kind} of direction {self.spec.direction!r} cannot decode step by step; use 'past'"
            )
        return Carried(self._zeros(batch_size))

    def new_memory(self) -> Recurrence | None:
        """Return nothing yet; only what reads forwards has something to go on with."""
        return Recurrence(len(self._zeros(1))) if self.spec.direction == "past" else None

    def _zeros(self, batch_size: int) -> tuple[Tensor, ...]:
        weight = self.cell.weight_hh_l0
        assert isinstance(weight, Tensor)
        zeros = weight.new_zeros(1 + self.both, batch_size, weight.shape[1])
        return (zeros, zeros) if isinstance(self.cell, nn.LSTM) else (zeros,)

    def _read(self, x_BLD: Tensor, ctx: Context, final: FinalState | None) -> Tensor:
        begin, padding, backwards = self._begin(ctx, x_BLD), ctx.padding, self.spec.direction == "future"
        # what is read behind the last token spoils the last state only
        harmless = padding is not None and padding.right and self.spec.direction == "past" and final is None
        if padding is None or harmless:
            y_BLD, end = self.cell(x_BLD.flip(1) if backwards else x_BLD, begin)
            y_BLD = y_BLD.flip(1) if backwards else y_BLD
        else:
            order_BL = real_first(padding.keep_BL, backwards)
            y_BLD, end = self._packed(_take(x_BLD, order_BL), padding.keep_BL, begin)
            y_BLD = torch.zeros_like(y_BLD).scatter(1, order_BL[..., None].expand_as(y_BLD), y_BLD)
        if final is not None:
            final.end_BS = torch.cat([value.transpose(0, 1).flatten(1) for value in _values(end)], -1)
        return y_BLD

    def _begin(self, ctx: Context, x_BLD: Tensor) -> Any:
        if not isinstance(ctx.encoder_output, RecurrentOutput):
            return None
        begin = handed_over(ctx, self._zeros(len(x_BLD)))
        return begin if len(begin) > 1 else begin[0]

    def _go_on(self, x_BLD: Tensor, keep_BL: Tensor | None, state: Carried) -> Tensor:
        start = state.values if len(state.values) > 1 else state.values[0]
        if keep_BL is None:
            y_BLD, end = self.cell(x_BLD, start)
            state.keep(_values(end), None)
            return y_BLD
        y_BLD, end = self._packed(x_BLD, keep_BL, start)
        state.keep(_values(end), keep_BL.any(1))
        return y_BLD

    def _packed(self, x_BLD: Tensor, keep_BL: Tensor, start: Any) -> tuple[Tensor, Any]:
        """Read rows up to their last real token; one without any is read for one token, to no effect."""
        lengths_B = host(keep_BL).sum(1).clamp(min=1)
        packed = pack_padded_sequence(x_BLD, lengths_B, batch_first=True, enforce_sorted=False)
        y, end = self.cell(packed, start)
        return pad_packed_sequence(y, batch_first=True, total_length=x_BLD.shape[1])[0], end


@torch.no_grad()
def draw_cell(cell: nn.RNNBase) -> None:
    """Draw Glorot's maps from the input and orthogonal ones from the state; an LSTM begins by forgetting little."""
    n_gates, width = 4 if isinstance(cell, nn.LSTM) else 3, cell.hidden_size
    for name, weight in cell.named_parameters():
        if "bias" in name:
            nn.init.zeros_(weight)
            if n_gates == 4 and "bias_ih" in name:
                # in one of two biases, whose sum counts (Gers et al. 2000; Jozefowicz et al. 2015)
                weight[width : 2 * width] = 1.0
        else:
            for gate in weight.chunk(n_gates):
                (nn.init.orthogonal_ if "weight_hh" in name else nn.init.xavier_uniform_)(gate)


def _values(end: Any) -> tuple[Tensor, ...]:
    return end if isinstance(end, tuple) else (end,)


def handed_over(ctx: Context, zeros: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return what an encoder hands over to this layer, or the zeros that it would begin with."""
    if not isinstance(ctx.encoder_output, RecurrentOutput):
        return zeros
    ends_1BS = ctx.encoder_output.ends_NBS[:1]
    widths = [zero.shape[-1] for zero in zeros]
    if ends_1BS.shape[-1] != sum(widths):
        raise ShapeError(f"a state of {sum(widths)} numbers cannot begin with the {ends_1BS.shape[-1]} of an encoder")
    return ends_1BS.to(zeros[0].dtype).split(widths, dim=-1)


def real_first(keep_BL: Tensor, backwards: bool) -> Tensor:
    """Return the order of tokens with the real ones first, in their order or from the last to the first."""
    n = keep_BL.shape[1]
    at_L = torch.arange(n, device=keep_BL.device)
    return torch.where(keep_BL, at_L.flip(0) if backwards else at_L, n + at_L).argsort(1)


def _take(x_BLD: Tensor, order_BL: Tensor) -> Tensor:
    return x_BLD.gather(1, order_BL[..., None].expand_as(x_BLD))


@register_flop_formula(torch.ops.aten.mkldnn_rnn_layer)
def _flops_of_a_layer(x: Any, w_in: Any, w_state: Any, *others: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """Count the products of the fused layer that PyTorch has on CPUs, which its counter does not know."""
    return int(2 * x[0] * x[1] * (w_in[0] * w_in[1] + w_state[0] * w_state[1]))
